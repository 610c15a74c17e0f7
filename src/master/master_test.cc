// The master over real connections.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error_code.h"
#include "master/master_service.h"
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

}  // namespace
}  // namespace mooncake
