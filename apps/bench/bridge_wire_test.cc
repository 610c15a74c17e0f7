// The wire of the bridge benchmark keeps to its model, by hand.
#include "bench/bridge_wire.h"

#include <gtest/gtest.h>

#include <cstring>

namespace mooncake::bench {
namespace {

using std::chrono::microseconds;

class PacedWireTest : public testing::Test {
 protected:
  // 1000 bytes a microsecond, 10 us to complete, 2 us per request.
  static WireOptions Options() {
    return {.bytes_per_second = 1e9, .latency = microseconds(10), .request_cost = microseconds(2), .depth = 2};
  }

  void Start(TransferOpcode opcode, HostRange local, size_t at) {
    TransferOperation operation;
    operation.opcode = opcode;
    operation.local = local;
    operation.target = wire_.target();
    operation.region = wire_.region();
    operation.target_address = wire_.region().address + at;
    const size_t index = ended_us_.size();
    ended_us_.push_back(-1);
    operation.done = [this, index](Result<void> result) {
      ended_us_[index] = std::chrono::duration<double, std::micro>(now_.time_since_epoch()).count();
      results_.push_back(std::move(result));
    };
    std::vector<TransferOperation> one;
    one.push_back(std::move(operation));
    wire_.Submit(std::move(one), Caller::kGoesOn);
  }
  // Until nothing is left to come.
  void Run() {
    for (auto next = wire_.NextAt(); next; next = wire_.NextAt()) {
      now_ = std::max(now_, *next);
      wire_.SetNow(now_);
      while (wire_.Advance(now_)) continue;
    }
  }

  std::vector<std::byte> peer_ = std::vector<std::byte>(1'000'000, std::byte{3});
  std::vector<std::byte> local_ = std::vector<std::byte>(1'000'000, std::byte{7});
  PacedWire wire_{Options(), peer_, PacedWire::Time::kByHand};
  TimePoint now_{};
  std::vector<double> ended_us_;
  std::vector<Result<void>> results_;
};

TEST_F(PacedWireTest, AWriteTakesCostBytesAndLatency) {
  Start(TransferOpcode::kWrite, HostRange(local_).first(400'000), 100);
  Run();
  EXPECT_EQ(ended_us_, std::vector<double>{2 + 400 + 10});
  EXPECT_EQ(std::memcmp(peer_.data() + 100, local_.data(), 400'000), 0);
  EXPECT_EQ(peer_[99], std::byte{3});
  EXPECT_EQ(peer_[400'100], std::byte{3});
}

TEST_F(PacedWireTest, WritesFollowEachOtherAndDoNotWaitForCompletions) {
  Start(TransferOpcode::kWrite, HostRange(local_).first(100'000), 0);
  Start(TransferOpcode::kWrite, HostRange(local_).first(100'000), 100'000);
  Run();
  EXPECT_EQ(ended_us_, (std::vector<double>{112, 214}));
}

TEST_F(PacedWireTest, AReadsRequestWaitsBehindWritesButItsDataDoesNot) {
  Start(TransferOpcode::kWrite, HostRange(local_).first(100'000), 0);
  Start(TransferOpcode::kRead, HostRange(local_).subspan(500'000, 1000), 999'000);
  Run();
  EXPECT_EQ(ended_us_, (std::vector<double>{112, 102 + 2 + 1 + 10}));
  EXPECT_EQ(local_[500'000], std::byte{3});
  EXPECT_EQ(local_[501'000], std::byte{7});
}

TEST_F(PacedWireTest, BeyondItsDepthARequestWaitsForACompletion) {
  for (size_t i = 0; i < 3; ++i) Start(TransferOpcode::kWrite, HostRange(local_).first(1000), 1000 * i);
  Run();
  EXPECT_EQ(ended_us_, (std::vector<double>{13, 16, 13 + 13}));
}

TEST_F(PacedWireTest, WhatIsNotThePeersIsRefused) {
  Start(TransferOpcode::kWrite, HostRange(local_).first(2), 999'999);
  ASSERT_EQ(results_.size(), 1u);
  EXPECT_EQ(results_[0].error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
}

TEST(PacedWireOnItsThreadTest, EndsWhatIsLeftWhenItIsClosed) {
  std::vector<std::byte> peer(1 << 20);
  std::vector<std::byte> local(1 << 20);
  Result<void> ended;
  {
    PacedWire wire({.bytes_per_second = 1}, peer, PacedWire::Time::kWall);
    std::vector<TransferOperation> one(1);
    one[0].opcode = TransferOpcode::kWrite;
    one[0].local = HostRange(local);
    one[0].target_address = wire.region().address;
    one[0].done = [&](Result<void> result) { ended = std::move(result); };
    wire.Submit(std::move(one), Caller::kGoesOn);
  }
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code(), ErrorCode::SHUTTING_DOWN);
}

}  // namespace
}  // namespace mooncake::bench
