// Calls of one client: submission, answers, deadlines.
#include "rpc/client_core.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace mooncake::rpc::internal {
namespace {

// Larger bodies are worth a wake-up.
constexpr uint32_t kDirectBodyBytes = 4096;

// Rounded up: a peer must not give up before the caller does.
uint32_t BudgetMs(const Deadline& deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.Remaining()).count();
  return static_cast<uint32_t>(std::min<int64_t>(left, UINT32_MAX));
}

std::unexpected<Status> ShuttingDown(std::string_view peer) {
  return Error(ErrorCode::SHUTTING_DOWN, "the RPC client of {} is closed", peer);
}

}  // namespace

ClientCore::ClientCore(std::shared_ptr<IoThread> thread, ClientOptions options)
    : thread_(std::move(thread)),
      options_(std::move(options)),
      peer_name_(options_.peer.ToString()),
      timer_(thread_->context()),
      resolver_(thread_->context()),
      connect_timer_(thread_->context()) {}

// ---- any thread

void ClientCore::Submit(std::unique_ptr<PendingCall> call) {
  call->counted = !call->connect_only;
  if (call->counted) {
    call->over_limit = in_flight_.fetch_add(1, std::memory_order_relaxed) >= options_.max_in_flight;
  }
  bool wake = false;
  {
    std::lock_guard lock(submit_mutex_);
    call->id = next_id_++;
    // The answer itself wakes the I/O thread, and so does the timer if none comes.
    wake = !TrySendDirect(*call) && !std::exchange(drain_posted_, true);
    submitted_.push_back(std::move(call));
  }
  if (wake && !thread_->Post([self = shared_from_this()] { self->DrainSubmitted(); })) FailSubmitted();
}

FrameHeader ClientCore::HeaderOf(const PendingCall& call) const {
  return {.kind = FrameKind::kRequest, .method = call.method, .id = call.id, .budget_ms = BudgetMs(call.deadline)};
}

// Under submit_mutex_; the system call does not block. True when nobody needs to wake the I/O thread for this call.
bool ClientCore::TrySendDirect(PendingCall& call) {
  const bool alone = in_flight_.load(std::memory_order_relaxed) == 1 && submitted_.empty();
  if (direct_socket_ < 0 || !alone || closed_ || call.connect_only || call.over_limit) return false;
  if (call.body.size() > direct_limit_ || !call.arguments.payload.empty() || call.deadline.Passed()) return false;
  FrameHeader header = HeaderOf(call);
  header.body_bytes = static_cast<uint32_t>(call.body.size());
  iovec pieces[2] = {{&header, sizeof(header)}, {call.body.data(), call.body.size()}};
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = 2;
  const ssize_t sent = sendmsg(direct_socket_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent <= 0) return false;  // the I/O thread will meet the reason
  call.direct_connection = connection_;
  call.direct_bytes = static_cast<size_t>(sent);
  call.direct_header = header;
  call.sent = call.direct_bytes == sizeof(header) + call.body.size();
  if (!call.sent) direct_socket_ = -1;
  return call.sent && call.deadline.time() >= direct_until_;
}

void ClientCore::AllowDirect() {
  if (state_ != State::kReady || !channel_ || !channel_->idle()) return;
  std::lock_guard lock(submit_mutex_);
  if (!submitted_.empty()) return;
  direct_socket_ = channel_->descriptor();
  direct_limit_ = std::min({kDirectBodyBytes, options_.max_body_bytes, peer_hello_.max_body_bytes});
}

void ClientCore::FailSubmitted() {
  std::vector<std::unique_ptr<PendingCall>> calls;
  {
    std::lock_guard lock(submit_mutex_);
    calls.swap(submitted_);
    drain_posted_ = false;
  }
  for (auto& call : calls) Finish(std::move(call), ShuttingDown(peer_name_));
}

void ClientCore::Close() {
  {
    std::lock_guard lock(submit_mutex_);
    if (closed_) return;
    closed_ = true;
  }
  // When the pool has ended it has aborted this client already.
  (void)thread_->Post([self = shared_from_this()] { self->Abort(); });
}

Identity ClientCore::peer_identity() const {
  std::lock_guard lock(identity_mutex_);
  return peer_identity_;
}

// ---- I/O thread

void ClientCore::Abort() {
  const auto self = shared_from_this();
  if (aborted_) return;
  aborted_ = true;
  thread_->Unregister(this);
  timer_.cancel();
  last_error_ = ShuttingDown(peer_name_).error();
  if (channel_) {
    channel_->Close(last_error_);
  } else {
    ConnectFailed(last_error_);
  }
  DrainSubmitted();
}

void ClientCore::DrainSubmitted() {
  const auto self = shared_from_this();
  std::vector<std::unique_ptr<PendingCall>> calls;
  bool closed = false;
  {
    std::lock_guard lock(submit_mutex_);
    calls.swap(submitted_);
    drain_posted_ = false;
    direct_socket_ = -1;
    closed = closed_;
  }
  for (auto& call : calls) {
    if (closed || aborted_) {
      Finish(std::move(call), ShuttingDown(peer_name_));
    } else if (call->direct_bytes > 0) {
      AdmitDirect(std::move(call));
    } else {
      Admit(std::move(call));
    }
  }
  if (channel_) channel_->Flush();
  AllowDirect();
}

// Some or all of the call's frame has left already; nothing was queued on the connection then.
void ClientCore::AdmitDirect(std::unique_ptr<PendingCall> call) {
  if (state_ != State::kReady || call->direct_connection != connection_) {
    return Finish(std::move(call), std::unexpected(LostStatus(last_loss_)));
  }
  PendingCall& pending = *call;
  Register(std::move(call));
  if (pending.sent) return;
  OutFrame frame;
  frame.header = pending.direct_header;
  frame.body = std::move(pending.body);
  channel_->Send(std::move(frame), pending.direct_bytes);
}

void ClientCore::Register(std::unique_ptr<PendingCall> call) {
  const uint64_t id = call->id;
  deadlines_.Push({call->deadline.time(), id});
  calls_.emplace(id, std::move(call));
  deadlines_.CompactIfStale(calls_.size(), [this](uint64_t other) { return calls_.contains(other); });
  ArmTimer(deadlines_.top().time);
}

void ClientCore::Admit(std::unique_ptr<PendingCall> call) {
  if (call->over_limit) {
    return Finish(std::move(call), Error(ErrorCode::RPC_FAIL, "{} calls to {} are in flight, the limit",
                                         options_.max_in_flight, peer_name_));
  }
  if (call->deadline.Passed()) {
    const Status timeout = TimeoutStatus(*call, "before it was sent");
    return Finish(std::move(call), std::unexpected(timeout));
  }
  if (call->connect_only && state_ == State::kReady) return Finish(std::move(call), std::string());
  if (state_ == State::kIdle && !call->connect_only && SteadyClock::Instance().Now() < retry_at_) {
    return Finish(std::move(call), std::unexpected(last_error_));
  }
  PendingCall& pending = *call;
  Register(std::move(call));
  if (state_ == State::kReady) return SendCall(pending);
  waiting_.push_back(pending.id);
  if (state_ == State::kIdle) StartConnect();
}

void ClientCore::SendCall(PendingCall& call) {
  const uint64_t payload_bytes = TotalBytes(call.arguments.payload);
  const uint64_t body_limit = std::min(options_.max_body_bytes, peer_hello_.max_body_bytes);
  const uint64_t payload_limit = std::min(options_.max_payload_bytes, peer_hello_.max_payload_bytes);
  if (call.body.size() > body_limit || payload_bytes > payload_limit) {
    return FinishById(
        call.id,
        Error(ErrorCode::INVALID_PARAMS, "call {} to {} carries {} + {} bytes, body and payload are limited to {} + {}",
              call.method, peer_name_, call.body.size(), payload_bytes, body_limit, payload_limit));
  }
  OutFrame frame;
  frame.header = HeaderOf(call);
  frame.body = std::move(call.body);
  frame.payload = std::move(call.arguments.payload);
  channel_->Send(std::move(frame));
}

void ClientCore::OnSent(const FrameHeader& header) {
  const auto call = calls_.find(header.id);
  if (header.kind != FrameKind::kRequest || call == calls_.end()) return;
  call->second->sent = true;
  if (!call->second->outcome) return;
  Result<std::string> outcome = std::move(*call->second->outcome);
  FinishById(header.id, std::move(outcome));
}

void ClientCore::OnFrame(const FrameHeader& header, std::string body) {
  const auto self = shared_from_this();
  if (state_ != State::kReady) return OnHandshakeFrame(header, body);
  if (header.kind != FrameKind::kResponse) return ProtocolError("a frame that is no response");
  OnResponse(header, std::move(body));
}

void ClientCore::OnResponse(const FrameHeader& header, std::string body) {
  auto found = calls_.find(header.id);
  if (found == calls_.end()) {  // a call its own thread sent, not looked at yet
    DrainSubmitted();
    found = calls_.find(header.id);
  }
  if (found == calls_.end()) {  // the answer to a call that timed out
    if (header.payload_bytes > 0) channel_->DiscardPayload();
    return;
  }
  PendingCall& call = *found->second;
  if (call.outcome || call.connect_only) return ProtocolError("a second answer to one call");
  if (header.code != 0) {
    if (header.payload_bytes > 0) channel_->DiscardPayload();
    return Answer(header.id,
                  std::unexpected(Status(static_cast<ErrorCode>(header.code), std::move(body), header.vendor_code)));
  }
  if (header.payload_bytes == 0) return Answer(header.id, std::move(body));
  ReceiveResponse(header, std::move(body), call);
}

void ClientCore::ReceiveResponse(const FrameHeader& header, std::string body, PendingCall& call) {
  Result<std::vector<MutableSpan>> spans =
      call.arguments.sink
          ? call.arguments.sink(body, header.payload_bytes)
          : Error(ErrorCode::RPC_FAIL, "call {} to {} was answered with {} bytes of payload, none expected",
                  call.method, peer_name_, header.payload_bytes);
  if (spans && TotalBytes(*spans) != header.payload_bytes) {
    spans = Error(ErrorCode::RPC_FAIL, "call {} to {} was answered with {} bytes of payload, the sink gave room for {}",
                  call.method, peer_name_, header.payload_bytes, TotalBytes(*spans));
  }
  if (!spans) {
    channel_->DiscardPayload();
    return Answer(header.id, std::unexpected(spans.error()));
  }
  receiving_ = header.id;
  // The channel is owned by this object and drops the function when it closes.
  channel_->ReceivePayload(std::move(*spans), [this, id = header.id, answer = std::move(body)]() mutable {
    receiving_ = 0;
    Answer(id, std::move(answer));
  });
}

// The call's answer is complete; it is over once its request has left too.
void ClientCore::Answer(uint64_t id, Result<std::string> outcome) {
  const auto call = calls_.find(id);
  MC_CHECK(call != calls_.end(), "answered call {} is not pending", id);
  if (call->second->sent) return FinishById(id, std::move(outcome));
  call->second->outcome = std::move(outcome);
}

void ClientCore::FinishById(uint64_t id, Result<std::string> outcome) {
  auto node = calls_.extract(id);
  if (calls_.empty()) deadlines_.Clear();
  Finish(std::move(node.mapped()), std::move(outcome));
}

void ClientCore::Finish(std::unique_ptr<PendingCall> call, Result<std::string> outcome) {
  if (call->counted) in_flight_.fetch_sub(1, std::memory_order_relaxed);
  RpcClient::Completion completion = std::move(call->completion);
  call.reset();
  completion(std::move(outcome));
}

void ClientCore::ProtocolError(std::string_view what) {
  channel_->Close(Status(ErrorCode::RPC_FAIL, fmt::format("the peer sent {}", what)));
}

void ClientCore::OnClosing() {
  std::lock_guard lock(submit_mutex_);
  direct_socket_ = -1;
}

Status ClientCore::LostStatus(const Status& reason) const {
  if (aborted_) return reason;
  return Status(ErrorCode::RPC_FAIL, fmt::format("connection to {} lost: {}", peer_name_, reason.message()),
                reason.vendor_code());
}

void ClientCore::OnClosed(const Status& reason, FrameChannel::CloseCause) {
  const auto self = shared_from_this();
  const auto channel = std::move(channel_);
  channel_.reset();
  receiving_ = 0;
  connected_.store(false, std::memory_order_release);
  if (state_ != State::kReady) return ConnectFailed(reason);
  state_ = State::kIdle;
  CallMap calls = std::move(calls_);
  calls_.clear();
  deadlines_.Clear();
  last_loss_ = reason;
  const Status lost = LostStatus(reason);
  for (auto& [id, call] : calls) {
    Result<std::string> outcome = call->outcome ? std::move(*call->outcome) : std::unexpected(lost);
    Finish(std::move(call), std::move(outcome));
  }
  // Calls that their own threads sent on the connection that has just gone: nobody else comes for them.
  DrainSubmitted();
}

// ---- deadlines

void ClientCore::ArmTimer(TimePoint time) {
  if (armed_ && *armed_ <= time) return;
  armed_ = time;
  {
    std::lock_guard lock(submit_mutex_);
    direct_until_ = time;
  }
  timer_.expires_at(time);
  timer_.async_wait([self = shared_from_this(), time](const asio::error_code& error) {
    if (error || self->armed_ != time) return;
    self->armed_.reset();
    self->OnTimer();
  });
}

void ClientCore::OnTimer() {
  if (aborted_) return;
  {
    std::lock_guard lock(submit_mutex_);
    direct_until_ = TimePoint::max();  // until the timer is armed again every call wakes the I/O thread
  }
  DrainSubmitted();
  const TimePoint now = SteadyClock::Instance().Now();
  while (!deadlines_.empty() && deadlines_.top().time <= now) {
    const uint64_t id = deadlines_.top().id;
    deadlines_.Pop();
    const auto call = calls_.find(id);
    if (call != calls_.end()) Expire(id, *call->second);
  }
  if (!deadlines_.empty()) ArmTimer(deadlines_.top().time);
}

void ClientCore::Expire(uint64_t id, PendingCall& call) {
  if (state_ != State::kReady) {
    return FinishById(id, std::unexpected(TimeoutStatus(call, "while connecting")));
  }
  std::string_view moving;
  if (receiving_ == id) {
    moving = "while its response payload was arriving";
  } else if (!call.sent) {
    if (channel_->Cancel(id) == FrameChannel::CancelResult::kRemoved) {
      return FinishById(id, std::unexpected(TimeoutStatus(call, "before it was sent")));
    }
    moving = "while its request was being sent";
  } else {
    return FinishById(id, std::unexpected(TimeoutStatus(call, "waiting for the response")));
  }
  // Only the end of the connection stops bytes that are under way from or to the caller's memory.
  const Status timeout = TimeoutStatus(call, moving);
  if (!call.outcome) call.outcome = std::unexpected(timeout);
  channel_->Close(Status(ErrorCode::RPC_FAIL, fmt::format("closed because of a {}", timeout.message())));
}

Status ClientCore::TimeoutStatus(const PendingCall& call, std::string_view stage) const {
  const auto elapsed =
      std::chrono::duration_cast<std::chrono::milliseconds>(SteadyClock::Instance().Now() - call.started).count();
  const std::string what = call.connect_only ? "connect" : fmt::format("call {}", call.method);
  return Status(ErrorCode::RPC_FAIL,
                fmt::format("timeout of {} to {} {}, after {} ms", what, peer_name_, stage, elapsed));
}

}  // namespace mooncake::rpc::internal
