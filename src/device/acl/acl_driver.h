// NpuDriver on ACL: streams, page-locked memory, peer access.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "device/acl/acl_devices.h"
#include "device/npu_driver.h"
#include "device/pinned_ranges.h"

namespace mooncake::acl {

// Any thread. `devices` outlives it.
class AclDriver final : public NpuDriver {
 public:
  explicit AclDriver(Devices& devices) : devices_(devices) {}

  Result<std::unique_ptr<NpuStream>> CreateStream(int32_t device_id) override;
  Result<std::unique_ptr<PinnedMemory>> AllocatePinned(int32_t device_id, size_t bytes) override;
  size_t PinnedRun(const std::byte* at, size_t size) const override { return pinned_.Run(at, size); }
  bool LooksPinned(int32_t device_id, const std::byte* at, size_t size) const override;
  Result<void> CopyNow(const NpuCopy& copy) override;
  bool EnsurePeerAccess(int32_t from, int32_t to) override;
  bool DeviceLost(int32_t device_id) const override { return devices_.Lost(device_id); }

  // Page-locks memory of the application; UnregisterHost ends it. See NpuRuntime::RegisterHost.
  Result<void> RegisterHost(int32_t device_id, std::span<std::byte> memory);
  void UnregisterHost(int32_t device_id, std::span<std::byte> memory);

 private:
  class Pinned;
  enum class Peers { kAsking, kReachable, kUnreachable };

  bool AskForPeerAccess(int32_t from, int32_t to);
  AclError EnableOneWay(int32_t from, int32_t to);

  Devices& devices_;
  PinnedRanges pinned_;
  std::mutex peers_mutex_;
  std::condition_variable peers_answered_;
  std::map<std::pair<int32_t, int32_t>, Peers> peers_;  // lower id first
};

// At most so much goes into one request between devices.
inline constexpr size_t kDeviceCopyBytesMax = size_t{4} << 30;

int KindOf(CopyDirection direction);
inline void* ToPointer(const CopyEnd& end) {
  return reinterpret_cast<void*>(end.address());
}

// A stream of the device, whose context is current.
Result<std::unique_ptr<NpuStream>> MakeStream(Devices& devices, int32_t device_id);

}  // namespace mooncake::acl
