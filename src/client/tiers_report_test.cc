// The JSON page of the tiers: numbers, key lists, bad queries.
#include "client/tiers_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tiered_cache/tiers/dram_tier.h"

namespace mooncake {
namespace {

class TiersReportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto tier = [](size_t capacity, int32_t priority) {
      DramTier::Options options;
      options.capacity = capacity;
      options.priority = priority;
      options.tags = {"t" + std::to_string(priority)};
      options.prefault = false;
      return *DramTier::Open(options);
    };
    backend_ = *TieredBackend::Open({tier(1 << 20, 1), tier(64 << 10, 2)}, {});
    for (const char* key : {"c", "a", "b\xff"}) {
      auto handle = *backend_->Allocate(1000);
      ASSERT_TRUE(backend_->Commit(key, std::move(handle)));
    }
  }
  nlohmann::json Ask(std::multimap<std::string, std::string> query = {}) const {
    const HttpReply reply = TiersReport(backend_.get(), {.path = "/tiers", .query = std::move(query), .body = {}});
    EXPECT_EQ(reply.code, 200);
    EXPECT_EQ(reply.content_type, "application/json");
    return nlohmann::json::parse(reply.body)["tiers"];
  }

  std::unique_ptr<TieredBackend> backend_;
};

TEST_F(TiersReportTest, GivesTheTiersByPriorityWithTheirNumbers) {
  const auto tiers = Ask();
  ASSERT_EQ(tiers.size(), 2u);
  EXPECT_EQ(tiers[0]["priority"], 2);
  EXPECT_EQ(tiers[0]["type"], "DRAM");
  EXPECT_EQ(tiers[0]["tags"], nlohmann::json({"t2"}));
  EXPECT_EQ(tiers[0]["capacity"], 64 << 10);
  EXPECT_EQ(tiers[0]["key_count"], 3);
  const size_t used = tiers[0]["used"];
  EXPECT_GE(used, 3000u);
  EXPECT_EQ(tiers[0]["free"], (64u << 10) - used);
  EXPECT_EQ(tiers[1]["used"], 0);
  EXPECT_FALSE(tiers[0].contains("keys"));
}

TEST_F(TiersReportTest, ListsTheFirstKeysOfEachTier) {
  const auto tiers = Ask({{"keys", "2"}});
  EXPECT_EQ(tiers[0]["keys"], nlohmann::json({"a", "b\uFFFD"})) << "a byte that is no UTF-8 does not break the page";
  EXPECT_EQ(tiers[1]["keys"], nlohmann::json::array());
  EXPECT_EQ(Ask({{"keys", "10"}})[0]["keys"].size(), 3u);
}

TEST_F(TiersReportTest, RefusesWhatItDoesNotUnderstand) {
  for (const auto& [name, value] : {std::pair("keys", "all"), {"keys", "-1"}, {"keys", "10001"}, {"key", "1"}}) {
    const HttpReply reply = TiersReport(backend_.get(), {.path = "/tiers", .query = {{name, value}}, .body = {}});
    EXPECT_EQ(reply.code, 400) << name << "=" << value;
    EXPECT_NE(reply.body.find("?keys=N"), std::string::npos);
  }
}

TEST_F(TiersReportTest, ClientWithoutTiersHasAnEmptyList) {
  const HttpReply reply = TiersReport(nullptr, {});
  EXPECT_EQ(nlohmann::json::parse(reply.body), nlohmann::json::parse(R"({"tiers":[]})"));
}

}  // namespace
}  // namespace mooncake
