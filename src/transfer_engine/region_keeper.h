// Registration as applications see it: every transport and the metadata server, all or nothing.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "transfer_engine/multi_transport.h"
#include "transfer_engine/self_segment.h"
#include "transfer_engine/transport/shm/shared_buffer.h"

namespace mooncake {

// Any thread. What it refers to outlives it.
class RegionKeeper {
 public:
  // `publisher`: null without a metadata server. `drain_timeout`: how long an end of registration waits for users.
  RegionKeeper(RegionRegistry& regions, MultiTransport& transports, SegmentPublisher* publisher, Duration drain_timeout)
      : regions_(regions), transports_(transports), publisher_(publisher), drain_timeout_(drain_timeout) {}

  // See TransferEngine.
  Result<void> Register(std::span<const HostRange> ranges, const RegionOptions& options);
  Result<void> Unregister(std::span<void* const> addresses);
  Result<void*> Allocate(size_t length, std::string location);
  Result<void> Free(void* address);

 private:
  struct Added {
    std::vector<std::shared_ptr<Region>> regions;  // new, in the order they were reserved
    std::vector<uint64_t> counted;                 // had been registered before
    bool published = false;
  };
  struct Allocation {
    std::unique_ptr<SharedBuffer> buffer;
    std::shared_ptr<Region> leaving;  // unregistered, but not unused yet
    bool freeing = false;
  };

  Result<void> Add(const HostRange& range, RegionOptions options, Added& added);
  Result<void> Install(Region& region);
  void Undo(Added& added);
  void Withdraw(const Region& region);
  Result<void> PublishIf(bool changed);
  Result<void> Vacate(uint64_t address, Allocation& allocation);

  RegionRegistry& regions_;
  MultiTransport& transports_;
  SegmentPublisher* const publisher_;
  const Duration drain_timeout_;
  std::mutex mutex_;
  std::map<uint64_t, Allocation> allocations_;
};

}  // namespace mooncake
