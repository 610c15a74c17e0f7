// Names of transfer states.
#include "transfer_engine/types.h"

namespace mooncake {

std::string_view TransferStateName(TransferState state) {
  switch (state) {
    case TransferState::kWaiting:
      return "WAITING";
    case TransferState::kPending:
      return "PENDING";
    case TransferState::kInvalid:
      return "INVALID";
    case TransferState::kCanceled:
      return "CANCELED";
    case TransferState::kCompleted:
      return "COMPLETED";
    case TransferState::kTimeout:
      return "TIMEOUT";
    case TransferState::kFailed:
      return "FAILED";
  }
  return "UNKNOWN";
}

TransferState StateOf(const Result<void>& result) {
  if (result) return TransferState::kCompleted;
  if (result.error().code() == ErrorCode::TRANSFER_TIMEOUT) return TransferState::kTimeout;
  if (result.error().code() == ErrorCode::TRANSFER_CANCELED) return TransferState::kCanceled;
  return TransferState::kFailed;
}

}  // namespace mooncake
