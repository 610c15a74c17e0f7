// Eviction in least-recently-used order across the tiers of one process.
#include "tiered_cache/scheduler/lru_scheduler.h"

#include <bit>

#include "common/log.h"
#include "tiered_cache/tiered_backend.h"

namespace mooncake {
namespace {

// Bytes pushed out below for a block that comes down, as a multiple of its size: the holes may lie apart.
constexpr size_t kMaxPushedOut = 4;

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
  while (freed < size) {
    EntryPtr victim = queue.PopOldest();
    if (victim == nullptr) break;
    if (const auto bytes = Evict(tier_index, victim)) {
      any = true;
      freed += *bytes;
      if (*bytes == 0) break;  // it left by other means: its room may already do
    } else {
      busy.push_back(std::move(victim));
    }
  }
  for (auto& entry : busy) queue.Push(std::move(entry));  // those that are gone meanwhile are recognised as dead later
  return any;
}

std::optional<size_t> LruScheduler::Evict(size_t tier_index, const EntryPtr& entry) {
  const auto view = backend_.View(entry, tier_index);
  if (!view) return 0;
  // Ours and the index's: anybody else's means that its space would not return now.
  if (view->handle.use_count() > 2) return std::nullopt;
  const auto below = CopyBelow(tier_index, entry, *view->handle);
  const bool left = !below              ? backend_.DropCorrupt(entry->key, view->handle)
                    : *below != nullptr ? backend_.MoveReplica(entry, tier_index, *below, view->version)
                                        : backend_.DropReplica(entry, tier_index, view->version);
  return left ? view->handle->data.size() : 0;
}

std::optional<AllocationHandle> LruScheduler::CopyBelow(size_t tier_index, const EntryPtr& entry,
                                                        const AllocationEntry& block) {
  for (size_t below = tier_index + 1; below < queues_.size(); ++below) {
    if (const auto copy_there = backend_.View(entry, below)) return copy_there->handle;
  }
  const uint64_t stamp = entry->last_access.load(std::memory_order_relaxed);
  for (size_t below = tier_index + 1; below < queues_.size(); ++below) {
    AllocationHandle target = RoomOn(below, block.data.size(), stamp);
    if (target == nullptr) continue;
    const auto copied = CopyBlock(block, *target, backend_.copier());
    if (copied && !*copied) return std::nullopt;
    if (copied) return target;
    // Ever more rarely: where one copy fails, those of all that follow may.
    const uint64_t failures = failed_moves_.fetch_add(1, std::memory_order_relaxed) + 1;
    if (std::has_single_bit(failures)) {
      log::Warn("a block could not be moved from tier {} to {} (failure {} in this process): {}",
                backend_.TierAt(tier_index).info().name, backend_.TierAt(below).info().name, failures,
                copied.error().ToString());
    }
  }
  return nullptr;
}

AllocationHandle LruScheduler::RoomOn(size_t tier_index, size_t size, uint64_t stamp) {
  if (backend_.TierAt(tier_index).largest_block() < size) return nullptr;
  for (size_t pushed_out = 0;;) {
    auto handle = backend_.AllocateOn(tier_index, size);
    if (handle) return std::move(*handle);
    // Only a full tier gets room by letting blocks go, not a device that refuses.
    const bool full = handle.error().code() == ErrorCode::NO_AVAILABLE_HANDLE && handle.error().vendor_code() == 0;
    if (!full || pushed_out / kMaxPushedOut >= size) return nullptr;
    const auto freed = EvictOldest(tier_index, stamp);
    if (!freed) return nullptr;
    pushed_out += *freed;
  }
}

std::optional<size_t> LruScheduler::EvictOldest(size_t tier_index, uint64_t before_stamp) {
  LruQueue& queue = *queues_[tier_index];
  const auto oldest = queue.OldestAccess();
  if (!oldest || *oldest >= before_stamp) return std::nullopt;
  EntryPtr victim = queue.PopOldest();
  if (victim == nullptr) return std::nullopt;
  const auto freed = Evict(tier_index, victim);
  if (!freed) queue.Push(std::move(victim));
  return freed;
}

}  // namespace mooncake
