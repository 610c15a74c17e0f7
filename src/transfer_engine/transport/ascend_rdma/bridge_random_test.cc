// Random mixes of everything, by seed: bytes are right, each operation ends once, no slot is lost or used twice.
#include <gtest/gtest.h>

#include <random>

#include "transfer_engine/transport/ascend_rdma/test_lane_fakes.h"

namespace mooncake::bridge {
namespace {

class Mix {
 public:
  Mix(unsigned seed, LaneOptions options, size_t slots, size_t depth, size_t largest)
      : random_(seed), largest_(largest), faults_(random_() % 3 != 0), lane_(options, slots, depth) {}

  void Run(int steps) {
    for (int i = 0; i < steps; ++i) {
      Act(random_() % 100);
      lane_.Step();
      if (testing::Test::HasFatalFailure()) return;
    }
    lane_.Drain();
    EXPECT_EQ(lane_.in_use(), 0u);
    for (const auto& transfer : lane_.transfers) {
      ASSERT_TRUE(transfer->ended());
      if (!faults_) {
        EXPECT_EQ(transfer->code(), ErrorCode::OK);
      }
    }
    lane_.Close();
    lane_.CheckAll();
  }

 private:
  size_t Length() {
    switch (random_() % 5) {
      case 0:
        return random_() % 65;
      case 1:
      case 2:
        return random_() % 5000;
      case 3:
        return random_() % (largest_ / 16);
      default:
        return random_() % 8 == 0 ? random_() % largest_ : random_() % (largest_ / 4);
    }
  }
  void Act(unsigned what) {
    const bool fault = faults_ && random_() % 25 == 0;
    if (what < 15) {
      const auto timeout = faults_ && random_() % 10 == 0 ? Duration(std::chrono::microseconds(random_() % 3000))
                                                          : Duration(std::chrono::hours(1));
      lane_.Start(random_() % 2 == 0 ? TransferOpcode::kRead : TransferOpcode::kWrite, Length(), 1 + random_() % 4,
                  random_() % 2 == 0 ? 0 : random_() % 64, timeout, lane_.peers[random_() % 3]);
    } else if (what < 50) {
      const auto direction = random_() % 2 == 0 ? Direction::kRead : Direction::kWrite;
      lane_.port.EndOne(fault ? Result<void>(Error(ErrorCode::DATA_COPY_FAILED, "random")) : Result<void>{}, direction);
    } else if (what < 90 && !lane_.wire.held.empty()) {
      const auto code = random_() % 4 == 0 ? ErrorCode::STALE_SEGMENT : ErrorCode::TRANSFER_FAIL;
      lane_.wire.EndOne(fault ? Result<void>(Error(code, "random")) : Result<void>{},
                        random_() % lane_.wire.held.size());
    } else if (what < 92 && faults_) {
      lane_.core->Cancel(1 + random_() % 4);
    } else {
      lane_.now += std::chrono::microseconds(random_() % 200);
      if (faults_ && random_() % 50 == 0) lane_.now += std::chrono::seconds(12);
      if (faults_ && random_() % 200 == 0) lane_.now += std::chrono::seconds(31);
      if (faults_ && random_() % 1000 == 0) lane_.port.lost = true;
    }
  }

  std::mt19937 random_;
  const size_t largest_;
  const bool faults_;
  LaneHarness lane_;
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr unsigned kSeeds = 30;
constexpr size_t kHuge = size_t{24} << 20;
#else
constexpr unsigned kSeeds = 150;
constexpr size_t kHuge = size_t{300} << 20;
#endif

TEST(BridgeRandomTest, SmallSlots) {
  for (unsigned seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    LaneOptions options;
    options.scheduler.slot_bytes = 16384;
    options.scheduler.chunk_bytes = seed % 2 == 0 ? 16384 : 4096;
    options.scheduler.chunk_bytes_min = 4096;
    options.scheduler.small_bytes = 8192;
    options.scheduler.bulk_bytes = 65536;
    options.scheduler.pieces_per_slot = 8;
    if (seed % 4 == 0) {
      options.scheduler.operations_max = 10;
      options.scheduler.operations_per_peer_max = 5;
    }
    Mix(seed, options, 1 + seed % 9, 1 + seed % 3, 400'000).Run(600);
    if (HasFailure()) return;
  }
}

TEST(BridgeRandomTest, DefaultSlots) {
  for (unsigned seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    Mix(seed, LaneOptions{}, 32, 2, kHuge / 8).Run(120);
    if (HasFailure()) return;
  }
}

TEST(BridgeRandomTest, ThreeHundredMegabytesBothWays) {
  LaneHarness lane(LaneOptions{}, 32, 2);
  lane.Start(TransferOpcode::kWrite, kHuge - 13, 1, 17);
  lane.Start(TransferOpcode::kRead, kHuge - 1, 2, 1);
  lane.Start(TransferOpcode::kRead, 4096, 3);
  lane.Drain();
  lane.CheckAll();
  for (const auto& transfer : lane.transfers) EXPECT_EQ(transfer->code(), ErrorCode::OK);
}

}  // namespace
}  // namespace mooncake::bridge
