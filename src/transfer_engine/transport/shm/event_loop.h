// One thread that waits for sockets and deadlines.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>

#include "common/clock.h"
#include "common/status.h"
#include "transfer_engine/transport/shm/shm_socket.h"

namespace mooncake::shm {

// Watch and Forget on the loop's thread or before Start; WatchWritable and Wake from any.
class EventLoop {
 public:
  static Result<std::unique_ptr<EventLoop>> Open();
  ~EventLoop();  // as Stop

  // `before_wait` runs after each round of events and after Wake; it returns when it wants to run next at the latest.
  void Start(std::function<TimePoint()> before_wait);
  // Returns when no handler runs or will run.
  void Stop();
  void Wake();

  // Runs `handler` while the descriptor is readable or broken, or writable and watched for that.
  Result<void> Watch(int fd, std::function<void()> handler);
  void Forget(int fd);
  void WatchWritable(int fd, bool wanted);

 private:
  EventLoop(Fd epoll, Fd event);
  void Run();

  const Fd epoll_;
  const Fd event_;
  std::function<TimePoint()> before_wait_;
  std::unordered_map<int, std::function<void()>> handlers_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace mooncake::shm
