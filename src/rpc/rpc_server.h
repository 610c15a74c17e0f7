// The answering side: accepts peers, checks who they are, hands their calls to handlers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/endpoint.h"
#include "common/status.h"
#include "rpc/codec.h"
#include "rpc/identity.h"
#include "rpc/io_pool.h"
#include "rpc/spans.h"

namespace mooncake::rpc {

namespace internal {
class ServerCore;
class ServerSession;
struct CallState;
}  // namespace internal

// One connection of one peer; never used twice by a server.
using SessionId = uint64_t;

struct ServerOptions {
  Endpoint listen{};  // port 0 = any free port
  Identity self{};
  size_t max_connections = 4096;  // more are closed as they come
  uint32_t max_body_bytes = 64u << 20;
  uint64_t max_payload_bytes = 1ull << 30;
  Duration handshake_timeout = std::chrono::seconds(5);
  // A peer that stops in the middle of a frame, or takes no byte of a reply, for this long is disconnected.
  Duration stall_timeout = std::chrono::seconds(30);
  // Calls received whose reply has not left yet; a session at the limit reads no more.
  size_t max_outstanding_per_session = 1024;
};

struct ServerStats {
  uint64_t accepted = 0;
  uint64_t open = 0;
  uint64_t rejected_bad_magic = 0;  // not our protocol, or not a frame that may stand there
  uint64_t rejected_version = 0;
  uint64_t rejected_too_large = 0;
  uint64_t rejected_full = 0;  // beyond max_connections
  uint64_t handshake_timeouts = 0;
  uint64_t calls = 0;
};

// One request waiting for its answer. Move-only, any thread, may outlive the server. Dropped unanswered it replies
// INTERNAL_ERROR. After the session has died the answer goes nowhere.
class ServerCall {
 public:
  explicit ServerCall(std::unique_ptr<internal::CallState> state);  // for this module
  ~ServerCall();
  ServerCall(ServerCall&&) noexcept;
  ServerCall& operator=(ServerCall&&) noexcept;

  uint16_t method() const;
  std::string_view body() const;
  uint64_t payload_bytes() const;  // 0 once received
  SessionId session() const;
  const Identity& peer() const;
  std::string peer_address() const;
  // When the caller gives up.
  Deadline deadline() const;

  // Reads the request's payload into `spans`, which must total payload_bytes(), then runs `then` on the I/O thread.
  // `keep_alive` is held until the bytes are in place or the connection has died. A wrong total reads nothing. Until
  // the payload is received, or the call answered (which discards it), the session reads no further request.
  void ReceivePayload(std::vector<MutableSpan> spans, std::shared_ptr<void> keep_alive,
                      std::move_only_function<void(ServerCall, Result<void>)> then) &&;

  // `keep_alive` owns the memory of `payload`; released when the bytes have left or the connection has died.
  void Reply(std::string body, std::vector<ConstSpan> payload = {}, std::shared_ptr<const void> keep_alive = {}) &&;
  // Code, message and vendor code come out of the caller's Call. OK is not a failure.
  void Fail(const Status& status) &&;

 private:
  std::unique_ptr<internal::CallState> state_;
};

// Handle and OnSessionClosed before Start, from one thread; the rest from any thread.
class RpcServer {
 public:
  // Binds now; a port that is taken is an error that names address, port and reason.
  static Result<std::unique_ptr<RpcServer>> Listen(IoPool& pool, ServerOptions options);
  ~RpcServer();  // as Stop
  RpcServer(const RpcServer&) = delete;
  RpcServer& operator=(const RpcServer&) = delete;

  // Runs on an I/O thread and must not block. Calls of one session arrive in order.
  using Handler = std::function<void(ServerCall)>;
  void Handle(uint16_t method, Handler handler);

  // With the body decoded; INVALID_PARAMS goes back when it is no Request.
  template <typename Request>
  void Handle(uint16_t method, std::function<void(ServerCall, Request)> handler) {
    Handle(method, Handler([handler = std::move(handler)](ServerCall call) {
             Result<Request> request = Decode<Request>(call.body());
             if (!request) return std::move(call).Fail(request.error());
             handler(std::move(call), std::move(*request));
           }));
  }

  // Adds a callback, which runs on an I/O thread after a session that passed the handshake has closed and no handler of
  // it runs any more.
  void OnSessionClosed(std::function<void(SessionId)> callback);

  void Start();
  uint16_t port() const;
  ServerStats stats() const;

  // Stops accepting, closes every session and returns when no handler or session callback runs or will run. Never from
  // an I/O thread. Idempotent.
  void Stop();

 private:
  explicit RpcServer(std::shared_ptr<internal::ServerCore> core);

  const std::shared_ptr<internal::ServerCore> core_;
};

}  // namespace mooncake::rpc
