// One thread of an IoPool with its event loop.
#pragma once

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

namespace mooncake::rpc::internal {

// Something that keeps a loop busy and must let go when the pool ends. Abort runs on the object's own I/O thread.
class Abortable {
 public:
  virtual ~Abortable() = default;
  virtual void Abort() = 0;
};

class IoThread {
 public:
  IoThread() = default;
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  void Start();
  // Two steps, so that all threads of a pool wind down together: objects on one may still post to another.
  void BeginStop();
  void Join();

  asio::io_context& context() { return context_; }
  bool IsCurrent() const;
  static bool CurrentIsAny();

  // Runs `task` on this thread, later. False after the pool has ended: then the task is dropped.
  template <typename Task>
  [[nodiscard]] bool Post(Task&& task) {
    std::lock_guard lock(mutex_);
    if (closed_) return false;
    asio::post(context_, std::forward<Task>(task));
    return true;
  }

  // False when the pool is ending; the object must then not start anything.
  [[nodiscard]] bool Register(const std::shared_ptr<Abortable>& object);
  void Unregister(Abortable* object);

 private:
  void Run();
  void AbortAll();

  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
  std::thread thread_;
  std::mutex mutex_;
  bool aborting_ = false;
  bool closed_ = false;
  std::unordered_map<Abortable*, std::weak_ptr<Abortable>> objects_;
};

}  // namespace mooncake::rpc::internal
