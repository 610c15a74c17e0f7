// MC_CHECK stops the process with the values when an invariant of this code is broken. Never for data from users or
// peers.
#pragma once

#include <fmt/format.h>

namespace mooncake::internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, const std::string& values);
}  // namespace mooncake::internal

// MC_CHECK(used >= size, "tier {} used {} freeing {}", name, used, size). Stays on in release builds.
#define MC_CHECK(condition, ...)                                                                        \
  do {                                                                                                  \
    if (!(condition)) [[unlikely]]                                                                      \
      ::mooncake::internal::CheckFailed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (0)
