// Elections among masters, with a real etcd and a clock that stands still.
#include "master/leader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "coordination/test_server_process.h"
#include "protocol/master_view.h"

namespace mooncake {
namespace {

using std::chrono::seconds;

// Looks again until `condition` holds; false after a minute.
bool Eventually(const std::function<bool()>& condition) {
  const Deadline deadline = Deadline::After(seconds(60));
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock lock(mutex);
  while (!condition()) {
    if (deadline.Passed()) return false;
    never.wait_for(lock, std::chrono::milliseconds(5));
  }
  return true;
}

class LeaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_SERVERS();
    etcd_ = EtcdProcess::OnFreePort();
    ASSERT_NE(etcd_, nullptr);
  }
  std::unique_ptr<Leader> Open(const std::string& name, std::function<void()> on_elected = [] {}) {
    Leader::Options options{.etcd = {etcd_->endpoint()}, .cluster_id = "c", .advertised = name, .lease = kLease};
    options.keep_alive_interval = options.retry_interval = std::chrono::milliseconds(20);
    options.call_timeout = seconds(10);
    return Leader::Open(std::move(options), std::move(on_elected), clock_);
  }
  static bool Leads(const Leader& leader) { return leader.Term().has_value(); }
  void RemovePair() {
    EtcdClient etcd({etcd_->endpoint()});
    const auto removed = etcd.Remove(protocol::MasterViewKey("c"), Deadline::After(seconds(60)));
    EXPECT_TRUE(removed) << removed.error().ToString();
  }

  static constexpr seconds kLease{600};
  ManualClock clock_;
  std::unique_ptr<EtcdProcess> etcd_;
};

TEST_F(LeaderTest, OneLeadsTheOtherKnowsItAndFollowsWhenItLeaves) {
  auto first = Open("a:1");
  ASSERT_TRUE(Eventually([&] { return Leads(*first); }));
  const uint64_t term = *first->Term();
  EXPECT_EQ(first->view().leader, "a:1");
  std::atomic<int> told_early{0}, elected{0};
  Leader* self = nullptr;
  std::atomic<Leader*> second_raw{nullptr};
  const auto second = Open("b:2", [&] {
    ++elected;
    if (Leader* leader = second_raw.load(); leader != nullptr && Leads(*leader)) ++told_early;
  });
  second_raw.store(self = second.get());
  ASSERT_TRUE(Eventually([&] { return second->view().leader == "a:1"; }));
  EXPECT_FALSE(Leads(*self));
  first.reset();
  ASSERT_TRUE(Eventually([&] { return Leads(*second); }));
  EXPECT_GT(*second->Term(), term);
  EXPECT_EQ(second->view().leader, "b:2");
  EXPECT_EQ(elected.load(), 1);
  EXPECT_EQ(told_early.load(), 0);
}

TEST_F(LeaderTest, OfManyOneLeads) {
  std::vector<std::unique_ptr<Leader>> leaders;
  for (int i = 0; i < 5; ++i) leaders.push_back(Open("m:" + std::to_string(i + 1)));
  ASSERT_TRUE(Eventually([&] {
    return std::ranges::all_of(leaders, [](const auto& leader) { return !leader->view().leader.empty(); }) &&
           std::ranges::any_of(leaders, [](const auto& leader) { return Leads(*leader); });
  }));
  EXPECT_EQ(std::ranges::count_if(leaders, [](const auto& leader) { return Leads(*leader); }), 1);
}

// Nobody can lead before the lease has ended, and this one does not lead when that may be.
TEST_F(LeaderTest, WithoutEtcdItStopsLeadingAMarginBeforeItsLeaseCanEnd) {
  const auto leader = Open("a:1");
  ASSERT_TRUE(Eventually([&] { return Leads(*leader); }));
  etcd_->Kill();
  ASSERT_TRUE(Eventually([&] { return !leader->view().error.empty(); }));
  clock_.Advance(kLease - seconds(1) - std::chrono::milliseconds(1));
  EXPECT_TRUE(Leads(*leader));
  clock_.Advance(std::chrono::milliseconds(1));
  EXPECT_FALSE(Leads(*leader));
}

TEST_F(LeaderTest, RestartOfEtcdWithinTheLeaseChangesNothing) {
  int elected = 0;
  const auto leader = Open("a:1", [&] { ++elected; });
  ASSERT_TRUE(Eventually([&] { return Leads(*leader); }));
  const uint64_t term = *leader->Term();
  etcd_->Kill();
  ASSERT_TRUE(Eventually([&] { return !leader->view().error.empty(); }));
  ASSERT_TRUE(etcd_->Start(etcd_->endpoint().port));
  ASSERT_TRUE(Eventually([&] { return leader->view().error.empty(); }));
  EXPECT_EQ(leader->Term(), term);
}

TEST_F(LeaderTest, PairThatSomebodyRemovedEndsTheTerm) {
  std::atomic<int> elected{0};
  const auto leader = Open("a:1", [&] { ++elected; });
  ASSERT_TRUE(Eventually([&] { return Leads(*leader); }));
  const uint64_t term = *leader->Term();
  RemovePair();
  ASSERT_TRUE(Eventually([&] { return elected.load() == 2 && Leads(*leader); }));
  EXPECT_GT(*leader->Term(), term);
}

TEST_F(LeaderTest, AbsentEtcdMeansNoLeader) {
  etcd_->Kill();
  const auto leader = Open("a:1");
  ASSERT_TRUE(Eventually([&] { return !leader->view().error.empty(); }));
  EXPECT_FALSE(Leads(*leader));
  EXPECT_EQ(leader->view().leader, "");
}

}  // namespace
}  // namespace mooncake
