// The clock of everything modelled: the system's steady clock, or one that only the model moves (ACLEMU_TIME=virtual).
#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>

namespace aclemu {

struct Clock {
  using duration = std::chrono::steady_clock::duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::steady_clock::time_point;
  static constexpr bool is_steady = true;
  static time_point now() noexcept;
};

using Deadline = Clock::time_point;
constexpr Deadline kForever = Deadline::max();

bool IsVirtualTime();
// Moves the virtual clock forward; does nothing when it is later already, or time is real.
void AdvanceTo(Clock::time_point time);

struct Stop;

// Sleeps until then, the last microseconds awake so that it is exact; stop ends it early. Virtual time: returns at
// once, the caller decides when the clock moves.
void SleepUntil(Clock::time_point time, const Stop* stop);
// Waits until the time or until ended() is true, which is asked again after every change of events and streams. Virtual
// time: moves the clock instead, if the time is not kForever.
void Pause(Deadline until, const std::function<bool()>& ended);

// Bounds waits without a deadline by ACLEMU_WATCHDOG: when nothing at all happened in the process for that long, the
// state of all streams is printed and the process aborts (rule S3). Threads of the emulator itself wait unwatched.
class Watch {
 public:
  explicit Watch(Deadline deadline) : deadline_(deadline) {}
  // Waits for one notification. True when the deadline is over. The lock must be of a stream or of the events.
  bool Wait(std::condition_variable& changed, std::unique_lock<std::mutex>& lock);

 private:
  const Deadline deadline_;
  uint64_t progress_ = UINT64_MAX;
  std::chrono::steady_clock::time_point since_{};
};
void NoteProgress();
uint64_t Progress();   // grows with every note
void MarkOwnThread();  // the calling thread belongs to the emulator: no signals, no watchdog

}  // namespace aclemu
