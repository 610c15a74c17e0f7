// Page-locked memory, synchronous copies and peer access through ACL.
#include "device/acl/acl_driver.h"

#include <unistd.h>

#include <algorithm>

#include "common/log.h"

namespace mooncake::acl {
namespace {

const char* HostClass(const NpuCopy& copy, const PinnedRanges& pinned) {
  if (copy.direction() == CopyDirection::kDeviceToDevice) return "";
  return pinned.Run(copy.host_end().host(), copy.size) == copy.size ? " (page-locked host memory)"
                                                                    : " (ordinary host memory)";
}

}  // namespace

int KindOf(CopyDirection direction) {
  switch (direction) {
    case CopyDirection::kHostToDevice:
      return kHostToDevice;
    case CopyDirection::kDeviceToHost:
      return kDeviceToHost;
    case CopyDirection::kDeviceToDevice:
      return kDeviceToDevice;
  }
  return -1;
}

// --- memory ---

class AclDriver::Pinned final : public PinnedMemory {
 public:
  Pinned(AclDriver& driver, int32_t device_id, std::span<std::byte> memory)
      : PinnedMemory(memory), driver_(driver), device_id_(device_id) {
    driver_.pinned_.Add(memory);
  }
  ~Pinned() override {
    driver_.pinned_.Remove(bytes().data());
    const AclError rc = Insist(driver_.devices_.functions().FreeHost, bytes().data());
    if (rc != kSuccess) {
      log::Warn("{}", driver_.devices_
                          .Failed(device_id_, ErrorCode::INTERNAL_ERROR, rc,
                                  fmt::format("freeing {} B of page-locked memory", bytes().size()))
                          .ToString());
    }
  }

 private:
  AclDriver& driver_;
  const int32_t device_id_;
};

Result<std::unique_ptr<PinnedMemory>> AclDriver::AllocatePinned(int32_t device_id, size_t bytes) {
  const ScopedContext scope(devices_.functions(), MC_TRY(devices_.ContextOf(device_id)));
  void* memory = nullptr;
  AclError rc = scope.error();
  if (rc == kSuccess) rc = devices_.functions().MallocHost(&memory, bytes);
  if (rc != kSuccess) {
    return std::unexpected(
        devices_.Failed(device_id, ErrorCode::INTERNAL_ERROR, rc,
                        fmt::format("page-locked memory of {} B for NPU device {}", bytes, device_id)));
  }
  return std::make_unique<Pinned>(*this, device_id, std::span(static_cast<std::byte*>(memory), bytes));
}

bool AclDriver::LooksPinned(int32_t device_id, const std::byte* at, size_t size) const {
  const FunctionTable& functions = devices_.functions();
  if (functions.PointerGetAttributes == nullptr || devices_.Lost(device_id)) return false;
  const auto context = devices_.ContextOf(device_id);
  if (!context) return false;
  const ScopedContext scope(functions, *context);
  // Older runtimes answer with an error for ordinary memory.
  const auto pinned = [&](const std::byte* address) {
    PointerAttributes attributes{};
    return functions.PointerGetAttributes(address, &attributes) == kSuccess &&
           attributes.location.type == kLocationHost;
  };
  const bool both = scope.error() == kSuccess && pinned(at) && pinned(at + size - 1);
  if (!both) DropErrorText(functions);
  return both;
}

Result<void> AclDriver::RegisterHost(int32_t device_id, std::span<std::byte> memory) {
  const FunctionTable& functions = devices_.functions();
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  if (memory.empty() || begin % page != 0 || memory.size() % page != 0) {
    return Error(ErrorCode::INVALID_PARAMS, "{} B of host memory at {:#x} do not begin and end on pages of {} B",
                 memory.size(), begin, page);
  }
  if ((functions.HostRegisterV2 == nullptr && functions.HostRegister == nullptr) ||
      functions.HostUnregister == nullptr) {
    return Error(ErrorCode::NOT_IMPLEMENTED, "{} has no aclrtHostRegister: host memory cannot be page-locked",
                 devices_.library().path);
  }
  const ScopedContext scope(functions, MC_TRY(devices_.ContextOf(device_id)));
  AclError rc = scope.error();
  if (rc == kSuccess) {
    rc = functions.HostRegisterV2 == nullptr
             ? kFeatureNotSupported
             : functions.HostRegisterV2(memory.data(), memory.size(), kHostRegisterPinned);
  }
  if (rc == kFeatureNotSupported && functions.HostRegister != nullptr) {
    void* for_kernels = nullptr;
    rc = functions.HostRegister(memory.data(), memory.size(), kHostRegisterMapped, &for_kernels);
  }
  if (rc != kSuccess) {
    const ErrorCode code = rc == kFeatureNotSupported           ? ErrorCode::NOT_IMPLEMENTED
                           : rc == kHostMemoryAlreadyRegistered ? ErrorCode::INVALID_PARAMS
                                                                : ErrorCode::INTERNAL_ERROR;
    return std::unexpected(devices_.Failed(
        device_id, code, rc,
        fmt::format("page-locking {} B of host memory at {:#x} for NPU device {}", memory.size(), begin, device_id)));
  }
  pinned_.Add(memory);
  return {};
}

void AclDriver::UnregisterHost(int32_t device_id, std::span<std::byte> memory) {
  pinned_.Remove(memory.data());
  const ScopedContext scope(devices_.functions(), devices_.OpenContext(device_id));
  AclError rc = scope.error();
  if (rc == kSuccess) rc = Insist(devices_.functions().HostUnregister, memory.data());
  if (rc != kSuccess) {
    log::Warn("{}", devices_
                        .Failed(device_id, ErrorCode::INTERNAL_ERROR, rc,
                                fmt::format("aclrtHostUnregister of {} B at {}", memory.size(),
                                            static_cast<void*>(memory.data())))
                        .ToString());
  }
}

// --- copies ---

Result<void> AclDriver::CopyNow(const NpuCopy& copy) {
  const int32_t device_id = copy.device_id();
  if (copy.direction() == CopyDirection::kDeviceToDevice && copy.source.device_id() != device_id) {
    MC_TRY(devices_.ContextOf(copy.source.device_id(), ErrorCode::DATA_COPY_FAILED));
  }
  const ScopedContext scope(devices_.functions(), MC_TRY(devices_.ContextOf(device_id, ErrorCode::DATA_COPY_FAILED)));
  AclError rc = scope.error();
  const int kind = KindOf(copy.direction());
  const size_t step = kind == kDeviceToDevice ? kDeviceCopyBytesMax : copy.size;
  for (size_t done = 0; done < copy.size && rc == kSuccess; done += step) {
    const NpuCopy part = copy.Part(done, std::min(step, copy.size - done));
    rc = devices_.functions().Memcpy(ToPointer(part.target), part.capacity, ToPointer(part.source), part.size, kind);
  }
  if (rc == kSuccess) return {};
  const std::string what = Describe(copy) + HostClass(copy, pinned_);
  // Of two devices the runtime does not say which one is gone; the next call that uses just that one will.
  const bool between_two = copy.direction() == CopyDirection::kDeviceToDevice && copy.source.device_id() != device_id;
  if (between_two) return std::unexpected(MakeStatus(devices_.functions(), ErrorCode::DATA_COPY_FAILED, rc, what));
  return std::unexpected(devices_.Failed(device_id, ErrorCode::DATA_COPY_FAILED, rc, what));
}

Result<std::unique_ptr<NpuStream>> AclDriver::CreateStream(int32_t device_id) {
  const ScopedContext scope(devices_.functions(), MC_TRY(devices_.ContextOf(device_id)));
  if (scope.error() == kSuccess) return MakeStream(devices_, device_id);
  return std::unexpected(devices_.Failed(device_id, ErrorCode::INTERNAL_ERROR, scope.error(),
                                         fmt::format("aclrtSetCurrentContext of NPU device {}", device_id)));
}

// --- peers ---

bool AclDriver::EnsurePeerAccess(int32_t from, int32_t to) {
  if (from == to) return true;
  const std::pair pair = std::minmax(from, to);
  std::unique_lock lock(peers_mutex_);
  while (true) {
    const auto [known, first] = peers_.try_emplace(pair, Peers::kAsking);
    if (first) break;
    if (known->second != Peers::kAsking) return known->second == Peers::kReachable;
    peers_answered_.wait(lock);
  }
  lock.unlock();
  const bool reachable = AskForPeerAccess(pair.first, pair.second);
  lock.lock();
  peers_[pair] = reachable ? Peers::kReachable : Peers::kUnreachable;
  peers_answered_.notify_all();
  return reachable;
}

AclError AclDriver::EnableOneWay(int32_t from, int32_t to) {
  const ScopedContext scope(devices_.functions(), devices_.OpenContext(from));
  return scope.error() != kSuccess ? scope.error() : devices_.functions().DeviceEnablePeerAccess(to, 0);
}

bool AclDriver::AskForPeerAccess(int32_t from, int32_t to) {
  for (const int32_t id : {from, to}) {
    if (const auto context = devices_.ContextOf(id); !context) {
      log::Warn("no peer access between NPU devices {} and {}: {}", from, to, context.error().ToString());
      return false;
    }
  }
  int32_t can = 0;
  AclError rc = devices_.functions().DeviceCanAccessPeer(&can, from, to);
  const char* step = "aclrtDeviceCanAccessPeer";
  if (rc == kSuccess && can == 0) {
    log::Info("NPU devices {} and {} do not reach each other, copies between them go through host memory", from, to);
    return false;
  }
  if (rc == kSuccess) {
    step = "aclrtDeviceEnablePeerAccess";
    rc = EnableOneWay(from, to);
  }
  if (rc == kSuccess) rc = EnableOneWay(to, from);
  if (rc == kSuccess) return true;
  DropErrorText(devices_.functions());
  log::Warn("copies between NPU devices {} and {} go through host memory: {} answers {} {}", from, to, step, rc,
            ErrorName(rc));
  return false;
}

}  // namespace mooncake::acl
