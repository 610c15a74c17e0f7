// Batching and delivery of key states.
#include "client/announcer.h"

#include <future>
#include <utility>

namespace mooncake {

Announcer::Announcer(Hooks hooks, size_t max_batch) : hooks_(std::move(hooks)), max_batch_(max_batch) {
  thread_ = std::thread([this] { Run(); });
}

Announcer::~Announcer() {
  Stop();
}

void Announcer::RunAll(std::vector<Completion>& completions) {
  for (auto& done : completions) done();
}

void Announcer::Mark(std::string_view key) {
  {
    std::lock_guard lock(mutex_);
    if (!running_) return;
    ++mark_count_;
    marked_.emplace(key);
  }
  wake_.notify_one();
}

void Announcer::WhenDelivered(Completion done) {
  {
    std::lock_guard lock(mutex_);
    if (running_ && delivered_count_ < mark_count_) {
      waiters_.emplace(mark_count_, std::move(done));
      return;
    }
  }
  done();
}

bool Announcer::WaitDelivered(Deadline deadline) {
  auto delivered = std::make_shared<std::promise<void>>();
  auto future = delivered->get_future();
  WhenDelivered([delivered] { delivered->set_value(); });
  return future.wait_until(deadline.time()) == std::future_status::ready;
}

void Announcer::Resume() {
  std::lock_guard lock(mutex_);
  running_ = !stopping_;
}

void Announcer::PauseLocked(std::vector<Completion>& released) {
  running_ = false;
  marked_.clear();
  delivered_count_ = mark_count_;
  for (auto& [count, done] : waiters_) released.push_back(std::move(done));
  waiters_.clear();
}

void Announcer::Pause() {
  std::vector<Completion> released;
  {
    std::lock_guard lock(mutex_);
    PauseLocked(released);
  }
  RunAll(released);
}

void Announcer::Stop() {
  std::vector<Completion> released;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    PauseLocked(released);
  }
  wake_.notify_all();
  RunAll(released);
  if (thread_.joinable()) thread_.join();
}

void Announcer::Run() {
  for (;;) {
    std::vector<std::string> keys;
    uint64_t covers = 0;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !marked_.empty(); });
      if (stopping_) return;
      while (!marked_.empty() && keys.size() < max_batch_) {
        keys.push_back(std::move(marked_.extract(marked_.begin()).value()));
      }
      // Only an emptied set says that everything marked so far is on its way.
      covers = marked_.empty() ? mark_count_ : 0;
    }
    Deliver(std::move(keys));
    std::vector<Completion> released;
    {
      std::lock_guard lock(mutex_);
      if (covers > delivered_count_) delivered_count_ = covers;
      const auto end = waiters_.upper_bound(delivered_count_);
      for (auto it = waiters_.begin(); it != end; ++it) released.push_back(std::move(it->second));
      waiters_.erase(waiters_.begin(), end);
    }
    RunAll(released);
  }
}

void Announcer::Deliver(std::vector<std::string> keys) {
  std::vector<protocol::KeyState> states;
  states.reserve(keys.size());
  for (const std::string& key : keys) {
    states.push_back(hooks_.state_of(key).value_or(protocol::KeyState{.key = KeyDigest::Of(key)}));
  }
  const auto reply = hooks_.send(std::move(states));
  if (!reply) {
    Pause();
    hooks_.on_failed(reply.error());
    return;
  }
  for (const uint32_t position : reply->rejected) {
    if (position < keys.size()) hooks_.on_rejected(keys[position]);
  }
}

}  // namespace mooncake
