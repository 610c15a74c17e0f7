// What leaves a full tier, in which order, and what stays.
#include <gmock/gmock.h>

#include <algorithm>
#include <list>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "tiered_cache/test_backend_fixture.h"
#include "tiered_cache/tiers/dram_tier.h"

namespace mooncake {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class EvictionTest : public BackendFixture {
 protected:
  static constexpr size_t kBlock = 100;
  // Room for so many blocks of kBlock.
  void OpenBlocks(size_t top_blocks, size_t low_blocks) {
    OpenBackend(top_blocks * kBlock, low_blocks * kBlock,
                {.shard_count = 8, .on_change = [this](std::string_view key) { changed_.emplace_back(key); }});
  }
  void PutBlock(const std::string& key, unsigned version = 0) {
    const auto put = Put(key, ContentOf(key, kBlock, version));
    ASSERT_TRUE(put) << key << ": " << put.error().ToString();
  }
  std::vector<std::string> KeysOn(Uuid tier) const {
    std::vector<std::string> keys = Keys();
    std::erase_if(keys, [&](const std::string& key) { return !backend_->Exist(key, tier); });
    return keys;
  }

  std::vector<std::string> changed_;
};

TEST_F(EvictionTest, NewBlockEntersTheTopAndTheOldestMovesDown) {
  OpenBlocks(2, 2);
  for (const char* key : {"a", "b", "c"}) PutBlock(key);
  EXPECT_THAT(KeysOn(top()), ElementsAre("b", "c"));
  EXPECT_THAT(KeysOn(low()), ElementsAre("a"));
  EXPECT_EQ(GetBytes("a"), ContentOf("a", kBlock)) << "the bytes came along";
  const auto views = backend_->GetTierViews();
  EXPECT_EQ(views[0].demoted_out, 1u);
  EXPECT_EQ(views[0].dropped, 0u);
  EXPECT_THAT(changed_, ElementsAre("a", "b", "a", "c"));
}

TEST_F(EvictionTest, MovingDownKeepsTheVersion) {
  OpenBlocks(1, 1);
  const auto version = Put("a", ContentOf("a", kBlock));
  PutBlock("b");
  ASSERT_TRUE(backend_->Exist("a", low()));
  EXPECT_EQ(backend_->Get("a")->version, *version);
}

TEST_F(EvictionTest, WithoutRoomBelowTheOldestOfAllIsDropped) {
  OpenBlocks(2, 2);
  for (const char* key : {"a", "b", "c", "d"}) PutBlock(key);
  changed_.clear();
  PutBlock("e");
  EXPECT_FALSE(backend_->Exist("a"));
  EXPECT_THAT(KeysOn(top()), ElementsAre("d", "e"));
  EXPECT_THAT(KeysOn(low()), ElementsAre("b", "c"));
  EXPECT_EQ(backend_->GetTierViews()[1].dropped, 1u);
  EXPECT_THAT(changed_, ElementsAre("a", "c", "e"));
}

TEST_F(EvictionTest, BlockOfTheTopIsDroppedWhenAllBelowWereUsedLater) {
  OpenBlocks(2, 2);
  for (const char* key : {"a", "b", "c", "d"}) PutBlock(key);  // a, b are below now
  ASSERT_TRUE(backend_->Get("a"));
  ASSERT_TRUE(backend_->Get("b"));
  PutBlock("e");
  EXPECT_FALSE(backend_->Exist("c")) << "used longest ago, although on the top tier";
  EXPECT_THAT(KeysOn(top()), ElementsAre("d", "e"));
  EXPECT_THAT(KeysOn(low()), ElementsAre("a", "b"));
}

TEST_F(EvictionTest, GetCountsAsUseUnlessToldNotTo) {
  OpenBlocks(2, 0);
  PutBlock("a");
  PutBlock("b");
  ASSERT_TRUE(backend_->Get("a"));
  ASSERT_TRUE(backend_->Get("b", std::nullopt, /*record_access=*/false));
  EXPECT_TRUE(backend_->Exist("b")) << "asking is no use either";
  ASSERT_TRUE(Put("c", ContentOf("c", kBlock)));
  EXPECT_THAT(Keys(), ElementsAre("a", "c"));
}

TEST_F(EvictionTest, RefusedPutOfAnExistingKeyCountsAsUse) {
  OpenBlocks(2, 0);
  PutBlock("a");
  PutBlock("b");
  const auto refused = Put("a", {}, {}, {.expected_version = {}, .only_if_absent = true});
  ASSERT_EQ(CodeOf(refused), ErrorCode::OBJECT_ALREADY_EXISTS);
  PutBlock("c");
  EXPECT_THAT(Keys(), ElementsAre("a", "c"));
}

TEST_F(EvictionTest, OverwritingCountsAsUse) {
  OpenBlocks(3, 0);
  PutBlock("a");
  PutBlock("b");
  PutBlock("a", 1);
  PutBlock("c");
  PutBlock("d");
  EXPECT_THAT(Keys(), ElementsAre("a", "c", "d"));
}

TEST_F(EvictionTest, LargeBlockPushesOutAsManyAsItNeeds) {
  OpenBlocks(4, 0);
  for (const char* key : {"a", "b", "c", "d"}) PutBlock(key);
  ASSERT_TRUE(Put("large", ContentOf("large", 3 * kBlock - 10)));
  EXPECT_THAT(Keys(), ElementsAre("d", "large"));
}

TEST_F(EvictionTest, BlockThatFitsNowhereBelowIsDropped) {
  OpenBlocks(3, 1);
  ASSERT_TRUE(Put("wide", ContentOf("wide", 3 * kBlock)));
  PutBlock("a");
  EXPECT_THAT(Keys(), ElementsAre("a"));
  EXPECT_EQ(low_->usage(), 0u);
  EXPECT_EQ(backend_->GetTierViews()[0].dropped, 1u);
}

// --- blocks in use ---

TEST_F(EvictionTest, BlocksHeldByAReaderAreNotChosenAndKeepTheirBytes) {
  OpenBlocks(3, 0);
  for (const char* key : {"a", "b", "c"}) PutBlock(key);
  const auto held = backend_->Get("a", std::nullopt, /*record_access=*/false)->handle;
  PutBlock("d");
  EXPECT_THAT(Keys(), ElementsAre("a", "c", "d")) << "b went, although a was older";
  EXPECT_EQ(Read(held), ContentOf("a", kBlock));
}

TEST_F(EvictionTest, PassedOverBlockIsTheNextToGoOnceItIsFree) {
  OpenBlocks(3, 0);
  for (const char* key : {"a", "b", "c"}) PutBlock(key);
  auto held = backend_->Get("a", std::nullopt, /*record_access=*/false)->handle;
  PutBlock("d");
  held.reset();
  PutBlock("e");
  EXPECT_THAT(Keys(), ElementsAre("c", "d", "e"));
}

TEST_F(EvictionTest, TierFullOfBlocksInUseSpillsToTheNext) {
  OpenBlocks(2, 2);
  PutBlock("a");
  PutBlock("b");
  const auto held_a = backend_->Get("a")->handle;
  const auto held_b = backend_->Get("b")->handle;
  PutBlock("c");
  EXPECT_THAT(KeysOn(top()), ElementsAre("a", "b"));
  EXPECT_THAT(KeysOn(low()), ElementsAre("c"));
}

TEST_F(EvictionTest, WhenEverythingIsInUseTheNewBlockIsRefused) {
  OpenBlocks(1, 1);
  PutBlock("a");
  PutBlock("b");
  const auto held_a = backend_->Get("a")->handle;
  const auto held_b = backend_->Get("b")->handle;
  const auto refused = Put("c", ContentOf("c", kBlock));
  ASSERT_EQ(CodeOf(refused), ErrorCode::NO_AVAILABLE_HANDLE);
  EXPECT_THAT(refused.error().message(), HasSubstr("used 100 of 100"));
  EXPECT_THAT(Keys(), ElementsAre("a", "b"));
}

TEST_F(EvictionTest, KeyOverwrittenOftenAndHeldDoesNotHideTheOthers) {
  OpenBlocks(3, 0);
  PutBlock("other");
  for (unsigned i = 0; i < 200; ++i) PutBlock("held", i);
  ASSERT_TRUE(backend_->Get("other"));
  PutBlock("third");
  ASSERT_TRUE(backend_->Get("other"));
  ASSERT_TRUE(backend_->Get("third"));
  const auto held = backend_->Get("held", std::nullopt, /*record_access=*/false)->handle;
  PutBlock("new");  // held is the oldest
  EXPECT_THAT(Keys(), ElementsAre("held", "new", "third"));
}

TEST_F(EvictionTest, ManyBlocksInUseDoNotHideTheOthers) {
  OpenBlocks(300, 0);
  std::vector<AllocationHandle> held;
  for (int i = 0; i < 299; ++i) {
    PutBlock(std::to_string(i));
    held.push_back(backend_->Get(std::to_string(i))->handle);
  }
  PutBlock("free");
  PutBlock("new");
  EXPECT_FALSE(backend_->Exist("free"));
  EXPECT_EQ(backend_->KeyCount(), 300u);
}

// --- sizes that do not fit the holes ---

TEST_F(EvictionTest, ManySmallBlocksMakeRoomForOneLargeOne) {
  OpenBackend(64 << 10, 0);
  for (int i = 0; i < 1024; ++i) ASSERT_TRUE(Put(std::to_string(i), ContentOf("v", 64)));
  ASSERT_TRUE(Put("large", ContentOf("large", 60 << 10)));
  EXPECT_EQ(GetBytes("large"), ContentOf("large", 60 << 10));
  EXPECT_EQ(backend_->KeyCount(), 65u);
}

TEST_F(EvictionTest, LargeBlockMovesDownOverManySmallOnesThatAreOlder) {
  OpenBackend(64 << 10, 64 << 10);
  for (int i = 0; i < 1024; ++i) ASSERT_TRUE(Put(std::to_string(i), ContentOf("v", 64), low()));
  ASSERT_TRUE(Put("large", ContentOf("large", 32 << 10)));
  ASSERT_TRUE(Put("next", ContentOf("next", 64 << 10)));
  EXPECT_EQ(GetBytes("large", low()), ContentOf("large", 32 << 10));
  EXPECT_EQ(backend_->KeyCount(), 2u + 512u);
}

// Blocks leave in an order that has nothing to do with where they lie, so the first holes are too small.
TEST(FragmentedTierTest, HolesThatLieApartAreJoinedByFurtherEviction) {
  constexpr size_t kCapacity = 4 << 20;
  constexpr size_t kSmall = 64;
  constexpr size_t kLarge = 1024;
  auto tier = DramTier::Open({.capacity = kCapacity, .priority = 0, .tags = {}, .numa_node = {}, .prefault = false});
  ASSERT_TRUE(tier);
  auto backend = *TieredBackend::Open({*tier}, {});
  std::vector<std::string> keys;
  for (size_t i = 0; i < kCapacity / kSmall; ++i) {
    keys.push_back(std::to_string(i));
    ASSERT_TRUE(backend->Commit(keys.back(), *backend->Allocate(kSmall)));
  }
  std::shuffle(keys.begin(), keys.end(), std::mt19937(1));
  for (const std::string& key : keys) ASSERT_TRUE(backend->Get(key));
  const auto large = backend->Allocate(kLarge);
  ASSERT_TRUE(large) << large.error().ToString();
  EXPECT_GT(backend->KeyCount(), 0u) << "and not everything had to go";
}

// --- empty values ---

TEST_F(EvictionTest, EmptyValueMovesDownInItsTurnAndIsDroppedAtTheBottom) {
  OpenBlocks(1, 1);
  ASSERT_TRUE(Put("empty", {}));
  PutBlock("a");
  EXPECT_TRUE(backend_->Exist("empty", top()));
  PutBlock("b");
  EXPECT_TRUE(backend_->Exist("empty", low())) << "nothing is lost while there is room below";
  EXPECT_TRUE(backend_->Exist("a", low()));
  PutBlock("c");
  EXPECT_THAT(Keys(), ElementsAre("b", "c")) << "the two oldest went";
}

// --- several replicas ---

TEST_F(EvictionTest, BlockThatHasAReplicaBelowLeavesWithoutACopy) {
  OpenBlocks(1, 2);
  PutBlock("a");
  ASSERT_TRUE(backend_->Transfer("a", top(), low()));
  const uint64_t asked = low_->allocate_calls();
  PutBlock("b");
  EXPECT_EQ(low_->allocate_calls(), asked);
  EXPECT_THAT(backend_->GetReplicaTierIds("a"), ElementsAre(low()));
  EXPECT_EQ(GetBytes("a"), ContentOf("a", kBlock));
  EXPECT_EQ(low_->usage(), kBlock);
  EXPECT_EQ(backend_->GetTierViews()[1].keys, 1u);
}

TEST_F(EvictionTest, ReplicaOnTheBottomIsDroppedAndTheOneAboveStays) {
  OpenBlocks(1, 1);
  PutBlock("a");
  ASSERT_TRUE(backend_->Transfer("a", top(), low()));
  ASSERT_TRUE(Put("b", ContentOf("b", kBlock), low()));
  EXPECT_THAT(KeysOn(top()), ElementsAre("a"));
  EXPECT_THAT(KeysOn(low()), ElementsAre("b"));
}

// --- failures on the way down ---

TEST_F(EvictionTest, RefusingDeviceBelowLosesOnlyTheBlockThatHadToLeave) {
  OpenBlocks(2, 4);
  for (const char* key : {"a", "b", "c", "d"}) PutBlock(key);  // a, b below
  low_->Refuse(Status(ErrorCode::NO_AVAILABLE_HANDLE, "device full", 207001));
  PutBlock("e");
  EXPECT_THAT(KeysOn(low()), ElementsAre("a", "b")) << "pushing them out would not help";
  EXPECT_THAT(KeysOn(top()), ElementsAre("d", "e"));
}

TEST_F(EvictionTest, BlockThatCannotBeCopiedIsDroppedWithAWarning) {
  OpenBlocks(1, 1);
  PutBlock("a");
  low_->break_buffers = true;
  ::testing::internal::CaptureStderr();
  PutBlock("b");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("could not be moved from tier top to low"));
  EXPECT_THAT(Keys(), ElementsAre("b"));
  EXPECT_EQ(low_->usage(), 0u);
}

TEST_F(EvictionTest, MovesThatKeepFailingDoNotFillTheLog) {
  OpenBlocks(1, 1);
  low_->break_buffers = true;
  ::testing::internal::CaptureStderr();
  for (int i = 0; i <= 100; ++i) PutBlock("key" + std::to_string(i));
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_LE(std::count(log.begin(), log.end(), '\n'), 10) << log;
  EXPECT_THAT(log, HasSubstr("failure 64 in this process"));
}

// The new content stands on the same tier, so only its version tells it from the one that was copied.
TEST_F(EvictionTest, BlockReplacedDuringItsMoveKeepsTheNewContent) {
  OpenBlocks(2, 3);
  PutBlock("a");
  PutBlock("b");
  low_->before_allocate = [&] {
    low_->before_allocate = nullptr;
    ASSERT_TRUE(backend_->Delete("b"));
    PutBlock("a", 9);
  };
  PutBlock("c");
  EXPECT_EQ(GetBytes("a"), ContentOf("a", kBlock, 9));
  EXPECT_THAT(Keys(), ElementsAre("a", "c"));
  EXPECT_EQ(top_->usage() + low_->usage(), 2 * kBlock);
}

TEST_F(EvictionTest, BlockReplacedWhenItIsAboutToBeDroppedKeepsTheNewContent) {
  OpenBlocks(2, 1);
  PutBlock("a");
  PutBlock("b");
  low_->Refuse(Status(ErrorCode::NO_AVAILABLE_HANDLE, "device full", 207001));
  low_->before_allocate = [&] {
    low_->before_allocate = nullptr;
    ASSERT_TRUE(backend_->Delete("b"));
    PutBlock("a", 9);
  };
  PutBlock("c");
  EXPECT_EQ(GetBytes("a"), ContentOf("a", kBlock, 9));
}

TEST_F(EvictionTest, BlockDeletedDuringItsMoveStaysDeleted) {
  OpenBlocks(1, 1);
  PutBlock("a");
  low_->before_allocate = [&] { ASSERT_TRUE(backend_->Delete("a")); };
  PutBlock("b");
  EXPECT_THAT(KeysOn(top()), ElementsAre("b")) << "the room that the deletion left is taken";
  EXPECT_EQ(low_->usage(), 0u);
}

// --- exact order ---

struct ModelCase {
  size_t top_blocks;
  size_t low_blocks;
  unsigned seed;
};

class ExactLruTest : public EvictionTest, public ::testing::WithParamInterface<ModelCase> {};

// With blocks of one size the two tiers together must hold exactly what one list in order of use would hold.
TEST_P(ExactLruTest, ResidentSetIsThatOfOneListInOrderOfUse) {
  const auto [top_blocks, low_blocks, seed] = GetParam();
  OpenBlocks(top_blocks, low_blocks);
  const size_t capacity = top_blocks + low_blocks;
  std::mt19937 random(seed);
  std::list<std::string> model;  // oldest first
  std::map<std::string, unsigned> versions;
  const auto use = [&](const std::string& key) {
    const auto at = std::find(model.begin(), model.end(), key);
    if (at == model.end()) return false;
    model.splice(model.end(), model, at);
    return true;
  };
  for (int step = 0; step < 20'000; ++step) {
    // Half of the accesses go to a tenth of the keys.
    const size_t keys = capacity * 3;
    const std::string key = std::to_string(random() % 2 == 0 ? random() % keys : random() % (keys / 10 + 1));
    const unsigned what = random() % 100;
    if (what < 45) {
      const auto got = GetBytes(key);
      ASSERT_EQ(got.has_value(), use(key)) << "seed " << seed << " step " << step << " get " << key;
      if (got) {
        ASSERT_EQ(*got, ContentOf(key, kBlock, versions[key]));
      }
    } else if (what < 95) {
      PutBlock(key, ++versions[key]);
      if (model.size() == capacity) model.pop_front();  // room comes first, then the old content goes
      if (!use(key)) model.push_back(key);
    } else {
      const bool was_there = std::erase(model, key) != 0;
      ASSERT_EQ(backend_->Delete(key).has_value(), was_there);
    }
    if (step % 50 == 0 || step > 19'900) {
      std::vector<std::string> expected(model.begin(), model.end());
      std::sort(expected.begin(), expected.end());
      ASSERT_EQ(Keys(), expected) << "seed " << seed << " step " << step;
      ASSERT_EQ(top_->usage() + low_->usage(), expected.size() * kBlock);
    }
  }
  const auto views = backend_->GetTierViews();
  EXPECT_GT(views[0].demoted_out, 0u);
  EXPECT_GT(views[0].dropped + views[1].dropped, 0u);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ExactLruTest,
                         ::testing::Values(ModelCase{10, 20, 1}, ModelCase{20, 10, 2}, ModelCase{1, 30, 3},
                                           ModelCase{30, 1, 4}, ModelCase{7, 7, 5}, ModelCase{50, 100, 6}),
                         [](const auto& shape) {
                           return std::to_string(shape.param.top_blocks) + "Over" +
                                  std::to_string(shape.param.low_blocks);
                         });

}  // namespace
}  // namespace mooncake
