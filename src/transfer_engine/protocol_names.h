// What the word for "protocol" that applications configure means to the engine.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace mooncake {

// Brings NPU memory to peers that only host transports reach; works on this side alone, no peer learns the name.
inline constexpr const char* kBridgeProtocol = "ascend_rdma";
inline constexpr const char* kBridgeBuildOption = "USE_ASCEND_RDMA";
// NOT_SUPPORTED_TRANSPORT in a build without it.
Result<void> CheckBridgeBuilt();

// TransferEngineOptions::protocols of a configured name: "" (the best there is), "rdma", "tcp", "rpc_only" (tcp), and
// the names for NPU memory, "ascend", "ascend_direct" and "ascend_rdma", whose host memory moves as under "rdma".
// INVALID_PARAMS naming the known ones for any other, CheckBridgeBuilt's error. With `force_tcp` (MC_FORCE_TCP) every
// name means tcp, also below the bridge.
Result<std::vector<std::string>> ProtocolsOf(std::string_view name, bool force_tcp);

// "mlx5_0,mlx5_1" -> {"mlx5_0", "mlx5_1"}; blanks and empty parts are left out.
std::vector<std::string> DeviceList(std::string_view text);

}  // namespace mooncake
