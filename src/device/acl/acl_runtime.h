// NpuRuntime on the ACL library: the only place where device addresses become pointers again.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "device/acl/acl_library.h"
#include "device/npu_runtime.h"

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

// One per process (OpenNpuRuntime shares it). All calls may come from any thread at once.
class AclRuntime final : public NpuRuntime {
 public:
  static Result<std::shared_ptr<AclRuntime>> Open();
  ~AclRuntime() override;

  int32_t DeviceCount() const override { return static_cast<int32_t>(devices_.size()); }
  Result<void> OpenDevice(int32_t device_id) override;
  Result<MemoryInfo> GetMemoryInfo(int32_t device_id) override;
  Result<AscendUnifiedPointer> Allocate(int32_t device_id, size_t size) override;
  Result<void> Free(AscendUnifiedPointer block) override;
  Result<void> CopyHostToDevice(AscendUnifiedPointer target, size_t capacity, const std::byte* source,
                                size_t size) override;
  Result<void> CopyDeviceToHost(std::byte* target, size_t capacity, AscendUnifiedPointer source, size_t size) override;
  Result<void> CopyDeviceToDevice(AscendUnifiedPointer target, size_t capacity, AscendUnifiedPointer source,
                                  size_t size) override;
  std::optional<int32_t> DeviceOf(const void* address) const override;

  const Library& library() const { return library_; }

 private:
  struct Device {
    std::mutex opening;
    std::atomic<Context> context = nullptr;  // the device's primary context, once open
  };

  AclRuntime(Library library, size_t device_count);
  Result<Context> ContextOf(int32_t device_id);
  Status Failed(ErrorCode code, AclError error, const std::string& what) const;

  Library library_;
  std::vector<Device> devices_;
};

}  // namespace mooncake::acl
