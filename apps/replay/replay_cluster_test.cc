// Replays against a master and clients in this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "client/real_client.h"
#include "client/tier_factory.h"
#include "master/master_service.h"
#include "replay/block_content.h"
#include "replay/cluster.h"
#include "replay/replayer.h"
#include "tiered_cache/tier_config.h"

namespace mooncake::replay {
namespace {

constexpr uint64_t kBlock = 4096;

std::string DramTier(uint64_t bytes) {
  return fmt::format(R"({{"type": "DRAM", "capacity": {}, "priority": 10}})", bytes);
}
std::string NpuTier(uint64_t bytes) {
  return fmt::format(R"({{"type": "ASCEND_NPU", "capacity": {}, "priority": 100, "device_id": 0}})", bytes);
}

class ReplayCluster : public ::testing::Test {
 protected:
  void SetUp() override {
    auto master = MasterService::Open({.listen = {"127.0.0.1", 0}, .rpc_threads = 1});
    ASSERT_TRUE(master.has_value()) << master.error().ToString();
    master_ = std::move(*master);
  }

  // Without tiers: a client that only uses others' memory.
  std::unique_ptr<RealClient> Open(const std::vector<std::string>& tiers) {
    RealClientOptions options;
    options.master = {"127.0.0.1", master_->port()};
    options.require_master = true;
    options.rpc_threads = 1;
    options.worker_threads = 1;
    if (!tiers.empty()) {
      std::string json;
      for (const auto& tier : tiers) json += (json.empty() ? "" : ", ") + tier;
      auto config = ParseTieredBackendConfig("{\"tiers\": [" + json + "]}", "test", BuiltTierSupport());
      if (!config) {
        ADD_FAILURE() << config.error().ToString();
        return nullptr;
      }
      options.tiers = std::move(*config);
    }
    auto client = RealClient::Open(std::move(options));
    if (!client) {
      ADD_FAILURE() << client.error().ToString();
      return nullptr;
    }
    return std::move(*client);
  }

  std::unique_ptr<Replayer> MakeReplayer(RealClient& client, uint64_t capacity_blocks, size_t window = 8) {
    return std::make_unique<Replayer>(
        client, ReplayOptions{.block_bytes = kBlock, .key_prefix = "t/", .window_blocks = window},
        IdealLru(capacity_blocks), [this](const std::string& line) { lines_.push_back(line); });
  }

  std::unique_ptr<MasterService> master_;
  std::vector<std::string> lines_;  // what replayers described
};

// Conversations that grow turn by turn, many at a time, some forgotten for long: prefixes are shared, holes appear.
std::vector<TraceRequest> Conversations(int requests) {
  std::mt19937_64 random(4711);
  std::vector<std::vector<uint64_t>> talks(60);
  uint64_t next = 1;
  std::vector<TraceRequest> trace;
  for (int i = 0; i < requests; ++i) {
    // The smaller of two: some talks are visited far more often than others.
    auto& talk = talks[std::min(random() % talks.size(), random() % talks.size())];
    if (talk.empty() || talk.size() > 40) talk = {0};
    for (uint64_t n = 1 + random() % 8; n > 0; --n) talk.push_back(next++);
    trace.push_back({.block_ids = talk});
  }
  return trace;
}

TEST_F(ReplayCluster, ColdThenWarm) {
  const auto owner = Open({DramTier(64 * kBlock)});
  const auto user = Open({});
  ASSERT_TRUE(owner && user);
  const auto replayer = MakeReplayer(*user, 64);
  ASSERT_TRUE(replayer->Play({.block_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}).has_value());
  EXPECT_EQ(replayer->counts().hits, 0u);
  EXPECT_EQ(replayer->counts().puts, 11u);
  EXPECT_EQ(replayer->counts().bytes_written, 11 * kBlock);
  ASSERT_TRUE(replayer->Play({.block_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 99, 11}}).has_value());
  EXPECT_EQ(replayer->counts().hits, 10u);
  EXPECT_EQ(replayer->counts().remote_hits, 10u);
  EXPECT_EQ(replayer->counts().hits_by_type[static_cast<size_t>(MemoryType::DRAM)], 10u);
  EXPECT_EQ(replayer->counts().puts, 12u);
  EXPECT_EQ(replayer->counts().puts_present, 1u);  // 11, behind the hole
  EXPECT_EQ(replayer->counts().verified, 10u);
  EXPECT_EQ(replayer->counts().verification_errors, 0u);
  EXPECT_EQ(owner->KeyCount(), 12u);
}

TEST_F(ReplayCluster, WrongBytesEndThePrefixAndAreDescribed) {
  const auto owner = Open({DramTier(64 * kBlock)});
  const auto user = Open({});
  ASSERT_TRUE(owner && user);
  const auto replayer = MakeReplayer(*user, 64);
  ASSERT_TRUE(replayer->Play({.block_ids = {1, 2, 3}}).has_value());
  std::vector<std::byte> other(kBlock);
  FillBlock(3, other);
  ASSERT_TRUE(owner->Remove("t/2").has_value());
  const PutItem wrong{"t/2", MemoryRange(HostRange(other))};
  ASSERT_TRUE(owner->BatchPut({&wrong, 1})[0].has_value());
  ASSERT_TRUE(owner->Remove("t/1").has_value());
  const PutItem short_one{"t/1", MemoryRange(HostRange(other).first(100))};

  ASSERT_TRUE(replayer->Play({.block_ids = {3, 2, 3}}).has_value());
  EXPECT_EQ(replayer->counts().hits, 1u);
  EXPECT_EQ(replayer->counts().verification_errors, 1u);
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_THAT(lines_[0], ::testing::HasSubstr("begins as block 3"));

  ASSERT_TRUE(owner->BatchPut({&short_one, 1})[0].has_value());
  ASSERT_TRUE(replayer->Play({.block_ids = {1}}).has_value());
  EXPECT_EQ(replayer->counts().verification_errors, 2u);
  EXPECT_THAT(lines_.back(), ::testing::HasSubstr("100 B, not 4096 B"));
}

TEST_F(ReplayCluster, EvictingTiersComeNearTheIdealLru) {
  const bool npu = BuiltTierSupport().ascend_npu;
  const auto first = Open({DramTier(160 * kBlock)});
  const auto second = npu ? Open({NpuTier(96 * kBlock), DramTier(64 * kBlock)}) : Open({DramTier(160 * kBlock)});
  const auto user = Open({});
  ASSERT_TRUE(first && second && user);
  const auto cluster = user->ListClients();
  ASSERT_TRUE(cluster.has_value());
  ASSERT_EQ(CapacityBlocks(*cluster, kBlock), 320u);

  const auto replayer = MakeReplayer(*user, 320);
  for (const auto& request : Conversations(1500)) {
    const auto played = replayer->Play(request);
    ASSERT_TRUE(played.has_value()) << played.error().ToString();
  }
  const ReplayCounts& counts = replayer->counts();
  RecordProperty("difference", std::to_string(counts.HitRatio() - replayer->ideal().HitRatio()));
  EXPECT_EQ(counts.verification_errors, 0u);
  EXPECT_EQ(counts.put_failures + counts.get_failures + counts.lookup_failures, 0u);
  EXPECT_GT(counts.hits, 0u);
  EXPECT_LT(counts.hits, counts.blocks);
  EXPECT_NEAR(counts.HitRatio(), replayer->ideal().HitRatio(), 0.02);
  EXPECT_GT(counts.hits_by_type[static_cast<size_t>(MemoryType::DRAM)], 0u);

  uint64_t demotions = 0;
  uint64_t drops = 0;
  for (const auto* owner : {first.get(), second.get()}) {
    for (const TierView& tier : owner->GetTierViews()) {
      demotions += tier.demoted_out;
      drops += tier.dropped;
      EXPECT_LE(tier.usage, tier.capacity);
    }
  }
  EXPECT_GT(drops, 0u);
  if (npu) {
    EXPECT_GT(demotions, 0u);
    EXPECT_GT(counts.hits_by_type[static_cast<size_t>(MemoryType::ASCEND_NPU)], 0u);
  }
}

TEST_F(ReplayCluster, LostMasterEndsTheReplayAfterAFewLookUps) {
  const auto owner = Open({DramTier(64 * kBlock)});
  const auto user = Open({});
  ASSERT_TRUE(owner && user);
  const auto replayer = MakeReplayer(*user, 64);
  ASSERT_TRUE(replayer->Play({.block_ids = {1}}).has_value());
  master_.reset();
  EXPECT_TRUE(replayer->Play({.block_ids = {1}}).has_value());
  EXPECT_TRUE(replayer->Play({.block_ids = {1}}).has_value());
  const auto third = replayer->Play({.block_ids = {1}});
  ASSERT_FALSE(third.has_value());
  EXPECT_THAT(third.error().message(), ::testing::HasSubstr("look-ups in a row"));
  EXPECT_EQ(replayer->counts().lookup_failures, 3u);
  EXPECT_EQ(replayer->counts().puts, 1u);
}

TEST_F(ReplayCluster, LostOwnerIsAMissOrAFailureNeverWrongBytes) {
  auto owner = Open({DramTier(64 * kBlock)});
  const auto user = Open({});
  ASSERT_TRUE(owner && user);
  const auto replayer = MakeReplayer(*user, 64);
  ASSERT_TRUE(replayer->Play({.block_ids = {1, 2}}).has_value());
  owner->Close();
  owner.reset();
  ASSERT_TRUE(replayer->Play({.block_ids = {1, 2}}).has_value());
  EXPECT_EQ(replayer->counts().hits, 0u);
  EXPECT_EQ(replayer->counts().verification_errors, 0u);
  EXPECT_EQ(replayer->counts().put_failures, 2u);  // nobody is left to take them
}

}  // namespace
}  // namespace mooncake::replay
