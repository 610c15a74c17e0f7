// The epoll loop.
#include "transfer_engine/transport/tcp/event_loop.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "common/check.h"
#include "transfer_engine/transport/tcp/page_pipe.h"

namespace mooncake::tcp {
namespace {
constexpr int kEventsPerWait = 64;
}

Result<std::shared_ptr<EventLoop>> EventLoop::Start(Duration spin) {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) return Error(ErrorCode::INTERNAL_ERROR, "epoll_create1: {}", std::strerror(errno));
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) {
    const int error = errno;
    close(epoll);
    return Error(ErrorCode::INTERNAL_ERROR, "eventfd: {}", std::strerror(error));
  }
  std::shared_ptr<EventLoop> loop(new EventLoop(epoll, wake, spin));
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 0}};
  MC_CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, wake, &event) == 0, "{}", std::strerror(errno));
  loop->thread_ = std::thread([self = loop.get()] { self->Run(); });
  return loop;
}

EventLoop::~EventLoop() {
  Stop();
  close(wake_);
  close(epoll_);
}

void EventLoop::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  Wake();
  if (!thread_.joinable()) return;
  MC_CHECK(thread_.get_id() != std::this_thread::get_id(), "a loop cannot be stopped from its own thread");
  thread_.join();
  // What was still to be done may hold this loop.
  decltype(posted_) posted;
  decltype(timers_) timers;
  std::lock_guard lock(mutex_);
  posted.swap(posted_);
  timers.swap(timers_);
}

Result<uint64_t> EventLoop::Watch(int fd, uint32_t events, std::shared_ptr<Handler> handler) {
  uint64_t token;
  {
    std::lock_guard lock(mutex_);
    token = ++last_token_;
    handlers_.emplace(token, std::move(handler));
  }
  epoll_event event{.events = events, .data = {.u64 = token}};
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0) return token;
  const int error = errno;
  std::lock_guard lock(mutex_);
  handlers_.erase(token);
  return Error(ErrorCode::INTERNAL_ERROR, "epoll_ctl: {}", std::strerror(error));
}

void EventLoop::Change(int fd, uint64_t token, uint32_t events) {
  epoll_event event{.events = events, .data = {.u64 = token}};
  MC_CHECK(epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event) == 0, "fd {}: {}", fd, std::strerror(errno));
}

void EventLoop::Forget(int fd, uint64_t token) {
  MC_CHECK(epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr) == 0, "fd {}: {}", fd, std::strerror(errno));
  std::shared_ptr<Handler> gone;  // dies after the lock is gone
  std::lock_guard lock(mutex_);
  const auto found = handlers_.find(token);
  MC_CHECK(found != handlers_.end(), "token {}", token);
  gone = std::move(found->second);
  handlers_.erase(found);
}

void EventLoop::Post(Task task) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    posted_.push_back(std::move(task));
    if (posted_.size() > 1) return;  // whoever was first has woken the loop
  }
  Wake();
}

EventLoop::TimerId EventLoop::RunAt(TimePoint time, Task task) {
  TimerId id;
  {
    std::lock_guard lock(mutex_);
    id = {time, ++last_timer_};
    timers_.emplace(id, std::move(task));
    if (time >= next_look_) return id;
    next_look_ = time;
  }
  if (std::this_thread::get_id() != thread_.get_id()) Wake();
  return id;
}

void EventLoop::CancelTimer(const TimerId& id) {
  Task gone;  // dies after the lock is gone
  std::lock_guard lock(mutex_);
  if (const auto found = timers_.find(id); found != timers_.end()) {
    gone = std::move(found->second);
    timers_.erase(found);
  }
}

void EventLoop::Wake() {
  const uint64_t one = 1;
  const ssize_t written = write(wake_, &one, sizeof(one));
  MC_CHECK(written == sizeof(one) || errno == EAGAIN, "eventfd: {}", std::strerror(errno));
}

int EventLoop::MillisecondsToSleep() {
  std::lock_guard lock(mutex_);
  if (stopping_ || !posted_.empty()) return 0;
  const TimePoint now = std::chrono::steady_clock::now();
  if (next_look_ <= now) next_look_ = timers_.empty() ? TimePoint::max() : timers_.begin()->first.first;
  if (next_look_ == TimePoint::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_look_ - now).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
}

void EventLoop::RunDue() {
  std::vector<Task> due;
  {
    std::lock_guard lock(mutex_);
    due.swap(posted_);
    if (!timers_.empty()) {
      const TimePoint now = std::chrono::steady_clock::now();
      while (!timers_.empty() && timers_.begin()->first.first <= now) {
        due.push_back(std::move(timers_.begin()->second));
        timers_.erase(timers_.begin());
      }
    }
  }
  for (Task& task : due) task();
}

void EventLoop::Dispatch(const epoll_event* events, int count) {
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == 0) {
      uint64_t wakes;
      (void)!read(wake_, &wakes, sizeof(wakes));
      continue;
    }
    std::shared_ptr<Handler> handler;
    {
      std::lock_guard lock(mutex_);
      if (const auto found = handlers_.find(events[i].data.u64); found != handlers_.end()) handler = found->second;
    }
    if (handler != nullptr) handler->OnEvents(events[i].events);
  }
}

// After long work being woken costs little beside it, and whoever shares the core needs it more.
int EventLoop::WaitForEvents(epoll_event* events, Duration worked) {
  const int sleep = MillisecondsToSleep();
  int count = 0;
  const auto look = [&](int timeout) { return count = epoll_wait(epoll_, events, kEventsPerWait, timeout); };
  if (sleep == 0) return look(0);
  const bool brief = worked < spin_ / 2;
  if (brief && idle_.Until(spin_, [&] { return look(0) != 0; })) return count;
  const TimePoint start = std::chrono::steady_clock::now();
  look(sleep);
  if (brief) idle_.Slept(spin_, std::chrono::steady_clock::now() - start);
  return count;
}

void EventLoop::Run() {
  PagePipe::AllowOnThisThread();
  std::array<epoll_event, kEventsPerWait> events;
  for (Duration worked{};;) {
    const int count = WaitForEvents(events.data(), worked);
    MC_CHECK(count >= 0 || errno == EINTR, "epoll_wait: {}", std::strerror(errno));
    {
      std::lock_guard lock(mutex_);
      if (stopping_) break;
    }
    const TimePoint start = std::chrono::steady_clock::now();
    Dispatch(events.data(), count);
    RunDue();
    worked = std::chrono::steady_clock::now() - start;
  }
}

}  // namespace mooncake::tcp
