// Byte counts as people write them ("512MB", "1.5 GB", 536870912) and as we print them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/status.h"

namespace mooncake {

// Units B, K/KB, M/MB, G/GB, T/TB in any case, base 1024, optional fraction and spaces; no unit = bytes;
// "infinite" = UINT64_MAX. Anything else, a negative number or an overflow is INVALID_PARAMS naming the text.
Result<uint64_t> ParseByteSize(std::string_view text);

// "512 MiB", "1.5 GiB", "37 B".
std::string FormatBytes(uint64_t bytes);

}  // namespace mooncake
