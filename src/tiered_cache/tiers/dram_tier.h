// DRAM as a tier: one shared-memory mapping, cut up by the offset allocator.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "tiered_cache/cache_tier.h"
#include "tiered_cache/offset_allocator.h"

namespace mooncake {

// The memory is a memfd, so that processes of the same host can map it later. Any thread.
class DramTier final : public CacheTier {
 public:
  struct Options {
    size_t capacity = 0;
    int32_t priority = 0;
    std::vector<std::string> tags;
    std::optional<int> numa_node;
    size_t promised = 0;  // bytes that other DRAM tiers of this process may come to use
    // Touch all pages on a background thread right after start, so that no put pays for page faults.
    bool prefault = true;
  };

  // INVALID_PARAMS for a capacity above the host's memory or a missing NUMA node, NO_AVAILABLE_HANDLE when the mapping
  // fails.
  static Result<std::shared_ptr<DramTier>> Open(const Options& options);
  ~DramTier() override;

  Result<DataSource> Allocate(size_t size) override;
  size_t usage() const override;

 private:
  class Buffer;
  struct Mapping {
    std::byte* base;
    size_t bytes;
    int memfd;
  };

  DramTier(Info info, Mapping mapping);
  void StartPrefault();
  void Release(OffsetAllocator::Range range);

  const Mapping mapping_;
  mutable std::mutex mutex_;  // guards allocator_
  OffsetAllocator allocator_;
  std::atomic<bool> stopping_{false};
  std::thread prefault_;
};

}  // namespace mooncake
