// Which transports an engine has.
#pragma once

#include <memory>
#include <vector>

#include "transfer_engine/transport.h"
#include "transfer_engine/transport_context.h"

namespace mooncake {

// Best first: within the process, within the host, between NPUs of the host if one is in use or "ascend" asked for,
// then the other protocols asked for, then what stands on those: the way to NPU memory of others, and the bridge, where
// it is built. INVALID_PARAMS for a protocol that does not exist, the transport's own error for one that cannot be had.
// "rdma" without devices is left out with a warning, and tcp then stands in for it, unless the options are strict.
Result<std::vector<std::unique_ptr<Transport>>> OpenTransports(const TransportContext& context);

}  // namespace mooncake
