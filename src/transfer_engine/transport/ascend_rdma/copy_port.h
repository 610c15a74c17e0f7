// The copies between one device and its host slots, as the lane wants them: started, then asked about.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "common/status.h"
#include "device/memory_type.h"
#include "transfer_engine/transport/ascend_rdma/slot_ring.h"

namespace mooncake::bridge {

// `host` and `device` are equal modulo kAsyncAlignment. A write's copy may change the bytes before `host` down to the
// next multiple of that, and reads as many on the device.
struct SlotCopy {
  std::byte* host = nullptr;
  AscendUnifiedPointer device;
  size_t bytes = 0;
};

// One thread at a time. Waits for nothing but a stream that cannot be used any more. Dies with no ticket out.
class CopyPort {
 public:
  using Ticket = uint64_t;

  virtual ~CopyPort() = default;
  // Copies of one direction that can be under way at once.
  virtual size_t depth() const = 0;
  // At most depth() of a direction at once. What goes wrong is told by Poll.
  virtual Ticket Start(Direction direction, std::span<const SlotCopy> copies) = 0;
  // nullopt: still under way. Otherwise the ticket is over: no byte on either side is touched any more, and on success
  // all are in place.
  virtual std::optional<Result<void>> Poll(Ticket ticket) = 0;
  // Asks for an early end, which Poll tells.
  virtual void Abort(Ticket ticket) = 0;
  // The device is gone for good.
  virtual bool Lost() const = 0;
};

}  // namespace mooncake::bridge
