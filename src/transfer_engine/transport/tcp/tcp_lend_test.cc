// Payload that is sent without a copy: who holds the memory, and until when.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <thread>

#include "transfer_engine/transport/tcp/page_pipe.h"
#include "transfer_engine/transport/tcp/tcp_raw_peer.h"

namespace mooncake::tcp {
namespace {

using Bytes = std::vector<std::byte>;
constexpr auto kRead = TransferOpcode::kRead;
constexpr auto kWrite = TransferOpcode::kWrite;
constexpr uint32_t kLong = 1 << 20;  // lent under the options below

TcpOptions Lending() {
  TcpOptions options;
  options.lanes_per_peer = 1;
  options.lend_bytes = kLong;
  return options;
}

uint64_t Counted(Node& node, const char* name) {
  return node.metrics().GetCounter(name, "").Value();
}

class TcpLoanTest : public testing::Test {
 protected:
  TcpLoanTest() {
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<std::byte>(i * 7 + i / 4096);
    region_ = target_.Register(memory_);
  }
  ~TcpLoanTest() override {
    if (region_ == nullptr) return;
    EXPECT_TRUE(target_.Unregister(region_, Soon()));
  }

  RawConnection Admitted() {
    RawConnection connection = RawConnection::To(target_.transport().port());
    EXPECT_EQ(connection.Greet({.target = target_.generation(), .instance = ++instances_}), ErrorCode::OK);
    return connection;
  }
  Request Ask(uint64_t id, uint64_t offset = 0, uint32_t length = kLong) {
    return {.length = length, .id = id, .key = region_->published.key, .address = region_->address + offset};
  }
  Request GiveBack(Request request, uint64_t id) {
    request.operation = Operation::kReturn;
    request.id = id;
    return request;
  }
  // The payload of one read that was lent.
  void TakeLoan(RawConnection& connection, const Request& request) {
    ASSERT_TRUE(connection.Send(request));
    Reply reply;
    ASSERT_TRUE(connection.Receive(reply));
    ASSERT_EQ(reply.status, ToInt(ErrorCode::OK));
    ASSERT_EQ(reply.lent, 1u);
    ASSERT_EQ(reply.length, request.length);
    Bytes got(reply.length);
    ASSERT_TRUE(connection.Receive(got.data(), got.size()));
    ASSERT_TRUE(std::ranges::equal(got, std::span(memory_).subspan(request.address - region_->address, got.size())));
  }
  bool IsHeld() {
    EXPECT_TRUE(target_.regions().Unpublish(region_->address));
    const bool free = target_.regions().WaitUnused(region_, Deadline::After(Duration::zero())).has_value();
    return !free;
  }

  Bytes memory_ = Bytes(8 << 20);
  Node target_{Lending()};
  std::shared_ptr<Region> region_;
  uint64_t instances_ = 0;
};

TEST_F(TcpLoanTest, MemoryIsHeldUntilTheLoanIsReturned) {
  auto connection = Admitted();
  TakeLoan(connection, Ask(0));
  ASSERT_TRUE(connection.Send(GiveBack(Ask(0), 1)));
  Reply reply;
  ASSERT_TRUE(connection.Receive(reply));
  EXPECT_EQ(reply.status, ToInt(ErrorCode::OK));
  EXPECT_EQ(reply.id, 1u);
  EXPECT_EQ(reply.length, 0u);
  EXPECT_FALSE(IsHeld());
  region_ = nullptr;
}

TEST_F(TcpLoanTest, WhoDoesNotReturnHearsNothingMoreOnceTheMemoryIsWithdrawn) {
  auto connection = Admitted();
  TakeLoan(connection, Ask(0));
  EXPECT_TRUE(IsHeld()) << "all of it is in the peer's socket, and has not been returned";
  EXPECT_TRUE(target_.regions().WaitUnused(region_, Soon())) << "the owner does not wait for a peer that has stopped";
  region_ = nullptr;
  (void)connection.Send(GiveBack({.length = kLong, .address = 1}, 1));
  Reply reply;
  EXPECT_FALSE(connection.Receive(reply)) << "what was read may have been overwritten meanwhile";
}

TEST_F(TcpLoanTest, LoansAreReturnedInTheirOrderOrNotAtAll) {
  const auto broken = [&](const Request& request) {
    auto connection = Admitted();
    TakeLoan(connection, Ask(0));
    TakeLoan(connection, Ask(1, kLong));
    ASSERT_TRUE(connection.Send(request));
    EXPECT_TRUE(connection.IsClosedByPeer());
  };
  broken(GiveBack(Ask(0, kLong), 2));         // the second first
  broken(GiveBack(Ask(0, 0, kLong / 2), 2));  // half of it
  broken(GiveBack(Ask(0, 2 * kLong), 2));     // what was not lent
  auto connection = Admitted();
  ASSERT_TRUE(connection.Send(GiveBack(Ask(0), 0)));
  EXPECT_TRUE(connection.IsClosedByPeer()) << "nothing was lent";
}

TEST_F(TcpLoanTest, WhoKeepsAllLoansIsSentAway) {
  auto connection = Admitted();
  // Small parts of a long transfer.
  Request request = Ask(0, 0, kMinLentBytes);
  request.after = kLong;
  bool served = true;
  for (size_t i = 0; i < kMaxLent + 8 && served; ++i) {
    request.id = i;
    Reply reply;
    Bytes got(kMinLentBytes);
    served = connection.Send(request) && connection.Receive(reply) && connection.Receive(got.data(), got.size());
    ASSERT_TRUE(!served || reply.lent == 1);
  }
  EXPECT_FALSE(served);
  EXPECT_TRUE(connection.IsClosedByPeer());
}

TEST_F(TcpLoanTest, ShortTransfersAreCopied) {
  auto connection = Admitted();
  ASSERT_TRUE(connection.Send(Ask(0, 0, kLong - 1)));
  Reply reply;
  ASSERT_TRUE(connection.Receive(reply));
  EXPECT_EQ(reply.lent, 0u);
}

TEST_F(TcpLoanTest, BothDirectionsAtOddAddressesArriveWhole) {
  Node initiator(Lending());
  Bytes local(memory_.size());
  const size_t length = memory_.size() - 5000;
  Job job{.local = std::span(local).subspan(13, length),
          .target = target_.Describe(),
          .region = region_->published,
          .address = region_->address + 4091};
  ASSERT_TRUE(RunJob(initiator.transport(), job));
  EXPECT_TRUE(std::ranges::equal(job.local, std::span(memory_).subspan(4091, length)));
  EXPECT_EQ(Counted(target_, "transfer_tcp_lent_bytes_total"), length);
  job.opcode = kWrite;
  std::ranges::reverse(local);
  ASSERT_TRUE(RunJob(initiator.transport(), job));
  EXPECT_TRUE(std::ranges::equal(job.local, std::span(memory_).subspan(4091, length)));
  EXPECT_EQ(Counted(initiator, "transfer_tcp_lent_bytes_total"), length);
  EXPECT_FALSE(IsHeld()) << "nothing stays lent";
  region_ = nullptr;
}

TEST_F(TcpLoanTest, MemoryThatHasNoPagesToLendIsRefusedOrCopied) {
  std::optional<ssize_t> sent;
  std::thread other([&] {  // does not block SIGPIPE
    sent = PagePipe::OfThread().Send(0, memory_.data(), memory_.size(), false);
  });
  other.join();
  EXPECT_EQ(sent, std::nullopt);
  void* const nothing = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::thread loop([&] {
    PagePipe::AllowOnThisThread();
    sent = PagePipe::OfThread().Send(0, static_cast<const std::byte*>(nothing), 4096, false);
  });
  loop.join();
  EXPECT_EQ(sent, std::nullopt);
  munmap(nothing, 4096);
}

// A target by hand that lends what it sends.
class TcpLentReadTest : public testing::Test {
 protected:
  Results& Begin() {
    Submit(initiator_.transport(), job_.With(results_.At(0)));
    return results_;
  }
  void Lend(RawConnection& connection) {
    Request request;
    ASSERT_TRUE(connection.Receive(request));
    ASSERT_EQ(request.operation, Operation::kRead);
    ASSERT_TRUE(connection.Send(Reply{.id = request.id, .length = request.length, .lent = 1}));
    const Bytes payload(request.length, std::byte{5});
    ASSERT_TRUE(connection.Send(payload.data(), payload.size()));
    read_ = request;
  }
  void HearReturn(RawConnection& connection) {
    Request request;
    ASSERT_TRUE(connection.Receive(request));
    ASSERT_EQ(request.operation, Operation::kReturn);
    ASSERT_EQ(request.address, read_.address);
    ASSERT_EQ(request.length, read_.length);
    ASSERT_EQ(request.id, read_.id + 1);
    ASSERT_EQ(results_.ended(), 0u) << "not good before the target has said so";
    return_id_ = request.id;
  }

  RawTarget target_;
  Node initiator_{Lending()};
  Bytes local_ = Bytes(100'000);
  Job job_ = target_.Serve(kRead, local_);
  Results results_{1};
  Request read_;
  uint64_t return_id_ = 0;
};

TEST_F(TcpLentReadTest, EndsWhenTheReturnIsAnswered) {
  Begin();
  auto connection = target_.AcceptAndWelcome();
  Lend(connection);
  HearReturn(connection);
  ASSERT_TRUE(connection.Send(Reply{.id = return_id_}));
  EXPECT_TRUE(*results_.Wait()[0]);
  EXPECT_EQ(local_, Bytes(local_.size(), std::byte{5}));
}

TEST_F(TcpLentReadTest, IsReadAgainWhenTheConnectionEndsBeforeThat) {
  Begin();
  {
    auto connection = target_.AcceptAndWelcome();
    Lend(connection);
    HearReturn(connection);
  }
  auto connection = target_.AcceptAndWelcome();
  Lend(connection);
  HearReturn(connection);
  ASSERT_TRUE(connection.Send(Reply{.id = return_id_}));
  EXPECT_TRUE(*results_.Wait()[0]);
}

TEST_F(TcpLentReadTest, IsNoSuccessWhenTheAnswerNeverComes) {
  job_.deadline = Soon(std::chrono::milliseconds(200));
  Begin();
  auto connection = target_.AcceptAndWelcome();
  Lend(connection);
  HearReturn(connection);
  const auto& end = *results_.Wait()[0];
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().code(), ErrorCode::TRANSFER_TIMEOUT);
}

TEST_F(TcpLentReadTest, OneThatIsGivenUpIsReturnedAllTheSame) {
  Begin();
  auto connection = target_.AcceptAndWelcome();
  Request request;
  ASSERT_TRUE(connection.Receive(request));
  const Bytes payload(request.length, std::byte{5});
  ASSERT_TRUE(connection.Send(Reply{.id = request.id, .length = request.length, .lent = 1}));
  ASSERT_TRUE(connection.Send(payload.data(), 50'000));
  initiator_.transport().Cancel(1);
  EXPECT_FALSE(*results_.Wait()[0]);
  ASSERT_TRUE(connection.Send(payload.data(), payload.size() - 50'000));
  ASSERT_TRUE(connection.Receive(request));
  EXPECT_EQ(request.operation, Operation::kReturn);
}

TEST(TcpLentWriteTest, GivenUpBeforeItsEndTheTargetGetsNoMoreOfIt) {
  for (const bool lent : {true, false}) {
    TcpOptions options = Lending();
    if (!lent) options.lend_bytes = 0;
    RawTarget target;
    Node initiator(options);
    Bytes local(kLong, std::byte{3});
    Bytes other(128 << 10);  // too long to ask for a connection of its own
    Results results(2);
    Submit(initiator.transport(), target.Serve(kWrite, local).With(results.At(0)));
    auto connection = target.AcceptAndWelcome();
    Request request;
    Bytes payload(kLong);
    ASSERT_TRUE(connection.Receive(request));
    ASSERT_TRUE(connection.Receive(payload.data(), payload.size()));
    EXPECT_EQ(payload, local);
    initiator.transport().Cancel(1);
    Job next = target.Serve(kRead, other);
    next.tag = 2;
    Submit(initiator.transport(), next.With(results.At(1)));
    if (lent) {
      // Pages of it may still lie in the connection, and belong to the caller again.
      EXPECT_TRUE(connection.IsClosedByPeer());
      connection = target.AcceptAndWelcome();
    }
    ASSERT_TRUE(connection.Receive(request));
    EXPECT_EQ(request.operation, Operation::kRead);
    if (!lent) {
      ASSERT_TRUE(connection.Send(Reply{.id = request.id - 1}));
    }
    ASSERT_TRUE(connection.Send(Reply{.id = request.id, .length = request.length}));
    ASSERT_TRUE(connection.Send(payload.data(), other.size()));
    const auto& ends = results.Wait();
    EXPECT_EQ(ends[0]->error().code(), ErrorCode::TRANSFER_CANCELED);
    EXPECT_TRUE(*ends[1]) << "its neighbour goes on";
  }
}

TEST(TcpLentWriteTest, WhatFollowsOneThatWasGivenUpCannotBeOvertakenByIt) {
  TcpOptions options = Lending();
  options.lanes_per_peer = 2;
  options.window_bytes = options.chunk_bytes;
  RawTarget target;
  Node initiator(options);
  Bytes local(2 * kLong, std::byte{3});
  Bytes other(128 << 10);  // too long to ask for a connection of its own
  Bytes payload(kLong);
  Results results(2);
  Request request;
  Submit(initiator.transport(), target.Serve(kWrite, local).With(results.At(0)));
  std::vector<RawConnection> earlier;
  for (int i = 0; i < 2; ++i) {
    earlier.push_back(target.AcceptAndWelcome());
    ASSERT_TRUE(earlier.back().Receive(request));
    ASSERT_TRUE(earlier.back().Receive(payload.data(), payload.size()));
  }
  initiator.transport().Cancel(1);
  Job next = target.Serve(kWrite, other);
  next.tag = 2;
  Submit(initiator.transport(), next.With(results.At(1)));
  // A target that answers one hello may still be reading what has come over the other connection.
  auto first = target.Accept();
  const uint32_t slot = first.Welcome(target.generation()).slot;
  auto second = target.Accept();
  EXPECT_NE(second.Welcome(target.generation()).slot, slot) << "it has let go of both";
  RawConnection& used = slot == 0 ? first : second;  // both are empty
  ASSERT_TRUE(used.Receive(request));
  ASSERT_TRUE(used.Receive(payload.data(), other.size()));
  EXPECT_EQ(request.length, other.size());
  ASSERT_TRUE(used.Send(Reply{.id = request.id}));
  EXPECT_TRUE(*results.Wait()[1]);
}

}  // namespace
}  // namespace mooncake::tcp
