// What a backend says about itself: tiers, keys, and why there is no room.
#include <algorithm>
#include <mutex>

#include "tiered_cache/tiered_backend.h"

namespace mooncake {

// Of each candidate: what could leave and what is held by somebody now.
std::string TieredBackend::UseText(const Candidates& candidates) const {
  struct Use {
    size_t evictable = 0, held = 0;
  };
  std::vector<Use> uses(slots_.size());
  for (const Shard& shard : shards_) {
    std::shared_lock lock(shard.mutex);
    for (const auto& [key, entry] : shard.entries) {
      for (const auto& replica : entry->replicas) {
        Use& use = uses[replica.tier_index];
        (replica.handle.use_count() == 1 ? use.evictable : use.held) += replica.handle->data.size();
      }
    }
  }
  std::string text;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (candidates.strict && candidates.preferred && candidates.preferred != i) continue;
    const CacheTier& tier = TierAt(i);
    const size_t used = std::min(tier.usage(), tier.info().capacity);
    text += fmt::format("{}{}: {} B free, {} B could be evicted, {} B are being read, {} B in all are used",
                        text.empty() ? "" : "; ", tier.info().name, tier.info().capacity - used, uses[i].evictable,
                        uses[i].held, used);
  }
  return text;
}

std::vector<TierView> TieredBackend::GetTierViews() const {
  std::vector<TierView> views;
  for (const auto& slot : slots_) {
    const CacheTier::Info& info = slot->tier->info();
    TierView view{.id = info.id,
                  .name = info.name,
                  .type = info.type,
                  .capacity = info.capacity,
                  .usage = slot->tier->usage(),
                  .priority = info.priority,
                  .tags = info.tags};
    view.largest_hole = slot->tier->largest_hole();
    view.device_refusals = slot->tier->device_refusals();
    view.lost = slot->tier->lost();
    view.free_space = view.capacity - std::min(view.usage, view.capacity);
    view.keys = slot->keys.load();
    view.hits = slot->hits.load();
    view.demoted_out = slot->demoted_out.load();
    view.dropped = slot->dropped.load();
    view.corrupt = slot->corrupt.load();
    views.push_back(std::move(view));
  }
  return views;
}

std::vector<Uuid> TieredBackend::GetReplicaTierIds(std::string_view key) const {
  std::vector<Uuid> ids;
  Shard& shard = ShardOf(key);
  std::shared_lock lock(shard.mutex);
  if (const auto found = shard.entries.find(key); found != shard.entries.end()) {
    for (const auto& replica : found->second->replicas) ids.push_back(TierAt(replica.tier_index).info().id);
  }
  return ids;
}

std::optional<Uuid> TieredBackend::GetDramTierId() const {
  for (const auto& slot : slots_) {
    if (slot->tier->info().type == MemoryType::DRAM) return slot->tier->info().id;
  }
  return std::nullopt;
}

size_t TieredBackend::KeyCount() const {
  size_t count = 0;
  for (const Shard& shard : shards_) {
    std::shared_lock lock(shard.mutex);
    count += shard.entries.size();
  }
  return count;
}

void TieredBackend::ForEachKey(const std::function<void(const std::string& key)>& visit) const {
  for (const Shard& shard : shards_) {
    std::vector<EntryPtr> entries;
    {
      std::shared_lock lock(shard.mutex);
      entries.reserve(shard.entries.size());
      for (const auto& [key, entry] : shard.entries) entries.push_back(entry);
    }
    for (const auto& entry : entries) visit(entry->key);
  }
}

std::vector<KeyInfo> TieredBackend::ListKeys(std::string_view after, size_t limit) const {
  std::vector<KeyInfo> page;
  for (size_t i = after.empty() ? 0 : ShardIndexOf(after); i < shards_.size() && page.size() < limit; ++i) {
    AppendKeys(shards_[i], after, limit, page);
    after = {};
  }
  return page;
}

// By shard, and within one in the order of the texts.
void TieredBackend::AppendKeys(const Shard& shard, std::string_view after, size_t limit, std::vector<KeyInfo>& page) {
  struct Found {
    EntryPtr entry;
    ContentStamp stamp;
    uint64_t size;
  };
  std::vector<Found> found;
  {
    std::shared_lock lock(shard.mutex);
    for (const auto& [key, entry] : shard.entries) {
      if (key > after) found.push_back({entry, entry->stamp, entry->replicas.front().handle->data.size()});
    }
  }
  const size_t count = std::min(limit - page.size(), found.size());
  std::partial_sort(found.begin(), found.begin() + static_cast<ptrdiff_t>(count), found.end(),
                    [](const Found& a, const Found& b) { return a.entry->key < b.entry->key; });
  for (size_t i = 0; i < count; ++i) page.push_back({found[i].entry->key, found[i].stamp, found[i].size});
}

}  // namespace mooncake
