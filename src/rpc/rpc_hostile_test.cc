// Bytes that are wrong by accident or on purpose cost one connection and nothing else.
#include "rpc/rpc_test_util.h"

namespace mooncake::rpc {
namespace {

using internal::FrameHeader;
using internal::FrameKind;

std::string Bytes(const FrameHeader& header) {
  return {reinterpret_cast<const char*>(&header), sizeof(header)};
}

class RpcHostileTest : public RpcFixture {
 protected:
  void ExpectHealthy() { EXPECT_EQ(Connect()->Call(kEcho, "alive", Soon()).value_or("failed"), "alive"); }
};

TEST_F(RpcHostileTest, ForeignProtocolsAreClosedAndCounted) {
  StartServer();
  const std::string tls_hello("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
  uint64_t expected = 0;
  for (const std::string& greeting : {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), tls_hello,
                                      std::string("\0\0\0\0", 4), std::string(100'000, '\xff')}) {
    RawPeer peer = RawPeer::ConnectTo(server_->port());
    (void)peer.Send(greeting);
    EXPECT_TRUE(peer.AwaitClose());
    ++expected;
    AwaitStats([&](const ServerStats& stats) { return stats.rejected_bad_magic == expected; });
  }
  ExpectHealthy();
}

TEST_F(RpcHostileTest, HugeLengthsAreRefusedBeforeAnyAllocation) {
  StartServer();
  RawPeer before = RawPeer::ConnectTo(server_->port());
  ASSERT_TRUE(before.Send(Bytes({.kind = FrameKind::kHello, .body_bytes = 0x80000000u})));
  EXPECT_TRUE(before.AwaitClose());
  RawPeer hello = RawPeer::ConnectTo(server_->port());
  ASSERT_TRUE(hello.Send(Bytes({.kind = FrameKind::kHello, .body_bytes = 4097})));
  EXPECT_TRUE(hello.AwaitClose());
  RawPeer after = RawPeer::ConnectTo(server_->port());
  ASSERT_TRUE(after.ShakeHandsAsClient());
  ASSERT_TRUE(after.Send(Bytes({.kind = FrameKind::kRequest, .id = 1, .body_bytes = 0x80000000u})));
  EXPECT_TRUE(after.AwaitClose());
  RawPeer payload = RawPeer::ConnectTo(server_->port());
  ASSERT_TRUE(payload.ShakeHandsAsClient());
  ASSERT_TRUE(payload.Send(Bytes({.kind = FrameKind::kRequest, .id = 1, .payload_bytes = UINT64_MAX})));
  EXPECT_TRUE(payload.AwaitClose());
  AwaitStats([](const ServerStats& stats) { return stats.rejected_too_large == 4; });
  ExpectHealthy();
}

TEST_F(RpcHostileTest, CallsBeforeTheHandshakeAndServerFramesAreRefused) {
  StartServer();
  for (const FrameKind kind :
       {FrameKind::kRequest, FrameKind::kResponse, FrameKind::kWelcome, static_cast<FrameKind>(99)}) {
    RawPeer peer = RawPeer::ConnectTo(server_->port());
    ASSERT_TRUE(peer.SendFrame({.kind = kind, .method = kEcho, .id = 1}, "x"));
    EXPECT_TRUE(peer.AwaitClose());
  }
  for (const FrameKind kind : {FrameKind::kHello, FrameKind::kResponse}) {
    RawPeer peer = RawPeer::ConnectTo(server_->port());
    ASSERT_TRUE(peer.ShakeHandsAsClient());
    ASSERT_TRUE(peer.SendFrame({.kind = kind, .id = 1}));
    EXPECT_TRUE(peer.AwaitClose());
  }
  AwaitStats([](const ServerStats& stats) { return stats.rejected_bad_magic == 6; });
  EXPECT_EQ(server_->stats().calls, 0u);
  ExpectHealthy();
}

TEST_F(RpcHostileTest, HalfAHeaderThenCloseLeavesNothingBehind) {
  StartServer();
  for (const size_t size : {1ul, 3ul, 20ul, 39ul}) {
    RawPeer peer = RawPeer::ConnectTo(server_->port());
    ASSERT_TRUE(peer.Send(Bytes({.kind = FrameKind::kHello, .body_bytes = 10}).substr(0, size)));
  }
  AwaitStats([](const ServerStats& stats) { return stats.accepted == 4 && stats.open == 0; });
  ExpectHealthy();
}

TEST_F(RpcHostileTest, PeerThatNeverShakesHandsIsDisconnected) {
  server_options_.handshake_timeout = Millis(50);
  StartServer();
  RawPeer silent = RawPeer::ConnectTo(server_->port());
  RawPeer slow = RawPeer::ConnectTo(server_->port());
  ASSERT_TRUE(slow.Send(Bytes({.kind = FrameKind::kHello, .body_bytes = 100})));
  EXPECT_TRUE(silent.AwaitClose());
  EXPECT_TRUE(slow.AwaitClose());
  AwaitStats([](const ServerStats& stats) { return stats.handshake_timeouts == 2; });
  ExpectHealthy();
}

TEST_F(RpcHostileTest, FrameInSinglesBytesIsUnderstood) {
  StartServer();
  RawPeer peer = RawPeer::ConnectTo(server_->port());
  ASSERT_TRUE(peer.ShakeHandsAsClient());
  const std::string frame =
      Bytes({.kind = FrameKind::kRequest, .method = kEcho, .id = 5, .body_bytes = 5, .payload_bytes = 3}) + "hello" +
      "xyz";
  for (int round = 0; round < 3; ++round) {
    for (const char byte : frame) ASSERT_TRUE(peer.Send(std::string(1, byte)));
    const auto reply = peer.ReceiveFrame();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->header.id, 5u);
    EXPECT_EQ(reply->body, "hello");
  }
}

TEST_F(RpcHostileTest, SeededRandomBytesNeverDisturbOtherPeers) {
  StartServer();
  const auto neighbour = Connect();
  ASSERT_TRUE(neighbour->Connect(Soon()));
  const auto answer_held = [this] {
    while (!held_.Empty()) std::move(held_.Take()).Reply("");
  };
  constexpr uint32_t kSeed = 424242;
  std::mt19937 random(kSeed);
  for (int round = 0; round < 3000; ++round) {
    RawPeer peer = RawPeer::ConnectTo(server_->port());
    ASSERT_TRUE(round % 2 == 0 || peer.ShakeHandsAsClient());
    // Headers that are right but for a few bytes get deeper than pure noise.
    std::string bytes;
    for (int frames = random() % 4 + 1; frames > 0; --frames) {
      FrameHeader header{.kind = static_cast<FrameKind>(random() % 7), .method = static_cast<uint16_t>(random() % 5)};
      header.id = random() % 3;
      header.body_bytes = random() % 60;
      header.payload_bytes = random() % 3 == 0 ? random() % 60 : 0;
      bytes += Bytes(header);
      for (uint32_t i = random() % 100; i > 0; --i) bytes += static_cast<char>(random());
    }
    for (int flips = random() % 3; flips > 0; --flips) bytes[random() % bytes.size()] = static_cast<char>(random());
    (void)peer.Send(bytes);
    ASSERT_TRUE(round % 100 != 0 || neighbour->Call(kEcho, "alive", Soon())) << round;
    answer_held();
  }
  // A session whose payload waits for a handler notices the peer's end only after the answer.
  AwaitStats([&](const ServerStats& stats) {
    answer_held();
    return stats.accepted == 3001 && stats.open == 1;
  });
  EXPECT_TRUE(neighbour->Call(kEcho, "", Soon()));
  EXPECT_EQ(neighbour->peer_identity().node, server_options_.self.node);
}

TEST_F(RpcHostileTest, RepeatedAndZeroIdsDoNotMixUpPayloads) {
  Mailbox<ServerCall> uploads;
  StartServer([&](RpcServer& server) { server.Handle(11, [&](ServerCall call) { uploads.Put(std::move(call)); }); });
  for (const uint64_t id : {uint64_t{0}, uint64_t{1}}) {
    RawPeer peer = RawPeer::ConnectTo(server_->port());
    ASSERT_TRUE(peer.ShakeHandsAsClient());
    ASSERT_TRUE(peer.SendFrame({.kind = FrameKind::kRequest, .method = 11, .id = id}));
    ASSERT_TRUE(peer.SendFrame({.kind = FrameKind::kRequest, .method = 11, .id = id, .payload_bytes = 4}));
    ASSERT_TRUE(peer.Send("data"));
    ServerCall first = uploads.Take();
    ServerCall second = uploads.Take();
    std::move(first).Reply("one");
    auto memory = std::make_shared<std::string>(4, '?');
    std::move(second).ReceivePayload({std::as_writable_bytes(std::span(*memory))}, memory,
                                     [memory](ServerCall call, Result<void>) { std::move(call).Reply(*memory); });
    EXPECT_EQ(peer.ReceiveFrame()->body, "one");
    EXPECT_EQ(peer.ReceiveFrame()->body, "data");
  }
  ExpectHealthy();
}

// What a client must survive from a server.
class LyingServerTest : public RpcFixture {
 protected:
  // One call against a peer that answers the request (already received) by `lie`.
  Result<std::string> CallAgainst(const std::function<void(RawPeer&, uint64_t id)>& lie) {
    RawListener listener;
    const auto client = RpcClient::Create(pool_, ClientTo(listener.port()));
    Mailbox<Result<std::string>> answers;
    client->CallAsync(kEcho, "", {}, Soon(), [&](Result<std::string> reply) { answers.Put(std::move(reply)); });
    RawPeer peer = listener.Accept();
    EXPECT_TRUE(peer.ShakeHandsAsServer());
    const auto request = peer.ReceiveFrame();
    EXPECT_TRUE(request);
    lie(peer, request->header.id);
    return answers.Take();
  }
};

TEST_F(LyingServerTest, EveryKindOfLieIsAnErrorOfTheCall) {
  const std::vector<std::function<void(RawPeer&, uint64_t)>> lies = {
      [](RawPeer& peer, uint64_t) { (void)peer.Send("HTTP/1.1 400 Bad Request\r\n\r\n"); },
      [](RawPeer& peer, uint64_t id) {
        (void)peer.Send(Bytes({.kind = FrameKind::kResponse, .id = id, .body_bytes = 0xffffffffu}));
      },
      [](RawPeer& peer, uint64_t id) {
        (void)peer.Send(Bytes({.kind = FrameKind::kResponse, .id = id, .payload_bytes = UINT64_MAX}));
      },
      [](RawPeer& peer, uint64_t id) { (void)peer.SendFrame({.kind = FrameKind::kRequest, .id = id}); },
      [](RawPeer& peer, uint64_t) { (void)peer.SendFrame({.kind = FrameKind::kWelcome}); },
      [](RawPeer& peer, uint64_t id) {
        (void)peer.SendFrame({.kind = FrameKind::kResponse, .id = id + 1000}, "an answer nobody waits for");
        peer.Close();
      },
      [](RawPeer& peer, uint64_t) { peer.Close(); },
  };
  for (size_t i = 0; i < lies.size(); ++i) {
    const auto reply = CallAgainst(lies[i]);
    ASSERT_FALSE(reply) << "lie " << i;
    EXPECT_EQ(reply.error().code(), ErrorCode::RPC_FAIL) << reply.error().ToString();
    EXPECT_THAT(reply.error().message(), testing::HasSubstr("connection to 127.0.0.1:"));
  }
}

TEST_F(LyingServerTest, WelcomeThatIsNoneIsAnError) {
  RawListener listener;
  for (const std::string body : {"", "garbage", "\xdd\xff\xff\xff\xff"}) {
    const auto client = RpcClient::Create(pool_, ClientTo(listener.port()));
    Mailbox<Result<std::string>> answers;
    client->CallAsync(kEcho, "", {}, Soon(), [&](Result<std::string> reply) { answers.Put(std::move(reply)); });
    RawPeer peer = listener.Accept();
    ASSERT_TRUE(peer.ReceiveFrame());
    ASSERT_TRUE(peer.SendFrame({.kind = FrameKind::kWelcome}, body));
    EXPECT_FALSE(answers.Take());
    EXPECT_TRUE(peer.AwaitClose());
  }
}

}  // namespace
}  // namespace mooncake::rpc
