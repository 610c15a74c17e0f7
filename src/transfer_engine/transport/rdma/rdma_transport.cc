// Wiring of the RDMA transport: devices, memory, peers.
#include "transfer_engine/transport/rdma/rdma_transport.h"

#include <algorithm>
#include <span>

#include "common/check.h"
#include "common/log.h"

namespace mooncake {

using rdma::Peer;

namespace {

std::vector<rdma::RdmaDevice*> Pointers(const std::vector<std::unique_ptr<rdma::RdmaDevice>>& devices) {
  std::vector<rdma::RdmaDevice*> pointers;
  pointers.reserve(devices.size());
  for (const auto& device : devices) pointers.push_back(device.get());
  return pointers;
}

std::vector<std::string> Names(const std::vector<std::unique_ptr<rdma::RdmaDevice>>& devices) {
  std::vector<std::string> names;
  names.reserve(devices.size());
  for (const auto& device : devices) names.push_back(device->name());
  return names;
}

std::vector<std::string> WantedDevices(const TransportContext& context) {
  std::vector<std::string> wanted = context.topology.devices();
  const std::vector<std::string>& filter = context.options.device_filter;
  if (filter.empty()) return wanted;
  std::erase_if(wanted, [&](const std::string& name) { return std::ranges::find(filter, name) == filter.end(); });
  return wanted;
}

// Whether the pieces around this part of the region have a key for each of the devices.
bool HasKeys(const SegmentRegion& region, uint64_t address, uint64_t length, size_t devices) {
  if (devices == 0 || length == 0 || !region.Covers(address, length)) return false;
  const auto piece = [&](uint64_t at) {
    return region.mr_piece_bytes == 0 ? 0 : (at - region.address) / region.mr_piece_bytes;
  };
  const size_t last = piece(address + length - 1);
  if (last >= region.rkeys.size()) return false;
  const auto rows = std::span(region.rkeys).subspan(piece(address), last - piece(address) + 1);
  return std::ranges::all_of(rows, [devices](const auto& row) { return row.size() >= devices; });
}

}  // namespace

Result<std::unique_ptr<RdmaTransport>> RdmaTransport::Open(const TransportContext& context) {
  const rdma::RdmaOptions options = MC_TRY(rdma::RdmaOptions::FromEnvironment());
  const rdma::Verbs* verbs = MC_TRY(rdma::LoadVerbs());
  return OpenOn(context, *verbs, options);
}

Result<std::unique_ptr<RdmaTransport>> RdmaTransport::OpenOn(const TransportContext& context, const rdma::Verbs& verbs,
                                                             const rdma::RdmaOptions& options) {
  const std::vector<std::string> wanted = WantedDevices(context);
  std::vector<std::unique_ptr<rdma::RdmaDevice>> devices;
  std::string refused;
  for (const std::string& name : wanted) {
    auto device = rdma::RdmaDevice::Open(verbs, name, options);
    if (device) {
      devices.push_back(std::move(*device));
      continue;
    }
    refused += "; " + device.error().message();
    if (devices.size() + 1 < wanted.size()) log::Warn("rdma goes without a device: {}", device.error().message());
  }
  if (devices.empty()) {
    return Error(ErrorCode::DEVICE_NOT_FOUND, "no RDMA device can be used: {} known to the topology{}{}", wanted.size(),
                 wanted.empty() ? " (looked for in /sys/class/infiniband)" : "", refused);
  }
  std::unique_ptr<RdmaTransport> transport(new RdmaTransport(context, options, std::move(devices)));
  transport->receivers_->Serve(context.server);
  return transport;
}

RdmaTransport::RdmaTransport(const TransportContext& context, const rdma::RdmaOptions& options,
                             std::vector<std::unique_ptr<rdma::RdmaDevice>> devices)
    : options_(options),
      withdraw_limit_(std::min(options.withdraw_grace, context.options.default_timeout / 2)),
      devices_(std::move(devices)),
      agenda_(std::make_shared<rdma::Agenda>()),
      memory_(std::make_unique<rdma::MemoryTable>(Pointers(devices_), options_)),
      fabric_(std::make_unique<rdma::Fabric>(rdma::Fabric{.options = options_,
                                                          .devices = Pointers(devices_),
                                                          .device_names = Names(devices_),
                                                          .memory = *memory_,
                                                          .links = context.links,
                                                          .topology = context.topology,
                                                          .generation = context.generation,
                                                          .agenda = agenda_,
                                                          .gate = rdma::HandshakeGate(options.concurrent_handshakes),
                                                          .meters = rdma::Meters(context.metrics)})),
      receivers_(std::make_shared<rdma::Receivers>(Pointers(devices_), options_, context.generation, context.workers,
                                                   agenda_, context.metrics)) {
  for (size_t i = 0; i < devices_.size(); ++i) {
    devices_[i]->Start([this, i](const rdma::PortState& now) {
      for (const PeerPtr& peer : Peers()) peer->OnPortChange(i, now);
    });
  }
}

RdmaTransport::~RdmaTransport() {
  const Status why(ErrorCode::SHUTTING_DOWN, "the transfer engine is being closed");
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  for (const PeerPtr& peer : Peers()) peer->Shutdown(why);
  {
    std::unique_lock lock(mutex_);
    gone_.wait(lock, [this] { return peers_.empty(); });
  }
  receivers_->Close();
  agenda_->Stop();
  for (const auto& device : devices_) device->Stop();
}

std::vector<RdmaTransport::PeerPtr> RdmaTransport::Peers() const {
  std::lock_guard lock(mutex_);
  return {peers_.begin(), peers_.end()};
}

// ---- memory

bool RdmaTransport::Reaches(const MemoryRange& local, const SegmentDescriptor& target,
                            const SegmentRegion& region) const {
  if (!IsHost(local) || std::ranges::find(target.protocols, name()) == target.protocols.end()) return false;
  return HasKeys(region, region.address, 1, target.devices.size()) && memory_->Covers(AddressOf(local), SizeOf(local));
}

Result<void> RdmaTransport::RegisterRegion(Region& region) {
  if (region.IsNpu()) return {};
  const bool remote = region.options.access != RegionAccess::kLocal;
  const rdma::RegisteredMemory* memory = MC_TRY(memory_->Register(region.address, region.length, remote));
  if (!remote) return {};
  region.published.mr_piece_bytes = memory->piece_bytes;
  region.published.rkeys.clear();
  for (const auto& piece : memory->pieces) {
    std::vector<uint32_t>& row = region.published.rkeys.emplace_back();
    for (const ibv_mr* mr : piece) row.push_back(mr->rkey);
  }
  return {};
}

void RdmaTransport::WithdrawRegion(const Region& region) {
  const rdma::RegisteredMemory* memory = memory_->Hide(region.address);
  if (memory == nullptr) return;
  if (!memory_->WaitUnpinned(memory, Deadline::After(withdraw_limit_))) {
    for (const PeerPtr& peer : Peers()) peer->StopUsersOf(memory);
    // Queue pairs are flushed or destroyed within a bounded time.
    (void)memory_->WaitUnpinned(memory, Deadline::After(std::chrono::hours(24)));
  }
  memory_->Deregister(memory);
}

void RdmaTransport::Describe(SegmentDescriptor& self) const {
  self.protocols.emplace_back(name());
  self.devices.clear();
  for (const auto& device : devices_) {
    const rdma::PortState port = device->port();
    self.devices.push_back({.name = device->name(), .lid = port.lid, .gid = rdma::FormatGid(port.gid.gid)});
  }
}

// ---- transfers

Result<Peer::Prepared> RdmaTransport::Prepare(TransferOperation& operation) {
  if (operation.deadline.Passed()) {
    return Error(ErrorCode::TRANSFER_TIMEOUT, "the deadline passed before the transfer began");
  }
  if (!IsHost(operation.local)) return Error(ErrorCode::TRANSFER_FAIL, "rdma does not move NPU memory");
  const uint64_t local = AddressOf(operation.local);
  if (!HasKeys(operation.region, operation.target_address, operation.length(), operation.target->devices.size())) {
    return Error(ErrorCode::ADDRESS_NOT_REGISTERED, "[{:#x}, +{}) is not registered with RDMA devices at {}",
                 operation.target_address, operation.length(), operation.target->name);
  }
  rdma::MemoryTable::Pin memory = memory_->Find(local, operation.length());
  if (!memory) {
    return Error(ErrorCode::ADDRESS_NOT_REGISTERED, "local memory [{:#x}, +{}) is not registered with RDMA devices",
                 local, operation.length());
  }
  return Peer::Prepared{.operation = std::move(operation), .memory = std::move(memory)};
}

void RdmaTransport::Submit(std::vector<TransferOperation> operations, Caller caller) {
  static_cast<void>(caller);  // the device does the work either way
  std::unordered_map<const SegmentDescriptor*, std::vector<Peer::Prepared>> by_target;
  for (TransferOperation& operation : operations) {
    Result<Peer::Prepared> prepared = Prepare(operation);
    if (prepared) {
      by_target[prepared->operation.target.get()].push_back(std::move(*prepared));
      continue;
    }
    operation.local_use.Release();
    operation.done(std::unexpected(std::move(prepared).error()));
  }
  for (auto& [target, prepared] : by_target) {
    const SegmentPtr kept = prepared.front().operation.target;
    SubmitTo(kept, std::move(prepared));
  }
}

void RdmaTransport::SubmitTo(const SegmentPtr& target, std::vector<Peer::Prepared> prepared) {
  PeerPtr peer = PeerFor(target, nullptr);
  // One that dies just now is replaced once: its successor knows whether there is anybody.
  if (peer != nullptr && !peer->Submit(prepared)) {
    peer = PeerFor(target, peer);
    if (peer != nullptr) (void)peer->Submit(prepared);
  }
  for (Peer::Prepared& each : prepared) {
    auto done = std::move(each.operation.done);
    each.memory.Release();
    each.operation.local_use.Release();
    done(Error(peer == nullptr ? ErrorCode::SHUTTING_DOWN : ErrorCode::TRANSFER_FAIL, "{}: {}", target->name,
               peer == nullptr ? "the transfer engine is being closed" : "the connection ended at once"));
  }
}

RdmaTransport::PeerPtr RdmaTransport::PeerFor(const SegmentPtr& target, const PeerPtr& dead) {
  std::lock_guard lock(mutex_);
  if (closed_) return nullptr;
  PeerPtr& peer = by_peer_[target->generation];
  if (peer == nullptr || peer == dead) {
    peer = Peer::Create(*fabric_, target, [this](const PeerPtr& gone) { Forget(gone); });
    peers_.insert(peer);
  }
  return peer;
}

void RdmaTransport::Forget(const PeerPtr& peer) {
  std::lock_guard lock(mutex_);
  const auto current = by_peer_.find(peer->generation());
  if (current != by_peer_.end() && current->second == peer) by_peer_.erase(current);
  peers_.erase(peer);
  gone_.notify_all();
}

void RdmaTransport::Cancel(BatchId tag) {
  for (const PeerPtr& peer : Peers()) peer->Cancel(tag);
}

void RdmaTransport::Fence(const Uuid& node) {
  receivers_->Fence(node);
}

std::string RdmaTransport::DescribeState() const {
  std::string text;
  for (const auto& device : devices_) {
    const rdma::PortState port = device->port();
    text += fmt::format("device {}: port {}, GID {} = {}\n", device->name(), port.active ? "active" : "down",
                        port.gid.index, rdma::FormatGid(port.gid.gid));
  }
  text += fmt::format("queue pairs of peers: {}\n", receivers_->size());
  for (const PeerPtr& peer : Peers()) text += peer->Describe();
  return text;
}

}  // namespace mooncake
