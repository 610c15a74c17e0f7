// Liveness and write placement.
#include "master/client_registry.h"

#include <algorithm>

namespace mooncake {

void ClientRegistry::TakeTiers(Client& client, const std::vector<protocol::TierState>& tiers) {
  client.entry.tiers = tiers;
  client.capacity = client.usage = client.largest_tier = 0;
  for (const auto& tier : tiers) {
    client.capacity += tier.capacity;
    client.usage += tier.usage;
    client.largest_tier = std::max(client.largest_tier, tier.capacity);
  }
  client.routed_since_report = 0;
}

std::vector<uint32_t> ClientRegistry::Register(const protocol::RegisterRequest& request) {
  std::lock_guard lock(mutex_);
  if (const auto old = clients_.find(request.client_id);
      old != clients_.end() && request.sequence != 0 && request.sequence <= old->second.last_sequence)
    return {};
  std::vector<uint32_t> replaced;
  std::erase_if(clients_, [&](const auto& item) {
    const Entry& entry = item.second.entry;
    if (item.first != request.client_id && entry.endpoint != request.endpoint) return false;
    replaced.push_back(entry.number);
    by_number_.erase(entry.number);
    return true;
  });
  Client client;
  client.last_sequence = request.sequence;
  client.entry.number = next_number_++;
  client.entry.id = request.client_id;
  client.entry.endpoint = request.endpoint;
  client.last_seen = clock_.Now();
  TakeTiers(client, request.tiers);
  // Starts level with the others, not as the one that everything goes to once all are full.
  for (const auto& [id, other] : clients_) {
    if (other.capacity == 0 || client.capacity == 0) continue;
    const double share = static_cast<double>(other.routed_total) / static_cast<double>(other.capacity);
    client.routed_total =
        std::max(client.routed_total, static_cast<uint64_t>(share * static_cast<double>(client.capacity)));
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

bool ClientRegistry::Heartbeat(const protocol::HeartbeatRequest& request) {
  std::lock_guard lock(mutex_);
  const auto found = clients_.find(request.client_id);
  if (found == clients_.end()) return false;
  found->second.last_seen = clock_.Now();
  TakeTiers(found->second, request.tiers);
  return true;
}

std::optional<uint32_t> ClientRegistry::AcceptAnnounce(const Uuid& id, uint64_t sequence, bool& stale) {
  std::lock_guard lock(mutex_);
  const auto found = clients_.find(id);
  if (found == clients_.end()) return std::nullopt;
  stale = sequence <= found->second.last_sequence;
  if (!stale) found->second.last_sequence = sequence;
  found->second.last_seen = clock_.Now();
  return found->second.entry.number;
}

std::optional<protocol::ClientAddress> ClientRegistry::FindHealthy(uint32_t number) const {
  std::lock_guard lock(mutex_);
  const auto id = by_number_.find(number);
  if (id == by_number_.end()) return std::nullopt;
  const Client& client = clients_.at(id->second);
  if (Suspect(client)) return std::nullopt;
  return protocol::ClientAddress{client.entry.id, client.entry.endpoint};
}

std::vector<ClientRegistry::Entry> ClientRegistry::List() const {
  std::lock_guard lock(mutex_);
  std::vector<Entry> entries;
  for (const auto& [id, client] : clients_) {
    entries.push_back(client.entry);
    entries.back().suspect = Suspect(client);
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
    by_number_.erase(item.second.entry.number);
    return true;
  });
  return expired;
}

std::vector<uint32_t> ClientRegistry::TakeAll() {
  std::lock_guard lock(mutex_);
  std::vector<uint32_t> numbers;
  for (const auto& [number, id] : by_number_) numbers.push_back(number);
  clients_.clear();
  by_number_.clear();
  return numbers;
}

double ClientRegistry::Fill(const Client& client, uint64_t size) {
  const double used = static_cast<double>(client.usage + client.routed_since_report + size);
  return std::min(1.0, used / static_cast<double>(client.capacity));
}

ClientRegistry::Picks ClientRegistry::PickForWrite(std::span<const uint64_t> sizes, std::span<const Uuid> exclude) {
  std::lock_guard lock(mutex_);
  std::vector<Client*> candidates;
  for (auto& [id, client] : clients_) {
    if (client.capacity == 0 || Suspect(client)) continue;
    if (std::find(exclude.begin(), exclude.end(), id) == exclude.end()) candidates.push_back(&client);
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const Client* a, const Client* b) { return a->entry.number < b->entry.number; });
  Picks picks;
  for (const Client* client : candidates) picks.clients.push_back({client->entry.id, client->entry.endpoint});
  picks.targets.reserve(sizes.size());
  for (const uint64_t size : sizes) {
    const auto rank = [&](const Client& client) {
      const double turnover = static_cast<double>(client.routed_total) / static_cast<double>(client.capacity);
      return std::pair(Fill(client, size), turnover);
    };
    int32_t best = protocol::kTargetNone;
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (candidates[i]->largest_tier < size) continue;
      if (best < 0 || rank(*candidates[i]) < rank(*candidates[best])) best = static_cast<int32_t>(i);
    }
    picks.targets.push_back(best);
    if (best < 0) continue;
    candidates[best]->routed_since_report += size;
    candidates[best]->routed_total += size;
  }
  return picks;
}

}  // namespace mooncake
