// What concurrent copies share: streams lent to one call at a time, and slots of page-locked memory.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "device/npu_driver.h"

namespace mooncake {

// The streams of one device and direction, made at first need. Any thread; no lock is held across a device call.
// Whoever needs several lanes acquires those to the host first, then those to devices, then those between devices, each
// kind by device; slots come last. That order is what makes waiting safe.
class LanePool {
 public:
  class Lane;

  LanePool(NpuDriver& driver, int32_t device_id, size_t limit)
      : driver_(driver), device_id_(device_id), limit_(limit) {}
  ~LanePool();
  LanePool(const LanePool&) = delete;
  LanePool& operator=(const LanePool&) = delete;

  // Waits until one is free. An error: no stream can be made.
  Result<Lane> Acquire();

 private:
  void Release(std::unique_ptr<NpuStream> stream);  // null: it was ended

  NpuDriver& driver_;
  const int32_t device_id_;
  const size_t limit_;
  std::mutex mutex_;
  std::condition_variable freed_;
  size_t in_use_ = 0;
  std::vector<std::unique_ptr<NpuStream>> idle_;
};

// A stream while one call uses it. Its memory may be let go of after Finish only.
class LanePool::Lane {
 public:
  Lane(LanePool& pool, std::unique_ptr<NpuStream> stream) : pool_(&pool), stream_(std::move(stream)) {}
  Lane(Lane&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), stream_(std::move(other.stream_)), used_(other.used_) {}
  Lane& operator=(Lane&&) = delete;
  ~Lane();

  NpuStream& stream() {
    used_ = true;
    return *stream_;
  }
  // Returns when the stream touches no memory any more: `so_far`, or else the first error of its copies. Ends a stream
  // that had one.
  Result<void> Finish(Result<void> so_far, Duration patience, std::string_view what);

 private:
  LanePool* pool_;
  std::unique_ptr<NpuStream> stream_;
  bool used_ = false;  // and not finished since
};

// A device's ring of equal slots in one piece of page-locked memory, allocated at first need. Any thread.
class SlotRing {
 public:
  class Slot;

  SlotRing(NpuDriver& driver, int32_t device_id, size_t slot_bytes, size_t slot_count);
  ~SlotRing();
  SlotRing(const SlotRing&) = delete;
  SlotRing& operator=(const SlotRing&) = delete;

  // Between 1 and `wanted` slots: waits for the first, takes the others only if they are free, so that callers who
  // share few slots all get on. None when there is no page-locked memory (logged once).
  std::vector<Slot> Acquire(size_t wanted);
  size_t slot_bytes() const { return slot_bytes_; }

 private:
  enum class State { kEmpty, kAllocating, kReady, kFailed };
  void Allocate(std::unique_lock<std::mutex>& lock);
  void Release(std::byte* slot);

  NpuDriver& driver_;
  const int32_t device_id_;
  const size_t slot_bytes_;
  const size_t slot_count_;
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kEmpty;
  std::unique_ptr<PinnedMemory> memory_;
  std::vector<std::byte*> free_;
};

// Returned to the ring when it dies: after the streams that use it are finished.
class SlotRing::Slot {
 public:
  Slot(SlotRing& ring, std::byte* begin) : ring_(&ring), begin_(begin) {}
  Slot(Slot&& other) noexcept : ring_(std::exchange(other.ring_, nullptr)), begin_(other.begin_) {}
  Slot& operator=(Slot&&) = delete;
  ~Slot() {
    if (ring_ != nullptr) ring_->Release(begin_);
  }
  std::span<std::byte> bytes() const { return {begin_, ring_->slot_bytes_}; }

 private:
  SlotRing* ring_;
  std::byte* begin_;
};

}  // namespace mooncake
