// Stands in for device/acl in builds without USE_ASCEND_CACHE_TIER.
#include "device/npu_runtime.h"

namespace mooncake {

bool NpuSupportBuilt() {
  return false;
}

Result<std::shared_ptr<NpuRuntime>> OpenNpuRuntime() {
  return Error(ErrorCode::NOT_IMPLEMENTED, "this build has no NPU support; configure it with -D{}=ON", kNpuBuildOption);
}

std::shared_ptr<NpuRuntime> UsedNpuRuntime() {
  return nullptr;
}

}  // namespace mooncake
