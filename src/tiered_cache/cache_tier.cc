// Texts shared by the tiers.
#include "tiered_cache/cache_tier.h"

#include "common/byte_size.h"

namespace mooncake {

std::unexpected<Status> CacheTier::Full(size_t size) const {
  return Error(ErrorCode::NO_AVAILABLE_HANDLE, "tier {} has no room for {} B (used {} of {} B, largest hole {} B)",
               info_.name, size, usage(), info_.capacity, largest_hole());
}

std::string PromisedText(size_t promised) {
  return promised == 0 ? "" : fmt::format(", of which {} are promised to other tiers", FormatBytes(promised));
}

}  // namespace mooncake
