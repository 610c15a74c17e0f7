// DRAM as a tier: one shared-memory mapping, cut up by the offset allocator.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "common/fd.h"
#include "device/npu_runtime.h"
#include "tiered_cache/cache_tier.h"
#include "tiered_cache/offset_allocator.h"

namespace mooncake {

// The memory is a memfd of fixed size, so that processes of the same host can map it without fear of a bus error. Any
// thread.
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
    size_t huge_page_bytes = 0;  // 2 MiB or 1 GiB; 0: ordinary pages. The capacity must be a multiple.
    // The background thread also page-locks the memory for copies from and to this device, piece by piece, also
    // without `prefault`. What cannot be locked is said once; copies there are slower, and right.
    std::shared_ptr<NpuRuntime> pin_with = nullptr;
    int32_t pin_device = 0;
    size_t pin_piece_bytes = size_t{1} << 30;  // a multiple of 4 KiB
  };

  // INVALID_PARAMS for a capacity above the host's memory or not of whole huge pages, for a missing NUMA node or page
  // size; NO_AVAILABLE_HANDLE when there are too few huge pages (the error says how many and how to get them) or the
  // mapping fails. Memory that is promised here is there later: huge pages are reserved, those of one node touched too.
  static Result<std::shared_ptr<DramTier>> Open(const Options& options);
  // Stops and waits for the background thread (at most for one piece), unlocks, unmaps. No block may be out.
  ~DramTier() override;

  Result<DataSource> Allocate(size_t size) override;
  size_t usage() const override;
  size_t largest_hole() const override;

  std::optional<HostMemory> host_memory() const override {
    return HostMemory{.base = mapping_->base, .bytes = mapping_->bytes, .memfd = mapping_->memfd.get()};
  }

  // Bytes page-locked so far.
  size_t pinned_bytes() const { return pinned_bytes_.load(std::memory_order_acquire); }
  // Returns when the background thread has done what it will do: then the numbers stay.
  void WaitReady() const { ready_.wait(false, std::memory_order_acquire); }

 private:
  class Buffer;
  // Of the whole tier; unmapped and closed when it dies.
  struct Mapping {
    Mapping(std::byte* start, size_t size, Fd fd) : base(start), bytes(size), memfd(std::move(fd)) {}
    Mapping(const Mapping&) = delete;
    ~Mapping();
    std::byte* const base;
    const size_t bytes;
    const Fd memfd;
  };

  static Result<std::unique_ptr<Mapping>> Map(const Options& options);
  DramTier(Info info, std::unique_ptr<Mapping> mapping, const Options& options);
  void RunBackground();
  // Both on the background thread; false: do no more of it. Touch also when the tier is being destroyed.
  bool Touch(size_t begin, size_t end);
  bool Pin(size_t begin, size_t end);
  void Release(OffsetAllocator::Range range);

  const std::unique_ptr<Mapping> mapping_;
  const std::shared_ptr<NpuRuntime> pin_with_;
  const int32_t pin_device_;
  const size_t piece_bytes_;
  mutable std::mutex mutex_;  // guards allocator_
  OffsetAllocator allocator_;
  std::vector<std::shared_ptr<void>> pins_;  // the background thread's, then the destructor's
  std::atomic<size_t> pinned_bytes_{0};
  std::atomic<bool> ready_{true};
  std::atomic<bool> stopping_{false};
  std::thread background_;
};

}  // namespace mooncake
