// Copies between host memory and NPUs, and among NPUs, at the speed of the link: decides which way each one takes.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "device/copy_lanes.h"
#include "device/copy_pipeline.h"
#include "device/npu_driver.h"

namespace mooncake {

struct CopyEngineOptions {
  // Page-locked memory per device, both directions together, allocated at the first copy that wants it. 0: copies of
  // ordinary host memory are synchronous, which is faster where the driver beats one CPU's memcpy.
  size_t ring_bytes = size_t{16} << 20;
  size_t slot_bytes = size_t{1} << 20;
  // Slots one copy through the ring takes while others are free.
  size_t slots_per_copy = 2;
  size_t slots_per_relay = 4;
  // Streams per device and direction.
  size_t lanes = 4;
  // Single copies below this are synchronous. Others are cut so that chunks of `chunk_bytes_min` and more overlap.
  size_t async_from_bytes = size_t{256} << 10;
  size_t chunk_bytes_min = size_t{64} << 10;
  size_t relay_chunk_bytes_min = size_t{256} << 10;  // of two hops, each of which costs a submission and a wait
  // What is submitted at a time where no slot is needed.
  size_t direct_batch_bytes = size_t{8} << 20;
  size_t between_devices_batch_bytes = size_t{64} << 20;
  // The runtime is asked from here on whether the application page-locked the memory by itself.
  size_t ask_pinned_from_bytes = size_t{1} << 20;
  // Longest wait for one chunk or batch before the copy is aborted.
  Duration patience = std::chrono::seconds(30);
};

// Any thread, many at once: copies of one device in opposite directions overlap. All calls return only when no memory
// of theirs is touched any more. The driver outlives the engine; nobody uses it while it dies.
class CopyEngine {
 public:
  CopyEngine(NpuDriver& driver, int32_t device_count, CopyEngineOptions options = {});
  ~CopyEngine();
  CopyEngine(const CopyEngine&) = delete;
  CopyEngine& operator=(const CopyEngine&) = delete;

  // DATA_COPY_FAILED leaves the target's bytes undefined.
  Result<void> Copy(const NpuCopy& copy);
  // results[i] is that of copies[i]; one synchronisation per device and direction. When one fails, those that shared it
  // are done again one by one, so that only the guilty get an error.
  void CopyMany(std::span<const NpuCopy> copies, std::span<Result<void>> results);

 private:
  struct Device {
    Device(NpuDriver& driver, int32_t id, const CopyEngineOptions& options);
    LanePool& lanes(CopyDirection direction) { return *pools[static_cast<size_t>(direction)]; }
    std::unique_ptr<LanePool> pools[3];
    SlotRing ring;
  };
  enum class Way { kSynchronous, kDirect, kStaged, kRelay };
  struct Route {
    Way way = Way::kSynchronous;
    bool pinned_by_others = false;  // as far as one can tell
  };
  // Copies that share a lane.
  struct Group {
    CopyDirection direction;
    int32_t device_id;
    std::vector<NpuCopy> direct = {};  // already cut
    std::vector<NpuCopy> staged = {};
    std::vector<size_t> members = {};  // of a batch
    Result<void> outcome = {};
  };

  Device& device(int32_t id) { return *devices_[static_cast<size_t>(id)]; }
  Route Choose(const NpuCopy& copy, bool alone);
  bool WhollyPinned(const std::byte* at, size_t size) const;
  size_t DirectBatch(CopyDirection direction) const;
  void AppendDirect(const NpuCopy& copy, std::vector<NpuCopy>& parts) const;
  ChunkPlan Plan(std::span<const NpuCopy> copies, size_t chunks, size_t bytes_min) const;
  void TellNoLane(const Status& why);

  Result<void> Synchronous(const NpuCopy& copy);
  Result<void> SynchronousEach(std::span<const NpuCopy> copies);
  Result<void> ThroughHost(const NpuCopy& copy);
  // Groups are in the order in which lanes are acquired; sets their outcomes.
  void RunGroups(std::span<Group> groups);
  Result<void> RunStaged(Group& group, NpuStream& stream, std::span<const SlotRing::Slot> slots);
  // Copies from one device to one other.
  Result<void> RunRelay(std::span<const NpuCopy> copies);
  void Settle(const Result<void>& outcome, std::span<const size_t> members, std::span<const NpuCopy> copies,
              std::span<Result<void>> results);

  NpuDriver& driver_;
  const CopyEngineOptions options_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::atomic<bool> told_no_lane_ = false;
};

}  // namespace mooncake
