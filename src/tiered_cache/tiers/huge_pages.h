// What the host offers in free memory and in huge pages.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "common/status.h"

namespace mooncake {

// Memory the kernel can give without swapping (MemAvailable). Huge pages set aside are not part of it.
Result<size_t> AvailableHostMemory();

// The pool of huge pages of one size, of the host or of one NUMA node.
struct HugePagePool {
  size_t total = 0;
  size_t free = 0;  // and not promised to a mapping
};

// INVALID_PARAMS when the kernel has no pages of that size. `numa_node` unset: the whole host. A node's promises are
// not known, so its free pages may be promised to mappings that are not bound.
Result<HugePagePool> GetHugePagePool(size_t page_bytes, std::optional<int> numa_node = std::nullopt);

// What an administrator does to have `pages` more huge pages.
std::string HowToReserveHugePages(size_t page_bytes, size_t pages, std::optional<int> numa_node = std::nullopt);

}  // namespace mooncake
