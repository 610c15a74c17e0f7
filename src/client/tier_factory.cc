// Opens tiers by their configured type.
#include "client/tier_factory.h"

#include <map>

#include "tiered_cache/tiers/ascend_tier.h"
#include "tiered_cache/tiers/dram_tier.h"

namespace mooncake {
namespace {

Result<std::shared_ptr<CacheTier>> OpenTier(const TierConfig& config, const std::shared_ptr<NpuRuntime>& runtime,
                                            size_t promised) {
  if (config.type == kAscendTierType) {
    return MC_TRY(AscendCacheTier::Open({.capacity = config.capacity_bytes,
                                         .priority = config.priority,
                                         .tags = config.tags,
                                         .device_id = config.device_id,
                                         .promised = promised},
                                        runtime));
  }
  DramTier::Options options;
  options.capacity = config.capacity_bytes;
  options.priority = config.priority;
  options.tags = config.tags;
  options.numa_node = config.numa_node;
  options.promised = promised;
  return MC_TRY(DramTier::Open(options));
}

}  // namespace

TierSupport BuiltTierSupport() {
  TierSupport support{.ascend_npu = NpuSupportBuilt(), .ascend_npu_why_not = {}};
  if (!support.ascend_npu) {
    support.ascend_npu_why_not =
        fmt::format("this build has no NPU support; configure it with -D{}=ON", kNpuBuildOption);
  }
  return support;
}

Result<OpenedTiers> OpenTiers(const TieredBackendConfig& config) {
  OpenedTiers opened;
  std::map<std::pair<std::string, int32_t>, size_t> promised;  // by kind of memory and device
  for (const TierConfig& tier : config.tiers) {
    const auto here = [&](const Status& status) { return Annotate(status, config.Where(tier)); };
    if (tier.type == kAscendTierType && opened.npu_runtime == nullptr) {
      auto runtime = OpenNpuRuntime();
      if (!runtime) return here(runtime.error());
      opened.npu_runtime = std::move(*runtime);
    }
    size_t& promised_here = promised[{tier.type, tier.device_id}];
    auto made = OpenTier(tier, opened.npu_runtime, promised_here);
    if (!made) return here(made.error());
    promised_here += tier.capacity_bytes;
    opened.tiers.push_back(std::move(*made));
  }
  return opened;
}

}  // namespace mooncake
