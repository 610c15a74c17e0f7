// Address choice by asking the kernel which way the master lies.
#include "common/listen_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace mooncake {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<AddressList> Resolve(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); error != 0) {
    return Error(ErrorCode::INVALID_PARAMS, "host '{}' does not resolve: {}", host, gai_strerror(error));
  }
  return AddressList(found, freeaddrinfo);
}

std::string Numeric(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST] = {};
  if (getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return text;
}

// Source address the kernel would use towards `peer`. Connecting a datagram socket sends nothing.
Result<std::string> FacingAddress(const Endpoint& peer) {
  const AddressList list = MC_TRY(Resolve(peer.host, peer.port != 0 ? peer.port : 9));
  int last_error = 0;
  for (const addrinfo* candidate = list.get(); candidate != nullptr; candidate = candidate->ai_next) {
    const int socket_fd = socket(candidate->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (socket_fd < 0) continue;
    sockaddr_storage local{};
    socklen_t size = sizeof(local);
    const bool found = connect(socket_fd, candidate->ai_addr, candidate->ai_addrlen) == 0 &&
                       getsockname(socket_fd, reinterpret_cast<sockaddr*>(&local), &size) == 0;
    last_error = errno;
    close(socket_fd);
    if (found) return Numeric(reinterpret_cast<const sockaddr*>(&local), size);
  }
  return Error(ErrorCode::INVALID_PARAMS, "no route to {}: {}", peer.ToString(), std::strerror(last_error));
}

}  // namespace

Result<ListenAddress> ChooseListenAddress(const std::string& host, const Endpoint& master) {
  if (host.empty()) {
    const std::string facing = MC_TRY(FacingAddress(master));
    return ListenAddress{facing, facing};
  }
  if (host == "0.0.0.0" || host == "::") return ListenAddress{host, MC_TRY(FacingAddress(master))};
  const AddressList list = MC_TRY(Resolve(host, 0));
  return ListenAddress{Numeric(list->ai_addr, list->ai_addrlen), host};
}

}  // namespace mooncake
