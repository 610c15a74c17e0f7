// NPU memory as a tier.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "device/npu_runtime.h"
#include "tiered_cache/cache_tier.h"
#include "tiered_cache/capacity_budget.h"
#include "tiered_cache/tiers/ascend_slabs.h"

namespace mooncake {

// Two ways to get blocks. Slabs: the whole capacity is taken from the device at start and cut up here; no driver call
// per block, and no block is refused for want of device memory later. Direct: one driver allocation per block; room is
// reserved by compare-and-swap before the device is asked, and given back when it refuses. In both, `capacity` limits
// what the device spends, its rounding included, and usage counts blocks as they are rounded.
//
// Several tiers may share a device, and a process may have tiers on several devices. Any thread, blocks may die on any.
class AscendCacheTier final : public CacheTier {
 public:
  enum class Allocation : uint8_t { kSlab, kDirect };
  struct Options {
    size_t capacity = 0;
    int32_t priority = 0;
    std::vector<std::string> tags;
    int32_t device_id = 0;
    size_t promised = 0;  // bytes that other tiers of this process may come to take from the device
    size_t taken = 0;     // bytes that they have taken, so that the device does not call them free; for the error
    Allocation allocation = Allocation::kSlab;
    size_t slab_size = 0;  // bytes of device memory per slab; 0: all in one. Bounds the size of a block.
  };

  // INVALID_PARAMS when the device does not exist, its free memory is below `capacity` and what is promised, or the
  // capacity holds no block at all; the device's own error when it refuses a slab: nothing stays taken then.
  static Result<std::shared_ptr<AscendCacheTier>> Open(const Options& options, std::shared_ptr<NpuRuntime> runtime);
  ~AscendCacheTier() override;

  // A lost device refuses with its number as vendor_code, whatever room there is.
  Result<DataSource> Allocate(size_t size) override;
  size_t usage() const override { return slabs_ ? slabs_->usage() : budget_.used(); }
  size_t largest_hole() const override;
  size_t largest_block() const override;
  uint64_t device_refusals() const override { return refusals_.load(std::memory_order_relaxed); }
  std::vector<DeviceMemory> device_memory() const override {
    return slabs_ ? slabs_->memory() : std::vector<DeviceMemory>{};
  }
  bool lost() const override { return runtime_->DeviceLost(device_id_); }
  int32_t device_id() const { return device_id_; }
  // Bytes of blocks that the device did not take back. They stay in the usage: the device still spends them.
  size_t quarantined_bytes() const { return quarantined_bytes_.load(std::memory_order_relaxed); }

 private:
  class SlabBlock;
  class DirectBlock;

  AscendCacheTier(Info info, int32_t device_id, std::shared_ptr<NpuRuntime> runtime,
                  std::unique_ptr<AscendSlabs> slabs);
  Result<DataSource> AllocateFromSlabs(size_t size);
  Result<DataSource> AllocateDirectly(size_t size);
  std::unexpected<Status> Lost(size_t size);
  void Quarantine(CapacityBudget::Reservation room, size_t size, const Status& why);

  const int32_t device_id_;
  const std::shared_ptr<NpuRuntime> runtime_;
  const std::unique_ptr<AscendSlabs> slabs_;  // null: direct
  CapacityBudget budget_;                     // direct
  std::atomic<uint64_t> refusals_{0};
  std::atomic<size_t> quarantined_bytes_{0};
  std::mutex quarantine_mutex_;
  std::vector<CapacityBudget::Reservation> quarantine_;
};

}  // namespace mooncake
