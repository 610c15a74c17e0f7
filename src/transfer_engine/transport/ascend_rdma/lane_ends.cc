// How loads and operations end, well or not: what is let go of at once, and what has to be waited for.
#include <algorithm>

#include "common/log.h"
#include "transfer_engine/transport/ascend_rdma/lane_core.h"

namespace mooncake::bridge {

void LaneCore::FreeLoad(uint64_t id, LoadState& load) {
  if (load.orphaned > 0) {
    if (ring_.state(load.slot) == SlotState::kQuarantined) return;
    ring_.Move(load.slot, SlotState::kQuarantined);
    ++counters_.quarantines;
    return;
  }
  ring_.Move(load.slot, SlotState::kFree);
  scheduler_.Returned(load.direction, load.peer);
  loads_.erase(id);
}

void LaneCore::EndPiece(LoadPiece& piece, PieceState how) {
  piece.state = how;
  Op& op = operations_.at(piece.work);
  if (how == PieceState::kThrough) {
    op.moved += piece.length;
    (op.direction == Direction::kWrite ? counters_.bytes_written : counters_.bytes_read) += piece.length;
  }
  --op.in_flight;
  MaybeFinish(piece.work);
}

void LaneCore::MaybeFinish(uint64_t op_id) {
  const auto found = operations_.find(op_id);
  Op& op = found->second;
  TransferOperation& operation = op.bridged.operation;
  if (op.in_flight > 0 || (!op.error && op.moved < operation.length())) return;
  MC_CHECK(op.moved <= operation.length(), "{} of {} B moved", op.moved, operation.length());
  if (op.admitted) scheduler_.End(op_id);
  deadlines_.erase({operation.deadline.time(), op_id});
  if (op.error) overdue_.erase({op.failed_at + options_.wire_grace, op_id});
  Result<void> result;
  if (op.error) result = std::unexpected(std::move(*op.error));
  finished_.emplace_back(std::move(operation), std::move(result));
  operations_.erase(found);
}

void LaneCore::Fail(uint64_t op_id, Op& op, Status why, TimePoint now) {
  op.error = std::move(why);
  op.failed_at = now;
  scheduler_.Drop(op_id);
  overdue_.emplace(now + options_.wire_grace, op_id);
  if (op.in_flight > 0) {
    ++op.in_flight;  // keeps it meanwhile
    DropRetries(op_id, now);
    DropWaiting(op_id);
    if (op.in_flight > 1) op.bridged.wire->Cancel(op.wire_tag);
    --op.in_flight;
  }
  MaybeFinish(op_id);
}

void LaneCore::DropWaiting(uint64_t op_id) {
  for (auto next = loads_.begin(); next != loads_.end();) {
    auto& [id, load] = *next++;
    if (load.copying) continue;
    const auto mine = std::ranges::find_if(load.pieces, [&](const LoadPiece& piece) {
      return piece.work == op_id && piece.state == PieceState::kWaiting;
    });
    if (mine == load.pieces.end()) continue;
    EndPiece(*mine, PieceState::kDropped);  // an operation has one piece in a load
    if (load.on_wire > 0 || load.AnyWaits()) continue;
    std::erase(queued_[Index(load.direction)], id);
    FreeLoad(id, load);
  }
}

void LaneCore::DropRetries(uint64_t op_id, TimePoint now) {
  for (auto retry = retries_.begin(); retry != retries_.end();) {
    const auto [load_id, index] = retry->second;
    LoadState& load = loads_.at(load_id);
    if (load.pieces[index].work != op_id) {
      ++retry;
      continue;
    }
    retry = retries_.erase(retry);
    EndPiece(load.pieces[index], PieceState::kDropped);
    if (--load.on_wire == 0) WireOver(load_id, load, now);
  }
}

// The wire has not let go of the operation's slots in time. They are given up; the user's memory is not theirs.
void LaneCore::GiveUpOnWire(uint64_t op_id, TimePoint now) {
  std::vector<std::pair<uint64_t, size_t>> given_up;
  for (const auto& [load_id, load] : loads_) {
    for (size_t i = 0; i < load.pieces.size(); ++i) {
      const LoadPiece& piece = load.pieces[i];
      if (piece.work == op_id && piece.state == PieceState::kOnWire) given_up.emplace_back(load_id, i);
    }
  }
  if (!given_up.empty()) {
    Op& op = operations_.at(op_id);
    if (op.direction == Direction::kWrite) {
      const std::string text = op.error->message() + "; bytes of the target may still change";
      op.error = Status(op.error->code(), text, op.error->vendor_code());
    }
  }
  for (const auto& [load_id, index] : given_up) {
    LoadState& load = loads_.at(load_id);
    ++load.orphaned;
    --load.on_wire;
    EndPiece(load.pieces[index], PieceState::kOrphaned);
    if (load.on_wire == 0) WireOver(load_id, load, now);
  }
  if (!given_up.empty()) {
    log::Warn("NPU device {}: {} pieces of a failed transfer are still on the wire; their slots are set aside",
              device_id_, given_up.size());
  }
}

void LaneCore::FailAll(const Status& why, TimePoint now) {
  std::vector<uint64_t> ids;
  for (const auto& [id, op] : operations_) {
    if (!op.error) ids.push_back(id);
  }
  for (const uint64_t id : ids) {
    Op& op = operations_.at(id);
    Fail(id, op, why.code() == ErrorCode::SHUTTING_DOWN ? why : Context(op, why, "device"), now);
  }
}

void LaneCore::GoOffline(const Status& why, TimePoint now) {
  offline_ =
      Status(ErrorCode::DEVICE_NOT_FOUND,
             fmt::format("NPU device {} is lost and out of use: {}", device_id_, why.message()), why.vendor_code());
  online_.store(false, std::memory_order_release);
  log::Error("{}; its transfers end", offline_->message());
  FailAll(*offline_, now);
}

Status LaneCore::Context(const Op& op, const Status& why, std::string_view stage) const {
  const TransferOperation& operation = op.bridged.operation;
  return Status(why.code(),
                fmt::format("{} of {} B between NPU device {} and {} ({}): {}",
                            op.direction == Direction::kWrite ? "writing" : "reading", operation.length(), device_id_,
                            operation.target->name, stage, why.message()),
                why.vendor_code());
}

}  // namespace mooncake::bridge
