// Choice of the way, and the engine's errors in the store's words.
#include "client/engine_transport.h"

#include "common/log.h"

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
    case ErrorCode::DEVICE_NOT_FOUND:  // of this process
      return status;
    default:
      return {ErrorCode::TRANSFER_FAIL, fmt::format("{}: {}", endpoint, status.ToString()), status.vendor_code()};
  }
}

}  // namespace

Result<void> EngineTransport::Read(const RemoteWindow& window, uint64_t offset, const MemoryRange& local,
                                   Deadline deadline) {
  const auto moved = TryMove(TransferOpcode::kRead, window, offset, local, deadline);
  return moved ? *moved : rpc_.Read(window, offset, local, deadline);
}

Result<void> EngineTransport::Write(const RemoteWindow& window, uint64_t offset, const MemoryRange& local,
                                    Deadline deadline) {
  const auto moved = TryMove(TransferOpcode::kWrite, window, offset, local, deadline);
  return moved ? *moved : rpc_.Write(window, offset, local, deadline);
}

std::optional<Result<void>> EngineTransport::TryMove(TransferOpcode opcode, const RemoteWindow& window, uint64_t offset,
                                                     const MemoryRange& local, Deadline deadline) {
  const auto* const npu = std::get_if<NpuRange>(&local);
  if (window.grant.key == 0 || (npu != nullptr && npu_over_rpc_)) return std::nullopt;
  const auto move = [&] { return Move(opcode, window, offset, local, deadline); };
  const auto unsupported = [](const Result<void>& moved) {
    return !moved && moved.error().code() == ErrorCode::NOT_SUPPORTED_TRANSPORT;
  };
  Result<void> moved = move();
  if (npu != nullptr && unsupported(moved) && Prepare(npu->at.device_id)) moved = move();
  if (unsupported(moved)) return std::nullopt;
  return moved;
}

bool EngineTransport::Prepare(int32_t device_id) {
  const auto ready = engine_.PrepareDevice(device_id);
  if (ready && *ready) return true;
  if (!ready) {
    log::Warn("memory of NPU {} is staged for the RPC connections: {}", device_id, ready.error().ToString());
  }
  npu_over_rpc_ = true;
  return false;
}

Result<void> EngineTransport::Move(TransferOpcode opcode, const RemoteWindow& window, uint64_t offset,
                                   const MemoryRange& local, Deadline deadline) {
  const auto segment = engine_.OpenSegment(window.endpoint, deadline);
  if (!segment) return std::unexpected(InStoreWords(segment.error(), window.endpoint));
  auto moved = engine_.TransferGranted(opcode, local, *segment, window.grant, offset, deadline);
  if (!moved && moved.error().code() == ErrorCode::NOT_SUPPORTED_TRANSPORT) return moved;
  if (!moved) return std::unexpected(InStoreWords(moved.error(), window.endpoint));
  return {};
}

}  // namespace mooncake
