// What the words and numbers of the Python module and the C interface mean to the engine, and its errors to them.
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"
#include "transfer_engine/transfer_engine.h"

namespace mooncake {

// Arguments of initialize() and createTransferEngine().
struct EngineArguments {
  std::string local_name;     // "host", "host:port", or any name when there is a metadata server
  std::string metadata;       // "P2PHANDSHAKE" or a connection string
  std::string metadata_type;  // "etcd", "redis", "http", "https": of a connection string without a scheme; or ""
  std::string protocol;       // "tcp", "rdma", "ascend_rdma", "" (whatever there is), or a name of other hardware
  std::string devices;        // RDMA devices that may be used, with commas; "": all
};

// On top of the environment. INVALID_PARAMS for an unknown protocol or metadata type. A protocol that this build does
// not have is carried by those that it has, with a warning; but for ascend_rdma, which is refused.
Result<TransferEngineOptions> EngineOptions(const EngineArguments& arguments);
// The same on given options instead of the environment.
Result<TransferEngineOptions> EngineOptions(const EngineArguments& arguments, TransferEngineOptions options);

// "*", "cpu:N" or "npu:N", which also says that the memory is the NPU's. INVALID_PARAMS otherwise.
Result<RegionOptions> RegionOptionsOf(std::string_view location, RegionAccess access = RegionAccess::kOpen);

// Of calls that return a count, an id or 0: negative, -1 for what has no number of its own.
int NegativeNumber(const Status& status);
// Of calls about transfers: positive, 999 for what has no number of its own.
int StatusNumber(const Status& status);

}  // namespace mooncake
