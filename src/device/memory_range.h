// A run of memory on the host or on an NPU, borrowed: what transfers and copies are told to read or fill.
#pragma once

#include <cstddef>
#include <span>
#include <variant>

#include "common/check.h"
#include "common/status.h"
#include "device/memory_type.h"

namespace mooncake {

class NpuRuntime;

struct NpuRange {
  AscendUnifiedPointer at;
  size_t size = 0;
  NpuRuntime* runtime = nullptr;  // outlives the range
  bool imported = false;          // of another process (NpuIpc): only copied from and to memory of devices
};

using HostRange = std::span<std::byte>;
using MemoryRange = std::variant<HostRange, NpuRange>;

inline size_t SizeOf(const MemoryRange& range) {
  if (const auto* host = std::get_if<HostRange>(&range)) return host->size();
  return std::get<NpuRange>(range).size;
}

// As regions and peers name it.
inline uint64_t AddressOf(const MemoryRange& range) {
  if (const auto* host = std::get_if<HostRange>(&range)) return reinterpret_cast<uint64_t>(host->data());
  return static_cast<uint64_t>(std::get<NpuRange>(range).at.device_ptr);
}

inline bool IsHost(const MemoryRange& range) {
  return std::holds_alternative<HostRange>(range);
}

// Bytes [offset, offset + size), which must lie inside.
inline MemoryRange SubRange(const MemoryRange& range, size_t offset, size_t size) {
  MC_CHECK(offset <= SizeOf(range) && size <= SizeOf(range) - offset, "[{}, +{}) of {} B", offset, size, SizeOf(range));
  if (const auto* host = std::get_if<HostRange>(&range)) return host->subspan(offset, size);
  const auto& npu = std::get<NpuRange>(range);
  return NpuRange{npu.at + offset, size, npu.runtime, npu.imported};
}

// One copy of a batch: ranges of equal size, which do not overlap. `result` is written by whoever does it.
struct RangeCopy {
  MemoryRange target;
  MemoryRange source;
  Result<void> result = {};
};
// Every kind of copy; one synchronisation per device and direction, not one per copy.
void CopyRanges(std::span<RangeCopy> copies);

// Copies between host memory and any range; sizes must agree. 0 bytes copy nothing.
Result<void> CopyFromHost(const MemoryRange& target, std::span<const std::byte> source);
Result<void> CopyToHost(HostRange target, const MemoryRange& source);

}  // namespace mooncake
