// Random mixes on real threads and the emulated runtime: sizes, devices, opcodes, peers, failures of copies and of the
// wire, cancels and deadlines. Bytes are right, each operation ends once and touches nothing afterwards, no two use one
// slot (the wire looks), and everything is given back (the fixture counts; the ring checks its slots at its end).
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "transfer_engine/transport/ascend_rdma/test_bridge_emulator.h"

namespace mooncake::bridge {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSlow = true;
#else
constexpr bool kSlow = false;
#endif
constexpr auto kWrite = TransferOpcode::kWrite;
constexpr auto kRead = TransferOpcode::kRead;
constexpr std::byte kUntouched{0x3C};

// One operation with memory of its own on both sides, and units of kMargin around it that nobody may write.
struct Move {
  static constexpr size_t kMargin = 64;
  TransferOpcode opcode = kRead;
  int32_t device = 0;
  size_t length = 0;
  size_t phase = 0;
  AscendUnifiedPointer block;
  std::vector<std::byte> remote;
  std::vector<std::byte> sent;    // what the source held
  std::vector<std::byte> at_end;  // what the target held when it ended
  std::atomic<int> ends = 0;
  Result<void> result;

  AscendUnifiedPointer at() const { return block + kMargin + phase; }
  size_t block_bytes() const { return length + phase + 2 * kMargin; }
};

class BridgeMix : public BridgeEmulatorTest {
 protected:
  void Prepare(Move& move, std::mt19937& random, size_t largest) {
    move.opcode = random() % 2 == 0 ? kWrite : kRead;
    move.device = static_cast<int32_t>(random() % 2);
    move.length = LengthOf(random, largest);
    move.phase = random() % 3 == 0 ? random() % 64 : 0;
    move.block = Allocate(move.block_bytes(), move.device);
    move.sent = Pattern(move.length, static_cast<unsigned>(random()));
    std::vector<std::byte> block(move.block_bytes(), kUntouched);
    move.remote.assign(move.length, kUntouched);
    if (move.opcode == kWrite) {
      std::ranges::copy(move.sent, block.begin() + static_cast<ptrdiff_t>(Move::kMargin + move.phase));
    } else {
      move.remote = move.sent;
    }
    Fill(move.block, block);
  }
  static size_t LengthOf(std::mt19937& random, size_t largest) {
    switch (random() % 8) {
      case 0:
        return random() % 65;  // 0 among them
      case 1:
      case 2:
      case 3:
        return random() % 6000;
      case 4:
      case 5:
        return random() % 100'000;
      default:
        return random() % largest;
    }
  }
  std::vector<std::byte> Target(const Move& move) const {
    if (move.opcode == kWrite) return move.remote;
    return move.length == 0 ? std::vector<std::byte>{} : Content(move.at(), move.length);
  }
  void Hand(std::span<Move> moves, size_t first, size_t count, BatchId tag, std::mt19937& random, bool faults) {
    std::vector<TransferOperation> list;
    for (size_t i = first; i < first + count; ++i) {
      Move& move = moves[i];
      const Duration timeout = faults && random() % 12 == 0 ? Duration(std::chrono::microseconds(random() % 5000))
                                                            : Duration(std::chrono::seconds(300));
      auto operation = Make(
          move.opcode, move.at(), move.length, move.remote.data(),
          [this, &move](Result<void> result) {
            move.result = std::move(result);
            move.at_end = Target(move);
            ++move.ends;
            ++ended_;
          },
          tag, timeout);
      operation.target = peers_[random() % peers_.size()];
      list.push_back(std::move(operation));
    }
    bridge_->Submit(std::move(list), Caller::kGoesOn);
  }
  void Check(const Move& move, bool faults) const {
    ASSERT_EQ(move.ends, 1);
    EXPECT_EQ(Target(move), move.at_end) << "touched after its end";
    if (!faults) {
      ASSERT_TRUE(move.result) << move.result.error().ToString();
    }
    if (move.result) {
      EXPECT_EQ(move.at_end, move.sent);
    }
    const auto block = Content(move.block, move.block_bytes());
    const std::span all(block);
    const auto untouched = [](std::byte byte) { return byte == kUntouched; };
    EXPECT_TRUE(std::ranges::all_of(all.first(Move::kMargin + move.phase), untouched));
    EXPECT_TRUE(std::ranges::all_of(all.last(Move::kMargin), untouched));
    if (move.opcode == kRead) {
      EXPECT_EQ(move.remote, move.sent);
    } else {
      EXPECT_TRUE(std::ranges::equal(all.subspan(Move::kMargin + move.phase, move.length), move.sent));
    }
  }
  void Run(unsigned seed, bool faults, size_t count, size_t largest, const AscendRdmaOptions& options) {
    std::mt19937 random(seed);
    ended_ = 0;
    Open(options, {0, 1});
    std::vector<Move> moves(count);
    for (Move& move : moves) Prepare(move, random, largest);
    if (faults) {
      EmulatorProbe::Inject(
          fmt::format("aclrtMemcpyAsync@%0.01:exec:seed={}=507001;aclrtMemcpyAsync@%0.005:seed={}=507899;"
                      "D2H@%0.005:seed={}=partial,507899;H2D@%0.005:seed={}=partial,507899",
                      seed, seed + 1, seed + 2, seed + 3)
              .c_str());
    }
    std::vector<std::thread> threads;
    const auto over = [&] { return ended_ == count; };
    for (unsigned w = 0; w < 2; ++w) {
      threads.emplace_back([&, dice = std::mt19937(seed * 10 + w)]() mutable {
        wire_.Serve(over, [&](const TransferOperation&) -> Result<void> {
          if (faults && dice() % 40 == 0) {
            return Error(dice() % 4 == 0 ? ErrorCode::STALE_SEGMENT : ErrorCode::TRANSFER_FAIL, "random");
          }
          return {};
        });
      });
    }
    constexpr size_t kSubmitters = 3;
    for (unsigned s = 0; s < kSubmitters; ++s) {
      threads.emplace_back([&, s, dice = std::mt19937(seed * 20 + s)]() mutable {
        const size_t begin = count * s / kSubmitters;
        const size_t end = count * (s + 1) / kSubmitters;
        for (size_t at = begin; at < end;) {
          const size_t some = std::min(end - at, size_t{1 + dice() % 9});
          Hand(moves, at, some, 1 + dice() % 6, dice, faults);
          at += some;
          if (faults && dice() % 8 == 0) bridge_->Cancel(1 + dice() % 6);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EmulatorProbe::Inject("");
    bridge_.reset();  // no slot is in use at its end, or it would not come to it
    for (size_t i = 0; i < count; ++i) {
      SCOPED_TRACE(fmt::format("seed {}, operation {} of {} B, phase {}", seed, i, moves[i].length, moves[i].phase));
      Check(moves[i], faults);
      if (HasFailure()) return;
      succeeded_ += moves[i].result ? 1 : 0;
      failed_ += moves[i].result ? 0 : 1;
    }
    for (const auto& block : std::exchange(blocks_, {})) EXPECT_TRUE(runtime_->Free(block));
    CheckReturned();
  }
  static AscendRdmaOptions Ring(unsigned seed) {
    AscendRdmaOptions options = SmallRing();
    options.ring_bytes = options.slot_bytes * (1 + seed % 9);
    options.copies_per_direction = 1 + seed % 3;
    options.lane.attempts = 4;
    options.lane.scheduler.pieces_per_slot = 12;
    if (seed % 3 == 0) {
      options.lane.scheduler.operations_max = 24;
      options.lane.scheduler.operations_per_peer_max = 12;
    }
    return options;
  }

  std::vector<SegmentPtr> peers_ = [] {
    std::vector<SegmentPtr> peers;
    for (const char* name : {"store-a", "store-b", "store-c"}) {
      peers.push_back(std::make_shared<const SegmentDescriptor>(
          SegmentDescriptor{.name = name, .protocols = {"rdma"}, .generation = Uuid::Random()}));
    }
    return peers;
  }();
  std::atomic<size_t> ended_ = 0;
  size_t succeeded_ = 0;
  size_t failed_ = 0;
};

TEST_F(BridgeMix, D2C10WithoutFaultsAllArrives) {
  for (unsigned seed = 1; seed <= (kSlow ? 2 : 5); ++seed) {
    Run(seed, false, kSlow ? 60 : 150, 900'000, Ring(seed));
    if (HasFailure()) return;
  }
}

TEST_F(BridgeMix, C4C17WithFaultsAndCancelsEachEndsOnceAndIsLeftAloneThen) {
  for (unsigned seed = 11; seed <= (kSlow ? 13 : 20); ++seed) {
    Run(seed, true, kSlow ? 60 : 150, 900'000, Ring(seed));
    if (HasFailure()) return;
  }
  EXPECT_GT(failed_, 0u);
  EXPECT_GT(succeeded_, failed_ / 2);
}

TEST_F(BridgeMix, C2D8ThreeHundredMegabytesInTheUsualRing) {
  const size_t size = (kSlow ? size_t{24} << 20 : size_t{300} << 20) - 13;
  AscendRdmaOptions options;
  Open(options, {0, 1});
  std::vector<Move> moves(3);
  const size_t lengths[] = {size / 16, size, 4096};
  for (size_t i = 0; i < moves.size(); ++i) {
    Move& move = moves[i];
    move.opcode = i == 0 ? kWrite : kRead;
    move.device = i == 0 ? 0 : 1;
    move.length = lengths[i];
    move.phase = 17 * i;
    move.block = Allocate(move.block_bytes(), move.device);
    move.sent = Pattern(move.length, static_cast<unsigned>(i));
    std::vector<std::byte> block(move.block_bytes(), kUntouched);
    move.remote = move.sent;
    if (move.opcode == kWrite) {
      std::ranges::copy(move.sent, block.begin() + static_cast<ptrdiff_t>(Move::kMargin + move.phase));
      move.remote.assign(move.length, kUntouched);
    }
    Fill(move.block, block);
  }
  std::mt19937 random(1);
  Hand(moves, 0, moves.size(), 1, random, false);
  wire_.Serve([&] { return ended_ == moves.size(); });
  for (const Move& move : moves) Check(move, false);
}

}  // namespace
}  // namespace mooncake::bridge
