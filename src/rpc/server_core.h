// What all sessions of one server share: handlers, limits, counters, and the list of sessions itself.
#pragma once

#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "rpc/io_thread.h"
#include "rpc/rpc_server.h"

namespace mooncake::rpc::internal {

class ServerSession;

class ServerCore final : public Abortable, public std::enable_shared_from_this<ServerCore> {
 public:
  struct Counters {
    std::atomic<uint64_t> accepted{0}, bad_magic{0}, version{0}, too_large{0}, full{0}, handshake_timeouts{0}, calls{0};
  };

  ServerCore(IoPool& pool, ServerOptions options);

  Result<void> Bind();
  void Start();
  void Stop();
  uint16_t port() const { return port_; }
  ServerStats stats() const;

  // Acceptor's I/O thread: no further session; those there are close on their own threads.
  void Abort() override;

  // For sessions, their I/O thread.
  const ServerOptions& options() const { return options_; }
  const RpcServer::Handler* FindHandler(uint16_t method) const;
  Counters& counters() { return counters_; }
  void SessionClosed(SessionId id, bool handshaken);

  // Written before Start, constant afterwards.
  std::unordered_map<uint16_t, RpcServer::Handler> handlers;
  std::vector<std::function<void(SessionId)>> on_session_closed;

 private:
  void AcceptNext();
  void OnAccepted(asio::ip::tcp::socket socket, const std::shared_ptr<IoThread>& thread);

  IoPool& pool_;  // used only while accepting, and the pool's end stops that first
  const ServerOptions options_;
  const std::shared_ptr<IoThread> thread_;
  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer retry_timer_;
  uint16_t port_ = 0;
  Counters counters_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false;
  bool stopping_ = false;
  bool accepting_ = false;  // the acceptor may still bring a session
  SessionId next_session_ = 1;
  std::unordered_map<SessionId, std::shared_ptr<ServerSession>> sessions_;
};

}  // namespace mooncake::rpc::internal
