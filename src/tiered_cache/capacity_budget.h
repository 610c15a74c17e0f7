// A hard byte limit that concurrent allocations can never exceed.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>
#include <utility>

#include "common/check.h"

namespace mooncake {

// Reserve before allocating, keep the Reservation beside the memory, and let it die after the memory has been given
// back: then usage never exceeds what the device holds and is exactly 0 when everything is gone. Any thread. The atomic
// is a parameter so that a test can step through every interleaving of its operations.
template <typename Atomic>
class BasicCapacityBudget {
 public:
  // Returns its bytes when destroyed. Must not outlive its budget.
  class Reservation {
   public:
    Reservation(Reservation&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    Reservation& operator=(Reservation&&) = delete;
    ~Reservation() {
      if (budget_ != nullptr) budget_->Release(size_);
    }

   private:
    friend class BasicCapacityBudget;
    Reservation(BasicCapacityBudget* budget, size_t size) : budget_(budget), size_(size) {}
    BasicCapacityBudget* budget_;
    size_t size_;
  };

  explicit BasicCapacityBudget(size_t capacity) : capacity_(capacity) {}
  BasicCapacityBudget(const BasicCapacityBudget&) = delete;
  ~BasicCapacityBudget() { MC_CHECK(used_.load() == 0, "{} B still reserved", used_.load()); }

  // nullopt when `size` more bytes would exceed the capacity.
  std::optional<Reservation> Reserve(size_t size) {
    size_t used = used_.load(std::memory_order_relaxed);
    do {
      if (size > capacity_ - used) return std::nullopt;  // never used + size: that sum could wrap
    } while (!used_.compare_exchange_weak(used, used + size, std::memory_order_acq_rel, std::memory_order_relaxed));
    return Reservation(this, size);
  }

  size_t used() const { return used_.load(std::memory_order_acquire); }
  size_t capacity() const { return capacity_; }

 private:
  void Release(size_t size) {
    const size_t before = used_.fetch_sub(size, std::memory_order_acq_rel);
    MC_CHECK(before >= size, "released {} B of {} B reserved", size, before);
  }

  const size_t capacity_;
  Atomic used_{0};
};

using CapacityBudget = BasicCapacityBudget<std::atomic<size_t>>;

}  // namespace mooncake
