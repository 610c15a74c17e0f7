// Opening NPU tiers in tests, and looking into their blocks and errors.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tiered_cache/tiers/ascend_tier.h"

namespace mooncake {

inline constexpr size_t kMiB = size_t{1} << 20;

// Driver allocations per block unless told otherwise.
inline Result<std::shared_ptr<AscendCacheTier>> OpenTier(
    const std::shared_ptr<NpuRuntime>& runtime, size_t capacity, int32_t device_id = 0,
    AscendCacheTier::Allocation allocation = AscendCacheTier::Allocation::kDirect, size_t slab_size = 0) {
  return AscendCacheTier::Open({.capacity = capacity,
                                .priority = 100,
                                .tags = {"npu"},
                                .device_id = device_id,
                                .allocation = allocation,
                                .slab_size = slab_size},
                               runtime);
}
inline Result<std::shared_ptr<AscendCacheTier>> OpenSlabTier(const std::shared_ptr<NpuRuntime>& runtime,
                                                             size_t capacity, size_t slab_size = 0,
                                                             int32_t device_id = 0) {
  return OpenTier(runtime, capacity, device_id, AscendCacheTier::Allocation::kSlab, slab_size);
}

inline void ExpectSays(const Status& status, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos) << part << " in: " << status.message();
  }
}

inline const AscendBufferBase& NpuOf(const DataSource& data) {
  return dynamic_cast<const AscendBufferBase&>(*data.buffer);
}

}  // namespace mooncake
