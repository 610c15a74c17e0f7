// The ways bytes take between host memory and devices through streams: directly, through page-locked slots, from one
// device to another in two hops.
#pragma once

#include <span>
#include <vector>

#include "device/copy_lanes.h"
#include "device/npu_driver.h"

namespace mooncake {

// Cuts copies into chunks that fit a slot, in order: large ones into several, small ones together into one.
class ChunkPlan {
 public:
  struct Piece {
    NpuCopy copy;
    size_t at;  // offset in the slot, aligned for asynchronous copies
  };

  ChunkPlan(std::span<const NpuCopy> copies, size_t chunk_bytes) : copies_(copies), chunk_bytes_(chunk_bytes) {}
  // The next chunk; false when there is none.
  bool Next(std::vector<Piece>& chunk);

 private:
  std::span<const NpuCopy> copies_;
  const size_t chunk_bytes_;
  size_t index_ = 0;
  size_t offset_ = 0;  // into copies_[index_]
};

// All of these return when everything is submitted, or at the first error; the caller finishes the streams in both
// cases before it lets go of any memory or slot. Errors of copies that ran may only show then. Device ends are aligned;
// copies of one call have one direction. `patience`: the longest wait for one chunk.

// Host ends are page-locked and aligned, or both ends are on devices that reach each other. No copy is larger than
// `batch_bytes`; that many bytes are submitted at a time, a few such batches are in flight.
Result<void> CopyDirect(NpuStream& stream, std::span<const NpuCopy> copies, size_t batch_bytes, Duration patience);

// Host to device, any host memory: the CPU fills one slot while the device reads another.
Result<void> StageToDevice(NpuStream& stream, std::span<const SlotRing::Slot> slots, ChunkPlan plan, Duration patience);

// Device to host, any host memory: the CPU empties one slot while the device fills another. On success all bytes have
// left the slots.
Result<void> StageToHost(NpuStream& stream, std::span<const SlotRing::Slot> slots, ChunkPlan plan, Duration patience);

// Device to device through slots. `down` is of the source's device, `up` of the target's; with two slots and more one
// chunk comes while another goes.
Result<void> Relay(NpuStream& down, NpuStream& up, std::span<const SlotRing::Slot> slots, ChunkPlan plan,
                   Duration patience);

}  // namespace mooncake
