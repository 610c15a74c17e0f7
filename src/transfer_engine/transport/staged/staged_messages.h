// What the user of staged NPU memory and its owner say to each other over the control connection.
#pragma once

#include <string>
#include <vector>

#include "common/uuid.h"
#include "rpc/codec.h"

namespace mooncake::staged {

// A transfer is opened by its first kLease call and lives until a call has been answered with kEnded, or the connection
// ends. Each call waits for one of the transfer's bytes' slots: the owner cuts the range as it likes, and answers with
// one piece of it at a time. The asker moves the piece's bytes between its memory and the slot, and returns the piece
// with the next call. A read's slot is filled when the asker hears of it; a write's is copied to the NPU when it has
// been returned.
struct LeaseRequest {
  Uuid target;      // generation of the process that is meant
  uint64_t id = 0;  // of the transfer; the asker's choice, new on this connection
  // Of the first call.
  bool opens = false;
  bool write = false;
  uint64_t key = 0;  // of the region or grant
  uint64_t address = 0;
  uint64_t length = 0;
  uint64_t timeout_us = 0;  // the owner may give up after it
  // Of any call.
  std::vector<uint64_t> returned;  // pieces whose bytes have been moved: the asker is done with their slots
  // The asker touches no slot of the transfer any more and asks for its end; with `unsure` bytes that it wrote may
  // still be on their way to one.
  bool closes = false;
  bool unsure = false;
  MSGPACK_DEFINE_MAP(target, id, opens, write, key, address, length, timeout_us, returned, closes, unsure);
};

enum class LeaseAnswer : uint8_t {
  kPiece = 0,
  kWait = 1,   // the owner gives up; it says why when the pieces that are out have been returned
  kEnded = 2,  // `code` 0: all bytes are in place
};

struct LeaseReply {
  uint8_t answer = 0;  // LeaseAnswer
  int32_t code = 0;    // ErrorCode
  std::string message;
  // A piece: bytes [offset, offset + length) of the transfer, in the slot at `address`.
  uint64_t piece = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
  uint64_t address = 0;
  uint64_t key = 0;  // tcp: for these bytes alone, while the piece is out; 0: not over tcp
  // rdma: as of a SegmentRegion around the slot.
  uint64_t region_address = 0;
  uint64_t region_length = 0;
  uint64_t mr_piece_bytes = 0;
  std::vector<std::vector<uint32_t>> rkeys;
  MSGPACK_DEFINE_MAP(answer, code, message, piece, offset, length, address, key, region_address, region_length,
                     mr_piece_bytes, rkeys);
};

}  // namespace mooncake::staged
