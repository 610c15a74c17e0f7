// Where an engine listens, and what it tells others about that.
#pragma once

#include <memory>
#include <string>

#include "rpc/rpc_server.h"
#include "transfer_engine/transfer_engine.h"

namespace mooncake {

struct ControlAddress {
  std::string bind;     // numeric, of all ports
  Endpoint advertised;  // never "0.0.0.0" or "::"; port 0: any free one
  std::string name;     // of the segment; empty: `advertised` with the port that was found
};

// From local_name, bind_address and control_port. INVALID_PARAMS for a host that does not resolve.
Result<ControlAddress> ChooseControlAddress(const TransferEngineOptions& options);

// On the port asked for, or a free one from the options' range, tried from a random one on. RPC_FAIL naming the
// address and port.
Result<std::unique_ptr<rpc::RpcServer>> ListenForControl(rpc::IoPool& io, const ControlAddress& address,
                                                         const TransferEngineOptions& options, rpc::Identity self);

}  // namespace mooncake
