// This process's own segment: its descriptor as peers should know it, and its entry on a metadata server.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "transfer_engine/metadata/metadata_store.h"
#include "transfer_engine/region_registry.h"
#include "transfer_engine/segment.h"
#include "transfer_engine/transport.h"

namespace mooncake {

// Made anew when the registered memory has changed, else remembered. Any thread. What it refers to outlives it.
class SelfSegment {
 public:
  // `base`: all but what transports and regions add.
  SelfSegment(SegmentDescriptor base, const RegionRegistry& regions,
              std::span<const std::unique_ptr<Transport>> transports)
      : base_(std::move(base)), regions_(regions), transports_(transports) {}

  SegmentPtr Descriptor() const { return Current()->segment; }
  // Its JSON; null when `revision` of this process is what the asker has.
  std::shared_ptr<const std::string> Text(const Uuid& generation, uint64_t revision) const;

 private:
  struct Snapshot {
    SegmentPtr segment;
    std::string text;
  };
  std::shared_ptr<const Snapshot> Current() const;

  const SegmentDescriptor base_;
  const RegionRegistry& regions_;
  const std::span<const std::unique_ptr<Transport>> transports_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Snapshot> snapshot_;
};

// Any thread. What it refers to outlives it.
class SegmentPublisher {
 public:
  SegmentPublisher(MetadataStore& store, const SelfSegment& self) : store_(store), self_(self) {}

  // Where the control port is.
  Result<void> PublishAddress(Deadline deadline);
  // Until the server has a descriptor at least as new as the one at the time of the call. One write at a time; callers
  // that come while one is under way share the next.
  Result<void> Publish(Deadline deadline);
  // Takes both entries back, unless another process has taken the name over.
  Result<void> Withdraw(Deadline deadline);

 private:
  MetadataStore& store_;
  const SelfSegment& self_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool writing_ = false;
  uint64_t begun_ = 0;
  uint64_t done_ = 0;
  Result<void> last_;
};

}  // namespace mooncake
