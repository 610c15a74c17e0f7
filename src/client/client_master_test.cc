// Life with a master that is absent, late, restarted, of another version or slow.
#include "client/test_cluster.h"
#include "protocol/methods.h"

namespace mooncake {
namespace {

class MasterLifeTest : public ClusterTest {
 protected:
  // Destroys the master and returns its port, which then answers nobody.
  uint16_t StopMaster() {
    const uint16_t port = master_->port();
    master_.reset();
    return port;
  }
  uint64_t Heartbeats() {
    const std::string text = master_->MetricsText();
    const std::string name = "\nmaster_heartbeat_requests_total ";
    const size_t at = text.find(name);
    return at == std::string::npos ? 0 : std::stoull(text.substr(at + name.size()));
  }
  static bool BecomesFull(RealClient& client) {
    return Eventually([&] { return client.health() == ClientHealth::FULL; });
  }
};

TEST_F(MasterLifeTest, RestartedMasterLearnsAllKeysAgain) {
  const auto a = DramClient();
  const auto b = DramClient();
  for (int i = 0; i < 3000; ++i) ASSERT_TRUE(Put(i % 2 == 0 ? *a : *b, "k" + std::to_string(i), RandomBytes(20, 1)));
  const uint16_t port = StopMaster();
  ASSERT_TRUE(Eventually([&] { return a->health() == ClientHealth::DEGRADED; }));
  EXPECT_TRUE(Put(*a, "while away", RandomBytes(30, 2)));  // local service goes on
  EXPECT_TRUE(Get(*a, "while away"));
  EXPECT_FALSE(Exists(*a, "k1"));
  master_ = OpenMaster(port);
  // b may not have noticed yet that the master went away: then its next heartbeat does.
  ASSERT_TRUE(Eventually([&] { return master_->KeyCount() == 3001; }));
  ASSERT_TRUE(BecomesFull(*a) && BecomesFull(*b));
  EXPECT_TRUE(*Get(*b, "while away") == RandomBytes(30, 2));
  for (int i = 0; i < 3000; i += 100) EXPECT_TRUE(Get(i % 2 == 0 ? *b : *a, "k" + std::to_string(i)));
}

// The new master is there before the heartbeat notices: it does not know anybody.
TEST_F(MasterLifeTest, MasterThatForgotEverythingIsToldAgain) {
  const auto a = DramClient();
  const auto b = DramClient();
  ASSERT_TRUE(Put(*a, "k", RandomBytes(20, 1)));
  const uint16_t port = StopMaster();
  master_ = OpenMaster(port);
  EXPECT_TRUE(Eventually([&] { return Get(*b, "k").has_value(); }));
}

TEST_F(MasterLifeTest, ClientStartsWithoutAMasterAndJoinsWhenItAppears) {
  const uint16_t port = StopMaster();
  const auto a = OpenClient(OptionsFor(port, {DramTierOf(64 * kMiB)}));
  const auto b = OpenClient(OptionsFor(port, {DramTierOf(64 * kMiB)}));
  const auto guest = OpenClient(OptionsFor(port, {}));
  EXPECT_EQ(a->health(), ClientHealth::DEGRADED);
  ASSERT_TRUE(Put(*a, "k", RandomBytes(20, 1)));
  EXPECT_TRUE(*Get(*a, "k") == RandomBytes(20, 1));
  EXPECT_EQ(CodeOf(Get(*a, "other")), ErrorCode::RPC_FAIL);
  EXPECT_TRUE(a->Remove("k"));
  ASSERT_TRUE(Put(*a, "k", RandomBytes(20, 2)));
  EXPECT_EQ(CodeOf(Get(*b, "k")), ErrorCode::RPC_FAIL);
  EXPECT_EQ(CodeOf(Put(*guest, "g", RandomBytes(20, 1))), ErrorCode::RPC_FAIL);
  master_ = OpenMaster(port);
  ASSERT_TRUE(BecomesFull(*a) && BecomesFull(*b) && BecomesFull(*guest));
  EXPECT_TRUE(*Get(*b, "k") == RandomBytes(20, 2));
  EXPECT_TRUE(Put(*guest, "g", RandomBytes(20, 1)));
}

TEST_F(MasterLifeTest, RequiredMasterThatIsAwayFailsTheOpening) {
  const uint16_t port = StopMaster();
  auto options = OptionsFor(port, {DramTierOf(kMiB)});
  options.require_master = true;
  options.master_wait = std::chrono::milliseconds(300);
  const auto client = RealClient::Open(options);
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code(), ErrorCode::RPC_FAIL);
}

TEST_F(MasterLifeTest, MasterThatComesWithinTheWaitIsUsed) {
  const uint16_t port = StopMaster();
  auto options = OptionsFor(port, {DramTierOf(kMiB)});
  options.require_master = true;
  options.master_wait = std::chrono::seconds(60);
  std::thread later([&] { master_ = OpenMaster(port); });
  const auto client = OpenClient(options);
  later.join();
  ASSERT_NE(client, nullptr);
  EXPECT_TRUE(BecomesFull(*client));
}

TEST_F(MasterLifeTest, MasterOfAnotherVersionIsAnErrorAtOnce) {
  rpc::IoPool io(1);
  rpc::Identity self{.role = protocol::kRoleMaster, .node = Uuid::Random()};
  self.protocol_version = self.min_protocol_version = rpc::kProtocolVersion + 98;
  auto server = rpc::RpcServer::Listen(io, {.listen = {"127.0.0.1", 0}, .self = self});
  ASSERT_TRUE(server);
  (*server)->Start();
  auto options = OptionsFor((*server)->port(), {DramTierOf(kMiB)});
  options.master_wait = std::chrono::hours(1);
  const auto client = RealClient::Open(options);
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code(), ErrorCode::INVALID_VERSION);
  EXPECT_THAT(client.error().message(), ::testing::HasSubstr("99"));
}

TEST_F(MasterLifeTest, SomebodyElseAtTheMastersAddressIsAnErrorAtOnce) {
  const auto other = DramClient();
  const auto endpoint = Endpoint::Parse(other->hostname());
  auto options = OptionsFor(endpoint->port, {DramTierOf(kMiB)});
  options.master_wait = std::chrono::hours(1);
  EXPECT_EQ(CodeOf(RealClient::Open(options)), ErrorCode::ILLEGAL_CLIENT);
}

TEST_F(MasterLifeTest, HeartbeatsKeepPaceWithAShortTtl) {
  const uint16_t port = StopMaster();
  master_ =
      OpenMaster(port, {.client_ttl = std::chrono::milliseconds(30), .client_crashed_ttl = std::chrono::hours(1)});
  const auto a = DramClient();
  // At the default pace of one a second they would take longer than Eventually waits.
  EXPECT_TRUE(Eventually([&] { return a->ListClients().has_value() && Heartbeats() >= 80; }));
}

TEST_F(MasterLifeTest, ClosedClientIsForgottenAtOnce) {
  const auto a = DramClient();
  const auto b = DramClient();
  ASSERT_TRUE(Put(*a, "k", RandomBytes(20, 1)));
  a->Close();
  EXPECT_EQ(master_->Clients().size(), 1u);
  EXPECT_EQ(CodeOf(Get(*b, "k")), ErrorCode::OBJECT_NOT_FOUND);
  EXPECT_EQ(CodeOf(Put(*a, "k", RandomBytes(20, 1))), ErrorCode::SHUTTING_DOWN);
  EXPECT_EQ(CodeOf(Get(*a, "k")), ErrorCode::SHUTTING_DOWN);
  EXPECT_EQ(CodeOf(a->Remove("k")), ErrorCode::SHUTTING_DOWN);
  EXPECT_EQ(CodeOf(a->RemoveAll()), ErrorCode::SHUTTING_DOWN);
  EXPECT_EQ(CodeOf(a->GetSize("k")), ErrorCode::SHUTTING_DOWN);
  a->Close();
}

// A client whose call ran out of time because of its own short deadline must not take the master for lost: registering
// again would hide all its keys from everybody for a while.
TEST_F(MasterLifeTest, CallThatRunsOutOfTimeDoesNotCostTheRegistration) {
  auto options = OptionsFor(master_->port(), {DramTierOf(64 * kMiB)});
  options.call_timeout = Duration(0);
  const auto hasty = OpenClient(options);
  const auto before = master_->Clients().at(0).number;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(CodeOf(hasty->GetSize("nobody has it")), ErrorCode::RPC_FAIL);
  EXPECT_NE(hasty->health(), ClientHealth::DEGRADED);
  ASSERT_TRUE(Eventually([&] { return hasty->health() == ClientHealth::FULL; }));
  EXPECT_EQ(master_->Clients().at(0).number, before);
}

}  // namespace
}  // namespace mooncake
