// What clients and the master say to each other. Lists run parallel to the request's keys, in order.
#pragma once

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
  MSGPACK_DEFINE_MAP(client_id, sequence, endpoint, tiers);
};
struct RegisterReply {
  uint64_t client_ttl_ms = 0;  // silence after which the master stops offering this client
  MSGPACK_DEFINE_MAP(client_ttl_ms);
};

struct UnregisterRequest {
  Uuid client_id;
  MSGPACK_DEFINE_MAP(client_id);
};

struct HeartbeatRequest {
  Uuid client_id;
  std::vector<TierState> tiers;
  MSGPACK_DEFINE_MAP(client_id, tiers);
};
struct HeartbeatReply {
  bool known = false;  // false: register again and announce everything
  MSGPACK_DEFINE_MAP(known);
};

// The owner's state of a key at the time of sending, not an operation: repeating or merging announcements is harmless.
struct KeyState {
  KeyDigest key;
  bool present = false;
  uint64_t size = 0;
  int32_t type = 3;  // MemoryType of the highest replica
  MSGPACK_DEFINE_MAP(key, present, size, type);
};
struct AnnounceRequest {
  Uuid client_id;
  uint64_t sequence = 0;  // grows with every announcement of this client; older ones arriving late are ignored
  std::vector<KeyState> keys;
  MSGPACK_DEFINE_MAP(client_id, sequence, keys);
};
struct AnnounceReply {
  std::vector<uint32_t> rejected;  // positions of keys that other owners hold already (max_client_per_key)
  MSGPACK_DEFINE_MAP(rejected);
};

struct ClientAddress {
  Uuid id;
  std::string endpoint;
  MSGPACK_DEFINE_MAP(id, endpoint);
};
struct Route {
  uint32_t client = 0;  // position in the reply's `clients`
  uint64_t size = 0;
  int32_t type = 3;
  MSGPACK_DEFINE_MAP(client, size, type);
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

struct WriteRouteRequest {
  std::vector<KeyDigest> keys;
  std::vector<uint64_t> sizes;
  std::vector<Uuid> exclude;  // clients that just failed the caller
  MSGPACK_DEFINE_MAP(keys, sizes, exclude);
};
struct WriteRouteReply {
  std::vector<ClientAddress> clients;
  std::vector<int32_t> targets;  // per key: position in `clients`, or one of the two below
  MSGPACK_DEFINE_MAP(clients, targets);
};
inline constexpr int32_t kTargetNone = -1;    // no client can hold it
inline constexpr int32_t kTargetExists = -2;  // enough owners have it already

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
