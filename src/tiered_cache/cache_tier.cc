// Texts shared by the tiers.
#include "tiered_cache/cache_tier.h"

#include "common/byte_size.h"

namespace mooncake {

std::string PromisedText(size_t promised) {
  return promised == 0 ? "" : fmt::format(", of which {} are promised to other tiers", FormatBytes(promised));
}

}  // namespace mooncake
