// Requests in, replies out.
#include "transfer_engine/transport/tcp/tcp_session.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/check.h"
#include "transfer_engine/transport/tcp/careful_copy.h"
#include "transfer_engine/transport/tcp/page_pipe.h"

namespace mooncake::tcp {
namespace {

constexpr size_t kMaxAnswers = 256;  // waiting; a session at the limit reads no more
constexpr size_t kStagedReplies = Parcel::kPieces / 2;
constexpr size_t kStagedBytes = 1 << 20;    // about: no more replies are added beyond
constexpr size_t kBytesPerTurn = 1u << 20;  // before other connections of the loop have theirs
constexpr size_t kDiscardBytes = 64 << 10;
// How soon a use that is no longer wanted ends although the peer has stopped.
constexpr Duration kUseCheckInterval = std::chrono::milliseconds(20);

std::byte* Discarded() {
  static thread_local std::array<std::byte, kDiscardBytes> bytes;
  return bytes.data();
}

}  // namespace

Session::~Session() {
  MC_CHECK(state_ == State::kClosed || !socket_, "a session dies open");
}

void Session::Open() {
  Prepare(socket_, host_.options);
  auto token = loop_->Watch(socket_.fd(), EPOLLIN, shared_from_this());
  if (!token) {
    state_ = State::kClosed;
    socket_.Close();
    host_.OnClosed(*this);
    return;
  }
  token_ = *token;
  interest_ = EPOLLIN;
  hello_timer_ =
      loop_->RunAt(std::chrono::steady_clock::now() + host_.options.handshake_timeout, [weak = weak_from_this()] {
        if (const auto self = weak.lock(); self != nullptr && self->state_ == State::kHello) {
          self->host_.metrics.rejected.Add();
          self->Close();
        }
      });
}

void Session::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  const auto self = shared_from_this();  // the loop's may be the last
  loop_->CancelTimer(hello_timer_);
  loop_->Forget(socket_.fd(), token_);
  socket_.Abort();
  write_use_.Release();
  outgoing_.clear();
  loans_.clear();
  answers_.clear();
  host_.OnClosed(*this);
}

void Session::OnEvents(uint32_t events) {
  const auto self = shared_from_this();
  if ((events & EPOLLOUT) != 0 && state_ == State::kServing) {
    blocked_ = false;
    Send();
  }
  if ((events & ~EPOLLOUT) != 0 && state_ == State::kHello) HearHello();
  if ((events & ~EPOLLOUT) != 0 && state_ == State::kServing) Receive();
  if (state_ == State::kWaiting && (events & (EPOLLHUP | EPOLLERR)) != 0) Close();
  if (state_ != State::kServing) return;
  SetInterest();
  WatchUses();
}

void Session::HearHello() {
  const ssize_t got = recv(socket_.fd(), input_.data() + input_bytes_, sizeof(Hello) - input_bytes_, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return Close();
  input_bytes_ += static_cast<size_t>(got);
  // What is not our protocol is sent away with its first bytes.
  uint64_t magic = kHelloMagic;
  std::memcpy(&magic, input_.data(), std::min(input_bytes_, sizeof(magic)));
  if (magic != kHelloMagic) {
    host_.metrics.rejected.Add();
    return Close();
  }
  if (input_bytes_ < sizeof(Hello)) return;
  std::memcpy(&hello_, input_.data(), sizeof(hello_));
  input_bytes_ = 0;
  loop_->CancelTimer(hello_timer_);
  if (hello_.version != kVersion) return Answered(ErrorCode::INVALID_VERSION);
  if (hello_.target != host_.self) return Answered(ErrorCode::STALE_SEGMENT);
  state_ = State::kWaiting;
  interest_ = 0;
  loop_->Change(socket_.fd(), token_, 0);
  host_.OnHello(shared_from_this());
}

void Session::Admit() {
  if (state_ == State::kWaiting) Answered(ErrorCode::OK);
}

// Answers the hello. A new connection takes so little at once.
void Session::Answered(ErrorCode code) {
  const HelloAnswer answer{.code = ToInt(code), .target = host_.self};
  const bool sent = send(socket_.fd(), &answer, sizeof(answer), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(answer);
  if (code == ErrorCode::OK && sent) {
    state_ = State::kServing;
    return SetInterest();
  }
  if (code != ErrorCode::OK) {
    host_.metrics.rejected.Add();
    // The answer has to arrive: closing with linger 0 would throw it away.
    (void)shutdown(socket_.fd(), SHUT_WR);
    loop_->Forget(socket_.fd(), token_);
    socket_.Close();
    state_ = State::kClosed;
    return host_.OnClosed(*this);
  }
  Close();
}

void Session::Receive() {
  for (size_t total = 0; total < kBytesPerTurn && state_ == State::kServing;) {
    if (answers_.size() >= kMaxAnswers) return;
    if (write_use_ && !write_use_.wanted()) GiveUpWrite();
    std::array<iovec, 2> pieces;
    size_t count = 0;
    size_t body = write_left_;
    if (body > 0) {
      if (write_at_ == nullptr) body = std::min(body, kDiscardBytes);
      pieces[count++] = {write_at_ != nullptr ? write_at_ : Discarded(), body};
    }
    size_t room = 0;
    if (body == write_left_) {
      room = input_.size() - input_bytes_;
      // After a large write another one is likely: nothing of its payload is to pass through here.
      if (body >= input_.size()) room = sizeof(Request);
      pieces[count++] = {input_.data() + input_bytes_, room};
    }
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = count;
    const ssize_t got = recvmsg(socket_.fd(), &message, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (got < 0 && errno == EFAULT && write_at_ != nullptr) {
      GiveUpWrite();  // its region is registered, but not there; others of this peer go on
      continue;
    }
    if (got <= 0) return Close();
    const auto received = static_cast<size_t>(got);
    total += received;
    const size_t of_body = std::min(received, body);
    write_left_ -= of_body;
    if (write_at_ != nullptr) write_at_ += of_body;
    input_bytes_ += received - of_body;
    if (of_body > 0 && write_left_ == 0) EndWrite();
    Parse();
    if (state_ == State::kServing) Send();
    if (received < body + room) break;
  }
  if (state_ == State::kServing) socket_.WaitFor(write_left_);
}

void Session::Parse() {
  size_t at = 0;
  while (state_ == State::kServing && write_left_ == 0 && input_bytes_ - at >= sizeof(Request)) {
    Request request;
    std::memcpy(&request, input_.data() + at, sizeof(request));
    at += sizeof(request);
    TakeRequest(request);
    if (write_left_ > 0) TakePayloadFromInput(at);
  }
  if (state_ != State::kServing) return;
  input_bytes_ -= at;
  std::memmove(input_.data(), input_.data() + at, input_bytes_);
}

void Session::TakeRequest(const Request& request) {
  const bool known = request.operation == Operation::kRead || request.operation == Operation::kWrite ||
                     request.operation == Operation::kReturn;
  if (request.magic != kRequestMagic || !known || request.length > kMaxRequestBytes || loans_.size() > kMaxLent) {
    host_.metrics.rejected.Add();
    return Close();
  }
  if (request.operation == Operation::kWrite) return BeginWrite(request);
  if (request.operation == Operation::kReturn) return TakeReturn(request);
  answers_.push_back({.reply = {.id = request.id}, .read = request});
}

Result<RegionRegistry::Use> Session::Find(const Request& request) {
  uint64_t whole = 0;
  const bool wraps = request.before > request.address ||
                     __builtin_add_overflow(request.before, request.length, &whole) ||
                     __builtin_add_overflow(whole, request.after, &whole);
  Result<RegionRegistry::Use> use = wraps ? Error(ErrorCode::ADDRESS_NOT_REGISTERED, "a range that wraps around")
                                          : host_.regions.FindByKey(request.key, request.address - request.before,
                                                                    whole, request.operation == Operation::kWrite);
  if (use && use->region().IsNpu()) {
    use = Error(ErrorCode::NOT_SUPPORTED_TRANSPORT, "NPU memory at {:#x} cannot be reached over tcp", request.address);
  }
  if (!use) host_.metrics.refused.Add();
  return use;
}

void Session::BeginWrite(const Request& request) {
  write_reply_ = {.id = request.id};
  auto use = Find(request);
  if (use) {
    write_use_ = std::move(*use);
    write_at_ = reinterpret_cast<std::byte*>(request.address);
  } else {
    write_at_ = nullptr;
    write_reply_.status = ToInt(use.error().code());
  }
  write_left_ = request.length;
  if (write_left_ == 0) EndWrite();
}

void Session::TakePayloadFromInput(size_t& at) {
  const size_t here = std::min<size_t>(input_bytes_ - at, write_left_);
  if (here > 0 && write_at_ != nullptr) {
    if (CarefulCopy(write_at_, input_.data() + at, here)) {
      write_at_ += here;
    } else {
      GiveUpWrite();
    }
  }
  at += here;
  write_left_ -= here;
  if (here > 0 && write_left_ == 0) EndWrite();
}

// All bytes are in place.
void Session::EndWrite() {
  write_use_.Release();
  write_at_ = nullptr;
  answers_.push_back({.reply = write_reply_});
}

void Session::GiveUpWrite() {
  write_use_.Release();
  write_at_ = nullptr;
  write_reply_.status = ToInt(ErrorCode::ADDRESS_NOT_REGISTERED);
  host_.metrics.refused.Add();
}

void Session::Stage() {
  while (!answers_.empty() && outgoing_.size() < kStagedReplies && outgoing_bytes_ < kStagedBytes) {
    const Answer& answer = answers_.front();
    Outgoing& next = outgoing_.emplace_back(Outgoing{.reply = answer.reply});
    if (answer.read) {
      auto use = Find(*answer.read);
      if (use) {
        next.use = std::move(*use);
        next.data = reinterpret_cast<const std::byte*>(answer.read->address);
        next.address = answer.read->address;
        next.reply.length = answer.read->length;
        next.reply.lent = IsLent(*answer.read, host_.options.lend_bytes) ? 1 : 0;
      } else {
        next.reply.status = ToInt(use.error().code());
      }
    }
    outgoing_bytes_ += next.bytes();
    answers_.pop_front();
  }
}

// As much as can be copied, or a payload to be lent.
Parcel Session::Pack() const {
  Parcel parcel;
  size_t skip = sent_;
  for (const Outgoing& one : outgoing_) {
    parcel.Add(&one.reply, sizeof(Reply), skip);
    if (one.reply.length == 0) continue;
    if (one.lend()) {
      parcel.lend = parcel.count == 0;
      parcel.more = !parcel.lend || outgoing_.size() > 1;
      if (parcel.lend) parcel.Add(one.data, one.reply.length, skip);
      break;
    }
    parcel.Add(one.data, one.reply.length, skip);
  }
  return parcel;
}

void Session::Send() {
  for (size_t total = 0; !blocked_ && total < kBytesPerTurn;) {
    Stage();
    if (outgoing_.empty()) return;
    // A reply's beginning may be out already, so that it cannot be turned into a refusal.
    if (std::ranges::any_of(outgoing_, [](const Outgoing& one) { return one.use && !one.use.wanted(); })) {
      return Close();
    }
    Parcel parcel = Pack();
    const ssize_t sent = SendParcel(socket_.fd(), parcel, host_.metrics.bytes_lent);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN) return Close();
    blocked_ = sent < static_cast<ssize_t>(parcel.bytes);
    if (sent > 0) Sent(static_cast<size_t>(sent));
    total += parcel.bytes;
  }
}

void Session::Sent(size_t bytes) {
  sent_ += bytes;
  while (!outgoing_.empty() && sent_ >= outgoing_.front().bytes()) {
    Outgoing& out = outgoing_.front();
    sent_ -= out.bytes();
    outgoing_bytes_ -= out.bytes();
    if (out.lend()) loans_.push_back({out.address, out.reply.length, std::move(out.use)});
    outgoing_.pop_front();
  }
}

void Session::TakeReturn(const Request& request) {
  if (loans_.empty() || loans_.front().address != request.address || loans_.front().length != request.length) {
    host_.metrics.rejected.Add();
    return Close();
  }
  // The use has been held until now, so that what the initiator has taken out is what was asked for.
  loans_.pop_front();
  answers_.push_back({.reply = {.id = request.id}});
}

bool Session::HoldsUses() const {
  return write_use_ || !loans_.empty() ||
         std::ranges::any_of(outgoing_, [](const Outgoing& one) { return static_cast<bool>(one.use); });
}

// A stalled peer sends no event that could tell us.
void Session::WatchUses() {
  if (use_timer_ || !HoldsUses()) return;
  use_timer_ = true;
  loop_->RunAt(std::chrono::steady_clock::now() + kUseCheckInterval, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->use_timer_ = false;
      self->CheckUses();
    }
  });
}

void Session::CheckUses() {
  if (state_ != State::kServing) return;
  if (write_use_ && !write_use_.wanted()) GiveUpWrite();
  const bool unwanted =
      std::ranges::any_of(outgoing_, [](const Outgoing& one) { return one.use && !one.use.wanted(); }) ||
      std::ranges::any_of(loans_, [](const Loan& loan) { return !loan.use.wanted(); });
  if (unwanted) return Close();
  WatchUses();
}

void Session::SetInterest() {
  const bool full = answers_.size() >= kMaxAnswers;
  const bool more = !outgoing_.empty() || !answers_.empty();
  const uint32_t wanted = (full ? 0u : EPOLLIN) | (more ? EPOLLOUT : 0u);
  if (wanted == interest_) return;
  interest_ = wanted;
  loop_->Change(socket_.fd(), token_, wanted);
}

}  // namespace mooncake::tcp
