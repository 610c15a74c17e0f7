// Peers that die, hang, lie or leave in the middle, and the end of a client with calls under way.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <latch>

#include "client/test_cluster.h"
#include "protocol/methods.h"
#include "protocol/peer_messages.h"

namespace mooncake {
namespace {

using namespace protocol;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A server that joins the cluster as an owner and answers peers as the test says.
class BadOwner {
 public:
  explicit BadOwner(uint16_t master_port, uint64_t capacity = 64 * kMiB) {
    auto listening = rpc::RpcServer::Listen(io_, {.listen = {"127.0.0.1", 0}, .self = self_});
    EXPECT_TRUE(listening);
    server = std::move(*listening);
    rpc::ClientOptions options;
    options.peer = {"127.0.0.1", master_port};
    options.self = self_;
    master_ = rpc::RpcClient::Create(io_, options);
    const RegisterRequest request{
        self_.node, 1, Endpoint{"127.0.0.1", server->port()}.ToString(), {{.name = "DRAM", .capacity = capacity}}};
    EXPECT_TRUE(master_->Call<RegisterReply>(kRegister, request, Deadline::After(seconds(60))));
  }
  ~BadOwner() {
    server->Stop();
    held_.clear();
  }
  void Claim(const std::vector<std::string>& keys, uint64_t size) {
    AnnounceRequest request{self_.node, ++sequence_, {}};
    for (const auto& key : keys) request.keys.push_back({KeyDigest::Of(key), true, size, 0});
    const auto reply = master_->Call<AnnounceReply>(kAnnounce, request, Deadline::After(seconds(60)));
    ASSERT_TRUE(reply && reply->rejected.empty());
  }
  // Calls of this method are never answered.
  void Hang(uint16_t method) {
    server->Handle(method, [this](rpc::ServerCall call) {
      std::lock_guard lock(mutex_);
      held_.push_back(std::move(call));
    });
  }
  template <typename Reply>
  void Answer(uint16_t method, Reply reply, std::string payload = {}) {
    const auto bytes = std::make_shared<std::string>(std::move(payload));
    server->Handle(method, [reply, bytes](rpc::ServerCall call) {
      const auto span = std::as_bytes(std::span(*bytes));
      std::move(call).Reply(rpc::Encode(reply), span.empty() ? std::vector<rpc::ConstSpan>{} : std::vector{span},
                            bytes);
    });
  }

  std::unique_ptr<rpc::RpcServer> server;

 private:
  rpc::IoPool io_{1};
  const rpc::Identity self_{.role = kRoleClient, .node = Uuid::Random()};
  std::shared_ptr<rpc::RpcClient> master_;
  uint64_t sequence_ = 1;
  std::mutex mutex_;
  std::vector<rpc::ServerCall> held_;
};

class FailureTest : public ClusterTest {
 protected:
  // Its time stands still: no slow machine makes it give up a peer before the test is done with it.
  FailureTest() { master_ = OpenMaster(0, {}, clock_); }
  std::unique_ptr<RealClient> HastyClient(std::vector<TierConfig> tiers, Duration call_timeout = milliseconds(500)) {
    auto options = OptionsFor(master_->port(), std::move(tiers));
    options.call_timeout = call_timeout;
    return OpenClient(std::move(options));
  }
  // A bare connection to a client's peer port.
  std::shared_ptr<rpc::RpcClient> PeerOf(const RealClient& client) {
    rpc::ClientOptions options;
    options.peer = *Endpoint::Parse(client.hostname());
    options.self = {.role = kRoleClient, .node = Uuid::Random()};
    return rpc::RpcClient::Create(io_, options);
  }
  static Deadline Soon() { return Deadline::After(seconds(60)); }
  static bool UsageIsZero(RealClient& client) {
    return Eventually([&] { return client.GetTierViews()[0].usage == 0; });
  }

  rpc::IoPool io_{2};
};

// --- hung owners ---

TEST_F(FailureTest, HungOwnerCostsItsOwnKeysOneDeadlineAndNoOthers) {
  // Several of each, as the order in which owners are asked is not ours to say.
  BadOwner hung_one(master_->port()), hung_two(master_->port());
  for (BadOwner* owner : {&hung_one, &hung_two}) {
    for (const uint16_t method : {kPeerGet, kPeerOpenRead}) owner->Hang(method);
    owner->server->Start();
  }
  const auto a = DramClient();
  const auto b = Client({NpuTierOf(64 * kMiB)});
  std::vector<std::string> keys;
  // Mostly small: all that can be read has to be read within the deadline also where copies are slow.
  const auto size_of = [](int i) { return i / 4 % 5 == 1 ? 5 * kMiB : size_t{100}; };
  for (int i = 0; i < 40; ++i) keys.push_back("k" + std::to_string(i));
  for (int i = 0; i < 40; ++i) {
    const size_t size = size_of(i);
    if (i % 4 < 2) {
      (i % 4 == 0 ? hung_one : hung_two).Claim({keys[i]}, size);
    } else {
      ASSERT_TRUE(Put(i % 4 == 2 ? *a : *b, keys[i], RandomBytes(size, static_cast<uint64_t>(i))));
    }
  }
  const auto guest = HastyClient({}, seconds(5));
  for (const bool to_npu : {false, true}) {
    SCOPED_TRACE(to_npu);
    std::deque<NpuBlock> blocks;
    std::vector<Bytes> targets;
    std::vector<GetItem> items;
    for (int i = 0; i < 40; ++i) targets.emplace_back(to_npu ? 0 : 5 * kMiB);
    for (int i = 0; i < 40; ++i) {
      if (to_npu) blocks.emplace_back(size_of(i));
      items.push_back({keys[i], to_npu ? blocks.back().range() : HostRange(targets[i])});
    }
    const auto results = guest->BatchGetInto(items);
    for (int i = 0; i < 40; ++i) {
      SCOPED_TRACE(keys[i]);
      if (i % 4 < 2) {
        EXPECT_EQ(CodeOf(results[i]), ErrorCode::RPC_FAIL);
        continue;
      }
      ASSERT_TRUE(results[i]) << results[i].error().ToString();
      const Bytes expected = RandomBytes(size_of(i), static_cast<uint64_t>(i));
      const Bytes got = to_npu ? blocks[i].Read() : Bytes(targets[i].begin(), targets[i].begin() + expected.size());
      EXPECT_TRUE(got == expected);
    }
  }
}

TEST_F(FailureTest, HungOwnerOfAPutCostsNoOtherOwnersValues) {
  BadOwner hung(master_->port());
  for (const uint16_t method : {kPeerPut, kPeerOpenWrite}) hung.Hang(method);
  hung.server->Start();
  const auto a = DramClient();
  const auto guest = HastyClient({}, seconds(3));
  for (const size_t size : {100 * kKiB, 5 * kMiB}) {
    const Bytes value = RandomBytes(size, 1);
    std::vector<std::string> keys;
    std::vector<PutItem> items;
    for (int i = 0; i < 6; ++i) keys.push_back(fmt::format("{}/{}", size, i));
    for (const auto& key : keys) items.push_back({key, HostRange(const_cast<Bytes&>(value))});
    const auto results = guest->BatchPut(items);
    size_t stored = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (results[i]) {
        ++stored;
        EXPECT_TRUE(*Get(*a, keys[i]) == value);
      }
    }
    EXPECT_EQ(stored, 3u);  // equally empty owners take turns
  }
}

TEST_F(FailureTest, DeadOwnerOfAPutIsReplacedByAnother) {
  auto gone = std::make_unique<BadOwner>(master_->port(), 1024 * kMiB);  // the emptiest, so the first choice
  gone->server->Start();
  gone.reset();
  const auto a = DramClient();
  const auto guest = Client({});
  for (const size_t size : {size_t{1000}, 5 * kMiB}) {
    const std::string key = std::to_string(size);
    const auto put = Put(*guest, key, RandomBytes(size, 1));
    ASSERT_TRUE(put) << put.error().ToString();
    EXPECT_TRUE(*Get(*a, key) == RandomBytes(size, 1));
  }
}

TEST_F(FailureTest, HungOwnerDoesNotKeepOthersFromRemovingEverything) {
  BadOwner hung(master_->port());
  for (const uint16_t method : {kPeerRemove, kPeerRemoveAll}) hung.Hang(method);
  hung.server->Start();
  hung.Claim({"hung"}, 10);
  const auto a = DramClient();
  const auto b = DramClient();
  const auto guest = HastyClient({});
  ASSERT_TRUE(Put(*a, "k", RandomBytes(10, 1)));
  ASSERT_TRUE(Put(*b, "l", RandomBytes(10, 1)));
  EXPECT_EQ(CodeOf(guest->RemoveAll()), ErrorCode::RPC_FAIL);
  EXPECT_EQ(a->KeyCount() + b->KeyCount(), 0u);
  EXPECT_EQ(CodeOf(guest->Remove("hung")), ErrorCode::RPC_FAIL);
}

// --- lying owners ---

TEST_F(FailureTest, LyingRepliesAreErrorsThatTouchNothingOutsideTheTarget) {
  BadOwner liar(master_->port());
  liar.Claim({"a", "b", "large", "huge"}, 10);
  const auto object = [](uint64_t size, bool sent, int32_t code = 0) {
    return ObjectState{.code = code, .size = size, .version = 1, .type = 77, .sent = sent};
  };
  std::atomic<int> lie{0};
  liar.server->Handle(kPeerGet, [&](rpc::ServerCall call) {
    static const std::string bytes(1000, '\xee');
    const auto reply = [&](std::vector<ObjectState> objects, size_t payload) {
      const auto span = std::as_bytes(std::span(bytes)).first(payload);
      std::move(call).Reply(rpc::Encode(GetReply{std::move(objects)}),
                            payload > 0 ? std::vector<rpc::ConstSpan>{span} : std::vector<rpc::ConstSpan>{});
    };
    switch (lie.load()) {
      case 0:
        return reply({object(10, true)}, 10);  // too few
      case 1:
        return reply({object(10, true), object(10, true), object(10, true)}, 30);  // too many
      case 2:
        return reply({object(21, true), object(UINT64_MAX, true)}, 20);  // sizes wrap around
      case 3:
        return reply({object(10, true), object(10, true)}, 19);  // less than promised
      case 4:
        return reply({object(10, true), object(10, true)}, 21);  // more than promised
      case 5:
        return reply({object(10, true), object(10, true)}, 0);  // nothing at all
      case 6:
        return reply({object(500, true), object(500, true)}, 1000);  // larger than the targets
      case 7:
        return std::move(call).Reply("no message");
      case 8:
        return reply({object(10, false, 1), object(10, true, -1)}, 0);  // unknown codes
      default:
        return reply({object(10, false), object(UINT64_MAX, false)}, 0);  // windows, see below
    }
  });
  std::atomic<uint64_t> window_size{10};
  liar.server->Handle(kPeerOpenRead, [&](rpc::ServerCall call) {
    std::move(call).Reply(rpc::Encode(OpenReply{.window = 1, .size = window_size.load()}));
  });
  liar.Answer(kWindowRead, Empty{}, std::string(9, '\xee'));
  liar.Answer(kPeerCloseWindow, Empty{});
  liar.server->Start();
  const auto reader = DramClient();
  for (; lie.load() < 10; ++lie) {
    for (const uint64_t size : {uint64_t{10}, uint64_t{1} << 31}) {
      window_size.store(size);
      SCOPED_TRACE(fmt::format("lie {} window {}", lie.load(), size));
      Bytes memory(60, std::byte{0x5a});
      const GetItem items[] = {{"a", HostRange(memory).subspan(10, 10)}, {"b", HostRange(memory).subspan(30, 10)}};
      for (const auto& result : reader->BatchGetInto(items)) {
        ASSERT_FALSE(result);
        EXPECT_NE(result.error().code(), ErrorCode::OK);
      }
      for (size_t i = 0; i < 60; ++i) {
        const bool inside = (i >= 10 && i < 20) || (i >= 30 && i < 40);
        EXPECT_TRUE(inside || memory[i] == std::byte{0x5a}) << i;
      }
      const std::string keys[] = {"a", "b"};
      // Case 6 is the truth when there is room for it.
      for (const auto& result : reader->BatchGet(keys)) EXPECT_EQ(result.has_value(), lie.load() == 6);
    }
  }
  ASSERT_TRUE(Put(*reader, "mine", RandomBytes(10, 1)));
  EXPECT_TRUE(Get(*reader, "mine"));
}

TEST_F(FailureTest, LyingAnswersToWritesAreErrors) {
  BadOwner liar(master_->port());
  std::atomic<int> lie{0};
  liar.server->Handle(kPeerPut, [&](rpc::ServerCall call) {
    if (lie.load() == 0) return std::move(call).Reply(rpc::Encode(CodesReply{}));
    if (lie.load() == 1) return std::move(call).Reply(rpc::Encode(CodesReply{.codes = {0, 0, 0}}));
    std::move(call).Reply("no message");
  });
  liar.Answer(kPeerOpenWrite, OpenReply{.window = 7, .size = 1});
  liar.Answer(kPeerCloseWindow, Empty{});
  liar.server->Start();
  const auto guest = Client({});
  for (; lie.load() < 3; ++lie) EXPECT_FALSE(Put(*guest, "k", RandomBytes(10, 1)));
  EXPECT_FALSE(Put(*guest, "large", RandomBytes(5 * kMiB, 1)));
}

// --- hostile requests ---

TEST_F(FailureTest, HostileRequestsAreRefusedAndLeaveNothingBehind) {
  const auto owner = DramClient(8 * kMiB);
  const auto peer = PeerOf(*owner);
  const auto open_write = [&](const std::string& key, uint64_t size) {
    return peer->Call<OpenReply>(kPeerOpenWrite, OpenWriteRequest{key, size}, Soon());
  };
  EXPECT_EQ(CodeOf(open_write("k", UINT64_MAX)), ErrorCode::NO_AVAILABLE_HANDLE);
  EXPECT_EQ(CodeOf(open_write("k", 9 * kMiB)), ErrorCode::NO_AVAILABLE_HANDLE);
  const auto put = [&](const PutRequest& request, size_t payload) {
    const Bytes bytes(payload);
    rpc::CallArguments arguments;
    if (payload > 0) arguments.payload = {bytes};
    return CodeOf(peer->Call<CodesReply>(kPeerPut, request, Soon(), std::move(arguments)));
  };
  EXPECT_EQ(put({{"a", "b"}, {5}}, 5), ErrorCode::INVALID_PARAMS);
  EXPECT_EQ(put({{"a", "b"}, {UINT64_MAX, 6}}, 5), ErrorCode::INVALID_PARAMS);
  EXPECT_EQ(put({{"a"}, {6}}, 5), ErrorCode::INVALID_PARAMS);
  EXPECT_EQ(put({{"a"}, {5 * kMiB}}, 5 * kMiB), ErrorCode::INVALID_PARAMS);
  EXPECT_EQ(CodeOf(peer->Call<Empty>(kPeerCommitWrite, WindowRequest{99}, Soon())), ErrorCode::INVALID_WRITE);
  const auto window = open_write("k", 1000);
  ASSERT_TRUE(window);
  const auto stranger = PeerOf(*owner);
  EXPECT_EQ(CodeOf(stranger->Call<Empty>(kPeerCommitWrite, WindowRequest{window->window}, Soon())),
            ErrorCode::INVALID_WRITE);
  EXPECT_TRUE(stranger->Call<Empty>(kPeerCloseWindow, WindowRequest{window->window}, Soon()));
  EXPECT_TRUE(peer->Call<Empty>(kPeerCommitWrite, WindowRequest{window->window}, Soon()));
  EXPECT_FALSE(peer->Call<Empty>(kPeerCommitWrite, WindowRequest{window->window}, Soon()));
  EXPECT_EQ(owner->KeyCount(), 1u);
  ASSERT_TRUE(owner->Remove("k"));
  EXPECT_TRUE(UsageIsZero(*owner));
}

TEST_F(FailureTest, SessionThatEndsGivesItsHalfWrittenBlocksBack) {
  const auto owner = DramClient();
  for (int round = 0; round < 20; ++round) {
    const auto peer = PeerOf(*owner);
    for (int i = 0; i < 4; ++i) {
      // Not waited for: some are opened while the session is ending.
      peer->CallAsync(kPeerOpenWrite, rpc::Encode(OpenWriteRequest{fmt::format("{}/{}", round, i), kMiB}), {}, Soon(),
                      [](Result<std::string>) {});
    }
    if (round % 2 == 0) {
      ASSERT_TRUE(peer->Call<OpenReply>(kPeerOpenWrite, OpenWriteRequest{"w", kMiB}, Soon()));
    }
    peer->Close();
  }
  EXPECT_TRUE(UsageIsZero(*owner));
  EXPECT_EQ(owner->KeyCount(), 0u);
}

TEST_F(FailureTest, SessionThatEndsDuringAPutLeavesWholeValuesOrNone) {
  const auto owner = DramClient();
  for (int i = 0; i < 30; ++i) {
    const auto peer = PeerOf(*owner);
    ASSERT_TRUE(peer->Connect(Soon()));
    const auto bytes = std::make_shared<Bytes>(RandomBytes(2 * kMiB, 1));
    rpc::CallArguments arguments;
    arguments.payload = {*bytes};
    peer->CallAsync(kPeerPut, rpc::Encode(PutRequest{{"k"}, {2 * kMiB}}), std::move(arguments), Soon(),
                    [bytes](Result<std::string>) {});
    peer->Close();
    if (const auto got = Get(*owner, "k")) {
      EXPECT_TRUE(*got == *bytes);
      ASSERT_TRUE(owner->Remove("k"));
    }
  }
  (void)owner->RemoveAll();
  EXPECT_TRUE(Eventually([&] { return owner->RemoveAll().has_value() && owner->GetTierViews()[0].usage == 0; }));
}

// A peer that commits without waiting for the answers to its writes.
TEST_F(FailureTest, CommitWhileAWriteIsUnderWayNeverShowsOtherBytes) {
  const auto owner = Client({NpuTierOf(64 * kMiB)});
  const Bytes value = RandomBytes(4 * kMiB, 1);
  const auto peer = PeerOf(*owner);
  for (int i = 0; i < 20; ++i) {
    const std::string key = "k" + std::to_string(i);
    const auto window = peer->Call<OpenReply>(kPeerOpenWrite, OpenWriteRequest{key, value.size()}, Soon());
    ASSERT_TRUE(window);
    std::latch written(1);
    rpc::CallArguments arguments;
    arguments.payload = {value};
    peer->CallAsync(kWindowWrite, rpc::Encode(WindowRangeRequest{window->window, 0, value.size()}),
                    std::move(arguments), Soon(), [&](Result<std::string>) { written.count_down(); });
    const auto committed = peer->Call<Empty>(kPeerCommitWrite, WindowRequest{window->window}, Soon());
    const auto got = Get(*owner, key);
    EXPECT_EQ(got.has_value(), committed.has_value());
    EXPECT_TRUE(!got || *got == value);
    if (!committed) {
      EXPECT_EQ(committed.error().code(), ErrorCode::INVALID_WRITE);
    }
    written.wait();
  }
  (void)owner->RemoveAll();
  EXPECT_TRUE(UsageIsZero(*owner));
}

// --- the end of a client ---

TEST_F(FailureTest, CloseReleasesEveryCallUnderWay) {
  BadOwner hung(master_->port());
  for (const uint16_t method : {kPeerGet, kPeerPut, kPeerOpenRead}) hung.Hang(method);
  hung.server->Start();
  hung.Claim({"hung"}, 10);
  const auto other = DramClient();
  ASSERT_TRUE(Put(*other, "k", RandomBytes(5 * kMiB, 1)));
  for (int round = 0; round < 3; ++round) {
    auto client = DramClient();
    std::atomic<bool> done{false};
    std::latch going(8);
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        Bytes value = RandomBytes(10 * kKiB, 1);
        going.count_down();
        for (int i = 0; !done.load(); ++i) {
          const std::string key = fmt::format("{}/{}/{}", round, t, i);
          if (t < 3) (void)Put(*client, key, value);
          if (t == 3 || t == 4) (void)Get(*client, "k");
          if (t == 5) (void)Get(*client, "hung");
          if (t == 6) (void)client->Remove("k2");
          if (t == 7) (void)client->BatchExist(std::span(&key, 1));
        }
      });
    }
    going.wait();
    client->Close();
    done.store(true);
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(CodeOf(Put(*client, "x", RandomBytes(1, 1))), ErrorCode::SHUTTING_DOWN);
  }
}

TEST_F(FailureTest, ClientGoesWhileItsPeersWorkWaitsInTheQueues) {
  const auto other = DramClient();
  for (int round = 0; round < 5; ++round) {
    auto options = OptionsFor(master_->port(), {round % 2 == 0 ? DramTierOf(64 * kMiB) : NpuTierOf(64 * kMiB)});
    options.worker_threads = 1;
    options.staging_slots = 1;
    auto owner = OpenClient(options);
    const auto peer = PeerOf(*owner);
    ASSERT_TRUE(peer->Connect(Soon()));
    const auto bytes = std::make_shared<Bytes>(RandomBytes(kMiB, 1));
    std::atomic<int> answered{0};
    constexpr int kCalls = 300;
    for (int i = 0; i < kCalls; ++i) {
      rpc::CallArguments arguments;
      if (i < 20) arguments.payload = {*bytes};
      const uint16_t method = i < 20 ? kPeerPut : i % 2 == 0 ? kPeerRemoveAll : kPeerRemove;
      const std::string body = i < 20       ? rpc::Encode(PutRequest{{std::to_string(i)}, {kMiB}})
                               : i % 2 == 0 ? rpc::Encode(Empty{})
                                            : rpc::Encode(KeysRequest{{"1", "2", "3"}});
      peer->CallAsync(method, body, std::move(arguments), Soon(),
                      [bytes, &answered](Result<std::string>) { ++answered; });
    }
    owner.reset();
    EXPECT_TRUE(Eventually([&] { return answered.load() == kCalls; }));
  }
  EXPECT_TRUE(Put(*other, "k", RandomBytes(10, 1)));
}

TEST_F(FailureTest, ClientBackUnderTheSameEndpointTakesOver) {
  // A port that was free a moment ago, outside the range that clients of tests running beside this one take.
  const Endpoint endpoint{"127.0.0.1", OpenMaster()->port()};
  auto options = OptionsFor(master_->port(), {DramTierOf(64 * kMiB)});
  options.local_hostname = endpoint.ToString();
  auto first = OpenClient(options);
  const auto reader = DramClient();
  ASSERT_TRUE(Put(*first, "k", RandomBytes(10, 1)));
  ASSERT_TRUE(Get(*reader, "k"));
  first.reset();
  const auto second = OpenClient(options);
  EXPECT_EQ(second->hostname(), endpoint.ToString());
  EXPECT_EQ(CodeOf(Get(*reader, "k")), ErrorCode::OBJECT_NOT_FOUND);
  ASSERT_TRUE(Put(*second, "k", RandomBytes(10, 2)));
  const auto got = Get(*reader, "k");
  ASSERT_TRUE(got) << got.error().ToString();
  EXPECT_TRUE(*got == RandomBytes(10, 2));
}

// --- processes ---

// A client in a process of its own.
class NodeProcess {
 public:
  NodeProcess(uint16_t master_port, int keys, size_t size) {
    int input[2], output[2];
    EXPECT_EQ(pipe2(input, O_CLOEXEC) | pipe2(output, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input[0], 0);
    posix_spawn_file_actions_adddup2(&actions, output[1], 1);
    const std::string program =
        std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "bin/client_test_node";
    std::string arguments[] = {program, std::to_string(master_port), std::to_string(keys), std::to_string(size)};
    char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), arguments[3].data(), nullptr};
    EXPECT_EQ(posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(input[0]);
    close(output[1]);
    stdin_ = input[1];
    char ready[6] = {};
    EXPECT_EQ(read(output[0], ready, sizeof(ready)), 6);
    close(output[0]);
  }
  ~NodeProcess() {
    Signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(stdin_);
  }
  void Signal(int signal) { kill(pid_, signal); }

 private:
  pid_t pid_ = -1;
  int stdin_ = -1;
};

class NodeProcessTest : public FailureTest {};

TEST_F(NodeProcessTest, KilledOwnerIsAnErrorThenAMissAndItsKeysCanBePutAgain) {
  NodeProcess node(master_->port(), 3, 5 * kMiB);
  const auto reader = DramClient();
  EXPECT_EQ(Get(*reader, "node0")->size(), 5 * kMiB);
  node.Signal(SIGKILL);
  ASSERT_TRUE(Eventually([&] { return !Get(*reader, "node1").has_value(); }));
  EXPECT_EQ(CodeOf(Get(*reader, "node2")), ErrorCode::RPC_FAIL);
  clock_.Advance(seconds(10));
  ASSERT_TRUE(Eventually([&] {  // our own heartbeat first
    const auto list = reader->ListClients();
    return list &&
           std::count_if(list->clients.begin(), list->clients.end(), [](const auto& c) { return c.suspect; }) == 1;
  }));
  EXPECT_EQ(CodeOf(Get(*reader, "node2")), ErrorCode::OBJECT_NOT_FOUND);
  ASSERT_TRUE(Put(*reader, "node2", RandomBytes(10, 1)));
  EXPECT_TRUE(Get(*reader, "node2"));
  EXPECT_EQ(reader->KeyCount(), 1u);
  clock_.Advance(seconds(20));
  EXPECT_TRUE(Eventually([&] { return reader->ListClients().has_value() && master_->KeyCount() == 1; }));
}

// Until the master gives a killed owner up it believes that its keys are stored. A put may not take its word for it.
TEST_F(NodeProcessTest, PutOfAKilledOwnersKeyIsAnErrorNotASuccessNobodyCanRead) {
  NodeProcess node(master_->port(), 3, 1 * kMiB);
  const auto with_tiers = DramClient();
  const auto without = Client({});
  EXPECT_TRUE(Put(*with_tiers, "node0", RandomBytes(10, 1)));  // held and alive: fine, and the first bytes stay
  EXPECT_TRUE(Put(*without, "node0", RandomBytes(10, 1)));
  EXPECT_EQ(Get(*without, "node0")->size(), kMiB);
  node.Signal(SIGKILL);
  ASSERT_TRUE(Eventually([&] { return !Get(*with_tiers, "node1").has_value(); }));
  EXPECT_EQ(CodeOf(Put(*with_tiers, "node2", RandomBytes(10, 1))), ErrorCode::RPC_FAIL);
  EXPECT_EQ(CodeOf(Put(*without, "node2", RandomBytes(10, 1))), ErrorCode::RPC_FAIL);
}

TEST_F(NodeProcessTest, OwnerKilledInTheMiddleOfReadsGivesWholeValuesOrErrors) {
  const auto node = std::make_unique<NodeProcess>(master_->port(), 4, 9 * kMiB);
  const auto reader = HastyClient({}, seconds(10));
  std::atomic<int> reads{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Bytes target(9 * kMiB);
      for (;;) {
        std::fill(target.begin(), target.end(), std::byte{0});
        const auto got = GetInto(*reader, "node" + std::to_string(t), HostRange(target));
        ++reads;
        if (!got) return;
        ASSERT_TRUE(target == Bytes(9 * kMiB, std::byte{0x42}));
      }
    });
  }
  EXPECT_TRUE(Eventually([&] { return reads.load() >= 8; }));
  node->Signal(SIGKILL);
  for (auto& thread : threads) thread.join();
}

TEST_F(NodeProcessTest, StoppedOwnerCostsOneDeadlineAndServesAgainAfterwards) {
  NodeProcess node(master_->port(), 2, 9 * kMiB);
  const auto reader = HastyClient({DramTierOf(64 * kMiB)}, seconds(1));
  ASSERT_TRUE(Put(*reader, "mine", RandomBytes(10, 1)));
  node.Signal(SIGSTOP);
  EXPECT_EQ(CodeOf(Get(*reader, "node0")), ErrorCode::RPC_FAIL);
  EXPECT_TRUE(Get(*reader, "mine"));
  node.Signal(SIGCONT);
  EXPECT_TRUE(Eventually([&] {
    const auto got = Get(*reader, "node0");
    return got && *got == Bytes(9 * kMiB, std::byte{0x42});
  }));
}

}  // namespace
}  // namespace mooncake
