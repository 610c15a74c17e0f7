// A damaged block is a miss and a count, never other bytes: it is found when it leaves its tier.
#include <gmock/gmock.h>

#include "common/content_sum.h"
#include "tiered_cache/test_backend_fixture.h"
#include "tiered_cache/test_flip_byte.h"
#include "tiered_cache/tiers/dram_tier.h"

namespace mooncake {
namespace {

using ::testing::ElementsAre;

class IntegrityTest : public BackendFixture {
 protected:
  static constexpr size_t kBlock = 100;

  void OpenBlocks(size_t top_blocks, size_t low_blocks) {
    OpenBackend(top_blocks * kBlock, low_blocks * kBlock,
                {.on_change = [this](std::string_view key) { changed_.emplace_back(key); }});
  }
  void PutBlock(const std::string& key) { ASSERT_TRUE(Put(key, ContentOf(key, kBlock))); }
  AllocationHandle BlockOf(const std::string& key, std::optional<Uuid> tier = std::nullopt) {
    return backend_->Get(key, tier, /*record_access=*/false)->handle;
  }
  void SumAndFlip(const std::string& key, std::optional<Uuid> tier = std::nullopt) {
    ASSERT_TRUE(EnsureSum(*BlockOf(key, tier), backend_->copier()));
    FlipByte(BlockOf(key, tier), 42, backend_->copier());
  }
  // Of the top tier, then of the lower one.
  std::vector<uint64_t> Corrupt() const {
    std::vector<uint64_t> counts;
    for (const TierView& view : backend_->GetTierViews()) counts.push_back(view.corrupt);
    return counts;
  }

  std::vector<std::string> changed_;
};

TEST_F(IntegrityTest, DamagedBlockThatHasToLeaveIsAMissAndMovesNowhere) {
  OpenBlocks(1, 2);
  PutBlock("a");
  SumAndFlip("a");
  PutBlock("b");
  EXPECT_EQ(CodeOf(backend_->Get("a")), ErrorCode::OBJECT_NOT_FOUND);
  EXPECT_EQ(GetBytes("b"), ContentOf("b", kBlock)) << "its room is given to the next";
  EXPECT_EQ(low_->usage(), 0u);
  EXPECT_THAT(Corrupt(), ElementsAre(1, 0));
  const TierView view = backend_->GetTierViews()[0];
  EXPECT_EQ(view.demoted_out + view.dropped, 0u);
  EXPECT_THAT(changed_, ElementsAre("a", "a", "b"));
}

TEST_F(IntegrityTest, SoundBlockTakesItsSumAlong) {
  OpenBlocks(1, 2);
  PutBlock("a");
  PutBlock("b");
  ASSERT_EQ(BlockOf("a")->tier, low_);
  EXPECT_EQ(BlockOf("a")->sum.value(), SumOf(ContentOf("a", kBlock)));
  EXPECT_FALSE(BlockOf("b")->sum.value()) << "nobody has needed it";
  EXPECT_THAT(Corrupt(), ElementsAre(0, 0));
}

TEST_F(IntegrityTest, BlockDamagedBelowIsFoundOnItsWayUp) {
  OpenBlocks(1, 2);
  PutBlock("a");
  PutBlock("b");
  FlipByte(BlockOf("a", low()), 0, backend_->copier());  // it has had its sum since it came down
  ASSERT_TRUE(backend_->Delete("b"));
  EXPECT_EQ(CodeOf(backend_->Transfer("a", low(), top())), ErrorCode::OBJECT_NOT_FOUND);
  EXPECT_FALSE(backend_->Exist("a"));
  EXPECT_EQ(top_->usage() + low_->usage(), 0u);
  EXPECT_THAT(Corrupt(), ElementsAre(0, 1));
}

TEST_F(IntegrityTest, WrongSumOfTheWriterIsFoundToo) {
  OpenBlocks(1, 2);
  AllocationHandle written = *Written(ContentOf("a", kBlock));
  ASSERT_TRUE(written->sum.Confirm(12345));
  ASSERT_TRUE(backend_->Commit("a", std::move(written)));
  PutBlock("b");
  EXPECT_EQ(CodeOf(backend_->Get("a")), ErrorCode::OBJECT_NOT_FOUND);
  EXPECT_THAT(Corrupt(), ElementsAre(1, 0));
}

TEST_F(IntegrityTest, DamagedReplicaGoesAndTheSoundOneServes) {
  OpenBlocks(1, 1);
  PutBlock("a");
  ASSERT_TRUE(backend_->Transfer("a", top(), low()));
  FlipByte(BlockOf("a"), 1, backend_->copier());
  changed_.clear();
  EXPECT_TRUE(backend_->DropCorrupt("a", BlockOf("a")));
  EXPECT_EQ(GetBytes("a"), ContentOf("a", kBlock));
  EXPECT_EQ(BlockOf("a")->tier, low_);
  EXPECT_THAT(Corrupt(), ElementsAre(1, 0));
  EXPECT_THAT(changed_, ElementsAre("a"));
}

TEST_F(IntegrityTest, DropOfABlockThatIsGoneLeavesWhatCameAfterIt) {
  OpenBlocks(2, 1);
  PutBlock("a");
  const AllocationHandle old = BlockOf("a");
  ASSERT_TRUE(Put("a", ContentOf("a", kBlock, 1)));
  EXPECT_FALSE(backend_->DropCorrupt("a", old));
  EXPECT_EQ(GetBytes("a"), ContentOf("a", kBlock, 1));
  ASSERT_TRUE(backend_->Delete("a"));
  EXPECT_FALSE(backend_->DropCorrupt("a", old));
  EXPECT_THAT(Corrupt(), ElementsAre(0, 0));
}

TEST_F(IntegrityTest, DropIsDoneWithoutLocks) {
  const auto tier = std::make_shared<HeapTier>("only", 10 * kBlock, 1);
  std::shared_ptr<TieredBackend> backend;
  bool locked = false;
  const auto check = [&](auto) { locked |= !ReachableByAnotherThread(backend); };
  backend = *TieredBackend::Open({tier}, {.shard_count = 1, .on_change = check});
  AllocationHandle block = *backend->Allocate(kBlock);
  ASSERT_TRUE(backend->Commit("k", block));
  tier->on_free = check;
  EXPECT_TRUE(backend->DropCorrupt("k", std::exchange(block, nullptr)));
  tier->on_free = nullptr;
  EXPECT_FALSE(locked);
}

TEST_F(IntegrityTest, DramTierIsCheckedLikeAnyOther) {
  const auto open = [](int32_t priority) {
    return *DramTier::Open({.capacity = 4 << 20, .priority = priority, .tags = {}, .numa_node = {}, .prefault = false});
  };
  const std::shared_ptr<CacheTier> upper = open(2);
  const std::shared_ptr<CacheTier> lower = open(1);
  backend_ = *TieredBackend::Open({upper, lower}, {});
  const size_t size = kSumChunkBytes + 9;
  for (const char* key : {"sound", "damaged"}) {
    const auto written = Written(ContentOf(key, size), upper->info().id);
    ASSERT_TRUE(written);
    ASSERT_TRUE(backend_->Commit(key, *written));
    ASSERT_TRUE(EnsureSum(**written, backend_->copier()));
    if (key == std::string("damaged")) FlipByte(*written, size - 1, backend_->copier());
    const auto moved = backend_->Transfer(key, upper->info().id, lower->info().id);
    EXPECT_EQ(CodeOf(moved), key == std::string("sound") ? ErrorCode::OK : ErrorCode::OBJECT_NOT_FOUND);
    (void)backend_->Delete(key, upper->info().id);
  }
  EXPECT_EQ(GetBytes("sound"), ContentOf("sound", size));
  EXPECT_FALSE(backend_->Exist("damaged"));
  EXPECT_THAT(Corrupt(), ElementsAre(1, 0));
}

}  // namespace
}  // namespace mooncake
