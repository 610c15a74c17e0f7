// What happens to loads between the scheduler and the end of their operations.
#include "transfer_engine/transport/ascend_rdma/lane_core.h"

#include <algorithm>

#include "common/log.h"
#include "device/npu_driver.h"

namespace mooncake::bridge {
namespace {

Direction DirectionOf(TransferOpcode opcode) {
  return opcode == TransferOpcode::kWrite ? Direction::kWrite : Direction::kRead;
}

// Unlike any batch's: those do not have the highest bit.
BatchId NextWireTag() {
  static std::atomic<uint64_t> last = 0;
  return (BatchId{1} << 63) | last.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

LaneCore::LaneCore(int32_t device_id, LaneOptions options, SlotRing& ring, CopyPort& port)
    : device_id_(device_id), options_(options), ring_(ring), port_(port), scheduler_(options.scheduler) {
  MC_CHECK(options.scheduler.slot_bytes == ring.slot_bytes(), "slots of {} B and {} B", options.scheduler.slot_bytes,
           ring.slot_bytes());
  MC_CHECK(options.wire_depth > 0 && options.bulk_wire_depth > 0 && options.attempts > 0, "nothing may go");
}

LaneCore::~LaneCore() {
  MC_CHECK(operations_.empty() && loads_.empty(), "{} operations and {} slots in use at the end", operations_.size(),
           loads_.size());
}

// --- what others want ---

void LaneCore::Submit(std::vector<BridgedOperation> operations) {
  inbox_->Put([&] {
    auto& submitted = inbox_->submitted;
    if (submitted.empty()) {
      submitted = std::move(operations);
    } else {
      std::ranges::move(operations, std::back_inserter(submitted));
    }
  });
}

void LaneCore::Cancel(BatchId tag) {
  inbox_->Put([&] { inbox_->canceled.push_back(tag); });
}

void LaneCore::Stop() {
  inbox_->Put([&] { inbox_->stop = true; });
}

void LaneCore::WaitForInput(TimePoint until) {
  std::unique_lock lock(inbox_->mutex);
  inbox_->came.wait_until(lock, until, [&] { return inbox_->filled.load(std::memory_order_relaxed); });
}

bool LaneCore::TakeInput(TimePoint now) {
  if (!HasInput()) return false;
  std::vector<BridgedOperation> submitted;
  std::vector<BatchId> canceled;
  std::vector<WireEnd> ended;
  bool stop = false;
  {
    std::lock_guard lock(inbox_->mutex);
    submitted.swap(inbox_->submitted);
    canceled.swap(inbox_->canceled);
    ended.swap(inbox_->ended);
    stop = inbox_->stop;
    inbox_->filled.store(false, std::memory_order_relaxed);
  }
  // A cancel comes after the submissions it means: operations that came before it are here by now.
  for (WireEnd& end : ended) WireEnded(std::move(end), now);
  for (BridgedOperation& bridged : submitted) Admit(std::move(bridged), now);
  for (const BatchId tag : canceled) {
    std::vector<uint64_t> ids;
    for (const auto& [id, op] : operations_) {
      if (op.bridged.operation.tag == tag && !op.error) ids.push_back(id);
    }
    for (const uint64_t id : ids) {
      Fail(id, operations_.at(id), Status(ErrorCode::TRANSFER_CANCELED, "canceled by the application"), now);
    }
  }
  if (stop && !stopping_) {
    stopping_ = true;
    // Those that failed before may be on a wire that takes its time.
    for (const auto& [id, op] : operations_) {
      if (op.error) op.bridged.wire->Cancel(op.bridged.operation.tag);
    }
    FailAll(Status(ErrorCode::SHUTTING_DOWN, "the transfer engine is being closed"), now);
  }
  return true;
}

void LaneCore::Admit(BridgedOperation bridged, TimePoint now) {
  TransferOperation& operation = bridged.operation;
  const auto refuse = [&](Status why) {
    finished_.emplace_back(std::move(operation), std::unexpected(std::move(why)));
  };
  // If copies are under way, they will tell it with the runtime's own words.
  if (!offline_ && copies_.empty() && port_.Lost()) {
    GoOffline(Status(ErrorCode::DEVICE_NOT_FOUND, "another use of it has shown that"), now);
  }
  if (stopping_) return refuse(Status(ErrorCode::SHUTTING_DOWN, "the transfer engine is being closed"));
  if (offline_) return refuse(*offline_);
  if (operation.length() == 0) {
    finished_.emplace_back(std::move(operation), Result<void>{});
    return;
  }
  if (operation.deadline.time() <= now) {
    return refuse(Status(ErrorCode::TRANSFER_TIMEOUT, "the deadline passed before the transfer began"));
  }
  const uint64_t id = ++last_id_;
  const Uuid peer = operation.target->generation;
  deadlines_.emplace(operation.deadline.time(), id);
  const Direction direction = DirectionOf(operation.opcode);
  Op& op = operations_.emplace(id, Op{std::move(bridged), direction, NextWireTag(), false, 0, 0, {}, {}}).first->second;
  if (waiting_.contains(peer) || !Schedule(id, op, now)) waiting_[peer].push_back(id);
}

bool LaneCore::Schedule(uint64_t id, Op& op, TimePoint now) {
  const TransferOperation& operation = op.bridged.operation;
  const auto& local = std::get<NpuRange>(operation.local);
  const Work work{.id = id,
                  .direction = op.direction,
                  .peer = operation.target->generation,
                  .batch = operation.tag,
                  .length = operation.length(),
                  .phase = static_cast<uintptr_t>(local.at.device_ptr) % kAsyncAlignment};
  op.admitted = scheduler_.Add(work, now).has_value();
  return op.admitted;
}

void LaneCore::AdmitWaiting(TimePoint now) {
  for (bool more = !waiting_.empty(); more;) {
    more = false;
    // One of each peer in turn.
    for (auto peer = waiting_.begin(); peer != waiting_.end();) {
      auto& ids = peer->second;
      const auto op = operations_.find(ids.front());  // it may have ended meanwhile
      if (op == operations_.end() || Schedule(op->first, op->second, now)) {
        ids.pop_front();
        more = true;
      }
      peer = ids.empty() ? waiting_.erase(peer) : std::next(peer);
    }
  }
}

// --- the thread's round ---

// Slots change hands within Step only: until this one, those that are in use now have been.
void LaneCore::CountSlots(TimePoint now) {
  const size_t used = ring_.size() - ring_.count(SlotState::kFree);
  const Duration since = now - last_step_.value_or(now);
  if (used > 0) counters_.slot_ns += used * static_cast<uint64_t>(std::max<int64_t>(since.count(), 0));
  last_step_ = now;
}

bool LaneCore::Step(TimePoint now) {
  CountSlots(now);
  bool progress = TakeInput(now);
  PollCopies(now, progress);
  progress |= Timers(now);
  AdmitWaiting(now);
  read_first_ = !read_first_;
  const Direction first = read_first_ ? Direction::kRead : Direction::kWrite;
  const Direction second = read_first_ ? Direction::kWrite : Direction::kRead;
  // One load at a time each, so that neither takes all slots of a small ring.
  for (bool more = true; more;) {
    more = Issue(first, now);
    more |= Issue(second, now);
    progress |= more;
  }
  progress |= !finished_.empty();
  TellFinished();
  return progress;
}

void LaneCore::TellFinished() {
  auto finished = std::exchange(finished_, {});
  for (auto& [operation, result] : finished) {
    auto done = std::move(operation.done);
    operation.local_use.Release();
    done(std::move(result));
  }
}

std::optional<TimePoint> LaneCore::WakeAt(TimePoint now) const {
  std::optional<TimePoint> at;
  const auto earlier = [&](TimePoint time) { at = at ? std::min(*at, time) : time; };
  if (!deadlines_.empty()) earlier(deadlines_.begin()->first);
  if (!overdue_.empty()) earlier(overdue_.begin()->first);
  if (!retries_.empty()) earlier(retries_.begin()->first);
  for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
    // What is ripe already waits for a slot, not for time.
    if (const auto ripe = scheduler_.RipeAt(direction); ripe && *ripe > now) earlier(*ripe);
  }
  return at;
}

bool LaneCore::Timers(TimePoint now) {
  bool progress = false;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    progress = true;
    const uint64_t id = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    Op& op = operations_.at(id);
    if (op.error) continue;
    const Status why(ErrorCode::TRANSFER_TIMEOUT,
                     fmt::format("the deadline passed after {} of {} B", op.moved, op.bridged.operation.length()));
    Fail(id, op, why, now);
  }
  while (!overdue_.empty() && overdue_.begin()->first <= now) {
    progress = true;
    const uint64_t id = overdue_.begin()->second;
    overdue_.erase(overdue_.begin());
    GiveUpOnWire(id, now);
  }
  while (!retries_.empty() && retries_.begin()->first <= now) {
    progress = true;
    const auto [load_id, index] = retries_.begin()->second;
    retries_.erase(retries_.begin());
    LoadState& load = loads_.at(load_id);
    load.pieces[index].state = PieceState::kOnWire;
    const Op& op = operations_.at(load.pieces[index].work);
    std::vector<TransferOperation> again;
    again.push_back(WireOperation(load_id, load, index, op));
    ++counters_.wire_retries;
    op.bridged.wire->Submit(std::move(again), Caller::kGoesOn);
  }
  return progress;
}

// --- the start of loads ---

bool LaneCore::WireFree(Direction direction, bool bulk) const {
  const size_t i = Index(direction);
  return wire_loads_[i] < options_.wire_depth && (!bulk || bulk_wire_loads_[i] < options_.bulk_wire_depth);
}

void LaneCore::Enqueue(uint64_t id, const LoadState& load) {
  auto& queue = queued_[Index(load.direction)];
  // Bulk is overtaken by everything else.
  const auto behind =
      load.bulk ? queue.end() : std::ranges::find_if(queue, [&](uint64_t other) { return loads_.at(other).bulk; });
  queue.insert(behind, id);
}

bool LaneCore::IssueQueued(Direction direction, TimePoint now) {
  auto& queue = queued_[Index(direction)];
  if (queue.empty()) return false;
  const uint64_t id = queue.front();
  LoadState& load = loads_.at(id);
  if (direction == Direction::kWrite ? !WireFree(direction, load.bulk) : !CopyFree(direction)) return false;
  queue.pop_front();
  if (direction == Direction::kWrite) {
    StartWire(id, load);
  } else {
    StartCopy(id, load, now);
  }
  return true;
}

bool LaneCore::Issue(Direction direction, TimePoint now) {
  return IssueQueued(direction, now) || PickOne(direction, now);
}

bool LaneCore::PickOne(Direction direction, TimePoint now) {
  if (scheduler_.empty(direction)) return false;
  const bool write = direction == Direction::kWrite;
  const auto& queue = queued_[Index(direction)];
  // Of a write, no more may be filled than the wire will soon take.
  if (write ? !CopyFree(direction) || queue.size() >= options_.wire_depth : !WireFree(direction, false)) return false;
  bool bulk = write ? queue.empty() || !loads_.at(queue.back()).bulk : WireFree(direction, true);
  std::optional<SlotRing::Slot> slot;
  if (bulk) slot = ring_.Take(direction, true);
  if (!slot) {
    bulk = false;
    slot = ring_.Take(direction, false);
  }
  if (!slot) return false;
  const bool idle = write ? copying_[Index(direction)] == 0 : wire_loads_[Index(direction)] == 0;
  auto picked = scheduler_.Next(direction, idle, bulk, now);
  if (!picked) {
    ring_.Move(*slot, SlotState::kFree);
    return false;
  }
  const uint64_t id = ++last_id_;
  LoadState& load = loads_[id];
  load = LoadState{.direction = direction, .peer = picked->peer, .bulk = picked->bulk(), .slot = *slot, .pieces = {}};
  for (const Piece& piece : picked->pieces) {
    load.pieces.push_back(LoadPiece{piece, PieceState::kWaiting, 0});
    ++operations_.at(piece.work).in_flight;
  }
  const size_t used = ring_.size() - ring_.count(SlotState::kFree);
  if (used > counters_.slots_max) counters_.slots_max = used;
  ++counters_.loads;
  counters_.pieces += load.pieces.size();
  if (write) {
    StartCopy(id, load, now);
  } else {
    StartWire(id, load);
  }
  return true;
}

// --- copies ---

void LaneCore::StartCopy(uint64_t id, LoadState& load, TimePoint now) {
  std::vector<SlotCopy> copies;
  for (const LoadPiece& piece : load.pieces) {
    if (piece.state != PieceState::kWaiting) continue;
    const auto& local = std::get<NpuRange>(operations_.at(piece.work).bridged.operation.local);
    copies.push_back({ring_.At(load.slot) + piece.slot_offset, local.at + piece.offset, piece.length});
  }
  ring_.Move(load.slot, SlotState::kCopying);
  load.copying = true;
  const CopyPort::Ticket ticket = port_.Start(load.direction, copies);
  copies_.push_back({id, load.direction, ticket, now});
  ++copying_[Index(load.direction)];
}

void LaneCore::PollCopies(TimePoint now, bool& progress) {
  for (size_t i = 0; i < copies_.size();) {
    Copying& copy = copies_[i];
    auto outcome = port_.Poll(copy.ticket);
    if (!outcome) {
      if (!copy.aborted && now - copy.started >= options_.copy_patience) {
        copy.aborted = true;
        progress = true;
        ring_.Move(loads_.at(copy.load).slot, SlotState::kQuarantined);
        ++counters_.quarantines;
        port_.Abort(copy.ticket);
      }
      ++i;
      continue;
    }
    progress = true;
    const Copying ended = copy;
    copies_.erase(copies_.begin() + static_cast<ptrdiff_t>(i));
    --copying_[Index(ended.direction)];
    if (ended.aborted && *outcome) {
      *outcome = Error(ErrorCode::DATA_COPY_FAILED, "the copy took longer than {} s",
                       std::chrono::duration<double>(options_.copy_patience).count());
    }
    CopyEnded(ended, std::move(*outcome), now);
  }
}

void LaneCore::CopyEnded(const Copying& copy, Result<void> result, TimePoint now) {
  LoadState& load = loads_.at(copy.load);
  if (!result) {
    ++counters_.copy_failures;
    if (port_.Lost() && !offline_) GoOffline(result.error(), now);
    for (const LoadPiece& piece : load.pieces) {
      if (piece.state != PieceState::kWaiting) continue;
      Op& op = operations_.at(piece.work);
      if (!op.error) Fail(piece.work, op, Context(op, result.error(), "copy"), now);
    }
  }
  load.copying = false;
  const bool to_wire = result && load.direction == Direction::kWrite;
  for (LoadPiece& piece : load.pieces) {
    if (piece.state != PieceState::kWaiting) continue;
    if (operations_.at(piece.work).error) {
      EndPiece(piece, PieceState::kDropped);
    } else if (!to_wire) {
      EndPiece(piece, PieceState::kThrough);
    }
  }
  if (!load.AnyWaits()) return FreeLoad(copy.load, load);
  ring_.Move(load.slot, SlotState::kReady);
  Enqueue(copy.load, load);
}

// --- the wire ---

TransferOperation LaneCore::WireOperation(uint64_t id, const LoadState& load, size_t index, const Op& op) {
  const LoadPiece& piece = load.pieces[index];
  const TransferOperation& whole = op.bridged.operation;
  TransferOperation part;
  part.opcode = whole.opcode;
  part.local = HostRange(ring_.At(load.slot) + piece.slot_offset, piece.length);
  part.target = whole.target;
  part.region = whole.region;
  part.target_address = whole.target_address + piece.offset;
  part.tag = op.wire_tag;
  part.deadline = whole.deadline;
  part.done = [inbox = inbox_, id, index, attempt = piece.attempts](Result<void> result) {
    inbox->Put([&] { inbox->ended.push_back({id, index, attempt, std::move(result)}); });
  };
  return part;
}

void LaneCore::StartWire(uint64_t id, LoadState& load) {
  std::map<Transport*, std::vector<TransferOperation>> by_wire;
  for (size_t i = 0; i < load.pieces.size(); ++i) {
    LoadPiece& piece = load.pieces[i];
    if (piece.state != PieceState::kWaiting) continue;
    const Op& op = operations_.at(piece.work);
    piece.state = PieceState::kOnWire;
    ++load.on_wire;
    by_wire[op.bridged.wire].push_back(WireOperation(id, load, i, op));
  }
  ring_.Move(load.slot, SlotState::kOnWire);
  ++wire_loads_[Index(load.direction)];
  if (load.bulk) ++bulk_wire_loads_[Index(load.direction)];
  // Ends come through the inbox, also those that come at once.
  for (auto& [wire, parts] : by_wire) wire->Submit(std::move(parts), Caller::kGoesOn);
}

void LaneCore::WireEnded(WireEnd end, TimePoint now) {
  const auto found = loads_.find(end.load);
  const LoadPiece* const named = found == loads_.end() ? nullptr : &found->second.pieces[end.piece];
  MC_CHECK(named != nullptr && named->attempts == end.attempt &&
               (named->state == PieceState::kOnWire || named->state == PieceState::kOrphaned),
           "a piece ended on the wire twice");
  LoadState& load = found->second;
  LoadPiece& piece = load.pieces[end.piece];
  if (piece.state == PieceState::kOrphaned) {
    piece.state = PieceState::kDropped;
    --load.orphaned;
    if (load.orphaned == 0 && !load.copying && ring_.state(load.slot) == SlotState::kQuarantined)
      FreeLoad(end.load, load);
    return;
  }
  Op& op = operations_.at(piece.work);
  ++piece.attempts;
  if (!end.result && !op.error) {
    const TimePoint again = now + options_.retry_delay * (int64_t{1} << (3 * std::min(piece.attempts - 1, 10)));
    // Anything else is an answer; this may be the connection.
    if (end.result.error().code() == ErrorCode::TRANSFER_FAIL && piece.attempts < options_.attempts &&
        again < op.bridged.operation.deadline.time()) {
      piece.state = PieceState::kRetry;
      retries_.emplace(again, std::pair(end.load, end.piece));
      return;
    }
    Fail(piece.work, op, Context(op, end.result.error(), "wire"), now);
  }
  --load.on_wire;
  if (op.error) {
    EndPiece(piece, PieceState::kDropped);
  } else if (load.direction == Direction::kWrite) {
    EndPiece(piece, PieceState::kThrough);
  } else {
    piece.state = PieceState::kWaiting;  // for its copy
  }
  if (load.on_wire == 0) WireOver(end.load, load, now);
}

void LaneCore::LeaveWire(LoadState& load) {
  --wire_loads_[Index(load.direction)];
  if (load.bulk) --bulk_wire_loads_[Index(load.direction)];
}

void LaneCore::WireOver(uint64_t id, LoadState& load, TimePoint) {
  LeaveWire(load);
  if (!load.AnyWaits()) return FreeLoad(id, load);
  ring_.Move(load.slot, SlotState::kArrived);
  Enqueue(id, load);
}

}  // namespace mooncake::bridge
