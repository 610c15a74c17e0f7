// Reads environment variables; nothing else in the product calls getenv.
#include "common/env.h"

#include <cstdlib>

namespace mooncake::env {

std::optional<std::string> Get(const Variable& variable) {
  const char* value = std::getenv(variable.name);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

Result<bool> GetFlag(const Variable& variable) {
  const std::string value = Get(variable).value_or("");
  if (value == "1" || value == "true" || value == "on") return true;
  if (value.empty() || value == "0" || value == "false" || value == "off") return false;
  return Error(ErrorCode::INVALID_PARAMS, "{}='{}': 1 or 0 expected", variable.name, value);
}

std::span<const Variable* const> All() {
  static constexpr const Variable* kAll[] = {
      &kTieredConfigSeedSpelling,
      &kTieredConfig,
      &kLogLevel,
      &kAclLibrary,
      &kNpuStaging,
      &kUseHugepage,
      &kHugepageSize,
      &kForceTcp,
      &kStrictProtocol,
      &kTransferTimeout,
      &kTransferSpin,
      &kCustomTopology,
      &kTcpBindAddress,
      &kDeviceFilter,
      &kLegacyRpcPortBinding,
      &kMinRpcPort,
      &kMaxRpcPort,
      &kShmAnyUser,
      &kTcpDataPort,
      &kTcpLanesPerPeer,
      &kTcpMaxConnections,
      &kTcpLendBytes,
      &kTcpCongestion,
      &kTcpInterface,
      &kMetadataClusterId,
      &kStoreClusterId,
      &kRedisUsername,
      &kRedisPassword,
      &kRedisDatabase,
      &kIbPort,
      &kGidIndex,
      &kIbGidIndex,
      &kNcclGidIndex,
      &kRdmaMtu,
      &kRdmaQueues,
      &kRdmaQueueDepth,
      &kRdmaSliceSize,
      &kRdmaMaxMrSize,
      &kRdmaRelaxedOrdering,
      &kIbTrafficClass,
      &kIbServiceLevel,
      &kPkeyIndex,
      &kRdmaRetries,
      &kSliceTimeout,
      &kNoSameHost,
      &kNpuBridgeRing,
      &kNpuBridgeTargetRing,
      &kNpuBridgeSlot,
      &kNpuBridgeChunk,
      &kNpuBridgeSmall,
      &kNpuBridgeAge,
      &kNpuBridgeRequests,
      &kNpuBridgeDevices,
  };
  return kAll;
}

}  // namespace mooncake::env
