// Looking up a region in a descriptor.
#include "transfer_engine/segment.h"

#include <algorithm>

namespace mooncake {

const SegmentRegion* SegmentDescriptor::Find(uint64_t first, uint64_t bytes) const {
  const auto after = std::ranges::upper_bound(regions, first, {}, &SegmentRegion::address);
  if (after == regions.begin()) return nullptr;
  const SegmentRegion& region = *std::prev(after);
  return region.Covers(first, bytes) ? &region : nullptr;
}

}  // namespace mooncake
