// Calls, pieces, and the end of a transfer.
#include "transfer_engine/transport/staged/staged_transfer.h"

#include <algorithm>
#include <atomic>

#include "common/check.h"
#include "protocol/methods.h"
#include "transfer_engine/transport/staged/staged_queue.h"

namespace mooncake::staged {
namespace {

// What an owner makes one piece of, at most; with as many calls out as there may be pieces, up to a limit.
constexpr size_t kBytesPerCall = size_t{512} << 10;
constexpr size_t kCallsMax = 4;
// For the owner's answer to the end of a failed transfer. Local memory is safe by then.
constexpr Duration kCloseGrace = std::chrono::seconds(2);

uint64_t NextId() {
  static std::atomic<uint64_t> last = 0;
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

// Unlike any batch's and any lane's.
BatchId WireTag(uint64_t id) {
  return (BatchId{3} << 62) | id;
}

}  // namespace

Transfer::Transfer(std::shared_ptr<Queue> queue, PeerLinks& links, Transport& wire, TransferOperation operation)
    : queue_(std::move(queue)),
      links_(links),
      wire_(wire),
      target_(operation.target),
      opcode_(operation.opcode),
      length_(operation.length()),
      deadline_(operation.deadline),
      tag_(operation.tag),
      id_(NextId()),
      wire_tag_(WireTag(id_)),
      operation_(std::move(operation)) {}

LeaseRequest Transfer::Request() const {
  LeaseRequest request;
  request.target = target_->generation;
  request.id = id_;
  return request;
}

void Transfer::Start() {
  auto link = links_.To(target_->control, target_->generation);
  Next next;
  {
    std::lock_guard lock(mutex_);
    if (!link || error_) {
      owner_over_ = true;
      if (!error_) error_ = link.error();
      CloseOrEnd(next);
    } else {
      link_ = std::move(*link);
      const auto left =
          std::chrono::duration_cast<std::chrono::microseconds>(deadline_.time() - SteadyClock::Instance().Now());
      LeaseRequest open = Request();
      open.opens = true;
      open.write = opcode_ == TransferOpcode::kWrite;
      open.key = operation_.region.key;
      open.address = operation_.target_address;
      open.length = length_;
      open.timeout_us = static_cast<uint64_t>(std::max<int64_t>(left.count(), 0));
      next.calls.push_back(std::move(open));
      const size_t calls = std::clamp<size_t>((length_ + kBytesPerCall - 1) / kBytesPerCall, 1, kCallsMax);
      while (next.calls.size() < calls) next.calls.push_back(Request());
    }
  }
  Do(std::move(next));
}

void Transfer::Refuse(Status why) {
  operation_.local_use.Release();
  auto done = std::move(operation_.done);
  done(std::unexpected(std::move(why)));
}

void Transfer::Stop(Status why) {
  Next next;
  {
    std::lock_guard lock(mutex_);
    if (link_ == nullptr) {
      if (!error_) error_ = std::move(why);  // Start is about to see it
      return;
    }
    Fail(std::move(why), next);
  }
  Do(std::move(next));
}

// --- answers ---

void Transfer::Answered(Result<std::string> body, bool closing) {
  Next next;
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    if (closing) {
      owner_over_ = true;
    } else if (!body) {
      const Status& why = body.error();
      // Nobody is there to be told of the end, unless it was this call that took too long.
      const bool late = deadline_.Passed();
      owner_over_ |= why.code() == ErrorCode::SHUTTING_DOWN || why.code() == ErrorCode::ILLEGAL_CLIENT ||
                     why.code() == ErrorCode::INVALID_VERSION || (why.code() == ErrorCode::RPC_FAIL && !late);
      if (why.code() == ErrorCode::RPC_FAIL && late) {
        Fail(Status(ErrorCode::TRANSFER_TIMEOUT, fmt::format("the deadline passed after {} of {} B", moved_, length_)),
             next);
      } else {
        const bool closed = why.code() == ErrorCode::SHUTTING_DOWN;  // the peer, or the connection
        Fail(closed ? Status(ErrorCode::TRANSFER_FAIL, why.message()) : why, next);
      }
    } else if (const auto reply = rpc::Decode<LeaseReply>(*body)) {
      TakeAnswer(*reply, next);
    } else {
      Fail(reply.error(), next);
    }
    if (error_) CloseOrEnd(next);
  }
  Do(std::move(next));
}

void Transfer::TakeAnswer(const LeaseReply& reply, Next& next) {
  switch (static_cast<LeaseAnswer>(reply.answer)) {
    case LeaseAnswer::kPiece:
      // After an error the owner hears that no piece is in use.
      if (!error_) TakePiece(reply, next);
      return;
    case LeaseAnswer::kWait:
      return;
    case LeaseAnswer::kEnded:
      owner_over_ = true;
      if (reply.code != 0) {
        auto code = static_cast<ErrorCode>(reply.code);
        // Of its own: nobody here has asked for that.
        if (code == ErrorCode::TRANSFER_CANCELED || code == ErrorCode::SHUTTING_DOWN) code = ErrorCode::TRANSFER_FAIL;
        return Fail(Status(code, reply.message), next);
      }
      if (error_) return;
      if (moved_ != length_) {
        return Fail(Status(ErrorCode::TRANSFER_FAIL, fmt::format("it ended after {} of {} B", moved_, length_)), next);
      }
      return End({}, next);
  }
  Fail(Status(ErrorCode::TRANSFER_FAIL, fmt::format("answer {} is unknown", reply.answer)), next);
}

void Transfer::TakePiece(const LeaseReply& reply, Next& next) {
  const bool fits = reply.length > 0 && reply.offset <= length_ && reply.length <= length_ - reply.offset &&
                    reply.length <= length_ - promised_;
  SegmentRegion slot{.address = reply.rkeys.empty() ? reply.address : reply.region_address,
                     .length = reply.rkeys.empty() ? reply.length : reply.region_length,
                     .location = "cpu",
                     .key = reply.key,
                     .mr_piece_bytes = reply.mr_piece_bytes,
                     .rkeys = reply.rkeys};
  if (!fits || !slot.Covers(reply.address, reply.length)) {
    return Fail(
        Status(ErrorCode::TRANSFER_FAIL, fmt::format("it lends [{:#x}, +{}) for bytes [{}, +{}) of {}", reply.address,
                                                     reply.length, reply.offset, reply.length, length_)),
        next);
  }
  TransferOperation part;
  part.opcode = opcode_;
  part.local = SubRange(operation_.local, reply.offset, reply.length);
  if (operation_.local_use) part.local_use = operation_.local_use.Again();
  part.target = target_;
  part.region = std::move(slot);
  part.target_address = reply.address;
  part.tag = wire_tag_;
  part.deadline = deadline_;
  part.done = [self = shared_from_this(), piece = reply.piece, bytes = reply.length](Result<void> result) {
    self->Moved(piece, bytes, std::move(result));
  };
  if (!wire_.Reaches(part.local, *target_, part.region)) {
    return Fail(Status(ErrorCode::NOT_SUPPORTED_TRANSPORT,
                       fmt::format("{} does not reach the slot that it lends", wire_.name())),
                next);
  }
  promised_ += reply.length;
  ++on_wire_;
  next.pieces.push_back(std::move(part));
}

void Transfer::Moved(uint64_t piece, size_t bytes, Result<void> result) {
  Next next;
  {
    std::lock_guard lock(mutex_);
    --on_wire_;
    if (result) {
      moved_ += bytes;
    } else {
      unsure_ = true;
      Fail(result.error(), next);
    }
    if (!error_) {
      LeaseRequest request = Request();
      request.returned = {piece};
      next.calls.push_back(std::move(request));
      if (opcode_ == TransferOpcode::kRead && moved_ == length_) End({}, next);
    } else {
      CloseOrEnd(next);
    }
  }
  Do(std::move(next));
}

// --- ends ---

void Transfer::Fail(Status why, Next& next) {
  if (ended_ || error_) return;
  error_ = std::move(why);
  next.cancel = on_wire_ > 0;
  CloseOrEnd(next);
}

void Transfer::CloseOrEnd(Next& next) {
  if (ended_ || on_wire_ > 0 || !next.pieces.empty()) return;
  if (owner_over_) return End(std::unexpected(InWords(*error_)), next);
  if (std::exchange(closing_, true)) return;
  LeaseRequest request = Request();
  request.closes = true;
  request.unsure = unsure_ && opcode_ == TransferOpcode::kWrite;
  next.calls.push_back(std::move(request));
}

void Transfer::End(Result<void> result, Next& next) {
  ended_ = true;
  next.end = std::move(result);
}

Status Transfer::InWords(const Status& why) const {
  ErrorCode code = why.code();
  switch (code) {
    case ErrorCode::ILLEGAL_CLIENT:
      code = ErrorCode::STALE_SEGMENT;
      break;
    case ErrorCode::RPC_FAIL:
    case ErrorCode::INVALID_VERSION:
    case ErrorCode::INVALID_PARAMS:
      code = ErrorCode::TRANSFER_FAIL;
      break;
    default:
      break;
  }
  return Status(
      code,
      fmt::format("{} of {} B of staged memory of '{}': {}", opcode_ == TransferOpcode::kWrite ? "write" : "read",
                  length_, target_->name, why.message()),
      why.vendor_code());
}

void Transfer::Do(Next next) {
  if (next.cancel) wire_.Cancel(wire_tag_);
  if (!next.pieces.empty()) wire_.Submit(std::move(next.pieces), Caller::kGoesOn);
  for (LeaseRequest& request : next.calls) Call(std::move(request));
  if (!next.end) return;
  const auto self = shared_from_this();  // the queue's may be the last
  operation_.local_use.Release();
  auto done = std::move(operation_.done);
  done(std::move(*next.end));
  queue_->Left(self);
}

void Transfer::Call(LeaseRequest request) {
  const bool closing = request.closes;
  const Deadline deadline = closing ? Deadline::After(kCloseGrace) : deadline_;
  link_->CallAsync(
      protocol::kLease, rpc::Encode(request), {}, deadline,
      [self = shared_from_this(), closing](Result<std::string> body) { self->Answered(std::move(body), closing); });
}

}  // namespace mooncake::staged
