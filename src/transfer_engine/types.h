// Words of the transfer engine that applications use: requests, states, handles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/status.h"

namespace mooncake {

// Values are part of the C and Python interfaces.
enum class TransferOpcode : int32_t {
  kRead = 0,   // the target's memory -> local memory
  kWrite = 1,  // local memory -> the target's memory
};

using SegmentId = uint64_t;
inline constexpr SegmentId kInvalidSegment = UINT64_MAX;
using BatchId = uint64_t;
inline constexpr BatchId kInvalidBatch = UINT64_MAX;

// One run of bytes to move. The engine keeps its own copy.
struct TransferRequest {
  TransferOpcode opcode = TransferOpcode::kRead;
  void* local = nullptr;  // host or NPU memory of this process; filled by a read, sent by a write
  SegmentId target = kInvalidSegment;
  uint64_t target_address = 0;  // as the target process sees it
  size_t length = 0;            // 0: checked like any other, moves nothing, completes at once
};

// Values are part of the C interface. PENDING and INVALID are never reported: a request is WAITING until it ends, and
// what is invalid is refused at submission.
enum class TransferState : int32_t {
  kWaiting = 0,
  kPending = 1,
  kInvalid = 2,
  kCanceled = 3,
  kCompleted = 4,
  kTimeout = 5,
  kFailed = 6,
};

// "COMPLETED"
std::string_view TransferStateName(TransferState state);
// How a request that ended with this result is reported.
TransferState StateOf(const Result<void>& result);

struct TransferStatus {
  TransferState state = TransferState::kWaiting;
  size_t transferred_bytes = 0;  // of requests that completed
  Status error;                  // why not, when the state is an end other than kCompleted
};

// A message from one engine's application to another's, delivered after the data it speaks of.
struct TransferNotify {
  std::string name;     // of the sender's segment unless the application says otherwise
  std::string message;  // any bytes
};

}  // namespace mooncake
