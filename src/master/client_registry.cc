// Liveness and write placement.
#include "master/client_registry.h"

#include <algorithm>

namespace mooncake {

void ClientRegistry::TakeTiers(Client& client, const std::vector<protocol::TierState>& tiers) {
  client.entry.tiers = tiers;
  ClientLoad& load = client.load;
  load.capacity = load.usage = load.largest_tier = 0;
  for (const auto& tier : tiers) {
    load.capacity += tier.capacity;
    load.usage += tier.usage;
    load.largest_tier = std::max(load.largest_tier, tier.capacity);
  }
  load.routed_since_report = 0;
}

void ClientRegistry::HeardFrom(Client& client) const {
  client.last_seen = clock_.Now();
  client.doubted = false;
}

bool ClientRegistry::RegisterAgain(const protocol::RegisterRequest& request) {
  const auto known = clients_.find(request.client_id);
  if (!request.resync || known == clients_.end() || known->second.entry.endpoint != request.endpoint) return false;
  Client& client = known->second;
  HeardFrom(client);
  client.registered_sequence = client.last_sequence = request.sequence;
  ++client.epoch;
  client.must_register = false;
  client.draining = request.draining;
  client.host_id = request.host_id;
  TakeTiers(client, request.tiers);
  return true;
}

std::vector<uint32_t> ClientRegistry::Register(const protocol::RegisterRequest& request) {
  std::lock_guard lock(mutex_);
  if (const auto old = clients_.find(request.client_id);
      old != clients_.end() && request.sequence != 0 && request.sequence <= old->second.last_sequence)
    return {};
  if (RegisterAgain(request)) return {};
  std::vector<uint32_t> replaced;
  std::erase_if(clients_, [&](const auto& item) {
    const Entry& entry = item.second.entry;
    if (item.first != request.client_id && entry.endpoint != request.endpoint) return false;
    replaced.push_back(entry.number);
    by_number_.erase(entry.number);
    return true;
  });
  Client client;
  client.registered_sequence = client.last_sequence = request.sequence;
  client.entry.number = next_number_++;
  client.entry.id = request.client_id;
  client.entry.endpoint = request.endpoint;
  client.draining = request.draining;
  client.host_id = request.host_id;
  client.last_seen = client.joined = clock_.Now();
  TakeTiers(client, request.tiers);
  // Starts level with the others, not as the one that everything goes to once all are full.
  for (const auto& [id, other] : clients_) {
    if (other.load.capacity == 0 || client.load.capacity == 0) continue;
    const double share = static_cast<double>(other.load.routed_total) / static_cast<double>(other.load.capacity);
    client.load.routed_total =
        std::max(client.load.routed_total, static_cast<uint64_t>(share * static_cast<double>(client.load.capacity)));
  }
  by_number_[client.entry.number] = request.client_id;
  clients_[request.client_id] = std::move(client);
  return replaced;
}

std::optional<uint32_t> ClientRegistry::Unregister(const Uuid& id) {
  std::lock_guard lock(mutex_);
  const auto found = clients_.find(id);
  if (found == clients_.end()) return std::nullopt;
  const uint32_t number = found->second.entry.number;
  by_number_.erase(number);
  clients_.erase(found);
  return number;
}

ClientRegistry::Client* ClientRegistry::FindRegistered(const Uuid& id) {
  const auto found = clients_.find(id);
  return found == clients_.end() || found->second.must_register ? nullptr : &found->second;
}

bool ClientRegistry::Heartbeat(const protocol::HeartbeatRequest& request) {
  std::lock_guard lock(mutex_);
  Client* const found = FindRegistered(request.client_id);
  if (found == nullptr) return false;
  Client& client = *found;
  HeardFrom(client);
  client.draining = request.draining;
  TakeTiers(client, request.tiers);
  return true;
}

void ClientRegistry::DescribeOthers(const Uuid& id, protocol::HeartbeatReply& reply) const {
  std::lock_guard lock(mutex_);
  for (const auto& [other, client] : clients_) {
    if (client.load.capacity == 0 || !Healthy(client)) continue;
    ++reply.healthy_clients;
    if (other == id || client.draining) continue;
    const double used = static_cast<double>(client.load.usage + client.load.routed_since_report);
    reply.best_peer_free = std::max(reply.best_peer_free, 1.0 - used / static_cast<double>(client.load.capacity));
  }
}

std::optional<ClientRegistry::Source> ClientRegistry::AcceptAnnounce(const Uuid& id, uint64_t sequence, bool& stale) {
  std::lock_guard lock(mutex_);
  Client* const found = FindRegistered(id);
  if (found == nullptr) return std::nullopt;
  Client& client = *found;
  stale = sequence <= client.last_sequence;
  if (!stale) client.last_sequence = sequence;
  HeardFrom(client);
  return SourceOf(client);
}

std::optional<ClientRegistry::Source> ClientRegistry::AcceptResyncDone(const Uuid& id, uint64_t sequence) {
  std::lock_guard lock(mutex_);
  Client* const found = FindRegistered(id);
  if (found == nullptr || sequence <= found->registered_sequence) return std::nullopt;
  HeardFrom(*found);
  return SourceOf(*found);
}

ClientRegistry::Source ClientRegistry::SourceOf(const Client& client) const {
  const auto floor = floors_.find(client.entry.id);
  return {client.entry.number, client.epoch, floor == floors_.end() ? 0 : floor->second};
}

bool ClientRegistry::IsCurrent(const Source& source) const {
  std::lock_guard lock(mutex_);
  const Client* client = Find(source.number);
  return client != nullptr && client->epoch == source.epoch && !client->must_register;
}

void ClientRegistry::FinishResync(const Source& source) {
  std::lock_guard lock(mutex_);
  const Client* client = Find(source.number);
  if (client != nullptr && client->epoch == source.epoch) floors_.erase(client->entry.id);
}

void ClientRegistry::Doubt(const protocol::ReportPeerRequest& report) {
  std::lock_guard lock(mutex_);
  const auto found = clients_.find(report.peer);
  if (found == clients_.end()) return;
  Client& client = found->second;
  if (client.reports.size() >= kMaxReporters && !client.reports.contains(report.reporter)) client.reports.clear();
  uint64_t& last = client.reports[report.reporter];
  if (report.sequence <= last) return;
  last = report.sequence;
  client.doubted = true;
}

void ClientRegistry::RememberFloor(const Uuid& id, uint64_t hlc) {
  if (floors_.size() >= kMaxFloors && !floors_.contains(id)) floors_.erase(floors_.begin());
  uint64_t& floor = floors_[id];
  floor = std::max(floor, hlc);
}

std::vector<uint32_t> ClientRegistry::RaiseFloor(uint64_t hlc) {
  std::lock_guard lock(mutex_);
  std::vector<uint32_t> silent;
  for (auto& [id, floor] : floors_) floor = std::max(floor, hlc);
  for (auto& [id, client] : clients_) {
    if (Healthy(client)) continue;
    RememberFloor(id, hlc);
    client.must_register = true;
    silent.push_back(client.entry.number);
  }
  return silent;
}

void ClientRegistry::RequireResyncIfSilent(uint32_t number) {
  std::lock_guard lock(mutex_);
  const Client* client = Find(number);
  if (client != nullptr && !Healthy(*client)) clients_.at(client->entry.id).must_register = true;
}

const ClientRegistry::Client* ClientRegistry::Find(uint32_t number) const {
  const auto id = by_number_.find(number);
  return id == by_number_.end() ? nullptr : &clients_.at(id->second);
}

std::optional<protocol::ClientAddress> ClientRegistry::FindHealthy(uint32_t number) const {
  std::lock_guard lock(mutex_);
  const Client* client = Find(number);
  if (client == nullptr || !Healthy(*client)) return std::nullopt;
  return AddressOf(*client);
}

bool ClientRegistry::IsHealthy(uint32_t number) const {
  std::lock_guard lock(mutex_);
  const Client* client = Find(number);
  return client != nullptr && Healthy(*client);
}

std::optional<protocol::ClientAddress> ClientRegistry::FindKnown(uint32_t number) const {
  std::lock_guard lock(mutex_);
  const Client* client = Find(number);
  if (client == nullptr) return std::nullopt;
  return AddressOf(*client);
}

std::vector<ClientRegistry::Entry> ClientRegistry::List() const {
  std::lock_guard lock(mutex_);
  std::vector<Entry> entries;
  for (const auto& [id, client] : clients_) {
    entries.push_back(client.entry);
    entries.back().suspect = !Healthy(client);
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.number < b.number; });
  return entries;
}

std::vector<uint32_t> ClientRegistry::TakeExpired() {
  std::lock_guard lock(mutex_);
  std::vector<uint32_t> expired;
  std::erase_if(clients_, [&](const auto& item) {
    if (clock_.Now() - item.second.last_seen < options_.crashed_ttl) return false;
    expired.push_back(item.second.entry.number);
    if (item.second.load.capacity > 0) RememberFloor(item.first, 0);
    by_number_.erase(item.second.entry.number);
    return true;
  });
  return expired;
}

std::vector<uint32_t> ClientRegistry::TakeAll() {
  std::lock_guard lock(mutex_);
  std::vector<uint32_t> numbers;
  numbers.reserve(by_number_.size());
  for (const auto& [number, id] : by_number_) numbers.push_back(number);
  clients_.clear();
  by_number_.clear();
  floors_.clear();
  return numbers;
}

uint32_t ClientRegistry::PreferenceFor(const Client& client, const Client* self,
                                       const protocol::WriteRouteRequest& wish) {
  const auto named = std::ranges::find(wish.preferred, client.entry.endpoint);
  if (named != wish.preferred.end()) return static_cast<uint32_t>(named - wish.preferred.begin());
  const auto after = static_cast<uint32_t>(wish.preferred.size());
  if (!wish.same_node || self == nullptr) return after;
  if (&client == self) return after;
  return !client.host_id.empty() && client.host_id == self->host_id ? after + 1 : after + 2;
}

ClientRegistry::Picks ClientRegistry::PickForWrite(std::span<const uint64_t> sizes, std::span<const Uuid> exclude,
                                                   const protocol::WriteRouteRequest& wish) {
  std::lock_guard lock(mutex_);
  std::vector<Client*> takers;
  for (auto& [id, client] : clients_) {
    if (client.load.capacity == 0 || client.draining || !Healthy(client)) continue;
    if (std::ranges::find(exclude, id) == exclude.end()) takers.push_back(&client);
  }
  std::ranges::sort(takers, {}, [](const Client* client) { return client->entry.number; });
  const auto own = clients_.find(wish.self);
  const Client* self = own == clients_.end() ? nullptr : &own->second;
  Picks picks;
  std::vector<Placement::Candidate> candidates;
  for (Client* client : takers) {
    picks.clients.push_back(AddressOf(*client));
    const double remote = wish.policy.remote_weight;
    candidates.push_back({.load = &client->load,
                          .preference = PreferenceFor(*client, self, wish),
                          .weight = self == nullptr  ? 1.0
                                    : client == self ? 1.0 - remote
                                                     : remote,
                          .newcomer = clock_.Now() - client->joined < options_.newcomer_time});
  }
  Placement placement(std::move(candidates));
  picks.targets.reserve(sizes.size());
  for (const uint64_t size : sizes) {
    auto chosen = placement.Pick(size, std::max<size_t>(wish.replicas, 1));
    picks.targets.push_back(chosen.empty() ? protocol::kTargetNone : static_cast<int32_t>(chosen.front()));
    if (wish.replicas > 1) picks.candidates.push_back(std::move(chosen));
  }
  return picks;
}

}  // namespace mooncake
