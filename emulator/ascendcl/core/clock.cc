// Clock, exact sleep, and the watchdog.
#include "core/clock.h"

#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

#include <atomic>
#include <cstdlib>

#include "core/config.h"
#include "core/stream.h"

namespace aclemu {
namespace {

using namespace std::chrono_literals;
using Steady = std::chrono::steady_clock;

constexpr auto kSpin = 50us;
constexpr auto kInterruptible = 3ms;  // shorter sleeps are not worth a wake-up by stop

std::atomic<int64_t> virtual_ns{1'000'000'000};  // not 0: times before the start must be representable
std::atomic<uint64_t> progress{0};
thread_local bool own_thread = false;

}  // namespace

Clock::time_point Clock::now() noexcept {
  return IsVirtualTime() ? time_point(duration(virtual_ns.load())) : Steady::now();
}

bool IsVirtualTime() {
  return Settings().time == TimeMode::kVirtual;
}

void AdvanceTo(Clock::time_point time) {
  if (!IsVirtualTime()) return;
  int64_t wish = time.time_since_epoch().count();
  int64_t now = virtual_ns.load();
  while (now < wish && !virtual_ns.compare_exchange_weak(now, wish)) {
  }
}

void SleepUntil(Clock::time_point time, const Stop* stop) {
  if (IsVirtualTime()) return;
  if (stop != nullptr && time - Steady::now() > kInterruptible) {
    Pause(time - kInterruptible / 2, [&] { return stop->IsSet(); });
    if (stop->IsSet()) return;
  }
  auto left = time - Steady::now();
  if (left > kSpin) {
    int64_t ns = (time - kSpin).time_since_epoch().count();
    timespec until{ns / 1'000'000'000, ns % 1'000'000'000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
    }
  }
  while (Steady::now() < time) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
}

void Pause(Deadline until, const std::function<bool()>& ended) {
  if (IsVirtualTime() && until != kForever) {
    AdvanceTo(until);
    return;
  }
  std::unique_lock lock(Event::mutex());
  Watch watch(until);
  while (!ended()) {
    if (watch.Wait(Event::changed(), lock)) return;
  }
}

bool Watch::Wait(std::condition_variable& changed, std::unique_lock<std::mutex>& lock) {
  if (deadline_ != kForever) {
    if (!IsVirtualTime()) return changed.wait_until(lock, deadline_) == std::cv_status::timeout;
    // Nothing can happen before the deadline.
    AdvanceTo(deadline_);
    return true;
  }
  if (own_thread || Settings().watchdog_ms == 0) {
    changed.wait(lock);
    return false;
  }
  uint64_t seen = progress.load(std::memory_order_relaxed);
  auto now = Steady::now();
  if (seen != progress_) {
    progress_ = seen;
    since_ = now;
  }
  auto limit = since_ + std::chrono::milliseconds(Settings().watchdog_ms);
  if (now < limit) {
    changed.wait_until(lock, limit);
    return false;
  }
  lock.unlock();
  DumpStreams();
  abort();
}

void NoteProgress() {
  progress.fetch_add(1, std::memory_order_relaxed);
}

uint64_t Progress() {
  return progress.load(std::memory_order_relaxed);
}

void MarkOwnThread() {
  own_thread = true;
  // Signals belong to the program's own threads.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  prctl(PR_SET_TIMERSLACK, 1000);
}

}  // namespace aclemu
