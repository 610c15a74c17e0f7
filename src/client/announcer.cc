// Batching and delivery of key states.
#include "client/announcer.h"

#include <algorithm>
#include <future>
#include <utility>

namespace mooncake {

Announcer::Announcer(Hooks hooks, size_t max_batch) : hooks_(std::move(hooks)), max_batch_(max_batch) {
  thread_ = std::thread([this] { Run(); });
}

Announcer::~Announcer() {
  Stop();
}

void Announcer::RunAll(std::vector<Completion>& completions, bool delivered) {
  for (auto& done : completions) done(delivered);
}

uint64_t Announcer::Mark(std::string_view key) {
  uint64_t ticket = 0;
  {
    std::lock_guard lock(mutex_);
    if (!running_) return mark_count_;
    ticket = ++mark_count_;
    const auto [entry, fresh] = marked_.try_emplace(std::string(key), ticket);
    if (!fresh) return ticket;  // the sender is awake already
    queue_.emplace_hint(queue_.end(), ticket, &entry->first);
  }
  wake_.notify_one();
  return ticket;
}

void Announcer::WhenDelivered(Completion done) {
  uint64_t last = 0;
  {
    std::lock_guard lock(mutex_);
    last = mark_count_;
  }
  WhenDelivered(last, std::move(done));
}

void Announcer::WhenDelivered(uint64_t ticket, Completion done) {
  bool running = false;
  {
    std::lock_guard lock(mutex_);
    running = running_;
    if (running && delivered_count_ < ticket) {
      waiters_.emplace(ticket, std::move(done));
      return;
    }
  }
  done(running);
}

bool Announcer::WaitDelivered(Deadline deadline) {
  auto delivered = std::make_shared<std::promise<void>>();
  auto future = delivered->get_future();
  WhenDelivered([delivered](bool) { delivered->set_value(); });
  return future.wait_until(deadline.time()) == std::future_status::ready;
}

bool Announcer::WaitDelivered(uint64_t ticket, Deadline deadline) {
  auto delivered = std::make_shared<std::promise<void>>();
  auto future = delivered->get_future();
  WhenDelivered(ticket, [delivered](bool) { delivered->set_value(); });
  return future.wait_until(deadline.time()) == std::future_status::ready;
}

void Announcer::Resume() {
  std::lock_guard lock(mutex_);
  running_ = !stopping_;
}

void Announcer::PauseLocked(std::vector<Completion>& released) {
  running_ = false;
  ++epoch_;
  queue_.clear();
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
  RunAll(released, /*delivered=*/false);
}

void Announcer::Stop() {
  std::vector<Completion> released;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    PauseLocked(released);
  }
  wake_.notify_all();
  RunAll(released, /*delivered=*/false);
  if (thread_.joinable()) thread_.join();
}

Announcer::Batch Announcer::TakeBatchLocked() {
  Batch batch{.epoch = epoch_};
  while (!queue_.empty() && batch.keys.size() < max_batch_) {
    const auto front = queue_.begin();
    auto node = marked_.extract(*front->second);
    queue_.erase(front);
    batch.keys.push_back(std::move(node.key()));
  }
  batch.covers = queue_.empty() ? mark_count_ : queue_.begin()->first - 1;
  return batch;
}

void Announcer::Run() {
  for (;;) {
    Batch batch;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (stopping_) return;
      batch = TakeBatchLocked();
    }
    if (!Deliver(batch)) continue;
    std::vector<Completion> released;
    {
      std::lock_guard lock(mutex_);
      if (batch.epoch != epoch_) continue;
      delivered_count_ = std::max(delivered_count_, batch.covers);
      const auto end = waiters_.upper_bound(delivered_count_);
      for (auto it = waiters_.begin(); it != end; ++it) released.push_back(std::move(it->second));
      waiters_.erase(waiters_.begin(), end);
    }
    RunAll(released, /*delivered=*/true);
  }
}

bool Announcer::Deliver(const Batch& batch) {
  std::vector<protocol::KeyState> states;
  states.reserve(batch.keys.size());
  for (const std::string& key : batch.keys) {
    states.push_back(hooks_.state_of(key).value_or(protocol::KeyState{.key = KeyDigest::Of(key)}));
  }
  const auto reply = hooks_.send(std::move(states));
  if (!reply) {
    std::vector<Completion> released;
    {
      std::lock_guard lock(mutex_);
      if (batch.epoch != epoch_) return false;  // of a connection that was given up meanwhile
      PauseLocked(released);
    }
    hooks_.on_failed(reply.error());  // first: whoever is released finds the master lost
    RunAll(released, /*delivered=*/false);
    return false;
  }
  for (const uint32_t position : reply->rejected) {
    if (position < batch.keys.size()) hooks_.on_rejected(batch.keys[position]);
  }
  return true;
}

}  // namespace mooncake
