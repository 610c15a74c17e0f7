// Which clients there are, whether they are alive, and how full they are.
#pragma once

#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "common/uuid.h"
#include "protocol/master_messages.h"

namespace mooncake {

// A client is healthy while it is heard from, suspect after `ttl` of silence (kept, but not offered), expired after
// `crashed_ttl`. Any thread; reads the clock, never waits.
class ClientRegistry {
 public:
  struct Options {
    Duration ttl{};
    Duration crashed_ttl{};
  };
  struct Entry {
    uint32_t number = 0;  // for the key index; never reused
    Uuid id;
    std::string endpoint;
    bool suspect = false;
    std::vector<protocol::TierState> tiers;
  };

  ClientRegistry(Options options, const Clock& clock) : options_(options), clock_(clock) {}

  // A client that registers again gets a new number, and one at another's endpoint has taken that one's place: the old
  // numbers are returned, for their keys to be forgotten. A registration older than what was heard last changes
  // nothing.
  std::vector<uint32_t> Register(const protocol::RegisterRequest& request);
  // The number it had, nullopt when unknown.
  std::optional<uint32_t> Unregister(const Uuid& id);
  // False when the client is unknown.
  bool Heartbeat(const protocol::HeartbeatRequest& request);
  // Number of a known client whose announcement `sequence` is newer than all before; nullopt when it is unknown,
  // `stale` set when the announcement is an old one.
  std::optional<uint32_t> AcceptAnnounce(const Uuid& id, uint64_t sequence, bool& stale);

  // The client with that number unless it is suspect or gone.
  std::optional<protocol::ClientAddress> FindHealthy(uint32_t number) const;
  std::vector<Entry> List() const;
  // Removes and returns the numbers of clients silent for crashed_ttl.
  std::vector<uint32_t> TakeExpired();

  // Forgets everybody; the numbers they had.
  std::vector<uint32_t> TakeAll();

  struct Picks {
    std::vector<protocol::ClientAddress> clients;
    std::vector<int32_t> targets;  // per size: position in `clients`, or protocol::kTargetNone
  };
  // Picks a client for each size: the emptiest, by share of its capacity; full ones by the share of their capacity
  // written to lately, so that all of them turn over evenly. Counts what it hands out until the next heartbeat reports
  // it.
  Picks PickForWrite(std::span<const uint64_t> sizes, std::span<const Uuid> exclude);

 private:
  struct Client {
    Entry entry;
    TimePoint last_seen;
    uint64_t last_sequence = 0;
    uint64_t capacity = 0;
    uint64_t largest_tier = 0;
    uint64_t usage = 0;
    uint64_t routed_since_report = 0;
    uint64_t routed_total = 0;
  };
  bool Suspect(const Client& client) const { return clock_.Now() - client.last_seen >= options_.ttl; }
  static void TakeTiers(Client& client, const std::vector<protocol::TierState>& tiers);
  static double Fill(const Client& client, uint64_t size);

  const Options options_;
  const Clock& clock_;
  mutable std::mutex mutex_;
  uint32_t next_number_ = 1;
  std::unordered_map<Uuid, Client> clients_;
  std::unordered_map<uint32_t, Uuid> by_number_;
};

}  // namespace mooncake
