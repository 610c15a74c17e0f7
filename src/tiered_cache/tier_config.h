// The tier configuration: where it comes from, what it may say, and the plain structs the tiers are built from.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/env.h"
#include "common/json_text.h"
#include "common/status.h"

namespace mooncake {

inline constexpr std::string_view kDramTierType = "DRAM";
inline constexpr std::string_view kAscendTierType = "ASCEND_NPU";
// Read when no configuration argument was given at all; relative to the working directory.
inline constexpr std::string_view kDefaultTieredConfigPath = "conf/tiered_backend.json";

// One tier as configured. Which fields a type has is said by TierConfigKeys().
struct TierConfig {
  std::string type;                        // kDramTierType or kAscendTierType; aliases are resolved
  uint64_t capacity_bytes = 0;             // hard limit; 0 when it is a share of what is free
  double capacity_percent = 0;             // of the memory free when the tier is opened; 0: capacity_bytes counts
  int32_t priority = 0;                    // larger = preferred
  std::vector<std::string> tags;           // as written
  std::string allocator_type = "OFFSET";   // the allocator that is used, not the one that was asked for
  std::optional<int> numa_node;            // DRAM; unset = no binding
  std::optional<uint64_t> hugepage_bytes;  // DRAM; 0: ordinary pages, unset: not said anywhere, ordinary too
  int32_t device_id = 0;                   // ASCEND_NPU
  bool direct_allocation = false;          // ASCEND_NPU; false: slabs
  uint64_t slab_bytes = 0;                 // ASCEND_NPU; 0: all in one slab
  TextPosition position;                   // where the tier stands in the configuration
  std::string path;                        // "$.tiers[1]"
};

struct TieredBackendConfig {
  std::vector<TierConfig> tiers;     // at least one
  std::string source;                // file path, variable or argument name, for messages
  std::vector<std::string> notices;  // accepted but worth a warning at start; each names its place

  // "conf/tiered_backend.json:3:5: $.tiers[0]", the beginning of a later error about a tier (device absent, no memory).
  std::string Where(const TierConfig& tier) const { return JsonPlace(source, tier.position, tier.path); }
};

// What this build can do.
struct TierSupport {
  bool ascend_npu = false;
  std::string ascend_npu_why_not;  // added to the error when an ASCEND_NPU tier is refused; may be empty
};

// One row per key a tier object may have. The parser works from the same table, so this is the reference.
struct TierConfigKey {
  std::string_view name;
  std::string tier_types;  // "all", "DRAM", "ASCEND_NPU", ...
  std::string_view form;   // what a value may look like
  std::string_view default_value;
  std::string_view meaning;
  bool built = true;  // false: known, refused as "not built yet"
};
std::vector<TierConfigKey> TierConfigKeys();

// `source` names the text in messages. Every error is INVALID_PARAMS and gives source:line:column, JSON path, the bad
// value and what is allowed. Comments are allowed. Any thread.
Result<TieredBackendConfig> ParseTieredBackendConfig(std::string_view text, std::string_view source,
                                                     const TierSupport& support);

using EnvLookup = std::function<std::optional<std::string>(const env::Variable&)>;  // env::Get outside tests

// Fills in what the tiers leave to the environment (huge pages of DRAM tiers). LoadTieredBackendConfig does it by
// itself.
Result<TieredBackendConfig> WithTierEnvironment(Result<TieredBackendConfig> config, const EnvLookup& lookup);

// Finds the configuration and parses it. In this order: the argument, MOONCAKE_TIRED_CONFIG, MOONCAKE_TIERED_CONFIG,
// and, only when the argument is absent (nullopt, not empty), `default_path`. Blank counts as not given. An argument or
// variable that starts with '{', '[', a comment or a byte order mark is the configuration itself, else a file path.
// DRAM tiers that do not say "hugepages" follow MC_STORE_USE_HUGEPAGE and MC_STORE_HUGEPAGE_SIZE. Blocks on file
// reading.
Result<TieredBackendConfig> LoadTieredBackendConfig(std::optional<std::string_view> argument, const EnvLookup& lookup,
                                                    const TierSupport& support,
                                                    std::string_view default_path = kDefaultTieredConfigPath);

}  // namespace mooncake
