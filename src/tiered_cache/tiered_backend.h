// The tiers of one process behind one index: where each key's bytes are, who may use them, and what leaves when room is
// short.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "common/uuid.h"
#include "tiered_cache/cache_tier.h"
#include "tiered_cache/data_copier.h"
#include "tiered_cache/metadata_entry.h"
#include "tiered_cache/scheduler/scheduler.h"

namespace mooncake {

// State of one tier for reports. Counters run from the backend's start.
struct TierView {
  Uuid id;
  std::string name;
  MemoryType type = MemoryType::UNKNOWN;
  size_t capacity = 0;
  size_t usage = 0;
  size_t free_space = 0;
  size_t largest_hole = 0;  // the largest block that would fit now
  int32_t priority = 0;
  std::vector<std::string> tags;
  uint64_t keys = 0;
  uint64_t hits = 0;             // handles given out by Get
  uint64_t demoted_out = 0;      // blocks that left for a lower tier
  uint64_t dropped = 0;          // blocks evicted for good
  uint64_t corrupt = 0;          // blocks dropped because their bytes were not what had been written
  uint64_t device_refusals = 0;  // blocks the device refused although the tier had room
  bool lost = false;             // the memory is gone for good
};

// What Get found: the bytes, and the identity of this content.
struct ObjectView {
  AllocationHandle handle;
  uint64_t version = 0;
  ContentStamp stamp;
};

// What ListKeys says of a key.
struct KeyInfo {
  std::string key;
  ContentStamp stamp;
  uint64_t size = 0;
};

struct CommitOptions {
  // Add this replica only if the key still has this content (CAS_FAILED otherwise).
  std::optional<uint64_t> expected_version;
  // Refuse with OBJECT_ALREADY_EXISTS when the key is there (and count that as an access).
  bool only_if_absent = false;
  // Identity of this content. Without meaning for another replica of what is there (expected_version).
  ContentStamp stamp = {};
  // Refuse with CAS_FAILED when the key is there with a stamp that ranks as high or higher. Needs a stamp.
  bool replace_if_newer = false;
  // The listener is not told: it has heard of this state already.
  bool quiet = false;
};

// Life of a block: Allocate -> Write -> Commit; a handle dropped before Commit gives its memory back. Copies, device
// calls and the listener run without locks; every lock here is held for a few memory accesses only. Any thread.
class TieredBackend {
 public:
  struct Options {
    size_t shard_count = 64;
    // Told after a key appeared, moved between tiers or went, on the thread that did it. Must not call back into the
    // backend's writing calls.
    std::function<void(std::string_view key)> on_change;
  };

  // At least one tier, at most kMaxTiers; order among equal priorities is as given. INTERNAL_ERROR when a tier's kind
  // of memory has no copiers.
  static Result<std::unique_ptr<TieredBackend>> Open(std::vector<std::shared_ptr<CacheTier>> tiers, Options options);
  ~TieredBackend();
  TieredBackend(const TieredBackend&) = delete;
  TieredBackend& operator=(const TieredBackend&) = delete;

  // A block of `size` bytes. Tried in order: the preferred tier if given, then (unless strict) the others by priority;
  // a full tier lets least recently used blocks go first. Where all that could go is in use right now, waits for room
  // until `wait_until`. size 0 yields a handle without memory: an empty value is a value. NO_AVAILABLE_HANDLE with the
  // numbers of every tier when none can hold it (and the vendor code if a device refused); TIER_NOT_FOUND for an
  // unknown preferred tier.
  Result<AllocationHandle> Allocate(size_t size, std::optional<Uuid> preferred_tier = std::nullopt, bool strict = false,
                                    std::optional<Deadline> wait_until = std::nullopt);
  // Copies source into the handle's block.
  Result<void> Write(const DataSource& source, const AllocationHandle& handle) const;
  // Makes the block the key's content and returns the version. Unless the options say otherwise it replaces whatever
  // the key had, on every tier.
  Result<uint64_t> Commit(std::string_view key, AllocationHandle handle, CommitOptions options = {});
  // The highest replica whose memory is not lost, or the one on `tier`. OBJECT_NOT_FOUND; TIER_NOT_FOUND when the key
  // has no replica there.
  Result<ObjectView> Get(std::string_view key, std::optional<Uuid> tier = std::nullopt, bool record_access = true);
  // Forgets the key, or its replica on one tier.
  Result<void> Delete(std::string_view key, std::optional<Uuid> tier = std::nullopt);
  // Forgets the key if its content ranks below `stamp`; CAS_FAILED, and it stays, when it does not.
  Result<void> DeleteOlder(std::string_view key, const ContentStamp& stamp);
  // Forgets the keys that `matches` accepts; how many. Sees every key that is there during all of the call, and is
  // called without locks.
  size_t DeleteMatching(const std::function<bool(const std::string& key)>& matches);
  // For whoever read this block of the key and found other bytes than were written: forgets that replica and counts it.
  // False when the key no longer has it.
  bool DropCorrupt(std::string_view key, const AllocationHandle& block);
  // Allocates on dest_tier, copies, commits under expected_version.
  Result<void> CopyData(std::string_view key, const DataSource& source, Uuid dest_tier, uint64_t expected_version);
  // Copies a replica to another tier; the source stays. CAS_FAILED when the key changed meanwhile; OBJECT_NOT_FOUND
  // also when the replica turned out not to be what was written (it is dropped then).
  Result<void> Transfer(std::string_view key, Uuid source_tier, Uuid dest_tier);
  bool Exist(std::string_view key, std::optional<Uuid> tier = std::nullopt) const;
  // Counts as a use of the key without handing out its bytes; false when it is not there.
  bool RecordUse(std::string_view key);
  // Number of keys removed.
  size_t RemoveAll();
  // For whoever failed to read or write a block of that tier. True when its memory is gone for good: the keys it held
  // are forgotten then, so that they are misses here and can be put again.
  bool ForgetIfLost(const CacheTier& tier);
  // True once ForgetIfLost has met a lost tier.
  bool AnyLost() const {
    return std::any_of(slots_.begin(), slots_.end(), [](const auto& slot) { return slot->lost.load(); });
  }

  std::vector<TierView> GetTierViews() const;
  std::vector<Uuid> GetReplicaTierIds(std::string_view key) const;
  std::optional<Uuid> GetDramTierId() const;
  size_t KeyCount() const;
  // Calls visit(key) for a snapshot taken shard by shard.
  void ForEachKey(const std::function<void(const std::string& key)>& visit) const;
  // At most `limit` of the keys that follow `after` (not empty; "" = from the start) in an order of the backend's own;
  // fewer: there are no more. A key that is there during all of a walk is listed once. Keys are not empty.
  std::vector<KeyInfo> ListKeys(std::string_view after, size_t limit) const;
  const DataCopier& copier() const { return copier_; }

  // From here on every call that reads or writes answers SHUTTING_DOWN. Idempotent.
  void Stop() { stopped_.store(true); }

  // --- for schedulers: tiers by index (0 = highest priority), entries by pointer ---
  const CacheTier& TierAt(size_t tier_index) const { return *slots_[tier_index]->tier; }
  // One attempt, without eviction. size 0 as in Allocate.
  Result<AllocationHandle> AllocateOn(size_t tier_index, size_t size);
  // The entry's replica on that tier if the entry is still the one in the index. Does not count as an access.
  Result<ObjectView> View(const EntryPtr& entry, size_t tier_index) const;
  // Replaces the replica on `from` by `to` in one step, if the content is still `version`.
  bool MoveReplica(const EntryPtr& entry, size_t from, AllocationHandle to, uint64_t version);
  // Removes the replica on `from`, if the content is still `version`.
  bool DropReplica(const EntryPtr& entry, size_t from, uint64_t version);

 private:
  struct TierSlot {
    std::shared_ptr<CacheTier> tier;
    std::atomic<uint64_t> keys{0};
    std::atomic<uint64_t> hits{0};
    std::atomic<uint64_t> demoted_out{0};
    std::atomic<uint64_t> dropped{0};
    std::atomic<uint64_t> corrupt{0};
    std::atomic<bool> lost{false};  // noticed and reported
  };
  struct Shard {
    mutable std::shared_mutex mutex;
    std::unordered_map<std::string_view, EntryPtr> entries;  // the key is a view of the entry's own
  };
  using Released = std::vector<AllocationHandle>;  // handles to let die after the lock is gone
  // Where Allocate looks, in this order; with `strict` only on the preferred tier.
  struct Candidates {
    std::optional<size_t> preferred;
    bool strict = false;
  };
  // One pass over the candidates that found nothing.
  struct Refusal {
    std::optional<Status> hard_error;  // the first that is not about room
    std::string reasons;               // one per tier
    int32_t vendor_code = 0;           // of the first device that refused
    bool may_change = false;           // some tier is only full at the moment
  };

  TieredBackend(std::vector<std::shared_ptr<CacheTier>> tiers, DataCopier copier, Options options);
  size_t ShardIndexOf(std::string_view key) const { return std::hash<std::string_view>()(key) % shards_.size(); }
  Shard& ShardOf(std::string_view key) const { return shards_[ShardIndexOf(key)]; }
  Result<size_t> IndexOf(Uuid tier) const;
  size_t IndexOf(const CacheTier& tier) const;
  Result<AllocationHandle> AllocateEvicting(size_t tier_index, size_t size);
  AllocationHandle TryCandidates(const Candidates& candidates, size_t size, Refusal& refusal);
  size_t ForgetTier(size_t tier_index);
  std::string UseText(const Candidates& candidates) const;
  static void AppendKeys(const Shard& shard, std::string_view after, size_t limit, std::vector<KeyInfo>& page);
  Result<void> CheckRunning() const;
  void Touch(MetadataEntry& entry) const { entry.last_access.store(tick_.fetch_add(1) + 1, std::memory_order_relaxed); }
  // Under the shard's lock.
  void PlaceReplica(MetadataEntry& entry, size_t tier_index, AllocationHandle handle, Released& released);
  void TakeReplica(MetadataEntry& entry, size_t position, Released& released);
  void TakeReplicas(MetadataEntry& entry, Released& released);
  void Changed(std::string_view key) const {
    if (on_change_) on_change_(key);
  }

  const DataCopier copier_;
  const std::function<void(std::string_view)> on_change_;
  std::vector<std::unique_ptr<TierSlot>> slots_;  // by priority
  mutable std::vector<Shard> shards_;
  std::unique_ptr<Scheduler> scheduler_;
  const std::shared_ptr<RoomSignal> room_ = std::make_shared<RoomSignal>();
  mutable std::atomic<uint64_t> tick_{0};  // logical time of accesses
  std::atomic<uint64_t> next_version_{1};
  std::atomic<bool> stopped_{false};
};

}  // namespace mooncake
