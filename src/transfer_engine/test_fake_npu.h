// A stand-in for an NPU runtime in tests: blocks of ordinary memory behind device addresses, with a hook before copies.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "device/memory_range.h"
#include "device/npu_runtime.h"

namespace mooncake {

class FakeNpu : public NpuRuntime {
 public:
  int32_t DeviceCount() const override { return 1; }
  Result<void> OpenDevice(int32_t) override { return {}; }
  Result<MemoryInfo> GetMemoryInfo(int32_t) override { return MemoryInfo{1 << 30, 1 << 30}; }
  Result<AscendUnifiedPointer> Allocate(int32_t device_id, size_t size) override {
    std::lock_guard lock(mutex_);
    const uintptr_t address = next_;
    next_ += size + 4096;
    blocks_[address].resize(size);
    return AscendUnifiedPointer{device_id, static_cast<DeviceAddress>(address)};
  }
  Result<void> Free(AscendUnifiedPointer block) override {
    std::lock_guard lock(mutex_);
    MC_CHECK(blocks_.erase(static_cast<uintptr_t>(block.device_ptr)) == 1, "free of an unknown block");
    return {};
  }
  Result<void> CopyHostToDevice(AscendUnifiedPointer target, size_t, const std::byte* source, size_t size) override {
    if (before_copy) MC_TRY(before_copy());
    std::memcpy(At(target, size), source, size);
    return {};
  }
  Result<void> CopyDeviceToHost(std::byte* target, size_t, AscendUnifiedPointer source, size_t size) override {
    if (before_copy) MC_TRY(before_copy());
    std::memcpy(target, At(source, size), size);
    return {};
  }
  Result<void> CopyDeviceToDevice(AscendUnifiedPointer target, size_t, AscendUnifiedPointer source,
                                  size_t size) override {
    if (before_copy) MC_TRY(before_copy());
    std::memmove(At(target, size), At(source, size), size);
    return {};
  }
  std::optional<int32_t> DeviceOf(const void*) const override { return std::nullopt; }

  // A block as a range, filled with `bytes`.
  NpuRange Hold(std::span<const std::byte> bytes) {
    const NpuRange range{*Allocate(0, bytes.size()), bytes.size(), this};
    if (!bytes.empty()) std::memcpy(At(range.at, bytes.size()), bytes.data(), bytes.size());
    return range;
  }
  std::vector<std::byte> BytesOf(const NpuRange& range) {
    const std::byte* data = At(range.at, range.size);
    return {data, data + range.size};
  }

  std::function<Result<void>()> before_copy;  // set before use

 private:
  std::byte* At(AscendUnifiedPointer pointer, size_t size) {
    std::lock_guard lock(mutex_);
    const auto address = static_cast<uintptr_t>(pointer.device_ptr);
    auto block = blocks_.upper_bound(address);
    MC_CHECK(block != blocks_.begin(), "address of no block");
    --block;
    MC_CHECK(address - block->first + size <= block->second.size(), "copy leaves its block");
    return block->second.data() + (address - block->first);
  }

  std::mutex mutex_;
  uintptr_t next_ = 0x7100'0000'0000;
  std::map<uintptr_t, std::vector<std::byte>> blocks_;
};

}  // namespace mooncake
