// One thread that waits for sockets (epoll, level triggered), timers and posted work.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/idle_spin.h"
#include "common/status.h"

namespace mooncake::tcp {

// Any thread, but for Stop and destruction. Handlers, timers and posted work run on the loop's thread, no lock held.
class EventLoop {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void OnEvents(uint32_t events) = 0;
  };
  using Task = std::move_only_function<void()>;
  using TimerId = std::pair<TimePoint, uint64_t>;

  // `spin`: how long the thread looks for events before it sleeps, while they use to come that soon.
  static Result<std::shared_ptr<EventLoop>> Start(Duration spin = Duration::zero());
  ~EventLoop();  // stops
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Joins; nothing runs afterwards. Posted work that has not run is dropped. Idempotent.
  void Stop();

  // The token names the registration, so that a late event of a closed descriptor cannot reach the next one.
  Result<uint64_t> Watch(int fd, uint32_t events, std::shared_ptr<Handler> handler);
  void Change(int fd, uint64_t token, uint32_t events);
  void Forget(int fd, uint64_t token);

  void Post(Task task);
  // Within a millisecond after that time.
  TimerId RunAt(TimePoint time, Task task);
  void CancelTimer(const TimerId& id);  // one that ran or runs is left alone

 private:
  EventLoop(int epoll, int wake, Duration spin) : epoll_(epoll), wake_(wake), spin_(spin) {}
  void Run();
  void Wake();
  int MillisecondsToSleep();
  int WaitForEvents(epoll_event* events, Duration worked);
  void RunDue();
  void Dispatch(const epoll_event* events, int count);

  const int epoll_;
  const int wake_;  // eventfd, token 0
  const Duration spin_;
  IdleSpin idle_;  // of the thread
  std::mutex mutex_;
  bool stopping_ = false;
  uint64_t last_token_ = 0;
  uint64_t last_timer_ = 0;
  std::unordered_map<uint64_t, std::shared_ptr<Handler>> handlers_;
  std::vector<Task> posted_;
  std::map<TimerId, Task> timers_;
  // When the thread will look at its timers at the latest. Is not moved back when a timer goes, so that a caller who
  // does one short request after the other wakes the loop once per time-out and not once per request.
  TimePoint next_look_ = TimePoint::max();
  std::thread thread_;
};

}  // namespace mooncake::tcp
