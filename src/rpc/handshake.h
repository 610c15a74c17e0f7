// The first exchange on a connection: who are you, and which protocol versions and sizes do you accept.
#pragma once

#include <string>

#include "common/status.h"
#include "rpc/codec.h"
#include "rpc/identity.h"

namespace mooncake::rpc::internal {

struct HelloMessage {
  uint32_t protocol_version = 0;
  uint32_t min_supported = 0;
  std::string role;
  Uuid node;
  std::string software_version;
  // Largest frame parts the sender of this message accepts.
  uint32_t max_body_bytes = 64u << 20;
  uint64_t max_payload_bytes = 1ull << 30;
  MSGPACK_DEFINE_MAP(protocol_version, min_supported, role, node, software_version, max_body_bytes, max_payload_bytes);
};

HelloMessage MakeHello(const Identity& self, uint32_t max_body_bytes, uint64_t max_payload_bytes);
Identity IdentityOf(const HelloMessage& hello);

// INVALID_VERSION with both sides' versions unless each speaks something the other still supports.
Result<void> CheckVersions(const Identity& ours, const Identity& theirs);

}  // namespace mooncake::rpc::internal
