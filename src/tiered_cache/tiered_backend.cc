// Index and tier selection of the tiered backend.
#include "tiered_cache/tiered_backend.h"

#include <algorithm>
#include <mutex>

#include "common/check.h"
#include "common/log.h"
#include "tiered_cache/scheduler/lru_scheduler.h"

namespace mooncake {
namespace {

std::unexpected<Status> NotFound() {
  return std::unexpected(Status(ErrorCode::OBJECT_NOT_FOUND, {}));
}

// How often somebody who waits for room looks for blocks that were only in use.
constexpr auto kLookAgain = std::chrono::milliseconds(2);

// The tier has no room; not the device that refuses (another process took its memory: letting our blocks go would not
// be enough to trust).
bool IsFull(const Status& status) {
  return status.code() == ErrorCode::NO_AVAILABLE_HANDLE && status.vendor_code() == 0;
}

// The highest replica whose memory is still there.
auto FindUsable(const auto& replicas) {
  return std::find_if(replicas.begin(), replicas.end(), [](const auto& r) { return !r.handle->tier->lost(); });
}

}  // namespace

Result<std::unique_ptr<TieredBackend>> TieredBackend::Open(std::vector<std::shared_ptr<CacheTier>> tiers,
                                                           Options options) {
  if (tiers.empty() || tiers.size() > kMaxTiers) {
    return Error(ErrorCode::INVALID_PARAMS, "{} tiers: a backend has 1 to {}", tiers.size(), kMaxTiers);
  }
  if (options.shard_count == 0) return Error(ErrorCode::INVALID_PARAMS, "index with 0 shards");
  DataCopier copier = MC_TRY(DataCopierBuilder().Build());
  for (const auto& tier : tiers) {
    if (!copier.Supports(tier->info().type)) {
      return Error(ErrorCode::INTERNAL_ERROR, "tier {}: no copiers for memory type {} are linked in", tier->info().name,
                   MemoryTypeName(tier->info().type));
    }
  }
  std::stable_sort(tiers.begin(), tiers.end(),
                   [](const auto& a, const auto& b) { return a->info().priority > b->info().priority; });
  return std::unique_ptr<TieredBackend>(new TieredBackend(std::move(tiers), std::move(copier), std::move(options)));
}

TieredBackend::TieredBackend(std::vector<std::shared_ptr<CacheTier>> tiers, DataCopier copier, Options options)
    : copier_(std::move(copier)), on_change_(std::move(options.on_change)), shards_(options.shard_count) {
  for (auto& tier : tiers) {
    slots_.push_back(std::make_unique<TierSlot>());
    slots_.back()->tier = std::move(tier);
  }
  scheduler_ = std::make_unique<LruScheduler>(*this, slots_.size());
}

TieredBackend::~TieredBackend() {
  Stop();
}

Result<void> TieredBackend::CheckRunning() const {
  if (stopped_.load(std::memory_order_relaxed)) return Error(ErrorCode::SHUTTING_DOWN, "the store is closed");
  return {};
}

Result<size_t> TieredBackend::IndexOf(Uuid tier) const {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i]->tier->info().id == tier) return i;
  }
  return Error(ErrorCode::TIER_NOT_FOUND, "no tier {}", tier.ToString());
}

size_t TieredBackend::IndexOf(const CacheTier& tier) const {
  const auto index = IndexOf(tier.info().id);
  MC_CHECK(index.has_value(), "handle of a tier that is not this backend's");
  return *index;
}

// --- allocation ---

Result<AllocationHandle> TieredBackend::AllocateOn(size_t tier_index, size_t size) {
  const auto& tier = slots_[tier_index]->tier;
  DataSource data{nullptr, tier->info().type};
  if (size > 0) data = MC_TRY(tier->Allocate(size));
  return std::make_shared<const AllocationEntry>(tier, std::move(data), room_);
}

Result<AllocationHandle> TieredBackend::AllocateEvicting(size_t tier_index, size_t size) {
  // Another thread may take the room, or the holes may lie apart: as long as something can go, trying again makes
  // sense.
  for (;;) {
    auto handle = AllocateOn(tier_index, size);
    if (!handle) ForgetIfLost(TierAt(tier_index));
    if (handle || !IsFull(handle.error()) || TierAt(tier_index).largest_block() < size) return handle;
    if (!scheduler_->OnAllocationFailure(tier_index, size)) return handle;
  }
}

// Null when no candidate has room; `refusal` says why.
AllocationHandle TieredBackend::TryCandidates(const Candidates& candidates, size_t size, Refusal& refusal) {
  const auto attempt = [&](size_t tier_index) -> AllocationHandle {
    auto handle = AllocateEvicting(tier_index, size);
    if (handle) return std::move(*handle);
    const Status& error = handle.error();
    if (error.code() != ErrorCode::NO_AVAILABLE_HANDLE && !refusal.hard_error) refusal.hard_error = error;
    if (refusal.vendor_code == 0) refusal.vendor_code = error.vendor_code();
    if (IsFull(error) && TierAt(tier_index).largest_block() >= size) refusal.may_change = true;
    refusal.reasons += (refusal.reasons.empty() ? "" : "; ") + error.message();
    return nullptr;
  };
  if (candidates.preferred) {
    if (auto handle = attempt(*candidates.preferred)) return handle;
    if (candidates.strict) return nullptr;
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (candidates.preferred == i) continue;
    if (auto handle = attempt(i)) return handle;
  }
  return nullptr;
}

Result<AllocationHandle> TieredBackend::Allocate(size_t size, std::optional<Uuid> preferred_tier, bool strict,
                                                 std::optional<Deadline> wait_until) {
  MC_TRY(CheckRunning());
  Candidates candidates{.strict = strict};
  if (preferred_tier) candidates.preferred = MC_TRY(IndexOf(*preferred_tier));
  if (size == 0) return AllocateOn(candidates.preferred.value_or(0), 0);
  Refusal refusal;
  if (auto handle = TryCandidates(candidates, size, refusal)) return handle;
  if (wait_until && refusal.may_change && !refusal.hard_error) {
    RoomSignal::Waiter waiter(*room_);
    do {
      refusal = {};
      if (auto handle = TryCandidates(candidates, size, refusal)) return handle;
      MC_TRY(CheckRunning());
      // A reader that lets go of a block makes no sound, hence the look again (see RoomSignal, too).
      waiter.Wait(std::min(Deadline::After(kLookAgain), *wait_until,
                           [](const Deadline& a, const Deadline& b) { return a.time() < b.time(); }));
    } while (!wait_until->Passed());
  }
  if (refusal.hard_error) return std::unexpected(*refusal.hard_error);
  return std::unexpected(Status(ErrorCode::NO_AVAILABLE_HANDLE,
                                fmt::format("no room for {} B: {}. {}", size, refusal.reasons, UseText(candidates)),
                                refusal.vendor_code));
}

Result<void> TieredBackend::Write(const DataSource& source, const AllocationHandle& handle) const {
  MC_TRY(CheckRunning());
  if (handle == nullptr) return Error(ErrorCode::INVALID_PARAMS, "write to a null handle");
  return copier_.Copy(source, handle->data);
}

// --- index ---

void TieredBackend::PlaceReplica(MetadataEntry& entry, size_t tier_index, AllocationHandle handle, Released& released) {
  if (const auto old = FindReplica(entry.replicas, tier_index); old != entry.replicas.end()) {
    released.push_back(std::exchange(old->handle, std::move(handle)));
    return;
  }
  const auto at = std::find_if(entry.replicas.begin(), entry.replicas.end(),
                               [&](const auto& replica) { return replica.tier_index > tier_index; });
  entry.replicas.insert(at, {tier_index, std::move(handle)});
  entry.tier_mask.fetch_or(uint32_t{1} << tier_index, std::memory_order_release);
  slots_[tier_index]->keys.fetch_add(1, std::memory_order_relaxed);
}

void TieredBackend::TakeReplica(MetadataEntry& entry, size_t position, Released& released) {
  const size_t tier_index = entry.replicas[position].tier_index;
  released.push_back(std::move(entry.replicas[position].handle));
  entry.replicas.erase(entry.replicas.begin() + static_cast<ptrdiff_t>(position));
  entry.tier_mask.fetch_and(~(uint32_t{1} << tier_index), std::memory_order_release);
  slots_[tier_index]->keys.fetch_sub(1, std::memory_order_relaxed);
}

void TieredBackend::TakeReplicas(MetadataEntry& entry, Released& released) {
  while (!entry.replicas.empty()) TakeReplica(entry, entry.replicas.size() - 1, released);
}

Result<uint64_t> TieredBackend::Commit(std::string_view key, AllocationHandle handle, CommitOptions options) {
  MC_TRY(CheckRunning());
  if (handle == nullptr) return Error(ErrorCode::INVALID_PARAMS, "commit of a null handle");
  if (options.replace_if_newer && options.stamp.none()) {
    return Error(ErrorCode::INVALID_PARAMS, "commit of what is newer without a stamp");
  }
  const size_t tier_index = IndexOf(*handle->tier);
  Released released;
  EntryPtr entry;
  uint64_t version = 0;
  {
    Shard& shard = ShardOf(key);
    std::unique_lock lock(shard.mutex);
    const auto found = shard.entries.find(key);
    if (found != shard.entries.end()) entry = found->second;
    if (options.expected_version && (entry == nullptr || entry->version != *options.expected_version)) {
      return Error(ErrorCode::CAS_FAILED, "key '{}' changed", key);
    }
    if (entry != nullptr && options.only_if_absent) {
      Touch(*entry);
      return std::unexpected(Status(ErrorCode::OBJECT_ALREADY_EXISTS, {}));
    }
    if (entry != nullptr && options.replace_if_newer && entry->stamp >= options.stamp) {
      return Error(ErrorCode::CAS_FAILED, "key '{}' has a content that is as new", key);
    }
    if (entry == nullptr) {
      entry = std::make_shared<MetadataEntry>(std::string(key));
      shard.entries.emplace(entry->key, entry);
    }
    if (!options.expected_version) {
      TakeReplicas(*entry, released);
      entry->version = next_version_.fetch_add(1);
      entry->stamp = options.stamp;
    }
    PlaceReplica(*entry, tier_index, std::move(handle), released);
    Touch(*entry);
    version = entry->version;
  }
  scheduler_->OnPlaced(tier_index, entry);
  room_->Notify();  // a block that was being written may leave from now on
  if (!options.quiet) Changed(key);
  return version;
}

Result<ObjectView> TieredBackend::Get(std::string_view key, std::optional<Uuid> tier, bool record_access) {
  MC_TRY(CheckRunning());
  std::optional<size_t> wanted;
  if (tier) wanted = MC_TRY(IndexOf(*tier));
  Shard& shard = ShardOf(key);
  std::shared_lock lock(shard.mutex);
  const auto found = shard.entries.find(key);
  if (found == shard.entries.end()) return NotFound();
  MetadataEntry& entry = *found->second;
  MC_CHECK(!entry.replicas.empty(), "key '{}' is indexed without bytes", key);
  const auto replica = wanted ? FindReplica(std::as_const(entry.replicas), *wanted) : FindUsable(entry.replicas);
  if (replica == entry.replicas.cend()) {
    if (wanted) return Error(ErrorCode::TIER_NOT_FOUND, "key '{}' has no replica there", key);
    const auto lost = entry.replicas.front().handle->tier;
    lock.unlock();
    ForgetIfLost(*lost);
    return NotFound();
  }
  if (record_access) {
    Touch(entry);
    slots_[replica->tier_index]->hits.fetch_add(1, std::memory_order_relaxed);
  }
  return ObjectView{replica->handle, entry.version, entry.stamp};
}

Result<void> TieredBackend::Delete(std::string_view key, std::optional<Uuid> tier) {
  MC_TRY(CheckRunning());
  std::optional<size_t> wanted;
  if (tier) wanted = MC_TRY(IndexOf(*tier));
  Released released;
  EntryPtr entry;
  {
    Shard& shard = ShardOf(key);
    std::unique_lock lock(shard.mutex);
    const auto found = shard.entries.find(key);
    if (found == shard.entries.end()) return NotFound();
    entry = found->second;
    if (wanted) {
      const auto replica = FindReplica(entry->replicas, *wanted);
      if (replica == entry->replicas.end())
        return Error(ErrorCode::TIER_NOT_FOUND, "key '{}' has no replica there", key);
      TakeReplica(*entry, static_cast<size_t>(replica - entry->replicas.begin()), released);
    } else {
      TakeReplicas(*entry, released);
    }
    if (entry->replicas.empty()) shard.entries.erase(found);
  }
  released.clear();
  Changed(key);
  return {};
}

Result<void> TieredBackend::DeleteOlder(std::string_view key, const ContentStamp& stamp) {
  MC_TRY(CheckRunning());
  Released released;
  EntryPtr entry;  // the key may be a view of its own
  {
    Shard& shard = ShardOf(key);
    std::unique_lock lock(shard.mutex);
    const auto found = shard.entries.find(key);
    if (found == shard.entries.end()) return NotFound();
    entry = found->second;
    if (entry->stamp >= stamp) return Error(ErrorCode::CAS_FAILED, "key '{}' has a content that is as new", key);
    TakeReplicas(*entry, released);
    shard.entries.erase(found);
  }
  released.clear();
  Changed(key);
  return {};
}

size_t TieredBackend::DeleteMatching(const std::function<bool(const std::string& key)>& matches) {
  size_t deleted = 0;
  ForEachKey([&](const std::string& key) {
    if (matches(key) && Delete(key)) ++deleted;
  });
  return deleted;
}

bool TieredBackend::Exist(std::string_view key, std::optional<Uuid> tier) const {
  if (stopped_.load(std::memory_order_relaxed)) return false;
  Shard& shard = ShardOf(key);
  std::shared_lock lock(shard.mutex);
  const auto found = shard.entries.find(key);
  if (found == shard.entries.end()) return false;
  if (!tier) return true;
  const auto wanted = IndexOf(*tier);
  return wanted && FindReplica(found->second->replicas, *wanted) != found->second->replicas.end();
}

bool TieredBackend::RecordUse(std::string_view key) {
  Shard& shard = ShardOf(key);
  std::shared_lock lock(shard.mutex);
  const auto found = shard.entries.find(key);
  if (found == shard.entries.end()) return false;
  const auto& replicas = found->second->replicas;
  if (FindUsable(replicas) == replicas.end()) {
    const auto lost = replicas.front().handle->tier;
    lock.unlock();
    ForgetIfLost(*lost);
    return false;
  }
  Touch(*found->second);
  return true;
}

bool TieredBackend::ForgetIfLost(const CacheTier& tier) {
  if (!tier.lost()) return false;
  // Again each time: a block may have been committed between the loss and the first who noticed it. Few calls come
  // here, nothing is allocated on a lost tier and Get passes it over.
  const size_t tier_index = IndexOf(tier);
  const size_t forgotten = ForgetTier(tier_index);
  if (!slots_[tier_index]->lost.exchange(true)) {
    log::Error("tier {} is lost for good; {} key(s) had a replica there", tier.info().name, forgotten);
  }
  return true;
}

size_t TieredBackend::ForgetTier(size_t tier_index) {
  size_t forgotten = 0;
  for (Shard& shard : shards_) {
    Released released;
    std::vector<EntryPtr> changed;
    {
      std::unique_lock lock(shard.mutex);
      for (auto at = shard.entries.begin(); at != shard.entries.end();) {
        const EntryPtr entry = at->second;
        const auto replica = FindReplica(entry->replicas, tier_index);
        if (replica == entry->replicas.end()) {
          ++at;
          continue;
        }
        TakeReplica(*entry, static_cast<size_t>(replica - entry->replicas.begin()), released);
        changed.push_back(entry);
        at = entry->replicas.empty() ? shard.entries.erase(at) : std::next(at);
      }
    }
    released.clear();
    for (const EntryPtr& entry : changed) Changed(entry->key);
    forgotten += changed.size();
  }
  return forgotten;
}

size_t TieredBackend::RemoveAll() {
  size_t removed = 0;
  for (Shard& shard : shards_) {
    Released released;
    std::unordered_map<std::string_view, EntryPtr> entries;
    {
      std::unique_lock lock(shard.mutex);
      entries.swap(shard.entries);
      for (auto& [key, entry] : entries) {
        TakeReplicas(*entry, released);
      }
    }
    released.clear();
    removed += entries.size();
    for (const auto& [key, entry] : entries) Changed(key);
  }
  return removed;
}

}  // namespace mooncake
