// NPU memory taken once, in one block or several, and handed out in pieces without calling the driver again.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device/npu_runtime.h"
#include "tiered_cache/cache_tier.h"
#include "tiered_cache/offset_allocator.h"

namespace mooncake {

// The largest multiple of `unit` that takes at most `room` bytes of a device's memory; 0 when none does.
size_t LargestSizeWithin(const NpuRuntime& runtime, size_t room, size_t unit);

// All slabs lie one behind the other in the space of one allocator, so the smallest hole that fits is found in constant
// time however many slabs there are. Between two of them a unit is taken for good: nothing spans two slabs. Any thread;
// must outlive its pieces.
class AscendSlabs {
 public:
  // Pieces begin at multiples of this and take multiples of it.
  static constexpr size_t kAlignment = 512;

  struct Piece {
    AscendUnifiedPointer at;
    OffsetAllocator::Range range;
  };

  // Takes slabs of `slab_bytes` device memory each until `capacity` is reached, the last one smaller; 0: one slab. No
  // more than `capacity` bytes of the device are taken, rounding and padding of the device included. A refused slab
  // gives all back; the error is the device's, with what was taken before and what is free now.
  static Result<std::unique_ptr<AscendSlabs>> Take(std::shared_ptr<NpuRuntime> runtime, int32_t device_id,
                                                   size_t capacity, size_t slab_bytes);
  // Stops the process if a piece is still out. A slab that the device does not take back is logged and left to it.
  ~AscendSlabs();
  AscendSlabs(const AscendSlabs&) = delete;
  AscendSlabs& operator=(const AscendSlabs&) = delete;

  std::optional<Piece> Allocate(size_t size);
  void Free(const OffsetAllocator::Range& range);

  std::vector<DeviceMemory> memory() const;
  size_t slab_count() const { return slabs_.size(); }
  // Bytes that pieces can take in all, and the largest piece there can ever be.
  size_t capacity() const { return capacity_; }
  size_t largest_piece() const { return slab_size_; }
  size_t usage() const;
  size_t largest_hole() const;

 private:
  AscendSlabs(std::shared_ptr<NpuRuntime> runtime, std::vector<AscendUnifiedPointer> slabs, size_t slab_size,
              size_t last_slab_size);
  size_t walls_bytes() const { return (slabs_.size() - 1) * kAlignment; }

  const std::shared_ptr<NpuRuntime> runtime_;
  const std::vector<AscendUnifiedPointer> slabs_;
  const size_t slab_size_;  // usable bytes of each but the last
  const size_t capacity_;
  mutable std::mutex mutex_;  // guards allocator_
  OffsetAllocator allocator_;
};

}  // namespace mooncake
