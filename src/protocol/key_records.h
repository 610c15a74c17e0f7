// Key states as records of fixed size: what an owner of a million keys sends instead of a map for each.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "protocol/master_messages.h"

namespace mooncake::protocol {

inline constexpr size_t kKeyRecordBytes = 40;

// For AnnounceRequest::packed. `wanted` above 65,535 is sent as that.
std::string PackKeyStates(const std::vector<KeyState>& keys);
// INVALID_PARAMS when the bytes are not whole records.
Result<std::vector<KeyState>> UnpackKeyStates(std::string_view packed);

}  // namespace mooncake::protocol
