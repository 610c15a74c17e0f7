// Worker threads of the executor.
#include "common/executor.h"

#include <pthread.h>

#include <utility>

namespace mooncake {

Executor::Executor(std::string name, size_t threads, size_t queue_limit) : queue_limit_(queue_limit) {
  threads_.reserve(threads);
  try {
    for (size_t i = 0; i < threads; ++i) {
      threads_.emplace_back([this] { Run(); });
      pthread_setname_np(threads_.back().native_handle(), name.substr(0, 15).c_str());
    }
  } catch (...) {
    Stop();  // those there are
    throw;
  }
}

Executor::~Executor() {
  Stop();
}

void Executor::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
  threads_.clear();
}

bool Executor::TrySubmit(std::move_only_function<void()>& task) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || queue_.size() >= queue_limit_) return false;
    queue_.push_back(std::move(task));
  }
  wake_.notify_one();
  return true;
}

void Executor::Run() {
  for (;;) {
    std::move_only_function<void()> task;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    task();
  }
}

}  // namespace mooncake
