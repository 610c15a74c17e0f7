// Copies between tiers, and replicas that move, go or turn out to be damaged.
#include <algorithm>
#include <bit>
#include <mutex>

#include "common/log.h"
#include "tiered_cache/tiered_backend.h"

namespace mooncake {
namespace {

// Where the entry's replica on that tier stands, if the content is still `version`.
std::optional<size_t> PositionOf(const MetadataEntry& entry, size_t tier_index, uint64_t version) {
  const auto replica = FindReplica(entry.replicas, tier_index);
  if (replica == entry.replicas.end() || entry.version != version) return std::nullopt;
  return static_cast<size_t>(replica - entry.replicas.begin());
}

}  // namespace

Result<void> TieredBackend::CopyData(std::string_view key, const DataSource& source, Uuid dest_tier,
                                     uint64_t expected_version) {
  const AllocationHandle target = MC_TRY(Allocate(source.size(), dest_tier, /*strict=*/true));
  MC_TRY(Write(source, target));
  MC_TRY(Commit(key, target, {.expected_version = expected_version}));
  return {};
}

Result<void> TieredBackend::Transfer(std::string_view key, Uuid source_tier, Uuid dest_tier) {
  const ObjectView source = MC_TRY(Get(key, source_tier, /*record_access=*/false));
  const size_t dest = MC_TRY(IndexOf(dest_tier));
  const AllocationHandle target = MC_TRY(AllocateOn(dest, source.handle->data.size()));
  if (!MC_TRY(CopyBlock(*source.handle, *target, copier_))) {
    DropCorrupt(key, source.handle);
    return Error(ErrorCode::OBJECT_NOT_FOUND, "the replica of key '{}' was not what had been written", key);
  }
  MC_TRY(Commit(key, target, {.expected_version = source.version}));
  return {};
}

bool TieredBackend::DropCorrupt(std::string_view key, const AllocationHandle& block) {
  Released released;
  EntryPtr entry;
  size_t tier_index = 0;
  {
    Shard& shard = ShardOf(key);
    std::unique_lock lock(shard.mutex);
    const auto found = shard.entries.find(key);
    if (found == shard.entries.end()) return false;
    entry = found->second;
    const auto replica = std::find_if(entry->replicas.begin(), entry->replicas.end(),
                                      [&](const auto& candidate) { return candidate.handle == block; });
    if (replica == entry->replicas.end()) return false;
    tier_index = replica->tier_index;
    TakeReplica(*entry, static_cast<size_t>(replica - entry->replicas.begin()), released);
    if (entry->replicas.empty()) shard.entries.erase(found);
  }
  const uint64_t count = slots_[tier_index]->corrupt.fetch_add(1, std::memory_order_relaxed) + 1;
  if (std::has_single_bit(count)) {  // ever more rarely: one bad module spoils many
    log::Error("tier {}: a block of {} B was not what had been written and is dropped ({} since the start)",
               TierAt(tier_index).info().name, block->data.size(), count);
  }
  released.clear();
  Changed(key);
  return true;
}

// --- for schedulers ---

Result<ObjectView> TieredBackend::View(const EntryPtr& entry, size_t tier_index) const {
  Shard& shard = ShardOf(entry->key);
  std::shared_lock lock(shard.mutex);
  const auto replica = FindReplica(entry->replicas, tier_index);  // an entry out of the index has no replicas
  if (replica == entry->replicas.end()) return std::unexpected(Status(ErrorCode::OBJECT_NOT_FOUND, {}));
  return ObjectView{replica->handle, entry->version, entry->stamp};
}

bool TieredBackend::MoveReplica(const EntryPtr& entry, size_t from, AllocationHandle to, uint64_t version) {
  const size_t to_index = IndexOf(*to->tier);
  Released released;
  {
    std::unique_lock lock(ShardOf(entry->key).mutex);
    const auto position = PositionOf(*entry, from, version);
    if (!position) return false;
    TakeReplica(*entry, *position, released);
    PlaceReplica(*entry, to_index, std::move(to), released);
  }
  slots_[from]->demoted_out.fetch_add(1, std::memory_order_relaxed);
  scheduler_->OnPlaced(to_index, entry);
  Changed(entry->key);
  return true;
}

bool TieredBackend::DropReplica(const EntryPtr& entry, size_t from, uint64_t version) {
  Released released;
  {
    Shard& shard = ShardOf(entry->key);
    std::unique_lock lock(shard.mutex);
    const auto position = PositionOf(*entry, from, version);
    if (!position) return false;
    TakeReplica(*entry, *position, released);
    if (entry->replicas.empty()) shard.entries.erase(entry->key);
  }
  slots_[from]->dropped.fetch_add(1, std::memory_order_relaxed);
  Changed(entry->key);
  return true;
}

}  // namespace mooncake
