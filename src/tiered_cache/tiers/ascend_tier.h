// NPU memory as a tier.
#pragma once

#include <memory>

#include "device/npu_runtime.h"
#include "tiered_cache/cache_tier.h"
#include "tiered_cache/capacity_budget.h"

namespace mooncake {

// Owns one block of device memory: the block is freed first, then its bytes leave the tier's usage. Destroyed on any
// thread.
class AscendBuffer final : public AscendBufferBase {
 public:
  AscendBuffer(AscendUnifiedPointer pointer, size_t size, NpuRuntime& runtime, CapacityBudget::Reservation room)
      : room_(std::move(room)), pointer_(pointer), size_(size), runtime_(runtime) {}
  ~AscendBuffer() override;
  size_t size() const override { return size_; }
  AscendUnifiedPointer pointer() const override { return pointer_; }
  NpuRuntime& runtime() const override { return runtime_; }

 private:
  CapacityBudget::Reservation room_;  // destroyed after the destructor body has freed the block
  const AscendUnifiedPointer pointer_;
  const size_t size_;
  NpuRuntime& runtime_;
};

// Allocation: reserve in the budget by compare-and-swap, then ask the device; a refusal gives the reservation back.
// Several tiers may share a device, and a process may have tiers on several devices.
class AscendCacheTier final : public CacheTier {
 public:
  struct Options {
    size_t capacity = 0;
    int32_t priority = 0;
    std::vector<std::string> tags;
    int32_t device_id = 0;
    size_t promised = 0;  // bytes that other tiers of this process may come to use on the device
  };

  // INVALID_PARAMS when the device does not exist or its free memory is below `capacity` and what is promised.
  static Result<std::shared_ptr<AscendCacheTier>> Open(const Options& options, std::shared_ptr<NpuRuntime> runtime);

  Result<DataSource> Allocate(size_t size) override;
  size_t usage() const override { return budget_.used(); }
  int32_t device_id() const { return device_id_; }

 private:
  AscendCacheTier(Info info, int32_t device_id, std::shared_ptr<NpuRuntime> runtime);

  const int32_t device_id_;
  const std::shared_ptr<NpuRuntime> runtime_;
  CapacityBudget budget_;
};

}  // namespace mooncake
