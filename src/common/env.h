// Every environment variable this product reads, in one table, so that --help can list them.
#pragma once

#include <optional>
#include <span>
#include <string>

namespace mooncake::env {

struct Variable {
  const char* name;
  const char* meaning;
};

inline constexpr Variable kTieredConfigSeedSpelling{
    "MOONCAKE_TIRED_CONFIG", "tier JSON (text or file path) used when the configuration argument is empty"};
inline constexpr Variable kTieredConfig{"MOONCAKE_TIERED_CONFIG",
                                        "same, corrected spelling; MOONCAKE_TIRED_CONFIG wins when both are set"};
inline constexpr Variable kLogLevel{"MC_LOG_LEVEL", "debug | info | warn | error | off (default info)"};
inline constexpr Variable kAclLibrary{"MC_ACL_LIBRARY",
                                      "path of the ACL runtime library (default: libascendcl.so, then libacl_rt.so)"};
inline constexpr Variable kNpuStaging{
    "MC_NPU_STAGING",
    "page-locked memory per NPU that copies of ordinary host memory pass through (default 16MB); 0: the driver's way"};
inline constexpr Variable kUseHugepage{"MC_STORE_USE_HUGEPAGE",
                                       "1: DRAM tiers on huge pages, unless a tier says \"hugepages\" itself"};
inline constexpr Variable kHugepageSize{"MC_STORE_HUGEPAGE_SIZE",
                                        "2MB (default) | 1GB: their size, with MC_STORE_USE_HUGEPAGE"};
inline constexpr Variable kMetadataClusterId{
    "MC_METADATA_CLUSTER_ID", "keys on a metadata server begin with mooncake/<this>/ (default: mooncake/)"};
inline constexpr Variable kRedisUsername{"MC_REDIS_USERNAME", "user at a redis:// metadata server (default: its own)"};
inline constexpr Variable kRedisPassword{"MC_REDIS_PASSWORD", "password there (default: no AUTH)"};
inline constexpr Variable kRedisDatabase{"MC_REDIS_DB_INDEX", "database there, 0 (default) to 255"};

// Value of a variable, nullopt when unset. Call at start-up only: the environment is not guarded against setenv.
std::optional<std::string> Get(const Variable& variable);

// All of the above, for --help and the configuration reference.
std::span<const Variable* const> All();

}  // namespace mooncake::env
