// Opening and closing an engine, and the calls that concern several of its parts.
#include "transfer_engine/engine_core.h"

#include "common/exhaustion.h"
#include "common/log.h"
#include "protocol/methods.h"
#include "transfer_engine/transport_factory.h"

namespace mooncake::internal {
namespace {

constexpr const char* kP2p = "P2PHANDSHAKE";
constexpr size_t kWorkerQueueLimit = 65536;
constexpr Duration kMetadataTimeout = std::chrono::seconds(5);
// Of one attempt to reach a peer. Calls have deadlines of their own; a peer that hundreds ask at once takes seconds.
constexpr Duration kConnectTimeout = std::chrono::seconds(10);

}  // namespace

EngineParts EngineParts::Real() {
  return {.open_transports = OpenTransports, .open_metadata = OpenMetadataStore, .npu = UsedNpuRuntime};
}

Result<std::unique_ptr<EngineCore>> EngineCore::Open(TransferEngineOptions options,
                                                     std::optional<TransferEngine::Host> host, EngineParts parts) {
  return CatchExhaustion([&]() -> Result<std::unique_ptr<EngineCore>> {
    std::unique_ptr<EngineCore> core(new EngineCore(std::move(options)));
    MC_TRY(core->Start(std::move(host), std::move(parts)));
    return core;
  });
}

Result<void> EngineCore::OpenServer(std::optional<TransferEngine::Host> host, ControlAddress& address) {
  rpc::Identity self;
  if (host) {
    io_ = &host->io;
    server_ = &host->server;
    self = host->self;
    base_.control = host->advertised;
  } else {
    address = MC_TRY(ChooseControlAddress(options_));
    own_io_ = std::make_unique<rpc::IoPool>(options_.io_threads);
    self.role = protocol::kRoleEngine;
    self.node = Uuid::Random();
    own_server_ = MC_TRY(ListenForControl(*own_io_, address, options_, self));
    io_ = own_io_.get();
    server_ = own_server_.get();
    base_.control = {address.advertised.host, own_server_->port()};
  }
  if (address.bind.empty()) address.bind = options_.bind_address.empty() ? base_.control.host : options_.bind_address;
  base_.generation = self.node;
  base_.name =
      options_.metadata == kP2p || options_.local_name.empty() ? base_.control.ToString() : options_.local_name;
  links_ = std::make_unique<PeerLinks>(*io_, self, std::string(), kConnectTimeout);
  return {};
}

Result<void> EngineCore::OpenTopology() {
  topology_ = MC_TRY(options_.custom_topology.empty() ? Topology::Discover(options_.device_filter)
                                                      : Topology::Parse(options_.custom_topology));
  base_.topology = topology_.ToJson();
  return {};
}

Result<void> EngineCore::Start(std::optional<TransferEngine::Host> host, EngineParts parts) {
  if (options_.metadata != kP2p) metadata_ = MC_TRY(parts.open_metadata(options_.metadata));
  MC_TRY(OpenTopology());
  ControlAddress address;
  const bool owns_server = !host;
  MC_TRY(OpenServer(std::move(host), address));
  workers_ = std::make_unique<Executor>("te_worker", std::max<size_t>(1, options_.worker_threads), kWorkerQueueLimit);
  if (metadata_ != nullptr) {
    source_ = std::make_unique<PublishedSegments>(*metadata_, *workers_);
  } else {
    source_ = std::make_unique<PeerSegments>(*links_);
  }
  segments_ = std::make_unique<SegmentCache>(*source_);
  batches_ = std::make_unique<BatchTable>(options_.max_batches, options_.spin);
  const TransportContext context{.options = options_,
                                 .regions = regions_,
                                 .topology = topology_,
                                 .io = *io_,
                                 .server = *server_,
                                 .links = *links_,
                                 .workers = *workers_,
                                 .metrics = metrics_,
                                 .generation = base_.generation,
                                 .bind_host = address.bind,
                                 .advertised = base_.control};
  auto transports = MC_TRY(parts.open_transports(context));
  transports_ = std::make_unique<MultiTransport>(MultiTransport::Parts{.transports = std::move(transports),
                                                                       .regions = regions_,
                                                                       .segments = *segments_,
                                                                       .links = *links_,
                                                                       .metrics = metrics_,
                                                                       .generation = base_.generation,
                                                                       .default_timeout = options_.default_timeout,
                                                                       .npu = std::move(parts.npu)});
  self_ = std::make_unique<SelfSegment>(base_, regions_, transports_->transports());
  service_ = std::make_unique<EngineService>(*self_, options_.max_notifies);
  service_->Serve(*server_);
  if (owns_server) server_->Start();
  if (metadata_ != nullptr) {
    publisher_ = std::make_unique<SegmentPublisher>(*metadata_, *self_);
    MC_TRY(publisher_->PublishAddress(Deadline::After(kMetadataTimeout)));
    MC_TRY(publisher_->Publish(Deadline::After(kMetadataTimeout)));
  }
  keeper_ = std::make_unique<RegionKeeper>(regions_, *transports_, publisher_.get(), options_.default_timeout);
  return {};
}

// First nobody finds this process any more, then nothing comes in, then nothing is under way.
EngineCore::~EngineCore() {
  if (publisher_ != nullptr) {
    const auto left = publisher_->Withdraw(Deadline::After(kMetadataTimeout));
    if (!left) log::Warn("segment '{}' stays on the metadata server: {}", base_.name, left.error().message());
  }
  if (own_server_ != nullptr) own_server_->Stop();
  if (transports_ != nullptr) transports_->StopTransports();
  if (links_ != nullptr) links_->Close();
  if (segments_ != nullptr) segments_->Stop();
  if (transports_ != nullptr) transports_->WaitNotified();
  if (workers_ != nullptr) workers_->Stop();
}

std::vector<std::string> EngineCore::TransportNames() const {
  std::vector<std::string> names;
  for (const auto& transport : transports_->transports()) names.emplace_back(transport->name());
  return names;
}

std::string EngineCore::MetricsText() {
  metrics_.GetGauge("mooncake_transfer_batches_open", "batches that are not freed")
      .Set(static_cast<double>(batches_->open()));
  return metrics_.Serialize();
}

Result<Endpoint> EngineCore::ControlOf(const std::string& name, Deadline deadline) {
  if (metadata_ == nullptr) {
    Endpoint peer = MC_TRY(Endpoint::Parse(name));
    if (peer.port == 0) return Error(ErrorCode::INVALID_PARAMS, "'{}' is no host:port", name);
    return peer;
  }
  const SegmentId id = MC_TRY(segments_->Open(name, deadline));
  const auto segment = segments_->Refresh(id, deadline);
  static_cast<void>(segments_->Close(id));
  if (!segment) return std::unexpected(segment.error());
  return (*segment)->control;
}

Result<void> EngineCore::Probe(const std::string& name, Deadline deadline) {
  const Endpoint peer = MC_TRY(ControlOf(name, deadline));
  MC_TRY(links_->AskAnyone(peer, protocol::kEngineProbe, {}, deadline));
  return {};
}

void EngineCore::NameSender(std::optional<TransferNotify>& notify) const {
  if (notify && notify->name.empty()) notify->name = base_.name;
}

Result<void> EngineCore::NotifyOnce(const SegmentDescriptor& segment, const TransferNotify& notify, Deadline deadline) {
  const auto link = MC_TRY(links_->To(segment.control, segment.generation));
  const NotifyMessage message{.name = notify.name.empty() ? base_.name : notify.name, .message = notify.message};
  MC_TRY(link->Call(protocol::kEngineNotify, rpc::Encode(message), deadline));
  return {};
}

Result<void> EngineCore::SendNotify(SegmentId id, const TransferNotify& notify, Deadline deadline) {
  const SegmentPtr segment = MC_TRY(segments_->Get(id));
  Result<void> sent = NotifyOnce(*segment, notify, deadline);
  if (sent || (sent.error().code() != ErrorCode::RPC_FAIL && sent.error().code() != ErrorCode::ILLEGAL_CLIENT)) {
    return sent;
  }
  // Only another process gets it again: the one that did not answer may have taken it.
  const auto fresh = segments_->Refresh(id, deadline);
  if (!fresh || (*fresh)->generation == segment->generation) return sent;
  return NotifyOnce(**fresh, notify, deadline);
}

Result<void> EngineCore::Submit(BatchId id, std::span<const TransferRequest> requests, SubmitOptions options) {
  const std::shared_ptr<Batch> batch = MC_TRY(batches_->Find(id));
  NameSender(options.notify);
  return transports_->Submit(batch, id, requests, std::move(options));
}

Result<void> EngineCore::Cancel(BatchId id) {
  transports_->Cancel(MC_TRY(batches_->Find(id)), id);
  return {};
}

Result<void> EngineCore::Transfer(std::span<const TransferRequest> requests, Deadline deadline,
                                  std::optional<TransferNotify> notify) {
  const auto batch = std::make_shared<Batch>(requests.size(), options_.spin);
  NameSender(notify);
  MC_TRY(transports_->Submit(batch, kInvalidBatch, requests,
                             {.deadline = deadline, .notify = std::move(notify), .caller = Caller::kWaits}));
  const TransferStatus status = batch->WaitForEnd();
  if (status.state == TransferState::kCompleted) return {};
  return std::unexpected(status.error);
}

Result<void> EngineCore::TransferGranted(TransferOpcode opcode, const MemoryRange& local, SegmentId target,
                                         const GrantedRange& remote, uint64_t offset, Deadline deadline) {
  const auto batch = std::make_shared<Batch>(1, options_.spin);
  MC_TRY(transports_->SubmitGranted(batch, opcode, local, target, remote, offset, deadline));
  const TransferStatus status = batch->WaitForEnd();
  if (status.state == TransferState::kCompleted) return {};
  return std::unexpected(status.error);
}

void EngineCore::Fence(const Uuid& node) {
  for (const auto& transport : transports_->transports()) transport->Fence(node);
}

}  // namespace mooncake::internal
