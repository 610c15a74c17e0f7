// Base64 of RFC 4648, with padding.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mooncake {

std::string Base64(std::string_view bytes);
// nullopt for anything Base64 does not make.
std::optional<std::string> FromBase64(std::string_view text);

}  // namespace mooncake
