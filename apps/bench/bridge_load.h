// What both policies are given to do: memory on both ends, requests between them, and somebody who waits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "bench/bridge_wire.h"
#include "device/npu_runtime.h"

namespace mooncake::bench {

// Waits for so many operations. Outlives them.
class Landing {
 public:
  explicit Landing(size_t count) : left_(count) {}
  // The `done` of one of them.
  std::move_only_function<void(Result<void>)> Done();
  bool over() const { return left_.load(std::memory_order_acquire) == 0; }
  // Looks for a while before it sleeps. The first error.
  Result<void> Await();
  Result<void> result() const { return result_; }

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  std::atomic<size_t> left_;
  Result<void> result_;
};

// A block of NPU memory and a peer's memory of the same size.
class BothEnds {
 public:
  // Device 0 is opened.
  static Result<std::unique_ptr<BothEnds>> Open(std::shared_ptr<NpuRuntime> runtime, size_t bytes);
  ~BothEnds();
  BothEnds(const BothEnds&) = delete;
  BothEnds& operator=(const BothEnds&) = delete;

  HostRange peer() const { return peer_; }
  AscendUnifiedPointer block() const { return block_; }

  // Bytes [at, at + bytes) of one end to the same place of the other.
  TransferOperation Request(TransferOpcode opcode, size_t at, size_t bytes, const PacedWire& wire,
                            Landing& landing) const;
  // `count` requests of `bytes` each, handed over at once; wraps at the end of the memory. Seconds until all ended.
  Result<double> Move(Transport& policy, TransferOpcode opcode, size_t bytes, size_t count,
                      const PacedWire& wire) const;
  // A pattern to the device and back again through the policy: INTERNAL_ERROR when it comes back changed.
  Result<void> Verify(Transport& policy, size_t bytes, const PacedWire& wire) const;

 private:
  BothEnds(std::shared_ptr<NpuRuntime> runtime, AscendUnifiedPointer block, HostRange peer)
      : runtime_(std::move(runtime)), block_(block), peer_(peer) {}

  const std::shared_ptr<NpuRuntime> runtime_;
  const AscendUnifiedPointer block_;
  const HostRange peer_;
};

// The model of the copies, and of what a policy makes of them and a wire: times of one transfer.
struct BridgeModel {
  double copy_rate;      // bytes per second
  double copy_overhead;  // seconds on the device's queue per copy
  double copy_latency;   // seconds from the submission to the first byte
  double sync_overhead;  // seconds of a synchronous copy besides its bytes
  WireOptions wire;

  // nullopt on a real runtime.
  static std::optional<BridgeModel> Of(const char* rate, const WireOptions& wire);
  double Serial(size_t bytes) const;
  double Pipelined(size_t bytes, size_t chunk) const;
  // Of the copies alone, or the wire alone: whichever is slower.
  double Best(size_t bytes) const { return static_cast<double>(bytes) / std::min(copy_rate, wire.bytes_per_second); }
};

}  // namespace mooncake::bench
