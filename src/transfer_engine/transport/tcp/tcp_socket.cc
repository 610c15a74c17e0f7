// Socket calls and their options.
#include "transfer_engine/transport/tcp/tcp_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace mooncake::tcp {
namespace {

constexpr uint64_t kLowWater = 256 << 10;
constexpr int kBacklog = 1024;
constexpr int kKeepIdleSeconds = 10;
constexpr int kKeepIntervalSeconds = 3;
constexpr int kKeepProbes = 3;

// Options of comfort: a kernel without one of them still moves bytes.
void Set(int fd, int level, int name, int value) {
  (void)setsockopt(fd, level, name, &value, sizeof(value));
}

bool SetCongestion(int fd, const std::string& name) {
  return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size())) == 0;
}

Result<Socket> MakeSocket(int family, const TcpOptions& options) {
  Socket socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return Error(ErrorCode::INTERNAL_ERROR, "socket: {}", std::strerror(errno));
  const std::string& device = options.interface;
  if (!device.empty() &&
      setsockopt(socket.fd(), SOL_SOCKET, SO_BINDTODEVICE, device.data(), static_cast<socklen_t>(device.size())) != 0) {
    return Error(ErrorCode::INVALID_PARAMS, "MC_TCP_INTERFACE: cannot bind to device '{}': {}", device,
                 std::strerror(errno));
  }
  return socket;
}

Address V4Mapped(const Address& address) {
  if (address.bytes.ss_family != AF_INET6) return address;
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.bytes);
  if (!IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) return address;
  Address plain;
  auto& v4 = reinterpret_cast<sockaddr_in&>(plain.bytes);
  v4.sin_family = AF_INET;
  std::memcpy(&v4.sin_addr, v6.sin6_addr.s6_addr + 12, 4);
  return plain;
}

bool SameHost(int fd) {
  Address local, remote;
  local.length = remote.length = sizeof(sockaddr_storage);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&local.bytes), &local.length) != 0) return false;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&remote.bytes), &remote.length) != 0) return false;
  local = V4Mapped(local);
  remote = V4Mapped(remote);
  if (local.bytes.ss_family != remote.bytes.ss_family) return false;
  if (local.bytes.ss_family == AF_INET) {
    const auto& a = reinterpret_cast<const sockaddr_in&>(local.bytes).sin_addr;
    const auto& b = reinterpret_cast<const sockaddr_in&>(remote.bytes).sin_addr;
    return a.s_addr == b.s_addr || (ntohl(b.s_addr) >> 24) == IN_LOOPBACKNET;
  }
  const auto& a = reinterpret_cast<const sockaddr_in6&>(local.bytes).sin6_addr;
  const auto& b = reinterpret_cast<const sockaddr_in6&>(remote.bytes).sin6_addr;
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

Result<ListeningSocket> ListenOn(const Address& address, const std::string& host, const TcpOptions& options) {
  Socket socket = MC_TRY(MakeSocket(address.bytes.ss_family, options));
  Set(socket.fd(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.bytes.ss_family == AF_INET6) Set(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, host.empty() ? 0 : 1);
  if (bind(socket.fd(), address.get(), address.length) != 0 || listen(socket.fd(), kBacklog) != 0) {
    return Error(ErrorCode::INTERNAL_ERROR, "tcp data port {}: {}", Endpoint{host, options.port}.ToString(),
                 std::strerror(errno));
  }
  Address bound;
  bound.length = sizeof(bound.bytes);
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&bound.bytes), &bound.length) != 0) {
    return Error(ErrorCode::INTERNAL_ERROR, "getsockname: {}", std::strerror(errno));
  }
  // The port stands at the same place in both kinds of address.
  const uint16_t port = ntohs(reinterpret_cast<const sockaddr_in&>(bound.bytes).sin_port);
  return ListeningSocket{std::move(socket), port};
}

}  // namespace

void Socket::Close() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

void Socket::WaitFor(uint64_t bytes) {
  const int wanted = bytes < 2 * kLowWater ? 1 : static_cast<int>(kLowWater);
  if (wanted == low_water_) return;
  low_water_ = wanted;
  Set(fd_, SOL_SOCKET, SO_RCVLOWAT, wanted);
}

void Socket::Abort() {
  if (fd_ < 0) return;
  const linger now{.l_onoff = 1, .l_linger = 0};
  (void)setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  Close();
}

Result<std::vector<Address>> Resolve(const Endpoint& endpoint, bool numeric) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (numeric ? AI_NUMERICHOST : 0);
  addrinfo* found = nullptr;
  const int rc = getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  if (rc != 0) {
    return Error(ErrorCode::INVALID_PARAMS, "address of '{}' not found: {}", endpoint.host, gai_strerror(rc));
  }
  std::vector<Address> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    Address& address = addresses.emplace_back();
    address.length = std::min<socklen_t>(entry->ai_addrlen, sizeof(address.bytes));
    std::memcpy(&address.bytes, entry->ai_addr, address.length);
  }
  freeaddrinfo(found);
  return addresses;
}

Result<ListeningSocket> Listen(const std::string& host, const TcpOptions& options) {
  if (!host.empty()) {
    const auto addresses = MC_TRY(Resolve({host, options.port}, false));
    return ListenOn(addresses.front(), host, options);
  }
  const auto both = MC_TRY(Resolve({"::", options.port}, true));
  if (auto listening = ListenOn(both.front(), "", options)) return listening;
  // A host without IPv6.
  const auto v4 = MC_TRY(Resolve({"0.0.0.0", options.port}, true));
  return ListenOn(v4.front(), "", options);
}

Result<Socket> StartConnect(const Address& address, const TcpOptions& options) {
  Socket socket = MC_TRY(MakeSocket(address.bytes.ss_family, options));
  // Also limits how long the first packets are repeated.
  Set(socket.fd(), IPPROTO_TCP, TCP_USER_TIMEOUT,
      static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(options.user_timeout).count()));
  if (connect(socket.fd(), address.get(), address.length) != 0 && errno != EINPROGRESS) {
    return Error(ErrorCode::TRANSFER_FAIL, "connect: {}", std::strerror(errno));
  }
  return socket;
}

int ConnectError(const Socket& socket) {
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

bool Prepare(const Socket& socket, const TcpOptions& options) {
  const int fd = socket.fd();
  Set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds);
  Set(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalSeconds);
  Set(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepProbes);
  Set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
      static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(options.user_timeout).count()));
  const bool same_host = SameHost(fd);
  if (!options.congestion.empty()) {
    SetCongestion(fd, options.congestion);  // checked when the transport was opened
  } else if (same_host) {
    // Nothing is lost within a host, so a control that paces (bbr, the default of many distributions) only costs time:
    // half of the speed here. reno does as well as cubic and may be used without privileges everywhere.
    if (!SetCongestion(fd, "cubic")) SetCongestion(fd, "reno");
  }
  return same_host;
}

Result<void> CheckCongestion(const std::string& name) {
  const Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return Error(ErrorCode::INTERNAL_ERROR, "socket: {}", std::strerror(errno));
  if (!SetCongestion(socket.fd(), name)) {
    return Error(ErrorCode::INVALID_PARAMS, "MC_TCP_CONGESTION: '{}': {}", name, std::strerror(errno));
  }
  return {};
}

}  // namespace mooncake::tcp
