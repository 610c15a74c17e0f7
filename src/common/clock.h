// Time as a dependency: production code asks a Clock, tests advance one by hand.
#pragma once

#include <atomic>
#include <chrono>

namespace mooncake {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
  // The process-wide instance; stateless.
  static const SteadyClock& Instance() {
    static const SteadyClock clock;
    return clock;
  }
};

// Stands still until told otherwise. Any thread.
class ManualClock final : public Clock {
 public:
  TimePoint Now() const override { return TimePoint(Duration(now_ns_.load())); }
  void Advance(Duration by) { now_ns_.fetch_add(by.count()); }

 private:
  std::atomic<int64_t> now_ns_{1'000'000'000};
};

// A point in time by which a call must have returned; compared against the steady clock.
class Deadline {
 public:
  static Deadline After(Duration budget) { return Deadline(std::chrono::steady_clock::now() + budget); }
  TimePoint time() const { return time_; }
  bool Passed() const { return std::chrono::steady_clock::now() >= time_; }
  // Time left, never negative.
  Duration Remaining() const {
    const auto left = time_ - std::chrono::steady_clock::now();
    return left > Duration::zero() ? Duration(left) : Duration::zero();
  }

 private:
  explicit Deadline(TimePoint time) : time_(time) {}
  TimePoint time_;
};

}  // namespace mooncake
