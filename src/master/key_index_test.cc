// Who owns which key.
#include "master/key_index.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace mooncake {
namespace {

KeyDigest Key(int i) {
  return KeyDigest::Of("key" + std::to_string(i));
}
bool Everybody(uint32_t) {
  return true;
}

TEST(KeyIndexTest, OwnersComeInTheOrderTheyCame) {
  KeyIndex index;
  ASSERT_TRUE(index.Put(Key(1), {.client = 7, .type = 2, .size = 10}, 0, Everybody));
  ASSERT_TRUE(index.Put(Key(1), {.client = 3, .type = 0, .size = 20}, 0, Everybody));
  const auto owners = index.Find(Key(1));
  ASSERT_EQ(owners.size(), 2u);
  EXPECT_EQ(owners[0].client, 7u);
  EXPECT_EQ(owners[0].type, 2);
  EXPECT_EQ(owners[1].client, 3u);
  EXPECT_EQ(owners[1].size, 20u);
  EXPECT_TRUE(index.Find(Key(2)).empty());
}

TEST(KeyIndexTest, SecondAnnouncementOfAnOwnerUpdatesItsReplica) {
  KeyIndex index;
  ASSERT_TRUE(index.Put(Key(1), {.client = 7, .type = 2, .size = 10}, 1, Everybody));
  ASSERT_TRUE(index.Put(Key(1), {.client = 7, .type = 0, .size = 11}, 1, Everybody));
  const auto owners = index.Find(Key(1));
  ASSERT_EQ(owners.size(), 1u);
  EXPECT_EQ(owners[0].type, 0);
  EXPECT_EQ(owners[0].size, 11u);
}

TEST(KeyIndexTest, OwnerBeyondTheLimitIsRefusedAndChangesNothing) {
  KeyIndex index;
  ASSERT_TRUE(index.Put(Key(1), {.client = 1}, 2, Everybody));
  ASSERT_TRUE(index.Put(Key(1), {.client = 2}, 2, Everybody));
  EXPECT_FALSE(index.Put(Key(1), {.client = 3}, 2, Everybody));
  EXPECT_EQ(index.Find(Key(1)).size(), 2u);
}

TEST(KeyIndexTest, DeadOwnersDoNotCountTowardsTheLimit) {
  KeyIndex index;
  const auto only_two_lives = [](uint32_t client) { return client == 2; };
  ASSERT_TRUE(index.Put(Key(1), {.client = 1}, 1, Everybody));
  EXPECT_TRUE(index.Put(Key(1), {.client = 2}, 1, only_two_lives));
  EXPECT_FALSE(index.Put(Key(1), {.client = 3}, 1, only_two_lives));
}

TEST(KeyIndexTest, LastOwnerTakesTheKeyAlong) {
  KeyIndex index;
  ASSERT_TRUE(index.Put(Key(1), {.client = 1}, 0, Everybody));
  ASSERT_TRUE(index.Put(Key(1), {.client = 2}, 0, Everybody));
  index.Remove(Key(1), 1);
  index.Remove(Key(1), 1);  // twice
  index.Remove(Key(9), 1);  // never there
  EXPECT_EQ(index.KeyCount(), 1u);
  index.Remove(Key(1), 2);
  EXPECT_EQ(index.KeyCount(), 0u);
}

TEST(KeyIndexTest, RemoveClientForgetsExactlyItsReplicas) {
  KeyIndex index;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(index.Put(Key(i), {.client = 1}, 0, Everybody));
    if (i % 4 == 0) {
      ASSERT_TRUE(index.Put(Key(i), {.client = 2}, 0, Everybody));
    }
  }
  EXPECT_EQ(index.RemoveClient(1), 1000u);
  EXPECT_EQ(index.RemoveClient(1), 0u);
  EXPECT_EQ(index.KeyCount(), 250u);
  EXPECT_TRUE(index.Find(Key(1)).empty());
  EXPECT_EQ(index.Find(Key(4)).at(0).client, 2u);
}

TEST(KeyIndexTest, RacingClientsLeaveOneOwnerPerKey) {
  KeyIndex index(4);
  std::vector<std::thread> threads;
  for (uint32_t client = 1; client <= 4; ++client) {
    threads.emplace_back([&index, client] {
      for (int i = 0; i < 500; ++i) (void)index.Put(Key(i), {.client = client}, 1, Everybody);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(index.KeyCount(), 500u);
  for (int i = 0; i < 500; ++i) EXPECT_EQ(index.Find(Key(i)).size(), 1u);
}

}  // namespace
}  // namespace mooncake
