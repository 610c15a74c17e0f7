// NPU memory towards peers that only host transports reach: bytes pass through a few host slots per device.
#pragma once

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "device/npu_runtime.h"
#include "transfer_engine/transport/ascend_rdma/lane.h"

namespace mooncake {

struct AscendRdmaOptions {
  size_t ring_bytes = size_t{64} << 20;  // per device, both directions; rounded up to whole slots
  size_t slot_bytes = size_t{2} << 20;   // whole pages
  size_t copies_per_direction = 2;       // under way at once
  bool calibrate = true;                 // choose the chunk by the speed of the device's copies
  bridge::LaneOptions lane;              // its slot and chunk follow from the above
};

// Any thread, but for Open and destruction. A device gets its lane when Open names it or the first of its memory is
// registered. A device that is lost stays out of use: nothing of it is reached or registered any more, and operations
// end with DEVICE_NOT_FOUND. More operations than a lane's limits wait inside, up to their deadlines.
class AscendRdmaTransport final : public Transport {
 public:
  // `wires`: host transports, best first, of the engine that owns this one; they outlive it. INVALID_PARAMS for options
  // that make no sense; the failing step's error otherwise, and then nothing stays behind.
  static Result<std::unique_ptr<AscendRdmaTransport>> Open(std::shared_ptr<NpuRuntime> runtime,
                                                           std::vector<Transport*> wires, AscendRdmaOptions options,
                                                           const std::vector<int32_t>& devices);
  ~AscendRdmaTransport() override;

  const char* name() const override { return "ascend_rdma"; }
  bool Reaches(const MemoryRange& local, const SegmentDescriptor& target, const SegmentRegion& region) const override;
  // Of NPU memory: opens the device's lane; DEVICE_NOT_FOUND when it is lost. Host memory is none of its business, and
  // peers are told of neither.
  Result<void> RegisterRegion(Region& region) override;
  // Operations end with TRANSFER_FAIL when no wire reaches the target, DEVICE_NOT_FOUND without a lane for the device.
  // What a stream of the caller's still writes to `local` must have been waited for.
  void Submit(std::vector<TransferOperation> operations, Caller caller) override;
  void Cancel(BatchId tag) override;

  // Null without one.
  const bridge::LaneCounters* counters(int32_t device_id) const;

 private:
  AscendRdmaTransport(std::shared_ptr<NpuRuntime> runtime, std::vector<Transport*> wires, AscendRdmaOptions options)
      : runtime_(std::move(runtime)), wires_(std::move(wires)), options_(options) {}

  Result<void> OpenLane(int32_t device_id);
  bridge::Lane* LaneOf(int32_t device_id) const;
  bool Online(int32_t device_id, const bridge::Lane* lane) const;
  Transport* WireFor(const bridge::Lane& lane, const SegmentDescriptor& target, const SegmentRegion& region) const;

  const std::shared_ptr<NpuRuntime> runtime_;
  const std::vector<Transport*> wires_;
  const AscendRdmaOptions options_;
  std::mutex opening_;  // one lane at a time
  mutable std::shared_mutex mutex_;
  std::unordered_map<int32_t, std::unique_ptr<bridge::Lane>> lanes_;
};

}  // namespace mooncake
