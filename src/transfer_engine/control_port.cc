// Names to addresses, and the search for a free port.
#include "transfer_engine/control_port.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <random>

namespace mooncake {
namespace {

constexpr const char* kP2p = "P2PHANDSHAKE";

std::string Numeric(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST] = {};
  if (getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return text;
}

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

bool IsAny(const std::string& host) {
  return host == "0.0.0.0" || host == "::";
}

struct Resolved {
  std::string numeric;
  bool loopback = false;
  bool was_numeric = false;
  bool v6 = false;
};

Result<Resolved> Resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* list = nullptr;
  bool numeric = getaddrinfo(host.c_str(), nullptr, &hints, &list) == 0;
  if (!numeric) {
    hints.ai_flags = 0;
    if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &list); error != 0) {
      return Error(ErrorCode::INVALID_PARAMS, "host '{}' does not resolve: {}", host, gai_strerror(error));
    }
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(list, freeaddrinfo);
  return Resolved{.numeric = Numeric(list->ai_addr, list->ai_addrlen),
                  .loopback = IsLoopback(list->ai_addr),
                  .was_numeric = numeric,
                  .v6 = list->ai_family == AF_INET6};
}

// An address of this host that others may reach: of the first interface that is up and no loopback, IPv4 first.
std::string OwnAddress(bool v6_only) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return v6_only ? "::1" : "127.0.0.1";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owned(list, freeifaddrs);
  std::string v6;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_LOOPBACK) != 0)
      continue;
    const int family = entry->ifa_addr->sa_family;
    if (family == AF_INET && !v6_only) return Numeric(entry->ifa_addr, sizeof(sockaddr_in));
    if (family != AF_INET6 || !v6.empty()) continue;
    const auto* address = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
    if (!IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr)) v6 = Numeric(entry->ifa_addr, sizeof(sockaddr_in6));
  }
  if (!v6.empty()) return v6;
  return v6_only ? "::1" : "127.0.0.1";
}

Result<ControlAddress> AddressOfHost(const std::string& host) {
  if (IsAny(host)) return ControlAddress{.bind = host, .advertised = {OwnAddress(host == "::"), 0}};
  const Resolved resolved = MC_TRY(Resolve(host));
  // Others may know a name by another of its addresses; what is loopback for us stays so.
  const bool exactly = resolved.was_numeric || resolved.loopback;
  return ControlAddress{.bind = exactly ? resolved.numeric : (resolved.v6 ? "::" : "0.0.0.0"), .advertised = {host, 0}};
}

}  // namespace

Result<ControlAddress> ChooseControlAddress(const TransferEngineOptions& options) {
  const bool p2p = options.metadata == kP2p;
  const std::string text = options.local_name.empty() ? "127.0.0.1" : options.local_name;
  const auto parsed = Endpoint::Parse(text);
  if (p2p && !parsed) return std::unexpected(parsed.error());
  Result<ControlAddress> address = parsed ? AddressOfHost(parsed->host) : std::unexpected(parsed.error());
  if (!address && p2p) return address;
  // With a metadata server the name may be any.
  const bool is_host = address.has_value() && !IsAny(parsed->host);
  if (!address) address = AddressOfHost("0.0.0.0");
  if (!p2p) address->name = text;
  if (!options.bind_address.empty()) {
    address->bind = MC_TRY(Resolve(options.bind_address)).numeric;
    // A stand-in for "any address of this host" must not hide the one that is bound.
    if (!is_host && !IsAny(address->bind)) address->advertised.host = address->bind;
  }
  address->advertised.port = parsed && parsed->port != 0 ? parsed->port : options.control_port;
  return address;
}

Result<std::unique_ptr<rpc::RpcServer>> ListenForControl(rpc::IoPool& io, const ControlAddress& address,
                                                         const TransferEngineOptions& options, rpc::Identity self) {
  const auto listen = [&](uint16_t port) {
    return rpc::RpcServer::Listen(io, {.listen = {address.bind, port}, .self = self});
  };
  if (address.advertised.port != 0) return listen(address.advertised.port);
  const uint32_t first = options.min_control_port;
  const uint32_t last = options.max_control_port;
  if (first == 0 || first > last) {
    return Error(ErrorCode::INVALID_PARAMS, "control ports from {} to {}: no such range", first, last);
  }
  const uint32_t count = last - first + 1;
  const uint32_t start = std::random_device()() % count;
  for (uint32_t i = 0; i < count; ++i) {
    auto server = listen(static_cast<uint16_t>(first + (start + i) % count));
    if (server || server.error().vendor_code() != EADDRINUSE) return server;
  }
  return Error(ErrorCode::RPC_FAIL, "no port from {} to {} of {} is free", first, last, address.bind);
}

}  // namespace mooncake
