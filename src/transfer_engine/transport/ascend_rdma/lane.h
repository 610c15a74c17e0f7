// One device's share of the bridge: slots, streams, and the thread that keeps them going.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "device/npu_runtime.h"
#include "transfer_engine/transport/ascend_rdma/bounce_memory.h"
#include "transfer_engine/transport/ascend_rdma/lane_core.h"

namespace mooncake::bridge {

// Submit and Cancel: any thread.
class Lane {
 public:
  // Starts the thread. `memory` holds whole slots.
  Lane(int32_t device_id, const LaneOptions& options, std::unique_ptr<BounceMemory> memory,
       std::unique_ptr<CopyPort> port);
  // Ends all operations (SHUTTING_DOWN), waits until slots and streams are let go of, then gives everything back.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void Submit(std::vector<BridgedOperation> operations) { core_.Submit(std::move(operations)); }
  void Cancel(BatchId tag) { core_.Cancel(tag); }

  bool online() const { return core_.online(); }
  // Any of its slots: what a transport has to reach.
  HostRange sample() const { return memory_->bytes().first(1); }
  // Of its slots, with the transports' keys.
  const SegmentRegion& published() const { return memory_->published(); }
  const LaneCounters& counters() const { return core_.counters(); }
  const LaneOptions& options() const { return core_.options(); }

 private:
  void Run();

  // Given back from the last to the first.
  const std::unique_ptr<BounceMemory> memory_;
  std::unique_ptr<CopyPort> port_;
  SlotRing ring_;
  LaneCore core_;
  std::thread thread_;
};

}  // namespace mooncake::bridge
