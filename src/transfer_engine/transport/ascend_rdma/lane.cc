// When the lane's thread works, looks again, and sleeps.
#include "transfer_engine/transport/ascend_rdma/lane.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/idle_spin.h"

namespace mooncake::bridge {
namespace {

constexpr Duration kSpin = std::chrono::microseconds(50);
// Nothing tells the end of a copy: it is asked for that often once looking all the time has not been worth it.
constexpr Duration kPollPeriod = std::chrono::microseconds(20);
constexpr Duration kNap = std::chrono::seconds(1);

}  // namespace

Lane::Lane(int32_t device_id, const LaneOptions& options, std::unique_ptr<BounceMemory> memory,
           std::unique_ptr<CopyPort> port)
    : memory_(std::move(memory)),
      port_(std::move(port)),
      ring_(memory_->bytes(), options.scheduler.slot_bytes),
      core_(device_id, options, ring_, *port_),
      thread_([this] { Run(); }) {}

Lane::~Lane() {
  core_.Stop();
  thread_.join();
}

void Lane::Run() {
  (void)pthread_setname_np(pthread_self(), "mc-npu-bridge");
  IdleSpin spin;
  bool slept = false;  // in this wait, after looking all the time for a while
  TimePoint idle_since{};
  while (true) {
    const TimePoint now = SteadyClock::Instance().Now();
    if (core_.Step(now)) {
      if (std::exchange(slept, false)) spin.Slept(kSpin, now - idle_since);
      continue;
    }
    if (core_.Done()) return;
    const TimePoint wake = core_.WakeAt(now).value_or(now + kNap);
    // Once per wait, not after each of its naps.
    const bool worked = !slept && spin.Until(std::min(kSpin, Duration(wake - now)), [this] {
      return core_.HasInput() || (core_.MustPoll() && core_.Step(SteadyClock::Instance().Now()));
    });
    if (worked) continue;
    const TimePoint asleep = SteadyClock::Instance().Now();
    if (!std::exchange(slept, true)) idle_since = asleep;
    core_.WaitForInput(core_.MustPoll() ? std::min(wake, asleep + kPollPeriod) : wake);
  }
}

}  // namespace mooncake::bridge
