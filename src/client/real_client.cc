// Start, stop and reports of the client.
#include "client/real_client.h"

#include <algorithm>

#include "client/tiers_report.h"
#include "common/exhaustion.h"
#include "common/log.h"
#include "common/version.h"
#include "protocol/methods.h"
#include "transfer_engine/protocol_names.h"

namespace mooncake {
namespace {

constexpr uint16_t kFirstPort = 12300;
constexpr uint16_t kLastPort = 14300;
constexpr Duration kAnnounceBudget = std::chrono::seconds(5);
constexpr size_t kExecutorQueue = 4096;

}  // namespace

Result<std::unique_ptr<RealClient>> RealClient::Open(RealClientOptions options) {
  return CatchExhaustion([&]() -> Result<std::unique_ptr<RealClient>> {
    OpenedTiers tiers = MC_TRY(OpenTiers(options.tiers));
    std::unique_ptr<RealClient> client(new RealClient(std::move(options), std::move(tiers)));
    if (auto started = client->Start(); !started) {
      client->Close();
      return std::unexpected(started.error());
    }
    return client;
  });
}

RealClient::RealClient(RealClientOptions options, OpenedTiers tiers)
    : options_(std::move(options)),
      npu_runtime_(tiers.npu_runtime ? tiers.npu_runtime : UsedNpuRuntime()),
      memory_(std::make_unique<LocalMemory>(npu_runtime_)),
      own_staging_(kTransferChunkBytes, options_.staging_slots),
      serving_staging_(kTransferChunkBytes, options_.staging_slots),
      io_(std::make_unique<rpc::IoPool>(options_.rpc_threads)),
      tiers_(std::move(tiers.tiers)) {
  for (const auto& tier : tiers_) {
    if (const auto memory = tier->host_memory()) host_memory_.push_back(*memory);
    std::ranges::copy(tier->device_memory(), std::back_inserter(device_memory_));
  }
  local_get_ = MakeTraffic("local", "get");
  remote_get_ = MakeTraffic("remote", "get");
  total_get_ = MakeTraffic("total", "get");
  local_put_ = MakeTraffic("local", "put");
  remote_put_ = MakeTraffic("remote", "put");
  total_put_ = MakeTraffic("total", "put");
}

RealClient::~RealClient() {
  Close();
}

RealClient::Traffic RealClient::MakeTraffic(const char* scope, const char* operation) {
  const auto counter = [&](const char* what) {
    return &metrics_.GetCounter(fmt::format("mooncake_p2p_{}_{}_{}_total", scope, operation, what),
                                fmt::format("{} {} {}", scope, operation, what));
  };
  return {counter("requests"), counter("hits"), counter("misses"), counter("failures"), counter("bytes")};
}

Announcer::Hooks RealClient::AnnouncerHooks() {
  Announcer::Hooks hooks;
  hooks.state_of = [this](const std::string& key) -> std::optional<protocol::KeyState> {
    const auto view = backend_->Get(key, std::nullopt, /*record_access=*/false);
    if (!view) return std::nullopt;
    const DataSource& data = view->handle->data;
    return protocol::KeyState{KeyDigest::Of(key), true, data.size(), static_cast<int32_t>(data.type)};
  };
  hooks.send = [this](std::vector<protocol::KeyState> keys) {
    return link_->Announce(std::move(keys), Deadline::After(kAnnounceBudget));
  };
  hooks.on_rejected = [this](const std::string& key) { (void)backend_->Delete(key); };
  hooks.on_failed = [this](const Status& status) { link_->ReportLost(status); };
  return hooks;
}

Result<void> RealClient::Start() {
  Endpoint local;
  if (!options_.local_hostname.empty()) local = MC_TRY(Endpoint::Parse(options_.local_hostname));
  if (options_.master.facing().port == 0) {
    return Error(ErrorCode::INVALID_PARAMS, "master address {}: write the port the master listens on",
                 options_.master.ToString());
  }
  const ListenAddress address = MC_TRY(ChooseListenAddress(local.host, options_.master.facing()));

  rpc::Identity self{.role = protocol::kRoleClient, .node = id_, .software_version = kSoftwareVersion};
  if (!tiers_.empty()) {
    announcer_ = std::make_unique<Announcer>(AnnouncerHooks(), options_.announce_batch_max);
    TieredBackend::Options backend{.shard_count = options_.lock_shard_count, .on_change = {}};
    backend.on_change = [this](std::string_view key) { announcer_->Mark(key); };
    backend_ = MC_TRY(TieredBackend::Open(std::move(tiers_), std::move(backend)));
    executor_ = std::make_unique<Executor>("mc-worker", options_.worker_threads, kExecutorQueue);
    stagers_ = std::make_unique<Executor>("mc-stager", options_.worker_threads, kExecutorQueue);
  }
  MC_TRY(Listen(address.bind, local.port != 0 ? local.port : options_.rpc_port));
  advertised_ = Endpoint{address.advertise, server_->port()}.ToString();
  MC_TRY(StartEngine(address));
  if (backend_) {
    service_ = std::make_unique<PeerService>(
        PeerService::Parts{*backend_, *announcer_, {*executor_, *stagers_}, serving_staging_, metrics_, *engine_});
    service_->Serve(*server_);
  }
  peers_ = std::make_unique<PeerLinks>(*io_, self, protocol::kRoleClient);

  MasterLink::Options link{.master = options_.master, .self = self, .advertised = advertised_};
  MasterLink::Hooks hooks;
  hooks.tiers = [this] { return TierStates(); };
  hooks.on_registered = [this] { AnnounceAll(); };
  hooks.on_lost = [this] {
    if (announcer_) announcer_->Pause();
  };
  link_ = std::make_unique<MasterLink>(std::move(link), std::move(hooks));
  rpc_transport_ = std::make_unique<RpcTransport>(own_staging_);
  transport_ = std::make_unique<EngineTransport>(*engine_, *rpc_transport_);
  remote_ = std::make_unique<RemoteObjects>(RemoteObjects::Parts{*link_, *peers_, *transport_, own_staging_, id_});
  server_->Start();
  if (options_.enable_http) MC_TRY(StartHttp(address.bind));
  if (auto registered = link_->Start(options_.master_wait); !registered) {
    // A master of another version will not change its mind; one that is away may come.
    if (options_.require_master || registered.error().code() != ErrorCode::RPC_FAIL) return registered;
    log::Warn("{}; serving locally and trying again each second", registered.error().ToString());
  }
  return {};
}

Result<void> RealClient::Listen(const std::string& bind_host, uint16_t port) {
  rpc::Identity self{.role = protocol::kRoleClient, .node = id_, .software_version = kSoftwareVersion};
  const bool any = port == 0;
  for (uint16_t candidate = any ? kFirstPort : port;; ++candidate) {
    // A peer that has stopped in the middle of something may hold staging slots: it goes before others give up.
    rpc::ServerOptions server_options{.listen = {bind_host, candidate}, .self = self};
    server_options.stall_timeout = std::max<Duration>(options_.call_timeout / 4, std::chrono::seconds(1));
    auto server = rpc::RpcServer::Listen(*io_, std::move(server_options));
    if (server) {
      server_ = std::move(*server);
      break;
    }
    if (!any) return Annotate(server.error(), fmt::format("client_rpc_port {}", candidate));
    if (candidate == kLastPort) return std::unexpected(server.error());
  }
  return {};
}

// On the client's own port, under the client's identity; tiers in host memory can be reached one-sided, and those of an
// NPU through slots that it lends, where that spares peers the RPC connection.
Result<void> RealClient::StartEngine(const ListenAddress& address) {
  TransferEngineOptions options = MC_TRY(TransferEngineOptionsFromEnvironment());
  options.metadata = "P2PHANDSHAKE";
  options.local_name = advertised_;
  options.bind_address = address.bind;
  options.protocols = MC_TRY(ProtocolsOf(options_.protocol, options.force_tcp));
  if (!options_.rdma_devices.empty()) options.device_filter = options_.rdma_devices;  // else MC_TE_FILTERS
  options.default_timeout = options_.call_timeout;
  const bool bridge = std::ranges::count(options.protocols, "ascend_rdma") > 0;
  engine_ = MC_TRY(TransferEngine::OpenOn(
      std::move(options), {.io = *io_,
                           .server = *server_,
                           .self = {.role = protocol::kRoleClient, .node = id_, .software_version = kSoftwareVersion},
                           .advertised = {address.advertise, server_->port()}}));
  uses_rdma_ = std::ranges::count(engine_->TransportNames(), "rdma") > 0;
  for (const HostMemory& memory : host_memory_) {
    MC_TRY(engine_->RegisterMemory(memory.base, memory.bytes,
                                   {.access = RegionAccess::kByGrant, .shared = SharedMemory{memory.memfd, 0}}));
  }
  if (uses_rdma_ || bridge) LendDeviceMemory();
  return {};
}

void RealClient::LendDeviceMemory() {
  for (const DeviceMemory& memory : device_memory_) {
    auto* const address = reinterpret_cast<void*>(static_cast<uintptr_t>(memory.at.device_ptr));
    const auto lent = engine_->RegisterMemory(address, memory.bytes,
                                              {.access = RegionAccess::kByGrant, .device_id = memory.at.device_id});
    if (lent) continue;
    log::Warn("blocks of the tier on NPU {} go to peers over the RPC connections: {}", memory.at.device_id,
              lent.error().ToString());
  }
}

// Only a wire that has to know memory beforehand needs it.
Result<void> RealClient::RegisterBuffer(void* address, size_t size) {
  MC_TRY(memory_->Register(address, size));
  if (!uses_rdma_) return {};
  RegionOptions options{.access = RegionAccess::kLocal};
  const MemoryRange range = memory_->Classify(address, size);
  if (const auto* npu = std::get_if<NpuRange>(&range)) options.device_id = npu->at.device_id;
  if (auto registered = engine_->RegisterMemory(address, size, std::move(options)); !registered) {
    (void)memory_->Unregister(address);
    return registered;
  }
  return {};
}

Result<void> RealClient::UnregisterBuffer(void* address) {
  MC_TRY(memory_->Unregister(address));
  if (!uses_rdma_) return {};
  return engine_->UnregisterMemory(address);
}

Result<void> RealClient::StartHttp(const std::string& bind_host) {
  HttpServer::Options http{
      .listen = {bind_host, options_.http_port}, .move_on_if_taken = options_.http_port_is_default, .get = {}};
  http.get["/health"] = [this](const HttpRequest&) {
    return HttpReply{.body = std::string(ClientHealthName(health())) + "\n"};
  };
  http.get["/metrics"] = [this](const HttpRequest&) { return HttpReply{.body = MetricsText()}; };
  http.get["/get_key_count"] = [this](const HttpRequest&) {
    return HttpReply{.body = std::to_string(KeyCount()) + "\n"};
  };
  http.get["/tiers"] = [this](const HttpRequest& request) { return TiersReport(backend_.get(), request); };
  http_ = MC_TRY(HttpServer::Open(std::move(http)));
  return {};
}

// Announces every key; state FULL when the master knows that it was the last one.
void RealClient::AnnounceAll() {
  if (announcer_ == nullptr) return link_->SetSynced();
  announcer_->Resume();
  backend_->ForEachKey([this](const std::string& key) { announcer_->Mark(key); });
  announcer_->WhenDelivered([this](bool delivered) {
    if (!delivered) return;
    if (const auto done = link_->FinishResync(Deadline::After(kAnnounceBudget)); !done) {
      return link_->ReportLost(done.error());
    }
    link_->SetSynced();
  });
}

std::vector<TierView> RealClient::GetTierViews() const {
  return backend_ ? backend_->GetTierViews() : std::vector<TierView>{};
}

std::vector<protocol::TierState> RealClient::TierStates() const {
  std::vector<protocol::TierState> states;
  for (const TierView& view : GetTierViews()) {
    states.push_back({view.id, view.name, static_cast<int32_t>(view.type), view.capacity, view.usage, view.priority,
                      view.tags, view.keys, view.hits, view.demoted_out, view.dropped});
  }
  return states;
}

std::string RealClient::MetricsText() {
  for (const TierView& view : GetTierViews()) {
    const MetricLabels labels{{"tier", view.name}, {"id", view.id.ToString()}};
    const auto set = [&](const char* name, const char* help, uint64_t value) {
      metrics_.GetGauge(std::string("mooncake_p2p_tier_") + name, help, labels).Set(static_cast<double>(value));
    };
    set("capacity_bytes", "capacity of a tier", view.capacity);
    set("used_bytes", "bytes used in a tier", view.usage);
    set("key_count", "keys with a replica in a tier", view.keys);
    set("hits_total", "reads served from a tier", view.hits);
    set("offloaded_keys_total", "blocks moved to a lower tier", view.demoted_out);
    set("evicted_keys_total", "blocks dropped", view.dropped);
    set("device_refusals_total", "blocks the device refused although the tier had room", view.device_refusals);
    set("lost", "1: the tier's memory is gone for good", view.lost ? 1 : 0);
  }
  return metrics_.Serialize() + engine_->MetricsText();
}

Result<protocol::ListClientsReply> RealClient::ListClients() {
  return link_->Call<protocol::ListClientsReply>(protocol::kListClients,
                                                 protocol::ListClientsRequest{.include_suspect = true}, NewDeadline());
}

void RealClient::Close() {
  if (closing_.exchange(true)) return;
  http_.reset();
  if (link_) link_->Stop();            // first of all nobody is sent here any more
  if (announcer_) announcer_->Stop();  // whoever waits for it is released
  if (server_) server_->Stop();
  // Work of peers that was handed over already; what one hands to the other from here on is refused.
  if (executor_) executor_->Stop();
  if (stagers_) stagers_->Stop();
  if (peers_) peers_->Close();
  std::unique_lock wait_for_calls(closing_mutex_);
  if (backend_) backend_->Stop();
}

}  // namespace mooncake
