// Allocation in NPU memory.
#include "tiered_cache/tiers/ascend_tier.h"

#include "common/byte_size.h"
#include "common/log.h"

namespace mooncake {

AscendBuffer::~AscendBuffer() {
  if (const auto freed = runtime_.Free(pointer_); !freed) log::Error("{}", freed.error().ToString());
}

Result<std::shared_ptr<AscendCacheTier>> AscendCacheTier::Open(const Options& options,
                                                               std::shared_ptr<NpuRuntime> runtime) {
  MC_TRY(runtime->OpenDevice(options.device_id));
  const auto memory = MC_TRY(runtime->GetMemoryInfo(options.device_id));
  if (options.promised > memory.free_bytes || options.capacity > memory.free_bytes - options.promised) {
    return Error(ErrorCode::INVALID_PARAMS, "ASCEND_NPU tier of {} B ({}) does not fit on device {}: {} free of {}{}",
                 options.capacity, FormatBytes(options.capacity), options.device_id, FormatBytes(memory.free_bytes),
                 FormatBytes(memory.total_bytes), PromisedText(options.promised));
  }
  Info info{Uuid::Random(),         fmt::format("ASCEND_NPU:{}", options.device_id),
            MemoryType::ASCEND_NPU, options.capacity,
            options.priority,       options.tags};
  return std::shared_ptr<AscendCacheTier>(new AscendCacheTier(std::move(info), options.device_id, std::move(runtime)));
}

AscendCacheTier::AscendCacheTier(Info info, int32_t device_id, std::shared_ptr<NpuRuntime> runtime)
    : CacheTier(std::move(info)), device_id_(device_id), runtime_(std::move(runtime)), budget_(this->info().capacity) {}

Result<DataSource> AscendCacheTier::Allocate(size_t size) {
  if (size == 0) return Error(ErrorCode::INVALID_PARAMS, "tier {}: a block of 0 B", info().name);
  auto room = budget_.Reserve(size);
  if (!room) {
    return Error(ErrorCode::NO_AVAILABLE_HANDLE, "tier {} cannot hold {} B (used {} of {} B)", info().name, size,
                 budget_.used(), info().capacity);
  }
  const AscendUnifiedPointer pointer =
      MC_TRY(runtime_->Allocate(device_id_, size));  // on error `room` gives its bytes back
  return DataSource{std::make_unique<AscendBuffer>(pointer, size, *runtime_, std::move(*room)), MemoryType::ASCEND_NPU};
}

}  // namespace mooncake
