// One-sided reads and writes between host memory of processes whose hosts have RDMA devices.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "transfer_engine/transport.h"
#include "transfer_engine/transport/rdma/peer.h"
#include "transfer_engine/transport/rdma/receivers.h"
#include "transfer_engine/transport_context.h"

namespace mooncake {

// The target takes no part in a transfer but with its device. What connects two processes, and tells each that the
// other is gone, is the control connection.
class RdmaTransport final : public Transport {
 public:
  // NOT_SUPPORTED_TRANSPORT without libibverbs, DEVICE_NOT_FOUND without a device that can be used; both say what was
  // looked for.
  static Result<std::unique_ptr<RdmaTransport>> Open(const TransportContext& context);
  // On other verbs and settings, for tests.
  static Result<std::unique_ptr<RdmaTransport>> OpenOn(const TransportContext& context, const rdma::Verbs& verbs,
                                                       const rdma::RdmaOptions& options);
  ~RdmaTransport() override;

  const char* name() const override { return "rdma"; }
  bool Reaches(const MemoryRange& local, const SegmentDescriptor& target, const SegmentRegion& region) const override;
  Result<void> RegisterRegion(Region& region) override;
  void WithdrawRegion(const Region& region) override;
  void Describe(SegmentDescriptor& self) const override;
  void Submit(std::vector<TransferOperation> operations, Caller caller) override;
  void Cancel(BatchId tag) override;
  void Fence(const Uuid& node) override;

  // For people: devices, peers, what is under way.
  std::string DescribeState() const;

 private:
  using PeerPtr = std::shared_ptr<rdma::Peer>;

  RdmaTransport(const TransportContext& context, const rdma::RdmaOptions& options,
                std::vector<std::unique_ptr<rdma::RdmaDevice>> devices);
  std::vector<PeerPtr> Peers() const;
  PeerPtr PeerFor(const SegmentPtr& target, const PeerPtr& dead);
  void Forget(const PeerPtr& peer);
  Result<rdma::Peer::Prepared> Prepare(TransferOperation& operation);
  void SubmitTo(const SegmentPtr& target, std::vector<rdma::Peer::Prepared> prepared);

  const rdma::RdmaOptions options_;
  const Duration withdraw_limit_;
  // Destroyed from the last to the first.
  std::vector<std::unique_ptr<rdma::RdmaDevice>> devices_;
  std::shared_ptr<rdma::Agenda> agenda_;
  std::unique_ptr<rdma::MemoryTable> memory_;
  std::unique_ptr<rdma::Fabric> fabric_;
  std::shared_ptr<rdma::Receivers> receivers_;

  mutable std::mutex mutex_;
  std::condition_variable gone_;  // some peer
  bool closed_ = false;
  std::unordered_map<Uuid, PeerPtr> by_peer_;
  std::unordered_set<PeerPtr> peers_;  // those that are dying among them
};

}  // namespace mooncake
