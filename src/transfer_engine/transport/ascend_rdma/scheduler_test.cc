// What goes next, by a clock that is moved by hand.
#include "transfer_engine/transport/ascend_rdma/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "device/npu_driver.h"

namespace mooncake::bridge {
namespace {

constexpr size_t kKi = 1024;
constexpr size_t kMi = 1024 * kKi;
using std::chrono::microseconds;
using std::chrono::milliseconds;

class SchedulerTest : public testing::Test {
 protected:
  Uuid Peer(size_t i) {
    while (peers_.size() <= i) peers_.push_back(Uuid::Random());
    return peers_[i];
  }
  uint64_t Add(Direction direction, size_t length, size_t peer = 0, BatchId batch = 1, size_t phase = 0) {
    const uint64_t id = ++last_id_;
    const auto added = scheduler_.Add({id, direction, Peer(peer), batch, length, phase}, now_);
    EXPECT_TRUE(added) << added.error().ToString();
    lengths_[id] = length;
    return id;
  }
  std::optional<Load> Next(Direction direction, bool idle = false, bool bulk = true) {
    return scheduler_.Next(direction, idle, bulk, now_);
  }

  TimePoint now_{std::chrono::seconds(1)};
  Scheduler scheduler_{SchedulerOptions{}};
  std::vector<Uuid> peers_;
  std::map<uint64_t, size_t> lengths_;
  uint64_t last_id_ = 0;
};

TEST_F(SchedulerTest, PeerAtItsLimitIsPassedOverUntilALoadComesBack) {
  SchedulerOptions options;
  options.loads_per_peer_max = 2;
  Scheduler scheduler(options);
  uint64_t id = 0;
  for (size_t peer = 0; peer < 2; ++peer) {
    for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
      ASSERT_TRUE(scheduler.Add({++id, direction, Peer(peer), 1, 64 * kMi, 0}, now_));
    }
  }
  const auto take = [&](Direction direction) {
    std::map<Uuid, size_t> taken;
    while (const auto load = scheduler.Next(direction, false, true, now_)) ++taken[load->peer];
    return taken;
  };
  const std::map<Uuid, size_t> both = {{Peer(0), 2}, {Peer(1), 2}};
  EXPECT_EQ(take(Direction::kWrite), both);
  EXPECT_EQ(take(Direction::kRead), both) << "each direction has its own";
  scheduler.Returned(Direction::kRead, Peer(1));
  EXPECT_EQ(take(Direction::kRead), (std::map<Uuid, size_t>{{Peer(1), 1}}));
  EXPECT_FALSE(scheduler.Next(Direction::kWrite, true, true, now_));
}

TEST_F(SchedulerTest, ALoneSmallOperationGoesAtOnceWhenTheLaneIsIdle) {
  const uint64_t id = Add(Direction::kWrite, 4 * kKi);
  const auto load = Next(Direction::kWrite, true);
  ASSERT_TRUE(load);
  ASSERT_EQ(load->pieces.size(), 1u);
  EXPECT_EQ(load->pieces[0].work, id);
  EXPECT_FALSE(Next(Direction::kWrite, true));
}

TEST_F(SchedulerTest, SmallOperationsOfABusyLaneWaitForCompanyUntilTheyAreOld) {
  Add(Direction::kRead, 4 * kKi);
  EXPECT_FALSE(Next(Direction::kRead));
  EXPECT_EQ(scheduler_.RipeAt(Direction::kRead), now_ + microseconds(50));
  now_ += microseconds(49);
  Add(Direction::kRead, 4 * kKi, 0, 2);
  EXPECT_FALSE(Next(Direction::kRead));
  now_ += microseconds(1);
  const auto load = Next(Direction::kRead);
  ASSERT_TRUE(load);
  EXPECT_EQ(load->pieces.size(), 2u);  // of two batches
  EXPECT_FALSE(scheduler_.RipeAt(Direction::kRead));
}

TEST_F(SchedulerTest, SmallOperationsThatFillASlotGoAtOnce) {
  for (int i = 0; i < 4; ++i) Add(Direction::kWrite, 512 * kKi);
  const auto load = Next(Direction::kWrite);
  ASSERT_TRUE(load);
  EXPECT_EQ(load->pieces.size(), 4u);
}

TEST_F(SchedulerTest, ASlotIsSharedByOnePeerOnly) {
  Add(Direction::kWrite, 4 * kKi, 0);
  Add(Direction::kWrite, 4 * kKi, 1);
  EXPECT_EQ(Next(Direction::kWrite, true)->pieces.size(), 1u);
  EXPECT_EQ(Next(Direction::kWrite, true)->pieces.size(), 1u);
}

// D12, C16: whatever the lengths and addresses, pieces keep their phase and share no aligned unit.
TEST_F(SchedulerTest, C16PackedPiecesKeepTheirPhaseAndShareNoUnit) {
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) Add(Direction::kWrite, 1 + random() % 9000, 0, 1 + random() % 3, random() % 64);
  std::map<uint64_t, size_t> phases;
  while (const auto load = Next(Direction::kWrite, true)) {
    size_t unit_end = 0;
    for (const Piece& piece : load->pieces) {
      EXPECT_GE(piece.slot_offset / kAsyncAlignment * kAsyncAlignment, unit_end);
      unit_end = (piece.slot_offset + piece.length + kAsyncAlignment - 1) / kAsyncAlignment * kAsyncAlignment;
      EXPECT_LE(piece.slot_offset + piece.length, 2 * kMi);
      EXPECT_EQ(piece.offset, 0u);
      EXPECT_EQ(piece.length, lengths_[piece.work]);
      EXPECT_LE(load->pieces.size(), 256u);
      lengths_.erase(piece.work);
    }
  }
  EXPECT_TRUE(lengths_.empty());
}

// D5, D8, D9, C2: no length is too much, and none gets stuck behind a small one.
TEST_F(SchedulerTest, C2D5D8D9AnyLengthIsCutIntoChunksThatCoverIt) {
  for (const size_t length : {2 * kMi, 2 * kMi + 1, 8 * kMi - 1, 8 * kMi, 40 * kMi + 17, size_t{5} << 30}) {
    for (const size_t phase : {size_t{0}, size_t{1}, size_t{63}}) {
      Add(Direction::kWrite, 100);
      const uint64_t id = Add(Direction::kWrite, length, 0, 1, phase);
      size_t at = 0;
      size_t chunks = 0;
      while (const auto load = Next(Direction::kWrite, true)) {
        for (const Piece& piece : load->pieces) {
          if (piece.work != id) continue;
          EXPECT_EQ(piece.offset, at);
          EXPECT_EQ((phase + piece.offset) % 64, piece.slot_offset % 64);
          EXPECT_LE(piece.slot_offset + piece.length, 2 * kMi);
          at += piece.length;
          ++chunks;
        }
      }
      EXPECT_EQ(at, length);
      EXPECT_GE(chunks, 4u);
      EXPECT_LE(chunks, length / (512 * kKi) + 2);
    }
  }
}

TEST_F(SchedulerTest, SmallReadsPassForegroundAndForegroundPassesBulk) {
  Add(Direction::kRead, 64 * kMi, 0, 1);
  Add(Direction::kRead, 4 * kMi, 0, 2);
  Add(Direction::kRead, 4 * kKi, 0, 3);
  EXPECT_EQ(Next(Direction::kRead, true)->work_class, WorkClass::kSmallRead);
  EXPECT_EQ(Next(Direction::kRead, true)->work_class, WorkClass::kForeground);
  Add(Direction::kRead, 4 * kKi, 0, 3);
  EXPECT_EQ(Next(Direction::kRead, true)->work_class, WorkClass::kSmallRead);
  for (int i = 0; i < 4; ++i) {
    const auto load = Next(Direction::kRead, true);
    if (load->work_class == WorkClass::kBulk) break;
    EXPECT_EQ(load->work_class, WorkClass::kForeground);
  }
  EXPECT_EQ(Next(Direction::kRead, true)->work_class, WorkClass::kBulk);
  EXPECT_FALSE(Next(Direction::kRead, true, false));  // bulk has to wait
}

TEST_F(SchedulerTest, FlowsOfAClassShareByBytes) {
  Add(Direction::kWrite, 640 * kMi, 0, 1);
  Add(Direction::kWrite, 640 * kMi, 1, 2);
  Add(Direction::kWrite, 640 * kMi, 1, 3);
  std::map<uint64_t, size_t> bytes;
  for (int i = 0; i < 90; ++i) {
    const auto load = Next(Direction::kWrite);
    for (const Piece& piece : load->pieces) bytes[piece.work] += piece.length;
  }
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(bytes[id], 60 * kMi);
}

// A slot may hold many chunks: what a flow has used up must not leave the lane idle.
TEST(SchedulerCreditTest, SmallOperationsGoOnThoughASlotHoldsManyChunks) {
  Scheduler scheduler({.slot_bytes = 8 * kMi, .chunk_bytes = 512 * kKi});
  const Uuid peer = Uuid::Random();
  for (uint64_t id = 1; id <= 128; ++id) {
    ASSERT_TRUE(scheduler.Add({id, Direction::kWrite, peer, 1, 256 * kKi, 0}, {}));
  }
  for (int i = 0; i < 4; ++i) {
    const auto load = scheduler.Next(Direction::kWrite, true, true, {});
    ASSERT_TRUE(load) << i;
    EXPECT_EQ(load->pieces.size(), 32u);
  }
}

TEST_F(SchedulerTest, AFlowThatFilledUpOthersSlotsGoesOnWhenTheyAreGone) {
  for (int i = 0; i < 2000; ++i) Add(Direction::kWrite, 64 * kKi, 0, 2);
  for (int i = 0; i < 30; ++i) {
    Add(Direction::kWrite, 64 * kKi, 0, 1);
    ASSERT_TRUE(Next(Direction::kWrite, true));
  }
  while (!scheduler_.empty(Direction::kWrite)) ASSERT_TRUE(Next(Direction::kWrite, true));
}

TEST_F(SchedulerTest, BulkThatHasWaitedLongGetsEverySecondTurn) {
  const uint64_t bulk = Add(Direction::kWrite, 100 * kMi, 0, 1);
  for (int i = 0; i < 20; ++i) Add(Direction::kWrite, 10 * kMi, 1, 2);
  EXPECT_NE(Next(Direction::kWrite)->pieces[0].work, bulk);
  size_t of_bulk = 0;
  for (int i = 0; i < 10; ++i) {
    now_ += milliseconds(11);
    if (Next(Direction::kWrite)->pieces[0].work == bulk) ++of_bulk;
  }
  EXPECT_EQ(of_bulk, 5u);
}

TEST_F(SchedulerTest, WhatIsDroppedIsNotPickedAndDoesNotHoldUpOthers) {
  const uint64_t first = Add(Direction::kWrite, 20 * kMi);
  const uint64_t second = Add(Direction::kWrite, 20 * kMi);
  EXPECT_EQ(Next(Direction::kWrite)->pieces[0].work, first);
  scheduler_.Drop(first);
  scheduler_.Drop(first);
  EXPECT_EQ(Next(Direction::kWrite)->pieces[0].work, second);
  scheduler_.End(first);
  scheduler_.End(second);
  EXPECT_TRUE(scheduler_.empty(Direction::kWrite));
  EXPECT_FALSE(Next(Direction::kWrite));
  EXPECT_EQ(scheduler_.operations(), 0u);
}

TEST(SchedulerLimitTest, OperationsBeyondTheLimitsAreRefusedUntilOthersEnd) {
  Scheduler scheduler({.operations_max = 4, .operations_per_peer_max = 3});
  const Uuid greedy = Uuid::Random();
  const Uuid other = Uuid::Random();
  uint64_t id = 0;
  const auto add = [&](const Uuid& peer) { return scheduler.Add({++id, Direction::kWrite, peer, 1, 64, 0}, {}); };
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(add(greedy));
  EXPECT_EQ(add(greedy).error().code(), ErrorCode::TOO_MANY_REQUESTS);
  EXPECT_TRUE(add(other));
  EXPECT_EQ(add(other).error().code(), ErrorCode::TOO_MANY_REQUESTS);
  ASSERT_TRUE(scheduler.Next(Direction::kWrite, true, true, {}));
  EXPECT_FALSE(add(other));  // picked is not ended
  scheduler.End(1);
  EXPECT_TRUE(add(other));
}

}  // namespace
}  // namespace mooncake::bridge
