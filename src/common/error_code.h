// Error numbers that applications see: Python and the C API return them, HTTP and logs print their names.
#pragma once

#include <cstdint>
#include <string_view>

namespace mooncake {

// Values are part of the public contract and never change. Negative so that calls returning a byte count can share
// them.
enum class ErrorCode : int32_t {
  OK = 0,
  INTERNAL_ERROR = -1,
  NOT_IMPLEMENTED = -2,
  BUFFER_OVERFLOW = -10,
  SHARD_INDEX_OUT_OF_RANGE = -100,
  SEGMENT_NOT_FOUND = -101,
  SEGMENT_ALREADY_EXISTS = -102,
  CLIENT_NOT_FOUND = -103,
  CLIENT_ALREADY_EXISTS = -104,
  CLIENT_UNHEALTHY = -105,
  NO_AVAILABLE_CANDIDATE = -106,
  NO_AVAILABLE_HANDLE = -200,
  INVALID_VERSION = -300,
  CAS_FAILED = -301,
  INVALID_KEY = -400,
  WRITE_FAIL = -500,
  INVALID_PARAMS = -600,
  ILLEGAL_CLIENT = -601,
  NON_CONTIGUOUS_BUFFER_NOT_SUPPORTED = -602,
  INVALID_WRITE = -700,
  INVALID_READ = -701,
  INVALID_REPLICA = -702,
  REPLICA_IS_NOT_READY = -703,
  OBJECT_NOT_FOUND = -704,
  OBJECT_ALREADY_EXISTS = -705,
  OBJECT_HAS_LEASE = -706,
  LEASE_EXPIRED = -707,
  OBJECT_HAS_REPLICATION_TASK = -708,
  OBJECT_NO_REPLICATION_TASK = -709,
  REPLICA_NOT_FOUND = -710,
  REPLICA_ALREADY_EXISTS = -711,
  REPLICA_IS_GONE = -712,
  REPLICA_NUM_EXCEEDED = -713,
  REPLICA_IS_PROCESSING = -714,
  TRANSFER_FAIL = -800,
  RPC_FAIL = -900,
  HEARTBEAT_RPC_UNREACHABLE = -901,
  HEARTBEAT_ROUTING_MISMATCH = -902,
  ETCD_OPERATION_ERROR = -1000,
  ETCD_KEY_NOT_EXIST = -1001,
  ETCD_TRANSACTION_FAIL = -1002,
  ETCD_CTX_CANCELLED = -1003,
  OPLOG_ENTRY_NOT_FOUND = -1004,
  OPLOG_TRIMMED = -1005,
  UNAVAILABLE_IN_CURRENT_STATUS = -1010,
  UNAVAILABLE_IN_CURRENT_MODE = -1011,
  FILE_NOT_FOUND = -1100,
  FILE_OPEN_FAIL = -1101,
  FILE_READ_FAIL = -1102,
  FILE_WRITE_FAIL = -1103,
  FILE_INVALID_BUFFER = -1104,
  FILE_LOCK_FAIL = -1105,
  FILE_INVALID_HANDLE = -1106,
  BUCKET_NOT_FOUND = -1200,
  BUCKET_ALREADY_EXISTS = -1201,
  KEYS_EXCEED_BUCKET_LIMIT = -1202,
  KEYS_ULTRA_LIMIT = -1203,
  UNABLE_OFFLOAD = -1300,
  UNABLE_OFFLOADING = -1301,
  TASK_NOT_FOUND = -1400,
  TASK_PENDING_LIMIT_EXCEEDED = -1401,
  EMPTY_REPLICAS = -1500,
  TIER_NOT_FOUND = -1501,
  DATA_COPY_FAILED = -1502,
  SHUTTING_DOWN = -1600,
  ASYNC_ENQUEUE_FAILED = -1601,
  // Of the transfer engine. Its C interface has numbers of its own for some of these (transfer_engine_c.h).
  TOO_MANY_REQUESTS = -2002,
  ADDRESS_NOT_REGISTERED = -2003,
  BATCH_BUSY = -2004,
  DEVICE_NOT_FOUND = -2006,
  ADDRESS_OVERLAPPED = -2007,
  NOT_SUPPORTED_TRANSPORT = -2008,
  METADATA_ERROR = -2200,
  TRANSFER_TIMEOUT = -2500,   // the deadline passed; local memory is let go of
  TRANSFER_CANCELED = -2501,  // by the application; local memory is let go of
  STALE_SEGMENT = -2502,      // the target process was restarted since it was looked up
};

// "OBJECT_NOT_FOUND"; "UNKNOWN_ERROR" for a number outside the table (a newer peer may send one).
std::string_view ErrorCodeName(ErrorCode code);

constexpr int32_t ToInt(ErrorCode code) {
  return static_cast<int32_t>(code);
}

}  // namespace mooncake
