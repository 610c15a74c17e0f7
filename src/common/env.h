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
inline constexpr Variable kTcpDataPort{"MC_TCP_DATA_PORT",
                                       "port of the tcp transport's data connections (default: any free one)"};
inline constexpr Variable kTcpLanesPerPeer{"MC_TCP_LANES_PER_PEER",
                                           "1..16: most data connections to one peer over tcp (default 4)"};
inline constexpr Variable kTcpMaxConnections{"MC_TCP_MAX_CONNECTIONS",
                                             "data connections accepted from all peers at a time (default 2048)"};
inline constexpr Variable kTcpCongestion{
    "MC_TCP_CONGESTION",
    "congestion control of data connections (default: the system's; on the same host cubic or reno)"};
inline constexpr Variable kTcpInterface{"MC_TCP_INTERFACE",
                                        "network device that data connections are bound to (default: any)"};

// Value of a variable, nullopt when unset. Call at start-up only: the environment is not guarded against setenv.
std::optional<std::string> Get(const Variable& variable);

// All of the above, for --help and the configuration reference.
std::span<const Variable* const> All();

}  // namespace mooncake::env
