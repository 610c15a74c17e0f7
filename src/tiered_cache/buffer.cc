// Temporary host buffers and views of parts of buffers.
#include "tiered_cache/buffer.h"

#include <new>

namespace mooncake {

Result<std::unique_ptr<TempDRAMBuffer>> TempDRAMBuffer::Create(size_t size) {
  std::unique_ptr<std::byte[]> data(new (std::nothrow) std::byte[size]);
  if (data == nullptr) return Error(ErrorCode::NO_AVAILABLE_HANDLE, "no host memory for a copy buffer of {} B", size);
  return std::unique_ptr<TempDRAMBuffer>(new TempDRAMBuffer(std::move(data), size));
}

Result<DataSource> Slice(const DataSource& source, size_t offset, size_t size) {
  if (offset > source.size() || size > source.size() - offset) {
    return Error(ErrorCode::INVALID_PARAMS, "range [{}, +{}) leaves a buffer of {} B", offset, size, source.size());
  }
  if (size == 0) return DataSource{nullptr, source.type};
  if (const auto* host = dynamic_cast<const HostBuffer*>(source.buffer.get())) {
    return DataSource::Host(host->data() + offset, size);
  }
  if (const auto* npu = dynamic_cast<const AscendBufferBase*>(source.buffer.get())) {
    return DataSource::Ascend(npu->pointer() + offset, size, npu->runtime());
  }
  return Error(ErrorCode::INVALID_PARAMS, "buffer of type {} cannot be addressed", MemoryTypeName(source.type));
}

}  // namespace mooncake
