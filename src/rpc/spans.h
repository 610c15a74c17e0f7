// Borrowed pieces of memory that payload bytes are sent from and received into.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mooncake::rpc {

using ConstSpan = std::span<const std::byte>;
using MutableSpan = std::span<std::byte>;

template <typename Span>
uint64_t TotalBytes(const std::vector<Span>& spans) {
  uint64_t total = 0;
  for (const Span& span : spans) total += span.size();
  return total;
}

}  // namespace mooncake::rpc
