// Checksums of blocks: made when first needed, kept with the block, checked when its bytes leave the tier.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "tiered_cache/data_copier.h"

namespace mooncake {

struct AllocationEntry;

// What SumOf the block's bytes is known to be. Any thread, no lock. A sum of 0 is not kept: such a block, one in 2^64,
// is never checked.
class BlockSum {
 public:
  // nullopt: nobody has needed it yet.
  std::optional<uint64_t> value() const {
    const uint64_t sum = sum_.load(std::memory_order_relaxed);
    return sum == 0 ? std::nullopt : std::optional(sum);
  }
  // For whoever has a sum of these bytes: their writer, or a reader that made one. The first stays; false when this is
  // another one, so that the bytes are not what they were.
  bool Confirm(uint64_t sum) {
    uint64_t kept = 0;
    return sum_.compare_exchange_strong(kept, sum, std::memory_order_relaxed) || kept == sum;
  }

 private:
  std::atomic<uint64_t> sum_{0};
};

// SumOf the bytes as they are now. Device memory comes through a host buffer of at most kSumChunkBytes; errors are
// those of its copies. Blocking.
Result<uint64_t> ComputeSum(const DataSource& data, const DataCopier& copier);
// The sum a block has, or else one that is made now and kept. Blocking.
Result<uint64_t> EnsureSum(const AllocationEntry& block, const DataCopier& copier);
// Copies a block whose bytes do not change into another of its size, sum included. False, and the target's bytes mean
// nothing, when they are not what the source's sum says; without a sum, it is made on the way. Blocking.
Result<bool> CopyBlock(const AllocationEntry& source, const AllocationEntry& target, const DataCopier& copier);

}  // namespace mooncake
