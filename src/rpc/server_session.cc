// The server's end of one connection.
#include "rpc/server_session.h"

#include <algorithm>

#include "common/check.h"
#include "common/log.h"

namespace mooncake::rpc::internal {
namespace {

std::string AddressOf(const asio::ip::tcp::socket& socket) {
  asio::error_code gone;
  const auto endpoint = socket.remote_endpoint(gone);
  if (gone) return "unknown";
  return Endpoint{endpoint.address().to_string(), endpoint.port()}.ToString();
}

}  // namespace

ServerSession::ServerSession(std::shared_ptr<ServerCore> core, std::shared_ptr<IoThread> thread, SessionId id,
                             asio::ip::tcp::socket socket)
    : core_(std::move(core)),
      thread_(std::move(thread)),
      id_(id),
      peer_address_(AddressOf(socket)),
      channel_(std::make_shared<FrameChannel>(std::move(socket), *this)),
      timer_(thread_->context()) {}

void ServerSession::Start() {
  if (state_ == State::kClosed) return;
  if (!thread_->Register(shared_from_this())) return Abort();
  ArmTimer(core_->options().handshake_timeout);
  channel_->Start();
}

void ServerSession::Abort() {
  const auto self = shared_from_this();
  channel_->Close(Status(ErrorCode::SHUTTING_DOWN, "the server is stopping"));
}

// ---- frames

void ServerSession::OnFrame(const FrameHeader& header, std::string body) {
  const auto self = shared_from_this();
  if (state_ == State::kHandshake) return OnHello(header, body);
  if (state_ == State::kOpen && header.kind == FrameKind::kRequest) return Dispatch(header, std::move(body));
  channel_->Close(Status(ErrorCode::RPC_FAIL, "unexpected frame"), FrameChannel::CloseCause::kBadFrame);
}

void ServerSession::OnHello(const FrameHeader& header, const std::string& body) {
  Result<HelloMessage> hello = header.kind == FrameKind::kHello
                                   ? Decode<HelloMessage>(body)
                                   : Error(ErrorCode::RPC_FAIL, "the first frame is no hello");
  if (!hello) return channel_->Close(hello.error(), FrameChannel::CloseCause::kBadFrame);
  const ServerOptions& options = core_->options();
  const Result<void> versions = CheckVersions(options.self, IdentityOf(*hello));
  if (!versions) {
    core_->counters().version.fetch_add(1, std::memory_order_relaxed);
    log::Warn("refused {}: {}", peer_address_, versions.error().message());
    return Refuse(versions.error());
  }
  state_ = State::kOpen;
  handshaken_ = true;
  peer_hello_ = std::move(*hello);
  peer_ = IdentityOf(peer_hello_);
  channel_->SetLimits({options.max_body_bytes, options.max_payload_bytes});
  ArmTimer(options.stall_timeout);
  OutFrame welcome;
  welcome.header.kind = FrameKind::kWelcome;
  welcome.body = Encode(MakeHello(options.self, options.max_body_bytes, options.max_payload_bytes));
  channel_->Send(std::move(welcome));
}

void ServerSession::Refuse(const Status& why) {
  state_ = State::kRefused;
  OutFrame refusal;
  refusal.header.kind = FrameKind::kRefuse;
  refusal.header.code = ToInt(why.code());
  refusal.body = why.message().substr(0, kMaxHelloBytes);
  channel_->Send(std::move(refusal));
  channel_->CloseWhenSent(why);
}

void ServerSession::Dispatch(const FrameHeader& header, std::string body) {
  core_->counters().calls.fetch_add(1, std::memory_order_relaxed);
  if (++outstanding_ >= core_->options().max_outstanding_per_session) channel_->Pause();
  if (header.payload_bytes > 0) pending_ticket_ = next_ticket_++;
  ServerCall call(
      std::unique_ptr<CallState>(new CallState{.session = shared_from_this(),
                                               .id = header.id,
                                               .method = header.method,
                                               .body = std::move(body),
                                               .payload_bytes = header.payload_bytes,
                                               .deadline = Deadline::After(std::chrono::milliseconds(header.budget_ms)),
                                               .payload_ticket = pending_ticket_}));
  if (const RpcServer::Handler* handler = core_->FindHandler(header.method)) return (*handler)(std::move(call));
  std::move(call).Fail(
      Status(ErrorCode::NOT_IMPLEMENTED, fmt::format("{} {} has no method {}", core_->options().self.role,
                                                     core_->options().self.node.ToString(), header.method)));
}

void ServerSession::OnSent(const FrameHeader& header) {
  if (header.kind != FrameKind::kResponse) return;
  if (--outstanding_ + 1 == core_->options().max_outstanding_per_session) channel_->Resume();
}

void ServerSession::OnClosed(const Status& reason, FrameChannel::CloseCause cause) {
  const auto self = shared_from_this();
  if (cause == FrameChannel::CloseCause::kBadFrame) core_->counters().bad_magic.fetch_add(1, std::memory_order_relaxed);
  if (cause == FrameChannel::CloseCause::kTooLarge) core_->counters().too_large.fetch_add(1, std::memory_order_relaxed);
  state_ = State::kClosed;
  timer_.cancel();
  thread_->Unregister(this);
  if (receiving_.call) EndReceive(Annotate(reason, fmt::format("connection of {} lost", peer_address_)));
  // Later, so that a handler from within which the connection broke has returned by then.
  asio::post(thread_->context(), [self] { self->core_->SessionClosed(self->id_, self->handshaken_); });
}

// ---- answers

void ServerSession::Answer(OutFrame frame) {
  if (thread_->IsCurrent()) {
    SendAnswer(std::move(frame));
    if (state_ != State::kClosed) channel_->Flush();
    return;
  }
  bool first = false;
  {
    std::lock_guard lock(answers_mutex_);
    first = answers_.empty();
    answers_.push_back(std::move(frame));
  }
  if (first && !thread_->Post([self = shared_from_this()] { self->DrainAnswers(); })) {
    std::vector<OutFrame> dropped;
    std::lock_guard lock(answers_mutex_);
    dropped.swap(answers_);
  }
}

void ServerSession::DrainAnswers() {
  std::vector<OutFrame> answers;
  {
    std::lock_guard lock(answers_mutex_);
    answers.swap(answers_);
  }
  for (OutFrame& frame : answers) SendAnswer(std::move(frame));
  channel_->Flush();
}

void ServerSession::SendAnswer(OutFrame frame) {
  if (state_ != State::kOpen) return;
  const uint64_t id = frame.header.id;
  const uint64_t ticket = frame.payload_ticket;
  const uint64_t payload_bytes = TotalBytes(frame.payload);
  if (frame.header.code != 0) {
    frame.body.resize(std::min<size_t>(frame.body.size(), peer_hello_.max_body_bytes));
  } else if (frame.body.size() > peer_hello_.max_body_bytes || payload_bytes > peer_hello_.max_payload_bytes) {
    frame = FailureTo(
        id, Status(ErrorCode::INTERNAL_ERROR,
                   fmt::format("the response of {} + {} bytes exceeds the caller's limits {} + {}", frame.body.size(),
                               payload_bytes, peer_hello_.max_body_bytes, peer_hello_.max_payload_bytes)));
  }
  channel_->Send(std::move(frame));
  if (ticket != 0 && pending_ticket_ == ticket) {
    pending_ticket_ = 0;
    channel_->DiscardPayload();
  }
}

// ---- request payloads

void ServerSession::Receive(std::unique_ptr<CallState> call, std::vector<MutableSpan> spans,
                            std::shared_ptr<void> keep_alive, ReceiveCallback then) {
  Receiving receiving{std::move(call), std::move(keep_alive), std::move(then)};
  if (thread_->IsCurrent()) return BeginReceive(std::move(receiving), std::move(spans));
  // Shared, so that it survives a task that is dropped.
  const auto parked = std::make_shared<Receiving>(std::move(receiving));
  const bool posted = thread_->Post([self = shared_from_this(), parked, spans = std::move(spans)]() mutable {
    self->BeginReceive(std::move(*parked), std::move(spans));
  });
  if (posted) return;
  parked->keep_alive.reset();
  parked->then(ServerCall(std::move(parked->call)), Error(ErrorCode::SHUTTING_DOWN, "the I/O threads have ended"));
}

void ServerSession::BeginReceive(Receiving receiving, std::vector<MutableSpan> spans) {
  const uint64_t expected = receiving.call->payload_bytes;
  const uint64_t offered = TotalBytes(spans);
  Result<void> result;
  if (offered != expected) {
    result = Error(ErrorCode::INVALID_PARAMS, "payload of {} bytes cannot be received into {}", expected, offered);
  } else if (state_ != State::kOpen) {
    result = Error(ErrorCode::RPC_FAIL, "connection of {} lost", peer_address_);
  } else if (expected > 0) {
    MC_CHECK(pending_ticket_ == receiving.call->payload_ticket && !receiving_.call, "payload {} asked for, {} pending",
             receiving.call->payload_ticket, pending_ticket_);
    pending_ticket_ = 0;
    receiving_ = std::move(receiving);
    // The channel drops the function when it closes, before this session goes.
    return channel_->ReceivePayload(std::move(spans), [this] { EndReceive({}); });
  }
  receiving.keep_alive.reset();
  receiving.then(ServerCall(std::move(receiving.call)), std::move(result));
}

void ServerSession::EndReceive(Result<void> result) {
  Receiving done = std::move(receiving_);
  receiving_ = {};
  if (result) done.call->payload_bytes = 0;
  done.keep_alive.reset();
  done.then(ServerCall(std::move(done.call)), std::move(result));
}

// ---- time

void ServerSession::ArmTimer(Duration after) {
  timer_.expires_after(after);
  timer_.async_wait([self = shared_from_this()](const asio::error_code& cancelled) {
    if (!cancelled && self->state_ != State::kClosed) self->OnTimer();
  });
}

void ServerSession::OnTimer() {
  if (state_ == State::kHandshake) {
    core_->counters().handshake_timeouts.fetch_add(1, std::memory_order_relaxed);
    return channel_->Close(Status(ErrorCode::RPC_FAIL, "no handshake in time"));
  }
  if (state_ == State::kRefused || channel_->StalledSinceLastCheck()) {
    return channel_->Close(Status(ErrorCode::RPC_FAIL, "the peer stalled"));
  }
  ArmTimer(core_->options().stall_timeout);
}

}  // namespace mooncake::rpc::internal
