// Non-blocking sockets and poll.
#include "coordination/tcp_stream.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

namespace mooncake {
namespace {

constexpr Duration kConnectBudget = std::chrono::milliseconds(1500);

std::unexpected<Status> Failed(const char* what, int error) {
  return std::unexpected(Status(ErrorCode::METADATA_ERROR, fmt::format("{}: {}", what, std::strerror(error)), error));
}

// Which of the events there are.
Result<short> WaitFor(int fd, short events, const char* what, Deadline deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.Remaining()).count();
    pollfd waiting{.fd = fd, .events = events, .revents = 0};
    const int ready = poll(&waiting, 1, static_cast<int>(std::min<int64_t>(left, 1'000'000)));
    if (ready > 0) return waiting.revents;
    if (ready < 0 && errno != EINTR) return Failed(what, errno);
    if (deadline.Passed()) return Error(ErrorCode::METADATA_ERROR, "{}: the deadline passed", what);
  }
}

Result<void> ConnectTo(int fd, const addrinfo& address, Deadline deadline) {
  if (connect(fd, address.ai_addr, address.ai_addrlen) == 0) return {};
  if (errno != EINPROGRESS && errno != EINTR) return Failed("connect", errno);
  MC_TRY(WaitFor(fd, POLLOUT, "connect", deadline));
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  return error == 0 ? Result<void>{} : Failed("connect", error);
}

}  // namespace

Result<TcpStream> TcpStream::Connect(const Endpoint& peer, Deadline deadline) {
  if (const Deadline soon = Deadline::After(kConnectBudget); soon.time() < deadline.time()) deadline = soon;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* first = nullptr;
  const int resolved = getaddrinfo(peer.host.c_str(), std::to_string(peer.port).c_str(), &hints, &first);
  if (resolved != 0) return Error(ErrorCode::METADATA_ERROR, "resolve '{}': {}", peer.host, gai_strerror(resolved));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(first, &freeaddrinfo);

  Result<void> connected = Error(ErrorCode::METADATA_ERROR, "connect: no address");
  for (const addrinfo* address = first; address != nullptr; address = address->ai_next) {
    TcpStream stream(Fd(socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)));
    connected = !stream.fd_ ? Failed("socket", errno) : ConnectTo(stream.fd_.get(), *address, deadline);
    if (!connected) continue;
    const int yes = 1;
    setsockopt(stream.fd_.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));  // only slower without
    return stream;
  }
  return std::unexpected(std::move(connected).error());
}

Result<void> TcpStream::Send(std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      const short events = MC_TRY(WaitFor(fd_.get(), POLLOUT | POLLIN, "send", deadline));
      if ((events & (POLLOUT | POLLIN)) == POLLIN) return {};
    } else if (errno != EINTR) {
      return Failed("send", errno);
    }
  }
  return {};
}

Result<size_t> TcpStream::Receive(std::span<char> buffer, Deadline deadline) {
  for (;;) {
    // Also for bytes that are there: a peer that always has some must not keep us.
    if (deadline.Passed()) return Error(ErrorCode::METADATA_ERROR, "receive: the deadline passed");
    const ssize_t got = recv(fd_.get(), buffer.data(), buffer.size(), 0);
    if (got >= 0) return static_cast<size_t>(got);
    if (errno == EAGAIN) {
      MC_TRY(WaitFor(fd_.get(), POLLIN, "receive", deadline));
    } else if (errno != EINTR) {
      return Failed("receive", errno);
    }
  }
}

}  // namespace mooncake
