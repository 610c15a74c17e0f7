// What kind of memory an address of the application is.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "common/status.h"
#include "device/memory_range.h"
#include "device/npu_runtime.h"

namespace mooncake {

// Registered regions, and the runtime's word for all others. Any thread.
class LocalMemory {
 public:
  explicit LocalMemory(std::shared_ptr<NpuRuntime> runtime) : runtime_(std::move(runtime)) {}

  // Registering the same region again is counted; a partial overlap is INVALID_PARAMS with both ranges.
  Result<void> Register(void* address, size_t size);
  // INVALID_PARAMS unless `address` is the start of a registered region.
  Result<void> Unregister(void* address);
  // The range as host or NPU memory. An address that no runtime claims is host memory.
  MemoryRange Classify(void* address, size_t size) const;

 private:
  struct Region {
    size_t size;
    size_t count;
    int32_t device_id;  // -1: host
  };
  int32_t DeviceOf(const void* address) const;

  const std::shared_ptr<NpuRuntime> runtime_;  // null without NPU tiers
  mutable std::mutex mutex_;
  std::map<uintptr_t, Region> regions_;
};

}  // namespace mooncake
