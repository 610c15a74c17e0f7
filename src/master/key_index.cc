// Sharded map from digests to owners.
#include "master/key_index.h"

#include <algorithm>

namespace mooncake {

bool KeyIndex::Put(const KeyDigest& key, const Owner& owner, size_t max_owners,
                   const std::function<bool(uint32_t)>& counts) {
  Shard& shard = ShardOf(key);
  std::lock_guard lock(shard.mutex);
  auto& owners = shard.keys[key];
  const auto own = std::find_if(owners.begin(), owners.end(), [&](const Owner& o) { return o.client == owner.client; });
  if (own != owners.end()) {
    *own = owner;
    return true;
  }
  if (max_owners != 0 && owners.size() >= max_owners) {
    const auto held = std::count_if(owners.begin(), owners.end(), [&](const Owner& o) { return counts(o.client); });
    if (static_cast<size_t>(held) >= max_owners) return false;
  }
  owners.push_back(owner);
  return true;
}

void KeyIndex::Remove(const KeyDigest& key, uint32_t client) {
  Shard& shard = ShardOf(key);
  std::lock_guard lock(shard.mutex);
  const auto found = shard.keys.find(key);
  if (found == shard.keys.end()) return;
  std::erase_if(found->second, [&](const Owner& owner) { return owner.client == client; });
  if (found->second.empty()) shard.keys.erase(found);
}

std::vector<KeyIndex::Owner> KeyIndex::Find(const KeyDigest& key) const {
  Shard& shard = ShardOf(key);
  std::lock_guard lock(shard.mutex);
  const auto found = shard.keys.find(key);
  return found == shard.keys.end() ? std::vector<Owner>{} : found->second;
}

size_t KeyIndex::RemoveClient(uint32_t client) {
  size_t removed = 0;
  for (Shard& shard : shards_) {
    std::lock_guard lock(shard.mutex);
    for (auto it = shard.keys.begin(); it != shard.keys.end();) {
      removed += std::erase_if(it->second, [&](const Owner& owner) { return owner.client == client; });
      it = it->second.empty() ? shard.keys.erase(it) : std::next(it);
    }
  }
  return removed;
}

size_t KeyIndex::KeyCount() const {
  size_t count = 0;
  for (const Shard& shard : shards_) {
    std::lock_guard lock(shard.mutex);
    count += shard.keys.size();
  }
  return count;
}

}  // namespace mooncake
