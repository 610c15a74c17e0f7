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

// Value of a variable, nullopt when unset. Call at start-up only: the environment is not guarded against setenv.
std::optional<std::string> Get(const Variable& variable);

// All of the above, for --help and the configuration reference.
std::span<const Variable* const> All();

}  // namespace mooncake::env
