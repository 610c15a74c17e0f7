// Reads /proc/meminfo and the kernel's folders of huge pages.
#include "tiered_cache/tiers/huge_pages.h"

#include <fstream>

#include "common/byte_size.h"

namespace mooncake {
namespace {

std::string PoolFolder(size_t page_bytes, std::optional<int> numa_node) {
  const std::string base =
      numa_node ? fmt::format("/sys/devices/system/node/node{}", *numa_node) : std::string("/sys/kernel/mm");
  return fmt::format("{}/hugepages/hugepages-{}kB", base, page_bytes / 1024);
}

std::optional<size_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  size_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

}  // namespace

Result<size_t> AvailableHostMemory() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  for (size_t kib = 0; file >> name >> kib; file.ignore(64, '\n')) {
    if (name == "MemAvailable:") return kib * 1024;
  }
  return Error(ErrorCode::INTERNAL_ERROR, "/proc/meminfo does not tell MemAvailable");
}

Result<HugePagePool> GetHugePagePool(size_t page_bytes, std::optional<int> numa_node) {
  const std::string folder = PoolFolder(page_bytes, numa_node);
  const auto total = ReadNumber(folder + "/nr_hugepages");
  const auto free = ReadNumber(folder + "/free_hugepages");
  if (!total || !free) {
    return Error(ErrorCode::INVALID_PARAMS, "this host has no huge pages of {}: {} is missing; {}",
                 FormatBytes(page_bytes), folder,
                 fmt::format("boot it with hugepagesz={} hugepages=COUNT", page_bytes >> 30 != 0 ? "1G" : "2M"));
  }
  const size_t promised = ReadNumber(folder + "/resv_hugepages").value_or(0);  // nodes do not have it
  return HugePagePool{*total, *free > promised ? *free - promised : 0};
}

std::string HowToReserveHugePages(size_t page_bytes, size_t pages, std::optional<int> numa_node) {
  return fmt::format("reserve them with: echo {} > {}/nr_hugepages", pages, PoolFolder(page_bytes, numa_node));
}

}  // namespace mooncake
