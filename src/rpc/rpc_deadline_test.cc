// A call that returns has let go of the caller's memory, whatever state its deadline finds it in.
#include <atomic>
#include <thread>

#include "rpc/rpc_test_util.h"

namespace mooncake::rpc {
namespace {

class RpcDeadlineTest : public RpcFixture {
 protected:
  std::shared_ptr<RpcClient> ConnectTo(const RawListener& listener) {
    return RpcClient::Create(pool_, ClientTo(listener.port()));
  }
  // Starts a call whose result arrives in `answers_`.
  void Begin(RpcClient& client, uint16_t method, CallArguments arguments, Deadline deadline) {
    client.CallAsync(method, "body", std::move(arguments), deadline,
                     [this](Result<std::string> reply) { answers_.Put(std::move(reply)); });
  }

  Mailbox<Result<std::string>> answers_;
};

TEST_F(RpcDeadlineTest, WaitingCallEndsAtItsDeadlineAndTheLateAnswerIsDiscarded) {
  StartServer();
  const auto client = Connect();
  auto room = std::make_unique<std::vector<std::byte>>(1 << 20);
  CallArguments arguments;
  arguments.sink = [&](std::string_view, uint64_t) -> Result<std::vector<MutableSpan>> {
    ADD_FAILURE() << "a call that has ended was offered a payload";
    return std::vector<MutableSpan>{*room};
  };
  const auto reply = client->Call(kHold, "", Deadline::After(Millis(50)), std::move(arguments));
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code(), ErrorCode::RPC_FAIL);
  EXPECT_THAT(reply.error().message(),
              testing::AllOf(testing::HasSubstr("timeout"), testing::HasSubstr("call 2"), testing::HasSubstr(" ms"),
                             testing::HasSubstr("127.0.0.1:" + std::to_string(server_->port()))));
  room.reset();
  const auto late = std::make_shared<const std::vector<std::byte>>(RandomBytes(1 << 20, 1));
  std::move(held_.Take()).Reply("too late", {ConstSpan(*late)}, late);
  EXPECT_EQ(client->Call(kEcho, "in sync", Soon()).value_or("failed"), "in sync");
  EXPECT_EQ(server_->stats().accepted, 1u);
}

TEST_F(RpcDeadlineTest, ArrivingPayloadIsCutOffAndItsMemoryNeverTouchedAgain) {
  RawListener listener;
  const auto client = ConnectTo(listener);
  auto room = std::make_unique<std::vector<std::byte>>(1 << 20);
  Mailbox<bool> sink_called;
  CallArguments arguments;
  arguments.sink = [&](std::string_view, uint64_t) -> Result<std::vector<MutableSpan>> {
    sink_called.Put(true);
    return std::vector<MutableSpan>{*room};
  };
  Begin(*client, 7, std::move(arguments), Deadline::After(Millis(300)));
  RawPeer peer = listener.Accept();
  ASSERT_TRUE(peer.ShakeHandsAsServer());
  const auto request = peer.ReceiveFrame();
  ASSERT_TRUE(request);
  EXPECT_GT(request->header.budget_ms, 0u);
  EXPECT_LE(request->header.budget_ms, 300u);
  Begin(*client, 8, {}, Soon());  // shares the connection
  ASSERT_TRUE(peer.ReceiveFrame());
  internal::FrameHeader response{.kind = internal::FrameKind::kResponse, .id = request->header.id};
  response.payload_bytes = room->size();
  const std::string half(room->size() / 2, 'h');
  ASSERT_TRUE(peer.SendFrame(response));
  ASSERT_TRUE(peer.Send(half));
  sink_called.Take();

  std::vector<std::string> messages;
  for (int i = 0; i < 2; ++i) {
    const auto answer = answers_.Take();
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code(), ErrorCode::RPC_FAIL);
    messages.push_back(answer.error().message());
    // From the first completion on the memory is the test's again (one of the two may be the neighbour's).
  }
  room.reset();
  EXPECT_THAT(messages, testing::Contains(testing::StartsWith("timeout of call 7")));
  EXPECT_THAT(messages, testing::Contains(testing::AllOf(testing::StartsWith("connection to 127.0.0.1:"),
                                                         testing::HasSubstr("timeout of call 7"))));
  (void)peer.Send(half);  // goes nowhere
  EXPECT_TRUE(peer.AwaitClose());
  EXPECT_FALSE(client->connected());
}

TEST_F(RpcDeadlineTest, StalledSendIsCutOffAndQueuedCallsBehindItAreNeverSent) {
  RawListener listener;
  const auto client = ConnectTo(listener);
  auto payload = std::make_unique<std::vector<std::byte>>(RandomBytes(64 << 20, 2));
  Begin(*client, 7, {.payload = {ConstSpan(*payload)}, .sink = {}}, Deadline::After(Millis(500)));
  RawPeer peer = listener.Accept();
  ASSERT_TRUE(peer.ShakeHandsAsServer());
  // The peer now reads nothing: the socket fills up and the request stays half sent.
  const auto queued = client->Call(8, "", Deadline::After(Millis(100)));
  ASSERT_FALSE(queued);
  EXPECT_THAT(queued.error().message(), testing::HasSubstr("before it was sent"));
  const auto stalled = answers_.Take();
  ASSERT_FALSE(stalled);
  EXPECT_THAT(stalled.error().message(),
              testing::AllOf(testing::HasSubstr("timeout of call 7"), testing::HasSubstr("being sent")));
  payload.reset();
  EXPECT_FALSE(peer.ReceiveFrame());  // the rest never comes
}

TEST_F(RpcDeadlineTest, CallRemovedFromTheQueueLeavesTheConnectionToOthers) {
  RawListener listener;
  const auto client = ConnectTo(listener);
  const std::vector<std::byte> payload = RandomBytes(64 << 20, 3);
  Begin(*client, 7, {.payload = {ConstSpan(payload)}, .sink = {}}, Soon());
  RawPeer peer = listener.Accept();
  ASSERT_TRUE(peer.ShakeHandsAsServer());
  EXPECT_FALSE(client->Call(8, "", Deadline::After(Millis(50))));
  Begin(*client, 9, {}, Soon());
  const auto big = peer.ReceiveFrame();
  ASSERT_TRUE(big);
  EXPECT_EQ(big->header.method, 7);
  EXPECT_EQ(std::memcmp(big->payload.data(), payload.data(), payload.size()), 0);
  const auto next = peer.ReceiveFrame();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->header.method, 9);
  for (const auto id : {next->header.id, big->header.id}) {
    ASSERT_TRUE(peer.SendFrame({.kind = internal::FrameKind::kResponse, .id = id}, "fine"));
    EXPECT_EQ(answers_.Take().value_or("failed"), "fine");
  }
}

TEST_F(RpcDeadlineTest, AnswerThatOvertakesTheRequestWaitsUntilThePayloadHasLeft) {
  RawListener listener;
  const auto client = ConnectTo(listener);
  auto payload = std::make_unique<std::vector<std::byte>>(RandomBytes(64 << 20, 4));
  Begin(*client, 7, {.payload = {ConstSpan(*payload)}, .sink = {}}, Soon());
  RawPeer peer = listener.Accept();
  ASSERT_TRUE(peer.ShakeHandsAsServer());
  internal::FrameHeader header;
  const auto bytes = peer.Receive(sizeof(header));
  ASSERT_TRUE(bytes);
  std::memcpy(&header, bytes->data(), sizeof(header));
  ASSERT_TRUE(peer.SendFrame({.kind = internal::FrameKind::kResponse, .id = header.id, .code = -704}, "early"));
  // The client answers nothing else meanwhile: a second call proves that it has read the early answer.
  const auto rest = peer.Receive(header.body_bytes + header.payload_bytes - 1);
  ASSERT_TRUE(rest);
  const auto answer = [&] {
    EXPECT_TRUE(peer.Receive(1));
    return answers_.Take();
  }();
  payload.reset();
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), ErrorCode::OBJECT_NOT_FOUND);
}

TEST_F(RpcDeadlineTest, LoneCallsToAPeerThatReadsNothingTimeOutUntilTheSocketIsFull) {
  RawListener listener;
  const auto client = ConnectTo(listener);
  Mailbox<Result<void>> connected;
  std::thread handshake([&] { connected.Put(client->Connect(Soon())); });
  RawPeer peer = listener.Accept();
  ASSERT_TRUE(peer.ShakeHandsAsServer());
  handshake.join();
  ASSERT_TRUE(connected.Take());
  const std::string body(4096, 'x');
  std::string message = "waiting";
  int calls = 0;
  while (message.find("waiting") != std::string::npos && calls++ < 20'000) {
    const auto reply = client->Call(kEcho, body, Deadline::After(Millis(1)));
    ASSERT_FALSE(reply);
    message = reply.error().message();
    ASSERT_THAT(message, testing::StartsWith("timeout of call 1"));
  }
  EXPECT_THAT(message, testing::AnyOf(testing::HasSubstr("being sent"), testing::HasSubstr("before it was sent")));
}

TEST_F(RpcDeadlineTest, LoneCallsTimeOutAndAreAnsweredInAnyMixture) {
  StartServer();
  const auto client = Connect();
  for (int i = 0; i < 30; ++i) {
    ASSERT_EQ(client->Call(kEcho, "a", Soon()).value_or("failed"), "a");
    ASSERT_EQ(client->Call(kEcho, "b", Deadline::After(std::chrono::seconds(30 + i))).value_or("failed"), "b");
    const auto reply = client->Call(kHold, "", Deadline::After(Millis(3)));
    ASSERT_FALSE(reply);
    EXPECT_THAT(reply.error().message(), testing::StartsWith("timeout of call 2"));
    if (!held_.Empty()) std::move(held_.Take()).Reply("late");
  }
  EXPECT_EQ(server_->stats().accepted, 1u);
}

TEST_F(RpcDeadlineTest, LoneCallFailsWhenItsConnectionDies) {
  StartServer();
  const auto client = Connect();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(client->Connect(Soon()));
    Result<std::string> echo = client->Call(kEcho, "", Soon());
    ASSERT_TRUE(echo) << echo.error().ToString();
    Begin(*client, kHold, {}, Soon());
    const ServerCall call = held_.Take();
    const uint16_t port = server_->port();
    server_->Stop();
    const auto answer = answers_.Take();
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code(), ErrorCode::RPC_FAIL);
    while (client->connected()) std::this_thread::yield();
    server_options_.listen.port = port;
    StartServer();
  }
}

TEST_F(RpcDeadlineTest, SilentPeerCostsOnlyTheConnectTimeout) {
  RawListener listener;  // accepts in the backlog, never shakes hands
  ClientOptions options = ClientTo(listener.port());
  options.connect_timeout = Millis(100);
  const auto client = RpcClient::Create(pool_, options);
  const auto reply = client->Call(kEcho, "", Soon());
  ASSERT_FALSE(reply);
  EXPECT_THAT(reply.error().message(), testing::AllOf(testing::HasSubstr("cannot reach 127.0.0.1:"),
                                                      testing::HasSubstr("no connection within 100 ms")));
}

TEST_F(RpcDeadlineTest, DeadlineEndsACallThatStillWaitsForTheConnection) {
  RawListener listener;
  ClientOptions options = ClientTo(listener.port());
  options.connect_timeout = std::chrono::seconds(60);
  const auto client = RpcClient::Create(pool_, options);
  const auto reply = client->Call(kEcho, "", Deadline::After(Millis(50)));
  ASSERT_FALSE(reply);
  EXPECT_THAT(reply.error().message(), testing::HasSubstr("while connecting"));
  RawPeer peer = listener.Accept();
  ASSERT_TRUE(peer.ShakeHandsAsServer());
  Begin(*client, 9, {}, Soon());
  const auto next = peer.ReceiveFrame();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->header.method, 9);  // the first call was never sent
  client->Close();
  EXPECT_FALSE(answers_.Take());
}

TEST_F(RpcDeadlineTest, ServerLetsGoOfPayloadMemoryWhenThePeerDiesMidway) {
  Mailbox<Result<void>> ended;
  auto memory = std::make_shared<std::vector<std::byte>>(1 << 20);
  const std::weak_ptr<std::vector<std::byte>> watch = memory;
  Mailbox<bool> begun;
  StartServer([&](RpcServer& server) {
    server.Handle(11, [&](ServerCall call) {
      std::vector<MutableSpan> spans{*memory};
      std::move(call).ReceivePayload(std::move(spans), std::exchange(memory, nullptr),
                                     [&](ServerCall, Result<void> result) { ended.Put(std::move(result)); });
      begun.Put(true);
    });
  });
  RawPeer peer = RawPeer::ConnectTo(server_->port());
  ASSERT_TRUE(peer.ShakeHandsAsClient());
  ASSERT_TRUE(peer.SendFrame({.kind = internal::FrameKind::kRequest, .method = 11, .id = 1, .payload_bytes = 1 << 20}));
  ASSERT_TRUE(peer.Send(std::string(1000, 'x')));
  begun.Take();
  peer.Close();
  const auto result = ended.Take();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::RPC_FAIL);
  EXPECT_TRUE(watch.expired());
}

TEST_F(RpcDeadlineTest, ServerDisconnectsAPeerThatStallsMidFrameOrTakesNoReply) {
  server_options_.stall_timeout = Millis(50);
  const auto large = std::make_shared<const std::vector<std::byte>>(64 << 20);
  StartServer([&](RpcServer& server) {
    server.Handle(12, [large](ServerCall call) { std::move(call).Reply("", {ConstSpan(*large)}, large); });
  });
  RawPeer half = RawPeer::ConnectTo(server_->port());
  ASSERT_TRUE(half.ShakeHandsAsClient());
  ASSERT_TRUE(half.SendFrame({.kind = internal::FrameKind::kRequest, .method = kEcho, .id = 1, .payload_bytes = 9}));
  EXPECT_TRUE(half.ReceiveFrame());
  EXPECT_TRUE(half.AwaitClose());

  RawPeer deaf = RawPeer::ConnectTo(server_->port());
  ASSERT_TRUE(deaf.ShakeHandsAsClient());
  ASSERT_TRUE(deaf.SendFrame({.kind = internal::FrameKind::kRequest, .method = 12, .id = 1}));
  AwaitStats([](const ServerStats& stats) { return stats.calls == 2; });
  AwaitStats([](const ServerStats& stats) { return stats.open == 0; });
}

// Closing while the connection is being made: Asio looks at the socket once more after that.
TEST_F(RpcDeadlineTest, CloseDuringTheConnectEndsTheCallsAndNothingElse) {
  StartServer();
  std::atomic<int> completed{0};
  constexpr int kRounds = 300;
  for (int i = 0; i < kRounds; ++i) {
    const auto client = Connect();
    client->CallAsync(kEcho, "x", {}, Soon(), [&](Result<std::string>) { completed.fetch_add(1); });
    if (i % 3 == 1) std::this_thread::yield();
    client->Close();
  }
  const Deadline deadline = Soon();
  while (completed.load() < kRounds && !deadline.Passed()) std::this_thread::yield();
  EXPECT_EQ(completed.load(), kRounds);
  EXPECT_TRUE(Connect()->Call(kEcho, "still here", Soon()));
}

}  // namespace
}  // namespace mooncake::rpc
