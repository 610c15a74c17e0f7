// The copies between NPU and host and among NPUs; a static registrar announces them.
#include "device/npu_runtime.h"
#include "tiered_cache/data_copier.h"

namespace mooncake {
namespace {

Result<const AscendBufferBase*> NpuSide(const DataSource& data, const char* role) {
  const auto* npu = dynamic_cast<const AscendBufferBase*>(data.buffer.get());
  if (npu == nullptr) {
    return Error(ErrorCode::INVALID_PARAMS, "{} is tagged {} but its buffer is not NPU memory", role,
                 MemoryTypeName(data.type));
  }
  return npu;
}

Result<void> CopyDramToAscend(const DataSource& source, const DataSource& target) {
  const HostBuffer* from = MC_TRY(HostSide(source, "source"));
  const AscendBufferBase* to = MC_TRY(NpuSide(target, "target"));
  return to->runtime().CopyHostToDevice(to->pointer(), to->size(), from->data(), from->size());
}

Result<void> CopyAscendToDram(const DataSource& source, const DataSource& target) {
  const AscendBufferBase* from = MC_TRY(NpuSide(source, "source"));
  const HostBuffer* to = MC_TRY(HostSide(target, "target"));
  return from->runtime().CopyDeviceToHost(to->data(), to->size(), from->pointer(), from->size());
}

Result<void> CopyAscendToAscend(const DataSource& source, const DataSource& target) {
  const AscendBufferBase* from = MC_TRY(NpuSide(source, "source"));
  const AscendBufferBase* to = MC_TRY(NpuSide(target, "target"));
  return to->runtime().CopyDeviceToDevice(to->pointer(), to->size(), from->pointer(), from->size());
}

const CopierRegistrar ascend_copiers(MemoryType::ASCEND_NPU, CopyAscendToDram, CopyDramToAscend, CopyAscendToAscend);

}  // namespace
}  // namespace mooncake
