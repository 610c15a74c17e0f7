// Registered ranges: overlaps, counts, keys, grants, and removal that waits for users.
#include "transfer_engine/region_registry.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace mooncake {
namespace {

constexpr uint64_t kBase = 0x10000;

Deadline Soon() {
  return Deadline::After(std::chrono::seconds(20));
}
Deadline Now() {
  return Deadline::After({});
}

class RegionRegistryTest : public testing::Test {
 protected:
  std::shared_ptr<Region> Add(uint64_t address, uint64_t length, RegionOptions options = {}) {
    const auto region = registry_.Reserve(address, length, std::move(options));
    EXPECT_TRUE(region && *region);
    registry_.Publish(**region);
    return **region;
  }
  std::shared_ptr<Region> Take(uint64_t address) {
    const auto region = registry_.Unpublish(address);
    EXPECT_TRUE(region && *region);
    return **region;
  }
  RegionRegistry registry_;
};

TEST_F(RegionRegistryTest, PartialOverlapIsRefusedWithBothRanges) {
  Add(kBase, 0x1000);
  for (const auto& [address, length] : std::vector<std::pair<uint64_t, uint64_t>>{
           {kBase - 0x10, 0x11}, {kBase + 0xfff, 1}, {kBase, 0x800}, {kBase + 0x100, 0x10}, {kBase - 1, 0x2000}}) {
    const auto refused = registry_.Reserve(address, length, {});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::ADDRESS_OVERLAPPED);
    EXPECT_NE(refused.error().message().find(fmt::format("[{:#x}, +{})", address, length)), std::string::npos);
    EXPECT_NE(refused.error().message().find("[0x10000, +4096)"), std::string::npos);
  }
  Add(kBase - 0x10, 0x10);
  Add(kBase + 0x1000, 1);
  EXPECT_EQ(registry_.size(), 3u);
}

TEST_F(RegionRegistryTest, EmptyWrappingAndNullRangesAreInvalid) {
  for (const auto& [address, length] :
       std::vector<std::pair<uint64_t, uint64_t>>{{kBase, 0}, {0, 16}, {UINT64_MAX - 3, 8}}) {
    const auto refused = registry_.Reserve(address, length, {});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::INVALID_PARAMS);
  }
}

TEST_F(RegionRegistryTest, IdenticalRangeIsCounted) {
  Add(kBase, 64);
  const auto again = registry_.Reserve(kBase, 64, {});
  ASSERT_TRUE(again);
  EXPECT_FALSE(*again);
  const auto first = registry_.Unpublish(kBase);
  ASSERT_TRUE(first);
  EXPECT_FALSE(*first) << "one registration is left";
  EXPECT_TRUE(registry_.Find(kBase, 64));
  EXPECT_TRUE(*registry_.Unpublish(kBase));
  EXPECT_FALSE(registry_.Find(kBase, 64));
  EXPECT_FALSE(registry_.Unpublish(kBase));
}

TEST_F(RegionRegistryTest, ReservedRegionIsNotFoundUntilPublished) {
  const auto region = *registry_.Reserve(kBase, 64, {});
  EXPECT_FALSE(registry_.Find(kBase, 64));
  EXPECT_TRUE(registry_.Published().empty());
  EXPECT_FALSE(registry_.Reserve(kBase, 64, {})) << "another thread is at it";
  registry_.Abandon(*region);
  EXPECT_EQ(registry_.size(), 0u);
}

TEST_F(RegionRegistryTest, PublishedListsWhatPeersMayKnowSorted) {
  uint64_t before = 0;
  registry_.Published(&before);
  Add(kBase + 0x1000, 16, {.access = RegionAccess::kByGrant});
  Add(kBase, 16);
  Add(kBase + 0x2000, 16, {.access = RegionAccess::kLocal});
  uint64_t revision = 0;
  const auto published = registry_.Published(&revision);
  EXPECT_GT(revision, before);
  EXPECT_EQ(revision, registry_.revision());
  ASSERT_EQ(published.size(), 2u);
  EXPECT_EQ(published[0].address, kBase);
  EXPECT_NE(published[0].key, 0u);
  EXPECT_EQ(published[1].key, 0u);
}

TEST_F(RegionRegistryTest, MissNamesTheNearestRegion) {
  Add(kBase, 16);
  const auto missing = registry_.Find(kBase + 8, 16);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
  EXPECT_NE(missing.error().message().find("[0x10000, +16)"), std::string::npos);
}

TEST_F(RegionRegistryTest, KeyOpensItsRegionAndNothingElse) {
  const uint64_t key = Add(kBase, 64)->published.key;
  Add(kBase + 64, 64);
  EXPECT_TRUE(registry_.FindByKey(key, kBase, 64, true));
  EXPECT_TRUE(registry_.FindByKey(key, kBase + 63, 1, false));
  EXPECT_FALSE(registry_.FindByKey(key, kBase + 63, 2, false)) << "reaches into the next region";
  EXPECT_FALSE(registry_.FindByKey(key + 1, kBase, 64, false));
  EXPECT_FALSE(registry_.FindByKey(0, kBase, 64, false));
  EXPECT_FALSE(registry_.FindByKey(key, UINT64_MAX - 2, 8, false));
  Take(kBase);
  EXPECT_FALSE(registry_.FindByKey(key, kBase, 64, false));
}

TEST_F(RegionRegistryTest, RemovalWaitsForTheLastUse) {
  const auto region = Add(kBase, 64);
  auto use = registry_.Find(kBase, 64);
  ASSERT_TRUE(use);
  RegionRegistry::Use again = use->Again();
  EXPECT_TRUE(use->wanted());
  Take(kBase);
  EXPECT_FALSE(again.wanted());
  const auto busy = registry_.WaitUnused(region, Now());
  ASSERT_FALSE(busy);
  EXPECT_EQ(busy.error().code(), ErrorCode::TRANSFER_TIMEOUT);
  EXPECT_NE(busy.error().message().find("2 transfers"), std::string::npos);
  use->Release();
  EXPECT_FALSE(registry_.WaitUnused(region, Now()));
  std::thread other([&] { again.Release(); });
  EXPECT_TRUE(registry_.WaitUnused(region, Soon()));
  other.join();
}

TEST_F(RegionRegistryTest, SameRangeCanBeRegisteredWhileItsOldSelfIsStillUsed) {
  const auto old = Add(kBase, 64);
  auto use = registry_.Find(kBase, 64);
  Take(kBase);
  const auto now = Add(kBase, 64);
  EXPECT_NE(old->published.key, now->published.key);
  EXPECT_FALSE(registry_.WaitUnused(old, Now()));
  use->Release();
  EXPECT_TRUE(registry_.WaitUnused(old, Now()));
  Take(kBase);
  EXPECT_TRUE(registry_.WaitUnused(now, Now()));
}

TEST_F(RegionRegistryTest, GrantOpensItsPartUntilRevoked) {
  Add(kBase, 4096, {.access = RegionAccess::kByGrant});
  const auto key = registry_.Grant(kBase + 100, 50, false, nullptr);
  ASSERT_TRUE(key);
  EXPECT_TRUE(registry_.FindByKey(*key, kBase + 100, 50, false));
  EXPECT_FALSE(registry_.FindByKey(*key, kBase + 100, 50, true)) << "granted for reading";
  EXPECT_FALSE(registry_.FindByKey(*key, kBase + 99, 2, false));
  EXPECT_FALSE(registry_.FindByKey(*key, kBase + 149, 2, false));
  EXPECT_TRUE(registry_.Revoke(*key));
  EXPECT_FALSE(registry_.FindByKey(*key, kBase + 100, 1, false));
}

TEST_F(RegionRegistryTest, RevokeTellsWhenTheLastUserIsGone) {
  Add(kBase, 4096, {.access = RegionAccess::kByGrant});
  auto kept = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = kept;
  const uint64_t key = *registry_.Grant(kBase, 4096, true, std::move(kept));
  auto first = registry_.FindByKey(key, kBase, 10, true);
  auto second = registry_.FindByKey(key, kBase, 10, true);
  bool told = false;
  EXPECT_FALSE(registry_.Revoke(key, [&] { told = true; }));
  EXPECT_FALSE(first->wanted());
  first->Release();
  EXPECT_FALSE(told);
  EXPECT_FALSE(watch.expired());
  second->Release();
  EXPECT_TRUE(told);
  EXPECT_TRUE(watch.expired());
}

TEST_F(RegionRegistryTest, LentMemoryIsInNoDescriptorAndOpenToGrantsOnly) {
  Add(kBase, 4096, {.access = RegionAccess::kLent});
  EXPECT_TRUE(registry_.Published().empty());
  const auto key = registry_.Grant(kBase + 64, 64, true, nullptr);
  ASSERT_TRUE(key) << key.error().ToString();
  EXPECT_TRUE(registry_.FindByKey(*key, kBase + 64, 64, true));
  EXPECT_FALSE(registry_.FindByKey(*key, kBase, 64, true));
  EXPECT_TRUE(registry_.Revoke(*key));
}

TEST_F(RegionRegistryTest, LocalAndUnregisteredMemoryCannotBeGranted) {
  Add(kBase, 64, {.access = RegionAccess::kLocal});
  EXPECT_FALSE(registry_.Grant(kBase, 64, false, nullptr));
  const auto unknown = registry_.Grant(kBase + 0x1000, 64, false, nullptr);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
}

TEST_F(RegionRegistryTest, UsersComeAndGoWhileRegionsDo) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 300;
  std::atomic<bool> stop{false};
  std::atomic<int> in_use{0};
  std::vector<std::thread> users;
  for (int t = 0; t < kThreads; ++t) {
    users.emplace_back([&] {
      while (!stop) {
        auto use = registry_.Find(kBase, 64);
        if (!use) continue;
        ++in_use;
        RegionRegistry::Use more = use->Again();
        use->Release();
        --in_use;
      }
    });
  }
  for (int round = 0; round < kRounds; ++round) {
    const auto region = Add(kBase, 64);
    Take(kBase);
    ASSERT_TRUE(registry_.WaitUnused(region, Soon()));
  }
  stop = true;
  for (auto& user : users) user.join();
  EXPECT_EQ(in_use, 0);
}

}  // namespace
}  // namespace mooncake
