// Probing, growth and erasure without gravestones.
#include "master/key_table.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace mooncake {

void KeySlot::AddOwner(const KeyOwner& owner) {
  if (!used()) {
    first = owner;
    return;
  }
  if (!others) others = std::make_unique<std::vector<KeyOwner>>();
  others->push_back(owner);
}

void KeySlot::RemoveOwner(size_t i) {
  MC_CHECK(i < owner_count(), "owner {} of {}", i, owner_count());
  if (!others) {
    first = {};
    return;
  }
  if (i == 0) {
    first = others->front();
    i = 1;
  }
  others->erase(others->begin() + static_cast<std::ptrdiff_t>(i - 1));
  if (others->empty()) others.reset();
}

KeySlot* KeyTable::Find(const KeyDigest& key) {
  if (slots_.empty()) return nullptr;
  for (size_t at = Home(key); slots_[at].used(); at = Next(at)) {
    if (slots_[at].key == key) return &slots_[at];
  }
  return nullptr;
}

KeySlot& KeyTable::Insert(const KeyDigest& key) {
  if (KeySlot* found = Find(key)) return *found;
  if ((used_ + 1) * 8 > slots_.size() * 7) Grow();
  size_t at = Home(key);
  while (slots_[at].used()) at = Next(at);
  slots_[at] = KeySlot{.key = key};
  ++used_;
  return slots_[at];
}

void KeyTable::Erase(KeySlot& slot) {
  MC_CHECK(!slot.used() && used_ > 0, "erasing a key with an owner");
  --used_;
  size_t hole = static_cast<size_t>(&slot - slots_.data());
  for (size_t at = Next(hole); slots_[at].used(); at = Next(at)) {
    // It may move to the hole unless its home lies after the hole, cyclically.
    const size_t home = Home(slots_[at].key);
    const bool stays = hole <= at ? hole < home && home <= at : hole < home || home <= at;
    if (stays) continue;
    slots_[hole] = std::exchange(slots_[at], KeySlot{});
    hole = at;
  }
}

size_t KeyTable::RunStart() const {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].used()) return Next(i);
  }
  return 0;  // only a table without slots has none that is empty
}

void KeyTable::Grow() {
  constexpr size_t kFirst = 16;
  std::vector<KeySlot> old(std::max(kFirst, slots_.size() + slots_.size() / 2));
  std::swap(old, slots_);
  for (KeySlot& slot : old) {
    if (!slot.used()) continue;
    size_t at = Home(slot.key);
    while (slots_[at].used()) at = Next(at);
    slots_[at] = std::move(slot);
  }
}

}  // namespace mooncake
