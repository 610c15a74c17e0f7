// Limits and choices of the tcp transport.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>

#include "common/clock.h"
#include "common/status.h"

namespace mooncake::tcp {

struct TcpOptions {
  uint16_t port = 0;  // MC_TCP_DATA_PORT; 0: any
  // MC_TCP_LANES_PER_PEER: connections to one peer, made as load asks for them; one per core, 4 at most. When they are
  // filled with long transfers, brief ones get one more.
  size_t lanes_per_peer = std::clamp<size_t>(std::thread::hardware_concurrency(), 1, 4);
  std::string congestion;  // MC_TCP_CONGESTION; empty: the system's, or what suits the same host
  std::string interface;   // MC_TCP_INTERFACE: device that all sockets are bound to; empty: any
  // MC_TCP_LEND_BYTES: transfers this long are sent from where it lies, not copied to the kernel; 0: never
  size_t lend_bytes = DefaultLendBytes();
  size_t max_connections = 2048;  // MC_TCP_MAX_CONNECTIONS: accepted at a time; more are closed at once
  size_t chunk_bytes = 1 << 20;   // of one request
  // In flight per connection. Both ends and the kernel take turns on the cores they share; this much keeps each of
  // them busy until its next turn.
  size_t window_bytes = 8 << 20;
  size_t window_requests = 128;                          // in flight per connection
  Duration handshake_timeout = std::chrono::seconds(5);  // for the hello of who connects
  Duration user_timeout = std::chrono::seconds(15);      // unacknowledged bytes mean a dead machine

  // INVALID_PARAMS naming the variable.
  static Result<TcpOptions> FromEnvironment();
  Result<void> Check() const;
  std::string ToString() const;
  // 0 where the kernel does it slower than it copies.
  static size_t DefaultLendBytes();
};

}  // namespace mooncake::tcp
