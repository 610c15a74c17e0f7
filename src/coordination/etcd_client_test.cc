// The etcd client against a real etcd, and against answers that are none.
#include "coordination/etcd_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "coordination/test_server_process.h"

namespace mooncake {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

Deadline Soon() {
  return Deadline::After(seconds(60));
}

TEST(EtcdMembersTest, AreListedWithSemicolonsOrCommas) {
  const auto members = ParseEtcdMembers("a:1;b,[::1]:3;");
  ASSERT_TRUE(members) << members.error().ToString();
  ASSERT_EQ(members->size(), 3u);
  EXPECT_EQ((*members)[0].ToString(), "a:1");
  EXPECT_EQ((*members)[1].ToString(), "b:2379");
  EXPECT_EQ((*members)[2].port, 3);
  for (const char* text : {"", ";", "a:99999", "a:x"}) EXPECT_FALSE(ParseEtcdMembers(text)) << text;
}

class EtcdClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_SERVERS();
    server_ = EtcdProcess::OnFreePort();
    ASSERT_NE(server_, nullptr);
    etcd_ = std::make_unique<EtcdClient>(std::vector{server_->endpoint()});
  }
  EtcdClient::LeaseId Grant(seconds ttl = seconds(600)) const {
    const auto lease = etcd_->GrantLease(ttl, Soon());
    EXPECT_TRUE(lease) << lease.error().ToString();
    return lease ? lease->id : 0;
  }

  std::unique_ptr<EtcdProcess> server_;
  std::unique_ptr<EtcdClient> etcd_;
};

TEST_F(EtcdClientTest, PairIsCreatedOnceUntilItIsRemoved) {
  const auto lease = Grant();
  const auto first = etcd_->Create("k", "one", lease, Soon());
  ASSERT_TRUE(first) << first.error().ToString();
  EXPECT_TRUE(first->created);
  const auto second = etcd_->Create("k", "two", Grant(), Soon());
  ASSERT_TRUE(second) << second.error().ToString();
  EXPECT_FALSE(second->created);
  EXPECT_EQ(second->pair.value, "one");
  EXPECT_EQ(second->pair.lease, lease);
  EXPECT_EQ(second->pair.create_revision, first->pair.create_revision);
  const auto got = etcd_->Get("k", Soon());
  ASSERT_TRUE(got && *got);
  EXPECT_EQ((*got)->create_revision, first->pair.create_revision);
  ASSERT_TRUE(etcd_->Remove("k", Soon()));
  const auto third = etcd_->Create("k", "three", Grant(), Soon());
  ASSERT_TRUE(third && third->created);
  EXPECT_GT(third->pair.create_revision, first->pair.create_revision);
}

// The first answer may have been lost on the way.
TEST_F(EtcdClientTest, CreatingTheSameAgainSucceedsWithTheFirstRevision) {
  const auto lease = Grant();
  const auto first = etcd_->Create("k", "mine", lease, Soon());
  const auto again = etcd_->Create("k", "mine", lease, Soon());
  ASSERT_TRUE(first && again);
  EXPECT_TRUE(again->created);
  EXPECT_EQ(again->pair.create_revision, first->pair.create_revision);
}

TEST_F(EtcdClientTest, OfManyExactlyOneCreates) {
  std::atomic<int> created{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([this, t, &created] {
      const auto creation = etcd_->Create("k", std::to_string(t), Grant(), Soon());
      ASSERT_TRUE(creation) << creation.error().ToString();
      if (creation->created) ++created;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(created.load(), 1);
}

TEST_F(EtcdClientTest, RevokedLeaseTakesItsPairsAndIsGone) {
  const auto lease = Grant(seconds(600));
  const auto kept = etcd_->KeepLease(lease, Soon());
  ASSERT_TRUE(kept) << kept.error().ToString();
  EXPECT_GE(*kept, seconds(599));
  ASSERT_TRUE(etcd_->Create("k", "v", lease, Soon()));
  ASSERT_TRUE(etcd_->RevokeLease(lease, Soon()));
  const auto got = etcd_->Get("k", Soon());
  ASSERT_TRUE(got);
  EXPECT_FALSE(*got);
  const auto gone = etcd_->KeepLease(lease, Soon());
  ASSERT_TRUE(gone) << gone.error().ToString();
  EXPECT_EQ(*gone, seconds(0));
  const auto again = etcd_->RevokeLease(lease, Soon());
  EXPECT_TRUE(again) << again.error().ToString();
  const auto creation = etcd_->Create("k", "v", lease, Soon());
  ASSERT_FALSE(creation);
  EXPECT_THAT(creation.error().message(), HasSubstr("lease"));
}

TEST_F(EtcdClientTest, LeaseThatNobodyKeepsTakesItsPairs) {
  const auto lease = Grant(seconds(1));
  ASSERT_TRUE(etcd_->Create("k", "v", lease, Soon()));
  const Deadline patience = Deadline::After(seconds(60));
  std::optional<EtcdClient::Pair> pair = EtcdClient::Pair{};
  while (pair && !patience.Passed()) {
    auto got = etcd_->Get("k", Soon());
    ASSERT_TRUE(got) << got.error().ToString();
    pair = std::move(*got);
  }
  EXPECT_FALSE(pair);
}

TEST_F(EtcdClientTest, DeadServerIsAnErrorThatNamesIt) {
  server_->Kill();
  const auto lease = etcd_->GrantLease(seconds(5), Deadline::After(seconds(2)));
  ASSERT_FALSE(lease);
  EXPECT_EQ(lease.error().code(), ErrorCode::METADATA_ERROR);
  EXPECT_THAT(lease.error().message(), HasSubstr(server_->endpoint().ToString()));
}

// Whatever stands in an answer, it is an error and no success.
TEST(EtcdAnswerTest, GarbageIsAnErrorOfEveryCall) {
  for (const char* body :
       {"", "[]", "{}", "null", R"({"header":3,"succeeded":true})", R"({"header":{},"succeeded":"yes"})",
        R"({"header":{},"succeeded":false,"responses":[{"response_range":{}}]})",
        R"({"ID":"x","TTL":"5","result":{"TTL":"-1"}})", R"({"ID":7,"TTL":"5","result":{"TTL":5}})",
        R"({"header":{"revision":"99999999999999999999"},"succeeded":true})"}) {
    const ScriptedServer server(
        fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", std::string_view(body).size(), body));
    EtcdClient etcd({{"127.0.0.1", server.port()}});
    EXPECT_FALSE(etcd.Create("k", "v", 1, Soon())) << body;
    EXPECT_FALSE(etcd.GrantLease(seconds(5), Soon())) << body;
    EXPECT_FALSE(etcd.KeepLease(1, Soon())) << body;
  }
}

TEST(EtcdAnswerTest, PairWithoutRevisionOrOfOddKindsIsAnError) {
  for (const char* pairs : {"{}", "[]", "[{},{}]", "[3]", R"([{"create_revision":"0"}])",
                            R"([{"create_revision":"1","value":"?"}])", R"([{"create_revision":"1","lease":4}])"}) {
    const std::string body = fmt::format(R"({{"header":{{}},"kvs":{}}})", pairs);
    const ScriptedServer server(fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
    EXPECT_FALSE(EtcdClient({{"127.0.0.1", server.port()}}).Get("k", Soon())) << body;
  }
}

}  // namespace
}  // namespace mooncake
