// The default policy: least recently used blocks leave. They move one tier down while that tier has room or holds
// something used even longer ago; otherwise they are dropped.
#pragma once

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
  // Makes `entry` leave the tier; bytes that this gave up, nullopt when somebody uses it or it is gone already.
  std::optional<size_t> Evict(size_t tier_index, const EntryPtr& entry);
  // A block of `size` on the tier below, pushing out what was used before `stamp` there; null when it has to be
  // dropped.
  AllocationHandle RoomBelow(size_t tier_index, size_t size, uint64_t stamp);
  bool EvictOldest(size_t tier_index, uint64_t before_stamp);

  TieredBackend& backend_;
  std::vector<std::unique_ptr<LruQueue>> queues_;  // by tier index
};

}  // namespace mooncake
