// A bounded set of equal host buffers through which bytes pass on their way between an NPU and a wire.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace mooncake {

// A slot is free again only when its Slot object dies, so keep that until nothing can touch the bytes any more. Any
// thread. Those who serve others and those who start transfers must use different pools: waiting for a peer while
// holding what the peer's requests need would be a deadlock across processes.
class StagingPool {
 public:
  class Slot {
   public:
    Slot(StagingPool& pool, std::unique_ptr<std::byte[]> memory) : pool_(pool), memory_(std::move(memory)) {}
    ~Slot() { pool_.Release(std::move(memory_)); }
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;
    std::span<std::byte> bytes() const { return {memory_.get(), pool_.slot_bytes_}; }

   private:
    StagingPool& pool_;
    std::unique_ptr<std::byte[]> memory_;
  };

  StagingPool(size_t slot_bytes, size_t slot_count) : slot_bytes_(slot_bytes), slot_count_(slot_count) {}
  ~StagingPool();

  // Waits for a free slot until the deadline: TRANSFER_FAIL then, with the numbers.
  Result<std::shared_ptr<Slot>> Acquire(Deadline deadline);
  // Null when all slots are in use.
  std::shared_ptr<Slot> TryAcquire();
  size_t slot_bytes() const { return slot_bytes_; }

 private:
  std::shared_ptr<Slot> Take(std::unique_lock<std::mutex> lock);
  void Release(std::unique_ptr<std::byte[]> memory);

  const size_t slot_bytes_;
  const size_t slot_count_;
  std::mutex mutex_;
  std::condition_variable freed_;
  size_t in_use_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> idle_;  // memory is kept once it was needed
};

}  // namespace mooncake
