// Slots: who gets one, and which ways they may go.
#include "transfer_engine/transport/ascend_rdma/slot_ring.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace mooncake::bridge {
namespace {

constexpr size_t kSlot = 4096;

class SlotRingTest : public testing::Test {
 protected:
  HostRange Memory(size_t slots) { return {memory_, slots * kSlot}; }
  static size_t Sum(const SlotRing& ring) {
    size_t sum = 0;
    for (size_t i = 0; i < kSlotStates; ++i) sum += ring.count(static_cast<SlotState>(i));
    return sum;
  }
  alignas(64) std::byte memory_[16 * kSlot];
};

TEST_F(SlotRingTest, SlotsAreDisjointPartsOfTheMemory) {
  SlotRing ring(Memory(8), kSlot);
  std::set<std::byte*> places;
  std::vector<SlotRing::Slot> taken;
  while (const auto slot = ring.Take(taken.size() % 2 == 0 ? Direction::kWrite : Direction::kRead, false)) {
    places.insert(ring.At(*slot));
    taken.push_back(*slot);
  }
  EXPECT_EQ(places.size(), 8u);
  EXPECT_EQ(*places.begin(), memory_);
  EXPECT_EQ(*places.rbegin(), memory_ + 7 * kSlot);
  for (const auto slot : taken) ring.Move(slot, SlotState::kFree);
}

TEST_F(SlotRingTest, AQuarterIsKeptForTheOtherDirection) {
  SlotRing ring(Memory(8), kSlot);
  std::vector<SlotRing::Slot> taken;
  while (const auto slot = ring.Take(Direction::kWrite, false)) taken.push_back(*slot);
  EXPECT_EQ(taken.size(), 6u);
  for (int i = 0; i < 2; ++i) taken.push_back(ring.Take(Direction::kRead, false).value());
  EXPECT_FALSE(ring.Take(Direction::kRead, false));
  for (const auto slot : taken) ring.Move(slot, SlotState::kFree);
}

TEST_F(SlotRingTest, BulkLeavesASlotToWhatIsSmall) {
  SlotRing ring(Memory(8), kSlot);
  std::vector<SlotRing::Slot> taken;
  while (const auto slot = ring.Take(Direction::kWrite, true)) taken.push_back(*slot);
  EXPECT_EQ(taken.size(), 5u);
  taken.push_back(ring.Take(Direction::kWrite, false).value());
  for (const auto slot : taken) ring.Move(slot, SlotState::kFree);
}

TEST_F(SlotRingTest, OneSlotServesBothDirections) {
  SlotRing ring(Memory(1), kSlot);
  for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
    const auto slot = ring.Take(direction, true).value();
    EXPECT_FALSE(ring.Take(Direction::kWrite, false));
    EXPECT_FALSE(ring.Take(Direction::kRead, false));
    ring.Move(slot, SlotState::kFree);
  }
}

TEST_F(SlotRingTest, AQuarantinedSlotIsNobodysAndComesBack) {
  SlotRing ring(Memory(2), kSlot);
  const auto slot = ring.Take(Direction::kRead, false).value();
  ring.Move(slot, SlotState::kOnWire);
  ring.Move(slot, SlotState::kQuarantined);
  EXPECT_EQ(ring.used(Direction::kRead), 0u);
  const auto other = ring.Take(Direction::kWrite, true).value();
  EXPECT_NE(other, slot);
  EXPECT_FALSE(ring.Take(Direction::kRead, false));
  EXPECT_EQ(Sum(ring), 2u);
  ring.Move(slot, SlotState::kFree);
  ring.Move(other, SlotState::kFree);
}

// Every pair of states, for both directions: only the two ways, and the ways out, are open.
TEST_F(SlotRingTest, OnlyTheWaysOfAWriteAndAReadAreAllowed) {
  using S = SlotState;
  using Ways = std::vector<std::vector<S>>;
  const Ways writes = {{S::kReserved, S::kCopying, S::kReady, S::kOnWire, S::kFree}};
  const Ways reads = {{S::kReserved, S::kOnWire, S::kArrived, S::kCopying, S::kFree}};
  for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
    SlotRing ring(Memory(1), kSlot);
    for (const auto& way : direction == Direction::kWrite ? writes : reads) {
      const auto slot = ring.Take(direction, false).value();
      for (size_t i = 1; i < way.size(); ++i) {
        ring.Move(slot, way[i]);
        EXPECT_EQ(ring.state(slot), way[i]);
        EXPECT_EQ(Sum(ring), 1u);
      }
    }
  }
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto die = [this](Direction direction, std::initializer_list<S> way) {
    SlotRing ring(Memory(1), kSlot);
    const auto slot = ring.Take(direction, false).value();
    for (const S state : way) ring.Move(slot, state);
  };
  EXPECT_DEATH(die(Direction::kWrite, {S::kOnWire}), "reserved -> on wire");
  EXPECT_DEATH(die(Direction::kRead, {S::kCopying}), "reserved -> copying");
  EXPECT_DEATH(die(Direction::kWrite, {S::kCopying, S::kOnWire}), "copying -> on wire");
  EXPECT_DEATH(die(Direction::kRead, {S::kOnWire, S::kCopying}), "on wire -> copying");
  EXPECT_DEATH(die(Direction::kWrite, {S::kFree, S::kFree}), "free -> free");
  EXPECT_DEATH(die(Direction::kWrite, {S::kCopying}), "0 of 1 slots are free");
}

}  // namespace
}  // namespace mooncake::bridge
