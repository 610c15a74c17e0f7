// One layer of the cache: a fixed amount of one kind of memory that hands out buffers.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "common/uuid.h"
#include "tiered_cache/buffer.h"

namespace mooncake {

// All of a tier's memory, when it is one run of host memory.
struct HostMemory {
  std::byte* base = nullptr;
  size_t bytes = 0;
  int memfd = -1;  // the whole file is that memory; the tier's
};

// Memory of a device that a tier keeps from its start to its end.
struct DeviceMemory {
  AscendUnifiedPointer at;
  size_t bytes = 0;
};

// Any thread. A tier outlives every buffer it handed out: AllocationHandle holds it.
class CacheTier {
 public:
  struct Info {
    Uuid id;
    std::string name;  // for messages: "DRAM", "ASCEND_NPU:0"
    MemoryType type = MemoryType::UNKNOWN;
    size_t capacity = 0;   // bytes, hard limit
    int32_t priority = 0;  // larger = faster, preferred
    std::vector<std::string> tags;
  };

  explicit CacheTier(Info info) : info_(std::move(info)) {}
  virtual ~CacheTier() = default;
  CacheTier(const CacheTier&) = delete;
  CacheTier& operator=(const CacheTier&) = delete;

  // A buffer of exactly `size` > 0 bytes, contents undefined. NO_AVAILABLE_HANDLE when the tier is full (vendor_code 0)
  // or its device refuses (vendor_code set): a result, not something to log.
  virtual Result<DataSource> Allocate(size_t size) = 0;
  // Gives a buffer back: it dies here and its bytes leave the usage after its memory has gone. A null buffer is fine.
  virtual void Free(DataSource data) { data.buffer.reset(); }
  // Bytes handed out and not yet given back, as the tier rounds them; never above capacity.
  virtual size_t usage() const = 0;
  // The largest block that could be allocated now, for messages: another thread may take it. Default: an upper bound.
  virtual size_t largest_hole() const { return info_.capacity - usage(); }
  // The largest block this tier can ever hold, whatever leaves it: no eviction makes room for more.
  virtual size_t largest_block() const { return info_.capacity; }
  // Blocks that the device refused although the tier had room; 0 for memory without a driver.
  virtual uint64_t device_refusals() const { return 0; }
  // For transports that reach it as a whole; nullopt for device memory.
  virtual std::optional<HostMemory> host_memory() const { return std::nullopt; }
  // The same for device memory; empty where each block is the driver's.
  virtual std::vector<DeviceMemory> device_memory() const { return {}; }
  // True once the memory is gone for good, with all it held.
  virtual bool lost() const { return false; }

  const Info& info() const { return info_; }

 protected:
  // What Allocate returns when there is no room for a block of `size` bytes.
  std::unexpected<Status> Full(size_t size) const;

 private:
  const Info info_;
};

// For errors about capacity: ", of which 2 GiB are promised to other tiers", or nothing.
std::string PromisedText(size_t promised);

}  // namespace mooncake
