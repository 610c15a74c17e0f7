// Calls, payloads, errors and life cycles between a live client and server.
#include <latch>
#include <thread>

#include "rpc/rpc_test_util.h"

namespace mooncake::rpc {
namespace {

struct AddRequest {
  int64_t a = 0;
  int64_t b = 0;
  MSGPACK_DEFINE_MAP(a, b);
};
struct AddReply {
  int64_t sum = 0;
  MSGPACK_DEFINE_MAP(sum);
};

constexpr uint16_t kAdd = 10, kUpload = 11, kDownload = 12, kIgnore = 13, kDrop = 14, kWrongRoom = 15;

std::vector<MutableSpan> Scatter(std::vector<std::byte>& memory, std::initializer_list<size_t> sizes) {
  std::vector<MutableSpan> spans;
  size_t at = 0;
  for (const size_t size : sizes) {
    spans.push_back(MutableSpan(memory).subspan(at, size));
    at += size;
  }
  spans.push_back(MutableSpan(memory).subspan(at));
  return spans;
}

std::vector<ConstSpan> AsConst(const std::vector<MutableSpan>& spans) {
  return {spans.begin(), spans.end()};
}

class RpcTest : public RpcFixture {};

TEST_F(RpcTest, EchoReturnsTheBody) {
  StartServer();
  const auto client = Connect();
  for (const size_t size : {0ul, 1ul, 64ul, 16'384ul, 100'000ul, 5'000'000ul}) {
    const std::string body(size, static_cast<char>('a' + size % 26));
    const auto reply = client->Call(kEcho, body, Soon());
    ASSERT_TRUE(reply) << reply.error().ToString();
    EXPECT_EQ(*reply, body);
  }
  EXPECT_TRUE(client->connected());
  EXPECT_EQ(client->peer_identity().node, server_options_.self.node);
  EXPECT_EQ(client->peer_identity().software_version, "test-1");
}

TEST_F(RpcTest, TypedCallsDecodeOnBothSides) {
  StartServer([](RpcServer& server) {
    server.Handle<AddRequest>(kAdd, [](ServerCall call, AddRequest request) {
      std::move(call).Reply(Encode(AddReply{request.a + request.b}));
    });
  });
  const auto client = Connect();
  const auto reply = client->Call<AddReply>(kAdd, AddRequest{40, 2}, Soon());
  ASSERT_TRUE(reply) << reply.error().ToString();
  EXPECT_EQ(reply->sum, 42);
  const auto bad = client->Call(kAdd, "not msgpack of that type", Soon());
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code(), ErrorCode::INVALID_PARAMS);
}

TEST_F(RpcTest, HandlerKnowsItsPeerAndDeadline) {
  Identity seen;
  Duration left{0};
  StartServer([&](RpcServer& server) {
    server.Handle(kAdd, [&](ServerCall call) {
      seen = call.peer();
      left = call.deadline().Remaining();
      std::string address = call.peer_address();
      std::move(call).Reply(std::move(address));
    });
  });
  const auto client = Connect();
  const auto address = client->Call(kAdd, "", Deadline::After(std::chrono::seconds(50)));
  ASSERT_TRUE(address);
  EXPECT_TRUE(address->starts_with("127.0.0.1:")) << *address;
  EXPECT_EQ(seen.role, "tool");
  EXPECT_GT(left, std::chrono::seconds(0));
  EXPECT_LE(left, std::chrono::milliseconds(50'001));
}

TEST_F(RpcTest, AnswersMayOvertakeEachOther) {
  StartServer();
  const auto client = Connect();
  Mailbox<std::string> answers;
  client->CallAsync(kHold, "first", {}, Soon(), [&](Result<std::string> reply) { answers.Put(*reply); });
  ServerCall first = held_.Take();
  client->CallAsync(kEcho, "second", {}, Soon(), [&](Result<std::string> reply) { answers.Put(*reply); });
  EXPECT_EQ(answers.Take(), "second");
  std::move(first).Reply("first at last");
  EXPECT_EQ(answers.Take(), "first at last");
}

TEST_F(RpcTest, CompletionsRunOnAnIoThreadEvenForImmediateFailures) {
  StartServer();
  const auto client = Connect();
  Mailbox<std::pair<std::thread::id, ErrorCode>> results;
  const auto record = [&](Result<std::string> reply) {
    results.Put({std::this_thread::get_id(), reply ? ErrorCode::OK : reply.error().code()});
  };
  client->CallAsync(kEcho, "", {}, Deadline::After(Millis(-1)), record);
  const auto late = results.Take();
  EXPECT_NE(late.first, std::this_thread::get_id());
  EXPECT_EQ(late.second, ErrorCode::RPC_FAIL);
  client->Close();
  client->CallAsync(kEcho, "", {}, Soon(), record);
  const auto closed = results.Take();
  EXPECT_NE(closed.first, std::this_thread::get_id());
  EXPECT_EQ(closed.second, ErrorCode::SHUTTING_DOWN);
}

TEST_F(RpcTest, PayloadsTravelBothWaysThroughScatteredMemory) {
  constexpr size_t kSize = (5 << 20) + 4321;
  auto stored = std::make_shared<std::vector<std::byte>>(kSize);
  StartServer([&](RpcServer& server) {
    server.Handle(kUpload, [stored](ServerCall call) {
      EXPECT_EQ(call.payload_bytes(), stored->size());
      std::move(call).ReceivePayload(Scatter(*stored, {1, 0, 70'000, 1 << 20}), stored,
                                     [](ServerCall done, Result<void> result) {
                                       EXPECT_TRUE(result);
                                       EXPECT_EQ(done.payload_bytes(), 0u);
                                       std::move(done).Reply("stored");
                                     });
    });
    server.Handle(kDownload, [stored](ServerCall call) {
      std::move(call).Reply("here", AsConst(Scatter(*stored, {0, 3, 2 << 20})), stored);
    });
  });
  const auto client = Connect();
  std::vector<std::byte> sent = RandomBytes(kSize, 1);
  for (int round = 0; round < 3; ++round) {
    CallArguments upload;
    upload.payload = AsConst(Scatter(sent, {7, 0, 1 << 20, 0}));
    ASSERT_EQ(client->Call(kUpload, "take this", Soon(), std::move(upload)).value_or("failed"), "stored");
    EXPECT_EQ(*stored, sent);

    std::vector<std::byte> received(kSize);
    CallArguments download;
    download.sink = [&](std::string_view body, uint64_t bytes) -> Result<std::vector<MutableSpan>> {
      EXPECT_EQ(body, "here");
      EXPECT_EQ(bytes, kSize);
      return Scatter(received, {0, 0, 100, 3 << 20, 0});
    };
    ASSERT_EQ(client->Call(kDownload, "", Soon(), std::move(download)).value_or("failed"), "here");
    EXPECT_EQ(received, sent);
    sent[round] ^= std::byte{1};
  }
}

TEST_F(RpcTest, SmallPayloadsPipelinedWithOtherFramesStayInOrder) {
  StartServer([&](RpcServer& server) {
    server.Handle(kUpload, [](ServerCall call) {
      auto memory = std::make_shared<std::vector<std::byte>>(call.payload_bytes());
      std::vector<MutableSpan> spans{*memory};
      std::move(call).ReceivePayload(std::move(spans), memory, [memory](ServerCall done, Result<void> result) {
        ASSERT_TRUE(result);
        std::string body(done.body());
        std::move(done).Reply(std::move(body), {*memory}, memory);
      });
    });
  });
  const auto client = Connect();
  constexpr int kCalls = 300;
  const std::vector<std::byte> source = RandomBytes(kCalls * 100, 2);
  std::vector<std::byte> target(source.size());
  std::latch done(2 * kCalls);
  for (int i = 0; i < kCalls; ++i) {
    CallArguments arguments;
    arguments.payload = {ConstSpan(source).subspan(i * 100, i % 100 + 1)};
    arguments.sink = [&target, i](std::string_view, uint64_t bytes) -> Result<std::vector<MutableSpan>> {
      return std::vector<MutableSpan>{MutableSpan(target).subspan(i * 100, bytes)};
    };
    client->CallAsync(kUpload, std::to_string(i), std::move(arguments), Soon(), [&, i](Result<std::string> reply) {
      EXPECT_EQ(reply.value_or("failed"), std::to_string(i));
      done.count_down();
    });
    client->CallAsync(kEcho, "e" + std::to_string(i), {}, Soon(), [&, i](Result<std::string> reply) {
      EXPECT_EQ(reply.value_or("failed"), "e" + std::to_string(i));
      done.count_down();
    });
  }
  done.wait();
  for (int i = 0; i < kCalls; ++i) {
    ASSERT_EQ(std::memcmp(&target[i * 100], &source[i * 100], i % 100 + 1), 0) << i;
  }
}

TEST_F(RpcTest, SinkOfWrongSizeOrWithErrorFailsOnlyThatCall) {
  const auto memory = std::make_shared<const std::vector<std::byte>>(RandomBytes(300'000, 3));
  StartServer([&](RpcServer& server) {
    server.Handle(kDownload, [memory](ServerCall call) { std::move(call).Reply("b", {ConstSpan(*memory)}, memory); });
  });
  const auto client = Connect();
  std::vector<std::byte> room(memory->size(), std::byte{0x5a});
  const auto call_with = [&](PayloadSink sink) {
    return client->Call(kDownload, "", Soon(), CallArguments{.payload = {}, .sink = std::move(sink)});
  };
  const auto wrong = call_with([&](std::string_view, uint64_t bytes) -> Result<std::vector<MutableSpan>> {
    return std::vector<MutableSpan>{MutableSpan(room).first(bytes - 1)};
  });
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code(), ErrorCode::RPC_FAIL);
  EXPECT_THAT(wrong.error().message(), testing::HasSubstr("299999"));
  const auto refused = call_with([](std::string_view, uint64_t) -> Result<std::vector<MutableSpan>> {
    return Error(ErrorCode::NO_AVAILABLE_HANDLE, "no room");
  });
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::NO_AVAILABLE_HANDLE);
  EXPECT_FALSE(call_with({}));
  EXPECT_THAT(room, testing::Each(std::byte{0x5a}));
  EXPECT_EQ(client->Call(kEcho, "in sync", Soon()).value_or("failed"), "in sync");
  EXPECT_EQ(server_->stats().accepted, 1u);
}

TEST_F(RpcTest, UnreceivedRequestPayloadIsDiscardedAndTheStreamStaysInSync) {
  StartServer([](RpcServer& server) {
    server.Handle(kIgnore, [](ServerCall call) { std::move(call).Reply("ignored"); });
    server.Handle(kDrop, [](ServerCall) {});
    server.Handle(kWrongRoom, [](ServerCall call) {
      std::move(call).ReceivePayload({}, nullptr, [](ServerCall back, Result<void> result) {
        ASSERT_FALSE(result);
        std::move(back).Fail(result.error());
      });
    });
  });
  const auto client = Connect();
  for (const size_t size : {1ul, 500ul, 40'000ul, 24ul << 20}) {
    const std::vector<std::byte> payload = RandomBytes(size, 4);
    const auto with_payload = [&] { return CallArguments{.payload = {payload}, .sink = {}}; };
    EXPECT_EQ(client->Call(kIgnore, "x", Soon(), with_payload()).value_or("failed"), "ignored");
    const auto dropped = client->Call(kDrop, "x", Soon(), with_payload());
    ASSERT_FALSE(dropped);
    EXPECT_EQ(dropped.error().code(), ErrorCode::INTERNAL_ERROR);
    const auto wrong = client->Call(kWrongRoom, "x", Soon(), with_payload());
    ASSERT_FALSE(wrong);
    EXPECT_EQ(wrong.error().code(), ErrorCode::INVALID_PARAMS);
    const auto unknown = client->Call(99, "x", Soon(), with_payload());
    ASSERT_FALSE(unknown);
    EXPECT_EQ(unknown.error().code(), ErrorCode::NOT_IMPLEMENTED);
    EXPECT_EQ(client->Call(kEcho, "in sync", Soon()).value_or("failed"), "in sync");
  }
  EXPECT_EQ(server_->stats().accepted, 1u);
}

TEST_F(RpcTest, PendingPayloadHoldsBackLaterRequestsUntilItIsReceived) {
  Mailbox<ServerCall> uploads;
  StartServer(
      [&](RpcServer& server) { server.Handle(kUpload, [&](ServerCall call) { uploads.Put(std::move(call)); }); });
  const auto client = Connect();
  const std::vector<std::byte> payload = RandomBytes(100'000, 5);
  Mailbox<std::string> answers;
  client->CallAsync(kUpload, "", {.payload = {payload}, .sink = {}}, Soon(),
                    [&](Result<std::string> reply) { answers.Put(reply.value_or("failed")); });
  client->CallAsync(kEcho, "after", {}, Soon(),
                    [&](Result<std::string> reply) { answers.Put(reply.value_or("failed")); });
  ServerCall upload = uploads.Take();
  EXPECT_EQ(server_->stats().calls, 1u);
  // From a thread of the application, some time later.
  auto memory = std::make_shared<std::vector<std::byte>>(payload.size());
  Mailbox<ServerCall> received;
  std::move(upload).ReceivePayload({MutableSpan(*memory)}, memory, [&](ServerCall call, Result<void> result) {
    EXPECT_TRUE(result);
    received.Put(std::move(call));
  });
  EXPECT_EQ(answers.Take(), "after");
  EXPECT_EQ(*memory, payload);
  std::move(received.Take()).Reply("uploaded");
  EXPECT_EQ(answers.Take(), "uploaded");
}

TEST_F(RpcTest, FailureCarriesCodeMessageAndVendorCode) {
  StartServer();
  const auto reply = Connect()->Call(kFail, "", Soon());
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code(), ErrorCode::OBJECT_NOT_FOUND);
  EXPECT_EQ(reply.error().message(), "no such key");
  EXPECT_EQ(reply.error().vendor_code(), 507000);
}

TEST_F(RpcTest, ReplyFromAnotherThreadReleasesItsMemoryOnceSent) {
  StartServer();
  const auto client = Connect();
  auto memory = std::make_shared<const std::vector<std::byte>>(RandomBytes(3 << 20, 6));
  const std::weak_ptr<const std::vector<std::byte>> watch = memory;
  std::vector<std::byte> received(memory->size());
  Mailbox<std::string> answers;
  CallArguments arguments;
  arguments.sink = [&](std::string_view, uint64_t) -> Result<std::vector<MutableSpan>> {
    return std::vector<MutableSpan>{received};
  };
  client->CallAsync(kHold, "", std::move(arguments), Soon(),
                    [&](Result<std::string> reply) { answers.Put(reply.value_or("failed")); });
  const ConstSpan span(*memory);
  const std::vector<std::byte> expected = *memory;
  std::move(held_.Take()).Reply("done", {span}, std::exchange(memory, nullptr));
  EXPECT_EQ(answers.Take(), "done");
  EXPECT_EQ(received, expected);
  server_->Stop();
  EXPECT_TRUE(watch.expired());
}

TEST_F(RpcTest, OversizedRequestsAndRepliesFailWithTheLimitsNamed) {
  server_options_.max_body_bytes = 10'000;
  server_options_.max_payload_bytes = 20'000;
  StartServer([](RpcServer& server) {
    server.Handle(kDownload, [](ServerCall call) { std::move(call).Reply(std::string(6'000, 'x')); });
  });
  ClientOptions options = ClientTo(server_->port());
  options.max_body_bytes = 5'000;
  const auto client = RpcClient::Create(pool_, options);
  const auto own_limit = client->Call(kEcho, std::string(5'001, 'x'), Soon());
  ASSERT_FALSE(own_limit);
  EXPECT_EQ(own_limit.error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_THAT(own_limit.error().message(), testing::HasSubstr("5000"));
  const std::vector<std::byte> payload(20'001);
  const auto peers_limit = client->Call(kEcho, "", Soon(), {.payload = {payload}, .sink = {}});
  ASSERT_FALSE(peers_limit);
  EXPECT_THAT(peers_limit.error().message(), testing::HasSubstr("20000"));
  const auto reply_limit = client->Call(kDownload, "", Soon());
  ASSERT_FALSE(reply_limit);
  EXPECT_EQ(reply_limit.error().code(), ErrorCode::INTERNAL_ERROR);
  EXPECT_EQ(client->Call(kEcho, "still fine", Soon()).value_or("failed"), "still fine");
}

TEST_F(RpcTest, SessionAtItsLimitReadsNoMoreUntilRepliesLeave) {
  server_options_.max_outstanding_per_session = 4;
  StartServer();
  const auto client = Connect();
  constexpr int kCalls = 100;
  std::latch done(kCalls);
  for (int i = 0; i < kCalls; ++i) {
    client->CallAsync(kHold, std::to_string(i), {}, Soon(), [&](Result<std::string> reply) {
      EXPECT_TRUE(reply);
      done.count_down();
    });
  }
  for (int answered = 0; answered < kCalls; ++answered) {
    ServerCall call = held_.Take();
    EXPECT_LE(server_->stats().calls, static_cast<uint64_t>(answered) + 4);
    std::move(call).Reply("");
  }
  done.wait();
}

TEST_F(RpcTest, CallsBeyondTheInFlightLimitAreRefused) {
  StartServer();
  ClientOptions options = ClientTo(server_->port());
  options.max_in_flight = 2;
  const auto client = RpcClient::Create(pool_, options);
  Mailbox<Result<std::string>> answers;
  for (int i = 0; i < 2; ++i) {
    client->CallAsync(kHold, "", {}, Soon(), [&](Result<std::string> reply) { answers.Put(std::move(reply)); });
  }
  const auto refused = client->Call(kEcho, "", Soon());
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), testing::HasSubstr("the limit"));
  std::move(held_.Take()).Reply("");
  EXPECT_TRUE(answers.Take());
  EXPECT_TRUE(client->Call(kEcho, "", Soon()));
  std::move(held_.Take()).Reply("");
  EXPECT_TRUE(answers.Take());
}

TEST_F(RpcTest, ManyThreadsShareOneConnection) {
  StartServer();
  const auto client = Connect();
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        const std::string body = std::to_string(t) + "/" + std::to_string(i);
        const auto reply = client->Call(kEcho, body, Soon());
        if (reply && *reply == body) good.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good.load(), 8 * 2000);
  EXPECT_EQ(server_->stats().accepted, 1u);
  EXPECT_EQ(server_->stats().calls, 8u * 2000);
}

TEST_F(RpcTest, StopFailsCallsInFlightAndEndsSessions) {
  std::atomic<int> closed{0};
  StartServer([&](RpcServer& server) { server.OnSessionClosed([&](SessionId) { closed.fetch_add(1); }); });
  const auto client = Connect();
  Mailbox<Result<std::string>> answers;
  client->CallAsync(kHold, "", {}, Soon(), [&](Result<std::string> reply) { answers.Put(std::move(reply)); });
  ServerCall held = held_.Take();
  server_->Stop();
  EXPECT_EQ(closed.load(), 1);
  EXPECT_EQ(server_->stats().open, 0u);
  const auto answer = answers.Take();
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), ErrorCode::RPC_FAIL);
  EXPECT_THAT(answer.error().message(), testing::HasSubstr("127.0.0.1:" + std::to_string(server_->port())));
  server_->Stop();
  std::move(held).Reply("nobody listens");
}

TEST_F(RpcTest, ClientReconnectsAfterTheServerRestartsOnTheSamePort) {
  StartServer();
  const auto client = Connect();
  ASSERT_TRUE(client->Call(kEcho, "", Soon()));
  const uint16_t port = server_->port();
  server_.reset();
  while (client->connected()) std::this_thread::yield();
  const auto down = client->Connect(Soon());
  ASSERT_FALSE(down);
  EXPECT_EQ(down.error().code(), ErrorCode::RPC_FAIL);
  EXPECT_THAT(down.error().message(), testing::HasSubstr("refused"));
  // While backing off a call fails at once with the last reason.
  const auto fast = client->Call(kEcho, "", Soon());
  ASSERT_FALSE(fast);
  EXPECT_THAT(fast.error().message(), testing::HasSubstr("refused"));
  server_options_.listen.port = port;
  StartServer();
  ASSERT_TRUE(client->Connect(Soon()));
  EXPECT_EQ(client->Call(kEcho, "again", Soon()).value_or("failed"), "again");
  // And after a success a loss costs no back-off.
  server_.reset();
  StartServer();
  Result<std::string> reply = client->Call(kEcho, "third", Soon());
  if (!reply) reply = client->Call(kEcho, "third", Soon());  // the first may still have met the dying connection
  EXPECT_EQ(reply.value_or("failed"), "third");
}

TEST_F(RpcTest, UnreachablePeerIsAnErrorAfterBackOffToo) {
  RawListener reserved;  // then closed: nobody listens there
  uint16_t port = reserved.port();
  {
    const RawListener gone;
    port = gone.port();
  }
  const auto client = RpcClient::Create(pool_, ClientTo(port));
  for (int i = 0; i < 50; ++i) {
    const auto reply = client->Call(kEcho, "", Soon());
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().code(), ErrorCode::RPC_FAIL);
    EXPECT_THAT(reply.error().message(), testing::HasSubstr(std::to_string(port)));
  }
}

TEST_F(RpcTest, Ipv6IsReached) {
  server_options_.listen = {"::1", 0};
  auto probe = RpcServer::Listen(pool_, server_options_);
  if (!probe && probe.error().vendor_code() == EADDRNOTAVAIL) GTEST_SKIP() << "no IPv6 loopback here";
  StartServer();
  ClientOptions options = ClientTo(server_->port());
  options.peer.host = "::1";
  EXPECT_EQ(RpcClient::Create(pool_, options)->Call(kEcho, "six", Soon()).value_or("failed"), "six");
}

TEST_F(RpcTest, HostNamesAreReached) {
  server_options_.listen = {"localhost", 0};
  StartServer();
  ClientOptions options = ClientTo(server_->port());
  options.peer.host = "localhost";
  EXPECT_EQ(RpcClient::Create(pool_, options)->Call(kEcho, "name", Soon()).value_or("failed"), "name");
  options.peer.host = "host.name.invalid";
  const auto unknown = RpcClient::Create(pool_, options)->Call(kEcho, "", Soon());
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message(), testing::HasSubstr("host.name.invalid"));
}

TEST_F(RpcTest, VersionMismatchNamesBothSides) {
  server_options_.self.protocol_version = 7;
  server_options_.self.min_protocol_version = 5;
  server_options_.self.software_version = "server-9.9";
  StartServer();
  ClientOptions options = ClientTo(server_->port());
  options.self.software_version = "client-0.1";
  const auto client = RpcClient::Create(pool_, options);
  const auto refused = client->Call(kEcho, "", Soon());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::INVALID_VERSION);
  EXPECT_THAT(refused.error().message(),
              testing::AllOf(testing::HasSubstr("5..7"), testing::HasSubstr("1..1"), testing::HasSubstr("server-9.9"),
                             testing::HasSubstr("client-0.1")));
  EXPECT_EQ(server_->stats().rejected_version, 1u);
  options.self.protocol_version = 6;  // overlaps
  EXPECT_TRUE(RpcClient::Create(pool_, options)->Call(kEcho, "", Soon()));
}

TEST_F(RpcTest, WrongNodeOrRoleIsIllegalClient) {
  StartServer();
  ClientOptions options = ClientTo(server_->port());
  options.expected_node = Uuid::Random();
  const auto wrong_node = RpcClient::Create(pool_, options)->Call(kEcho, "", Soon());
  ASSERT_FALSE(wrong_node);
  EXPECT_EQ(wrong_node.error().code(), ErrorCode::ILLEGAL_CLIENT);
  EXPECT_THAT(wrong_node.error().message(), testing::AllOf(testing::HasSubstr(options.expected_node.ToString()),
                                                           testing::HasSubstr(server_options_.self.node.ToString())));
  options.expected_node = server_options_.self.node;
  options.expected_role = "master";
  const auto wrong_role = RpcClient::Create(pool_, options)->Connect(Soon());
  ASSERT_FALSE(wrong_role);
  EXPECT_EQ(wrong_role.error().code(), ErrorCode::ILLEGAL_CLIENT);
  EXPECT_THAT(wrong_role.error().message(), testing::HasSubstr("role client"));
  options.expected_role = "client";
  EXPECT_TRUE(RpcClient::Create(pool_, options)->Connect(Soon()));
}

TEST_F(RpcTest, TakenPortIsAnErrorThatNamesIt) {
  StartServer();
  ServerOptions second = server_options_;
  second.listen.port = server_->port();
  const auto taken = RpcServer::Listen(pool_, second);
  ASSERT_FALSE(taken);
  EXPECT_THAT(taken.error().message(),
              testing::AllOf(testing::HasSubstr("127.0.0.1:" + std::to_string(server_->port())),
                             testing::HasSubstr("Address already in use")));
  EXPECT_EQ(taken.error().vendor_code(), EADDRINUSE);
}

TEST_F(RpcTest, EndOfThePoolFailsCallsAndLaterOnesFailAtOnce) {
  StartServer();
  auto pool = std::make_unique<IoPool>(1);
  const auto client = RpcClient::Create(*pool, ClientTo(server_->port()));
  ServerOptions options = server_options_;
  options.listen.port = 0;
  auto other = RpcServer::Listen(*pool, options);
  ASSERT_TRUE(other);
  (*other)->Handle(kHold, [this](ServerCall call) { held_.Put(std::move(call)); });
  (*other)->Start();
  const auto visitor = RpcClient::Create(pool_, ClientTo((*other)->port()));

  Mailbox<Result<std::string>> answers;
  const auto record = [&](Result<std::string> reply) { answers.Put(std::move(reply)); };
  client->CallAsync(kHold, "", {}, Soon(), record);
  visitor->CallAsync(kHold, "", {}, Soon(), record);
  ServerCall one = held_.Take();
  ServerCall two = held_.Take();
  pool.reset();
  EXPECT_FALSE(answers.Take());
  EXPECT_FALSE(answers.Take());
  const auto later = client->Call(kEcho, "", Soon());
  ASSERT_FALSE(later);
  EXPECT_EQ(later.error().code(), ErrorCode::SHUTTING_DOWN);
  (*other)->Stop();
  std::move(one).Reply("nobody listens");
}

TEST_F(RpcTest, FullServerClosesFurtherConnections) {
  server_options_.max_connections = 1;
  StartServer();
  const auto first = Connect();
  ASSERT_TRUE(first->Connect(Soon()));
  EXPECT_FALSE(Connect()->Connect(Soon()));
  EXPECT_EQ(server_->stats().rejected_full, 1u);
  EXPECT_TRUE(first->Call(kEcho, "", Soon()));
  first->Close();
  AwaitStats([](const ServerStats& stats) { return stats.open == 0; });
  EXPECT_TRUE(Connect()->Connect(Soon()));
}

}  // namespace
}  // namespace mooncake::rpc
