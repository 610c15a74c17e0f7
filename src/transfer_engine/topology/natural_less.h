// Order of names as people count: "mlx5_2" before "mlx5_10".
#pragma once

#include <string_view>

namespace mooncake {

bool NaturalLess(std::string_view a, std::string_view b);

}  // namespace mooncake
