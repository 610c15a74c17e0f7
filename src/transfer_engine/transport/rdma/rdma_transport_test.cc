// The RDMA transport between two processes' worth of objects, on devices that fail when told to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "transfer_engine/transport/rdma/test_fake_verbs.h"
#include "transfer_engine/transport/rdma/test_rdma_node.h"

namespace mooncake::rdma {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr size_t kMemory = 4 << 20;

RdmaOptions Fast() {
  RdmaOptions options;
  options.slice_bytes = 64 << 10;
  options.pause_first = milliseconds(1);
  options.pause_last = milliseconds(20);
  options.link_settle = milliseconds(1);
  options.drain_limit = milliseconds(50);
  options.cancel_grace = milliseconds(20);
  return options;
}

// Becomes true while other threads work; polled because there is nothing to wait on.
template <typename Condition>
bool Eventually(Condition condition, Duration limit = seconds(60)) {
  const Deadline deadline = Deadline::After(limit);
  while (!condition()) {
    if (deadline.Passed()) return false;
    std::this_thread::yield();
  }
  return true;
}

class RdmaTransportTest : public testing::Test {
 protected:
  void OpenNodes(std::vector<std::string> here, std::vector<std::string> there, const RdmaOptions& options = Fast()) {
    here_ = std::make_unique<TestNode>(TestNodeOptions{.devices = here, .rdma = options, .verbs = &fabric_.verbs()});
    there_ = std::make_unique<TestNode>(TestNodeOptions{.devices = there, .rdma = options, .verbs = &fabric_.verbs()});
    ASSERT_TRUE(here_->Open().has_value());
    ASSERT_TRUE(there_->Open().has_value());
    ASSERT_TRUE(here_->Register(local_).has_value());
    ASSERT_TRUE(there_->Register(remote_).has_value());
    target_ = there_->Describe();
  }
  void OpenOneRail(const RdmaOptions& options = Fast()) { OpenNodes({"fake0"}, {"fake1"}, options); }
  void OpenTwoRails(const RdmaOptions& options = Fast()) { OpenNodes({"fake0", "fake2"}, {"fake1", "fake3"}, options); }

  Result<void> Write(size_t offset, size_t bytes, Duration limit = seconds(100)) {
    return here_->Transfer(TransferOpcode::kWrite, local_.Range(offset, bytes), target_, remote_.address() + offset,
                           limit);
  }
  Result<void> Read(size_t offset, size_t bytes, Duration limit = seconds(100)) {
    return here_->Transfer(TransferOpcode::kRead, local_.Range(offset, bytes), target_, remote_.address() + offset,
                           limit);
  }
  void StartWrite(TransferGroup& group, size_t offset, size_t bytes, Duration limit = seconds(100)) {
    here_->Start(group, TransferOpcode::kWrite, local_.Range(offset, bytes), target_, remote_.address() + offset,
                 limit);
  }
  void StartRead(TransferGroup& group, size_t offset, size_t bytes, Duration limit = seconds(100)) {
    here_->Start(group, TransferOpcode::kRead, local_.Range(offset, bytes), target_, remote_.address() + offset, limit);
  }
  // Queue pairs are up, nothing is under way.
  void Connect() { ASSERT_TRUE(Write(0, 1).has_value()); }

  FakeFabric fabric_{4};
  TestMemory local_{kMemory};
  TestMemory remote_{kMemory};
  std::unique_ptr<TestNode> here_;
  std::unique_ptr<TestNode> there_;
  SegmentPtr target_;
};

TEST_F(RdmaTransportTest, MovesBytesOfAnySizeAndPlace) {
  OpenOneRail();
  uint32_t seed = 1;
  for (const size_t size : {1ul, 7ul, 4096ul, 65536ul, 65537ul, 1000001ul, 4ul << 20}) {
    const size_t offset = size == kMemory ? 0 : 3;
    local_.Fill(offset, size, ++seed);
    ASSERT_TRUE(Write(offset, size).has_value());
    EXPECT_EQ(remote_.Wrong(offset, size, seed), 0u) << size;
    remote_.Fill(offset, size, ++seed);
    ASSERT_TRUE(Read(offset, size).has_value());
    EXPECT_EQ(local_.Wrong(offset, size, seed), 0u) << size;
  }
}

TEST_F(RdmaTransportTest, SayWhetherTheyReachATarget) {
  OpenOneRail();
  const SegmentRegion& region = target_->regions.front();
  EXPECT_TRUE(here_->transport().Reaches(local_.Range(0, 100), *target_, region));
  TestMemory unknown(4096);
  EXPECT_FALSE(here_->transport().Reaches(unknown.Range(0, 100), *target_, region));
  EXPECT_FALSE(
      here_->transport().Reaches(local_.Range(0, kMemory), *target_, SegmentRegion{.address = 1, .length = 9}));
  SegmentDescriptor other = *target_;
  other.protocols = {"tcp"};
  EXPECT_FALSE(here_->transport().Reaches(local_.Range(0, 100), other, region));
}

TEST_F(RdmaTransportTest, MemoryLargerThanADeviceTakesIsRegisteredInPieces) {
  fabric_.SetMaxMrBytes((64 << 10) + 100);
  OpenTwoRails();
  const SegmentRegion& region = target_->regions.front();
  EXPECT_EQ(region.mr_piece_bytes, 64u << 10);
  ASSERT_EQ(region.rkeys.size(), kMemory / (64 << 10));
  EXPECT_EQ(region.rkeys.front().size(), 2u);
  local_.Fill(1000, 3 << 20, 5);
  ASSERT_TRUE(here_->Transfer(TransferOpcode::kWrite, local_.Range(1000, 3 << 20), target_, remote_.address() + 77)
                  .has_value());
  EXPECT_EQ(remote_.Wrong(77, 3 << 20, 5), 0u);
}

TEST_F(RdmaTransportTest, ARegistrationThatFailsIsUndone) {
  OpenTwoRails();
  const size_t before = fabric_.registrations();
  fabric_.FailRegistrations(1);
  TestMemory more(1 << 20);
  const auto refused = here_->Register(more);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message(), testing::AllOf(HasSubstr("fake"), HasSubstr("1048576")));
  EXPECT_EQ(fabric_.registrations(), before);
  fabric_.FailRegistrations(-1);
  EXPECT_TRUE(here_->Register(more).has_value());
}

TEST_F(RdmaTransportTest, LocalMemoryIsNotOpenedToPeers) {
  OpenOneRail();
  TestMemory own(1 << 20);
  ASSERT_TRUE(here_->Register(own, {.access = RegionAccess::kLocal}).has_value());
  EXPECT_EQ(here_->Describe()->Find(own.address(), 1), nullptr);
  own.Fill(0, 5000, 3);
  ASSERT_TRUE(here_->Transfer(TransferOpcode::kWrite, own.Range(0, 5000), target_, remote_.address()).has_value());
  EXPECT_EQ(remote_.Wrong(0, 5000, 3), 0u);
}

TEST_F(RdmaTransportTest, TwoRailsShareTheBytes) {
  OpenTwoRails();
  Connect();
  TransferGroup group;
  fabric_.Hold(true);  // all are outstanding at once, however fast the fabric is
  for (size_t i = 0; i < 4; ++i) StartWrite(group, i << 20, 1 << 20);
  fabric_.Hold(false);
  ASSERT_TRUE(group.Wait());
  EXPECT_GE(fabric_.bytes(0), 1u << 20);
  EXPECT_GE(fabric_.bytes(2), 1u << 20);
}

TEST_F(RdmaTransportTest, WhatIsPostedIsBoundedAndPostedTogether) {
  RdmaOptions options = Fast();
  options.slice_bytes = 4096;
  options.queue_depth = 16;
  OpenOneRail(options);
  Connect();
  fabric_.Hold(true);
  const size_t posts = fabric_.posts();
  TransferGroup group;
  StartWrite(group, 0, kMemory);
  EXPECT_EQ(fabric_.held(), 2u * 16);
  EXPECT_EQ(fabric_.posts() - posts, 2u);
  fabric_.Hold(false);
  ASSERT_TRUE(group.Wait());
  EXPECT_TRUE(group.Results().front().has_value());
}

TEST_F(RdmaTransportTest, BytesOnOneQueuePairAreBounded) {
  RdmaOptions options = Fast();
  options.window_bytes = 256 << 10;
  OpenOneRail(options);
  Connect();
  fabric_.Hold(true);
  TransferGroup group;
  StartWrite(group, 0, kMemory);
  EXPECT_EQ(fabric_.held(), 2u * 4);
  fabric_.Hold(false);
  ASSERT_TRUE(group.Wait());
}

TEST_F(RdmaTransportTest, ASmallTransferDoesNotWaitForALargeOne) {
  RdmaOptions options = Fast();
  options.window_bytes = 64 << 10;
  OpenOneRail(options);
  Connect();
  fabric_.Hold(true);
  TransferGroup large;
  TransferGroup small;
  StartWrite(large, 0, kMemory);
  StartWrite(small, 0, 100);
  fabric_.Hold(false);
  ASSERT_TRUE(small.Wait());
  ASSERT_TRUE(large.Wait());
  // 64 slices of the large one; the small one had to wait for few of them.
  EXPECT_TRUE(small.Results().front().has_value());
  EXPECT_LE(small.ended_at(), large.ended_at());
}

// ---- wrong addresses

TEST_F(RdmaTransportTest, MemoryThatThePeerNoLongerHasIsAnErrorOfThatTransferOnly) {
  OpenOneRail();
  TestMemory gone(1 << 20);
  ASSERT_TRUE(there_->Register(gone).has_value());
  const SegmentPtr before = there_->Describe();
  ASSERT_TRUE(there_->Unregister(gone, Deadline::After(seconds(60))).has_value());
  Connect();
  fabric_.Hold(true);
  TransferGroup bad;
  TransferGroup good;
  local_.Fill(0, 1 << 20, 6);
  StartWrite(good, 0, 1 << 20);
  here_->Start(bad, TransferOpcode::kWrite, local_.Range(0, 1 << 20), before, gone.address());
  StartWrite(good, 2 << 20, 1 << 20);
  fabric_.Hold(false);
  ASSERT_TRUE(bad.Wait());
  ASSERT_TRUE(good.Wait());
  EXPECT_EQ(bad.Results().front().error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
  for (const auto& result : good.Results()) EXPECT_TRUE(result.has_value()) << result.error().ToString();
  EXPECT_EQ(remote_.Wrong(0, 1 << 20, 6), 0u);
}

TEST_F(RdmaTransportTest, UnknownLocalOrRemoteMemoryIsRefusedBeforeAnythingIsSent) {
  OpenOneRail();
  TestMemory unknown(4096);
  const auto local = here_->Transfer(TransferOpcode::kRead, unknown.Range(0, 10), target_, remote_.address());
  EXPECT_EQ(local.error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
  const auto remote = here_->Transfer(TransferOpcode::kRead, local_.Range(0, 10), target_, unknown.address());
  EXPECT_EQ(remote.error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
  EXPECT_EQ(fabric_.requests(), 0u);
}

// ---- deadlines and cancels

TEST_F(RdmaTransportTest, AtTheDeadlineTheMemoryIsSafeAndOthersGoOn) {
  OpenOneRail();
  Connect();
  local_.Fill(0, 1 << 20, 1);
  fabric_.Hold(true);
  TransferGroup late;
  TransferGroup patient;
  StartRead(late, 0, 1 << 20, milliseconds(50));
  StartRead(patient, 2 << 20, 1 << 20);
  remote_.Fill(2 << 20, 1 << 20, 8);
  ASSERT_TRUE(late.Wait());
  EXPECT_EQ(late.Results().front().error().code(), ErrorCode::TRANSFER_TIMEOUT);
  local_.Fill(0, 1 << 20, 2);  // ours again
  fabric_.Hold(false);
  ASSERT_TRUE(patient.Wait());
  EXPECT_TRUE(patient.Results().front().has_value());
  EXPECT_EQ(local_.Wrong(2 << 20, 1 << 20, 8), 0u);
  EXPECT_EQ(local_.Wrong(0, 1 << 20, 2), 0u);
}

TEST_F(RdmaTransportTest, RequestsWithoutAnyCompletionEndWithTheirQueuePair) {
  OpenOneRail();
  Connect();
  fabric_.Swallow(0, true);
  TransferGroup group;
  StartRead(group, 0, 1 << 20, milliseconds(50));
  ASSERT_TRUE(group.Wait());
  EXPECT_EQ(group.Results().front().error().code(), ErrorCode::TRANSFER_TIMEOUT);
  EXPECT_EQ(fabric_.held(), 0u) << "a queue pair that holds requests is left";
  fabric_.Swallow(0, false);
  EXPECT_TRUE(Read(0, 1 << 20).has_value());
}

TEST_F(RdmaTransportTest, WhatMakesNoProgressGoesOnElsewhereAndNothingLateArrives) {
  RdmaOptions options = Fast();
  options.no_progress = milliseconds(50);
  OpenTwoRails(options);
  Connect();
  fabric_.Swallow(0, true);
  local_.Fill(0, 2 << 20, 4);
  const auto written = Write(0, 2 << 20);
  ASSERT_TRUE(written.has_value()) << written.error().ToString();
  EXPECT_EQ(remote_.Wrong(0, 2 << 20, 4), 0u);
  EXPECT_GT(here_->Count("rdma_retries_total"), 0u);
  remote_.Fill(0, 2 << 20, 5);  // the target's again
  fabric_.DeliverSwallowed();
  EXPECT_EQ(remote_.Wrong(0, 2 << 20, 5), 0u);
}

TEST_F(RdmaTransportTest, ACancelledBatchLetsGoOfItsMemory) {
  RdmaOptions options = Fast();
  options.queue_depth = 4;
  OpenOneRail(options);
  Connect();
  fabric_.Hold(true);
  TransferGroup cancelled;
  TransferGroup kept;
  here_->tag = 7;
  for (size_t i = 0; i < 16; ++i) StartRead(cancelled, i * 65536, 65536);
  here_->tag = 8;
  remote_.Fill(2 << 20, 65536, 9);
  StartRead(kept, 2 << 20, 65536);
  here_->transport().Cancel(7);
  EXPECT_EQ(cancelled.ended(), 16u - 8);  // those that were not posted, at once
  ASSERT_TRUE(cancelled.Wait());
  for (const auto& result : cancelled.Results()) EXPECT_EQ(result.error().code(), ErrorCode::TRANSFER_CANCELED);
  local_.Fill(0, 1 << 20, 3);
  fabric_.Hold(false);
  ASSERT_TRUE(kept.Wait());
  EXPECT_TRUE(kept.Results().front().has_value());
  EXPECT_EQ(local_.Wrong(0, 1 << 20, 3), 0u);
  EXPECT_EQ(local_.Wrong(2 << 20, 65536, 9), 0u);
}

// ---- rails

TEST_F(RdmaTransportTest, AFailedSliceIsSentOnceMore) {
  OpenOneRail();
  Connect();
  fabric_.FailRequests(0, IBV_WC_RETRY_EXC_ERR, 1);
  local_.Fill(0, kMemory, 2);
  ASSERT_TRUE(Write(0, kMemory).has_value());
  EXPECT_EQ(remote_.Wrong(0, kMemory, 2), 0u);
  EXPECT_GT(here_->Count("rdma_retries_total"), 0u);
}

TEST_F(RdmaTransportTest, ATransferThatAlwaysFailsSaysWhy) {
  OpenOneRail();
  Connect();
  fabric_.FailRequests(0, IBV_WC_RETRY_EXC_ERR, 1 << 20);
  const auto written = Write(0, 100);
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().code(), ErrorCode::TRANSFER_FAIL);
  EXPECT_THAT(written.error().message(),
              testing::AllOf(HasSubstr("fake0"), HasSubstr(target_->name), HasSubstr("acknowledgement")));
}

TEST_F(RdmaTransportTest, ARefusedPostIsRepeated) {
  OpenOneRail();
  Connect();
  fabric_.RefusePosts(0, 1);
  local_.Fill(0, 1 << 20, 2);
  ASSERT_TRUE(Write(0, 1 << 20).has_value());
  EXPECT_EQ(remote_.Wrong(0, 1 << 20, 2), 0u);
}

TEST_F(RdmaTransportTest, ALostRailIsReplacedByTheOtherAndComesBack) {
  OpenTwoRails();
  Connect();
  fabric_.SetPort(0, false);
  local_.Fill(0, kMemory, 3);
  ASSERT_TRUE(Write(0, kMemory).has_value());
  EXPECT_EQ(remote_.Wrong(0, kMemory, 3), 0u);
  const uint64_t before = fabric_.bytes(0);
  fabric_.SetPort(0, true);
  EXPECT_TRUE(Eventually([&] {
    EXPECT_TRUE(Write(0, 1 << 20).has_value());
    return fabric_.bytes(0) > before;
  }));
}

TEST_F(RdmaTransportTest, TheOnlyRailComesBackWithinTheDeadline) {
  OpenOneRail();
  Connect();
  fabric_.SetPort(0, false);
  TransferGroup group;
  local_.Fill(0, 1 << 20, 3);
  StartWrite(group, 0, 1 << 20);
  fabric_.SetPort(0, true);
  ASSERT_TRUE(group.Wait());
  EXPECT_TRUE(group.Results().front().has_value());
  EXPECT_EQ(remote_.Wrong(0, 1 << 20, 3), 0u);
}

// ---- peers that go, come and lie

TEST_F(RdmaTransportTest, WhenThePeerGoesItsTransfersEndAndNameIt) {
  OpenOneRail();
  Connect();
  fabric_.Hold(true);
  TransferGroup group;
  StartWrite(group, 0, kMemory);
  StartRead(group, 0, kMemory);
  there_->Close();
  ASSERT_TRUE(group.Wait());
  for (const auto& result : group.Results()) {
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code(), ErrorCode::TRANSFER_FAIL);
    EXPECT_THAT(result.error().message(), HasSubstr(target_->name));
  }
  EXPECT_TRUE(Eventually([&] { return fabric_.queue_pairs() == 0; }));
  EXPECT_EQ(Write(0, 1).error().code(), ErrorCode::TRANSFER_FAIL);
}

TEST_F(RdmaTransportTest, QueuePairsOfAPeerThatGoesAreDestroyed) {
  OpenOneRail();
  Connect();
  EXPECT_EQ(fabric_.queue_pairs(), 4u);
  here_->Close();
  EXPECT_TRUE(Eventually([&] { return fabric_.queue_pairs() == 0; }));
}

TEST_F(RdmaTransportTest, AnotherProcessAtTheSameAddressIsStale) {
  OpenOneRail();
  auto other = std::make_shared<SegmentDescriptor>(*target_);
  other->generation = Uuid::Random();
  target_ = other;
  EXPECT_EQ(Write(0, 100).error().code(), ErrorCode::STALE_SEGMENT);
}

TEST_F(RdmaTransportTest, AFencedProcessCannotChangeMemoryAndMayComeAgain) {
  OpenOneRail();
  Connect();
  fabric_.Hold(true);
  local_.Fill(0, kMemory, 1);
  TransferGroup group;
  for (size_t i = 0; i < 64; ++i) StartWrite(group, i * 65536, 65536);
  there_->transport().Fence(here_->generation());
  EXPECT_EQ(fabric_.queue_pairs(), 2u);
  remote_.Fill(0, kMemory, 2);
  fabric_.Hold(false);
  ASSERT_TRUE(group.Wait());
  for (const auto& result : group.Results()) EXPECT_FALSE(result.has_value());
  EXPECT_EQ(remote_.Wrong(0, kMemory, 2), 0u);
  ASSERT_TRUE(Write(0, kMemory).has_value());
  EXPECT_EQ(remote_.Wrong(0, kMemory, 1), 0u);
}

TEST_F(RdmaTransportTest, HandshakesBeyondTheBoundWait) {
  RdmaOptions options = Fast();
  options.concurrent_handshakes = 2;
  TestNode target({.devices = {"fake1"}, .rdma = options, .verbs = &fabric_.verbs(), .worker_queue = 2});
  ASSERT_TRUE(target.Open().has_value());
  ASSERT_TRUE(target.Register(remote_).has_value());
  const SegmentPtr segment = target.Describe();
  std::vector<std::unique_ptr<TestNode>> nodes;
  TransferGroup group;
  for (size_t i = 0; i < 24; ++i) {
    nodes.push_back(
        std::make_unique<TestNode>(TestNodeOptions{.devices = {"fake0"}, .rdma = options, .verbs = &fabric_.verbs()}));
    ASSERT_TRUE(nodes.back()->Open().has_value());
    ASSERT_TRUE(nodes.back()->Register(local_).has_value());
  }
  for (auto& node : nodes)
    node->Start(group, TransferOpcode::kWrite, local_.Range(0, 4096), segment, remote_.address());
  ASSERT_TRUE(group.Wait());
  for (const auto& result : group.Results()) EXPECT_TRUE(result.has_value()) << result.error().ToString();
}

TEST_F(RdmaTransportTest, OneProcessReachesManyPeersAtOnce) {
  RdmaOptions options = Fast();
  options.concurrent_handshakes = 2;
  TestNode source({.devices = {"fake0"}, .rdma = options, .verbs = &fabric_.verbs()});
  ASSERT_TRUE(source.Open().has_value());
  ASSERT_TRUE(source.Register(local_).has_value());
  std::vector<std::unique_ptr<TestNode>> nodes;
  TransferGroup group;
  for (size_t i = 0; i < 24; ++i) {
    nodes.push_back(
        std::make_unique<TestNode>(TestNodeOptions{.devices = {"fake1"}, .rdma = options, .verbs = &fabric_.verbs()}));
    ASSERT_TRUE(nodes.back()->Open().has_value());
    ASSERT_TRUE(nodes.back()->Register(remote_).has_value());
    source.Start(group, TransferOpcode::kWrite, local_.Range(0, 4096), nodes.back()->Describe(), remote_.address());
  }
  ASSERT_TRUE(group.Wait());
  for (const auto& result : group.Results()) EXPECT_TRUE(result.has_value()) << result.error().ToString();
}

// ---- ends

TEST_F(RdmaTransportTest, WithdrawnMemoryIsOutOfReachOfPeers) {
  OpenOneRail();
  ASSERT_TRUE(Write(0, 100).has_value());
  ASSERT_TRUE(there_->Unregister(remote_, Deadline::After(seconds(60))).has_value());
  EXPECT_EQ(Write(0, 100).error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
}

TEST_F(RdmaTransportTest, WithdrawingWaitsForOwnTransfers) {
  OpenOneRail();
  Connect();
  fabric_.Hold(true);
  local_.Fill(0, 1 << 20, 4);
  TransferGroup group;
  StartWrite(group, 0, 1 << 20);
  std::atomic<bool> withdrawn{false};
  std::thread withdrawing([&] {
    EXPECT_TRUE(here_->Unregister(local_, Deadline::After(seconds(60))).has_value());
    withdrawn = true;
  });
  EXPECT_TRUE(
      Eventually([&] { return !here_->transport().Reaches(local_.Range(0, 1), *target_, target_->regions.front()); }));
  EXPECT_FALSE(withdrawn);
  fabric_.Hold(false);
  withdrawing.join();
  ASSERT_TRUE(group.Wait());
  EXPECT_TRUE(group.Results().front().has_value());
  EXPECT_EQ(remote_.Wrong(0, 1 << 20, 4), 0u);
}

TEST_F(RdmaTransportTest, WithdrawingStopsOwnTransfersThatDoNotEnd) {
  RdmaOptions options = Fast();
  options.withdraw_grace = milliseconds(20);
  OpenOneRail(options);
  Connect();
  fabric_.Hold(true);
  TransferGroup group;
  StartRead(group, 0, 1 << 20);
  EXPECT_TRUE(here_->Unregister(local_, Deadline::After(seconds(60))).has_value());
  ASSERT_TRUE(group.Wait());
  EXPECT_EQ(group.Results().front().error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
  local_.Fill(0, 1 << 20, 4);
  fabric_.Hold(false);
  EXPECT_EQ(local_.Wrong(0, 1 << 20, 4), 0u);
}

TEST_F(RdmaTransportTest, ClosingEndsWhatIsUnderWay) {
  OpenOneRail();
  Connect();
  fabric_.Hold(true);
  TransferGroup group;
  StartRead(group, 0, kMemory);
  here_->Close();
  ASSERT_TRUE(group.AllEnded());
  EXPECT_EQ(group.Results().front().error().code(), ErrorCode::SHUTTING_DOWN);
  local_.Fill(0, 1 << 20, 4);
  fabric_.Hold(false);
  EXPECT_EQ(local_.Wrong(0, 1 << 20, 4), 0u);
}

TEST_F(RdmaTransportTest, NoDeviceIsAnErrorThatSaysWhatThereIs) {
  TestNode node({.devices = {"mlx5_7"}, .verbs = &fabric_.verbs()});
  const auto opened = node.Open();
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code(), ErrorCode::DEVICE_NOT_FOUND);
  EXPECT_THAT(opened.error().message(), testing::AllOf(HasSubstr("mlx5_7"), HasSubstr("fake0, fake1")));
}

TEST_F(RdmaTransportTest, ManyThreadsMoveManySizes) {
  OpenTwoRails();
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t round = 0; round < 20; ++round) {
        const size_t offset = t * (1 << 20) + round;
        const size_t bytes = 1 + (round * 52391) % ((1 << 20) - 64);
        local_.Fill(offset, bytes, t * 100 + round);
        EXPECT_TRUE(Write(offset, bytes).has_value());
        std::memset(local_.data() + offset, 0, bytes);
        EXPECT_TRUE(Read(offset, bytes).has_value());
        EXPECT_EQ(local_.Wrong(offset, bytes, t * 100 + round), 0u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace mooncake::rdma
