// What clients say to each other about objects. Bytes travel beside these messages as payload, or through windows.
#pragma once

#include <string>
#include <vector>

#include "rpc/codec.h"

namespace mooncake::protocol {

struct GetRequest {
  std::vector<std::string> keys;
  bool windows = false;       // open a window for each object that is not sent
  uint64_t inline_limit = 0;  // bytes of an object up to which it is sent; 0: as the owner thinks right
  MSGPACK_DEFINE_MAP(keys, windows, inline_limit);
};
// One object of a reply. Values that were sent follow each other in the payload, in key order.
struct ObjectState {
  int32_t code = 0;  // ErrorCode
  uint64_t size = 0;
  uint64_t version = 0;
  int32_t type = 3;   // MemoryType it was read from
  bool sent = false;  // false with code 0: too large for a reply, open a window
  ContentStamp stamp;
  uint64_t sum = 0;      // SumOf the bytes
  bool has_sum = false;  // false: the owner made none
  uint64_t window = 0;   // 0: none was opened
  uint64_t address = 0;  // both as in OpenReply
  uint64_t key = 0;
  MSGPACK_DEFINE_MAP(code, size, version, type, sent, stamp, sum, has_sum, window, address, key);
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
  std::vector<ContentStamp> stamps;  // per key; empty: the owner makes them
  std::vector<uint64_t> sums;        // SumOf each value; empty: not made
  uint32_t wanted = 1;               // owners the writer asks for, for the owner's announcement
  bool replace = false;              // an upsert: replaces what ranks lower, where a put finds the key present
  MSGPACK_DEFINE_MAP(keys, sizes, stamps, sums, wanted, replace);
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
  ContentStamp stamp;  // none: the owner makes it; the two others as in PutRequest
  uint32_t wanted = 1;
  bool replace = false;
  MSGPACK_DEFINE_MAP(key, size, stamp, wanted, replace);
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
  uint64_t sum = 0;  // with the commit of a write: SumOf what was written
  bool has_sum = false;
  MSGPACK_DEFINE_MAP(window, sum, has_sum);
};
// Ends reads. What was read through a window counts only if the owner still held it then.
struct CloseWindowsRequest {
  std::vector<uint64_t> windows;
  MSGPACK_DEFINE_MAP(windows);
};
struct CloseWindowsReply {
  std::vector<bool> held;  // per window
  MSGPACK_DEFINE_MAP(held);
};
// Read: the reply's payload is the range. Write: the request's payload is.
struct WindowRangeRequest {
  uint64_t window = 0;
  uint64_t offset = 0;
  uint64_t size = 0;
  MSGPACK_DEFINE_MAP(window, offset, size);
};

// Contents that rank below these go; answered with a code per key.
struct InvalidateRequest {
  std::vector<std::string> keys;
  std::vector<ContentStamp> stamps;  // per key
  MSGPACK_DEFINE_MAP(keys, stamps);
};
struct RemoveByRegexRequest {
  std::string pattern;  // found anywhere in the key
  MSGPACK_DEFINE_MAP(pattern);
};
// A page of the owner's keys, in an order of its own.
struct ListKeysRequest {
  std::string after;  // the last key of the page before; empty: from the start
  uint32_t limit = 1000;
  MSGPACK_DEFINE_MAP(after, limit);
};
struct ListKeysReply {
  std::vector<std::string> keys;  // fewer than asked for: there are no more
  std::vector<ContentStamp> stamps;
  std::vector<uint64_t> sizes;
  MSGPACK_DEFINE_MAP(keys, stamps, sizes);
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
