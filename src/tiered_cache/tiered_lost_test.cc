// A tier whose memory is lost for good: what it held are misses, what others hold goes on.
#include <gmock/gmock.h>

#include "tiered_cache/test_backend_fixture.h"

namespace mooncake {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr size_t kBlock = 100;

class LostTierTest : public BackendFixture {
 protected:
  void SetUp() override {
    OpenBackend(10 * kBlock, 10 * kBlock,
                {.shard_count = 4, .on_change = [this](std::string_view key) { changed_.emplace_back(key); }});
    ASSERT_TRUE(Put("top only", ContentOf("top only", kBlock)));
    ASSERT_TRUE(Put("both", ContentOf("both", kBlock)));
    ASSERT_TRUE(backend_->Transfer("both", top(), low()));
    ASSERT_TRUE(Put("low only", ContentOf("low only", kBlock), low()));
    changed_.clear();
  }
  void LoseTop() {
    top_->gone = true;
    top_->Refuse(Status(ErrorCode::NO_AVAILABLE_HANDLE, "device lost", 507010));
  }

  std::vector<std::string> changed_;
};

TEST_F(LostTierTest, KeysThatOnlyItHeldAreMissesAndTheOthersAreServed) {
  LoseTop();
  EXPECT_EQ(CodeOf(backend_->Get("top only")), ErrorCode::OBJECT_NOT_FOUND);
  EXPECT_EQ(GetBytes("both"), ContentOf("both", kBlock)) << "from the lower tier";
  EXPECT_EQ(GetBytes("low only"), ContentOf("low only", kBlock));
  EXPECT_THAT(Keys(), ElementsAre("both", "low only"));
  EXPECT_THAT(backend_->GetReplicaTierIds("both"), ElementsAre(low()));
}

TEST_F(LostTierTest, EveryKeyThatLostAReplicaIsAnnounced) {
  LoseTop();
  ASSERT_TRUE(backend_->ForgetIfLost(*top_));
  EXPECT_THAT(changed_, ::testing::UnorderedElementsAre("top only", "both"));
}

TEST_F(LostTierTest, KeyThatWentCanBePutAgain) {
  LoseTop();
  EXPECT_FALSE(backend_->RecordUse("top only")) << "it must not count as stored";
  ASSERT_TRUE(Put("top only", ContentOf("top only", kBlock, 1)));
  EXPECT_EQ(GetBytes("top only"), ContentOf("top only", kBlock, 1));
  EXPECT_EQ(backend_->Get("top only")->handle->tier, low_);
}

TEST_F(LostTierTest, FirstPutAfterTheLossGoesBelowAndCleansUp) {
  LoseTop();
  ASSERT_TRUE(Put("new", ContentOf("new", kBlock)));
  EXPECT_EQ(backend_->Get("new")->handle->tier, low_);
  EXPECT_THAT(Keys(), ElementsAre("both", "low only", "new"));
  EXPECT_TRUE(backend_->AnyLost());
  EXPECT_TRUE(backend_->GetTierViews()[0].lost);
  EXPECT_EQ(backend_->GetTierViews()[0].keys, 0u);
  EXPECT_EQ(top_->usage(), 0u);
}

TEST_F(LostTierTest, HandleOfALostBlockDiesLikeAnyOther) {
  auto reader = backend_->Get("top only")->handle;
  LoseTop();
  ASSERT_TRUE(backend_->ForgetIfLost(*top_));
  EXPECT_EQ(top_->usage(), kBlock);
  reader.reset();
  EXPECT_EQ(top_->usage(), 0u);
}

TEST_F(LostTierTest, TierThatOnlyRefusesIsNotForgotten) {
  top_->Refuse(Status(ErrorCode::NO_AVAILABLE_HANDLE, "device out of memory", 207001));
  ASSERT_TRUE(Put("new", ContentOf("new", kBlock)));
  EXPECT_FALSE(backend_->ForgetIfLost(*top_));
  EXPECT_FALSE(backend_->AnyLost());
  EXPECT_TRUE(backend_->Exist("top only"));
}

TEST_F(LostTierTest, AllTiersLostIsAnEmptyStore) {
  LoseTop();
  low_->gone = true;
  for (const char* key : {"top only", "both", "low only"}) {
    EXPECT_EQ(CodeOf(backend_->Get(key)), ErrorCode::OBJECT_NOT_FOUND) << key;
  }
  EXPECT_THAT(Keys(), IsEmpty());
}

}  // namespace
}  // namespace mooncake
