// Transfers to and from another process of the same host: a copy between local memory and a mapping of the peer's.
#pragma once

#include <memory>
#include <string>

#include "transfer_engine/transport.h"
#include "transfer_engine/transport/local/piecewise_copy.h"
#include "transfer_engine/transport/shm/peer_regions.h"
#include "transfer_engine/transport/shm/region_server.h"
#include "transfer_engine/transport_context.h"

namespace mooncake {

// Reaches regions that were registered with RegionOptions::shared, whatever their access, of processes of the same user
// or, with MC_SHM_ANY_USER=1 on the owner's side, of any. A grant is not looked at: same-host peers have the region.
// A peer that is stopped serves what is mapped already; what is not times out. A peer that dies ends what is under way
// to it with TRANSFER_FAIL, what comes later with STALE_SEGMENT: its socket's name is never used again.
class ShmTransport final : public Transport {
 public:
  struct Limits {
    PiecewiseCopier::Limits copies;
    Duration revoke_timeout = std::chrono::seconds(3);  // for peers to stop using memory that is withdrawn
  };
  static Result<std::unique_ptr<ShmTransport>> Open(const TransportContext& context);
  static Result<std::unique_ptr<ShmTransport>> Open(const TransportContext& context, Limits limits);
  ~ShmTransport() override;

  const char* name() const override { return "shm"; }
  bool Reaches(const MemoryRange& local, const SegmentDescriptor& target, const SegmentRegion& region) const override;
  Result<void> RegisterRegion(Region& region) override;
  void WithdrawRegion(const Region& region) override;
  void Describe(SegmentDescriptor& self) const override;
  void Submit(std::vector<TransferOperation> operations, Caller caller) override;
  void Cancel(BatchId tag) override;
  void Fence(const Uuid& node) override;

  // Times a peer was disconnected because it did not let go of withdrawn memory in time.
  uint64_t unacknowledged() const { return unacknowledged_.Value(); }

 private:
  ShmTransport(const TransportContext& context, Limits limits, std::unique_ptr<shm::EventLoop> loop, bool any_user);

  const Uuid generation_;
  const std::string host_id_;
  Counter& unacknowledged_;
  PiecewiseCopier copier_;
  const std::unique_ptr<shm::EventLoop> loop_;
  std::unique_ptr<shm::RegionServer> server_;  // set by Open
  shm::PeerRegions peers_;
};

}  // namespace mooncake
