// Transfers between NPUs of one node: device copies, to memory of another process through the runtime's IPC memory.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "device/npu_runtime.h"
#include "transfer_engine/transport.h"
#include "transfer_engine/transport/local/piecewise_copy.h"
#include "transfer_engine/transport/shm/peer_regions.h"
#include "transfer_engine/transport/shm/region_server.h"
#include "transfer_engine/transport_context.h"

namespace mooncake {

// From NPU to NPU between engines of one host (what stays inside an engine is the local transport's). The owner exports
// each region, in whole pages, and hands the key to who asks for it over a socket as the shm transport has it, after
// the runtime was told to let that process in. Memory of another process is imported when first needed, and closed when
// its region is withdrawn or either side goes, under the same rules and promises as the shm transport's mappings; that
// of another engine of this process is used as it is. The runtime's calls for it run on one thread of the transport: if
// one hangs, operations that wait for an import outlast their deadlines.
class AscendDirectTransport final : public Transport {
 public:
  struct Limits {
    PiecewiseCopier::Limits copies;
    Duration revoke_timeout = std::chrono::seconds(3);  // for peers to stop using memory that is withdrawn
  };
  // Loads the NPU runtime if the process does not use it yet. A runtime that lacks IPC memory is no error here: WhyNot
  // tells it.
  static Result<std::unique_ptr<AscendDirectTransport>> Open(const TransportContext& context);
  static Result<std::unique_ptr<AscendDirectTransport>> Open(const TransportContext& context,
                                                             std::shared_ptr<NpuRuntime> runtime, Limits limits);
  ~AscendDirectTransport() override;

  const char* name() const override { return "ascend"; }
  bool Reaches(const MemoryRange& local, const SegmentDescriptor& target, const SegmentRegion& region) const override {
    return Obstacle(local, target, region).empty();
  }
  std::string WhyNot(const MemoryRange& local, const SegmentDescriptor& target,
                     const SegmentRegion& region) const override {
    return std::string(Obstacle(local, target, region));
  }
  // Memory that cannot be exported is not shared, with a warning.
  Result<void> RegisterRegion(Region& region) override;
  void WithdrawRegion(const Region& region) override;
  void Describe(SegmentDescriptor& self) const override;
  void Submit(std::vector<TransferOperation> operations, Caller caller) override;
  void Cancel(BatchId tag) override;
  void Fence(const Uuid& node) override;

  // Times a peer was disconnected because it did not let go of withdrawn memory in time.
  uint64_t unacknowledged() const { return unacknowledged_.Value(); }

 private:
  // IPC memory of the runtime, and by what number the driver knows this process.
  struct Ipc {
    NpuIpc* calls;
    int32_t own_pid;
  };
  static Result<Ipc> FindIpc(NpuRuntime& runtime);
  AscendDirectTransport(const TransportContext& context, std::shared_ptr<NpuRuntime> runtime, Limits limits,
                        std::unique_ptr<shm::EventLoop> loop, bool any_user);
  std::string_view Obstacle(const MemoryRange& local, const SegmentDescriptor& target,
                            const SegmentRegion& region) const;
  void EndExport(uint64_t id);
  Result<std::shared_ptr<shm::MappedRegion>> Import(const std::shared_ptr<shm::Socket>& owner,
                                                    const shm::Message& mapped, const MemoryRange& local);

  const Uuid generation_;
  const std::string host_id_;
  const std::shared_ptr<NpuRuntime> runtime_;
  const Result<Ipc> ipc_;
  Counter& unacknowledged_;
  std::mutex mutex_;
  std::map<uint64_t, std::string> exports_;  // keys, by npu_id
  PiecewiseCopier copier_;
  const std::unique_ptr<shm::EventLoop> loop_;
  std::unique_ptr<shm::RegionServer> server_;  // set by Open
  shm::PeerRegions peers_;
};

}  // namespace mooncake
