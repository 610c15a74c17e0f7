// Table of protocol names.
#include "transfer_engine/protocol_names.h"

#include <algorithm>
#include <array>

namespace mooncake {

Result<void> CheckBridgeBuilt() {
#ifdef MC_HAS_ASCEND_RDMA
  return {};
#else
  return Error(ErrorCode::NOT_SUPPORTED_TRANSPORT, "protocol '{}' is not part of this build: {} was OFF",
               kBridgeProtocol, kBridgeBuildOption);
#endif
}

Result<std::vector<std::string>> ProtocolsOf(std::string_view name, bool force_tcp) {
  if (name == kBridgeProtocol) {
    MC_TRY(CheckBridgeBuilt());
    if (force_tcp) return std::vector<std::string>{"tcp", kBridgeProtocol};
    return std::vector<std::string>{"rdma", "tcp", kBridgeProtocol};
  }
  if (force_tcp) return std::vector<std::string>{"tcp"};
  constexpr std::array<std::string_view, 4> kBest = {"", "rdma", "ascend", "ascend_direct"};
  if (std::ranges::count(kBest, name) > 0) return std::vector<std::string>{"rdma", "tcp"};
  if (name == "tcp" || name == "rpc_only") return std::vector<std::string>{"tcp"};
  return Error(ErrorCode::INVALID_PARAMS,
               "unknown protocol '{}': rdma, tcp, ascend, ascend_direct, ascend_rdma or rpc_only", name);
}

std::vector<std::string> DeviceList(std::string_view text) {
  std::vector<std::string> devices;
  std::string device;
  for (const char c : text) {
    if (c == ',') {
      if (!device.empty()) devices.push_back(std::exchange(device, {}));
    } else if (c != ' ') {
      device += c;
    }
  }
  if (!device.empty()) devices.push_back(std::move(device));
  return devices;
}

}  // namespace mooncake
