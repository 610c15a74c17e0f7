// Waiting for new descriptors.
#include "transfer_engine/reroute_queue.h"

#include <pthread.h>

#include "common/exhaustion.h"
#include "common/log.h"

namespace mooncake {
namespace {

bool Changed(const SegmentDescriptor& before, const SegmentDescriptor& now) {
  return before.generation != now.generation || before.revision != now.revision;
}

}  // namespace

bool RerouteQueue::StartThread() {
  if (thread_.joinable()) return true;
  const auto started = CatchExhaustion([this]() -> Result<void> {
    thread_ = std::thread([this] { Run(); });
    return {};
  });
  if (!started) {
    log::Warn("no thread that waits for new descriptors: {}", started.error().message());
    return false;
  }
  pthread_setname_np(thread_.native_handle(), "te_reroute");
  return true;
}

bool RerouteQueue::Add(TransferJobPtr& job, const Status& why, Duration patience) {
  auto waiting = std::make_shared<Waiting>();
  waiting->why = why;
  waiting->give_up = std::min(Deadline::After(patience).time(), job->of->deadline.time());
  const SegmentId target = job->target;
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || !StartThread()) return false;
    waiting->job = std::move(job);
    waiting_.push_back(waiting);
    look_ = true;
    wake_.notify_one();
  }
  // The cache ends its fetches before this queue goes.
  segments_.RefreshAsync(target, [this, waiting](Result<SegmentPtr> answer) {
    std::lock_guard lock(mutex_);
    waiting->answered = true;
    waiting->answer = std::move(answer);
    look_ = true;
    wake_.notify_one();
  });
  return true;
}

void RerouteQueue::Wake() {
  std::lock_guard lock(mutex_);
  look_ = true;
  wake_.notify_one();
}

std::optional<Result<SegmentPtr>> RerouteQueue::Judge(Waiting& waiting, TimePoint now) const {
  if (waiting.job->of->Canceled()) return Error(ErrorCode::TRANSFER_CANCELED, "canceled by the application");
  if (waiting.answered) {
    // An error of the look-up says less than what the transport met.
    if (!waiting.answer || !Changed(*waiting.job->segment, **waiting.answer)) return std::unexpected(waiting.why);
    return std::move(waiting.answer);
  }
  if (stopping_) return Error(ErrorCode::SHUTTING_DOWN, "the transfer engine is closed");
  if (now < waiting.give_up) return std::nullopt;
  if (now < waiting.job->of->deadline.time()) return std::unexpected(waiting.why);
  return Error(ErrorCode::TRANSFER_TIMEOUT, "the deadline passed while the target was looked up again after: {}",
               waiting.why.message());
}

void RerouteQueue::Collect(std::vector<Outcome>& ended, TimePoint& wake_at) {
  const TimePoint now = SteadyClock::Instance().Now();
  wake_at = TimePoint::max();
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    if (auto outcome = Judge(**at, now)) {
      ended.push_back({std::move((*at)->job), std::move(*outcome)});
      at = waiting_.erase(at);
    } else {
      wake_at = std::min(wake_at, (*at++)->give_up);
    }
  }
}

void RerouteQueue::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    look_ = false;
    std::vector<Outcome> ended;
    TimePoint wake_at;
    Collect(ended, wake_at);
    if (!ended.empty()) {
      lock.unlock();
      sink_(std::move(ended));
      lock.lock();
      continue;
    }
    if (stopping_) return;
    const auto called = [this] { return look_ || stopping_; };
    if (wake_at == TimePoint::max()) {
      wake_.wait(lock, called);
    } else {
      wake_.wait_until(lock, wake_at, called);
    }
  }
}

void RerouteQueue::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace mooncake
