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
  const auto owners = index.Find(Key(1)).owners;
  ASSERT_EQ(owners.size(), 2u);
  EXPECT_EQ(owners[0].client, 7u);
  EXPECT_EQ(owners[0].type, 2);
  EXPECT_EQ(owners[1].client, 3u);
  EXPECT_EQ(owners[1].size, 20u);
  EXPECT_TRUE(index.Find(Key(2)).owners.empty());
}

TEST(KeyIndexTest, SecondAnnouncementOfAnOwnerUpdatesItsReplica) {
  KeyIndex index;
  ASSERT_TRUE(index.Put(Key(1), {.client = 7, .type = 2, .size = 10}, 1, Everybody));
  ASSERT_TRUE(index.Put(Key(1), {.client = 7, .type = 0, .size = 11}, 1, Everybody));
  const auto owners = index.Find(Key(1)).owners;
  ASSERT_EQ(owners.size(), 1u);
  EXPECT_EQ(owners[0].type, 0);
  EXPECT_EQ(owners[0].size, 11u);
}

TEST(KeyIndexTest, OwnerBeyondTheLimitIsRefusedAndChangesNothing) {
  KeyIndex index;
  ASSERT_TRUE(index.Put(Key(1), {.client = 1}, 2, Everybody));
  ASSERT_TRUE(index.Put(Key(1), {.client = 2}, 2, Everybody));
  EXPECT_FALSE(index.Put(Key(1), {.client = 3}, 2, Everybody));
  EXPECT_EQ(index.Find(Key(1)).owners.size(), 2u);
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
  EXPECT_TRUE(index.Find(Key(1)).owners.empty());
  EXPECT_EQ(index.Find(Key(4)).owners.at(0).client, 2u);
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
  for (int i = 0; i < 500; ++i) EXPECT_EQ(index.Find(Key(i)).owners.size(), 1u);
}

class KeyContentTest : public ::testing::Test {
 protected:
  static ContentStamp PutAt(uint64_t hlc, uint32_t writer = 1) { return {hlc, writer, false}; }
  static ContentStamp UpsertAt(uint64_t hlc, uint32_t writer = 1) { return {hlc, writer, true}; }
  KeyIndex::Verdict Claim(uint32_t client, ContentStamp stamp, uint32_t wanted = 1, uint16_t epoch = 0) {
    return index_.Put(Key(1), {.client = client, .epoch = epoch, .stamp = stamp, .wanted = wanted}, 1,
                      [this](uint32_t number) { return number != dead_; });
  }
  std::vector<uint32_t> Owners() const {
    std::vector<uint32_t> owners;
    for (const KeyOwner& owner : index_.Find(Key(1)).owners) owners.push_back(owner.client);
    return owners;
  }

  KeyIndex index_;
  uint32_t dead_ = 0;
};
using Clients = std::vector<uint32_t>;

TEST_F(KeyContentTest, AsManyOwnersAsTheWriterWantedMayHoldOneContent) {
  ASSERT_TRUE(Claim(1, PutAt(5), 2));
  ASSERT_TRUE(Claim(2, PutAt(5), 2));
  EXPECT_FALSE(Claim(3, PutAt(5), 2));
  EXPECT_EQ(Owners(), (Clients{1, 2}));
  dead_ = 1;
  EXPECT_TRUE(Claim(3, PutAt(5), 2));
}

TEST_F(KeyContentTest, OfTwoPutsTheFirstStaysAndTheLoserHasNothing) {
  ASSERT_TRUE(Claim(1, PutAt(5), 2));
  ASSERT_TRUE(Claim(2, PutAt(5), 2));
  EXPECT_FALSE(Claim(3, PutAt(4)));
  EXPECT_FALSE(Claim(3, PutAt(6)));
  // Also one that held the first content: what it has now is another.
  EXPECT_FALSE(Claim(2, PutAt(7)));
  EXPECT_EQ(Owners(), Clients{1});
  EXPECT_EQ(index_.Find(Key(1)).stamp, PutAt(5));
}

TEST_F(KeyContentTest, LaterUpsertReplacesAndNamesWhoHadTheOlderContent) {
  ASSERT_TRUE(Claim(1, PutAt(9), 2));
  ASSERT_TRUE(Claim(2, PutAt(9), 2));
  const auto replaced = Claim(3, UpsertAt(5));
  ASSERT_TRUE(replaced);
  EXPECT_EQ(replaced.superseded, (Clients{1, 2}));
  EXPECT_EQ(Owners(), Clients{3});
  EXPECT_FALSE(Claim(1, UpsertAt(4)));
  EXPECT_FALSE(Claim(1, PutAt(99)));
  EXPECT_TRUE(Claim(3, UpsertAt(6)).superseded.empty());
  EXPECT_EQ(index_.Find(Key(1)).stamp, UpsertAt(6));
}

TEST_F(KeyContentTest, ContentThatOnlyTheDeadHoldGivesWay) {
  ASSERT_TRUE(Claim(1, UpsertAt(9)));
  dead_ = 1;
  const auto claimed = Claim(2, PutAt(3));
  ASSERT_TRUE(claimed);
  EXPECT_EQ(claimed.superseded, Clients{1});
  dead_ = 0;
  EXPECT_FALSE(Claim(1, PutAt(2)));
  EXPECT_EQ(Owners(), Clients{2});
}

TEST_F(KeyContentTest, ContentWithoutAStampIsTakenForTheSame) {
  ASSERT_TRUE(Claim(1, {}, 2));
  ASSERT_TRUE(Claim(2, PutAt(4), 2));
  EXPECT_EQ(Owners(), (Clients{1, 2}));
  EXPECT_EQ(index_.Find(Key(1)).stamp, PutAt(4));
}

TEST_F(KeyContentTest, SweepLeavesWhatWasAnnouncedAgain) {
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(index_.Put(Key(i), {.client = 7, .epoch = 65535}, 1, Everybody));
  ASSERT_TRUE(index_.Put(Key(200), {.client = 8, .epoch = 3}, 1, Everybody));
  // The count of registrations wraps around.
  for (int i = 0; i < 100; i += 2) ASSERT_TRUE(index_.Put(Key(i), {.client = 7, .epoch = 0}, 1, Everybody));
  EXPECT_EQ(index_.RemoveBefore(7, 0), 50u);
  EXPECT_EQ(index_.KeyCount(), 51u);
  EXPECT_FALSE(index_.Find(Key(2)).owners.empty());
}

TEST_F(KeyContentTest, WhatComesLateFromAnEarlierEpochChangesNothing) {
  ASSERT_TRUE(Claim(7, PutAt(5), 1, /*epoch=*/2));
  EXPECT_TRUE(Claim(7, PutAt(4), 1, /*epoch=*/1));
  index_.Remove(Key(1), 7, /*epoch=*/1);
  EXPECT_EQ(index_.Find(Key(1)).stamp, PutAt(5));
  EXPECT_EQ(index_.RemoveBefore(7, 2), 0u);
  index_.Remove(Key(1), 7, /*epoch=*/2);
  EXPECT_EQ(index_.KeyCount(), 0u);
}

TEST_F(KeyContentTest, RemovedContentDoesNotComeBackAndALaterOneMay) {
  ASSERT_TRUE(Claim(1, PutAt(5), 2));
  ASSERT_TRUE(Claim(2, PutAt(5), 2));
  dead_ = 2;
  const auto had = index_.MarkRemoved(Key(1), 6, {}, [this](uint32_t number) { return number != dead_; });
  EXPECT_EQ(had.owners.size(), 2u);
  EXPECT_EQ(Owners(), Clients{1});  // it will say itself that it has let go
  index_.Remove(Key(1), 1);
  EXPECT_FALSE(Claim(2, PutAt(5)));
  EXPECT_FALSE(Claim(2, PutAt(6)));
  EXPECT_EQ(index_.KeyCount(), 0u);
  EXPECT_TRUE(Claim(2, PutAt(7)));
}

TEST_F(KeyContentTest, RemovalIsForgottenInTimeAndNotBefore) {
  const auto at = [](int seconds) { return TimePoint(std::chrono::seconds(seconds)); };
  index_.MarkRemoved(Key(1), 6, at(10), Everybody);
  index_.MarkRemoved(Key(1), 8, at(20), Everybody);
  index_.ForgetRemovals(at(20));
  EXPECT_FALSE(Claim(1, PutAt(8)));
  index_.ForgetRemovals(at(21));
  EXPECT_TRUE(Claim(1, PutAt(8)));
}

}  // namespace
}  // namespace mooncake
