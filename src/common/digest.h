// 128-bit digests of keys: what the master indexes instead of the keys themselves.
#pragma once

#include <xxhash.h>

#include <cstdint>
#include <functional>
#include <string_view>

namespace mooncake {

struct KeyDigest {
  uint64_t low = 0;
  uint64_t high = 0;

  static KeyDigest Of(std::string_view key) {
    const XXH128_hash_t hash = XXH3_128bits(key.data(), key.size());
    return {hash.low64, hash.high64};
  }
  friend bool operator==(const KeyDigest&, const KeyDigest&) = default;
};

}  // namespace mooncake

template <>
struct std::hash<mooncake::KeyDigest> {
  size_t operator()(const mooncake::KeyDigest& digest) const noexcept { return digest.low; }
};
