// Parsing of traces, block content, the ideal LRU and the reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "replay/block_content.h"
#include "replay/ideal_lru.h"
#include "replay/progress.h"
#include "replay/summary.h"
#include "replay/trace.h"

namespace mooncake::replay {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class TraceFile : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() / ("replay_test_" + std::to_string(getpid()) + ".jsonl");
  }
  void TearDown() override { std::filesystem::remove(path_); }
  std::string Write(const std::string& text) {
    std::ofstream(path_) << text;
    return path_.string();
  }
  std::filesystem::path path_;
};

constexpr const char* kGood = R"({"timestamp": 27, "input_length": 1031, "output_length": 45, "hash_ids": [0, 7, 9]})";

// --- traces ---

TEST(TraceLine, ReadsEveryField) {
  const auto request = ParseTraceLine(kGood);
  ASSERT_TRUE(request.has_value()) << request.error().ToString();
  EXPECT_EQ(request->timestamp_ms, 27);
  EXPECT_EQ(request->input_length, 1031u);
  EXPECT_EQ(request->output_length, 45u);
  EXPECT_THAT(request->block_ids, ElementsAre(0, 7, 9));
}

TEST(TraceLine, IgnoresFurtherMembersAndTakesFractionsOfMilliseconds) {
  const auto request = ParseTraceLine(
      R"({"type": "text", "timestamp": 0.5, "input_length": 1, "output_length": 0, "hash_ids": [18446744073709551615]})");
  ASSERT_TRUE(request.has_value()) << request.error().ToString();
  EXPECT_EQ(request->timestamp_ms, 0.5);
  EXPECT_THAT(request->block_ids, ElementsAre(~uint64_t{0}));
}

struct BadLine {
  const char* line;
  const char* why;
};

class BadTraceLine : public ::testing::TestWithParam<BadLine> {};

TEST_P(BadTraceLine, SaysWhatIsWrong) {
  const auto request = ParseTraceLine(GetParam().line);
  ASSERT_FALSE(request.has_value());
  EXPECT_EQ(request.error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_THAT(request.error().message(), HasSubstr(GetParam().why));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadTraceLine,
    ::testing::Values(
        BadLine{"{\"timestamp\": 1,", "not JSON"}, BadLine{"hello", "not JSON"}, BadLine{"\xff\xfe", "not JSON"},
        BadLine{"[1, 2]", "[1,2] is not a JSON object"}, BadLine{"7", "7 is not a JSON object"},
        BadLine{R"({"input_length": 1, "output_length": 1, "hash_ids": []})", "\"timestamp\" is missing"},
        BadLine{R"({"timestamp": 1, "output_length": 1, "hash_ids": []})", "\"input_length\" is missing"},
        BadLine{R"({"timestamp": 1, "input_length": 1, "hash_ids": []})", "\"output_length\" is missing"},
        BadLine{R"({"timestamp": 1, "input_length": 1, "output_length": 1})", "\"hash_ids\" is missing"},
        BadLine{R"({"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": []})", "\"timestamp\" is -1"},
        BadLine{R"({"timestamp": "now", "input_length": 1, "output_length": 1, "hash_ids": []})", "\"timestamp\" is"},
        BadLine{R"({"timestamp": 1, "input_length": -4, "output_length": 1, "hash_ids": []})",
                "\"input_length\" is -4"},
        BadLine{R"({"timestamp": 1, "input_length": 1, "output_length": 1.5, "hash_ids": []})",
                "\"output_length\" is 1.5"},
        BadLine{R"({"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": 5})", "\"hash_ids\" is 5"},
        BadLine{R"({"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [1, -2]})",
                "\"hash_ids\"[1] is -2"},
        BadLine{R"({"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [1, "2"]})",
                "\"hash_ids\"[1] is \"2\""},
        BadLine{R"({"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [18446744073709551616]})",
                "\"hash_ids\"[0]"}));

TEST_F(TraceFile, SkipsBlankLinesAndStopsAtTheLimit) {
  const std::string path = Write(std::string("\n") + kGood + "\r\n  \n" + kGood + "\nrubbish\n");
  const auto two = LoadTrace(path, 2);
  ASSERT_TRUE(two.has_value()) << two.error().ToString();
  EXPECT_EQ(two->size(), 2u);
}

TEST_F(TraceFile, ErrorNamesFileAndLine) {
  const std::string path = Write(std::string(kGood) + "\n\n{\"timestamp\": 1}\n");
  const auto trace = LoadTrace(path, 0);
  ASSERT_FALSE(trace.has_value());
  EXPECT_THAT(trace.error().message(), StartsWith(path + ":3: "));
  EXPECT_THAT(trace.error().message(), HasSubstr("\"input_length\" is missing"));
}

TEST_F(TraceFile, EmptyMissingOrUnreadableIsAnError) {
  const auto empty = LoadTrace(Write("\n\n"), 0);
  ASSERT_FALSE(empty.has_value());
  EXPECT_THAT(empty.error().message(), HasSubstr("no requests"));
  const auto missing = LoadTrace(path_.string() + ".none", 0);
  ASSERT_FALSE(missing.has_value());
  EXPECT_THAT(missing.error().message(), HasSubstr("No such file"));
  EXPECT_FALSE(LoadTrace("/", 0).has_value());
}

// --- block content ---

TEST(BlockContent, WholeBlockVerifiesAtAnySize) {
  for (const size_t size : {0, 1, 7, 8, 9, 511, 512, 513, 4096, 262144}) {
    std::vector<std::byte> block(size);
    FillBlock(42, block);
    EXPECT_EQ(FindMismatch(42, block), std::nullopt) << size;
  }
}

TEST(BlockContent, EveryFlippedByteIsFoundWhereItIs) {
  std::vector<std::byte> block(1029);
  FillBlock(7, block);
  for (size_t i = 0; i < block.size(); ++i) {
    block[i] ^= std::byte{0x10};
    EXPECT_EQ(FindMismatch(7, block), i);
    block[i] ^= std::byte{0x10};
  }
}

TEST(BlockContent, AnotherBlockIsFoundAndNamed) {
  std::vector<std::byte> block(4096);
  FillBlock(17, block);
  const auto at = FindMismatch(18, block);
  ASSERT_EQ(at, 0u);
  EXPECT_THAT(DescribeMismatch(18, block, *at), HasSubstr("begins as block 17"));
}

TEST(BlockContent, TornShiftedAndBlankBlocksAreFound) {
  std::vector<std::byte> block(4096), other(4096);
  FillBlock(1, block);
  FillBlock(2, other);
  std::copy(other.begin() + 2048, other.end(), block.begin() + 2048);
  EXPECT_EQ(FindMismatch(1, block).value_or(0) / 8, 256u);

  FillBlock(1, block);
  std::rotate(block.begin() + 1024, block.begin() + 1032, block.end());
  EXPECT_EQ(FindMismatch(1, block).value_or(0) / 8, 128u);

  FillBlock(1, block);
  std::fill(block.begin() + 4088, block.end(), std::byte{0});
  EXPECT_EQ(FindMismatch(1, block).value_or(0) / 8, 511u);
}

TEST(BlockContent, NeighbouringIdsShareNoWord) {
  std::vector<std::byte> a(8192), b(8192);
  FillBlock(1000, a);
  FillBlock(1001, b);
  for (size_t i = 0; i < a.size(); i += 8) EXPECT_FALSE(std::equal(a.begin() + i, a.begin() + i + 8, b.begin() + i));
}

// --- ideal LRU ---

// The same cache, without any cleverness.
class NaiveLru {
 public:
  explicit NaiveLru(size_t capacity) : capacity_(capacity) {}
  size_t Request(const std::vector<uint64_t>& ids) {
    size_t prefix = 0;
    while (prefix < ids.size() && std::find(order_.begin(), order_.end(), ids[prefix]) != order_.end()) ++prefix;
    for (const uint64_t id : ids) {
      std::erase(order_, id);
      order_.push_back(id);
      if (order_.size() > capacity_) order_.pop_front();
    }
    return prefix;
  }

 private:
  size_t capacity_;
  std::deque<uint64_t> order_;
};

TEST(IdealLru, AgreesWithNaiveModel) {
  std::mt19937_64 random(20250701);
  for (const size_t capacity : {0, 1, 2, 7, 50}) {
    IdealLru lru(capacity);
    NaiveLru naive(capacity);
    for (int request = 0; request < 500; ++request) {
      std::vector<uint64_t> ids;
      const uint64_t first = random() % 40;
      for (uint64_t n = random() % 12; n > 0; --n)
        ids.push_back(first + random() % 20);  // repeats within a request too
      ASSERT_EQ(lru.Request(ids), naive.Request(ids)) << "capacity " << capacity << ", request " << request;
    }
  }
}

TEST(IdealLru, CountsOnlyTheLeadingRun) {
  IdealLru lru(10);
  const std::vector<uint64_t> first{1, 2, 3}, second{1, 9, 3};
  EXPECT_EQ(lru.Request(first), 0u);
  EXPECT_EQ(lru.Request(second), 1u);
  EXPECT_EQ(lru.blocks(), 6u);
  EXPECT_DOUBLE_EQ(lru.HitRatio(), 1.0 / 6);
}

// --- reports ---

protocol::TierState Tier(uint64_t id, MemoryType type, uint64_t capacity, uint64_t demoted, uint64_t dropped) {
  protocol::TierState tier;
  tier.id = {id, id};
  tier.type = static_cast<int32_t>(type);
  tier.capacity = capacity;
  tier.demoted_out = demoted;
  tier.dropped = dropped;
  return tier;
}

TEST(Cluster, CapacityCountsWholeBlocksOfLiveTiers) {
  protocol::ListClientsReply cluster;
  cluster.clients.push_back(
      {{}, "a", false, {Tier(1, MemoryType::DRAM, 1000, 0, 0), Tier(2, MemoryType::ASCEND_NPU, 99, 0, 0)}});
  cluster.clients.push_back({{}, "b", /*suspect=*/true, {Tier(3, MemoryType::DRAM, 1000, 0, 0)}});
  EXPECT_EQ(CapacityBlocks(cluster, 300), 3u);
}

TEST(Cluster, ChangesAreDifferencesAndSurviveLostAndNewClients) {
  protocol::ListClientsReply before, after;
  before.clients.push_back({{}, "a", false, {Tier(1, MemoryType::DRAM, 10, 5, 7)}});
  before.clients.push_back({{}, "b", false, {Tier(2, MemoryType::DRAM, 10, 1, 1)}});
  after.clients.push_back({{}, "a", false, {Tier(1, MemoryType::DRAM, 10, 8, 9)}});
  after.clients.push_back({{}, "c", false, {Tier(3, MemoryType::DRAM, 10, 2, 4)}});
  const auto changes = CompareTiers(before, after);
  ASSERT_EQ(changes.size(), 3u);
  EXPECT_EQ(changes[0].demotions(), 3u);
  EXPECT_EQ(changes[0].drops(), 2u);
  EXPECT_TRUE(changes[1].gone);
  EXPECT_EQ(changes[1].drops(), 0u);
  EXPECT_EQ(changes[2].demotions(), 2u);
  EXPECT_EQ(changes[2].drops(), 4u);
}

TEST(Summary, JsonCarriesTheNumbersAndTableNamesThem) {
  Summary summary{.trace = "t.jsonl", .requests_total = 4, .options = {.block_bytes = 512, .key_prefix = "p/"}};
  summary.counts.requests = 4;
  summary.counts.blocks = 100;
  summary.counts.hits = 25;
  summary.counts.hits_by_type = {15, 0, 10, 0};
  summary.counts.verification_errors = 3;
  summary.seconds = 2;
  summary.ideal_hit_ratio = 0.26;
  summary.tiers.push_back({"127.0.0.1:1", {}, Tier(1, MemoryType::ASCEND_NPU, 1024, 6, 2)});
  const auto json = nlohmann::json::parse(SummaryJson(summary));
  EXPECT_EQ(json["version"], 1);
  EXPECT_DOUBLE_EQ(json["hit_ratio"], 0.25);
  EXPECT_NEAR(json["hit_ratio_difference"], -0.01, 1e-12);
  EXPECT_EQ(json["dram_hits"], 15);
  EXPECT_EQ(json["npu_hits"], 10);
  EXPECT_EQ(json["demotions"], 6);
  EXPECT_EQ(json["drops"], 2);
  EXPECT_EQ(json["verification_errors"], 3);
  EXPECT_EQ(json["blocks_per_second"], 50);
  EXPECT_EQ(json["tiers"][0]["type"], "ASCEND_NPU");
  const std::string table = SummaryTable(summary);
  EXPECT_THAT(table, HasSubstr("0.2500  (25 of 100 blocks)"));
  EXPECT_THAT(table, HasSubstr("3 errors"));
  EXPECT_THAT(table, HasSubstr("-0.0100"));
}

TEST(Progress, LineShowsShareRateAndTimeLeft) {
  ReplayCounts counts{.requests = 50, .blocks = 1000, .hits = 100};
  counts.bytes_written = 20'000'000;
  const std::string line = ProgressLine(counts, 200, 10, /*with_bar=*/true);
  EXPECT_THAT(line, StartsWith("[######------------------] 50/200 requests"));
  EXPECT_THAT(line, HasSubstr("100 blocks/s  2 MB/s  hits 10.0 %  ETA 0:30"));
  EXPECT_THAT(ProgressLine({}, 200, 0, /*with_bar=*/false), StartsWith("0/200 requests"));
}

}  // namespace
}  // namespace mooncake::replay
