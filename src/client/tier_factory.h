// From tier configuration to open tiers.
#pragma once

#include <memory>
#include <vector>

#include "device/npu_runtime.h"
#include "tiered_cache/cache_tier.h"
#include "tiered_cache/tier_config.h"

namespace mooncake {

// Which tiers this build can open; for the configuration reader, so that its errors name the option to turn on.
TierSupport BuiltTierSupport();

struct OpenedTiers {
  std::vector<std::shared_ptr<CacheTier>> tiers;  // in the order of the configuration
  std::shared_ptr<NpuRuntime> npu_runtime;        // null without NPU tiers
};

// The first tier that cannot be opened fails all, with its place in the configuration; those opened before are closed.
// NPU tiers are opened first, so that DRAM tiers can be page-locked for the device of the first one. A capacity in
// percent is a share of what is free when its tier is opened, after the tiers opened before it: free memory of the
// device, MemAvailable of the host, or free huge pages. It is rounded down to whole pages.
Result<OpenedTiers> OpenTiers(const TieredBackendConfig& config);

}  // namespace mooncake
