// What clients and the master say to each other. Lists run parallel to the request's keys, in order.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "rpc/codec.h"

namespace mooncake::protocol {

// One tier of a client, with its counters since the client's start.
struct TierState {
  Uuid id;
  std::string name;
  int32_t type = 3;  // MemoryType
  uint64_t capacity = 0;
  uint64_t usage = 0;
  int32_t priority = 0;
  std::vector<std::string> tags;
  uint64_t keys = 0;
  uint64_t hits = 0;
  uint64_t demoted_out = 0;
  uint64_t dropped = 0;
  MSGPACK_DEFINE_MAP(id, name, type, capacity, usage, priority, tags, keys, hits, demoted_out, dropped);
};

struct RegisterRequest {
  Uuid client_id;
  uint64_t sequence = 0;  // one count for registrations and announcements of a client: what is older comes too late
  std::string endpoint;   // where peers reach this client
  std::vector<TierState> tiers;
  std::string host_id;    // equal for two clients: same host, memory can be shared; empty: unknown
  bool resync = false;    // announcements follow, the last with resync_done; until then its known keys stay offered
  bool draining = false;  // answers reads, takes no writes, will leave
  MSGPACK_DEFINE_MAP(client_id, sequence, endpoint, tiers, host_id, resync, draining);
};
struct RegisterReply {
  uint64_t client_ttl_ms = 0;  // silence after which the master stops offering this client
  uint64_t term = 0;           // of the leader, grows with each new one; 0: elections are not in use
  uint64_t hlc = 0;            // the master's hybrid time (ContentStamp), for the client's clock to observe
  MSGPACK_DEFINE_MAP(client_ttl_ms, term, hlc);
};

struct UnregisterRequest {
  Uuid client_id;
  MSGPACK_DEFINE_MAP(client_id);
};

struct HeartbeatRequest {
  Uuid client_id;
  std::vector<TierState> tiers;
  bool draining = false;                     // as in RegisterRequest
  std::map<std::string, uint64_t> counters;  // by name, since the client's start
  MSGPACK_DEFINE_MAP(client_id, tiers, draining, counters);
};
struct HeartbeatReply {
  bool known = false;  // false: register again and announce everything
  uint64_t term = 0;   // both as in RegisterReply
  uint64_t hlc = 0;
  double best_peer_free = 0;     // 0..1, largest free share of a client's capacity among the others that take writes
  uint32_t healthy_clients = 0;  // with tiers and not suspect, this one included
  MSGPACK_DEFINE_MAP(known, term, hlc, best_peer_free, healthy_clients);
};

// The owner's state of a key at the time of sending, not an operation: repeating or merging announcements is harmless.
struct KeyState {
  KeyDigest key;
  bool present = false;
  uint64_t size = 0;
  int32_t type = 3;     // MemoryType of the highest replica
  ContentStamp stamp;   // of the content it has; none: of a client that does not stamp
  uint32_t wanted = 1;  // owners that the writer asked for
  MSGPACK_DEFINE_MAP(key, present, size, type, stamp, wanted);
};
struct AnnounceRequest {
  Uuid client_id;
  uint64_t sequence = 0;  // grows with every announcement of this client; older ones arriving late are ignored
  std::vector<KeyState> keys;
  bool resync = false;       // part of the announcement of everything that follows a registration with resync
  bool resync_done = false;  // the last part: what was not announced since the registration is gone
  std::string packed;        // more keys, as PackKeyStates writes them; positions in the reply go on after `keys`
  MSGPACK_DEFINE_MAP(client_id, sequence, keys, resync, resync_done, packed);
};

struct ClientAddress {
  Uuid id;
  std::string endpoint;
  std::string host_id;  // as in RegisterRequest
  MSGPACK_DEFINE_MAP(id, endpoint, host_id);
};

// A key whose announced content replaced an older one that these clients still hold: the writer invalidates it there.
struct Superseded {
  uint32_t position = 0;  // in the request
  std::vector<ClientAddress> clients;
  MSGPACK_DEFINE_MAP(position, clients);
};
struct AnnounceReply {
  std::vector<uint32_t> rejected;  // positions of keys that other owners hold already (max_client_per_key)
  std::vector<Superseded> superseded;
  uint64_t hlc = 0;  // as in RegisterReply
  MSGPACK_DEFINE_MAP(rejected, superseded, hlc);
};
struct Route {
  uint32_t client = 0;  // position in the reply's `clients`
  uint64_t size = 0;
  int32_t type = 3;
  ContentStamp stamp;
  MSGPACK_DEFINE_MAP(client, size, type, stamp);
};

struct LookupRequest {
  std::vector<KeyDigest> keys;
  MSGPACK_DEFINE_MAP(keys);
};
struct LookupReply {
  std::vector<ClientAddress> clients;
  std::vector<std::vector<Route>> routes;  // per key; empty = nobody has it
  MSGPACK_DEFINE_MAP(clients, routes);
};

// What the writer's configuration says about where its puts go.
struct WritePolicy {
  uint32_t max_candidates = 2;           // clients to name for a key; 0: all
  int32_t strategy = 2;                  // 0 in the order they registered, 1 at random, 2 by free room
  double remote_weight = 0.5;            // 0..1, of the others' free share; the writer's own has the rest
  bool top_tier_only = true;             // only the highest tiers that are left count
  bool early_return = true;              // the first max_candidates that fit will do
  std::vector<std::string> tag_filters;  // tiers with one of these tags do not count
  int32_t priority_limit = 0;            // nor those of lower priority
  MSGPACK_DEFINE_MAP(max_candidates, strategy, remote_weight, top_tier_only, early_return, tag_filters, priority_limit);
};
struct WriteRouteRequest {
  std::vector<KeyDigest> keys;
  std::vector<uint64_t> sizes;
  std::vector<Uuid> exclude;           // clients that just failed the caller
  Uuid self;                           // the writer, when it is a client with tiers of its own
  uint32_t replicas = 1;               // owners wanted for each key
  bool replace = false;                // an upsert: owners that are there already do not make it kTargetExists
  std::vector<std::string> preferred;  // endpoints to take first, in this order
  bool same_node = false;              // the writer itself first, then clients of its host
  WritePolicy policy;
  MSGPACK_DEFINE_MAP(keys, sizes, exclude, self, replicas, replace, preferred, same_node, policy);
};
struct WriteRouteReply {
  std::vector<ClientAddress> clients;
  std::vector<int32_t> targets;                   // per key: position in `clients`, or one of the two below
  std::vector<std::vector<uint32_t>> candidates;  // per key: positions in `clients`, best first, the target before all
  MSGPACK_DEFINE_MAP(clients, targets, candidates);
};
inline constexpr int32_t kTargetNone = -1;    // no client can hold it
inline constexpr int32_t kTargetExists = -2;  // enough owners have it already

// The reporter could not reach that client: it is not offered until the master hears from it again.
struct ReportPeerRequest {
  Uuid reporter;
  Uuid peer;
  uint64_t sequence = 0;  // grows with every report of this reporter
  MSGPACK_DEFINE_MAP(reporter, peer, sequence);
};

// Contents of these keys up to that time are removed, also those of owners that nobody can reach now.
struct RemoveKeysRequest {
  std::vector<KeyDigest> keys;
  uint64_t hlc = 0;  // as in ContentStamp
  MSGPACK_DEFINE_MAP(keys, hlc);
};
// Who held them: those have to be told. Suspect ones are among them.
struct RemoveKeysReply {
  std::vector<ClientAddress> clients;
  std::vector<std::vector<Route>> routes;  // per key
  MSGPACK_DEFINE_MAP(clients, routes);
};
// The same for every key. Answered with the clients to tell, as `ListClientsReply`.
struct RemoveFloorRequest {
  uint64_t hlc = 0;
  MSGPACK_DEFINE_MAP(hlc);
};

struct ListClientsRequest {
  bool include_suspect = false;
  MSGPACK_DEFINE_MAP(include_suspect);
};
struct ClientState {
  Uuid id;
  std::string endpoint;
  bool suspect = false;  // silent for longer than the TTL
  std::vector<TierState> tiers;
  MSGPACK_DEFINE_MAP(id, endpoint, suspect, tiers);
};
struct ListClientsReply {
  std::vector<ClientState> clients;
  uint64_t key_count = 0;
  MSGPACK_DEFINE_MAP(clients, key_count);
};

}  // namespace mooncake::protocol
