// Strangers on the data port, and targets that lie: each costs its own connection and nothing else.
#include <gtest/gtest.h>

#include <thread>

#include "transfer_engine/transport/tcp/tcp_raw_peer.h"
#include "transfer_engine/transport/tcp/tcp_test_util.h"

namespace mooncake::tcp {
namespace {

using Bytes = std::vector<std::byte>;
constexpr auto kRead = TransferOpcode::kRead;
constexpr auto kWrite = TransferOpcode::kWrite;

class TcpHostileTest : public ::testing::Test {
 protected:
  TcpHostileTest() {
    TcpOptions options;
    options.handshake_timeout = std::chrono::milliseconds(50);
    options.max_connections = 8;
    target_.emplace(options);
    region_ = target_->Register(memory_);
  }
  ~TcpHostileTest() override { ExpectServed(); }

  RawConnection Connect() { return RawConnection::To(target_->transport().port()); }
  RawConnection Admitted() {
    RawConnection connection = Connect();
    EXPECT_EQ(connection.Greet({.target = target_->generation(), .instance = ++instances_}), ErrorCode::OK);
    return connection;
  }
  Request WriteOf(uint32_t length) {
    return {
        .operation = Operation::kWrite, .length = length, .key = region_->published.key, .address = region_->address};
  }
  // Whatever went before, an honest peer is served.
  void ExpectServed() {
    Bytes local(4096);
    const Job job{
        .local = local, .target = target_->Describe(), .region = region_->published, .address = region_->address};
    const auto result = RunJob(honest_.transport(), job);
    EXPECT_TRUE(result) << result.error().ToString();
  }

  Bytes memory_ = Bytes(1 << 20, std::byte{7});
  std::optional<Node> target_;
  uint64_t instances_ = 0;
  Node honest_;
  std::shared_ptr<Region> region_;
};

TEST_F(TcpHostileTest, GarbageIsSentAway) {
  for (const std::string garbage : {"G", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01\x02"}) {
    auto stranger = Connect();
    ASSERT_TRUE(stranger.Send(garbage.data(), garbage.size()));
    EXPECT_TRUE(stranger.IsClosedByPeer());
  }
  auto zeros = Connect();
  (void)zeros.Send(Bytes(100'000).data(), 100'000);
  EXPECT_TRUE(zeros.IsClosedByPeer());
}

TEST_F(TcpHostileTest, WhoDoesNotFinishTheHelloIsSentAway) {
  auto silent = Connect();
  EXPECT_TRUE(silent.IsClosedByPeer());
  auto half = Connect();
  const Hello hello{.target = target_->generation()};
  ASSERT_TRUE(half.Send(&hello, sizeof(hello) - 1));
  EXPECT_TRUE(half.IsClosedByPeer());
}

TEST_F(TcpHostileTest, AnotherVersionOrProcessIsToldSo) {
  auto old = Connect();
  EXPECT_EQ(old.Greet({.version = kVersion + 1, .target = target_->generation()}), ErrorCode::INVALID_VERSION);
  EXPECT_TRUE(old.IsClosedByPeer());
  auto lost = Connect();
  EXPECT_EQ(lost.Greet({.target = Uuid::Random()}), ErrorCode::STALE_SEGMENT);
  EXPECT_TRUE(lost.IsClosedByPeer());
}

TEST_F(TcpHostileTest, WhatIsNoRequestEndsTheConnection) {
  Request absurd = WriteOf(kMaxRequestBytes + 1);
  Request endless{.length = UINT32_MAX, .key = region_->published.key, .address = region_->address};
  Request unknown{.operation = static_cast<Operation>(9)};
  Request garbage{.magic = 0x1234};
  for (const Request& request : {absurd, endless, unknown, garbage}) {
    auto stranger = Admitted();
    ASSERT_TRUE(stranger.Send(request));
    EXPECT_TRUE(stranger.IsClosedByPeer());
  }
  EXPECT_EQ(memory_, Bytes(memory_.size(), std::byte{7}));
}

TEST_F(TcpHostileTest, APayloadThatIsRefusedGoesNowhere) {
  auto stranger = Admitted();
  Request request = WriteOf(1 << 20);
  request.key ^= 1;
  const Bytes payload(1 << 20, std::byte{1});
  ASSERT_TRUE(stranger.Send(request) && stranger.Send(payload.data(), payload.size()));
  Reply reply;
  ASSERT_TRUE(stranger.Receive(reply));
  EXPECT_EQ(reply.status, ToInt(ErrorCode::ADDRESS_NOT_REGISTERED));
  request = WriteOf(10);
  request.id = 1;
  ASSERT_TRUE(stranger.Send(request) && stranger.Send(payload.data(), 10));
  ASSERT_TRUE(stranger.Receive(reply));
  EXPECT_EQ(reply.status, ToInt(ErrorCode::OK)) << "the next request begins where the payload ended";
  EXPECT_EQ(std::ranges::count(memory_, std::byte{1}), 10);
}

TEST_F(TcpHostileTest, ARangeThatWrapsOrReachesFurtherIsRefusedWhole) {
  auto stranger = Admitted();
  Request whole = WriteOf(8);
  whole.operation = Operation::kRead;
  for (const auto& [before, after] : {std::pair<uint64_t, uint64_t>{1, 0},
                                      {0, 1 << 20},
                                      {UINT64_MAX, 0},
                                      {0, UINT64_MAX},
                                      {0, UINT64_MAX - 7},
                                      {UINT64_MAX - 7, UINT64_MAX}}) {
    whole.before = before;
    whole.after = after;
    Reply reply;
    ASSERT_TRUE(stranger.Send(whole) && stranger.Receive(reply));
    EXPECT_EQ(reply.status, ToInt(ErrorCode::ADDRESS_NOT_REGISTERED)) << before << " " << after;
    ++whole.id;
  }
}

TEST_F(TcpHostileTest, HalfARequestAndGoneLeavesNoUse) {
  for (const size_t bytes : {size_t{1}, sizeof(Request) - 1, sizeof(Request), sizeof(Request) + 100}) {
    auto stranger = Admitted();
    Bytes text(sizeof(Request) + 100);
    const Request request = WriteOf(4096);
    std::memcpy(text.data(), &request, sizeof(request));
    ASSERT_TRUE(stranger.Send(text.data(), bytes));
  }
  EXPECT_TRUE(target_->Unregister(region_, Soon()));
  region_ = target_->Register(memory_);
}

TEST_F(TcpHostileTest, ConnectionsBeyondTheLimitAreClosedAtOnce) {
  std::vector<RawConnection> holders;
  for (int i = 0; i < 8; ++i) holders.push_back(Admitted());
  auto more = Connect();
  EXPECT_TRUE(more.IsClosedByPeer());
  for (RawConnection& holder : holders) {
    const Request request{.length = 8, .key = region_->published.key, .address = region_->address};
    std::array<std::byte, sizeof(Reply) + 8> answer;
    EXPECT_TRUE(holder.Send(request) && holder.Receive(answer.data(), answer.size()));
  }
  holders.clear();  // which the target notices when it does
  const Deadline limit = Soon();
  while (target_->transport().open_sessions() > 0 && !limit.Passed()) std::this_thread::yield();
}

TEST_F(TcpHostileTest, AFloodOfRequestsWithoutReadingIsBounded) {
  auto flood = RawConnection::To(target_->transport().port(), 4096);
  ASSERT_EQ(flood.Greet({.target = target_->generation()}), ErrorCode::OK);
  const timeval soon{.tv_usec = 200'000};
  flood.LimitSending(soon);
  Request request{.length = 1 << 20, .key = region_->published.key, .address = region_->address};
  size_t taken = 0;
  while (taken < 10'000'000 && flood.Send(request)) ++taken, ++request.id;
  EXPECT_LT(taken, 10'000'000u) << "the target stopped reading";
}

// --- targets that lie to an initiator ---

class TcpLyingTargetTest : public ::testing::Test {
 protected:
  // Begins an operation that the test answers by hand.
  Results& Begin(TransferOpcode opcode) {
    Submit(initiator_.transport(), target_.Serve(opcode, local_).With(results_.At(0)));
    return results_;
  }
  Request Hear(RawConnection& connection) {
    Request request;
    EXPECT_TRUE(connection.Receive(request));
    return request;
  }
  ErrorCode End() {
    const auto& result = *results_.Wait()[0];
    return result ? ErrorCode::OK : result.error().code();
  }

  RawTarget target_;
  Bytes local_ = Bytes(64 << 10, std::byte{3});
  Results results_{1};
  Node initiator_;
};

TEST_F(TcpLyingTargetTest, WhatIsNoReplyCostsTwoConnectionsAndThenTheOperation) {
  const auto no_magic = [](Reply& reply) { reply.magic ^= 1; };
  const auto wrong_id = [](Reply& reply) { ++reply.id; };
  const auto too_long = [](Reply& reply) { reply.length = 1 << 20; };
  const auto too_short = [](Reply& reply) { reply.length = 5; };
  const auto refusal_with_payload = [](Reply& reply) { reply.status = ToInt(ErrorCode::ADDRESS_NOT_REGISTERED); };
  const std::vector<std::function<void(Reply&)>> lies = {no_magic, wrong_id, too_long, too_short, refusal_with_payload};
  for (const auto& lie : lies) {
    Results results(1);
    Submit(initiator_.transport(), target_.Serve(kRead, local_).With(results.At(0)));
    for (int attempt = 0; attempt < 2; ++attempt) {
      auto connection = target_.AcceptAndWelcome();
      const Request request = Hear(connection);
      Reply reply{.id = request.id, .length = request.length};
      lie(reply);
      ASSERT_TRUE(connection.Send(reply));
      EXPECT_TRUE(connection.IsClosedByPeer());
    }
    const auto& result = *results.Wait()[0];
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), ErrorCode::TRANSFER_FAIL);
    EXPECT_NE(result.error().message().find(std::to_string(target_.port())), std::string::npos);
  }
}

TEST_F(TcpLyingTargetTest, AShortPayloadIsAskedForOnceMore) {
  Begin(kRead);
  {
    auto connection = target_.AcceptAndWelcome();
    const Request request = Hear(connection);
    ASSERT_TRUE(connection.Send(Reply{.id = request.id, .length = request.length}));
    ASSERT_TRUE(connection.Send(Bytes(1000, std::byte{1}).data(), 1000));
  }
  auto connection = target_.AcceptAndWelcome();
  const Request request = Hear(connection);
  const Bytes payload(request.length, std::byte{8});
  ASSERT_TRUE(connection.Send(Reply{.id = request.id, .length = request.length}));
  ASSERT_TRUE(connection.Send(payload.data(), payload.size()));
  EXPECT_EQ(End(), ErrorCode::OK);
  EXPECT_EQ(local_, payload);
}

TEST_F(TcpLyingTargetTest, DataAfterTheEndTouchesNothing) {
  Begin(kRead);
  auto connection = target_.AcceptAndWelcome();
  const Request request = Hear(connection);
  ASSERT_TRUE(connection.Send(Reply{.id = request.id, .length = request.length}));
  const Bytes payload(request.length + 500, std::byte{8});
  ASSERT_TRUE(connection.Send(payload.data(), payload.size()));
  EXPECT_EQ(End(), ErrorCode::OK);
  EXPECT_TRUE(connection.IsClosedByPeer());
  EXPECT_EQ(local_, Bytes(local_.size(), std::byte{8}));
}

TEST_F(TcpLyingTargetTest, AWriteThatIsAcknowledgedTooEarlyIsNoSuccess) {
  // One request of more than the kernel takes in advance.
  Node writer({.lanes_per_peer = 1, .chunk_bytes = 16 << 20, .window_bytes = 16 << 20});
  Bytes large(16 << 20);
  RawTarget narrow(4096);
  Results results(1);
  Submit(writer.transport(), narrow.Serve(kWrite, large).With(results.At(0)));
  for (int attempt = 0; attempt < 2; ++attempt) {
    auto connection = narrow.AcceptAndWelcome();
    ASSERT_TRUE(connection.Send(Reply{.id = Hear(connection).id}));
    EXPECT_TRUE(connection.IsClosedByPeer());
  }
  EXPECT_FALSE(*results.Wait()[0]);
}

TEST_F(TcpLyingTargetTest, WhoIsNoTransferEngineIsNamed) {
  Begin(kRead);
  auto connection = target_.Accept();
  Hello hello;
  ASSERT_TRUE(connection.Receive(hello));
  ASSERT_TRUE(connection.Send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", 47));
  EXPECT_EQ(End(), ErrorCode::TRANSFER_FAIL);
}

TEST_F(TcpLyingTargetTest, AnAnswerInTheNameOfAnotherProcessIsStale) {
  Begin(kRead);
  auto connection = target_.Accept();
  connection.Welcome(Uuid::Random());
  EXPECT_EQ(End(), ErrorCode::STALE_SEGMENT);
}

}  // namespace
}  // namespace mooncake::tcp
