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
inline constexpr Variable kForceTcp{"MC_FORCE_TCP", "1: the transfer engine uses tcp only, whatever protocol is named"};
inline constexpr Variable kStrictProtocol{"MC_STRICT_PROTOCOL",
                                          "1: a protocol that cannot be had is an error, not replaced by tcp"};
inline constexpr Variable kTransferTimeout{"MC_TRANSFER_TIMEOUT",
                                           "seconds a transfer may take beside 1 ns per byte (default 30, at least 5)"};
inline constexpr Variable kCustomTopology{"MC_CUSTOM_TOPO_JSON",
                                          "which RDMA devices are near which memory: JSON, or the path of a file"};
inline constexpr Variable kTcpBindAddress{
    "MC_TCP_BIND_ADDRESS", "address the transfer engine's ports are bound to (default: of its own name)"};
inline constexpr Variable kDeviceFilter{"MC_TE_FILTERS", "RDMA devices that may be used, with commas (default: all)"};
inline constexpr Variable kLegacyRpcPortBinding{
    "MC_LEGACY_RPC_PORT_BINDING", "1: the transfer engine listens on the port its caller names, not on a free one"};
inline constexpr Variable kMinRpcPort{"MC_MIN_RPC_PORT", "lowest port the transfer engine looks for (default 15000)"};
inline constexpr Variable kMaxRpcPort{"MC_MAX_RPC_PORT", "highest port the transfer engine looks for (default 17000)"};
inline constexpr Variable kShmAnyUser{
    "MC_SHM_ANY_USER", "1: processes of every user of this host may map registered shared memory (default: same user)"};
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
