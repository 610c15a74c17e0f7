// Several masters, of which etcd chooses one: clients find it, and the next one when it is gone.
#include "client/test_cluster.h"
#include "coordination/test_server_process.h"
#include "protocol/methods.h"

namespace mooncake {
namespace {

using namespace protocol;
using std::chrono::seconds;

TEST(MasterAddressTest, IsAHostOrTheMembersOfAnEtcd) {
  EXPECT_EQ(MasterAddress::Parse("node")->fixed.ToString(), "node:50051");
  EXPECT_EQ(MasterAddress::Parse("[::1]:7")->fixed.port, 7);
  const auto several = MasterAddress::Parse("etcd://a;b:2");
  ASSERT_TRUE(several);
  EXPECT_EQ(several->etcd.size(), 2u);
  EXPECT_EQ(several->cluster_id, "mooncake_cluster");
  EXPECT_EQ(several->ToString(), "etcd://a:2379;b:2");
  EXPECT_EQ(several->facing().host, "a");
}

TEST(MasterAddressTest, OthersAreRefusedByName) {
  for (const char* text : {"redis://a:1", "http://a:1", "etcd://", "etcd://a:x", "a:0", "a:99999", ""}) {
    const auto address = MasterAddress::Parse(text);
    ASSERT_FALSE(address) << text;
    EXPECT_EQ(address.error().code(), ErrorCode::INVALID_PARAMS);
    EXPECT_THAT(address.error().message(), ::testing::HasSubstr(text));
  }
}

class ElectionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_SERVERS();
    etcd_ = EtcdProcess::OnFreePort();
    ASSERT_NE(etcd_, nullptr);
  }
  MasterAddress Address() const { return {.etcd = {etcd_->endpoint()}, .cluster_id = "c"}; }
  std::unique_ptr<MasterService> Master() const {
    MasterOptions options;
    options.election = {.etcd = {etcd_->endpoint()}, .cluster_id = "c", .advertised_host = "127.0.0.1"};
    return OpenMaster(0, options);
  }
  std::unique_ptr<RealClient> Client(std::vector<TierConfig> tiers) const {
    auto options = OptionsFor(1, std::move(tiers));
    options.master = Address();
    return OpenClient(std::move(options));
  }
  // True when what one has put can be read by the other.
  static bool PassesOn(RealClient& writer, RealClient& reader, const std::string& key) {
    const Bytes value = RandomBytes(100, std::hash<std::string>()(key));
    if (!Put(writer, key, value)) return false;
    const auto got = Get(reader, key);
    EXPECT_TRUE(!got || *got == value) << key;
    return got.has_value();
  }

  std::unique_ptr<EtcdProcess> etcd_;
};

TEST_F(ElectionTest, StandbyRefusesNamingTheLeaderAndTakesOver) {
  auto first = Master();
  ASSERT_TRUE(Eventually([&] { return first->leading(); }));
  const auto second = Master();
  const std::string leader = Endpoint{"127.0.0.1", first->port()}.ToString();
  ASSERT_TRUE(Eventually([&] { return second->LeaderEndpoint() == leader; }));
  EXPECT_FALSE(second->leading());
  rpc::IoPool io(1);
  const auto direct = rpc::RpcClient::Create(io, {.peer = {"127.0.0.1", second->port()}});
  const auto look = [&] { return direct->Call<LookupReply>(kLookup, LookupRequest{}, Deadline::After(seconds(60))); };
  EXPECT_EQ(CodeOf(look()), ErrorCode::UNAVAILABLE_IN_CURRENT_STATUS);
  EXPECT_THAT(look().error().message(), ::testing::HasSubstr(leader));
  first.reset();
  ASSERT_TRUE(Eventually([&] { return second->leading(); }));
  EXPECT_TRUE(look());
}

TEST_F(ElectionTest, ClientsFollowALeaderThatLeavesAndTellTheNextOneEverything) {
  auto first = Master();
  ASSERT_TRUE(Eventually([&] { return first->leading(); }));
  const auto second = Master();
  const auto writer = Client({DramTierOf(64 * kMiB)});
  const auto reader = Client({});
  ASSERT_TRUE(Eventually([&] { return PassesOn(*writer, *reader, "before"); }));
  first.reset();
  ASSERT_TRUE(Eventually([&] { return second->leading() && second->KeyCount() == 1; }));
  EXPECT_TRUE(Eventually([&] { return Get(*reader, "before").has_value(); }));
  EXPECT_TRUE(Eventually([&] { return PassesOn(*writer, *reader, "after"); }));
}

TEST_F(ElectionTest, ClientThatIsThereBeforeAnyMasterFindsItLater) {
  const auto writer = Client({DramTierOf(64 * kMiB)});
  const auto reader = Client({});
  EXPECT_EQ(writer->health(), ClientHealth::DEGRADED);
  EXPECT_TRUE(Put(*writer, "early", RandomBytes(20, 1)));
  const auto got = Get(*reader, "early");
  EXPECT_EQ(CodeOf(got), ErrorCode::RPC_FAIL);
  EXPECT_THAT(got.error().message(), ::testing::HasSubstr("none leads"));
  const auto master = Master();
  EXPECT_TRUE(Eventually([&] { return Get(*reader, "early").has_value(); }));
}

// A master that was elected again must not offer what it knew in its earlier term.
TEST_F(ElectionTest, NewTermStartsEmpty) {
  const auto master = Master();
  rpc::IoPool io(1);
  ASSERT_TRUE(Eventually([&] { return master->leading(); }));
  const auto direct = rpc::RpcClient::Create(io, {.peer = {"127.0.0.1", master->port()}});
  const Uuid client = Uuid::Random();
  const Deadline deadline = Deadline::After(seconds(60));
  ASSERT_TRUE(direct->Call<RegisterReply>(kRegister, RegisterRequest{client, 1, "127.0.0.1:1", {}}, deadline));
  const AnnounceRequest announce{client, 2, {{.key = KeyDigest::Of("k"), .present = true, .size = 1}}};
  ASSERT_TRUE(direct->Call<AnnounceReply>(kAnnounce, announce, deadline));
  ASSERT_EQ(master->KeyCount(), 1u);
  EtcdClient etcd({etcd_->endpoint()});
  ASSERT_TRUE(etcd.Remove(MasterViewKey("c"), deadline));
  ASSERT_TRUE(Eventually([&] { return master->KeyCount() == 0 && master->Clients().empty() && master->leading(); }));
  const auto beat = direct->Call<HeartbeatReply>(kHeartbeat, HeartbeatRequest{client, {}}, deadline);
  ASSERT_TRUE(beat) << beat.error().ToString();
  EXPECT_FALSE(beat->known);
}

// What a leader that has lost the lead still answers may be out of date.
TEST_F(ElectionTest, LateAnswerOfAnEarlierTermCountsAsNone) {
  rpc::IoPool io(1);
  std::mutex mutex;
  std::optional<rpc::ServerCall> held;
  const auto open = [&](bool holds) {
    auto server = *rpc::RpcServer::Listen(
        io, {.listen = {"127.0.0.1", 0}, .self = {.role = kRoleMaster, .node = Uuid::Random()}});
    server->Handle<RegisterRequest>(kRegister, [](rpc::ServerCall call, RegisterRequest) {
      std::move(call).Reply(rpc::Encode(RegisterReply{.client_ttl_ms = 600'000}));
    });
    server->Handle<LookupRequest>(kLookup, [&, holds](rpc::ServerCall call, LookupRequest) {
      std::lock_guard lock(mutex);
      if (holds) held.emplace(std::move(call));
    });
    server->Start();
    return server;
  };
  const auto first = open(true), second = open(false);
  EtcdClient etcd({etcd_->endpoint()});
  const Deadline deadline = Deadline::After(seconds(60));
  const auto name = [&](const rpc::RpcServer& server) {
    const std::string key = MasterViewKey("c");
    EXPECT_TRUE(etcd.Remove(key, deadline) && etcd.Put(key, Endpoint{"127.0.0.1", server.port()}.ToString(), deadline));
  };
  name(*first);
  std::atomic<int> registered{0};
  MasterLink link(
      {.master = Address(),
       .self = {.role = kRoleClient, .node = Uuid::Random()},
       .advertised = "127.0.0.1:1",
       .heartbeat_interval = std::chrono::hours(1)},
      {.tiers = [] { return std::vector<TierState>{}; }, .on_registered = [&] { ++registered; }, .on_lost = [] {}});
  ASSERT_TRUE(link.Start(seconds(60)));
  Result<LookupReply> answer;
  std::thread caller([&] { answer = link.Call<LookupReply>(kLookup, LookupRequest{}, Deadline::After(seconds(60))); });
  ASSERT_TRUE(Eventually([&] {
    std::lock_guard lock(mutex);
    return held.has_value();
  }));
  name(*second);
  link.ReportLost(Status(ErrorCode::RPC_FAIL, "test"));
  EXPECT_TRUE(Eventually([&] { return registered.load() == 2; }));
  {
    std::lock_guard lock(mutex);
    std::move(*held).Reply(rpc::Encode(LookupReply{}));
  }
  caller.join();
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), ErrorCode::RPC_FAIL);
  EXPECT_THAT(answer.error().message(), ::testing::HasSubstr("lost the lead"));
  link.Stop();
  first->Stop();
  second->Stop();
}

// The real program, killed: nothing gives its lease back.
TEST_F(ElectionTest, KilledLeaderIsReplacedAndWritesSucceedAgain) {
  const std::string program = std::string(std::getenv("MC_BUILD_DIR")) + "/bin/mooncake_master";
  const std::vector<std::string> command{program,
                                         "--rpc_address=127.0.0.1",
                                         "--port=0",
                                         "--metrics_port=0",
                                         "--enable_ha",
                                         "--cluster_id=c",
                                         "--etcd_endpoints=" + etcd_->endpoint().ToString()};
  const auto start = [&] { return std::make_unique<ServerProcess>(command, "mooncake_master ready"); };
  const auto first = start();
  ASSERT_TRUE(first->started()) << first->said();
  const auto writer = Client({DramTierOf(64 * kMiB)});
  const auto reader = Client({});
  ASSERT_TRUE(Eventually([&] { return PassesOn(*writer, *reader, "before"); }));
  const auto second = start();
  ASSERT_TRUE(second->started()) << second->said();
  first->Kill();
  const TimePoint killed = SteadyClock::Instance().Now();
  int attempts = 0;
  ASSERT_TRUE(Eventually([&] {
    return reader->health() != ClientHealth::DEGRADED &&
           PassesOn(*writer, *reader, "after" + std::to_string(attempts++));
  }));
  const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(SteadyClock::Instance().Now() - killed);
  std::printf("writes succeed again %lld ms after the leader was killed (lease 5 s)\n",
              static_cast<long long>(passed.count()));
  EXPECT_TRUE(Eventually([&] { return Get(*reader, "before").has_value(); }));
}

}  // namespace
}  // namespace mooncake
