// For builds without the bridge.
#include "bench/bridge_bench.h"
#include "transfer_engine/protocol_names.h"

namespace mooncake::bench {
namespace {

std::unexpected<Status> NotBuilt() {
  return Error(ErrorCode::NOT_SUPPORTED_TRANSPORT, "the bridge is not part of this build: {} was OFF",
               kBridgeBuildOption);
}

}  // namespace

Result<BridgeBenchResult> RunBridgeBench(const BridgeBenchOptions& /*options*/) {
  return NotBuilt();
}

Result<void> ServeVirtualTime(int /*runs*/, bool /*quick*/) {
  return NotBuilt();
}

}  // namespace mooncake::bench
