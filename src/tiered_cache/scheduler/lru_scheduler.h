// The default policy: least recently used blocks leave. They move to the next tier below that has room or holds
// something used even longer ago; when there is none they are dropped.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "tiered_cache/scheduler/lru_queue.h"
#include "tiered_cache/scheduler/scheduler.h"

namespace mooncake {

class TieredBackend;

// The backend owns it and outlives its calls. Any thread; copies run on the calling thread.
class LruScheduler final : public Scheduler {
 public:
  LruScheduler(TieredBackend& backend, size_t tier_count);
  void OnPlaced(size_t tier_index, const EntryPtr& entry) override;
  bool OnAllocationFailure(size_t tier_index, size_t size) override;

 private:
  // Makes `entry` leave the tier. The bytes that this gave up, 0 when it left by other means meanwhile; nullopt when
  // somebody uses it.
  std::optional<size_t> Evict(size_t tier_index, const EntryPtr& entry);
  // The same bytes on a lower tier: the entry's replica there, or a copy on the next one that makes room. Null when no
  // tier took it; nullopt when the block is not what was written, so that it must not go anywhere.
  std::optional<AllocationHandle> CopyBelow(size_t tier_index, const EntryPtr& entry, const AllocationEntry& block);
  // A block of `size`, pushing out what was used before `stamp`; null when that does not make room.
  AllocationHandle RoomOn(size_t tier_index, size_t size, uint64_t stamp);
  // As Evict, for the oldest entry; nullopt also when it was used at `before_stamp` or later.
  std::optional<size_t> EvictOldest(size_t tier_index, uint64_t before_stamp);

  TieredBackend& backend_;
  std::atomic<uint64_t> failed_moves_ = 0;
  std::vector<std::unique_ptr<LruQueue>> queues_;  // by tier index
};

}  // namespace mooncake
