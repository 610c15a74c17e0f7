// Conversions between buffers and memory ranges.
#include "client/object_io.h"

#include "common/check.h"

namespace mooncake {

DataSource AsDataSource(const MemoryRange& range) {
  if (const auto* host = std::get_if<HostRange>(&range)) return DataSource::Host(host->data(), host->size());
  const auto& npu = std::get<NpuRange>(range);
  return DataSource::Ascend(npu.at, npu.size, *npu.runtime);
}

MemoryRange AsMemoryRange(const DataSource& data) {
  if (data.buffer == nullptr) return HostRange{};
  if (const auto* host = dynamic_cast<const HostBuffer*>(data.buffer.get()))
    return HostRange(host->data(), host->size());
  const auto* npu = dynamic_cast<const AscendBufferBase*>(data.buffer.get());
  MC_CHECK(npu != nullptr, "buffer of type {} has no address", MemoryTypeName(data.type));
  return NpuRange{npu->pointer(), npu->size(), &npu->runtime()};
}

}  // namespace mooncake
