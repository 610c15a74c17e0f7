// What a runtime without batches and host registration does.
#include "device/npu_runtime.h"

namespace mooncake {
namespace {

Result<void> CopyOne(NpuRuntime& runtime, const RangeCopy& copy) {
  const size_t size = SizeOf(copy.source);
  const auto* target = std::get_if<NpuRange>(&copy.target);
  const auto* source = std::get_if<NpuRange>(&copy.source);
  if (target != nullptr && source != nullptr) {
    return runtime.CopyDeviceToDevice(target->at, target->size, source->at, size);
  }
  if (target != nullptr) {
    return runtime.CopyHostToDevice(target->at, target->size, std::get<HostRange>(copy.source).data(), size);
  }
  MC_CHECK(source != nullptr, "copy between host ranges handed to an NPU runtime");
  return runtime.CopyDeviceToHost(std::get<HostRange>(copy.target).data(), size, source->at, size);
}

}  // namespace

void NpuRuntime::CopyMany(std::span<RangeCopy> copies) {
  for (RangeCopy& copy : copies) copy.result = CopyOne(*this, copy);
}

Result<void> CheckNotLost(NpuRuntime& runtime, int32_t device_id) {
  if (!runtime.DeviceLost(device_id)) return {};
  // Of a lost device this does nothing but say so.
  const auto opened = runtime.OpenDevice(device_id);
  if (opened) return Error(ErrorCode::DEVICE_NOT_FOUND, "NPU device {} is lost", device_id);
  return std::unexpected(Status(ErrorCode::DEVICE_NOT_FOUND, opened.error().message(), opened.error().vendor_code()));
}

Result<NpuIpc*> NpuRuntime::Ipc() {
  return Error(ErrorCode::NOT_IMPLEMENTED, "the NPU runtime shares no memory between processes");
}

Result<std::shared_ptr<void>> NpuRuntime::RegisterHost(int32_t device_id, std::span<std::byte> memory) {
  return Error(ErrorCode::NOT_IMPLEMENTED, "the runtime of NPU device {} cannot page-lock {} B of host memory",
               device_id, memory.size());
}

}  // namespace mooncake
