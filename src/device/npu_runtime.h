// What the store needs of an NPU runtime: memory and copies, addressed by device. device/acl implements it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/status.h"
#include "device/memory_range.h"
#include "device/memory_type.h"
#include "device/npu_ipc.h"

namespace mooncake {

class NpuDriver;

// Any thread, whatever device that thread has current; its current context is found again as it was. (A thread that had
// none stays bound to the device used last: the runtime offers no way back.) Sizes are bytes and must not be 0.
// Errors carry the runtime's number as vendor_code and its name in the text.
class NpuRuntime {
 public:
  struct MemoryInfo {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
  };

  virtual ~NpuRuntime() = default;

  // Devices this process sees; ids are 0 .. count-1.
  virtual int32_t DeviceCount() const = 0;
  // Binds the device for this process. Slow (seconds) the first time; must precede any other use of that device.
  virtual Result<void> OpenDevice(int32_t device_id) = 0;
  // Free and total HBM of a device, all processes together.
  virtual Result<MemoryInfo> GetMemoryInfo(int32_t device_id) = 0;

  // NO_AVAILABLE_HANDLE with the runtime's number when the device has no memory left.
  virtual Result<AscendUnifiedPointer> Allocate(int32_t device_id, size_t size) = 0;
  // What Allocate(size) takes from the device's memory at most: rounding, padding and whole pages. 0 for 0.
  virtual size_t DeviceBytes(size_t size) const { return size; }
  // The block must not be used by a copy in flight.
  virtual Result<void> Free(AscendUnifiedPointer block) = 0;

  // Synchronous copies; `capacity` is what the target block really holds from `target` on. DATA_COPY_FAILED leaves the
  // target's bytes undefined. The memory of both sides is let go of when the call returns, also on an error.
  virtual Result<void> CopyHostToDevice(AscendUnifiedPointer target, size_t capacity, const std::byte* source,
                                        size_t size) = 0;
  virtual Result<void> CopyDeviceToHost(std::byte* target, size_t capacity, AscendUnifiedPointer source,
                                        size_t size) = 0;
  // Within one device, or from one to another: directly where they can reach each other, else through pinned host
  // memory, both legs at once.
  virtual Result<void> CopyDeviceToDevice(AscendUnifiedPointer target, size_t capacity, AscendUnifiedPointer source,
                                          size_t size) = 0;
  // Each copy gets its own result; those between one device and the host in one direction share one synchronisation.
  // Returns when none of them touches memory any more. At least one side of each is on an NPU of this runtime. Without
  // an override: one after the other.
  virtual void CopyMany(std::span<RangeCopy> copies);

  // Page-locks host memory, so that copies from and to it run without staging. Ends when the returned object dies: no
  // copy may use the memory then. INVALID_PARAMS unless it begins and ends on a page; NOT_IMPLEMENTED when the runtime
  // has no such function (copies then are staged or synchronous, and correct).
  virtual Result<std::shared_ptr<void>> RegisterHost(int32_t device_id, std::span<std::byte> memory);

  // Streams and page-locked memory of the same devices; lives as long as the runtime. Null when it has none.
  virtual NpuDriver* AsyncDriver() { return nullptr; }
  // For sharing device memory with other processes of this host; lives as long as the runtime. NOT_IMPLEMENTED, naming
  // the function that is missing, where the runtime cannot.
  virtual Result<NpuIpc*> Ipc();

  // True once a call has shown that the device is gone for good (507010 and its like): nothing on it can be used.
  virtual bool DeviceLost(int32_t device_id) const { return device_id < 0; }

  // Device that an address handed in by the application belongs to; nullopt for host memory, also when the runtime
  // does not know the address (older runtimes answer so for ordinary memory).
  virtual std::optional<int32_t> DeviceOf(const void* address) const = 0;
};

// True when this build has an NPU runtime at all; `kNpuBuildOption` names the CMake option that decides.
inline constexpr const char* kNpuBuildOption = "USE_ASCEND_CACHE_TIER";
bool NpuSupportBuilt();

// DEVICE_NOT_FOUND if the device is lost, with the number and the words of the call that has shown it.
Result<void> CheckNotLost(NpuRuntime& runtime, int32_t device_id);

// The process's runtime, loaded at the first call and shared while anybody holds it. Fails when the build has no NPU
// support (NOT_IMPLEMENTED) or no runtime library can be loaded (INTERNAL_ERROR saying which were tried).
Result<std::shared_ptr<NpuRuntime>> OpenNpuRuntime();

// The runtime if this process uses NPU memory: some part of it has opened the runtime, or the application has loaded
// the runtime's library by itself. Else null: a process without either never loads one, and has no NPU addresses.
std::shared_ptr<NpuRuntime> UsedNpuRuntime();

}  // namespace mooncake
