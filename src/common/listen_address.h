// Which address a process listens on, and which one it tells others.
#pragma once

#include <string>

#include "common/endpoint.h"
#include "common/status.h"

namespace mooncake {

struct ListenAddress {
  std::string bind;       // numeric address for the socket
  std::string advertise;  // never 0.0.0.0 or ::
};

// host "" : the local address that faces `master` for both. "0.0.0.0" or "::": bind that, advertise the facing address.
// A name or address: bind what it resolves to, advertise it as written. INVALID_PARAMS when it does not resolve.
Result<ListenAddress> ChooseListenAddress(const std::string& host, const Endpoint& master);

}  // namespace mooncake
