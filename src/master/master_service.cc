// Handlers of the master and its sweeper.
#include "master/master_service.h"

#include <algorithm>
#include <unordered_map>

#include "common/log.h"
#include "common/version.h"
#include "protocol/key_records.h"
#include "protocol/methods.h"
#include "rpc/io_pool.h"

namespace mooncake {
// A handler that answers from a message with a message, counted under the method's name. A master that has lost the
// lead while it worked on the answer keeps it to itself: another may have answered otherwise already.
template <typename Request, typename Handler>
void MasterService::Serve(uint16_t method, const char* name, Handler handler) {
  Counter& requests = metrics_.GetCounter(fmt::format("master_{}_requests_total", name), "requests received");
  Counter& failures = metrics_.GetCounter(fmt::format("master_{}_failures_total", name), "requests refused");
  server_->Handle<Request>(method, [this, handler, &requests, &failures](rpc::ServerCall call, Request request) {
    requests.Add();
    const auto term = Term();
    auto reply = term ? handler(request) : std::unexpected(NotLeading());
    if (reply && Term() != term) reply = std::unexpected(NotLeading());
    if (reply) {
      std::move(call).Reply(rpc::Encode(*reply));
    } else {
      failures.Add();
      std::move(call).Fail(reply.error());
    }
  });
}

Status MasterService::NotLeading() const {
  const std::string leader = LeaderEndpoint();
  return Status(ErrorCode::UNAVAILABLE_IN_CURRENT_STATUS,
                fmt::format("this master is a standby; the leader is {}", leader.empty() ? "not known" : leader));
}

Result<std::unique_ptr<MasterService>> MasterService::Open(MasterOptions options, const Clock& clock) {
  if (options.client_crashed_ttl < options.client_ttl) {
    return Error(ErrorCode::INVALID_PARAMS, "client_crashed_ttl must not be below client_ttl");
  }
  std::unique_ptr<MasterService> master(new MasterService(options, clock));
  rpc::Identity self{.role = protocol::kRoleMaster, .node = Uuid::Random(), .software_version = kSoftwareVersion};
  master->server_ = MC_TRY(rpc::RpcServer::Listen(*master->io_, {.listen = options.listen, .self = std::move(self)}));
  if (!master->options_.election.etcd.empty()) master->OpenElection(clock);
  master->RegisterHandlers();
  master->server_->Start();
  master->sweeper_ = std::thread([raw = master.get()] { raw->SweepLoop(); });
  return master;
}

MasterService::MasterService(MasterOptions options, const Clock& clock)
    : options_(options),
      clock_(clock),
      registry_({.ttl = options.client_ttl, .crashed_ttl = options.client_crashed_ttl}, clock),
      io_(std::make_unique<rpc::IoPool>(options.rpc_threads)) {}

MasterService::~MasterService() {
  if (sweeper_.joinable()) {
    {
      std::lock_guard lock(sweep_mutex_);
      stopping_ = true;
    }
    sweep_wake_.notify_all();
    sweeper_.join();
  }
  if (server_) server_->Stop();
}

void MasterService::OpenElection(const Clock& clock) {
  Leader::Options options{.etcd = options_.election.etcd,
                          .cluster_id = options_.election.cluster_id,
                          .advertised = Endpoint{options_.election.advertised_host, port()}.ToString(),
                          .lease = options_.election.lease};
  // What is left of an earlier term may be long out of date.
  const auto forget = [this] {
    for (const uint32_t number : registry_.TakeAll()) index_.RemoveClient(number);
  };
  leader_ = Leader::Open(std::move(options), forget, clock);
}

std::string MasterService::LeaderEndpoint() const {
  if (leader_) return leader_->view().leader;
  return Endpoint{options_.listen.host, port()}.ToString();
}

void MasterService::RegisterHandlers() {
  using namespace protocol;
  Serve<RegisterRequest>(kRegister, "register_client", [this](auto& r) { return Register(r); });
  Serve<UnregisterRequest>(kUnregister, "unregister_client", [this](auto& request) -> Result<RegisterReply> {
    if (const auto number = registry_.Unregister(request.client_id)) ForgetClient(*number);
    return RegisterReply{};
  });
  Serve<HeartbeatRequest>(kHeartbeat, "heartbeat", [this](auto& r) { return Heartbeat(r); });
  Serve<AnnounceRequest>(kAnnounce, "add_replica", [this](auto& r) { return Announce(r); });
  Serve<LookupRequest>(kLookup, "get_replica_list", [this](auto& r) { return Lookup(r); });
  Serve<WriteRouteRequest>(kWriteRoute, "get_write_route", [this](auto& r) { return WriteRoute(r); });
  Serve<ReportPeerRequest>(kReportPeer, "report_peer", [this](auto& r) { return ReportPeer(r); });
  Serve<RemoveKeysRequest>(kRemoveKeys, "remove", [this](auto& r) { return RemoveKeys(r); });
  Serve<RemoveFloorRequest>(kRemoveFloor, "remove_all", [this](auto& r) { return RemoveFloor(r); });
  Serve<ListClientsRequest>(kListClients, "list_clients", [this](auto& r) { return ListClients(r); });
}

Result<protocol::RegisterReply> MasterService::Register(const protocol::RegisterRequest& request) {
  if (request.client_id.IsNil()) return Error(ErrorCode::INVALID_PARAMS, "register without a client id");
  for (const uint32_t replaced : registry_.Register(request)) ForgetClient(replaced);
  log::Info("client {} registered: {} tier(s) at {}", request.client_id.ToString(), request.tiers.size(),
            request.endpoint);
  const auto ttl = std::chrono::duration_cast<std::chrono::milliseconds>(options_.client_ttl);
  return protocol::RegisterReply{
      .client_ttl_ms = static_cast<uint64_t>(ttl.count()), .term = Term().value_or(0), .hlc = Hlc()};
}

Result<protocol::HeartbeatReply> MasterService::Heartbeat(const protocol::HeartbeatRequest& request) {
  protocol::HeartbeatReply reply{.known = registry_.Heartbeat(request), .term = Term().value_or(0), .hlc = Hlc()};
  if (reply.known) registry_.DescribeOthers(request.client_id, reply);
  return reply;
}

// What one announcement does. Positions in the reply count `keys` first, then what was packed.
class MasterService::Entering {
 public:
  Entering(MasterService& master, const ClientRegistry::Source& source, protocol::AnnounceReply& reply)
      : master_(master), source_(source), reply_(reply) {}

  void Enter(const std::vector<protocol::KeyState>& keys) {
    for (const protocol::KeyState& state : keys) {
      const uint32_t position = position_++;
      latest_ = std::max(latest_, state.stamp.hlc);
      if (!state.present) {
        master_.index_.Remove(state.key, source_.number, source_.epoch);
      } else if (!Put(state, position)) {
        reply_.rejected.push_back(position);
      }
    }
  }
  uint64_t latest() const { return latest_; }

 private:
  bool Put(const protocol::KeyState& state, uint32_t position) {
    if (!state.stamp.none() && state.stamp.hlc <= source_.floor) {
      master_.index_.Remove(state.key, source_.number, source_.epoch);
      return false;
    }
    const auto verdict = master_.index_.Put(state.key,
                                            {.client = source_.number,
                                             .type = state.type,
                                             .size = state.size,
                                             .epoch = source_.epoch,
                                             .stamp = state.stamp,
                                             .wanted = state.wanted},
                                            master_.options_.max_client_per_key,
                                            [this](uint32_t owner) { return master_.registry_.IsHealthy(owner); });
    if (!verdict.superseded.empty()) TellOf(position, verdict.superseded);
    return verdict.accepted;
  }
  void TellOf(uint32_t position, const std::vector<uint32_t>& superseded) {
    protocol::Superseded told{.position = position, .clients = {}};
    for (const uint32_t owner : superseded) {
      master_.registry_.RequireResyncIfSilent(owner);
      if (auto address = master_.registry_.FindHealthy(owner)) told.clients.push_back(std::move(*address));
    }
    if (!told.clients.empty()) reply_.superseded.push_back(std::move(told));
  }

  MasterService& master_;
  const ClientRegistry::Source source_;
  protocol::AnnounceReply& reply_;
  uint32_t position_ = 0;
  uint64_t latest_ = 0;
};

Result<protocol::AnnounceReply> MasterService::Announce(const protocol::AnnounceRequest& request) {
  const auto packed = MC_TRY(protocol::UnpackKeyStates(request.packed));
  bool stale = false;
  const bool only_done = request.resync_done && request.keys.empty() && packed.empty();
  const auto source = only_done ? registry_.AcceptResyncDone(request.client_id, request.sequence)
                                : registry_.AcceptAnnounce(request.client_id, request.sequence, stale);
  if (!source) {
    return Error(ErrorCode::CLIENT_NOT_FOUND, "client {} is not registered here", request.client_id.ToString());
  }
  protocol::AnnounceReply reply;
  if (stale) return reply;
  Entering entering(*this, *source, reply);
  entering.Enter(request.keys);
  entering.Enter(packed);
  if (request.resync_done) {
    const size_t gone = index_.RemoveBefore(source->number, source->epoch);
    registry_.FinishResync(*source);
    if (gone > 0) log::Info("client {} has {} key(s) less than before", request.client_id.ToString(), gone);
  }
  // The client may have been replaced, have expired or registered anew while its keys were entered: what is not of its
  // present epoch must not stay behind.
  if (!registry_.IsCurrent(*source)) {
    if (registry_.FindKnown(source->number)) {
      index_.RemoveBefore(source->number, static_cast<uint16_t>(source->epoch + 1));
    } else {
      ForgetClient(source->number);
    }
    return Error(ErrorCode::CLIENT_NOT_FOUND, "client {} went away", request.client_id.ToString());
  }
  (void)stamps_.Observe(entering.latest());
  reply.hlc = Hlc();
  return reply;
}

namespace {

// Numbers the clients that occur in one reply.
class ClientTable {
 public:
  using FindAddress = std::function<std::optional<protocol::ClientAddress>(uint32_t number)>;
  ClientTable(FindAddress find, std::vector<protocol::ClientAddress>& clients)
      : find_(std::move(find)), clients_(clients) {}

  // Without those whose address is not to be told.
  std::vector<protocol::Route> RoutesOf(const KeyIndex::Content& content) {
    std::vector<protocol::Route> routes;
    for (const KeyOwner& owner : content.owners) {
      if (const auto position = PositionOf(owner.client)) {
        routes.push_back({*position, owner.size, owner.type, content.stamp});
      }
    }
    return routes;
  }
  std::optional<uint32_t> PositionOf(uint32_t number) {
    const auto [slot, fresh] = positions_.try_emplace(number);
    if (fresh) {
      if (auto address = find_(number)) {
        slot->second = static_cast<uint32_t>(clients_.size());
        clients_.push_back(std::move(*address));
      }
    }
    return slot->second;
  }

 private:
  const FindAddress find_;
  std::vector<protocol::ClientAddress>& clients_;
  std::unordered_map<uint32_t, std::optional<uint32_t>> positions_;
};

}  // namespace

Result<protocol::LookupReply> MasterService::Lookup(const protocol::LookupRequest& request) const {
  protocol::LookupReply reply;
  ClientTable table([this](uint32_t number) { return registry_.FindHealthy(number); }, reply.clients);
  reply.routes.reserve(request.keys.size());
  for (const KeyDigest& key : request.keys) reply.routes.push_back(table.RoutesOf(index_.Find(key)));
  return reply;
}

Result<protocol::RegisterReply> MasterService::ReportPeer(const protocol::ReportPeerRequest& request) {
  registry_.Doubt(request);
  return protocol::RegisterReply{};
}

Result<protocol::RemoveKeysReply> MasterService::RemoveKeys(const protocol::RemoveKeysRequest& request) {
  (void)stamps_.Observe(request.hlc);
  protocol::RemoveKeysReply reply;
  ClientTable table([this](uint32_t number) { return registry_.FindKnown(number); }, reply.clients);
  const auto counts = [this](uint32_t owner) { return registry_.IsHealthy(owner); };
  for (const KeyDigest& key : request.keys) {
    const KeyIndex::Content content = index_.MarkRemoved(key, request.hlc, clock_.Now(), counts);
    for (const KeyOwner& owner : content.owners) registry_.RequireResyncIfSilent(owner.client);
    reply.routes.push_back(table.RoutesOf(content));
  }
  return reply;
}

Result<protocol::ListClientsReply> MasterService::RemoveFloor(const protocol::RemoveFloorRequest& request) {
  (void)stamps_.Observe(request.hlc);
  for (const uint32_t silent : registry_.RaiseFloor(request.hlc)) ForgetClient(silent);
  return ListClients({.include_suspect = true});
}

Result<protocol::WriteRouteReply> MasterService::WriteRoute(const protocol::WriteRouteRequest& request) {
  if (request.keys.size() != request.sizes.size()) {
    return Error(ErrorCode::INVALID_PARAMS, "{} keys with {} sizes", request.keys.size(), request.sizes.size());
  }
  std::vector<int32_t> targets(request.keys.size(), protocol::kTargetExists);
  std::vector<uint64_t> sizes;
  std::vector<size_t> positions;
  std::vector<protocol::ClientAddress> owners;
  ClientTable table([this](uint32_t number) { return registry_.FindHealthy(number); }, owners);
  for (size_t i = 0; i < request.keys.size(); ++i) {
    size_t held = 0;
    for (const KeyOwner& owner : index_.Find(request.keys[i]).owners) {
      const auto position = table.PositionOf(owner.client);
      if (!position) continue;
      const auto& exclude = request.exclude;  // a peer that just failed the caller does not count as holding the key
      held += std::find(exclude.begin(), exclude.end(), owners[*position].id) == exclude.end() ? 1 : 0;
    }
    const bool enough = held > 0 && options_.max_client_per_key != 0 && held >= options_.max_client_per_key;
    if (enough && !request.replace) continue;
    positions.push_back(i);
    sizes.push_back(request.sizes[i]);
  }
  ClientRegistry::Picks picks = registry_.PickForWrite(sizes, request.exclude, request);
  protocol::WriteRouteReply reply{std::move(picks.clients), std::move(targets), {}};
  if (!picks.candidates.empty()) reply.candidates.resize(request.keys.size());
  for (size_t i = 0; i < positions.size(); ++i) {
    reply.targets[positions[i]] = picks.targets[i];
    if (!picks.candidates.empty()) reply.candidates[positions[i]] = std::move(picks.candidates[i]);
  }
  return reply;
}

Result<protocol::ListClientsReply> MasterService::ListClients(const protocol::ListClientsRequest& request) const {
  protocol::ListClientsReply reply;
  for (auto& entry : registry_.List()) {
    if (entry.suspect && !request.include_suspect) continue;
    reply.clients.push_back({entry.id, entry.endpoint, entry.suspect, std::move(entry.tiers)});
  }
  reply.key_count = index_.KeyCount();
  return reply;
}

void MasterService::ForgetClient(uint32_t number) {
  const size_t removed = index_.RemoveClient(number);
  if (removed > 0) log::Info("forgot {} key(s) of a client that left, was replaced or fell silent", removed);
}

void MasterService::SweepOnce() {
  for (const uint32_t number : registry_.TakeExpired()) {
    metrics_.GetCounter("master_clients_crashed_total", "clients erased after client_crashed_ttl of silence").Add();
    ForgetClient(number);
  }
  index_.ForgetRemovals(clock_.Now() - options_.client_crashed_ttl);
}

void MasterService::SweepLoop() {
  std::unique_lock lock(sweep_mutex_);
  while (!sweep_wake_.wait_for(lock, options_.sweep_interval, [this] { return stopping_; })) {
    lock.unlock();
    SweepOnce();
    lock.lock();
  }
}

MasterService::RequestCount MasterService::Requests(const std::string& method) {
  return {metrics_.GetCounter(fmt::format("master_{}_requests_total", method), "requests received").Value(),
          metrics_.GetCounter(fmt::format("master_{}_failures_total", method), "requests refused").Value()};
}

std::string MasterService::MetricsText() {
  const auto clients = registry_.List();
  size_t active = 0;
  uint64_t capacity = 0;
  uint64_t used = 0;
  for (const auto& client : clients) {
    active += client.suspect ? 0 : 1;
    for (const auto& tier : client.tiers) {
      const MetricLabels labels{{"segment", tier.name + "@" + client.endpoint}};
      metrics_.GetGauge("segment_total_capacity_bytes", "capacity of a tier", labels)
          .Set(static_cast<double>(tier.capacity));
      metrics_.GetGauge("segment_allocated_bytes", "bytes used in a tier", labels).Set(static_cast<double>(tier.usage));
      capacity += tier.capacity;
      used += tier.usage;
    }
  }
  metrics_.GetGauge("ha_election_is_leader", "1: this master answers").Set(leading() ? 1 : 0);
  metrics_.GetGauge("master_active_clients", "clients heard from within client_ttl").Set(static_cast<double>(active));
  metrics_.GetGauge("master_total_capacity_bytes", "capacity of all tiers").Set(static_cast<double>(capacity));
  metrics_.GetGauge("master_allocated_bytes", "bytes used in all tiers").Set(static_cast<double>(used));
  metrics_.GetGauge("master_key_count", "keys with an owner").Set(static_cast<double>(index_.KeyCount()));
  return metrics_.Serialize();
}

}  // namespace mooncake
