// Bytes that tell their place, for tests of copies.
#pragma once

#include <cstddef>
#include <vector>

namespace mooncake {

using Bytes = std::vector<std::byte>;
inline constexpr size_t kKiB = 1024;
inline constexpr size_t kMiB = 1024 * kKiB;

inline Bytes Pattern(size_t size, unsigned seed = 1) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i * 131 + i / 4096 + seed) & 0xFF);
  return bytes;
}

}  // namespace mooncake
