// NPU memory towards peers that only host transports reach: bytes pass through a few host slots per device.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/npu_runtime.h"
#include "transfer_engine/transport/ascend_rdma/lane.h"
#include "transfer_engine/transport/ascend_rdma/slot_lender.h"
#include "transfer_engine/transport_context.h"

namespace mooncake {

struct AscendRdmaOptions {
  static constexpr size_t kRingBytesMax = size_t{3} << 30;
  size_t ring_bytes = size_t{64} << 20;  // per device, both directions; rounded up to whole slots
  size_t target_ring_bytes =
      size_t{32} << 20;                 // what peers are lent of, per device; 0: its memory is no target for them
  size_t slot_bytes = size_t{2} << 20;  // whole pages; smaller ones in a small ring, so that it has eight
  size_t copies_per_direction = 2;      // under way at once
  size_t chunk_bytes = 0;               // what large requests are cut into; 0: a slot, unless calibration finds better
  bool calibrate = true;                // choose the chunk by the speed of the device's copies, if it is 0
  bridge::LaneOptions lane;             // its slot and chunk follow from the above
  std::vector<int32_t> devices;         // get their lanes at once

  // MC_NPU_BRIDGE_*; INVALID_PARAMS naming the variable.
  static Result<AscendRdmaOptions> FromEnvironment();
};

// Any thread, but for Open and destruction. A device gets its lane when Open or PrepareDevice names it or the first of
// its memory is registered, and keeps it. A device that is lost stays out of use: nothing of it is reached or
// registered any more, and operations end with DEVICE_NOT_FOUND. More operations than a lane's limits wait inside, up
// to their deadlines.
//
// As a target NPU memory is staged: peers are lent slots of another ring, which a lane of its own fills and empties. It
// is opened when a peer first asks for the device's memory.
class AscendRdmaTransport final : public Transport {
 public:
  // `wires`: host transports, best first, of the engine that owns this one; they outlive it. INVALID_PARAMS for options
  // that make no sense; the failing step's error otherwise, and then nothing stays behind.
  static Result<std::unique_ptr<AscendRdmaTransport>> Open(std::shared_ptr<NpuRuntime> runtime,
                                                           std::vector<Transport*> wires, AscendRdmaOptions options,
                                                           const std::vector<int32_t>& devices);
  // An engine's, with the options of the environment. `needed`: without an NPU runtime or a wire it fails. Else it asks
  // for the runtime in use when there is NPU memory, and leaves it alone where there is none to ask.
  static Result<std::unique_ptr<AscendRdmaTransport>> Open(const TransportContext& context,
                                                           std::vector<Transport*> wires, bool needed);
  ~AscendRdmaTransport() override;

  const char* name() const override { return "ascend_rdma"; }
  bool Reaches(const MemoryRange& local, const SegmentDescriptor& target, const SegmentRegion& region) const override;
  std::string WhyNot(const MemoryRange& local, const SegmentDescriptor& target,
                     const SegmentRegion& region) const override;
  std::string Way(const MemoryRange& local, const SegmentDescriptor& target,
                  const SegmentRegion& region) const override;
  // Of NPU memory: opens the device's lane; DEVICE_NOT_FOUND when it is lost. Host memory is none of its business, and
  // peers are told of neither, but that NPU memory is staged.
  Result<void> RegisterRegion(Region& region) override;
  void WithdrawRegion(const Region& region) override;
  // Operations end with TRANSFER_FAIL when no wire reaches the target, DEVICE_NOT_FOUND without a lane for the device.
  // What a stream of the caller's still writes to `local` must have been waited for.
  void Submit(std::vector<TransferOperation> operations, Caller caller) override;
  void Cancel(BatchId tag) override;
  Result<bool> PrepareDevice(int32_t device_id) override;
  void UpdateMetrics() override;

  // Null without one.
  const bridge::LaneCounters* counters(int32_t device_id) const;
  // In force, with the sizes of slots and chunks that were chosen. Null without a lane.
  const bridge::LaneOptions* lane_options(int32_t device_id) const;
  // Of the lane that serves peers.
  const bridge::LaneCounters* target_counters(int32_t device_id) const;
  const bridge::SlotLender* lender() const { return lender_.get(); }  // null without an engine around it

 private:
  using RuntimeSource = std::function<std::shared_ptr<NpuRuntime>()>;  // null: none is in use
  AscendRdmaTransport(RuntimeSource source, std::vector<Transport*> wires, AscendRdmaOptions options)
      : source_(std::move(source)), wires_(std::move(wires)), options_(std::move(options)) {}

  static Result<std::unique_ptr<AscendRdmaTransport>> Make(RuntimeSource source, std::vector<Transport*> wires,
                                                           AscendRdmaOptions options);
  using Lanes = std::unordered_map<int32_t, std::unique_ptr<bridge::Lane>>;
  // Success without a lane where no runtime can drive one.
  Result<void> OpenLane(int32_t device_id);
  // Chooses the lane's chunk by the speed of copies from and to its ring. A device without a block to spare for that
  // gets whole slots.
  Result<void> Calibrate(int32_t device_id, HostRange ring, bridge::CopyPort& port, bridge::LaneOptions& lane) const;
  // `lent_in`: of a lane that serves peers.
  Result<std::unique_ptr<bridge::Lane>> MakeLane(int32_t device_id, size_t ring_bytes, RegionRegistry* lent_in);
  Result<bridge::Lane*> OpenTargetLane(int32_t device_id);
  bridge::Lane* LaneOf(int32_t device_id) const { return LaneIn(lanes_, device_id); }
  // Makes this process's NPU memory a target.
  void Lend(const TransportContext& context);
  bridge::Lane* LaneIn(const Lanes& lanes, int32_t device_id) const;
  void CountLane(int32_t device_id, const bridge::Lane& lane, const char* role);
  bool Online(int32_t device_id, const bridge::Lane* lane) const;
  // The error of one that is not online.
  std::unexpected<Status> OutOfUse(int32_t device_id) const;
  Transport* WireFor(const bridge::Lane& lane, const SegmentDescriptor& target, const SegmentRegion& region) const;

  const RuntimeSource source_;
  const std::vector<Transport*> wires_;
  const AscendRdmaOptions options_;
  MetricRegistry* metrics_ = nullptr;    // of the engine
  std::mutex opening_;                   // one lane at a time
  std::shared_ptr<NpuRuntime> runtime_;  // of all lanes, once there is one
  mutable std::shared_mutex mutex_;
  Lanes lanes_;
  Lanes target_lanes_;
  RegionRegistry* regions_ = nullptr;  // of the engine
  std::shared_ptr<bridge::SlotLender> lender_;
  std::mutex counting_;
  std::map<Counter*, uint64_t> counted_;  // what the metrics have been told
};

}  // namespace mooncake
