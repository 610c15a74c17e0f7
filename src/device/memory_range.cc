// Copies between host memory and a range of either kind.
#include "device/memory_range.h"

#include <cstring>

namespace mooncake {

Result<void> CopyFromHost(const MemoryRange& target, std::span<const std::byte> source) {
  MC_CHECK(SizeOf(target) == source.size(), "{} B into {} B", source.size(), SizeOf(target));
  if (source.empty()) return {};
  if (const auto* host = std::get_if<HostRange>(&target)) {
    std::memcpy(host->data(), source.data(), source.size());
    return {};
  }
  const auto& npu = std::get<NpuRange>(target);
  return npu.runtime->CopyHostToDevice(npu.at, npu.size, source.data(), source.size());
}

Result<void> CopyToHost(HostRange target, const MemoryRange& source) {
  MC_CHECK(SizeOf(source) == target.size(), "{} B into {} B", SizeOf(source), target.size());
  if (target.empty()) return {};
  if (const auto* host = std::get_if<HostRange>(&source)) {
    std::memcpy(target.data(), host->data(), target.size());
    return {};
  }
  const auto& npu = std::get<NpuRange>(source);
  return npu.runtime->CopyDeviceToHost(target.data(), target.size(), npu.at, target.size());
}

}  // namespace mooncake
