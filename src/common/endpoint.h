// A "host:port" pair: one type for every form users write, IPv6 included.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/status.h"

namespace mooncake {

struct Endpoint {
  std::string host;  // without brackets: "10.0.0.1", "::1", "fe80::1%eth0", "node-7"
  uint16_t port = 0;

  // "host", "host:port", "[v6]:port", bare "v6" (no port). A missing port becomes `default_port`.
  static Result<Endpoint> Parse(std::string_view text, uint16_t default_port = 0);
  // "10.0.0.1:50051", "[::1]:50051"
  std::string ToString() const;

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

}  // namespace mooncake
