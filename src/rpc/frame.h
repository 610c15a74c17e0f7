// What stands on the wire: a fixed header, then the body (msgpack or text), then the raw payload.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "rpc/spans.h"

namespace mooncake::rpc::internal {

inline constexpr uint32_t kFrameMagic = 0x3152434d;  // "MCR1"
// Limit of a body before the handshake is done.
inline constexpr uint32_t kMaxHelloBytes = 4096;

enum class FrameKind : uint8_t {
  kHello = 1,  // client's first frame, HelloMessage
  kWelcome,    // server's answer, HelloMessage
  kRefuse,     // instead of a welcome: code, and the reason as text
  kRequest,
  kResponse,  // code 0: the handler's body; else the failure's text
};

// Little-endian, exactly these 40 bytes.
struct FrameHeader {
  uint32_t magic = kFrameMagic;
  FrameKind kind = FrameKind::kRequest;
  uint8_t reserved = 0;
  uint16_t method = 0;
  uint64_t id = 0;  // chosen by the client, repeated in the response
  uint32_t body_bytes = 0;
  int32_t code = 0;
  uint64_t payload_bytes = 0;
  uint32_t budget_ms = 0;  // request: time the caller still has
  int32_t vendor_code = 0;
};
static_assert(sizeof(FrameHeader) == 40 && std::endian::native == std::endian::little);

// A frame on its way out. The header's lengths are set by the channel.
struct OutFrame {
  FrameHeader header;
  std::string body;
  std::vector<ConstSpan> payload;
  std::shared_ptr<const void> keep_alive;
  uint64_t payload_ticket = 0;  // of the request it answers; stays here
};

// The response that carries a failure.
inline OutFrame FailureTo(uint64_t id, const Status& status) {
  OutFrame frame;
  frame.header.kind = FrameKind::kResponse;
  frame.header.id = id;
  // A failure always travels as one, even if a handler hands over the status OK.
  frame.header.code = ToInt(status.ok() ? ErrorCode::INTERNAL_ERROR : status.code());
  frame.header.vendor_code = status.vendor_code();
  frame.body = status.message();
  return frame;
}

}  // namespace mooncake::rpc::internal
