// The soak of the bridge: engines that live for some seconds, workers that transfer meanwhile, and what disturbs them.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "device/npu_runtime.h"
#include "transfer/far_end.h"
#include "transfer/soak_support.h"
#include "transfer_engine/transfer_engine.h"

namespace mooncake::transfer_test {

inline constexpr int32_t kDevices = 4;
inline constexpr size_t kPeers = 2;
inline constexpr size_t kWorkers = 4;
inline constexpr size_t kLargest = 300'000'000;  // of the first worker, and what peers hold to be read
inline constexpr size_t kShare = 6'000'000;      // of the others
inline constexpr size_t kSlots = 3;              // places of a share in a peer's memory that a worker writes to in turn
inline constexpr size_t kMargin = 64;            // around what a transfer may touch
inline constexpr uint64_t kConstantSeed = 77;
inline constexpr auto kLife = std::chrono::seconds(8);
// What a failed write had on the way may still arrive for a moment.
inline constexpr auto kRest = std::chrono::seconds(1);
inline constexpr size_t kMemoryMargin = 16 * kMiB;
inline constexpr size_t kDescriptorMargin = 4;

constexpr size_t ShareOf(size_t worker) {
  return worker == 0 ? kLargest : kShare;
}
constexpr size_t SlotsOf(size_t worker) {
  return worker == 0 ? 1 : kSlots;
}

// What was to happen, and what may go wrong without anybody being to blame, has an odd number meanwhile.
class Epoch {
 public:
  void Begin() { ++value_; }
  void End() { ++value_; }
  uint64_t now() const { return value_; }
  bool QuietSince(uint64_t before) const { return before % 2 == 0 && value_ == before; }

 private:
  std::atomic<uint64_t> value_{0};
};

struct Place {
  std::unique_ptr<FarEnd> end;  // main thread only
  Epoch epoch;
  std::mutex mutex;
  SegmentId target = kInvalidSegment;  // under the mutex, as what follows
  uint64_t constant = 0;
  std::array<uint64_t, kWorkers> slots{};
};

// Memory of a device that one worker uses: kMargin, its share, kMargin.
struct Area {
  AscendUnifiedPointer block;
  size_t share = 0;
  // What a request that failed has left alone since.
  struct Left {
    size_t offset;
    size_t length;
    uint64_t seed;
  };
  std::optional<Left> left;

  std::byte* at(size_t offset) const {
    return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(block.device_ptr)) + kMargin + offset;
  }
};

struct Counts {
  std::atomic<uint64_t> requests{0};
  std::atomic<uint64_t> bytes{0};
  std::atomic<uint64_t> asked{0};    // ended by a cancel or a short deadline
  std::atomic<uint64_t> excused{0};  // failed while copies failed or the peer was away
  std::atomic<uint64_t> lost{0};     // of a lost device
  std::atomic<uint64_t> wrong{0};
};

class BridgeSoak {
 public:
  explicit BridgeSoak(const SoakOptions& options) : length_(options.length), random_(options.seed) {}
  int Run();  // exit code

 private:
  struct Worker {
    size_t number;
    std::mt19937_64 random;
    std::vector<Area> areas;
    std::vector<std::byte> bytes;
    std::array<std::array<TimePoint, kSlots>, kPeers> rested{};
  };
  // One request or several for the same bytes.
  struct Move {
    TransferOpcode opcode;
    Area* area;
    Place* place;
    SegmentId target;
    uint64_t address;
    size_t offset;
    size_t length;
    uint64_t peer_epoch;  // from before its address was asked for
  };
  enum class Ended : uint8_t { kWell, kAsked, kExcused, kWrong };

  Result<void> Live();
  Result<void> OpenEngine();
  Result<void> CloseEngine();
  Result<void> Populate(Place& place);
  Result<void> Disturb();
  void FailCopies();
  void LoseADevice();
  void Work(size_t number, uint64_t seed);
  Result<void> MakeAreas(Worker& worker);
  void GiveBack(Worker& worker);
  void OneRound(Worker& worker);
  void ReadConstant(Worker& worker, Area& area, Place& place);
  void WriteAndReadBack(Worker& worker, Area& area, size_t peer);
  Ended Try(Worker& worker, const Move& move);
  Ended Judge(const Move& move, const Status& error, bool asked, bool lost_before, bool quiet);
  void Paint(Worker& worker, const Area& area, size_t offset, size_t length, uint64_t seed);
  void Expect(Worker& worker, const Area& area, size_t offset, size_t length, uint64_t seed, const char* what);
  void Register(Worker& worker, Area& area);
  void Report(const std::string& what);
  bool Stopping();
  void Sleep(Duration time);
  void Progress(const Use& use) const;

  const std::chrono::seconds length_;
  std::mt19937_64 random_;
  std::shared_ptr<NpuRuntime> npu_;
  std::unique_ptr<TransferEngine> engine_;
  std::array<Place, kPeers> places_;
  Epoch copies_;
  Counts counts_;
  std::atomic<size_t> ready_{0};  // workers of this life with memory
  size_t lives_ = 0;
  size_t kills_ = 0;
  size_t losses_ = 0;
  size_t faults_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool life_over_ = false;
  bool failed_ = false;
};

}  // namespace mooncake::transfer_test
