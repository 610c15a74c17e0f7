// Exact least-recently-used order over the blocks of one tier, at the price of one relaxed store per access.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "tiered_cache/metadata_entry.h"

namespace mooncake {

// A heap of (stamp, entry), put right lazily: an access only writes the entry's last_access; when an item reaches the
// top with an older stamp than its entry has now, it goes back with the new one. So the item that comes out is the true
// oldest. Any thread.
class LruQueue {
 public:
  explicit LruQueue(size_t tier_index) : tier_bit_(uint32_t{1} << tier_index) {}

  // Does nothing when the entry is queued already.
  void Push(EntryPtr entry);
  // Removes and returns the entry of this tier that was used longest ago; null when there is none.
  EntryPtr PopOldest();
  // When that entry was last used, in the backend's logical time; nullopt when there is none.
  std::optional<uint64_t> OldestAccess();
  size_t size() const;

 private:
  struct Item {
    uint64_t stamp;
    EntryPtr entry;
  };
  static bool Later(const Item& a, const Item& b) { return a.stamp > b.stamp; }
  bool Live(const Item& item) const { return (item.entry->tier_mask.load(std::memory_order_acquire) & tier_bit_) != 0; }
  void Unmark(MetadataEntry& entry) const { entry.queued_mask.fetch_and(~tier_bit_, std::memory_order_relaxed); }
  // Brings the true oldest live item to the top; false when the heap is empty.
  bool SettleTop();
  void DropDeadItems();

  const uint32_t tier_bit_;
  mutable std::mutex mutex_;
  std::vector<Item> heap_;
  size_t compact_at_ = 4096;  // deleted keys leave dead items behind; beyond this size they are swept out
};

}  // namespace mooncake
