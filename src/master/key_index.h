// Which clients hold which content of a key: soft state that owners announce and can rebuild at any time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "master/key_table.h"

namespace mooncake {

// Clients are numbered by the registry; a number is not used again. Any thread.
//
// All owners of a key hold the same content (ContentStamp); of two contents that meet here one goes. Contents without a
// stamp count as equal to any other. What was announced under an earlier epoch of a client never replaces what it
// announced under a later one.
class KeyIndex {
 public:
  struct Claim {
    uint32_t client = 0;
    int32_t type = 3;  // MemoryType
    uint64_t size = 0;
    uint16_t epoch = 0;
    ContentStamp stamp;
    uint32_t wanted = 1;  // owners that the writer asked for
  };
  struct Verdict {
    bool accepted = false;
    std::vector<uint32_t> superseded;  // clients whose older content this one has replaced
    explicit operator bool() const { return accepted; }
  };
  struct Content {
    ContentStamp stamp;
    std::vector<KeyOwner> owners;  // in the order they came; empty: nobody has it
  };
  // Whether a client is to be counted on now. Runs under the shard's lock and must not call back here.
  using Counts = std::function<bool(uint32_t client)>;

  explicit KeyIndex(size_t shard_count = 256) : shards_(shard_count) {}

  // A claim on the content that is known is refused when as many others that count hold it as the greater of
  // `max_owners` (0: no limit) and what its writers wanted. One on another content replaces it when it was upserted and
  // ranks above it, or when nobody who counts holds that. Contents that were removed (below) are refused. A refusal
  // leaves the claimant with nothing.
  Verdict Put(const KeyDigest& key, const Claim& claim, size_t max_owners, const Counts& counts);
  void Remove(const KeyDigest& key, uint32_t client, uint16_t epoch = 0);
  Content Find(const KeyDigest& key) const;

  // The contents that the key had up to that hybrid time are gone, wherever they turn up from now on: who had it
  // before. Owners that do not count are forgotten; the others will say themselves that they have let go of it.
  Content MarkRemoved(const KeyDigest& key, uint64_t hlc, TimePoint now, const Counts& counts);
  // Ends what MarkRemoved did before that time.
  void ForgetRemovals(TimePoint before);

  // Forgets everything a client holds, or what it announced before the epoch; number of replicas removed.
  size_t RemoveClient(uint32_t client);
  size_t RemoveBefore(uint32_t client, uint16_t epoch);
  size_t KeyCount() const;

 private:
  struct Removal {
    KeyDigest key;
    uint64_t hlc = 0;
    TimePoint at;
  };
  struct Shard {
    mutable std::mutex mutex;
    KeyTable keys;
    std::unordered_map<KeyDigest, uint64_t> removed;  // to the hybrid time
    std::deque<Removal> removals;                     // oldest first, one for each call
  };
  static constexpr size_t kMaxRemovalsPerShard = 4096;

  Shard& ShardOf(const KeyDigest& key) const { return shards_[key.high % shards_.size()]; }
  static void DropOldestRemoval(Shard& shard);
  static bool WasRemoved(const Shard& shard, const KeyDigest& key, const ContentStamp& stamp);
  // Another content than the one in the slot.
  static Verdict Replace(KeySlot& slot, const Claim& claim, const Counts& counts);
  static void Forfeit(KeyTable& keys, KeySlot& slot, uint32_t client);
  template <typename Condition>
  size_t RemoveIf(const Condition& condition);

  mutable std::vector<Shard> shards_;
};

}  // namespace mooncake
