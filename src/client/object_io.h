// Small vocabulary of the object paths: what is put, what is got, and limits of one request.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "common/status.h"
#include "device/memory_range.h"
#include "tiered_cache/buffer.h"
#include "transfer_engine/transport/rpc_transport.h"

namespace mooncake {

// Values of one request or reply travel together up to this many bytes; larger objects go through windows. One staging
// slot holds it.
inline constexpr uint64_t kInlineBytes = kTransferChunkBytes;
// Keys of one request.
inline constexpr size_t kInlineKeys = 1024;

struct PutItem {
  std::string_view key;
  MemoryRange value;
};
struct GetItem {
  std::string_view key;
  MemoryRange target;  // at least as large as the object
};

// Where a value came from.
struct ObjectInfo {
  uint64_t size = 0;
  MemoryType type = MemoryType::UNKNOWN;
  bool local = false;
};

// The value of one key in host memory: a view of the tier's own bytes when the object is local DRAM, else a copy. The
// bytes stay as they are for as long as this lives, whatever happens to the key.
struct ObjectBytes {
  HostRange bytes;
  std::shared_ptr<const void> keep_alive;
  ObjectInfo info;
};

// How long a put waits for room when everything that could leave a full tier is in use; once per call, not per key.
inline constexpr auto kRoomWait = std::chrono::milliseconds(500);

// Borrowed views between the tiers' vocabulary and the transfer engine's. The buffer must be addressable.
DataSource AsDataSource(const MemoryRange& range);
MemoryRange AsMemoryRange(const DataSource& data);

}  // namespace mooncake
