// NpuRuntime on the ACL library: allocation here, copies through the copy engine over AclDriver.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "device/acl/acl_devices.h"
#include "device/acl/acl_driver.h"
#include "device/acl/acl_ipc.h"
#include "device/copy_engine.h"
#include "device/npu_runtime.h"

namespace mooncake::acl {

// Options from MC_NPU_STAGING's text (nullopt: unset): a size from one slot to 16 GiB, or 0. INVALID_PARAMS else.
Result<CopyEngineOptions> StagingOptions(const std::optional<std::string>& ring_size);

// One per process (OpenNpuRuntime shares it). All calls may come from any thread at once.
class AclRuntime final : public NpuRuntime, public std::enable_shared_from_this<AclRuntime> {
 public:
  static Result<std::shared_ptr<AclRuntime>> Open(CopyEngineOptions options = {});

  int32_t DeviceCount() const override { return devices_->count(); }
  Result<void> OpenDevice(int32_t device_id) override { return devices_->OpenDevice(device_id); }
  Result<MemoryInfo> GetMemoryInfo(int32_t device_id) override;
  Result<AscendUnifiedPointer> Allocate(int32_t device_id, size_t size) override;
  size_t DeviceBytes(size_t size) const override;
  Result<void> Free(AscendUnifiedPointer block) override;
  Result<void> CopyHostToDevice(AscendUnifiedPointer target, size_t capacity, const std::byte* source,
                                size_t size) override;
  Result<void> CopyDeviceToHost(std::byte* target, size_t capacity, AscendUnifiedPointer source, size_t size) override;
  Result<void> CopyDeviceToDevice(AscendUnifiedPointer target, size_t capacity, AscendUnifiedPointer source,
                                  size_t size) override;
  void CopyMany(std::span<RangeCopy> copies) override;
  Result<std::shared_ptr<void>> RegisterHost(int32_t device_id, std::span<std::byte> memory) override;
  NpuDriver* AsyncDriver() override { return &driver_; }
  Result<NpuIpc*> Ipc() override;
  bool DeviceLost(int32_t device_id) const override { return devices_->Lost(device_id); }
  std::optional<int32_t> DeviceOf(const void* address) const override;

  const Library& library() const { return devices_->library(); }
  NpuDriver& driver() { return driver_; }

 private:
  AclRuntime(std::unique_ptr<Devices> devices, CopyEngineOptions options);

  // In the order in which they need each other: streams and page-locked memory end before their devices.
  std::unique_ptr<Devices> devices_;
  AclDriver driver_;
  CopyEngine engine_;
  AclIpc ipc_;
};

// What a block of `size` bytes takes from a device at most, and the allocation policy that keeps to it. `padding`: what
// the allocating function adds to the rounded size.
struct PagePlan {
  int policy;
  size_t bytes;
};
PagePlan PlanPages(size_t size, size_t padding);

}  // namespace mooncake::acl
