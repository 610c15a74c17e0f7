// A fixed set of worker threads with a bounded queue, for work that may block (device copies, eviction).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace mooncake {

// Any thread may submit. Executors that hand work to each other are all stopped before any of them is destroyed.
class Executor {
 public:
  Executor(std::string name, size_t threads, size_t queue_limit);
  ~Executor();  // stops
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // False when the queue is full or the executor stops; the task is then not run and still belongs to the caller.
  [[nodiscard]] bool TrySubmit(std::move_only_function<void()>& task);
  // Takes nothing more, runs what is queued, joins. Idempotent; not from one of its own tasks.
  void Stop();

 private:
  void Run();

  const size_t queue_limit_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::move_only_function<void()>> queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace mooncake
