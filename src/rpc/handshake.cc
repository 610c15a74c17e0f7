// Building and judging hello messages.
#include "rpc/handshake.h"

namespace mooncake::rpc::internal {
namespace {

std::string Describe(const Identity& identity) {
  return fmt::format("{} {} speaks protocol {}..{} (software '{}')", identity.role, identity.node.ToString(),
                     identity.min_protocol_version, identity.protocol_version, identity.software_version);
}

}  // namespace

HelloMessage MakeHello(const Identity& self, uint32_t max_body_bytes, uint64_t max_payload_bytes) {
  return {self.protocol_version, self.min_protocol_version, self.role, self.node, self.software_version,
          max_body_bytes,        max_payload_bytes};
}

Identity IdentityOf(const HelloMessage& hello) {
  return {hello.role, hello.node, hello.protocol_version, hello.min_supported, hello.software_version};
}

Result<void> CheckVersions(const Identity& ours, const Identity& theirs) {
  if (ours.protocol_version >= theirs.min_protocol_version && theirs.protocol_version >= ours.min_protocol_version) {
    return {};
  }
  return Error(ErrorCode::INVALID_VERSION, "no common protocol version: {}, {}", Describe(ours), Describe(theirs));
}

}  // namespace mooncake::rpc::internal
