// Accepting connections and ending them all.
#include "rpc/server_core.h"

#include <asio/ip/v6_only.hpp>

#include "common/check.h"
#include "common/log.h"
#include "rpc/server_session.h"

namespace mooncake::rpc::internal {
namespace {

using asio::ip::tcp;
// After the system refused a connection (no descriptors left) before the next try.
constexpr Duration kAcceptRetry = std::chrono::milliseconds(100);

}  // namespace

ServerCore::ServerCore(IoPool& pool, ServerOptions options)
    : pool_(pool),
      options_(std::move(options)),
      thread_(pool.NextThread()),
      acceptor_(thread_->context()),
      retry_timer_(thread_->context()) {}

Result<void> ServerCore::Bind() {
  asio::error_code error;
  const std::string where = options_.listen.ToString();
  const auto failed = [&](std::string_view step) {
    return std::unexpected(
        Status(ErrorCode::RPC_FAIL,
               fmt::format("cannot listen on {}: {}: {} (errno {})", where, step, error.message(), error.value()),
               error.value()));
  };
  tcp::resolver resolver(thread_->context());
  const auto found = resolver.resolve(options_.listen.host, std::to_string(options_.listen.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty()) return failed("resolve");
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor_.open(endpoint.protocol(), error);
  if (error) return failed("socket");
  acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (error) return failed("SO_REUSEADDR");
  // One socket on "::" takes IPv4 peers as well, where the system allows it.
  if (endpoint.address().is_v6()) acceptor_.set_option(asio::ip::v6_only(false), error);
  acceptor_.bind(endpoint, error);
  if (error) return failed("bind");
  acceptor_.listen(tcp::acceptor::max_listen_connections, error);
  if (error) return failed("listen");
  port_ = acceptor_.local_endpoint(error).port();
  return {};
}

void ServerCore::Start() {
  {
    std::lock_guard lock(mutex_);
    MC_CHECK(!started_, "server on port {} started twice", port_);
    started_ = true;
    if (stopping_ || !thread_->Register(shared_from_this())) return;
    accepting_ = true;
  }
  if (thread_->Post([self = shared_from_this()] { self->AcceptNext(); })) return;
  std::lock_guard lock(mutex_);
  accepting_ = false;
}

void ServerCore::AcceptNext() {
  const auto target = pool_.NextThread();
  acceptor_.async_accept(target->context(),
                         [self = shared_from_this(), target](const asio::error_code& error, tcp::socket socket) {
                           if (!self->acceptor_.is_open()) return;
                           if (!error) {
                             self->OnAccepted(std::move(socket), target);
                             return self->AcceptNext();
                           }
                           if (error == asio::error::connection_aborted) return self->AcceptNext();
                           log::Warn("cannot accept on port {}: {}; next try in 100 ms", self->port_, error.message());
                           self->retry_timer_.expires_after(kAcceptRetry);
                           self->retry_timer_.async_wait([self](const asio::error_code& cancelled) {
                             if (!cancelled && self->acceptor_.is_open()) self->AcceptNext();
                           });
                         });
}

void ServerCore::OnAccepted(tcp::socket socket, const std::shared_ptr<IoThread>& thread) {
  counters_.accepted.fetch_add(1, std::memory_order_relaxed);
  std::shared_ptr<ServerSession> session;
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    if (sessions_.size() >= options_.max_connections) {
      counters_.full.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    const SessionId id = next_session_++;
    session = std::make_shared<ServerSession>(shared_from_this(), thread, id, std::move(socket));
    sessions_.emplace(id, session);
  }
  if (!thread->Post([session] { session->Start(); })) SessionClosed(session->id(), false);
}

void ServerCore::SessionClosed(SessionId id, bool handshaken) {
  if (handshaken) {
    for (const auto& callback : on_session_closed) callback(id);
  }
  std::shared_ptr<ServerSession> session;  // released after the lock
  std::lock_guard lock(mutex_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  session = std::move(found->second);
  sessions_.erase(found);
  changed_.notify_all();
}

void ServerCore::Abort() {
  asio::error_code ignored;
  acceptor_.close(ignored);
  retry_timer_.cancel();
  thread_->Unregister(this);
  std::lock_guard lock(mutex_);
  accepting_ = false;
  changed_.notify_all();
}

void ServerCore::Stop() {
  MC_CHECK(!IoThread::CurrentIsAny(), "a server on port {} cannot be stopped from an I/O thread", port_);
  std::vector<std::shared_ptr<ServerSession>> sessions;
  bool listening_only = false;
  {
    std::lock_guard lock(mutex_);
    listening_only = !started_;
    stopping_ = true;
    for (const auto& [id, session] : sessions_) sessions.push_back(session);
  }
  if (listening_only || !thread_->Post([self = shared_from_this()] { self->Abort(); })) {
    // No I/O thread uses the acceptor: never started, or the pool has ended.
    asio::error_code ignored;
    acceptor_.close(ignored);
  }
  for (const auto& session : sessions) {
    // A pool that has ended has aborted its sessions already.
    (void)session->thread()->Post([session] { session->Abort(); });
  }
  sessions.clear();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !accepting_ && sessions_.empty(); });
}

ServerStats ServerCore::stats() const {
  ServerStats stats;
  stats.accepted = counters_.accepted.load(std::memory_order_relaxed);
  stats.rejected_bad_magic = counters_.bad_magic.load(std::memory_order_relaxed);
  stats.rejected_version = counters_.version.load(std::memory_order_relaxed);
  stats.rejected_too_large = counters_.too_large.load(std::memory_order_relaxed);
  stats.rejected_full = counters_.full.load(std::memory_order_relaxed);
  stats.handshake_timeouts = counters_.handshake_timeouts.load(std::memory_order_relaxed);
  stats.calls = counters_.calls.load(std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  stats.open = sessions_.size();
  return stats;
}

const RpcServer::Handler* ServerCore::FindHandler(uint16_t method) const {
  const auto found = handlers.find(method);
  return found == handlers.end() ? nullptr : &found->second;
}

}  // namespace mooncake::rpc::internal
