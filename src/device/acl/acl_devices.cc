// Opening, resetting and losing devices.
#include "device/acl/acl_devices.h"

#include <fmt/chrono.h>

#include <thread>

#include "common/log.h"

namespace mooncake::acl {

namespace {

// Older runtimes have one init for the whole process, which torch_npu may still use: those are left to process exit.
void DropInit(const FunctionTable& functions) {
  if (functions.FinalizeReference == nullptr) return;
  uint64_t left = 0;
  (void)functions.FinalizeReference(&left);
}

}  // namespace

ScopedContext::ScopedContext(const FunctionTable& functions, Context wanted) : functions_(functions) {
  if (functions_.GetCurrentContext(&saved_) != kSuccess) {
    saved_ = nullptr;
    DropErrorText(functions_);
  }
  if (saved_ == wanted) return;
  // What is to be given back on the device would be lost with a switch that fails in passing.
  error_ = Insist(functions_.SetCurrentContext, wanted);
  switched_ = error_ == kSuccess;
}

ScopedContext::~ScopedContext() {
  if (switched_ && saved_ != nullptr) (void)Insist(functions_.SetCurrentContext, saved_);
}

Result<std::unique_ptr<Devices>> Devices::Open() {
  Library library = MC_TRY(LoadLibrary());
  const FunctionTable& functions = library.functions;
  if (const AclError rc = functions.Init(nullptr); rc != kSuccess && rc != kRepeatInitialize) {
    return std::unexpected(MakeStatus(functions, ErrorCode::INTERNAL_ERROR, rc, "aclInit of " + library.path));
  }
  uint32_t count = 0;
  if (const AclError rc = functions.GetDeviceCount(&count); rc != kSuccess) {
    const Status status = MakeStatus(functions, ErrorCode::INTERNAL_ERROR, rc, "aclrtGetDeviceCount");
    DropInit(functions);
    return std::unexpected(status);
  }
  log::Info("ACL runtime {}: {} NPU device(s) visible", library.path, count);
  return std::unique_ptr<Devices>(new Devices(std::move(library), count));
}

Devices::~Devices() {
  for (size_t id = 0; id < devices_.size(); ++id) {
    if (devices_[id].context.load() != nullptr) (void)Insist(functions().ResetDevice, static_cast<int32_t>(id));
  }
  DropInit(functions());
}

Result<void> Devices::CheckUsable(int32_t device_id, ErrorCode when_lost) {
  if (!Exists(device_id)) {
    return Error(ErrorCode::INVALID_PARAMS,
                 "device_id {} does not exist: this process sees {} NPU device(s), numbered from 0", device_id,
                 count());
  }
  Device& device = devices_[static_cast<size_t>(device_id)];
  if (!device.lost.load(std::memory_order_acquire)) return {};
  std::lock_guard lock(device.mutex);
  const Loss& loss = *device.loss;
  const auto since = std::chrono::floor<std::chrono::seconds>(loss.since);
  return std::unexpected(Status(
      when_lost,
      fmt::format("NPU device {} is lost since {:%FT%TZ}: ACL error {} {} in {}; this process cannot use it any more",
                  device_id, fmt::gmtime(std::chrono::system_clock::to_time_t(since)), loss.error,
                  ErrorName(loss.error), loss.what),
      loss.error));
}

Result<void> Devices::OpenDevice(int32_t device_id) {
  MC_TRY(CheckUsable(device_id, ErrorCode::INTERNAL_ERROR));
  Device& device = devices_[static_cast<size_t>(device_id)];
  std::lock_guard lock(device.opening);
  if (device.context.load() != nullptr) return {};
  // On a thread of its own: binding a device cannot be undone for the thread that does it. The runtime keeps its error
  // text per thread, so the status is made there too. A device that cannot be bound is not yet lost: it may be held.
  Result<Context> context = nullptr;
  std::thread([&] {
    AclError rc = functions().SetDevice(device_id);
    if (rc == kSuccess) {
      rc = functions().GetCurrentContext(&*context);
      if (rc != kSuccess) (void)functions().ResetDevice(device_id);
    }
    if (rc != kSuccess) {
      context =
          std::unexpected(MakeStatus(functions(), ErrorCode::INTERNAL_ERROR, rc,
                                     fmt::format("opening NPU device {} of {} (aclrtSetDevice)", device_id, count())));
    }
  }).join();
  device.context.store(MC_TRY(std::move(context)));
  return {};
}

Result<Context> Devices::ContextOf(int32_t device_id, ErrorCode when_lost) {
  MC_TRY(CheckUsable(device_id, when_lost));
  const auto& context = devices_[static_cast<size_t>(device_id)].context;
  if (const Context open = context.load()) return open;
  MC_TRY(OpenDevice(device_id));
  return context.load();
}

Context Devices::OpenContext(int32_t device_id) const {
  MC_CHECK(Exists(device_id), "device {} of {}", device_id, count());
  const Context context = devices_[static_cast<size_t>(device_id)].context.load();
  MC_CHECK(context != nullptr, "device {} is not open", device_id);
  return context;
}

Context Devices::AnyContext() const {
  for (const Device& device : devices_) {
    if (const Context context = device.context.load()) return context;
  }
  return nullptr;
}

Status Devices::Failed(int32_t device_id, ErrorCode code, AclError error, std::string_view what) {
  Status status = MakeStatus(functions(), code, error, what);
  if (!MeansDeviceLost(error) || !Exists(device_id)) return status;
  Device& device = devices_[static_cast<size_t>(device_id)];
  {
    std::lock_guard lock(device.mutex);
    if (device.loss) return status;
    device.loss = Loss{error, std::chrono::system_clock::now(), std::string(what)};
    device.lost.store(true, std::memory_order_release);
  }
  log::Error("NPU device {} is lost, it will not be used any more: {}", device_id, status.message());
  return status;
}

bool Devices::Lost(int32_t device_id) const {
  return Exists(device_id) && devices_[static_cast<size_t>(device_id)].lost.load(std::memory_order_acquire);
}

}  // namespace mooncake::acl
