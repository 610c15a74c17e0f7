// Wakes those who wait for room when somebody gives some back.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "common/clock.h"

namespace mooncake {

// Costs one load per Notify while nobody waits. Any thread.
class RoomSignal {
 public:
  // What is given back after a Waiter was made ends its next Wait. Memory that is freed at the very moment a waiter
  // enters may be missed (a fence for that would cost every free), so waiters look again by themselves after a while.
  class Waiter {
   public:
    explicit Waiter(RoomSignal& signal) : signal_(signal), seen_(signal.Enter()) {}
    ~Waiter() { signal_.waiters_.fetch_sub(1); }
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;
    // Until something was given back since the last Wait (or since this was made), or the deadline.
    void Wait(Deadline deadline) {
      std::unique_lock lock(signal_.mutex_);
      signal_.changed_.wait_until(lock, deadline.time(), [&] { return signal_.generation_ != seen_; });
      seen_ = signal_.generation_;
    }

   private:
    RoomSignal& signal_;
    uint64_t seen_;
  };

  // After the room is back.
  void Notify() {
    if (waiters_.load() == 0) return;
    {
      std::lock_guard lock(mutex_);
      ++generation_;
    }
    changed_.notify_all();
  }

 private:
  uint64_t Enter() {
    waiters_.fetch_add(1);
    std::lock_guard lock(mutex_);
    return generation_;
  }

  std::atomic<uint32_t> waiters_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t generation_ = 0;  // guarded by mutex_
};

}  // namespace mooncake
