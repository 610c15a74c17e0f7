// The agenda's thread.
#include "transfer_engine/transport/rdma/agenda.h"

#include <pthread.h>

namespace mooncake::rdma {

Agenda::Agenda() {
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "rdma-agenda");
}

void Agenda::Put(const std::shared_ptr<Chore>& chore, TimePoint time) {
  const auto [entry, added] = entries_.try_emplace(chore.get(), Entry{chore, time});
  if (!added) {
    if (entry->second.due <= time) return;
    order_.erase({entry->second.due, chore.get()});
    entry->second.due = time;
  }
  order_.emplace(time, chore.get());
  if (order_.begin()->second == chore.get()) changed_.notify_one();
}

void Agenda::At(const std::shared_ptr<Chore>& chore, TimePoint time) {
  std::lock_guard lock(mutex_);
  if (!stopping_) Put(chore, time);
}

void Agenda::Run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (order_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto [due, chore] = *order_.begin();
    if (due > SteadyClock::Instance().Now()) {
      changed_.wait_until(lock, due);
      continue;
    }
    order_.erase(order_.begin());
    const std::shared_ptr<Chore> current = std::move(entries_.at(chore).chore);
    entries_.erase(chore);
    lock.unlock();
    const TimePoint again = current->Attend();
    lock.lock();
    if (again != TimePoint::max() && !stopping_) Put(current, again);
  }
}

void Agenda::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
  entries_.clear();
  order_.clear();
}

}  // namespace mooncake::rdma
