// The devices of the process as ACL sees them: their contexts, which of them are gone, and the thread's way in and out.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/check.h"
#include "device/acl/acl_library.h"
#include "device/memory_type.h"

namespace mooncake::acl {

// Makes a device's context current on this thread and puts the thread's own one back at the end. A thread that had no
// context keeps ours: the runtime cannot unset one.
class ScopedContext {
 public:
  ScopedContext(const FunctionTable& functions, Context wanted);
  ~ScopedContext();
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;
  // 0, or the runtime's refusal to switch.
  AclError error() const { return error_; }

 private:
  const FunctionTable& functions_;
  Context saved_ = nullptr;
  bool switched_ = false;
  AclError error_ = kSuccess;
};

// Any thread. Resets the devices it has opened when it dies: nothing of theirs may live then.
class Devices {
 public:
  static Result<std::unique_ptr<Devices>> Open();
  ~Devices();
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  const Library& library() const { return library_; }
  const FunctionTable& functions() const { return library_.functions; }
  int32_t count() const { return static_cast<int32_t>(devices_.size()); }

  // INVALID_PARAMS when there is no such device, INTERNAL_ERROR when it cannot be bound (that can be tried again).
  Result<void> OpenDevice(int32_t device_id);
  // The device's primary context, opening it if need be. `when_lost` is the code of the error once it is lost.
  Result<Context> ContextOf(int32_t device_id, ErrorCode when_lost = ErrorCode::INTERNAL_ERROR);
  // Also of a lost device, for giving back what lives on it. It must have been opened.
  Context OpenContext(int32_t device_id) const;
  // Context of some open device; null when there is none.
  Context AnyContext() const;

  // Status for a failed call, to be made on the thread that called; remembers a lost device.
  Status Failed(int32_t device_id, ErrorCode code, AclError error, std::string_view what);
  bool Lost(int32_t device_id) const;

 private:
  struct Loss {
    AclError error;
    std::chrono::system_clock::time_point since;
    std::string what;
  };
  struct Device {
    std::mutex opening;
    std::atomic<Context> context = nullptr;
    std::atomic<bool> lost = false;
    std::mutex mutex;
    std::optional<Loss> loss;  // guarded by mutex; set once
  };

  Devices(Library library, size_t count) : library_(std::move(library)), devices_(count) {}
  Result<void> CheckUsable(int32_t device_id, ErrorCode when_lost);
  bool Exists(int32_t device_id) const { return device_id >= 0 && device_id < count(); }

  Library library_;
  std::vector<Device> devices_;
};

inline void* ToPointer(AscendUnifiedPointer at) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(at.device_ptr));
}

}  // namespace mooncake::acl
