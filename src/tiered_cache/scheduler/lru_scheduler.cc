// Eviction in least-recently-used order across the tiers of one process.
#include "tiered_cache/scheduler/lru_scheduler.h"

#include <limits>

#include "tiered_cache/tiered_backend.h"

namespace mooncake {
namespace {

// Blocks in use passed over before giving up, and blocks pushed out below for one that comes down.
constexpr size_t kMaxBusy = 64;
constexpr size_t kMaxPushedOut = 64;

}  // namespace

LruScheduler::LruScheduler(TieredBackend& backend, size_t tier_count) : backend_(backend) {
  for (size_t i = 0; i < tier_count; ++i) queues_.push_back(std::make_unique<LruQueue>(i));
}

void LruScheduler::OnPlaced(size_t tier_index, const EntryPtr& entry) {
  queues_[tier_index]->Push(entry);
}

bool LruScheduler::OnAllocationFailure(size_t tier_index, size_t size) {
  LruQueue& queue = *queues_[tier_index];
  std::vector<EntryPtr> busy;
  size_t freed = 0;
  bool any = false;
  while (freed < size && busy.size() < kMaxBusy) {
    EntryPtr victim = queue.PopOldest();
    if (victim == nullptr) break;
    if (const auto bytes = Evict(tier_index, victim)) {
      freed += *bytes;
      any = true;
    } else {
      busy.push_back(std::move(victim));
    }
  }
  for (auto& entry : busy) queue.Push(std::move(entry));  // those that are gone meanwhile are recognised as dead later
  return any;
}

std::optional<size_t> LruScheduler::Evict(size_t tier_index, const EntryPtr& entry) {
  const auto view = backend_.View(entry, tier_index);
  if (!view) return std::nullopt;
  // Ours and the index's: anybody else's means that its space would not return now.
  if (view->handle.use_count() > 2) return std::nullopt;
  const size_t size = view->handle->data.size();
  const AllocationHandle below = RoomBelow(tier_index, size, entry->last_access.load(std::memory_order_relaxed));
  if (below != nullptr && backend_.Write(view->handle->data, below)) {
    return backend_.MoveReplica(entry, tier_index, below, view->version) ? std::optional(size) : std::nullopt;
  }
  return backend_.DropReplica(entry, tier_index, view->version) ? std::optional(size) : std::nullopt;
}

AllocationHandle LruScheduler::RoomBelow(size_t tier_index, size_t size, uint64_t stamp) {
  const size_t below = tier_index + 1;
  if (size == 0 || below >= queues_.size() || backend_.TierAt(below).info().capacity < size) return nullptr;
  for (size_t pushed_out = 0; pushed_out < kMaxPushedOut; ++pushed_out) {
    auto handle = backend_.AllocateOn(below, size);
    if (handle) return std::move(*handle);
    if (!EvictOldest(below, stamp)) return nullptr;
  }
  return nullptr;
}

bool LruScheduler::EvictOldest(size_t tier_index, uint64_t before_stamp) {
  LruQueue& queue = *queues_[tier_index];
  const auto oldest = queue.OldestAccess();
  if (!oldest || *oldest >= before_stamp) return false;
  EntryPtr victim = queue.PopOldest();
  if (victim == nullptr) return false;
  if (Evict(tier_index, victim)) return true;
  queue.Push(std::move(victim));
  return false;
}

}  // namespace mooncake
