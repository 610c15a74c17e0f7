// Rules by which claims on keys are settled.
#include "master/key_index.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace mooncake {
namespace {

// Epochs wrap around; they are compared within half their range.
bool IsBefore(uint16_t a, uint16_t b) {
  return static_cast<int16_t>(static_cast<uint16_t>(a - b)) < 0;
}

std::optional<size_t> PositionOf(const KeySlot& slot, uint32_t client) {
  for (size_t i = 0; i < slot.owner_count(); ++i) {
    if (slot.owner(i).client == client) return i;
  }
  return std::nullopt;
}

KeyOwner OwnerOf(const KeyIndex::Claim& claim) {
  return {.size = claim.size, .client = claim.client, .epoch = claim.epoch, .type = static_cast<uint8_t>(claim.type)};
}

void WantAtLeast(KeySlot& slot, uint32_t wanted) {
  slot.wanted = static_cast<uint16_t>(
      std::min<uint32_t>(std::max<uint32_t>(slot.wanted, wanted), std::numeric_limits<uint16_t>::max()));
}

void SetContent(KeySlot& slot, const KeyIndex::Claim& claim) {
  slot.SetStamp(claim.stamp);
  slot.wanted = 1;
  WantAtLeast(slot, claim.wanted);
}

KeyIndex::Content ContentOf(const KeySlot& slot) {
  KeyIndex::Content content{.stamp = slot.stamp(), .owners = {}};
  for (size_t i = 0; i < slot.owner_count(); ++i) content.owners.push_back(slot.owner(i));
  return content;
}

size_t CountOthers(const KeySlot& slot, uint32_t client, const KeyIndex::Counts& counts) {
  size_t held = 0;
  for (size_t i = 0; i < slot.owner_count(); ++i) {
    const uint32_t other = slot.owner(i).client;
    held += other != client && counts(other) ? 1 : 0;
  }
  return held;
}

}  // namespace

KeyIndex::Verdict KeyIndex::Replace(KeySlot& slot, const Claim& claim, const Counts& counts) {
  const bool wins = claim.stamp.upserted && claim.stamp > slot.stamp();
  if (!wins && CountOthers(slot, claim.client, counts) > 0) return {};
  Verdict verdict{.accepted = true, .superseded = {}};
  while (slot.owner_count() > 0) {
    const uint32_t other = slot.owner(0).client;
    if (other != claim.client) verdict.superseded.push_back(other);
    slot.RemoveOwner(0);
  }
  SetContent(slot, claim);
  slot.AddOwner(OwnerOf(claim));
  return verdict;
}

void KeyIndex::Forfeit(KeyTable& keys, KeySlot& slot, uint32_t client) {
  if (const auto own = PositionOf(slot, client)) slot.RemoveOwner(*own);
  if (!slot.used()) keys.Erase(slot);
}

bool KeyIndex::WasRemoved(const Shard& shard, const KeyDigest& key, const ContentStamp& stamp) {
  if (shard.removed.empty() || stamp.none()) return false;
  const auto found = shard.removed.find(key);
  return found != shard.removed.end() && stamp.hlc <= found->second;
}

KeyIndex::Verdict KeyIndex::Put(const KeyDigest& key, const Claim& claim, size_t max_owners, const Counts& counts) {
  Shard& shard = ShardOf(key);
  std::lock_guard lock(shard.mutex);
  KeySlot* known = shard.keys.Find(key);
  if (WasRemoved(shard, key, claim.stamp)) {
    if (known != nullptr) Forfeit(shard.keys, *known, claim.client);
    return {};
  }
  if (known == nullptr) {
    KeySlot& slot = shard.keys.Insert(key);
    SetContent(slot, claim);
    slot.AddOwner(OwnerOf(claim));
    return {.accepted = true, .superseded = {}};
  }
  const auto own = PositionOf(*known, claim.client);
  if (own && IsBefore(claim.epoch, known->owner(*own).epoch)) return {.accepted = true, .superseded = {}};
  if (!claim.stamp.none() && !known->stamp().none() && claim.stamp != known->stamp()) {
    Verdict verdict = Replace(*known, claim, counts);
    if (!verdict) Forfeit(shard.keys, *known, claim.client);
    return verdict;
  }
  if (known->stamp().none()) known->SetStamp(claim.stamp);
  WantAtLeast(*known, claim.wanted);
  if (own) {
    known->owner(*own) = OwnerOf(claim);
    return {.accepted = true, .superseded = {}};
  }
  const size_t limit = std::max<size_t>(max_owners, known->wanted);
  if (max_owners != 0 && known->owner_count() >= limit && CountOthers(*known, claim.client, counts) >= limit) return {};
  known->AddOwner(OwnerOf(claim));
  return {.accepted = true, .superseded = {}};
}

void KeyIndex::Remove(const KeyDigest& key, uint32_t client, uint16_t epoch) {
  Shard& shard = ShardOf(key);
  std::lock_guard lock(shard.mutex);
  KeySlot* known = shard.keys.Find(key);
  if (known == nullptr) return;
  const auto own = PositionOf(*known, client);
  if (own && !IsBefore(epoch, known->owner(*own).epoch)) Forfeit(shard.keys, *known, client);
}

KeyIndex::Content KeyIndex::Find(const KeyDigest& key) const {
  const Shard& shard = ShardOf(key);
  std::lock_guard lock(shard.mutex);
  const KeySlot* known = shard.keys.Find(key);
  return known == nullptr ? Content{} : ContentOf(*known);
}

void KeyIndex::DropOldestRemoval(Shard& shard) {
  const Removal& oldest = shard.removals.front();
  const auto found = shard.removed.find(oldest.key);
  // A later removal of the key has its own place in the queue.
  if (found != shard.removed.end() && found->second == oldest.hlc) shard.removed.erase(found);
  shard.removals.pop_front();
}

KeyIndex::Content KeyIndex::MarkRemoved(const KeyDigest& key, uint64_t hlc, TimePoint now, const Counts& counts) {
  Shard& shard = ShardOf(key);
  std::lock_guard lock(shard.mutex);
  uint64_t& removed = shard.removed[key];
  if (hlc > removed) {
    removed = hlc;
    shard.removals.push_back({key, hlc, now});
    if (shard.removals.size() > kMaxRemovalsPerShard) DropOldestRemoval(shard);
  }
  KeySlot* known = shard.keys.Find(key);
  if (known == nullptr) return {};
  Content content = ContentOf(*known);
  if (!content.stamp.none() && content.stamp.hlc > hlc) return content;
  for (size_t i = known->owner_count(); i-- > 0;) {
    if (!counts(known->owner(i).client)) known->RemoveOwner(i);
  }
  if (!known->used()) shard.keys.Erase(*known);
  return content;
}

void KeyIndex::ForgetRemovals(TimePoint before) {
  for (Shard& shard : shards_) {
    std::lock_guard lock(shard.mutex);
    while (!shard.removals.empty() && shard.removals.front().at < before) DropOldestRemoval(shard);
  }
}

template <typename Condition>
size_t KeyIndex::RemoveIf(const Condition& condition) {
  size_t removed = 0;
  for (Shard& shard : shards_) {
    std::lock_guard lock(shard.mutex);
    shard.keys.EditAll([&](KeySlot& slot) {
      for (size_t i = slot.owner_count(); i-- > 0;) {
        if (!condition(slot.owner(i))) continue;
        slot.RemoveOwner(i);
        ++removed;
      }
    });
  }
  return removed;
}

size_t KeyIndex::RemoveClient(uint32_t client) {
  return RemoveIf([client](const KeyOwner& owner) { return owner.client == client; });
}

size_t KeyIndex::RemoveBefore(uint32_t client, uint16_t epoch) {
  return RemoveIf(
      [client, epoch](const KeyOwner& owner) { return owner.client == client && IsBefore(owner.epoch, epoch); });
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
