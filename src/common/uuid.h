// 128-bit random identity of a process (client), a tier or an incarnation.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace mooncake {

struct Uuid {
  uint64_t first = 0;
  uint64_t second = 0;

  static Uuid Random();
  bool IsNil() const { return first == 0 && second == 0; }
  // "0123456789abcdef-0123456789abcdef"
  std::string ToString() const;

  friend auto operator<=>(const Uuid&, const Uuid&) = default;
};

}  // namespace mooncake

template <>
struct std::hash<mooncake::Uuid> {
  size_t operator()(const mooncake::Uuid& id) const noexcept { return id.first ^ (id.second * 0x9e3779b97f4a7c15ULL); }
};
