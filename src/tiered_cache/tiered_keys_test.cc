// Lists of keys by pages, and removal by what a key looks like.
#include <gmock/gmock.h>

#include <set>
#include <thread>

#include "tiered_cache/test_backend_fixture.h"

namespace mooncake {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

class KeysTest : public BackendFixture {
 protected:
  void SetUp() override {
    OpenBackend(100'000, 1000, {.on_change = [this](std::string_view key) { changed_.emplace_back(key); }});
  }
  void PutMany(int count) {
    for (int i = 0; i < count; ++i)
      ASSERT_TRUE(Put(Name(i), Bytes(static_cast<size_t>(i % 7)), {}, {.stamp = StampOf(i)}));
  }
  static std::string Name(int i) { return "key/" + std::to_string(i); }
  static ContentStamp StampOf(int i) { return {.hlc = static_cast<uint64_t>(i + 1), .writer = 3}; }

  std::vector<std::string> changed_;
};

TEST_F(KeysTest, PagesListEveryKeyOnceWithStampAndSize) {
  PutMany(1000);
  for (const size_t limit : {size_t{1}, size_t{7}, size_t{300}, size_t{5000}}) {
    std::set<std::string> listed;
    std::string after;
    for (;;) {
      const auto page = backend_->ListKeys(after, limit);
      ASSERT_LE(page.size(), limit);
      for (const KeyInfo& info : page) {
        EXPECT_TRUE(listed.insert(info.key).second) << info.key << " twice";
        const int number = std::stoi(info.key.substr(4));
        EXPECT_EQ(info.stamp, StampOf(number));
        EXPECT_EQ(info.size, static_cast<uint64_t>(number % 7));
      }
      if (page.size() < limit) break;
      after = page.back().key;
    }
    EXPECT_EQ(listed.size(), 1000u) << "pages of " << limit;
  }
}

TEST_F(KeysTest, WalkGoesOnAfterAKeyThatIsGone) {
  PutMany(50);
  const auto first = backend_->ListKeys("", 20);
  ASSERT_EQ(first.size(), 20u);
  ASSERT_TRUE(backend_->Delete(first.back().key));
  EXPECT_EQ(backend_->ListKeys(first.back().key, 100).size(), 30u);
  EXPECT_TRUE(backend_->ListKeys("", 0).empty());
}

TEST_F(KeysTest, KeysThatStayAreListedWhileOthersComeAndGo) {
  PutMany(200);
  std::jthread other([this](const std::stop_token& stop) {
    for (int i = 0; !stop.stop_requested(); i = (i + 1) % 100) {
      const std::string key = "other/" + std::to_string(i);
      (void)backend_->Commit(key, *backend_->Allocate(1), {.quiet = true});
      (void)backend_->DeleteOlder(key, {.hlc = 1});
    }
  });
  for (int walk = 0; walk < 20; ++walk) {
    int stayed = 0;
    std::string after;
    for (;;) {
      const auto page = backend_->ListKeys(after, 16);
      for (const KeyInfo& info : page) stayed += info.key.starts_with("key/") ? 1 : 0;
      if (page.size() < 16) break;
      after = page.back().key;
    }
    EXPECT_EQ(stayed, 200);
  }
}

TEST_F(KeysTest, MatchingKeysGoAndTheOthersStay) {
  for (const char* key : {"a/1", "a/2", "b/1"}) ASSERT_TRUE(Put(key, Bytes(10)));
  changed_.clear();
  EXPECT_EQ(backend_->DeleteMatching([](const std::string& key) { return key.starts_with("a/"); }), 2u);
  EXPECT_THAT(Keys(), ElementsAre("b/1"));
  EXPECT_THAT(changed_, UnorderedElementsAre("a/1", "a/2"));
  EXPECT_EQ(top_->usage(), 10u);
  EXPECT_EQ(backend_->DeleteMatching([](const std::string&) { return false; }), 0u);
}

TEST_F(KeysTest, MatchingRunsWithoutLocksAndMayUseTheStore) {
  const std::shared_ptr<TieredBackend> backend = *TieredBackend::Open({low_}, {.shard_count = 1});
  ASSERT_TRUE(backend->Commit("k", *backend->Allocate(1)));
  ASSERT_TRUE(backend->Commit("l", *backend->Allocate(1)));
  const size_t deleted = backend->DeleteMatching([&](const std::string& key) {
    EXPECT_TRUE(ReachableByAnotherThread(backend));
    return key == "k" && backend->Delete("l");
  });
  EXPECT_EQ(deleted, 1u) << "what went meanwhile does not count";
  EXPECT_EQ(backend->KeyCount(), 0u);
}

}  // namespace
}  // namespace mooncake
