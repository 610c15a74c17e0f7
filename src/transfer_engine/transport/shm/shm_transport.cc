// Puts the two sides of memory sharing and the copier together.
#include "transfer_engine/transport/shm/shm_transport.h"

#include <algorithm>

#include "common/env.h"
#include "transfer_engine/transport/shm/host_id.h"

namespace mooncake {

Result<std::unique_ptr<ShmTransport>> ShmTransport::Open(const TransportContext& context) {
  Limits limits;
  limits.copies.max_runners = std::max<size_t>(1, context.options.worker_threads);
  return Open(context, limits);
}

Result<std::unique_ptr<ShmTransport>> ShmTransport::Open(const TransportContext& context, Limits limits) {
  const bool any_user = MC_TRY(env::GetFlag(env::kShmAnyUser));
  auto loop = MC_TRY(shm::EventLoop::Open());
  std::unique_ptr<ShmTransport> transport(new ShmTransport(context, limits, std::move(loop), any_user));
  transport->server_ = MC_TRY(shm::RegionServer::Open(
      *transport->loop_, transport->unacknowledged_,
      {.generation = context.generation, .any_user = any_user, .revoke_timeout = limits.revoke_timeout}));
  transport->loop_->Start([raw = transport.get()] { return raw->peers_.Tick(); });
  return transport;
}

ShmTransport::ShmTransport(const TransportContext& context, Limits limits, std::unique_ptr<shm::EventLoop> loop,
                           bool any_user)
    : generation_(context.generation),
      host_id_(HostId()),
      unacknowledged_(context.metrics.GetCounter(
          "mooncake_transfer_shm_unacknowledged_total",
          "Peers of this host that were disconnected because they did not let go of withdrawn memory in time")),
      copier_("shm", context.workers, limits.copies),
      loop_(std::move(loop)),
      peers_(*loop_, context.workers, {.generation = context.generation, .any_user = any_user},
             {.ready = [this](std::vector<PieceCopy> copies) { copier_.Run(std::move(copies), Caller::kGoesOn); },
              .unusable = [this] { copier_.EndUnusable(); }}) {}

ShmTransport::~ShmTransport() {
  copier_.Stop();
  loop_->Stop();
  peers_.Stop();
}

bool ShmTransport::Reaches(const MemoryRange&, const SegmentDescriptor& target, const SegmentRegion& region) const {
  return region.shm_id != 0 && !host_id_.empty() && target.host_id == host_id_ && target.generation != generation_ &&
         target.shm_socket.starts_with(shm::kSocketPrefix);
}

Result<void> ShmTransport::RegisterRegion(Region& region) {
  if (!region.options.shared || region.IsNpu() || region.options.access == RegionAccess::kLocal) return {};
  return server_->Add(region);
}

void ShmTransport::WithdrawRegion(const Region& region) {
  server_->Remove(region.published.shm_id);
}

void ShmTransport::Describe(SegmentDescriptor& self) const {
  self.host_id = host_id_;
  self.shm_socket = server_->socket_name();
}

void ShmTransport::Submit(std::vector<TransferOperation> operations, Caller caller) {
  std::vector<PieceCopy> copies;
  copies.reserve(operations.size());
  for (TransferOperation& operation : operations) {
    if (const auto region = peers_.FindOrAwait(operation)) {
      shm::PeerRegions::Resolve(std::move(operation), region, copies);
    }
  }
  copier_.Run(std::move(copies), caller);
}

void ShmTransport::Cancel(BatchId tag) {
  peers_.Cancel(tag);
  copier_.Cancel(tag);
}

void ShmTransport::Fence(const Uuid& node) {
  server_->Fence(node);
}

}  // namespace mooncake
