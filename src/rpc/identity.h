// Who is at the other end of a connection: exchanged once, before any call.
#pragma once

#include <cstdint>
#include <string>

#include "common/uuid.h"

namespace mooncake::rpc {

// Raised when frames or messages change so that an older peer would misread them. Unknown message fields need no raise.
inline constexpr uint32_t kProtocolVersion = 1;
// Oldest protocol this build still speaks.
inline constexpr uint32_t kMinProtocolVersion = 1;

struct Identity {
  std::string role{};  // "master", "client", "tool"
  Uuid node{};
  uint32_t protocol_version = kProtocolVersion;
  uint32_t min_protocol_version = kMinProtocolVersion;
  std::string software_version{};
};

}  // namespace mooncake::rpc
