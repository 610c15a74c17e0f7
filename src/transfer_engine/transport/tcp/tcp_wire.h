// What goes over a data connection. Fixed records, little endian; a request is answered in the order of its arrival.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "common/uuid.h"

namespace mooncake::tcp {

static_assert(std::endian::native == std::endian::little, "records are sent as they lie in memory");

inline constexpr uint64_t kHelloMagic = 0x3154414443544b4d;  // "MKTCDAT1"
inline constexpr uint16_t kRequestMagic = 0x514d;            // "MQ"
inline constexpr uint32_t kReplyMagic = 0x50524b4d;          // "MKRP"
inline constexpr uint32_t kVersion = 2;
// A request that speaks of more is no request: the connection is closed. Initiators cut far below.
inline constexpr uint64_t kMaxRequestBytes = 16ull << 20;

// First words of the initiator. Requests follow only after the answer.
struct Hello {
  uint64_t magic = kHelloMagic;
  uint32_t version = kVersion;
  uint32_t slot = 0;  // which of the initiator's connections to this target
  Uuid initiator;     // generation of the process that speaks
  Uuid target;        // generation of the process it wants to speak to
  // Random. A later hello with the same instance and slot takes the place of an earlier connection: before it is
  // answered the target has stopped listening to the earlier one, so that writes left there cannot overtake.
  uint64_t instance = 0;
  uint64_t reserved = 0;
};
static_assert(sizeof(Hello) == 64);

struct HelloAnswer {
  uint64_t magic = kHelloMagic;
  uint32_t version = kVersion;
  int32_t code = 0;  // ErrorCode: OK, STALE_SEGMENT, INVALID_VERSION
  Uuid target;       // generation of the process that answers
  uint64_t max_request_bytes = kMaxRequestBytes;
};
static_assert(sizeof(HelloAnswer) == 40);

// Payload of a read that the target has lent lies in the target's memory until the initiator has taken it out of its
// socket. So the read is good only when the initiator has returned it, and the return has been answered: until then the
// target holds the memory. A return repeats the fields of its read; returns come in the order of the lent reads.
enum class Operation : uint16_t { kRead = 1, kWrite = 2, kReturn = 3 };
// More that are not returned are no good will: the connection is closed.
inline constexpr size_t kMaxLent = 1024;

// Bytes [address, address + length), which are part of what the initiator wants to move in all: the target opens all of
// [address - before, address + length + after) or refuses, so that what is refused has moved no byte.
struct Request {
  uint16_t magic = kRequestMagic;
  Operation operation = Operation::kRead;
  uint32_t length = 0;  // a write's payload of so many bytes follows
  uint64_t id = 0;      // counts up by one within a connection
  uint64_t key = 0;
  uint64_t address = 0;
  uint64_t before = 0;
  uint64_t after = 0;
};
static_assert(sizeof(Request) == 48);

// Smaller chunks are not worth a loan.
inline constexpr uint32_t kMinLentBytes = 64 << 10;
// Whether the payload belongs to a transfer that is long enough. The numbers may be a stranger's.
constexpr bool IsLent(const Request& part, uint64_t lend_bytes) {
  if (lend_bytes == 0 || part.length < kMinLentBytes) return false;
  return part.before >= lend_bytes || part.after >= lend_bytes || part.before + part.length + part.after >= lend_bytes;
}

struct Reply {
  uint32_t magic = kReplyMagic;
  int32_t status = 0;  // ErrorCode
  uint64_t id = 0;
  uint32_t length = 0;  // of the payload that follows: all of what was asked for, or 0
  uint32_t lent = 0;    // 1: has to be returned
};
static_assert(sizeof(Reply) == 24);

}  // namespace mooncake::tcp
