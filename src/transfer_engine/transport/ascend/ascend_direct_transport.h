// Transfers among NPUs of one node: device copies, to memory of another process through the runtime's IPC memory.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "device/npu_runtime.h"
#include "transfer_engine/transport.h"
#include "transfer_engine/transport/local/local_transport.h"
#include "transfer_engine/transport/shm/peer_regions.h"
#include "transfer_engine/transport/shm/region_server.h"
#include "transfer_engine/transport_context.h"

namespace mooncake {

// Within the process it copies between any memories of which one is on an NPU. Between processes of the host it copies
// from NPU to NPU: the owner exports each region (whole pages of it) and publishes the key; a key is of use only to a
// process that has asked the owner, over a socket as the shm transport has it, to be put on the runtime's white list.
// Imports are made when first needed and closed when the region is withdrawn or either side goes, under the same rules
// and promises as the shm transport's mappings. A runtime without IPC memory serves its own process only.
class AscendDirectTransport final : public Transport {
 public:
  struct Limits {
    PiecewiseCopier::Limits copies;
    Duration revoke_timeout = std::chrono::seconds(3);  // for peers to stop using memory that is withdrawn
  };
  static Result<std::unique_ptr<AscendDirectTransport>> Open(const TransportContext& context);
  static Result<std::unique_ptr<AscendDirectTransport>> Open(const TransportContext& context,
                                                             NpuRuntimeSource npu_runtime, Limits limits);
  ~AscendDirectTransport() override;

  const char* name() const override { return "ascend"; }
  bool Reaches(const MemoryRange& local, const SegmentDescriptor& target, const SegmentRegion& region) const override;
  std::string WhyNot(const MemoryRange& local, const SegmentDescriptor& target,
                     const SegmentRegion& region) const override;
  Result<void> RegisterRegion(Region& region) override;
  void WithdrawRegion(const Region& region) override;
  void Describe(SegmentDescriptor& self) const override;
  void Submit(std::vector<TransferOperation> operations, Caller caller) override;
  void Cancel(BatchId tag) override;
  void Fence(const Uuid& node) override;

  // Times a peer was disconnected because it did not let go of withdrawn memory in time.
  uint64_t unacknowledged() const { return unacknowledged_.Value(); }

 private:
  AscendDirectTransport(const TransportContext& context, NpuRuntimeSource npu_runtime, Limits limits,
                        std::unique_ptr<shm::EventLoop> loop, bool any_user);
  // The runtime in use, kept from its first use on; null when there is none.
  std::shared_ptr<NpuRuntime> Runtime();
  // NOT_SUPPORTED_TRANSPORT saying why it does not carry this.
  Result<void> Carries(const MemoryRange& local, const SegmentDescriptor& target, const SegmentRegion& region) const;
  // By id. True when it was exported.
  bool EndExport(uint64_t id);
  Result<std::shared_ptr<shm::MappedRegion>> Import(const std::shared_ptr<shm::Socket>& owner,
                                                    const shm::PeerRegions::Wanted& wanted, const shm::Message& mapped);
  // The importing side is ready to ask owners.
  Result<void> PrepareAsking();

  RegionRegistry& regions_;
  const Uuid generation_;
  const std::string host_id_;
  const NpuRuntimeSource npu_runtime_;
  Counter& unacknowledged_;
  std::mutex mutex_;
  std::shared_ptr<NpuRuntime> runtime_;
  std::map<uint64_t, std::string> exports_;  // keys, by npu_id
  bool asks_ = false;                        // the owners are told who asks
  PiecewiseCopier copier_;
  const std::unique_ptr<shm::EventLoop> loop_;
  std::unique_ptr<shm::RegionServer> server_;  // set by Open
  shm::PeerRegions peers_;
};

}  // namespace mooncake
