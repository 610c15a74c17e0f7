// The flat table against a map, with many collisions, and what it costs per key.
#include "master/key_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace mooncake {
namespace {

// Digests whose homes lie close together, also around the end of the table.
KeyDigest Near(uint64_t i) {
  const uint64_t crowded = i % 3 == 0 ? UINT64_MAX - i : i % 3 == 1 ? i : (uint64_t{1} << 63) + i;
  return {crowded, i};
}

TEST(KeyTableTest, AgreesWithAMapUnderRandomInsertionsAndErasures) {
  std::mt19937_64 random(1);
  KeyTable table;
  std::map<uint64_t, uint32_t> model;
  for (int step = 0; step < 20'000; ++step) {
    const uint64_t i = random() % 300;
    if (random() % 2 == 0) {
      KeySlot& slot = table.Insert(Near(i));
      const auto owner = static_cast<uint32_t>(1 + random() % 1000);
      ASSERT_EQ(slot.used(), model.contains(i));
      slot.first = {.client = owner};
      model[i] = owner;
    } else if (KeySlot* slot = table.Find(Near(i))) {
      slot->RemoveOwner(0);
      table.Erase(*slot);
      ASSERT_EQ(model.erase(i), 1u);
    } else {
      ASSERT_FALSE(model.contains(i));
    }
    if (step % 100 != 0) continue;
    ASSERT_EQ(table.size(), model.size());
    for (uint64_t key = 0; key < 300; ++key) {
      const KeySlot* slot = table.Find(Near(key));
      ASSERT_EQ(slot != nullptr, model.contains(key)) << key;
      if (slot != nullptr) {
        ASSERT_EQ(slot->first.client, model[key]);
      }
    }
  }
}

TEST(KeyTableTest, EditingAllVisitsEachKeyOnceAndErasesWhatLostItsOwners) {
  for (uint64_t keys : {0, 1, 13, 14, 200, 1000}) {
    KeyTable table;
    for (uint64_t i = 0; i < keys; ++i) table.Insert(Near(i)).first = {.client = 1};
    std::map<uint64_t, int> visits;
    table.EditAll([&](KeySlot& slot) {
      ++visits[slot.key.high];
      if (slot.key.high % 3 != 2) slot.RemoveOwner(0);
    });
    EXPECT_EQ(visits.size(), keys);
    for (const auto& [key, times] : visits) EXPECT_EQ(times, 1) << key;
    size_t left = 0;
    for (uint64_t i = 0; i < keys; ++i) {
      EXPECT_EQ(table.Find(Near(i)) != nullptr, i % 3 == 2) << i;
      left += i % 3 == 2 ? 1 : 0;
    }
    EXPECT_EQ(table.size(), left);
  }
}

TEST(KeySlotTest, OwnersKeepTheirOrderWhoeverLeaves) {
  for (size_t leaving = 0; leaving < 3; ++leaving) {
    KeySlot slot;
    for (uint32_t client = 1; client <= 3; ++client) slot.AddOwner({.client = client});
    slot.RemoveOwner(leaving);
    std::vector<uint32_t> left;
    for (size_t i = 0; i < slot.owner_count(); ++i) left.push_back(slot.owner(i).client);
    std::vector<uint32_t> expected{1, 2, 3};
    expected.erase(expected.begin() + static_cast<std::ptrdiff_t>(leaving));
    EXPECT_EQ(left, expected);
    slot.RemoveOwner(1);
    slot.RemoveOwner(0);
    EXPECT_FALSE(slot.used());
  }
}

}  // namespace
}  // namespace mooncake
