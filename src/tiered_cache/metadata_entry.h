// The index's record of one key, shared with the scheduler's queues.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/content_stamp.h"
#include "tiered_cache/block_sum.h"
#include "tiered_cache/cache_tier.h"
#include "tiered_cache/room_signal.h"

namespace mooncake {

// A block of a tier. Whoever holds a handle can use the bytes, also after the key was deleted or evicted; the space
// returns when the last handle dies, on whatever thread that is.
struct AllocationEntry {
  AllocationEntry(std::shared_ptr<CacheTier> owner, DataSource bytes, std::shared_ptr<RoomSignal> when_freed)
      : tier(std::move(owner)), data(std::move(bytes)), room(std::move(when_freed)) {}
  ~AllocationEntry() {
    tier->Free(std::move(data));
    room->Notify();
  }
  AllocationEntry(const AllocationEntry&) = delete;
  AllocationEntry& operator=(const AllocationEntry&) = delete;

  const std::shared_ptr<CacheTier> tier;
  DataSource data;
  mutable BlockSum sum;                    // of data, once it is written
  const std::shared_ptr<RoomSignal> room;  // told when the bytes are back
};
using AllocationHandle = std::shared_ptr<const AllocationEntry>;

inline constexpr size_t kMaxTiers = 32;

// Tiers are numbered by priority, 0 = highest. Fields without a note are guarded by the lock of the key's shard.
struct MetadataEntry {
  struct Replica {
    size_t tier_index;
    AllocationHandle handle;
  };

  explicit MetadataEntry(std::string name) : key(std::move(name)) {}

  const std::string key;
  uint64_t version = 0;                  // changes with the content; unique in this backend's life
  ContentStamp stamp;                    // of the content, as its writer gave it
  std::vector<Replica> replicas;         // by tier_index; never empty while the entry is in the index
  std::atomic<uint64_t> last_access{0};  // logical time, any thread
  std::atomic<uint32_t> tier_mask{0};    // bit i: a replica on tier i; written under the shard's lock, read anywhere
  std::atomic<uint32_t> queued_mask{0};  // bit i: an item in the LRU queue of tier i, which alone writes the bit
};
using EntryPtr = std::shared_ptr<MetadataEntry>;

// The replica on that tier, or the end.
auto FindReplica(auto& replicas, size_t tier_index) {
  return std::find_if(replicas.begin(), replicas.end(), [&](const auto& r) { return r.tier_index == tier_index; });
}

}  // namespace mooncake
