// Requests out, replies in: the bytes of a lane. System calls are made without the lock.
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/check.h"
#include "transfer_engine/transport/tcp/careful_copy.h"
#include "transfer_engine/transport/tcp/page_pipe.h"
#include "transfer_engine/transport/tcp/tcp_peer.h"

namespace mooncake::tcp {
namespace {

constexpr size_t kBatchChunks = Parcel::kPieces / 2;  // requests per system call
constexpr size_t kBatchBytes = 1 << 20;               // about: no more chunks are added beyond
constexpr size_t kReceivePerTurn = 1u << 20;          // before other connections of the loop have their turn
constexpr size_t kSendPerTurn = 1u << 20;
constexpr size_t kDiscardBytes = 64 << 10;

// Where payload goes that nobody wants any more.
std::byte* Discarded() {
  static thread_local std::array<std::byte, kDiscardBytes> bytes;
  return bytes.data();
}

struct Outcome {
  ssize_t bytes;
  int error;  // errno, if bytes < 0
};

}  // namespace

// What one system call sends. Holds the operations, as their chunks may be answered or abandoned meanwhile.
struct Peer::Batch {
  struct Part {
    PendingPtr operation;  // of writes: its memory is being read
    size_t bytes = 0;
  };
  std::array<Part, kBatchChunks> parts;
  std::array<Request, kBatchChunks> headers;
  size_t count = 0;
  Parcel parcel;
};

void Peer::Lane::OnEvents(uint32_t events) {
  if (const auto alive = peer.lock()) alive->OnLaneEvents(*this, events);
}

void Peer::OnLaneEvents(Lane& lane, uint32_t events) {
  Turn turn(*this);
  switch (lane.state) {
    case State::kConnecting:
      return SayHello(turn, lane);
    case State::kHello:
      return HearAnswer(turn, lane);
    case State::kReady:
      break;
    default:
      return;
  }
  if ((events & ~EPOLLOUT) != 0) Receive(turn, lane);
  if (lane.Up() && (events & EPOLLOUT) != 0 && !lane.sending) Send(turn, lane, kSendPerTurn);
}

// Takes back chunks that nobody wants and of which no byte has been sent. Not while a system call sends.
void Peer::Prune(Lane& lane) {
  for (size_t i = lane.UnsentIndex(); i < lane.flight.size();) {
    const Chunk& chunk = lane.flight[i];
    const bool begun = chunk.header.id == lane.sent_id && lane.sent_bytes > 0;
    if (chunk.operation != nullptr || chunk.IsReturn() || (begun && !chunk.IsWrite())) {
      ++i;
    } else if (begun) {
      // Its payload cannot be completed without touching memory that has to be let go of.
      return Fail(lane, Status(ErrorCode::TRANSFER_CANCELED, "a write was given up in its middle"), true);
    } else {
      lane.flight_bytes -= chunk.Bytes();
      if (chunk.IsWrite()) DropStray(lane);
      lane.flight.erase(lane.flight.begin() + static_cast<ptrdiff_t>(i));
      for (size_t later = i; later < lane.flight.size(); ++later) --lane.flight[later].header.id;
      --lane.next_id;
    }
  }
}

bool Peer::Lends(const Chunk& chunk) const {
  return chunk.IsWrite() && IsLent(chunk.header, environment_->options.lend_bytes);
}

// As much as can be copied, or a payload to be lent.
void Peer::Gather(Lane& lane, Batch& batch) {
  size_t skip = lane.sent_bytes;
  for (size_t i = lane.UnsentIndex(); i < lane.flight.size() && !batch.parcel.more && !batch.parcel.lend;
       ++i, skip = 0) {
    if (batch.count == (lane.one_by_one ? 1 : kBatchChunks) || batch.parcel.bytes >= kBatchBytes) break;
    const Chunk& chunk = lane.flight[i];
    Request& header = batch.headers[batch.count] = chunk.header;
    batch.parcel.Add(&header, sizeof(header), skip);
    const bool lends = Lends(chunk);
    batch.parcel.lend = lends && batch.parcel.count == 0;
    batch.parcel.more = lends && (!batch.parcel.lend || i + 1 < lane.flight.size());
    if (chunk.IsWrite() && (!lends || batch.parcel.lend)) {
      batch.parcel.Add(chunk.operation->memory + chunk.offset, chunk.header.length, skip);
      batch.parts[batch.count].operation = chunk.operation;
      ++chunk.operation->busy;
    }
    batch.parts[batch.count++].bytes = chunk.WireBytes();
  }
  lane.batch_end = lane.sent_id + batch.count;
}

void Peer::Account(Lane& lane, const Batch& batch, size_t sent) {
  sent += lane.sent_bytes;
  size_t done = 0;
  while (done < batch.count && sent >= batch.parts[done].bytes) sent -= batch.parts[done++].bytes;
  lane.sent_id += done;
  lane.sent_bytes = sent;
  const uint64_t first = lane.flight.empty() ? lane.next_id : lane.flight.front().header.id;
  if (first > lane.sent_id) {
    lane.sent_id = first;
    lane.sent_bytes = 0;
    Fail(lane, Status(ErrorCode::TRANSFER_FAIL, "the target answered a request before it had it"));
  }
}

// Memory of a write is not there, which is the fault of none of its neighbours.
void Peer::EndUnreadable(Turn& turn, Lane& lane, const Batch& batch) {
  if (batch.count > 1) {
    lane.one_by_one = true;
    return;
  }
  const PendingPtr& operation = batch.parts[0].operation;
  if (operation == nullptr) return Fail(lane, Status(ErrorCode::INTERNAL_ERROR, "send: a record cannot be read"));
  End(turn, operation,
      Error(ErrorCode::INVALID_PARAMS, "{}: local memory at {} cannot be read", Name(),
            static_cast<const void*>(operation->memory)));
}

void Peer::EndUnwritable(Turn& turn, const PendingPtr& operation) {
  End(turn, operation,
      Error(ErrorCode::INVALID_PARAMS, "{}: local memory at {} cannot be written", Name(),
            static_cast<const void*>(operation->memory)));
}

// Sends until nothing is left, the socket takes no more, or `limit` bytes are out; the loop goes on from there.
void Peer::Send(Turn& turn, Lane& lane, size_t limit) {
  MC_CHECK(!lane.sending, "lane {} has two senders", lane.slot);
  lane.sending = true;
  size_t total = 0;
  for (;;) {
    Prune(lane);
    if (lane.failure) break;
    if (!lane.HasUnsent()) {
      WantWritable(lane, false);
      break;
    }
    if (total >= limit) {
      WantWritable(lane, true);
      break;
    }
    Batch batch;
    Gather(lane, batch);
    const Outcome outcome = turn.Unlocked([&, fd = lane.socket.fd()]() -> Outcome {
      const ssize_t sent = SendParcel(fd, batch.parcel, environment_->metrics.bytes_lent);
      return {sent, sent < 0 ? errno : 0};
    });
    for (size_t i = 0; i < batch.count; ++i) {
      const PendingPtr& operation = batch.parts[i].operation;
      if (operation == nullptr) continue;
      if (--operation->busy == 0 && operation->result) LetGo(turn, operation);
      if (operation->result && batch.parcel.lend) {
        Fail(lane, Status(ErrorCode::TRANSFER_CANCELED, "a write was given up while it was sent"), true);
      }
    }
    Account(lane, batch, outcome.bytes > 0 ? static_cast<size_t>(outcome.bytes) : 0);
    if (outcome.bytes > 0) lane.one_by_one = false;
    if (outcome.error == EFAULT) {
      EndUnreadable(turn, lane, batch);
      if (lane.failure) break;
      continue;
    }
    if (outcome.error != 0 && outcome.error != EAGAIN && outcome.error != EINTR) {
      Fail(lane, Status(ErrorCode::TRANSFER_FAIL, fmt::format("send: {}", std::strerror(outcome.error))));
    }
    if (lane.failure) break;
    total += static_cast<size_t>(std::max<ssize_t>(outcome.bytes, 0));
    if (outcome.bytes < static_cast<ssize_t>(batch.parcel.bytes)) {
      Prune(lane);
      if (!lane.failure) WantWritable(lane, true);
      break;
    }
  }
  lane.sending = false;
  TakeDownIfFailed(turn, lane);
  Resume(turn);
}

void Peer::WantWritable(Lane& lane, bool wanted) {
  if (lane.wants_writable == wanted) return;
  lane.wants_writable = wanted;
  lane.loop->Change(lane.socket.fd(), lane.token, EPOLLIN | (wanted ? EPOLLOUT : 0u));
}

// Payload goes to where it belongs at once. Headers are read through a small buffer, together with whatever small
// payload follows; of a large payload that is known to come next nothing passes through it.
void Peer::Receive(Turn& turn, Lane& lane) {
  lane.receiving = true;
  for (size_t total = 0; total < kReceivePerTurn && !lane.failure;) {
    std::array<iovec, 2> pieces;
    size_t count = 0;
    size_t body = 0;
    PendingPtr operation;
    if (lane.body_left > 0) {
      const Chunk& front = lane.flight.front();
      body = lane.body_left;
      operation = front.operation;
      if (operation != nullptr) {
        ++operation->busy;
        pieces[count++] = {operation->memory + front.offset + (front.header.length - body), body};
      } else {
        body = std::min(body, kDiscardBytes);
        pieces[count++] = {Discarded(), body};
      }
    }
    size_t room = 0;
    if (body == lane.body_left) {
      const size_t next = body > 0 ? 1 : 0;
      room = lane.input.size() - lane.input_bytes;
      if (lane.flight.size() > next && lane.flight[next].IsRead() &&
          lane.flight[next].header.length >= lane.input.size()) {
        room = sizeof(Reply) - lane.input_bytes;
      }
      pieces[count++] = {lane.input.data() + lane.input_bytes, room};
    }
    const Outcome outcome = turn.Unlocked([&, fd = lane.socket.fd()]() -> Outcome {
      msghdr message{};
      message.msg_iov = pieces.data();
      message.msg_iovlen = count;
      const ssize_t received = recvmsg(fd, &message, MSG_DONTWAIT);
      return {received, received < 0 ? errno : 0};
    });
    if (operation != nullptr && --operation->busy == 0 && operation->result) LetGo(turn, operation);
    if (outcome.error == EAGAIN || outcome.error == EINTR) break;
    if (outcome.error == EFAULT && operation != nullptr) {
      EndUnwritable(turn, operation);
      continue;  // what comes for it is thrown away
    }
    if (outcome.bytes <= 0) {
      Fail(lane, Status(ErrorCode::TRANSFER_FAIL, outcome.bytes == 0
                                                      ? "closed by the target"
                                                      : fmt::format("receive: {}", std::strerror(outcome.error))));
      break;
    }
    const auto received = static_cast<size_t>(outcome.bytes);
    total += received;
    const size_t of_body = std::min(received, body);
    lane.body_left -= of_body;
    lane.input_bytes += received - of_body;
    if (of_body > 0 && lane.body_left == 0) ReadArrived(turn, lane);
    Parse(turn, lane);
    if (received < body + room) break;
  }
  if (!lane.failure) lane.socket.WaitFor(lane.body_left);
  lane.receiving = false;
  if (lane.failure) {
    TakeDownIfFailed(turn, lane);
    return Resume(turn);
  }
  Assign(turn);
  Kick(turn, &lane, sizeof(Request) * kBatchChunks);
}

Peer::Chunk Peer::PopFront(Lane& lane) {
  Chunk chunk = std::move(lane.flight.front());
  lane.flight.pop_front();
  lane.flight_bytes -= chunk.Bytes();
  if (chunk.operation == nullptr && chunk.IsWrite()) DropStray(lane);
  TcpMetrics& metrics = environment_->metrics;
  if (!chunk.IsReturn()) (chunk.IsRead() ? metrics.bytes_received : metrics.bytes_sent).Add(chunk.header.length);
  return chunk;
}

// What was lent is good when the target has heard that it is here: till then it holds the memory.
void Peer::ReadArrived(Turn& turn, Lane& lane) {
  Chunk chunk = PopFront(lane);
  if (!chunk.lent) {
    if (chunk.operation != nullptr) Complete(turn, chunk.operation);
    return;
  }
  chunk.header.operation = Operation::kReturn;
  chunk.header.id = lane.next_id++;
  lane.flight.push_back(std::move(chunk));
}

void Peer::Parse(Turn& turn, Lane& lane) {
  size_t at = 0;
  while (!lane.failure && lane.body_left == 0 && lane.input_bytes - at >= sizeof(Reply)) {
    Reply reply;
    std::memcpy(&reply, lane.input.data() + at, sizeof(reply));
    at += sizeof(reply);
    if (!TakeReply(turn, lane, reply) || lane.body_left == 0) continue;
    // The little that came along with the header.
    const size_t here = std::min<size_t>(lane.input_bytes - at, lane.body_left);
    const PendingPtr operation = lane.flight.front().operation;
    if (operation != nullptr && here > 0 &&
        !CarefulCopy(operation->memory + lane.flight.front().offset, lane.input.data() + at, here)) {
      EndUnwritable(turn, operation);
    }
    at += here;
    lane.body_left -= here;
    if (lane.body_left > 0) break;
    ReadArrived(turn, lane);
  }
  lane.input_bytes -= at;
  std::memmove(lane.input.data(), lane.input.data() + at, lane.input_bytes);
}

// True when a payload follows it: body_left then says how much. Everything a target says is checked.
bool Peer::TakeReply(Turn& turn, Lane& lane, const Reply& reply) {
  const bool known = !lane.flight.empty() && reply.magic == kReplyMagic && reply.id == lane.flight.front().header.id &&
                     (reply.id < lane.sent_id || (lane.sending && reply.id < lane.batch_end));
  const bool ok = reply.status == ToInt(ErrorCode::OK);
  const uint64_t expected = known && ok && lane.flight.front().IsRead() ? lane.flight.front().header.length : 0;
  if (!known || reply.length != expected) {
    Fail(lane, Status(ErrorCode::TRANSFER_FAIL, "the target sent what is no reply to what it was asked"));
    return false;
  }
  if (expected > 0) {
    lane.flight.front().lent = reply.lent != 0;
    lane.body_left = expected;
    return true;
  }
  if (ok) {
    const Chunk chunk = PopFront(lane);
    if (chunk.operation != nullptr) Complete(turn, chunk.operation);
    return false;
  }
  const Chunk chunk = std::move(lane.flight.front());
  lane.flight_bytes -= chunk.Bytes();
  lane.flight.pop_front();
  if (chunk.operation == nullptr && chunk.IsWrite()) DropStray(lane);
  if (chunk.operation == nullptr) return false;
  const auto code = static_cast<ErrorCode>(reply.status);
  const bool told = code == ErrorCode::ADDRESS_NOT_REGISTERED || code == ErrorCode::STALE_SEGMENT;
  End(turn, chunk.operation,
      Error(told ? code : ErrorCode::TRANSFER_FAIL, "{}: {} of [{:#x}, +{}) refused: {}", Name(),
            chunk.IsWrite() ? "write" : "read", chunk.header.address, chunk.header.length, ErrorCodeName(code)));
  return false;
}

}  // namespace mooncake::tcp
