// The version of this software, as peers and people see it.
#pragma once

namespace mooncake {

inline constexpr const char* kSoftwareVersion = "0.1.0";

}  // namespace mooncake
