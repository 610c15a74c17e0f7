// What engines say to each other on their control connections.
#pragma once

#include <string>

#include "common/uuid.h"
#include "rpc/codec.h"

namespace mooncake {

struct DescribeRequest {
  // What the asker has: the answer is empty when it is still right. Nil: nothing.
  Uuid generation;
  uint64_t revision = 0;
  MSGPACK_DEFINE_MAP(generation, revision);
};

struct DescribeReply {
  std::string segment;  // EncodeSegment
  MSGPACK_DEFINE_MAP(segment);
};

struct NotifyMessage {
  std::string name;
  std::string message;
  MSGPACK_DEFINE_MAP(name, message);
};

}  // namespace mooncake
