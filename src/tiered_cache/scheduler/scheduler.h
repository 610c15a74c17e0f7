// What decides which blocks leave a full tier. The backend calls it; event-driven schedulers fit behind the same
// interface.
#pragma once

#include <cstddef>

#include "tiered_cache/metadata_entry.h"

namespace mooncake {

// Any thread; called without locks.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  // A block of `entry` was placed on tier `tier_index`.
  virtual void OnPlaced(size_t tier_index, const EntryPtr& entry) = 0;
  // Tier `tier_index` could not hold `size` more bytes. Lets blocks go until about that much was freed; false when it
  // found nothing to let go of, so that trying again is pointless.
  virtual bool OnAllocationFailure(size_t tier_index, size_t size) = 0;
};

}  // namespace mooncake
