// A wire with a known rate: a network device and its link by their model, with the bytes really moved.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "transfer_engine/transport.h"

namespace mooncake::bench {

struct WireOptions {
  double bytes_per_second = 2e9;                         // of each direction
  Duration latency = std::chrono::microseconds(8);       // from a request's last byte to its completion
  Duration request_cost = std::chrono::microseconds(2);  // of the device, one request after the other
  size_t depth = 64;                                     // requests the device holds; more wait for completions
  std::chrono::nanoseconds Moving(size_t bytes) const {
    return Duration(static_cast<int64_t>(static_cast<double>(bytes) * 1e9 / bytes_per_second));
  }
};

// One queue pair on a full-duplex link: requests leave in the order they came, so a read's request waits behind the
// bytes of earlier writes, while its data has the other direction for itself and its like. Bytes are copied between
// local memory and the peer's area, not before the request's turn; it completes no earlier than the model says, and as
// much later as this host is late. What has been submitted is not canceled: it ends by itself soon.
class PacedWire final : public Transport {
 public:
  enum class Time : uint8_t {
    kWall,    // a thread does the work
    kByHand,  // whoever made it calls SetNow and Advance, one thread
  };
  // `peer` outlives it.
  PacedWire(WireOptions options, HostRange peer, Time time);
  ~PacedWire() override;
  PacedWire(const PacedWire&) = delete;
  PacedWire& operator=(const PacedWire&) = delete;

  const char* name() const override { return "paced"; }
  bool Reaches(const MemoryRange& local, const SegmentDescriptor&, const SegmentRegion&) const override {
    return IsHost(local);
  }
  void Submit(std::vector<TransferOperation> operations, Caller caller) override;
  void Cancel(BatchId) override {}

  void SetNow(TimePoint now) { by_hand_now_ = now; }
  // Does one thing that is due: a piece of a copy, or a completion. False when nothing is.
  bool Advance(TimePoint now);
  // When the next thing is due.
  std::optional<TimePoint> NextAt();

  const WireOptions& options() const { return options_; }
  // What the far end of a transfer is to its initiator.
  SegmentPtr target() const { return target_; }
  const SegmentRegion& region() const { return target_->regions.front(); }

 private:
  struct Flight {
    TransferOperation operation;
    TimePoint begins;
    TimePoint completes;
    size_t moved = 0;
    TimePoint due() const { return moved < operation.length() ? begins : completes; }
  };
  using Flights = std::deque<Flight>;

  Result<Flight> Launch(TransferOperation& operation, TimePoint now);
  void Run();
  void WaitUntil(TimePoint until);
  TimePoint Now() const { return time_ == Time::kWall ? SteadyClock::Instance().Now() : by_hand_now_; }

  const WireOptions options_;
  const HostRange peer_;
  const Time time_;
  const SegmentPtr target_;
  TimePoint by_hand_now_{};

  std::mutex mutex_;
  std::condition_variable came_;
  std::atomic<bool> filled_ = false;
  std::atomic<bool> stop_ = false;
  std::array<Flights, 2> submitted_;  // by direction
  TimePoint out_free_{};
  TimePoint in_free_{};
  std::deque<TimePoint> completions_;  // of the last `depth` requests

  std::array<Flights, 2> flights_;  // of whoever advances
  std::thread thread_;
};

}  // namespace mooncake::bench
