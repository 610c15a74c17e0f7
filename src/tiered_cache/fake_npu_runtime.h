// An NpuRuntime for tests: device addresses that crash when the CPU touches them, failures on demand, counts.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "common/check.h"
#include "device/npu_runtime.h"

namespace mooncake {

// Bytes live on the heap, addresses in a reservation nobody may read. Blocks end on the byte, so a copy that is too
// long is refused. Set the hooks before other threads start.
class FakeNpuRuntime final : public NpuRuntime {
 public:
  enum class Call : size_t { kOpenDevice, kMemoryInfo, kAllocate, kFree, kToDevice, kToHost, kBetween, kRegister };
  static constexpr int32_t kOutOfMemory = 207001;
  static constexpr int32_t kLost = 507010;
  static constexpr int32_t kCopyFailed = 507013;

  explicit FakeNpuRuntime(int32_t devices = 1, size_t hbm_bytes = size_t{64} << 20)
      : hbm_bytes_(hbm_bytes), used_(static_cast<size_t>(devices), 0) {
    void* base = mmap(nullptr, kAddressSpace, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MC_CHECK(base != MAP_FAILED, "no address space for fake devices");
    base_ = reinterpret_cast<uintptr_t>(base);
    next_ = base_;
  }
  ~FakeNpuRuntime() override { munmap(reinterpret_cast<void*>(base_), kAddressSpace); }

  // The call number `nth` from now (1 = the next) fails once; `nth` 0: all fail until Heal.
  void Fail(Call call, int nth, Status status) {
    std::lock_guard lock(mutex_);
    failures_[static_cast<size_t>(call)] = Failure{nth, std::move(status)};
  }
  void Heal(Call call) {
    std::lock_guard lock(mutex_);
    failures_[static_cast<size_t>(call)].reset();
  }
  static Status OutOfMemory() {
    return Status(ErrorCode::NO_AVAILABLE_HANDLE, "fake: MEMORY_ALLOCATION", kOutOfMemory);
  }
  static Status CopyFailed() { return Status(ErrorCode::DATA_COPY_FAILED, "fake: SYS_DMA", kCopyFailed); }

  uint64_t calls(Call call) const { return calls_[static_cast<size_t>(call)].load(); }
  size_t live_blocks() const {
    std::lock_guard lock(mutex_);
    return blocks_.size();
  }
  size_t used_bytes(int32_t device_id) const {
    std::lock_guard lock(mutex_);
    return used_[static_cast<size_t>(device_id)];
  }
  // From now on the device answers nothing.
  void Lose(int32_t device_id) {
    const Status lost(ErrorCode::INTERNAL_ERROR, "fake: LOST_HEARTBEAT", kLost);
    for (const Call call : {Call::kAllocate, Call::kFree, Call::kToDevice, Call::kToHost, Call::kBetween}) {
      Fail(call, 0, lost);
    }
    lost_.store(device_id);
  }
  // Ranges of host memory registered now, in the order of registration.
  std::vector<std::span<std::byte>> registered() const {
    std::lock_guard lock(mutex_);
    return registered_;
  }
  // Called at the start of a call, without locks.
  std::function<void(Call)> on_call;
  // Called before a range of host memory is unregistered.
  std::function<void(std::span<std::byte>)> on_unregister;
  // What a block takes from the device; unset: its size.
  std::function<size_t(size_t)> device_bytes;
  // Pages as a device has them: 2 MiB ones for blocks above 1 MiB, 4 KiB ones below.
  static size_t Paged(size_t size) {
    const size_t page = size > (size_t{1} << 20) ? size_t{2} << 20 : size_t{4} << 10;
    return (size + page - 1) / page * page;
  }

  int32_t DeviceCount() const override { return static_cast<int32_t>(used_.size()); }
  Result<void> OpenDevice(int32_t device_id) override {
    MC_TRY(Enter(Call::kOpenDevice));
    return CheckDevice(device_id);
  }
  Result<MemoryInfo> GetMemoryInfo(int32_t device_id) override {
    MC_TRY(Enter(Call::kMemoryInfo));
    MC_TRY(CheckDevice(device_id));
    return MemoryInfo{hbm_bytes_ - used_bytes(device_id), hbm_bytes_};
  }

  Result<AscendUnifiedPointer> Allocate(int32_t device_id, size_t size) override {
    MC_TRY(Enter(Call::kAllocate));
    MC_TRY(CheckDevice(device_id));
    std::lock_guard lock(mutex_);
    size_t& used = used_[static_cast<size_t>(device_id)];
    if (DeviceBytes(size) > hbm_bytes_ - used) return std::unexpected(OutOfMemory());
    used += DeviceBytes(size);
    const uintptr_t at = next_;
    next_ += (size + kGap) / kGap * kGap + kGap;  // addresses are never used again
    MC_CHECK(next_ < base_ + kAddressSpace, "fake device addresses used up");
    blocks_.emplace(at, std::make_shared<Block>(device_id, size));
    return AscendUnifiedPointer{device_id, static_cast<DeviceAddress>(at)};
  }
  size_t DeviceBytes(size_t size) const override { return device_bytes ? device_bytes(size) : size; }
  Result<void> Free(AscendUnifiedPointer block) override {
    MC_TRY(Enter(Call::kFree));
    std::lock_guard lock(mutex_);
    const auto found = blocks_.find(static_cast<uintptr_t>(block.device_ptr));
    if (found == blocks_.end() || found->second->device_id != block.device_id) {
      return Error(ErrorCode::INTERNAL_ERROR, "fake: free of what is not a block of device {}", block.device_id);
    }
    used_[static_cast<size_t>(block.device_id)] -= DeviceBytes(found->second->bytes.size());
    blocks_.erase(found);
    return {};
  }

  Result<void> CopyHostToDevice(AscendUnifiedPointer target, size_t capacity, const std::byte* source,
                                size_t size) override {
    MC_TRY(Enter(Call::kToDevice));
    if (size > capacity) return Error(ErrorCode::DATA_COPY_FAILED, "fake: {} B into {} B", size, capacity);
    const Place place = MC_TRY(Find(target, size));
    std::memcpy(place.at, source, size);
    return {};
  }
  Result<void> CopyDeviceToHost(std::byte* target, size_t capacity, AscendUnifiedPointer source, size_t size) override {
    MC_TRY(Enter(Call::kToHost));
    if (size > capacity) return Error(ErrorCode::DATA_COPY_FAILED, "fake: {} B into {} B", size, capacity);
    const Place place = MC_TRY(Find(source, size));
    std::memcpy(target, place.at, size);
    return {};
  }

  Result<void> CopyDeviceToDevice(AscendUnifiedPointer target, size_t capacity, AscendUnifiedPointer source,
                                  size_t size) override {
    MC_TRY(Enter(Call::kBetween));
    if (size > capacity) return Error(ErrorCode::DATA_COPY_FAILED, "fake: {} B into {} B", size, capacity);
    const Place from = MC_TRY(Find(source, size));
    const Place to = MC_TRY(Find(target, size));
    std::memmove(to.at, from.at, size);
    return {};
  }

  Result<std::shared_ptr<void>> RegisterHost(int32_t device_id, std::span<std::byte> memory) override {
    MC_TRY(Enter(Call::kRegister));
    MC_TRY(CheckDevice(device_id));
    if (reinterpret_cast<uintptr_t>(memory.data()) % kGap != 0 || memory.size() % kGap != 0 || memory.empty()) {
      return Error(ErrorCode::INVALID_PARAMS, "fake: {} B do not begin and end on a page", memory.size());
    }
    std::lock_guard lock(mutex_);
    for (const auto& other : registered_) {
      if (memory.data() < other.data() + other.size() && other.data() < memory.data() + memory.size()) {
        return Error(ErrorCode::INTERNAL_ERROR, "fake: registered already");
      }
    }
    registered_.push_back(memory);
    return std::shared_ptr<void>(memory.data(), [this, memory](void*) {
      if (on_unregister) on_unregister(memory);
      std::lock_guard unregister_lock(mutex_);
      std::erase_if(registered_, [&](const auto& range) { return range.data() == memory.data(); });
    });
  }

  bool DeviceLost(int32_t device_id) const override { return lost_.load() == device_id; }

  std::optional<int32_t> DeviceOf(const void* address) const override {
    std::lock_guard lock(mutex_);
    const auto at = reinterpret_cast<uintptr_t>(address);
    const auto after = blocks_.upper_bound(at);
    if (after == blocks_.begin()) return std::nullopt;
    const auto& [start, block] = *std::prev(after);
    return at - start < block->bytes.size() ? std::optional(block->device_id) : std::nullopt;
  }

 private:
  static constexpr size_t kAddressSpace = size_t{1} << 36;
  static constexpr size_t kGap = 4096;  // between blocks; also the page
  struct Block {
    Block(int32_t device, size_t size) : device_id(device), bytes(size, std::byte{0xEE}) {}
    ~Block() { std::fill(bytes.begin(), bytes.end(), std::byte{0xDD}); }
    int32_t device_id;
    std::vector<std::byte> bytes;
  };
  struct Place {
    std::shared_ptr<Block> block;  // a copy that races with a free reads bytes, as on a device
    std::byte* at;
  };
  struct Failure {
    int countdown;
    Status status;
  };

  Result<void> Enter(Call call) {
    if (on_call) on_call(call);
    calls_[static_cast<size_t>(call)].fetch_add(1);
    std::lock_guard lock(mutex_);
    auto& failure = failures_[static_cast<size_t>(call)];
    if (!failure) return {};
    if (failure->countdown == 0) return std::unexpected(failure->status);
    if (--failure->countdown > 0) return {};
    const Status status = failure->status;
    failure.reset();
    return std::unexpected(status);
  }
  Result<void> CheckDevice(int32_t device_id) const {
    if (device_id >= 0 && device_id < DeviceCount()) return {};
    return Error(ErrorCode::INVALID_PARAMS, "device_id {} does not exist: this process sees {} NPU device(s)",
                 device_id, DeviceCount());
  }
  Result<Place> Find(AscendUnifiedPointer pointer, size_t size) const {
    std::lock_guard lock(mutex_);
    const auto at = static_cast<uintptr_t>(pointer.device_ptr);
    const auto after = blocks_.upper_bound(at);
    if (after != blocks_.begin()) {
      const auto& [start, block] = *std::prev(after);
      const size_t offset = at - start;
      if (block->device_id == pointer.device_id && offset <= block->bytes.size() &&
          size <= block->bytes.size() - offset) {
        return Place{block, block->bytes.data() + offset};
      }
    }
    return Error(ErrorCode::DATA_COPY_FAILED, "fake: {} B at {:#x} are not in a block of device {}", size, at,
                 pointer.device_id);
  }

  const size_t hbm_bytes_;
  uintptr_t base_ = 0;
  mutable std::mutex mutex_;  // guards all below but the counts
  uintptr_t next_ = 0;
  std::vector<size_t> used_;
  std::map<uintptr_t, std::shared_ptr<Block>> blocks_;
  std::vector<std::span<std::byte>> registered_;
  std::array<std::optional<Failure>, 8> failures_;
  std::array<std::atomic<uint64_t>, 8> calls_{};
  std::atomic<int32_t> lost_{-1};
};

}  // namespace mooncake
