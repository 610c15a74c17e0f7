// The seam between the engine and a wire: operations are handed over, and end exactly once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "device/memory_range.h"
#include "transfer_engine/region_registry.h"
#include "transfer_engine/segment.h"
#include "transfer_engine/types.h"

namespace mooncake {

// One request under way. Owns copies of all it needs.
struct TransferOperation {
  TransferOpcode opcode = TransferOpcode::kRead;
  MemoryRange local;              // not empty
  RegionRegistry::Use local_use;  // of the registered region around `local`; empty when it is not registered
  SegmentPtr target;              // keeps `region` alive
  SegmentRegion region;           // covers the remote range; its keys may be those of a grant
  uint64_t target_address = 0;
  BatchId tag = kInvalidBatch;  // what Cancel names
  Deadline deadline = Deadline::After({});
  // Exactly once, on any thread, also within Submit. When it runs, no byte of `local` is read or written any more, and
  // on success all bytes are in place at their destination. Must not block. Failures:
  //   TRANSFER_TIMEOUT        the deadline passed
  //   TRANSFER_CANCELED       Cancel was called
  //   STALE_SEGMENT           the target is not the process that `target` describes: look it up again
  //   ADDRESS_NOT_REGISTERED  the target does not know the range or the key (it may have changed: look it up again)
  //   TRANSFER_FAIL           anything else, naming the peer
  std::move_only_function<void(Result<void>)> done;

  size_t length() const { return SizeOf(local); }
};

// How the caller will spend its time until the operations end.
enum class Caller : uint8_t {
  kGoesOn,  // Submit must return soon
  kWaits,   // Submit may do the work, on this thread
};

// One kind of wire. Any thread, but for Open and destruction. The destructor ends all operations first (SHUTTING_DOWN).
class Transport {
 public:
  virtual ~Transport() = default;
  // "tcp", "rdma", "shm", "ascend", "local", "staged": what descriptors, errors and metrics call it.
  virtual const char* name() const = 0;

  // Whether it can carry an operation between these; decides by kind of memory, host, devices, keys; asks nobody.
  virtual bool Reaches(const MemoryRange& local, const SegmentDescriptor& target,
                       const SegmentRegion& region) const = 0;

  // Why it cannot, for the caller of a request that nothing carries; "": nothing to add.
  virtual std::string WhyNot(const MemoryRange& /*local*/, const SegmentDescriptor& /*target*/,
                             const SegmentRegion& /*region*/) const {
    return "";
  }

  // Makes a reserved region usable and fills in its part of `region.published`. What cannot be used by this transport
  // at all (NPU memory on a wire that only knows host memory) is success and changes nothing.
  virtual Result<void> RegisterRegion(Region& region) { return static_cast<void>(region), Result<void>{}; }
  // After return this transport lets no peer begin to use the region; what is under way is ended or fails soon, so that
  // its uses end. Called after Unpublish, and to undo a registration.
  virtual void WithdrawRegion(const Region& region) { static_cast<void>(region); }
  // Adds what peers need to reach this process (ports, devices, sockets, the protocol's name).
  virtual void Describe(SegmentDescriptor& self) const { static_cast<void>(self); }

  // Takes the operations, in order. Bounded: what exceeds the transport's limits waits inside, up to its deadline.
  virtual void Submit(std::vector<TransferOperation> operations, Caller caller) = 0;
  // Operations of this batch that have not ended end as soon as their local memory is safe. Does not wait.
  virtual void Cancel(BatchId tag) = 0;

  // For people: how an operation that it reaches will go, its name unless it stands on another transport.
  virtual std::string Way(const MemoryRange& local, const SegmentDescriptor& target,
                          const SegmentRegion& region) const {
    return static_cast<void>(local), static_cast<void>(target), static_cast<void>(region), name();
  }
  // Called before the metrics are read: those that are not counted as they happen are brought up to date.
  virtual void UpdateMetrics() {}
  // Gets ready for memory of an NPU that is not registered; false: it does not carry that. Blocks.
  virtual Result<bool> PrepareDevice(int32_t device_id) { return static_cast<void>(device_id), false; }

  // After return no request that process `node` has begun can change memory of this process; it may connect again.
  // What a process that is believed dead must not outlive. Blocks for a bounded time.
  virtual void Fence(const Uuid& node) { static_cast<void>(node); }
};

}  // namespace mooncake
