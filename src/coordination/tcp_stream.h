// A blocking TCP connection on which every call ends at its deadline, whatever the other side does.
#pragma once

#include <span>
#include <string_view>

#include "common/clock.h"
#include "common/endpoint.h"
#include "common/fd.h"
#include "common/status.h"

namespace mooncake {

// One thread at a time. Move-only. Errors are METADATA_ERROR with the reason, without the name of the peer. A broken
// connection is an error, never a signal.
class TcpStream {
 public:
  // Tries the addresses of the host in turn, at most 1.5 s in all. Resolving a host name takes as long as the system's
  // resolver takes; addresses need none.
  static Result<TcpStream> Connect(const Endpoint& peer, Deadline deadline);
  // Ends early when the peer, instead of taking the bytes, says something or closes: what it says tells why.
  Result<void> Send(std::string_view bytes, Deadline deadline);
  // At least one byte; 0: the peer has closed.
  Result<size_t> Receive(std::span<char> buffer, Deadline deadline);

 private:
  explicit TcpStream(Fd fd) : fd_(std::move(fd)) {}

  Fd fd_;
};

}  // namespace mooncake
