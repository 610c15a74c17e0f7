// Sockets of the tcp transport: owning, non-blocking, with the options that both directions want.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/endpoint.h"
#include "common/status.h"
#include "transfer_engine/transport/tcp/tcp_options.h"

namespace mooncake::tcp {

// Owns a descriptor. Move-only.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)), low_water_(other.low_water_) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(low_water_, other.low_water_);
    other.Close();
    return *this;
  }
  ~Socket() { Close(); }
  explicit operator bool() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  void Close();
  // So many bytes are certain to come: no event before a good part of them is there.
  void WaitFor(uint64_t bytes);
  // Like Close, but what was not sent yet is thrown away and the peer is told so.
  void Abort();

 private:
  int fd_ = -1;
  int low_water_ = 1;
};

struct Address {
  sockaddr_storage bytes{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
};

// Every address of a name. `numeric`: only literal addresses, never blocks; else may ask a name server.
Result<std::vector<Address>> Resolve(const Endpoint& endpoint, bool numeric);

struct ListeningSocket {
  Socket socket;
  uint16_t port = 0;
};
// On `host`; empty: every address of both families. INVALID_PARAMS or INTERNAL_ERROR naming address and reason.
Result<ListeningSocket> Listen(const std::string& host, const TcpOptions& options);

// A connection that is being made; writable when it has been, or has failed (ConnectError).
Result<Socket> StartConnect(const Address& address, const TcpOptions& options);
int ConnectError(const Socket& socket);  // 0 or errno

// Of a connected socket: no delay, keepalive, user timeout, congestion control. Returns whether the peer is this host.
bool Prepare(const Socket& socket, const TcpOptions& options);

// INVALID_PARAMS unless sockets of this process may use it.
Result<void> CheckCongestion(const std::string& name);

}  // namespace mooncake::tcp
