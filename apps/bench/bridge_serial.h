// The yardstick of the bridge: one request after the other, each copied as a whole before it is sent.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "device/npu_runtime.h"
#include "transfer_engine/transport/ascend_rdma/bounce_memory.h"

namespace mooncake::bench {

// Moves a request's bytes to host memory, waits for them, sends them and waits again; the other way round for a read.
// The same page-locked memory, copies and wire as the bridge has, only no overlap. Any thread.
class SerialBridge final : public Transport {
 public:
  // Requests of up to `bytes_max`, whole pages. The wire and the runtime outlive it.
  static Result<std::unique_ptr<SerialBridge>> Open(std::shared_ptr<NpuRuntime> runtime, Transport& wire,
                                                    int32_t device_id, size_t bytes_max);
  ~SerialBridge() override;

  const char* name() const override { return "serial"; }
  bool Reaches(const MemoryRange& local, const SegmentDescriptor&, const SegmentRegion&) const override {
    return !IsHost(local);
  }
  void Submit(std::vector<TransferOperation> operations, Caller caller) override;
  void Cancel(BatchId tag) override;

 private:
  SerialBridge(std::shared_ptr<NpuRuntime> runtime, Transport& wire, std::unique_ptr<bridge::BounceMemory> memory);
  void Run();
  Result<void> Move(const TransferOperation& operation);
  Result<void> Send(const TransferOperation& operation, HostRange staged);

  const std::shared_ptr<NpuRuntime> runtime_;
  Transport& wire_;
  const std::unique_ptr<bridge::BounceMemory> memory_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<TransferOperation> waiting_;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> filled_ = false;
  std::thread thread_;
};

}  // namespace mooncake::bench
