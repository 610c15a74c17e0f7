// The lazily corrected heap.
#include "tiered_cache/scheduler/lru_queue.h"

#include <algorithm>

namespace mooncake {

void LruQueue::Push(EntryPtr entry) {
  std::lock_guard lock(mutex_);
  if ((entry->queued_mask.load(std::memory_order_relaxed) & tier_bit_) != 0) return;  // its item is put right lazily
  if (heap_.size() >= compact_at_) DropDeadItems();
  entry->queued_mask.fetch_or(tier_bit_, std::memory_order_relaxed);
  const uint64_t stamp = entry->last_access.load(std::memory_order_relaxed);
  heap_.push_back({stamp, std::move(entry)});
  std::push_heap(heap_.begin(), heap_.end(), Later);
}

EntryPtr LruQueue::PopOldest() {
  std::lock_guard lock(mutex_);
  if (!SettleTop()) return nullptr;
  std::pop_heap(heap_.begin(), heap_.end(), Later);
  EntryPtr entry = std::move(heap_.back().entry);
  heap_.pop_back();
  Unmark(*entry);
  return entry;
}

std::optional<uint64_t> LruQueue::OldestAccess() {
  std::lock_guard lock(mutex_);
  if (!SettleTop()) return std::nullopt;
  return heap_.front().stamp;
}

size_t LruQueue::size() const {
  std::lock_guard lock(mutex_);
  return heap_.size();
}

bool LruQueue::SettleTop() {
  while (!heap_.empty()) {
    const uint64_t accessed = heap_.front().entry->last_access.load(std::memory_order_relaxed);
    const bool live = Live(heap_.front());
    if (live && accessed == heap_.front().stamp) return true;
    std::pop_heap(heap_.begin(), heap_.end(), Later);
    if (live) {
      heap_.back().stamp = accessed;
      std::push_heap(heap_.begin(), heap_.end(), Later);
    } else {
      Unmark(*heap_.back().entry);
      heap_.pop_back();
    }
  }
  return false;
}

void LruQueue::DropDeadItems() {
  std::erase_if(heap_, [this](const Item& item) {
    if (Live(item)) return false;
    Unmark(*item.entry);
    return true;
  });
  std::make_heap(heap_.begin(), heap_.end(), Later);
  compact_at_ = std::max<size_t>(4096, heap_.size() * 2);
}

}  // namespace mooncake
