// Device memory through ACL, and the process's runtime.
#include "device/acl/acl_runtime.h"

#include <limits>
#include <vector>

#include "common/byte_size.h"
#include "common/env.h"
#include "common/log.h"

namespace mooncake {
namespace acl {
namespace {

constexpr size_t kNormalPage = size_t{4} << 10;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kRounding = 32;
constexpr size_t kMallocPadding = 32;  // of aclrtMalloc, not of aclrtMallocAlign32

CopyEnd EndOf(const MemoryRange& range) {
  if (const auto* npu = std::get_if<NpuRange>(&range)) {
    return npu->imported ? CopyEnd::Imported(npu->at) : CopyEnd::Device(npu->at);
  }
  return CopyEnd::Host(std::get<HostRange>(range).data());
}

}  // namespace

// Blocks of huge pages only where none of the last one is lost on a small block: 1.5 MiB in a 2 MiB page would waste a
// quarter of it.
PagePlan PlanPages(size_t size, size_t padding) {
  const bool huge = size > kHugePage || (size > 0 && size % kHugePage == 0);
  const size_t page = huge ? kHugePage : kNormalPage;
  const int policy = huge ? kMallocHugeFirst : kMallocNormalOnly;
  if (size == 0) return {policy, 0};
  constexpr size_t kMax = std::numeric_limits<size_t>::max();
  if (size > kMax - kHugePage - kRounding - padding) return {policy, kMax};
  const size_t padded = (size + kRounding - 1) / kRounding * kRounding + padding;
  return {policy, (padded + page - 1) / page * page};
}

Result<CopyEngineOptions> StagingOptions(const std::optional<std::string>& ring_size) {
  constexpr size_t kMost = size_t{16} << 30;
  CopyEngineOptions options;
  if (!ring_size || ring_size->empty()) return options;
  const auto bytes = ParseByteSize(*ring_size);
  if (!bytes || (*bytes != 0 && *bytes < options.slot_bytes) || *bytes > kMost) {
    return Error(ErrorCode::INVALID_PARAMS, "{}={} is not allowed: 0, or a size from {} to {}", env::kNpuStaging.name,
                 *ring_size, FormatBytes(options.slot_bytes), FormatBytes(kMost));
  }
  options.ring_bytes = *bytes;
  return options;
}

AclRuntime::AclRuntime(std::unique_ptr<Devices> devices, CopyEngineOptions options)
    : devices_(std::move(devices)), driver_(*devices_), engine_(driver_, devices_->count(), options), ipc_(*devices_) {}

Result<std::shared_ptr<AclRuntime>> AclRuntime::Open(CopyEngineOptions options) {
  auto devices = MC_TRY(Devices::Open());
  return std::shared_ptr<AclRuntime>(new AclRuntime(std::move(devices), options));
}

Result<NpuRuntime::MemoryInfo> AclRuntime::GetMemoryInfo(int32_t device_id) {
  const ScopedContext scope(devices_->functions(), MC_TRY(devices_->ContextOf(device_id)));
  MemoryInfo info;
  AclError rc = scope.error();
  if (rc == kSuccess) rc = devices_->functions().GetMemInfo(kHbmMemory, &info.free_bytes, &info.total_bytes);
  // Some chips have DDR instead; what is allocated comes from there.
  if (rc == kSuccess && info.total_bytes == 0) {
    rc = devices_->functions().GetMemInfo(kDdrMemory, &info.free_bytes, &info.total_bytes);
  }
  if (rc != kSuccess) {
    return std::unexpected(devices_->Failed(device_id, ErrorCode::INTERNAL_ERROR, rc,
                                            fmt::format("aclrtGetMemInfo of device {}", device_id)));
  }
  return info;
}

Result<AscendUnifiedPointer> AclRuntime::Allocate(int32_t device_id, size_t size) {
  const FunctionTable& functions = devices_->functions();
  // A device that is gone has no room.
  const Context context = MC_TRY(devices_->ContextOf(device_id, ErrorCode::NO_AVAILABLE_HANDLE));
  const ScopedContext scope(functions, context);
  // Align32 asks for no trailing pad, so that a block of whole pages does not take one page more.
  const bool padded = functions.MallocAlign32 == nullptr;
  const auto allocate = padded ? functions.Malloc : functions.MallocAlign32;
  void* block = nullptr;
  AclError rc = scope.error();
  if (rc == kSuccess) rc = allocate(&block, size, PlanPages(size, padded ? kMallocPadding : 0).policy);
  if (rc != kSuccess) {
    const bool no_room = rc == kOutOfDeviceMemory || MeansDeviceLost(rc);
    return std::unexpected(devices_->Failed(device_id,
                                            no_room ? ErrorCode::NO_AVAILABLE_HANDLE : ErrorCode::INTERNAL_ERROR, rc,
                                            fmt::format("allocating {} B on NPU device {}", size, device_id)));
  }
  return AscendUnifiedPointer{device_id, static_cast<DeviceAddress>(reinterpret_cast<uintptr_t>(block))};
}

size_t AclRuntime::DeviceBytes(size_t size) const {
  return PlanPages(size, devices_->functions().MallocAlign32 == nullptr ? kMallocPadding : 0).bytes;
}

Result<void> AclRuntime::Free(AscendUnifiedPointer block) {
  AclError rc = devices_->functions().Free(ToPointer(block));
  // What is not taken back is lost until the process ends, so a passing failure gets a second chance.
  if (rc != kSuccess) rc = devices_->functions().Free(ToPointer(block));
  if (rc != kSuccess) {
    return std::unexpected(devices_->Failed(block.device_id, ErrorCode::INTERNAL_ERROR, rc,
                                            fmt::format("aclrtFree on NPU device {}", block.device_id)));
  }
  return {};
}

Result<void> AclRuntime::CopyHostToDevice(AscendUnifiedPointer target, size_t capacity, const std::byte* source,
                                          size_t size) {
  MC_TRY(devices_->ContextOf(target.device_id, ErrorCode::DATA_COPY_FAILED));
  return engine_.Copy({CopyEnd::Device(target), CopyEnd::Host(source), size, capacity});
}

Result<void> AclRuntime::CopyDeviceToHost(std::byte* target, size_t capacity, AscendUnifiedPointer source,
                                          size_t size) {
  MC_TRY(devices_->ContextOf(source.device_id, ErrorCode::DATA_COPY_FAILED));
  return engine_.Copy({CopyEnd::Host(target), CopyEnd::Device(source), size, capacity});
}

Result<void> AclRuntime::CopyDeviceToDevice(AscendUnifiedPointer target, size_t capacity, AscendUnifiedPointer source,
                                            size_t size) {
  MC_TRY(devices_->ContextOf(source.device_id, ErrorCode::DATA_COPY_FAILED));
  MC_TRY(devices_->ContextOf(target.device_id, ErrorCode::DATA_COPY_FAILED));
  return engine_.Copy({CopyEnd::Device(target), CopyEnd::Device(source), size, capacity});
}

void AclRuntime::CopyMany(std::span<RangeCopy> copies) {
  std::vector<NpuCopy> usable;
  std::vector<size_t> positions;
  for (size_t i = 0; i < copies.size(); ++i) {
    RangeCopy& copy = copies[i];
    copy.result = {};
    if (SizeOf(copy.source) == 0) continue;
    for (const MemoryRange* range : {&copy.source, &copy.target}) {
      const auto* npu = std::get_if<NpuRange>(range);
      if (npu == nullptr || npu->imported || !copy.result) continue;  // the exporter's device need not be open here
      if (const auto context = devices_->ContextOf(npu->at.device_id, ErrorCode::DATA_COPY_FAILED); !context) {
        copy.result = std::unexpected(context.error());
      }
    }
    if (!copy.result) continue;
    MC_CHECK(!IsHost(copy.source) || !IsHost(copy.target), "copy between host ranges handed to an NPU runtime");
    const NpuCopy known{EndOf(copy.target), EndOf(copy.source), SizeOf(copy.source), SizeOf(copy.target)};
    if (known.imported() && known.direction() != CopyDirection::kDeviceToDevice) {
      copy.result = Error(ErrorCode::DATA_COPY_FAILED,
                          "{}: NPU memory of another process is copied from and to NPU memory only", Describe(known));
      continue;
    }
    usable.push_back(known);
    positions.push_back(i);
  }
  std::vector<Result<void>> results(usable.size());
  engine_.CopyMany(usable, results);
  for (size_t k = 0; k < usable.size(); ++k) copies[positions[k]].result = std::move(results[k]);
}

Result<NpuIpc*> AclRuntime::Ipc() {
  MC_TRY(ipc_.Available());
  return &ipc_;
}

Result<std::shared_ptr<void>> AclRuntime::RegisterHost(int32_t device_id, std::span<std::byte> memory) {
  MC_TRY(driver_.RegisterHost(device_id, memory));
  // Keeps the runtime: a device must not be reset under a registration.
  return std::shared_ptr<void>(memory.data(), [runtime = shared_from_this(), device_id, memory](void*) {
    runtime->driver_.UnregisterHost(device_id, memory);
  });
}

std::optional<int32_t> AclRuntime::DeviceOf(const void* address) const {
  const FunctionTable& functions = devices_->functions();
  if (functions.PointerGetAttributes == nullptr) return std::nullopt;
  // The question needs some context. A thread without one gets one of ours; without any device open there is none.
  Context current = nullptr;
  if (functions.GetCurrentContext(&current) != kSuccess) {
    current = devices_->AnyContext();
    DropErrorText(functions);
  }
  if (current == nullptr) return std::nullopt;
  const ScopedContext scope(functions, current);
  PointerAttributes attributes{};
  if (scope.error() != kSuccess || functions.PointerGetAttributes(address, &attributes) != kSuccess) {
    DropErrorText(functions);
    return std::nullopt;
  }
  if (attributes.location.type != kLocationDevice) return std::nullopt;
  return static_cast<int32_t>(attributes.location.id);
}

}  // namespace acl

namespace {

// ACL's state belongs to the process, so does the object that stands for it.
std::mutex runtime_mutex;
std::weak_ptr<NpuRuntime> shared_runtime;

}  // namespace

bool NpuSupportBuilt() {
  return true;
}

Result<std::shared_ptr<NpuRuntime>> OpenNpuRuntime() {
  std::lock_guard lock(runtime_mutex);
  if (auto runtime = shared_runtime.lock()) return runtime;
  const CopyEngineOptions options = MC_TRY(acl::StagingOptions(env::Get(env::kNpuStaging)));
  std::shared_ptr<NpuRuntime> runtime = MC_TRY(acl::AclRuntime::Open(options));
  shared_runtime = runtime;
  return runtime;
}

std::shared_ptr<NpuRuntime> UsedNpuRuntime() {
  {
    std::lock_guard lock(runtime_mutex);
    if (auto runtime = shared_runtime.lock()) return runtime;
  }
  if (!acl::IsLibraryLoaded()) return nullptr;
  auto runtime = OpenNpuRuntime();
  if (runtime) return *runtime;
  log::Warn("NPU memory of this process cannot be used: {}", runtime.error().ToString());
  return nullptr;
}

}  // namespace mooncake
