// Copies between host memory and a range of either kind.
#include "device/memory_range.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "device/npu_runtime.h"

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

namespace {

NpuRuntime* RuntimeOf(const RangeCopy& copy) {
  if (const auto* npu = std::get_if<NpuRange>(&copy.target)) return npu->runtime;
  if (const auto* npu = std::get_if<NpuRange>(&copy.source)) return npu->runtime;
  return nullptr;
}

}  // namespace

void CopyRanges(std::span<RangeCopy> copies) {
  std::vector<RangeCopy> on_npu;
  std::vector<size_t> positions;
  NpuRuntime* runtime = nullptr;
  for (size_t i = 0; i < copies.size(); ++i) {
    RangeCopy& copy = copies[i];
    MC_CHECK(SizeOf(copy.target) == SizeOf(copy.source), "{} B into {} B", SizeOf(copy.source), SizeOf(copy.target));
    copy.result = {};
    if (SizeOf(copy.source) == 0) continue;
    if (NpuRuntime* const owner = RuntimeOf(copy); owner != nullptr) {
      MC_CHECK(runtime == nullptr || runtime == owner, "ranges of two runtimes in one batch");
      runtime = owner;
      on_npu.push_back(copy);
      positions.push_back(i);
    } else {
      std::memcpy(std::get<HostRange>(copy.target).data(), std::get<HostRange>(copy.source).data(),
                  SizeOf(copy.source));
    }
  }
  if (runtime == nullptr) return;
  runtime->CopyMany(on_npu);
  for (size_t k = 0; k < on_npu.size(); ++k) copies[positions[k]].result = std::move(on_npu[k].result);
}

}  // namespace mooncake
