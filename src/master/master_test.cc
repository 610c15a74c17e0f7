// The master over real connections.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error_code.h"
#include "master/master_service.h"
#include "protocol/key_records.h"
#include "protocol/methods.h"
#include "rpc/io_pool.h"
#include "rpc/rpc_client.h"

namespace mooncake {
namespace {

using namespace protocol;
using std::chrono::seconds;
using ::testing::HasSubstr;

class MasterServiceTest : public ::testing::Test {
 protected:
  void SetUp() override { Open({}); }
  void Open(MasterOptions options) {
    connection_.reset();
    master_.reset();
    options.listen = {"127.0.0.1", 0};
    options.sweep_interval = std::chrono::hours(1);  // sweeps are the test's
    auto master = MasterService::Open(options, clock_);
    ASSERT_TRUE(master) << master.error().ToString();
    master_ = std::move(*master);
    rpc::ClientOptions client;
    client.peer = {"127.0.0.1", master_->port()};
    client.self = {.role = "client", .node = Uuid::Random()};
    client.expected_role = kRoleMaster;
    connection_ = rpc::RpcClient::Create(io_, client);
  }
  template <typename Reply, typename Request>
  Result<Reply> Call(uint16_t method, const Request& request) {
    return connection_->Call<Reply>(method, request, Deadline::After(seconds(60)));
  }
  Uuid Register(const std::string& endpoint, uint64_t capacity = 1 << 20) {
    const RegisterRequest request{Uuid::Random(), 1, endpoint, {{.name = "DRAM", .capacity = capacity, .usage = 77}}};
    EXPECT_TRUE(Call<RegisterReply>(kRegister, request));
    return request.client_id;
  }
  Result<AnnounceReply> Announce(const Uuid& id, uint64_t sequence, const std::vector<std::string>& keys,
                                 bool present = true) {
    AnnounceRequest request{id, sequence, {}};
    for (const auto& key : keys) request.keys.push_back({KeyDigest::Of(key), present, 10, 0});
    return Call<AnnounceReply>(kAnnounce, request);
  }
  std::vector<Uuid> OwnersOf(const std::string& key) {
    const auto reply = Call<LookupReply>(kLookup, LookupRequest{{KeyDigest::Of(key)}});
    std::vector<Uuid> owners;
    if (!reply || reply->routes.size() != 1) {
      ADD_FAILURE() << "look-up failed";
      return owners;
    }
    for (const auto& route : reply->routes[0]) owners.push_back(reply->clients.at(route.client).id);
    return owners;
  }
  int32_t TargetOf(const std::string& key, uint64_t size, std::vector<Uuid> exclude = {}) {
    const auto reply = Call<WriteRouteReply>(kWriteRoute, WriteRouteRequest{{KeyDigest::Of(key)}, {size}, exclude});
    return reply && reply->targets.size() == 1 ? reply->targets[0] : -100;
  }

  ManualClock clock_;
  rpc::IoPool io_{1};
  std::unique_ptr<MasterService> master_;
  std::shared_ptr<rpc::RpcClient> connection_;
};

TEST_F(MasterServiceTest, AnnouncementOfAnUnknownClientIsRefused) {
  const auto reply = Announce(Uuid::Random(), 1, {"a"});
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code(), ErrorCode::CLIENT_NOT_FOUND);
  EXPECT_EQ(master_->KeyCount(), 0u);
  const auto heartbeat = Call<HeartbeatReply>(kHeartbeat, HeartbeatRequest{Uuid::Random(), {}});
  ASSERT_TRUE(heartbeat);
  EXPECT_FALSE(heartbeat->known);
}

TEST_F(MasterServiceTest, AnnouncedKeysAreFoundUntilWithdrawn) {
  const Uuid a = Register("10.0.0.1:1");
  ASSERT_TRUE(Announce(a, 2, {"x", "y"}));
  EXPECT_EQ(OwnersOf("x"), std::vector{a});
  EXPECT_TRUE(OwnersOf("z").empty());
  ASSERT_TRUE(Announce(a, 3, {"x"}, /*present=*/false));
  EXPECT_TRUE(OwnersOf("x").empty());
  EXPECT_EQ(OwnersOf("y"), std::vector{a});
}

TEST_F(MasterServiceTest, AnnouncementThatComesLateOrTwiceIsIgnored) {
  const Uuid a = Register("10.0.0.1:1");
  ASSERT_TRUE(Announce(a, 3, {"x"}, /*present=*/false));
  ASSERT_TRUE(Announce(a, 2, {"x"}));
  EXPECT_TRUE(OwnersOf("x").empty());
  ASSERT_TRUE(Announce(a, 4, {"x"}));
  ASSERT_TRUE(Announce(a, 4, {"x"}, false));
  EXPECT_EQ(OwnersOf("x"), std::vector{a});
}

TEST_F(MasterServiceTest, SecondOwnerIsRejectedByPosition) {
  const Uuid a = Register("10.0.0.1:1");
  const Uuid b = Register("10.0.0.1:2");
  ASSERT_TRUE(Announce(a, 2, {"x", "y"}));
  const auto reply = Announce(b, 2, {"free", "y", "other", "x"});
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->rejected, (std::vector<uint32_t>{1, 3}));
  EXPECT_EQ(OwnersOf("x"), std::vector{a});
  EXPECT_EQ(OwnersOf("other"), std::vector{b});
}

TEST_F(MasterServiceTest, OwnerLimitOfZeroMeansNoLimit) {
  Open({.max_client_per_key = 0});
  const Uuid a = Register("10.0.0.1:1");
  const Uuid b = Register("10.0.0.1:2");
  ASSERT_TRUE(Announce(a, 2, {"x"}));
  EXPECT_TRUE(Announce(b, 2, {"x"})->rejected.empty());
  EXPECT_EQ(OwnersOf("x"), (std::vector{a, b}));
  EXPECT_GE(TargetOf("x", 1), 0);
}

TEST_F(MasterServiceTest, KeysOfASuspectClientAreNotOffered) {
  const Uuid a = Register("10.0.0.1:1");
  ASSERT_TRUE(Announce(a, 2, {"x"}));
  EXPECT_EQ(TargetOf("x", 1), kTargetExists);
  clock_.Advance(seconds(10));
  EXPECT_TRUE(OwnersOf("x").empty());
  EXPECT_EQ(master_->KeyCount(), 1u);
  const Uuid b = Register("10.0.0.1:2");
  EXPECT_GE(TargetOf("x", 1), 0);  // the silent owner does not count
  EXPECT_TRUE(Announce(b, 2, {"x"})->rejected.empty());
  EXPECT_EQ(OwnersOf("x"), std::vector{b});
  ASSERT_TRUE(Call<HeartbeatReply>(kHeartbeat, HeartbeatRequest{a, {}})->known);
  EXPECT_EQ(OwnersOf("x"), (std::vector{a, b}));
}

TEST_F(MasterServiceTest, SweepForgetsExpiredClientsAndTheirKeys) {
  const Uuid a = Register("10.0.0.1:1");
  ASSERT_TRUE(Announce(a, 2, {"x", "y"}));
  clock_.Advance(seconds(29));
  master_->SweepOnce();
  EXPECT_EQ(master_->KeyCount(), 2u);
  clock_.Advance(seconds(1));
  master_->SweepOnce();
  EXPECT_EQ(master_->KeyCount(), 0u);
  EXPECT_TRUE(master_->Clients().empty());
  EXPECT_THAT(master_->MetricsText(), HasSubstr("master_clients_crashed_total 1"));
}

TEST_F(MasterServiceTest, RegisteringAgainForgetsWhatWasAnnouncedBefore) {
  const Uuid a = Register("10.0.0.1:1");
  ASSERT_TRUE(Announce(a, 2, {"x"}));
  ASSERT_TRUE(Call<RegisterReply>(kRegister, RegisterRequest{a, 3, "10.0.0.1:1", {}}));
  EXPECT_EQ(master_->KeyCount(), 0u);
  ASSERT_TRUE(Announce(a, 2, {"x"}));  // was on its way when the client registered again
  EXPECT_EQ(master_->KeyCount(), 0u);
  ASSERT_TRUE(Announce(a, 4, {"x"}));
  EXPECT_EQ(OwnersOf("x"), std::vector{a});
}

TEST_F(MasterServiceTest, RestartedClientTakesOverItsEndpointAtOnce) {
  const Uuid before = Register("10.0.0.1:1");
  ASSERT_TRUE(Announce(before, 2, {"x"}));
  const Uuid after = Register("10.0.0.1:1");
  EXPECT_TRUE(OwnersOf("x").empty());
  EXPECT_TRUE(Announce(after, 2, {"x"})->rejected.empty());
  EXPECT_EQ(OwnersOf("x"), std::vector{after});
}

TEST_F(MasterServiceTest, UnregisteredClientIsGoneAtOnce) {
  const Uuid a = Register("10.0.0.1:1");
  ASSERT_TRUE(Announce(a, 2, {"x"}));
  ASSERT_TRUE(Call<RegisterReply>(kUnregister, UnregisterRequest{a}));
  EXPECT_EQ(master_->KeyCount(), 0u);
  EXPECT_FALSE(Announce(a, 3, {"x"}));
  EXPECT_EQ(TargetOf("x", 1), kTargetNone);
}

TEST_F(MasterServiceTest, OwnerThatJustFailedTheCallerDoesNotCountAsHolder) {
  const Uuid a = Register("10.0.0.1:1");
  ASSERT_TRUE(Announce(a, 2, {"x"}));
  EXPECT_EQ(TargetOf("x", 1, {a}), kTargetNone);
  Register("10.0.0.1:2");
  EXPECT_GE(TargetOf("x", 1, {a}), 0);
}

TEST_F(MasterServiceTest, SenselessRequestsAreRefused) {
  const auto route = Call<WriteRouteReply>(kWriteRoute, WriteRouteRequest{{KeyDigest::Of("x")}, {}, {}});
  ASSERT_FALSE(route);
  EXPECT_EQ(route.error().code(), ErrorCode::INVALID_PARAMS);
  const auto nobody = Call<RegisterReply>(kRegister, RegisterRequest{});
  ASSERT_FALSE(nobody);
  EXPECT_EQ(nobody.error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_FALSE(MasterService::Open({.client_ttl = seconds(10), .client_crashed_ttl = seconds(9)}));
}

TEST_F(MasterServiceTest, TakenPortIsAnErrorThatNamesIt) {
  const auto second = MasterService::Open({.listen = {"127.0.0.1", master_->port()}});
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message(), HasSubstr(std::to_string(master_->port())));
}

TEST_F(MasterServiceTest, MetricsCountWhatHappened) {
  const Uuid a = Register("10.0.0.1:1", 1000);
  Register("10.0.0.1:2", 500);
  ASSERT_TRUE(Announce(a, 2, {"x", "y", "z"}));
  EXPECT_FALSE(Announce(Uuid::Random(), 1, {"x"}));
  const std::string text = master_->MetricsText();
  for (const char* line :
       {"master_key_count 3", "master_active_clients 2", "master_total_capacity_bytes 1500",
        "master_allocated_bytes 154", "master_add_replica_requests_total 2", "master_add_replica_failures_total 1",
        "master_register_client_requests_total 2", "segment_total_capacity_bytes{segment=\"DRAM@10.0.0.1:1\"} 1000"})
    EXPECT_THAT(text, HasSubstr(line));
  clock_.Advance(seconds(11));
  EXPECT_THAT(master_->MetricsText(), HasSubstr("master_active_clients 0"));
}

TEST_F(MasterServiceTest, ListNamesSuspectsOnlyWhenAsked) {
  Register("10.0.0.1:1");
  clock_.Advance(seconds(11));
  const Uuid b = Register("10.0.0.1:2");
  const auto healthy = Call<ListClientsReply>(kListClients, ListClientsRequest{});
  ASSERT_TRUE(healthy);
  ASSERT_EQ(healthy->clients.size(), 1u);
  EXPECT_EQ(healthy->clients[0].id, b);
  const auto all = Call<ListClientsReply>(kListClients, ListClientsRequest{.include_suspect = true});
  ASSERT_TRUE(all);
  ASSERT_EQ(all->clients.size(), 2u);
  EXPECT_TRUE(all->clients[0].suspect);
}

class ResyncTest : public MasterServiceTest {
 protected:
  template <typename T>
  static ErrorCode CodeOf(const Result<T>& result) {
    return result ? ErrorCode::OK : result.error().code();
  }
  Result<RegisterReply> RegisterAgain(const Uuid& id, uint64_t sequence) {
    return Call<RegisterReply>(kRegister, RegisterRequest{.client_id = id,
                                                          .sequence = sequence,
                                                          .endpoint = "10.0.0.1:1",
                                                          .tiers = {{.name = "DRAM", .capacity = 1 << 20}},
                                                          .resync = true});
  }
  Result<AnnounceReply> AnnouncePacked(const Uuid& id, uint64_t sequence, const std::vector<std::string>& keys,
                                       ContentStamp stamp = {}, bool done = false) {
    std::vector<KeyState> states;
    for (const auto& key : keys) {
      states.push_back({.key = KeyDigest::Of(key), .present = true, .size = 10, .stamp = stamp});
    }
    return Call<AnnounceReply>(
        kAnnounce,
        AnnounceRequest{.client_id = id, .sequence = sequence, .resync_done = done, .packed = PackKeyStates(states)});
  }
};

TEST_F(ResyncTest, KeysStayOfferedWhileTheyAreAnnouncedAgainAndWhatWasNotGoes) {
  const Uuid id = Uuid::Random();
  ASSERT_TRUE(RegisterAgain(id, 1));
  ASSERT_TRUE(AnnouncePacked(id, 2, {"kept", "lost"}));
  ASSERT_TRUE(RegisterAgain(id, 3));
  EXPECT_EQ(OwnersOf("kept"), std::vector{id});
  EXPECT_EQ(OwnersOf("lost"), std::vector{id});
  ASSERT_TRUE(AnnouncePacked(id, 4, {"kept"}));
  EXPECT_EQ(OwnersOf("lost"), std::vector{id});
  ASSERT_TRUE(AnnouncePacked(id, 5, {}, {}, /*done=*/true));
  EXPECT_EQ(OwnersOf("kept"), std::vector{id});
  EXPECT_TRUE(OwnersOf("lost").empty());
  EXPECT_EQ(master_->KeyCount(), 1u);
}

// Announcements and the message that ends them may come from two threads.
TEST_F(ResyncTest, EndThatOvertakesAnAnnouncementDoesNotMakeItStale) {
  const Uuid id = Uuid::Random();
  ASSERT_TRUE(RegisterAgain(id, 1));
  ASSERT_TRUE(AnnouncePacked(id, 3, {}, {}, /*done=*/true));
  ASSERT_TRUE(AnnouncePacked(id, 2, {"k"}));
  EXPECT_EQ(OwnersOf("k"), std::vector{id});
  ASSERT_TRUE(RegisterAgain(id, 4));
  EXPECT_EQ(CodeOf(AnnouncePacked(id, 3, {}, {}, /*done=*/true)), ErrorCode::CLIENT_NOT_FOUND);  // of the one before
  EXPECT_EQ(OwnersOf("k"), std::vector{id});
}

TEST_F(ResyncTest, PackedPositionsGoOnAfterTheOthers) {
  const Uuid first = Register("10.0.0.2:1");
  ASSERT_TRUE(Announce(first, 2, {"a", "c"}));
  const Uuid second = Register("10.0.0.3:1");
  const AnnounceRequest request{.client_id = second,
                                .sequence = 2,
                                .keys = {{.key = KeyDigest::Of("a"), .present = true}},
                                .packed = PackKeyStates({{.key = KeyDigest::Of("b"), .present = true},
                                                         {.key = KeyDigest::Of("c"), .present = true}})};
  const auto reply = Call<AnnounceReply>(kAnnounce, request);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->rejected, (std::vector<uint32_t>{0, 2}));
  EXPECT_FALSE(Call<AnnounceReply>(kAnnounce, AnnounceRequest{.client_id = second, .sequence = 3, .packed = "short"}));
}

TEST_F(ResyncTest, SupersededOwnersAreNamedWithTheirAddresses) {
  const Uuid first = Register("10.0.0.2:1"), second = Register("10.0.0.3:1");
  ASSERT_TRUE(AnnouncePacked(first, 2, {"x", "k"}, {.hlc = 5, .writer = 1}));
  const auto reply = AnnouncePacked(second, 2, {"other", "k"}, {.hlc = 6, .writer = 2, .upserted = true});
  ASSERT_TRUE(reply);
  ASSERT_EQ(reply->superseded.size(), 1u);
  EXPECT_EQ(reply->superseded[0].position, 1u);
  EXPECT_EQ(reply->superseded[0].clients.at(0).endpoint, "10.0.0.2:1");
  EXPECT_EQ(OwnersOf("k"), std::vector{second});
  EXPECT_GT(reply->hlc, 6u);
}

TEST_F(ResyncTest, ReportedPeerIsNotOfferedUntilItIsHeardFrom) {
  const Uuid owner = Register("10.0.0.2:1");
  ASSERT_TRUE(Announce(owner, 2, {"k"}));
  const auto report = [&](uint64_t sequence) {
    EXPECT_TRUE(Call<RegisterReply>(kReportPeer, ReportPeerRequest{Uuid{1, 1}, owner, sequence}));
  };
  report(1);
  EXPECT_TRUE(OwnersOf("k").empty());
  EXPECT_EQ(TargetOf("new", 1), kTargetNone);
  ASSERT_TRUE(Call<HeartbeatReply>(kHeartbeat, HeartbeatRequest{owner, {{.name = "DRAM", .capacity = 1 << 20}}}));
  EXPECT_EQ(OwnersOf("k"), std::vector{owner});
  report(1);  // comes twice, or late
  EXPECT_EQ(OwnersOf("k"), std::vector{owner});
}

TEST_F(ResyncTest, WhatWasRemovedWhileItsOwnerWasSilentDoesNotComeBackWithIt) {
  const Uuid id = Uuid::Random();
  ASSERT_TRUE(RegisterAgain(id, 1));
  ASSERT_TRUE(AnnouncePacked(id, 2, {"one", "two"}, {.hlc = 50, .writer = 1}));
  clock_.Advance(seconds(11));
  const auto removed = Call<RemoveKeysReply>(kRemoveKeys, RemoveKeysRequest{{KeyDigest::Of("one")}, 60});
  ASSERT_TRUE(removed);
  ASSERT_EQ(removed->routes.at(0).size(), 1u);
  EXPECT_EQ(removed->clients.at(0).id, id);
  const auto beat = Call<HeartbeatReply>(kHeartbeat, HeartbeatRequest{id, {}});
  ASSERT_TRUE(beat);
  EXPECT_FALSE(beat->known);  // it has to say what it has
  ASSERT_TRUE(RegisterAgain(id, 3));
  const auto reply = AnnouncePacked(id, 4, {"one", "two"}, {.hlc = 50, .writer = 1}, true);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->rejected, std::vector<uint32_t>{0});
  EXPECT_EQ(master_->KeyCount(), 1u);
}

TEST_F(ResyncTest, RemovalOfAllReachesThoseWhoWereSilentOrHadExpired) {
  const Uuid id = Uuid::Random();
  ASSERT_TRUE(RegisterAgain(id, 1));
  ASSERT_TRUE(AnnouncePacked(id, 2, {"old"}, {.hlc = 50, .writer = 1}));
  for (const int silence : {11, 60}) {
    clock_.Advance(seconds(silence));
    master_->SweepOnce();
    ASSERT_TRUE(Call<ListClientsReply>(kRemoveFloor, RemoveFloorRequest{60}));
    EXPECT_EQ(master_->KeyCount(), 0u);
    ASSERT_TRUE(RegisterAgain(id, static_cast<uint64_t>(silence) * 10));
    const auto old =
        AnnouncePacked(id, static_cast<uint64_t>(silence) * 10 + 1, {"old"}, {.hlc = 50, .writer = 1}, true);
    ASSERT_TRUE(old);
    EXPECT_EQ(old->rejected.size(), 1u) << silence;
  }
  // From then on its clock may lag behind as it likes.
  const auto fresh = AnnouncePacked(id, 1000, {"new"}, {.hlc = 55, .writer = 1});
  ASSERT_TRUE(fresh);
  EXPECT_TRUE(fresh->rejected.empty());
}

TEST_F(ResyncTest, HeartbeatsTellWhatOthersHaveFree) {
  const Uuid a = Register("10.0.0.2:1", 1000), b = Register("10.0.0.3:1", 1000);
  const auto beat = [&](const Uuid& id, uint64_t usage, bool draining = false) {
    return *Call<HeartbeatReply>(
        kHeartbeat, HeartbeatRequest{id, {{.name = "DRAM", .capacity = 1000, .usage = usage}}, draining, {}});
  };
  beat(b, 250);
  auto reply = beat(a, 900);
  EXPECT_DOUBLE_EQ(reply.best_peer_free, 0.75);
  EXPECT_EQ(reply.healthy_clients, 2u);
  beat(b, 250, /*draining=*/true);
  reply = beat(a, 900);
  EXPECT_DOUBLE_EQ(reply.best_peer_free, 0.0);
  EXPECT_EQ(TargetOf("k", 1, {a}), kTargetNone);
}

}  // namespace
}  // namespace mooncake
