// The pipeline by hand: every stage of a write and of a read, and what can go wrong in each.
#include <gtest/gtest.h>

#include <set>

#include "transfer_engine/transport/ascend_rdma/test_lane_fakes.h"

namespace mooncake::bridge {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
constexpr size_t kSlot = 64 * 1024;
constexpr auto kWrite = TransferOpcode::kWrite;
constexpr auto kRead = TransferOpcode::kRead;

LaneOptions SmallSlots() {
  LaneOptions options;
  options.scheduler.slot_bytes = options.scheduler.chunk_bytes = kSlot;
  options.scheduler.chunk_bytes_min = 16 * 1024;
  options.scheduler.small_bytes = 32 * 1024;
  options.scheduler.bulk_bytes = 1024 * 1024;
  return options;
}
Result<void> Broken() {
  return Error(ErrorCode::TRANSFER_FAIL, "connection lost");
}
Result<void> BadCopy() {
  return std::unexpected(Status(ErrorCode::DATA_COPY_FAILED, "no copy", 507001));
}

class LaneTest : public testing::Test {
 protected:
  void TearDown() override {
    lane_.Close();
    lane_.CheckAll();
  }
  LaneHarness lane_{SmallSlots()};
};

TEST_F(LaneTest, AWriteIsCopiedFirstAndSentThen) {
  Transfer& write = lane_.Start(kWrite, 1000, 1, 5);
  lane_.Step();
  EXPECT_EQ(lane_.port.count(Direction::kWrite), 1u);
  EXPECT_EQ(lane_.wire.held.size(), 0u);
  EXPECT_EQ(lane_.ring.count(SlotState::kCopying), 1u);
  lane_.port.EndOne();
  lane_.Step();
  EXPECT_EQ(lane_.ring.count(SlotState::kOnWire), 1u);
  EXPECT_FALSE(write.ended());
  lane_.wire.EndOne();
  lane_.Step();
  EXPECT_EQ(write.code(), ErrorCode::OK);
  EXPECT_EQ(lane_.in_use(), 0u);
}

// D2 of the wrong kind and C5, C6: nobody has to ask for a read's last step, and it happens once.
TEST_F(LaneTest, C5C6AReadIsFinishedWithoutAPollerAndOnce) {
  Transfer& read = lane_.Start(kRead, 1000, 1, 63);
  lane_.Step();
  EXPECT_EQ(lane_.ring.count(SlotState::kOnWire), 1u);
  lane_.wire.EndOne();
  lane_.Step();
  EXPECT_EQ(lane_.port.count(Direction::kRead), 1u);
  EXPECT_FALSE(read.ended());
  lane_.port.EndOne();
  lane_.Step();
  EXPECT_EQ(read.code(), ErrorCode::OK);
  EXPECT_EQ(read.ends.size(), 1u);
}

TEST_F(LaneTest, C16ZeroLengthEndsAtOnceWithoutASlot) {
  Transfer& write = lane_.Start(kWrite, 0);
  Transfer& read = lane_.Start(kRead, 0);
  EXPECT_TRUE(lane_.core->Step(lane_.now));
  EXPECT_EQ(write.code(), ErrorCode::OK);
  EXPECT_EQ(read.code(), ErrorCode::OK);
  EXPECT_EQ(lane_.core->counters().loads, 0u);
}

// D1, C1: far more than the ring holds, with a wire that ends nothing: no slot is used twice.
TEST_F(LaneTest, D1C1ASlotOnTheWireIsNotReusedHoweverMuchWaits) {
  for (int i = 0; i < 40; ++i) lane_.Start(kWrite, 100'000, 1 + i % 3);
  for (int i = 0; i < 100; ++i) {
    lane_.Step();
    lane_.port.EndOne();
  }
  EXPECT_LE(lane_.in_use(), lane_.ring.size());
  std::set<std::byte*> places;
  for (const auto& part : lane_.wire.held) {
    EXPECT_TRUE(places.insert(std::get<HostRange>(part.local).data()).second);
  }
  lane_.Drain();
  for (const auto& transfer : lane_.transfers) EXPECT_EQ(transfer->code(), ErrorCode::OK);
}

// C2, D5, D8: more than the ring, in both directions at once, in a ring of one slot.
TEST(LaneRingTest, C2D5D8AnyLengthWorksWithOneSlot) {
  LaneHarness lane(SmallSlots(), 1, 1);
  lane.Start(kWrite, 100);
  lane.Start(kWrite, 10 * kSlot + 77, 1, 33);
  lane.Start(kRead, 10 * kSlot + 1, 2, 1);
  lane.Start(kRead, 1);
  lane.Drain();
  lane.CheckAll();
  for (const auto& transfer : lane.transfers) EXPECT_EQ(transfer->code(), ErrorCode::OK);
}

// D3, D4, C4: the failed chunk ends the operation, but not before its other chunks are quiet, and nothing new begins.
TEST_F(LaneTest, C4AFailedChunkStopsIssuingDrainsAndOnlyThenEnds) {
  Transfer& write = lane_.Start(kWrite, 20 * kSlot);
  lane_.Step();
  ASSERT_EQ(lane_.port.running.size(), 2u);
  lane_.port.EndOne();
  lane_.Step();  // one on the wire, two being copied
  const size_t started = lane_.core->counters().loads;
  lane_.wire.EndOne(Error(ErrorCode::ADDRESS_NOT_REGISTERED, "gone"));
  lane_.Step();
  EXPECT_FALSE(write.ended());
  lane_.port.EndOne();  // which makes room for another
  lane_.Step();
  EXPECT_FALSE(write.ended());
  EXPECT_EQ(lane_.core->counters().loads, started);
  while (lane_.port.EndOne()) continue;
  lane_.Step();
  EXPECT_EQ(write.code(), ErrorCode::ADDRESS_NOT_REGISTERED);
  EXPECT_NE(write.ends[0].error().message().find("peer-a"), std::string::npos);
  EXPECT_EQ(lane_.in_use(), 0u);
  EXPECT_TRUE(lane_.wire.held.empty());
}

TEST_F(LaneTest, D3D4AFailedCopyEndsItsOperationsAndFreesTheSlot) {
  for (const auto opcode : {kWrite, kRead}) {
    Transfer& failed = lane_.Start(opcode, 1000);
    lane_.Step();
    if (opcode == kRead) lane_.wire.EndOne();
    lane_.Step();
    ASSERT_TRUE(lane_.port.EndOne(BadCopy()));
    lane_.Step();
    EXPECT_EQ(failed.code(), ErrorCode::DATA_COPY_FAILED);
    EXPECT_EQ(failed.ends[0].error().vendor_code(), 507001);
    EXPECT_EQ(lane_.in_use(), 0u);
  }
  Transfer& next = lane_.Start(kWrite, 1000);
  lane_.Drain();
  EXPECT_EQ(next.code(), ErrorCode::OK);
}

TEST_F(LaneTest, TheFirstErrorWins) {
  Transfer& write = lane_.Start(kWrite, 8 * kSlot);
  lane_.Step();
  lane_.port.EndOne(BadCopy());
  lane_.Step();
  lane_.port.EndOne(std::unexpected(Status(ErrorCode::INTERNAL_ERROR, "second")));
  lane_.Step();
  EXPECT_EQ(write.code(), ErrorCode::DATA_COPY_FAILED);
}

// C8, D13: the second attempt comes from the slot: no second copy, and the request is what it was.
TEST_F(LaneTest, C8D13TheWireIsTriedAgainFromTheStagedData) {
  Transfer& write = lane_.Start(kWrite, 1000, 1, 7);
  lane_.Step();
  lane_.port.EndOne();
  lane_.Step();
  for (int i = 0; i < 2; ++i) {
    lane_.wire.EndOne(Broken());
    lane_.Step();
    EXPECT_TRUE(lane_.wire.held.empty());
    EXPECT_EQ(lane_.in_use(), 1u);
    lane_.now = lane_.core->WakeAt(lane_.now).value();
    lane_.Step();
    EXPECT_EQ(lane_.wire.held.size(), 1u);
  }
  EXPECT_TRUE(lane_.port.running.empty());
  lane_.wire.EndOne();
  lane_.Step();
  EXPECT_EQ(write.code(), ErrorCode::OK);
  EXPECT_EQ(lane_.core->counters().wire_retries, 2u);
}

TEST_F(LaneTest, TheThirdFailureOfTheWireIsTheLast) {
  Transfer& read = lane_.Start(kRead, 1000);
  for (int i = 0; i < 3; ++i) {
    lane_.Step();
    ASSERT_TRUE(lane_.wire.EndOne(Broken()));
    lane_.Step();
    lane_.now += seconds(1);
  }
  lane_.Step();
  EXPECT_EQ(read.code(), ErrorCode::TRANSFER_FAIL);
  EXPECT_EQ(lane_.wire.submitted, 3u);
}

TEST_F(LaneTest, NoAttemptIsMadePastTheDeadline) {
  Transfer& read = lane_.Start(kRead, 1000, 1, 0, milliseconds(10));
  lane_.Step();
  lane_.now = lane_.core->WakeAt(lane_.now).value() - milliseconds(1);
  lane_.wire.EndOne(Broken());
  lane_.Step();
  EXPECT_EQ(read.code(), ErrorCode::TRANSFER_FAIL);
}

TEST_F(LaneTest, CancelWhileQueuedEndsAtOnce) {
  for (int i = 0; i < 20; ++i) lane_.Start(kWrite, kSlot, 7);
  lane_.Step();
  Transfer& queued = lane_.Start(kWrite, kSlot, 8);
  lane_.Step();
  lane_.core->Cancel(8);
  lane_.Step();
  EXPECT_EQ(queued.code(), ErrorCode::TRANSFER_CANCELED);
  EXPECT_FALSE(lane_.transfers[0]->ended());
}

// C17, C13: a copy under way holds the user's memory, and the end waits for it.
TEST_F(LaneTest, C17CancelWhileCopyingWaitsForTheCopy) {
  for (const auto opcode : {kWrite, kRead}) {
    Transfer& canceled = lane_.Start(opcode, 1000, 9);
    lane_.Step();
    if (opcode == kRead) lane_.wire.EndOne();
    lane_.Step();
    lane_.core->Cancel(9);
    lane_.Step();
    EXPECT_FALSE(canceled.ended());
    lane_.port.EndOne();
    lane_.Step();
    EXPECT_EQ(canceled.code(), ErrorCode::TRANSFER_CANCELED);
    EXPECT_TRUE(lane_.wire.held.empty());
  }
}

TEST_F(LaneTest, CancelOnTheWireIsPassedOnAndWaitsForIt) {
  Transfer& read = lane_.Start(kRead, 1000, 9);
  lane_.Step();
  lane_.core->Cancel(9);
  lane_.Step();
  EXPECT_EQ(lane_.wire.canceled, std::vector<BatchId>{lane_.wire.held.at(0).tag});
  EXPECT_FALSE(read.ended());
  lane_.wire.EndOne();  // it was too late there
  lane_.Step();
  EXPECT_EQ(read.code(), ErrorCode::TRANSFER_CANCELED);
  EXPECT_TRUE(lane_.port.running.empty());
}

TEST_F(LaneTest, CancelWhileWaitingForAnotherAttemptEndsAtOnce) {
  Transfer& read = lane_.Start(kRead, 1000, 9);
  lane_.Step();
  lane_.wire.EndOne(Broken());
  lane_.Step();
  lane_.core->Cancel(9);
  lane_.Step();
  EXPECT_EQ(read.code(), ErrorCode::TRANSFER_CANCELED);
  EXPECT_EQ(lane_.in_use(), 0u);
}

TEST_F(LaneTest, CancelOfOneLeavesItsSlotMatesAlone) {
  Transfer& canceled = lane_.Start(kRead, 1000, 1);
  Transfer& other = lane_.Start(kRead, 1000, 2);
  lane_.Step();
  ASSERT_EQ(lane_.wire.held.size(), 2u);
  EXPECT_EQ(lane_.in_use(), 1u);
  lane_.core->Cancel(1);
  lane_.Drain();
  EXPECT_EQ(canceled.code(), ErrorCode::TRANSFER_CANCELED);
  EXPECT_EQ(other.code(), ErrorCode::OK);
}

// A wire that stands still holds up nobody whose memory is safe already.
TEST_F(LaneTest, C17CancelOfWhatWaitsForTheWireOrForACopyEndsAtOnce) {
  Transfer& first = lane_.Start(kWrite, kSlot, 1);
  for (int i = 0; i < 10; ++i) {
    lane_.Step();
    lane_.port.EndOne();
  }
  lane_.Step();
  ASSERT_EQ(lane_.wire.held.size(), 4u);
  Transfer& ready = lane_.Start(kWrite, 1000, 8);
  lane_.Step();
  ASSERT_TRUE(lane_.port.EndOne());
  lane_.Step();
  ASSERT_EQ(lane_.ring.count(SlotState::kReady), 1u);
  lane_.core->Cancel(8);
  lane_.Step();
  ASSERT_TRUE(ready.ended());
  EXPECT_EQ(ready.code(), ErrorCode::TRANSFER_CANCELED);
  Transfer& copying = lane_.Start(kWrite, 1000, 8);
  lane_.Step();
  lane_.core->Cancel(8);
  lane_.Step();
  ASSERT_TRUE(lane_.port.EndOne());
  lane_.Step();
  EXPECT_TRUE(copying.ended());
  EXPECT_EQ(lane_.in_use(), 4u);
  EXPECT_FALSE(first.ended());
  lane_.Drain();
  lane_.Start(kRead, kSlot, 1);
  lane_.Step();
  while (lane_.wire.EndOne()) lane_.Step();
  ASSERT_EQ(lane_.port.count(Direction::kRead), 2u);
  Transfer& arrived = lane_.Start(kRead, 1000, 8);
  lane_.Step();
  ASSERT_TRUE(lane_.wire.EndOne());
  lane_.Step();
  lane_.core->Cancel(8);
  lane_.Step();
  EXPECT_TRUE(arrived.ended());
}

// It has arrived; what shares its slot has not.
TEST_F(LaneTest, C17CancelDoesNotWaitForSlotMates) {
  Transfer& canceled = lane_.Start(kRead, 1000, 1);
  Transfer& other = lane_.Start(kRead, 1000, 2);
  lane_.Step();
  ASSERT_EQ(lane_.in_use(), 1u);
  lane_.wire.EndOne();
  lane_.Step();
  lane_.core->Cancel(1);
  lane_.Step();
  EXPECT_TRUE(canceled.ended());
  EXPECT_FALSE(other.ended());
  lane_.Drain();
  EXPECT_EQ(other.code(), ErrorCode::OK);
}

// The wire carries the application's plain operations as well, perhaps of the same batch.
TEST_F(LaneTest, AFailureCancelsItsOwnPiecesOnTheWireAndNothingElse) {
  Transfer& failed = lane_.Start(kRead, 4 * kSlot, 9);
  lane_.Step();
  Transfer& other = lane_.Start(kRead, 1000, 9);
  lane_.Step();
  lane_.wire.EndOne(Error(ErrorCode::ADDRESS_NOT_REGISTERED, "gone"));
  lane_.Step();
  EXPECT_FALSE(failed.ended());
  ASSERT_FALSE(lane_.wire.held.empty());
  EXPECT_EQ(lane_.wire.canceled, std::vector<BatchId>{lane_.wire.held.front().tag});
  EXPECT_NE(lane_.wire.held.front().tag, BatchId{9});
  lane_.Drain();
  EXPECT_EQ(failed.code(), ErrorCode::ADDRESS_NOT_REGISTERED);
  EXPECT_EQ(other.code(), ErrorCode::OK);
  EXPECT_EQ(lane_.wire.canceled.size(), 1u);
}

// C2: what is more than the lane admits waits, as its deadline allows; a greedy peer does not keep others out.
TEST(LaneAdmissionTest, C2WhatIsBeyondTheLimitsWaitsInside) {
  LaneOptions options = SmallSlots();
  options.scheduler.operations_max = 8;
  options.scheduler.operations_per_peer_max = 3;
  LaneHarness lane(options);
  for (int i = 0; i < 30; ++i) lane.Start(i % 2 == 0 ? kWrite : kRead, 5000, 1);
  Transfer& late = lane.Start(kRead, 5000, 2, 0, milliseconds(5));
  Transfer& canceled = lane.Start(kRead, 5000, 3);
  Transfer& other = lane.Start(kRead, 5000, 4, 0, std::chrono::hours(1), lane.peers[1]);
  lane.Step();
  lane.core->Cancel(3);
  lane.Step();
  ASSERT_TRUE(canceled.ended());
  EXPECT_EQ(canceled.code(), ErrorCode::TRANSFER_CANCELED);
  lane.now += std::chrono::microseconds(50);
  lane.Step();
  for (size_t i = 0; i < lane.wire.held.size(); ++i) {
    if (lane.wire.held[i].target == lane.peers[1]) lane.wire.EndOne({}, i);
  }
  lane.Step();
  while (lane.port.EndOne({}, Direction::kRead)) lane.Step();
  EXPECT_TRUE(other.ended());
  lane.now += milliseconds(6);
  lane.Step();
  ASSERT_TRUE(late.ended());
  EXPECT_EQ(late.code(), ErrorCode::TRANSFER_TIMEOUT);
  lane.Drain();
  for (const auto& transfer : lane.transfers) {
    ASSERT_TRUE(transfer->ended());
    if (transfer.get() != &late && transfer.get() != &canceled) {
      EXPECT_EQ(transfer->code(), ErrorCode::OK);
    }
  }
  for (int i = 0; i < 30; ++i) lane.Start(kWrite, 5000, 1);
  lane.Step();
  lane.Close();
  lane.CheckAll();
}

// C17: the deadline is told after the user's memory is safe.
TEST_F(LaneTest, C17ADeadlineIsToldAfterTheCopyHasEnded) {
  Transfer& write = lane_.Start(kWrite, 8 * kSlot, 1, 0, milliseconds(5));
  lane_.Step();
  lane_.now = lane_.core->WakeAt(lane_.now).value();
  lane_.Step();
  EXPECT_FALSE(write.ended());
  while (lane_.port.EndOne()) continue;
  lane_.Step();
  EXPECT_EQ(write.code(), ErrorCode::TRANSFER_TIMEOUT);
  EXPECT_EQ(lane_.wire.submitted, 0u);
}

TEST_F(LaneTest, ADeadlineEndsWhatWaitsForASlot) {
  for (int i = 0; i < 20; ++i) lane_.Start(kRead, kSlot, 1);
  lane_.Step();
  Transfer& late = lane_.Start(kRead, kSlot, 2, 0, milliseconds(5));
  lane_.Step();
  lane_.now = lane_.core->WakeAt(lane_.now).value();
  lane_.Step();
  EXPECT_EQ(late.code(), ErrorCode::TRANSFER_TIMEOUT);
}

// C7: a wire that swallows an end costs a slot until it tells, not the operation for ever.
TEST_F(LaneTest, C7ASlotTheWireDoesNotGiveBackIsQuarantinedUntilItDoes) {
  Transfer& read = lane_.Start(kRead, 1000, 1, 0, milliseconds(5));
  lane_.Step();
  lane_.now = lane_.core->WakeAt(lane_.now).value();
  lane_.Step();
  EXPECT_FALSE(read.ended());
  lane_.now += seconds(10);
  lane_.Step();
  EXPECT_EQ(read.code(), ErrorCode::TRANSFER_TIMEOUT);
  EXPECT_EQ(lane_.ring.count(SlotState::kQuarantined), 1u);
  Transfer& other = lane_.Start(kRead, 1000);
  lane_.Step();
  lane_.wire.EndOne({}, 1);
  lane_.Step();
  lane_.port.EndOne();
  lane_.Step();
  EXPECT_EQ(other.code(), ErrorCode::OK);
  lane_.wire.EndOne();
  lane_.Step();
  EXPECT_EQ(lane_.in_use(), 0u);
}

// Nobody can call back what a network device may still send: the error says so.
TEST_F(LaneTest, C7AWriteTheWireDoesNotGiveBackSaysThatTheTargetMayChange) {
  Transfer& write = lane_.Start(kWrite, 1000, 1, 0, milliseconds(5));
  lane_.Step();
  lane_.port.EndOne();
  lane_.Step();
  lane_.now += milliseconds(6);
  lane_.Step();
  lane_.now += seconds(10);
  lane_.Step();
  ASSERT_TRUE(write.ended());
  EXPECT_EQ(write.code(), ErrorCode::TRANSFER_TIMEOUT);
  EXPECT_NE(write.ends[0].error().message().find("may still change"), std::string::npos);
  EXPECT_EQ(lane_.ring.count(SlotState::kQuarantined), 1u);
}

TEST_F(LaneTest, ACopyThatDoesNotEndIsAbortedAndHoldsItsOperationUntilItDoes) {
  Transfer& write = lane_.Start(kWrite, 1000);
  lane_.Step();
  lane_.now += seconds(31);
  lane_.Step();
  EXPECT_TRUE(lane_.port.running.begin()->second.aborted);
  EXPECT_EQ(lane_.ring.count(SlotState::kQuarantined), 1u);
  EXPECT_FALSE(write.ended());
  lane_.port.EndOne(Error(ErrorCode::DATA_COPY_FAILED, "aborted"));
  lane_.Step();
  EXPECT_EQ(write.code(), ErrorCode::DATA_COPY_FAILED);
  EXPECT_EQ(lane_.in_use(), 0u);
}

TEST_F(LaneTest, ALostDeviceEndsEverythingAndRefusesWhatComesLater) {
  Transfer& copying = lane_.Start(kWrite, 10 * kSlot);
  Transfer& queued = lane_.Start(kRead, 100 * kSlot);
  lane_.Step();
  EXPECT_TRUE(lane_.core->online());
  lane_.port.lost = true;
  lane_.port.EndOne(BadCopy());
  lane_.Step();
  EXPECT_FALSE(lane_.core->online());
  while (lane_.port.EndOne(BadCopy())) continue;
  lane_.Step();
  EXPECT_EQ(copying.code(), ErrorCode::DEVICE_NOT_FOUND);
  EXPECT_EQ(copying.ends[0].error().vendor_code(), 507001);
  while (lane_.wire.EndOne()) continue;
  lane_.Step();
  EXPECT_EQ(queued.code(), ErrorCode::DEVICE_NOT_FOUND);
  EXPECT_EQ(lane_.in_use(), 0u);
  Transfer& later = lane_.Start(kWrite, 1000);
  lane_.Step();
  EXPECT_EQ(later.code(), ErrorCode::DEVICE_NOT_FOUND);
}

TEST_F(LaneTest, ADeviceThatOthersFoundLostIsNotTried) {
  lane_.port.lost = true;
  Transfer& write = lane_.Start(kWrite, 1000);
  lane_.Step();
  EXPECT_TRUE(lane_.port.running.empty());
  ASSERT_TRUE(write.ended());
  EXPECT_EQ(write.code(), ErrorCode::DEVICE_NOT_FOUND);
}

// D7, C14: an end in the middle of everything: each operation is told once, no slot is lost (TearDown looks).
TEST_F(LaneTest, D7C14StopEndsEverythingInEveryStage) {
  for (int i = 0; i < 10; ++i) {
    lane_.Start(kWrite, 3 * kSlot + static_cast<size_t>(i));
    lane_.Start(kRead, 500);
    lane_.Step();
    if (i % 2 == 0) lane_.port.EndOne();
    if (i % 3 == 0) lane_.wire.EndOne(Broken());
  }
  lane_.core->Stop();
  lane_.Step();
  Transfer& later = lane_.Start(kRead, 10);
  lane_.Step();
  EXPECT_EQ(later.code(), ErrorCode::SHUTTING_DOWN);
}

// A wire that does not keep its word is found out where it happens, not by what it overwrites.
TEST(LaneDeathTest, AWireThatEndsAPieceTwiceIsFoundOut) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto twice = [](bool late) {
    LaneHarness lane(SmallSlots());
    lane.Start(kRead, 1000);
    lane.Step();
    auto done = std::move(lane.wire.held.at(0).done);
    lane.wire.held.clear();
    done({});
    if (late) lane.Drain();
    done({});
    lane.Step();
  };
  EXPECT_DEATH(twice(false), "ended on the wire twice");
  EXPECT_DEATH(twice(true), "ended on the wire twice");
}

// D6: one list, both opcodes, all sizes; each goes its own way.
TEST_F(LaneTest, D6AMixedListIsTakenApart) {
  for (const size_t length : {size_t{1}, kSlot, size_t{0}, 9 * kSlot, size_t{4096}}) {
    lane_.Start(kWrite, length);
    lane_.Start(kRead, length);
  }
  lane_.Drain();
  for (const auto& transfer : lane_.transfers) EXPECT_EQ(transfer->code(), ErrorCode::OK);
}

// D15, P1: while a chunk is on the wire the next ones are copied.
TEST_F(LaneTest, D15CopiesAndTheWireOverlap) {
  lane_.Start(kWrite, 6 * kSlot);
  lane_.Step();
  lane_.port.EndOne();
  lane_.Step();
  EXPECT_EQ(lane_.wire.held.size(), 1u);
  EXPECT_EQ(lane_.port.count(Direction::kWrite), 2u);
}

TEST_F(LaneTest, ASmallReadPassesABulkWriteAndABulkRead) {
  lane_.Start(kWrite, 100 * kSlot);
  lane_.Start(kRead, 100 * kSlot, 2);
  lane_.Step();
  Transfer& small = lane_.Start(kRead, 4096, 3);
  lane_.Step();
  lane_.now += std::chrono::microseconds(50);
  lane_.Step();
  ASSERT_EQ(lane_.wire.held.back().length(), 4096u);
  lane_.wire.EndOne({}, lane_.wire.held.size() - 1);
  lane_.Step();
  ASSERT_TRUE(lane_.port.EndOne({}, Direction::kRead));
  lane_.Step();
  EXPECT_EQ(small.code(), ErrorCode::OK);
}

TEST_F(LaneTest, CountersTellHowManySlotsAreInUseAndForHowLong) {
  lane_.Start(kWrite, 2 * kSlot);
  lane_.Step();
  EXPECT_EQ(lane_.core->counters().slots_max, 2u);
  EXPECT_EQ(lane_.core->counters().slot_ns, 0u);
  lane_.now += milliseconds(3);
  lane_.Step();
  EXPECT_EQ(lane_.core->counters().slot_ns, 6'000'000u);
  lane_.Drain();
  lane_.now += milliseconds(3);
  lane_.Step();
  EXPECT_EQ(lane_.core->counters().slot_ns, 6'000'000u);
  EXPECT_EQ(lane_.core->counters().slots_max, 4u);  // the next two were copied before the wire took the first
}

TEST_F(LaneTest, AWireThatEndsWithinSubmitIsAsGood) {
  lane_.wire.at_once = [](const TransferOperation&) { return Result<void>{}; };
  for (int i = 0; i < 30; ++i) lane_.Start(i % 2 == 0 ? kWrite : kRead, static_cast<size_t>(i) * 9973);
  lane_.Drain();
  for (const auto& transfer : lane_.transfers) EXPECT_EQ(transfer->code(), ErrorCode::OK);
}

}  // namespace
}  // namespace mooncake::bridge
