// Losses and registrations in turn, against a master that is played.
#include "client/master_link.h"

#include <gtest/gtest.h>

#include "client/test_cluster.h"
#include "protocol/methods.h"

namespace mooncake {
namespace {

using namespace protocol;

class MasterLinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto listening = rpc::RpcServer::Listen(
        io_, {.listen = {"127.0.0.1", 0}, .self = {.role = kRoleMaster, .node = Uuid::Random()}});
    ASSERT_TRUE(listening);
    server_ = std::move(*listening);
    server_->Handle<RegisterRequest>(kRegister, [this](rpc::ServerCall call, RegisterRequest request) {
      {
        std::lock_guard lock(mutex_);
        sequences_.push_back(request.sequence);
      }
      std::move(call).Reply(rpc::Encode(RegisterReply{.client_ttl_ms = 600'000}));
    });
    server_->Handle<HeartbeatRequest>(kHeartbeat, [this](rpc::ServerCall call, HeartbeatRequest) {
      ++heartbeats_;
      std::move(call).Reply(rpc::Encode(HeartbeatReply{.known = known_.load()}));
    });
    server_->Handle<AnnounceRequest>(kAnnounce, [this](rpc::ServerCall call, AnnounceRequest request) {
      std::lock_guard lock(mutex_);
      sequences_.push_back(request.sequence);
      std::move(call).Reply(rpc::Encode(AnnounceReply{}));
    });
    server_->Handle<UnregisterRequest>(kUnregister, [this](rpc::ServerCall call, UnregisterRequest) {
      ++unregistered_;
      std::move(call).Reply(rpc::Encode(RegisterReply{}));
    });
    server_->Start();
    MasterLink::Options options{.master = {"127.0.0.1", server_->port()},
                                .self = {.role = kRoleClient, .node = Uuid::Random()},
                                .advertised = "127.0.0.1:1"};
    options.heartbeat_interval = std::chrono::hours(1);
    MasterLink::Hooks hooks;
    hooks.tiers = [] { return std::vector<TierState>{}; };
    hooks.on_registered = [this] { Note('R'); };
    hooks.on_lost = [this] { Note('L'); };
    link_ = std::make_unique<MasterLink>(std::move(options), std::move(hooks));
    ASSERT_TRUE(link_->Start({}));
  }
  void TearDown() override {
    if (link_) link_->Stop();
    if (server_) server_->Stop();
  }
  void Note(char what) {
    std::lock_guard lock(mutex_);
    story_ += what;
  }
  std::string Story() {
    std::lock_guard lock(mutex_);
    return story_;
  }

  std::mutex mutex_;
  std::string story_;
  std::vector<uint64_t> sequences_;
  std::atomic<int> heartbeats_{0}, unregistered_{0};
  std::atomic<bool> known_{true};
  rpc::IoPool io_{2};
  std::unique_ptr<rpc::RpcServer> server_;
  std::unique_ptr<MasterLink> link_;
};

TEST_F(MasterLinkTest, LossesAndRegistrationsAlternateWhoeverReportsThem) {
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      while (!done.load()) link_->ReportLost(Status(ErrorCode::RPC_FAIL, "storm"));
    });
  }
  EXPECT_TRUE(Eventually([this] { return Story().size() > 400; }));
  done.store(true);
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(Eventually([this] { return link_->health() != ClientHealth::DEGRADED && Story().ends_with('R'); }));
  const std::string story = Story();
  for (size_t i = 0; i < story.size(); ++i) ASSERT_EQ(story[i], i % 2 == 0 ? 'R' : 'L') << story.substr(0, i + 1);
}

TEST_F(MasterLinkTest, LostLinkFailsCallsAtOnceAndComesBack) {
  ASSERT_EQ(link_->health(), ClientHealth::SYNCING);
  link_->SetSynced();
  EXPECT_EQ(link_->health(), ClientHealth::FULL);
  link_->ReportLost(Status(ErrorCode::CLIENT_NOT_FOUND, "forgot us"));
  EXPECT_TRUE(Eventually([this] { return link_->health() == ClientHealth::SYNCING; }));
  EXPECT_EQ(Story(), "RLR");
}

TEST_F(MasterLinkTest, HeartbeatOfAMasterThatForgotUsRegistersAgain) {
  known_.store(false);
  link_->ReportDoubt();
  EXPECT_TRUE(Eventually([this] { return Story().starts_with("RLR"); }));
  known_.store(true);
}

TEST_F(MasterLinkTest, DoubtIsSettledByAHeartbeat) {
  link_->SetSynced();
  link_->ReportDoubt();
  EXPECT_TRUE(Eventually([this] { return heartbeats_.load() == 1; }));
  EXPECT_EQ(link_->health(), ClientHealth::FULL);
  EXPECT_EQ(Story(), "R");
}

TEST_F(MasterLinkTest, SequencesOfRegistrationsAndAnnouncementsGrowTogether) {
  ASSERT_TRUE(link_->Announce({}, Deadline::After(std::chrono::seconds(60))));
  link_->ReportLost(Status(ErrorCode::RPC_FAIL, "test"));
  ASSERT_TRUE(Eventually([this] { return Story() == "RLR"; }));
  ASSERT_TRUE(link_->Announce({}, Deadline::After(std::chrono::seconds(60))));
  std::lock_guard lock(mutex_);
  ASSERT_EQ(sequences_.size(), 4u);
  for (size_t i = 1; i < sequences_.size(); ++i) EXPECT_GT(sequences_[i], sequences_[i - 1]);
}

TEST_F(MasterLinkTest, StopSaysGoodByeOnce) {
  link_->Stop();
  link_->Stop();
  EXPECT_EQ(unregistered_.load(), 1);
  EXPECT_EQ(link_->health(), ClientHealth::DEGRADED);
  const auto after = link_->Announce({}, Deadline::After(std::chrono::seconds(60)));
  ASSERT_FALSE(after);
  EXPECT_EQ(after.error().code(), ErrorCode::RPC_FAIL);
}

}  // namespace
}  // namespace mooncake
