// Host memory that an NPU copies from and to at full speed and that network devices can register as well.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "device/npu_runtime.h"
#include "transfer_engine/transport.h"

namespace mooncake::bridge {

// Ordinary pages, page-locked for the device first (where its runtime can, else a warning tells) and registered with
// the transports second: for local access, so that no peer learns of it or may touch it, or to be lent. Undone in
// reverse order. Not inherited by children.
class BounceMemory {
 public:
  // `bytes`: whole pages. `lent_in`: parts of it will be lent to peers (kLent); null: it is for local access. The
  // transports and the runtime outlive it. Errors say which step failed; nothing stays then.
  static Result<std::unique_ptr<BounceMemory>> Create(NpuRuntime& runtime, int32_t device_id, size_t bytes,
                                                      std::span<Transport* const> transports,
                                                      RegionRegistry* lent_in = nullptr);
  ~BounceMemory();
  BounceMemory(const BounceMemory&) = delete;
  BounceMemory& operator=(const BounceMemory&) = delete;

  HostRange bytes() const { return bytes_; }
  // With the transports' keys.
  const SegmentRegion& published() const { return region_->published; }
  // The device can copy from and to it by itself.
  bool page_locked() const { return page_locked_ != nullptr; }

 private:
  explicit BounceMemory(HostRange bytes) : bytes_(bytes) {}
  Result<void> Register(std::span<Transport* const> transports, RegionRegistry* lent_in, int32_t device_id);

  const HostRange bytes_;
  std::shared_ptr<void> page_locked_;
  RegionRegistry* reserved_in_ = nullptr;
  bool published_ = false;
  std::shared_ptr<Region> region_ = std::make_shared<Region>();
  std::vector<Transport*> registered_;
};

}  // namespace mooncake::bridge
