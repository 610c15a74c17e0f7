// How a client reaches its peer: resolve, connect, shake hands, back off.
#include <asio/connect.hpp>
#include <asio/ip/address.hpp>

#include "rpc/client_core.h"

namespace mooncake::rpc::internal {
namespace {

using asio::ip::tcp;
constexpr Duration kFirstBackOff = std::chrono::milliseconds(100);
constexpr Duration kLastBackOff = std::chrono::seconds(1);

}  // namespace

void ClientCore::StartConnect() {
  state_ = State::kConnecting;
  const uint64_t attempt = ++attempt_;
  connect_timer_.expires_after(options_.connect_timeout);
  connect_timer_.async_wait([self = shared_from_this(), attempt](const asio::error_code& error) {
    if (error || self->attempt_ != attempt) return;
    const Status why(ErrorCode::RPC_FAIL, fmt::format("no connection within {} ms",
                                                      self->options_.connect_timeout / std::chrono::milliseconds(1)));
    if (self->channel_) return self->channel_->Close(why);
    self->ConnectFailed(why);
  });
  asio::error_code not_numeric;
  const auto address = asio::ip::make_address(options_.peer.host, not_numeric);
  if (!not_numeric) return ConnectTo(attempt, {tcp::endpoint(address, options_.peer.port)});
  resolver_.async_resolve(
      options_.peer.host, std::to_string(options_.peer.port),
      [self = shared_from_this(), attempt](const asio::error_code& error, const tcp::resolver::results_type& found) {
        if (self->attempt_ != attempt) return;
        if (error) return self->ConnectFailed(Status(ErrorCode::RPC_FAIL, "cannot resolve: " + error.message()));
        std::vector<tcp::endpoint> targets;
        for (const auto& entry : found) targets.push_back(entry.endpoint());
        self->ConnectTo(attempt, std::move(targets));
      });
}

void ClientCore::ConnectTo(uint64_t attempt, std::vector<tcp::endpoint> targets) {
  connecting_ = std::make_shared<tcp::socket>(thread_->context());
  const auto list = std::make_shared<const std::vector<tcp::endpoint>>(std::move(targets));
  asio::async_connect(*connecting_, *list,
                      [self = shared_from_this(), attempt, list, connecting = connecting_](
                          const asio::error_code& error, const tcp::endpoint&) {
                        if (self->attempt_ != attempt) return;
                        if (error) {
                          return self->ConnectFailed(Status(ErrorCode::RPC_FAIL, error.message(), error.value()));
                        }
                        tcp::socket socket = std::move(*connecting);
                        self->connecting_.reset();
                        self->StartHandshake(std::move(socket));
                      });
}

void ClientCore::StartHandshake(tcp::socket socket) {
  channel_ = std::make_shared<FrameChannel>(std::move(socket), *this);
  channel_->Start();
  OutFrame hello;
  hello.header.kind = FrameKind::kHello;
  hello.body = Encode(MakeHello(options_.self, options_.max_body_bytes, options_.max_payload_bytes));
  channel_->Send(std::move(hello));
  channel_->Flush();
}

void ClientCore::OnHandshakeFrame(const FrameHeader& header, const std::string& body) {
  const Result<HelloMessage> welcome = JudgeWelcome(header, body);
  if (!welcome) return channel_->Close(welcome.error());
  BecomeReady(*welcome);
}

Result<HelloMessage> ClientCore::JudgeWelcome(const FrameHeader& header, const std::string& body) const {
  if (header.kind == FrameKind::kRefuse) {
    const auto code = header.code == 0 ? ErrorCode::RPC_FAIL : static_cast<ErrorCode>(header.code);
    return std::unexpected(Status(code, "refused by the peer: " + body));
  }
  if (header.kind != FrameKind::kWelcome) return Error(ErrorCode::RPC_FAIL, "the peer does not shake hands");
  HelloMessage welcome = MC_TRY(Decode<HelloMessage>(body));
  MC_TRY(CheckVersions(options_.self, IdentityOf(welcome)));
  const bool wrong_node = !options_.expected_node.IsNil() && welcome.node != options_.expected_node;
  const bool wrong_role = !options_.expected_role.empty() && welcome.role != options_.expected_role;
  if (!wrong_node && !wrong_role) return welcome;
  return Error(ErrorCode::ILLEGAL_CLIENT, "expected node {} (role {}) at {}, found {} (role {})",
               options_.expected_node.IsNil() ? "any" : options_.expected_node.ToString(),
               options_.expected_role.empty() ? "any" : options_.expected_role, peer_name_, welcome.node.ToString(),
               welcome.role);
}

void ClientCore::BecomeReady(const HelloMessage& welcome) {
  ResetAttempt();
  state_ = State::kReady;
  peer_hello_ = welcome;
  back_off_ = Duration::zero();
  retry_at_ = {};
  channel_->SetLimits({options_.max_body_bytes, options_.max_payload_bytes});
  {
    std::lock_guard lock(submit_mutex_);
    ++connection_;
  }
  {
    std::lock_guard lock(identity_mutex_);
    peer_identity_ = IdentityOf(welcome);
  }
  connected_.store(true, std::memory_order_release);
  const std::vector<uint64_t> waiting = std::move(waiting_);
  waiting_.clear();
  for (const uint64_t id : waiting) {
    const auto call = calls_.find(id);
    if (call == calls_.end()) continue;  // timed out meanwhile
    if (call->second->connect_only) {
      FinishById(id, std::string());
    } else {
      SendCall(*call->second);
    }
  }
  // Runs inside the channel's reading turn, which flushes at its end.
}

void ClientCore::ConnectFailed(const Status& why) {
  ResetAttempt();
  state_ = State::kIdle;
  if (!aborted_) {
    last_error_ = Annotate(why, fmt::format("cannot reach {}", peer_name_)).error();
    back_off_ = back_off_ == Duration::zero() ? kFirstBackOff : std::min(2 * back_off_, kLastBackOff);
    retry_at_ = SteadyClock::Instance().Now() + back_off_;
  }
  waiting_.clear();
  CallMap calls = std::move(calls_);
  calls_.clear();
  deadlines_.Clear();
  for (auto& [id, call] : calls) Finish(std::move(call), std::unexpected(last_error_));
}

void ClientCore::ResetAttempt() {
  ++attempt_;
  connect_timer_.cancel();
  resolver_.cancel();
  if (connecting_ != nullptr) {
    asio::error_code ignored;
    connecting_->close(ignored);  // ends the attempt: its handler keeps the object, not the connection
  }
  connecting_.reset();
}

}  // namespace mooncake::rpc::internal
