// Every environment variable this product reads, in one table, so that --help can list them.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "common/status.h"

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
inline constexpr Variable kTransferSpin{
    "MC_TRANSFER_SPIN_US",
    "microseconds that threads look for the next event before they sleep, while events come that soon (default 50)"};
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
inline constexpr Variable kTcpLanesPerPeer{
    "MC_TCP_LANES_PER_PEER",
    "1..16: most data connections to one peer over tcp, and one more for brief operations (default: one per core, 4 at "
    "most)"};
inline constexpr Variable kTcpMaxConnections{"MC_TCP_MAX_CONNECTIONS",
                                             "data connections accepted from all peers at a time (default 2048)"};
inline constexpr Variable kTcpLendBytes{
    "MC_TCP_LEND_BYTES",
    "transfers of at least so many bytes are sent over tcp from where they lie, without a copy to the kernel; 0: never "
    "(default 4194304; 0 on kernels before 6.5)"};
inline constexpr Variable kTcpCongestion{
    "MC_TCP_CONGESTION",
    "congestion control of data connections (default: the system's; on the same host cubic or reno)"};
inline constexpr Variable kTcpInterface{"MC_TCP_INTERFACE",
                                        "network device that data connections are bound to (default: any)"};
inline constexpr Variable kMetadataClusterId{
    "MC_METADATA_CLUSTER_ID", "keys on a metadata server begin with mooncake/<this>/ (default: mooncake/)"};
inline constexpr Variable kStoreClusterId{"MC_STORE_CLUSTER_ID",
                                          "cluster whose leading master etcd:// finds (default mooncake_cluster)"};
inline constexpr Variable kRedisUsername{"MC_REDIS_USERNAME", "user at a redis:// metadata server (default: its own)"};
inline constexpr Variable kRedisPassword{"MC_REDIS_PASSWORD", "password there (default: no AUTH)"};
inline constexpr Variable kRedisDatabase{"MC_REDIS_DB_INDEX", "database there, 0 (default) to 255"};

inline constexpr Variable kIbPort{"MC_IB_PORT", "port of the RDMA devices (default 1)"};
inline constexpr Variable kGidIndex{
    "MC_GID_INDEX", "entry of the RDMA devices' GID table (default: RoCEv2 with an IPv4 address first)"};
inline constexpr Variable kIbGidIndex{"MC_IB_GID_INDEX", "same; MC_GID_INDEX wins when both are set"};
inline constexpr Variable kNcclGidIndex{"NCCL_IB_GID_INDEX", "same, when neither of the two is set"};
inline constexpr Variable kRdmaMtu{"MC_MTU", "256 | 512 | 1024 | 2048 | 4096: largest path MTU of RDMA (default 4096)"};
inline constexpr Variable kRdmaQueues{"MC_NUM_QP_PER_EP", "RDMA queue pairs per peer and rail (default 2)"};
inline constexpr Variable kRdmaQueueDepth{"MC_MAX_WR",
                                          "work requests that one RDMA queue pair has at once (default 128)"};
inline constexpr Variable kRdmaSliceSize{"MC_SLICE_SIZE", "bytes of one RDMA work request (default 262144)"};
inline constexpr Variable kRdmaMaxMrSize{"MC_MAX_MR_SIZE",
                                         "largest piece of memory that is registered with an RDMA device as one"};
inline constexpr Variable kRdmaRelaxedOrdering{"MC_IB_PCI_RELAXED_ORDERING",
                                               "0: RDMA devices must not reorder PCI writes (default 1: may)"};
inline constexpr Variable kIbTrafficClass{"MC_IB_TC", "traffic class of RDMA packets, 0 to 255 (default 0)"};
inline constexpr Variable kIbServiceLevel{"MC_IB_SL", "service level of RDMA packets, 0 to 15 (default 0)"};
inline constexpr Variable kPkeyIndex{"MC_PKEY_INDEX", "entry of the RDMA devices' partition key table (default 0)"};
inline constexpr Variable kRdmaRetries{"MC_RETRY_CNT", "failed work requests an RDMA transfer survives (default 9)"};
inline constexpr Variable kSliceTimeout{
    "MC_SLICE_TIMEOUT", "seconds without any completion after which an RDMA queue pair is given up (default 15)"};
inline constexpr Variable kNoSameHost{
    "MC_NO_SAME_HOST", "1: the transfer engine reaches memory of its own host like that of others (for trials)"};
inline constexpr Variable kNpuBridgeRing{
    "MC_NPU_BRIDGE_RING",
    "host memory per NPU that its transfers to other hosts pass through (default 64MB, at most 3GB)"};
inline constexpr Variable kNpuBridgeTargetRing{
    "MC_NPU_BRIDGE_TARGET_RING",
    "host memory per NPU that transfers of other hosts from and to it pass through (default 32MB; 0: none do)"};
inline constexpr Variable kNpuBridgeSlot{"MC_NPU_BRIDGE_SLOT", "what it is divided into, whole pages (default 2MB)"};
inline constexpr Variable kNpuBridgeChunk{
    "MC_NPU_BRIDGE_CHUNK", "pieces of a large transfer, at most a slot (default: by the speed of the NPU's copies)"};
inline constexpr Variable kNpuBridgeSmall{"MC_NPU_BRIDGE_SMALL",
                                          "transfers below this size share slots (default 2MB, at most a slot)"};
inline constexpr Variable kNpuBridgeAge{
    "MC_NPU_BRIDGE_AGE_US", "microseconds a small transfer waits for others while the NPU is busy (default 50)"};
inline constexpr Variable kNpuBridgeRequests{
    "MC_NPU_BRIDGE_REQUESTS",
    "transfers that may wait for one NPU, three quarters of them for one peer (default 1048576)"};
inline constexpr Variable kNpuBridgeDevices{
    "MC_NPU_BRIDGE_DEVICES",
    "NPUs, with commas, made ready when the engine opens with protocol ascend_rdma (default: at their first use)"};

// Value of a variable, nullopt when unset. Call at start-up only: the environment is not guarded against setenv.
std::optional<std::string> Get(const Variable& variable);

// A variable that is 1 or 0 (true, on, false, off); false when unset or empty. INVALID_PARAMS for anything else.
Result<bool> GetFlag(const Variable& variable);

// All of the above, for --help and the configuration reference.
std::span<const Variable* const> All();

}  // namespace mooncake::env
