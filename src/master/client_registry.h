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
#include "master/placement.h"
#include "protocol/master_messages.h"

namespace mooncake {

// A client is healthy while it is heard from, suspect after `ttl` of silence (kept, but not offered), expired after
// `crashed_ttl`. One that a peer could not reach is doubted: not offered until it is heard from again. Any thread;
// reads the clock, never waits.
class ClientRegistry {
 public:
  struct Options {
    Duration ttl{};
    Duration crashed_ttl{};
    Duration newcomer_time = std::chrono::seconds(30);  // see Placement
  };
  struct Entry {
    uint32_t number = 0;  // for the key index; never reused
    Uuid id;
    std::string endpoint;
    bool suspect = false;
    std::vector<protocol::TierState> tiers;
  };

  ClientRegistry(Options options, const Clock& clock) : options_(options), clock_(clock) {}

  // A client that registers again and will announce everything (resync) keeps its number and begins a new epoch: what
  // it announced before stays until FinishResync. Without that it gets a new number, and one at another's endpoint has
  // taken that one's place: the old numbers are returned, for their keys to be forgotten. A registration older than
  // what was heard last changes nothing.
  std::vector<uint32_t> Register(const protocol::RegisterRequest& request);
  // The number it had, nullopt when unknown.
  std::optional<uint32_t> Unregister(const Uuid& id);
  // False when the client is unknown, or has to register again for another reason.
  bool Heartbeat(const protocol::HeartbeatRequest& request);
  // Its share of a reply to a heartbeat: what others have free, how many there are.
  void DescribeOthers(const Uuid& id, protocol::HeartbeatReply& reply) const;

  struct Source {
    uint32_t number = 0;
    uint16_t epoch = 0;
    uint64_t floor = 0;  // contents stamped up to that hybrid time were removed while it was silent
  };
  // Of a known client whose announcement `sequence` is newer than all before; nullopt when it is unknown, `stale` set
  // when the announcement is an old one.
  std::optional<Source> AcceptAnnounce(const Uuid& id, uint64_t sequence, bool& stale);
  // The same for a message that only says that everything has been announced: it may overtake announcements, as long as
  // it is of the present registration.
  std::optional<Source> AcceptResyncDone(const Uuid& id, uint64_t sequence);
  // Whether the client is still there, in that epoch.
  bool IsCurrent(const Source& source) const;
  // Everything has been announced: its floor has done its work.
  void FinishResync(const Source& source);

  // A peer could not reach it. Reports that come late, by their reporter's count, change nothing.
  void Doubt(const protocol::ReportPeerRequest& report);
  // Whoever is not healthy now has to announce everything before it is offered again, and contents up to the hybrid
  // time that it then announces are refused; so have those who come back after they have expired. The numbers of the
  // former, for their keys to be forgotten.
  std::vector<uint32_t> RaiseFloor(uint64_t hlc);
  // Another content has taken the place of what this client holds: should it be silent now, it learns that by
  // announcing everything once it is back.
  void RequireResyncIfSilent(uint32_t number);

  // The client with that number unless it is suspect, doubted or gone.
  std::optional<protocol::ClientAddress> FindHealthy(uint32_t number) const;
  bool IsHealthy(uint32_t number) const;
  // Also a suspect one.
  std::optional<protocol::ClientAddress> FindKnown(uint32_t number) const;
  std::vector<Entry> List() const;
  // Removes and returns the numbers of clients silent for crashed_ttl.
  std::vector<uint32_t> TakeExpired();

  // Forgets everybody; the numbers they had.
  std::vector<uint32_t> TakeAll();

  struct Picks {
    std::vector<protocol::ClientAddress> clients;
    std::vector<int32_t> targets;                   // per size: position in `clients`, or protocol::kTargetNone
    std::vector<std::vector<uint32_t>> candidates;  // per size when more than one owner is wanted, else empty
  };
  // Places values (Placement) on clients that are healthy and take writes, as `wish` wants it: its preferred clients
  // first, then with same_node the writer itself and those of its host. What is handed out counts until the next
  // heartbeat reports it.
  Picks PickForWrite(std::span<const uint64_t> sizes, std::span<const Uuid> exclude,
                     const protocol::WriteRouteRequest& wish = {});

 private:
  struct Client {
    Entry entry;
    TimePoint last_seen;
    TimePoint joined;
    uint64_t registered_sequence = 0;
    uint64_t last_sequence = 0;
    uint16_t epoch = 0;
    bool doubted = false;
    bool must_register = false;
    bool draining = false;
    std::string host_id;
    ClientLoad load;
    std::unordered_map<Uuid, uint64_t> reports;  // by reporter: its last one about this client
  };
  static constexpr size_t kMaxFloors = 1024;
  static constexpr size_t kMaxReporters = 1024;

  bool Suspect(const Client& client) const { return clock_.Now() - client.last_seen >= options_.ttl; }
  bool Healthy(const Client& client) const { return !client.doubted && !client.must_register && !Suspect(client); }
  const Client* Find(uint32_t number) const;
  Client* FindRegistered(const Uuid& id);  // null also for one that has to register again
  protocol::ClientAddress AddressOf(const Client& client) const {
    return {client.entry.id, client.entry.endpoint, client.host_id};
  }
  void HeardFrom(Client& client) const;
  Source SourceOf(const Client& client) const;
  bool RegisterAgain(const protocol::RegisterRequest& request);
  void RememberFloor(const Uuid& id, uint64_t hlc);
  static void TakeTiers(Client& client, const std::vector<protocol::TierState>& tiers);
  static uint32_t PreferenceFor(const Client& client, const Client* self, const protocol::WriteRouteRequest& wish);

  const Options options_;
  const Clock& clock_;
  mutable std::mutex mutex_;
  uint32_t next_number_ = 1;
  std::unordered_map<Uuid, Client> clients_;
  std::unordered_map<uint32_t, Uuid> by_number_;
  std::unordered_map<Uuid, uint64_t> floors_;  // also of clients that have expired: hybrid time, 0: none yet
};

}  // namespace mooncake
