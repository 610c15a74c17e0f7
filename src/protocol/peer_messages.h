// What clients say to each other about objects. Bytes travel beside these messages as payload, or through windows.
#pragma once

#include <string>
#include <vector>

#include "rpc/codec.h"

namespace mooncake::protocol {

struct GetRequest {
  std::vector<std::string> keys;
  MSGPACK_DEFINE_MAP(keys);
};
// One object of a reply. Values that were sent follow each other in the payload, in key order.
struct ObjectState {
  int32_t code = 0;  // ErrorCode
  uint64_t size = 0;
  uint64_t version = 0;
  int32_t type = 3;   // MemoryType it was read from
  bool sent = false;  // false with code 0: too large for a reply, open a window
  MSGPACK_DEFINE_MAP(code, size, version, type, sent);
};
struct GetReply {
  std::vector<ObjectState> objects;
  std::string message;  // of the first failure that is no miss
  MSGPACK_DEFINE_MAP(objects, message);
};

// Payload: the values, one after the other.
struct PutRequest {
  std::vector<std::string> keys;
  std::vector<uint64_t> sizes;
  MSGPACK_DEFINE_MAP(keys, sizes);
};
struct CodesReply {
  std::vector<int32_t> codes;  // per key
  std::string message;         // of the first failure
  MSGPACK_DEFINE_MAP(codes, message);
};

// A window is a run of an owner's memory that one session may read or write until it closes it or goes away.
struct OpenReadRequest {
  std::string key;
  MSGPACK_DEFINE_MAP(key);
};
struct OpenWriteRequest {
  std::string key;
  uint64_t size = 0;
  MSGPACK_DEFINE_MAP(key, size);
};
struct OpenReply {
  uint64_t window = 0;  // 0: nothing to write, the key is there already
  uint64_t size = 0;
  int32_t type = 3;
  // The same bytes for the transfer engine at the owner's endpoint; key 0: only as a window.
  uint64_t address = 0;
  uint64_t key = 0;
  MSGPACK_DEFINE_MAP(window, size, type, address, key);
};
struct WindowRequest {
  uint64_t window = 0;
  MSGPACK_DEFINE_MAP(window);
};
// Read: the reply's payload is the range. Write: the request's payload is.
struct WindowRangeRequest {
  uint64_t window = 0;
  uint64_t offset = 0;
  uint64_t size = 0;
  MSGPACK_DEFINE_MAP(window, offset, size);
};

struct KeysRequest {
  std::vector<std::string> keys;
  MSGPACK_DEFINE_MAP(keys);
};
struct CountReply {
  uint64_t count = 0;
  MSGPACK_DEFINE_MAP(count);
};
struct Empty {
  bool reserved = false;
  MSGPACK_DEFINE_MAP(reserved);
};
struct HealthReply {
  std::string state;
  MSGPACK_DEFINE_MAP(state);
};

}  // namespace mooncake::protocol
