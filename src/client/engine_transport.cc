// Choice of the way, and the engine's errors in the store's words.
#include "client/engine_transport.h"

namespace mooncake {
namespace {

// The store's callers branch on few codes: a peer that cannot be reached in time, or a transfer that failed.
Status InStoreWords(const Status& status, const std::string& endpoint) {
  switch (status.code()) {
    case ErrorCode::TRANSFER_TIMEOUT:
    case ErrorCode::STALE_SEGMENT:
    case ErrorCode::SEGMENT_NOT_FOUND:
      return {ErrorCode::RPC_FAIL, fmt::format("{}: {}", endpoint, status.message()), status.vendor_code()};
    case ErrorCode::RPC_FAIL:
    case ErrorCode::SHUTTING_DOWN:
    case ErrorCode::ILLEGAL_CLIENT:
      return status;
    default:
      return {ErrorCode::TRANSFER_FAIL, fmt::format("{}: {}", endpoint, status.ToString()), status.vendor_code()};
  }
}

}  // namespace

Result<void> EngineTransport::Read(const RemoteWindow& window, uint64_t offset, const MemoryRange& local,
                                   Deadline deadline) {
  if (window.grant.key == 0 || !IsHost(local)) return rpc_.Read(window, offset, local, deadline);
  return Move(TransferOpcode::kRead, window, offset, local, deadline);
}

Result<void> EngineTransport::Write(const RemoteWindow& window, uint64_t offset, const MemoryRange& local,
                                    Deadline deadline) {
  if (window.grant.key == 0 || !IsHost(local)) return rpc_.Write(window, offset, local, deadline);
  return Move(TransferOpcode::kWrite, window, offset, local, deadline);
}

Result<void> EngineTransport::Move(TransferOpcode opcode, const RemoteWindow& window, uint64_t offset,
                                   const MemoryRange& local, Deadline deadline) {
  const auto segment = engine_.OpenSegment(window.endpoint, deadline);
  if (!segment) return std::unexpected(InStoreWords(segment.error(), window.endpoint));
  auto moved = engine_.TransferGranted(opcode, local, *segment, window.grant, offset, deadline);
  if (!moved) return std::unexpected(InStoreWords(moved.error(), window.endpoint));
  return {};
}

}  // namespace mooncake
