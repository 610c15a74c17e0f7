// The public faces of a server and of a call.
#include "rpc/rpc_server.h"

#include "common/check.h"
#include "rpc/server_core.h"
#include "rpc/server_session.h"

namespace mooncake::rpc {

ServerCall::ServerCall(std::unique_ptr<internal::CallState> state) : state_(std::move(state)) {}
ServerCall::ServerCall(ServerCall&&) noexcept = default;

ServerCall& ServerCall::operator=(ServerCall&& other) noexcept {
  ServerCall(std::move(other)).state_.swap(state_);
  return *this;
}

ServerCall::~ServerCall() {
  if (state_) std::move(*this).Fail(Status(ErrorCode::INTERNAL_ERROR, "the handler dropped the call"));
}

uint16_t ServerCall::method() const {
  return state_->method;
}
std::string_view ServerCall::body() const {
  return state_->body;
}
uint64_t ServerCall::payload_bytes() const {
  return state_->payload_bytes;
}
SessionId ServerCall::session() const {
  return state_->session->id();
}
const Identity& ServerCall::peer() const {
  return state_->session->peer();
}
std::string ServerCall::peer_address() const {
  return state_->session->peer_address();
}
Deadline ServerCall::deadline() const {
  return state_->deadline;
}

void ServerCall::ReceivePayload(std::vector<MutableSpan> spans, std::shared_ptr<void> keep_alive,
                                std::move_only_function<void(ServerCall, Result<void>)> then) && {
  const auto session = state_->session;
  session->Receive(std::move(state_), std::move(spans), std::move(keep_alive), std::move(then));
}

void ServerCall::Reply(std::string body, std::vector<ConstSpan> payload, std::shared_ptr<const void> keep_alive) && {
  const auto state = std::move(state_);
  internal::OutFrame frame;
  frame.header.kind = internal::FrameKind::kResponse;
  frame.header.id = state->id;
  frame.body = std::move(body);
  frame.payload = std::move(payload);
  frame.keep_alive = std::move(keep_alive);
  frame.payload_ticket = state->payload_ticket;
  state->session->Answer(std::move(frame));
}

void ServerCall::Fail(const Status& status) && {
  const auto state = std::move(state_);
  internal::OutFrame frame = internal::FailureTo(state->id, status);
  frame.payload_ticket = state->payload_ticket;
  state->session->Answer(std::move(frame));
}

Result<std::unique_ptr<RpcServer>> RpcServer::Listen(IoPool& pool, ServerOptions options) {
  if (options.max_outstanding_per_session == 0) {
    return Error(ErrorCode::INVALID_PARAMS, "a session of 0 outstanding calls takes none");
  }
  auto core = std::make_shared<internal::ServerCore>(pool, std::move(options));
  MC_TRY(core->Bind());
  return std::unique_ptr<RpcServer>(new RpcServer(std::move(core)));
}

RpcServer::RpcServer(std::shared_ptr<internal::ServerCore> core) : core_(std::move(core)) {}
RpcServer::~RpcServer() {
  Stop();
}

void RpcServer::Handle(uint16_t method, Handler handler) {
  const bool added = core_->handlers.emplace(method, std::move(handler)).second;
  MC_CHECK(added, "method {} has two handlers", method);
}

void RpcServer::OnSessionClosed(std::function<void(SessionId)> callback) {
  core_->on_session_closed.push_back(std::move(callback));
}

void RpcServer::Start() {
  core_->Start();
}
uint16_t RpcServer::port() const {
  return core_->port();
}
ServerStats RpcServer::stats() const {
  return core_->stats();
}
void RpcServer::Stop() {
  core_->Stop();
}

}  // namespace mooncake::rpc
