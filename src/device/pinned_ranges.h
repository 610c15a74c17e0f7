// Which host memory is page-locked for the NPU, and where one registration ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <shared_mutex>
#include <span>

namespace mooncake {

// Any thread. Ranges do not overlap.
class PinnedRanges {
 public:
  void Add(std::span<const std::byte> memory);
  void Remove(const std::byte* begin);
  // How many of the `size` bytes from `at` on lie in the range that holds `at`; 0 when none does.
  size_t Run(const std::byte* at, size_t size) const;

 private:
  mutable std::shared_mutex mutex_;
  std::map<uintptr_t, size_t> ranges_;  // begin -> bytes
};

}  // namespace mooncake
