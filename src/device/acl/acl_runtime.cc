// Devices, memory and synchronous copies through ACL.
#include "device/acl/acl_runtime.h"

#include <thread>

#include "common/log.h"

namespace mooncake {
namespace acl {
namespace {

void* ToPointer(AscendUnifiedPointer at) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(at.device_ptr));
}

}  // namespace

ScopedContext::ScopedContext(const FunctionTable& functions, Context wanted) : functions_(functions) {
  if (functions_.GetCurrentContext(&saved_) != kSuccess) saved_ = nullptr;
  if (saved_ == wanted) return;
  error_ = functions_.SetCurrentContext(wanted);
  switched_ = error_ == kSuccess;
}

ScopedContext::~ScopedContext() {
  if (switched_ && saved_ != nullptr) (void)functions_.SetCurrentContext(saved_);
}

AclRuntime::AclRuntime(Library library, size_t device_count) : library_(std::move(library)), devices_(device_count) {}

Result<std::shared_ptr<AclRuntime>> AclRuntime::Open() {
  Library library = MC_TRY(LoadLibrary());
  const FunctionTable& functions = library.functions;
  if (const AclError rc = functions.Init(nullptr); rc != kSuccess && rc != kRepeatInitialize) {
    return std::unexpected(MakeStatus(functions, ErrorCode::INTERNAL_ERROR, rc, "aclInit"));
  }
  uint32_t count = 0;
  if (const AclError rc = functions.GetDeviceCount(&count); rc != kSuccess) {
    return std::unexpected(MakeStatus(functions, ErrorCode::INTERNAL_ERROR, rc, "aclrtGetDeviceCount"));
  }
  log::Info("ACL runtime {}: {} NPU device(s) visible", library.path, count);
  return std::shared_ptr<AclRuntime>(new AclRuntime(std::move(library), count));
}

AclRuntime::~AclRuntime() {
  for (size_t id = 0; id < devices_.size(); ++id) {
    if (devices_[id].context.load() != nullptr) (void)library_.functions.ResetDevice(static_cast<int32_t>(id));
  }
  // Older runtimes have one init for the whole process, which torch_npu may still use: those are left to process exit.
  if (library_.functions.FinalizeReference != nullptr) {
    uint64_t left = 0;
    (void)library_.functions.FinalizeReference(&left);
  }
}

Status AclRuntime::Failed(ErrorCode code, AclError error, const std::string& what) const {
  return MakeStatus(library_.functions, code, error, what);
}

Result<void> AclRuntime::OpenDevice(int32_t device_id) {
  if (device_id < 0 || device_id >= DeviceCount()) {
    return Error(ErrorCode::INVALID_PARAMS,
                 "device_id {} does not exist: this process sees {} NPU device(s), numbered from 0", device_id,
                 DeviceCount());
  }
  Device& device = devices_[device_id];
  std::lock_guard lock(device.opening);
  if (device.context.load() != nullptr) return {};
  // On a thread of its own: binding a device cannot be undone for the thread that does it. The runtime keeps its error
  // text per thread, so the status is made there too.
  Result<Context> context = nullptr;
  std::thread([&] {
    AclError rc = library_.functions.SetDevice(device_id);
    if (rc == kSuccess) rc = library_.functions.GetCurrentContext(&*context);
    if (rc != kSuccess) {
      context = std::unexpected(Failed(ErrorCode::INTERNAL_ERROR, rc, fmt::format("aclrtSetDevice({})", device_id)));
    }
  }).join();
  device.context.store(MC_TRY(std::move(context)));
  return {};
}

Result<Context> AclRuntime::ContextOf(int32_t device_id) {
  if (device_id >= 0 && device_id < DeviceCount()) {
    if (const Context context = devices_[device_id].context.load()) return context;
    MC_TRY(OpenDevice(device_id));
    return devices_[device_id].context.load();
  }
  return Error(ErrorCode::INVALID_PARAMS, "device_id {} does not exist: this process sees {} NPU device(s)", device_id,
               DeviceCount());
}

Result<NpuRuntime::MemoryInfo> AclRuntime::GetMemoryInfo(int32_t device_id) {
  const ScopedContext scope(library_.functions, MC_TRY(ContextOf(device_id)));
  MemoryInfo info;
  AclError rc = scope.error();
  if (rc == kSuccess) rc = library_.functions.GetMemInfo(kHbmMemory, &info.free_bytes, &info.total_bytes);
  if (rc != kSuccess) {
    return std::unexpected(
        Failed(ErrorCode::INTERNAL_ERROR, rc, fmt::format("aclrtGetMemInfo of device {}", device_id)));
  }
  return info;
}

Result<AscendUnifiedPointer> AclRuntime::Allocate(int32_t device_id, size_t size) {
  const ScopedContext scope(library_.functions, MC_TRY(ContextOf(device_id)));
  // Align32 asks for no trailing pad, so that a block of whole pages does not take one page more.
  const auto allocate = library_.functions.MallocAlign32 ? library_.functions.MallocAlign32 : library_.functions.Malloc;
  void* block = nullptr;
  AclError rc = scope.error();
  if (rc == kSuccess) rc = allocate(&block, size, kMallocHugeFirst);
  if (rc != kSuccess) {
    const ErrorCode code = rc == kOutOfDeviceMemory ? ErrorCode::NO_AVAILABLE_HANDLE : ErrorCode::INTERNAL_ERROR;
    return std::unexpected(Failed(code, rc, fmt::format("allocating {} B on NPU device {}", size, device_id)));
  }
  return AscendUnifiedPointer{device_id, static_cast<DeviceAddress>(reinterpret_cast<uintptr_t>(block))};
}

Result<void> AclRuntime::Free(AscendUnifiedPointer block) {
  if (const AclError rc = library_.functions.Free(ToPointer(block)); rc != kSuccess) {
    return std::unexpected(
        Failed(ErrorCode::INTERNAL_ERROR, rc, fmt::format("aclrtFree on NPU device {}", block.device_id)));
  }
  return {};
}

Result<void> AclRuntime::CopyHostToDevice(AscendUnifiedPointer target, size_t capacity, const std::byte* source,
                                          size_t size) {
  const ScopedContext scope(library_.functions, MC_TRY(ContextOf(target.device_id)));
  AclError rc = scope.error();
  if (rc == kSuccess) rc = library_.functions.Memcpy(ToPointer(target), capacity, source, size, kHostToDevice);
  if (rc != kSuccess) {
    return std::unexpected(Failed(ErrorCode::DATA_COPY_FAILED, rc,
                                  fmt::format("copying {} B from host to NPU device {}", size, target.device_id)));
  }
  return {};
}

Result<void> AclRuntime::CopyDeviceToHost(std::byte* target, size_t capacity, AscendUnifiedPointer source,
                                          size_t size) {
  const ScopedContext scope(library_.functions, MC_TRY(ContextOf(source.device_id)));
  AclError rc = scope.error();
  if (rc == kSuccess) rc = library_.functions.Memcpy(target, capacity, ToPointer(source), size, kDeviceToHost);
  if (rc != kSuccess) {
    return std::unexpected(Failed(ErrorCode::DATA_COPY_FAILED, rc,
                                  fmt::format("copying {} B from NPU device {} to host", size, source.device_id)));
  }
  return {};
}

Result<void> AclRuntime::CopyDeviceToDevice(AscendUnifiedPointer target, size_t capacity, AscendUnifiedPointer source,
                                            size_t size) {
  const ScopedContext scope(library_.functions, MC_TRY(ContextOf(target.device_id)));
  AclError rc = scope.error();
  if (rc == kSuccess) {
    rc = library_.functions.Memcpy(ToPointer(target), capacity, ToPointer(source), size, kDeviceToDevice);
  }
  if (rc != kSuccess) {
    return std::unexpected(
        Failed(ErrorCode::DATA_COPY_FAILED, rc,
               fmt::format("copying {} B from NPU device {} to {}", size, source.device_id, target.device_id)));
  }
  return {};
}

std::optional<int32_t> AclRuntime::DeviceOf(const void* address) const {
  if (library_.functions.PointerGetAttributes == nullptr) return std::nullopt;
  PointerAttributes attributes{};
  if (library_.functions.PointerGetAttributes(address, &attributes) != kSuccess) return std::nullopt;
  if (attributes.location_type != kLocationDevice) return std::nullopt;
  return static_cast<int32_t>(attributes.location_id);
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
  std::shared_ptr<NpuRuntime> runtime = MC_TRY(acl::AclRuntime::Open());
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
