// An interval map of page-locked host memory.
#include "device/pinned_ranges.h"

#include <algorithm>
#include <mutex>

#include "common/check.h"

namespace mooncake {

void PinnedRanges::Add(std::span<const std::byte> memory) {
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  std::lock_guard lock(mutex_);
  const auto next = ranges_.lower_bound(begin);
  MC_CHECK(next == ranges_.end() || next->first >= begin + memory.size(), "page-locked ranges overlap at {:#x}", begin);
  MC_CHECK(next == ranges_.begin() || std::prev(next)->first + std::prev(next)->second <= begin,
           "page-locked ranges overlap at {:#x}", begin);
  ranges_.emplace_hint(next, begin, memory.size());
}

void PinnedRanges::Remove(const std::byte* begin) {
  std::lock_guard lock(mutex_);
  MC_CHECK(ranges_.erase(reinterpret_cast<uintptr_t>(begin)) == 1, "range was not page-locked");
}

size_t PinnedRanges::Run(const std::byte* at, size_t size) const {
  const auto address = reinterpret_cast<uintptr_t>(at);
  std::shared_lock lock(mutex_);
  auto range = ranges_.upper_bound(address);
  if (range == ranges_.begin()) return 0;
  --range;
  const size_t offset = address - range->first;
  return offset < range->second ? std::min(size, range->second - offset) : 0;
}

}  // namespace mooncake
