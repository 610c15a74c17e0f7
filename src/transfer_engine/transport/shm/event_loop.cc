// epoll, and an eventfd to wake it.
#include "transfer_engine/transport/shm/event_loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/check.h"

namespace mooncake::shm {
namespace {

constexpr int kMaxEvents = 64;

// Rounded up, so that a deadline has passed when the wait ends; -1: no end.
int MillisUntil(TimePoint when) {
  if (when == TimePoint::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(when - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

}  // namespace

Result<std::unique_ptr<EventLoop>> EventLoop::Open() {
  Fd epoll(epoll_create1(EPOLL_CLOEXEC));
  Fd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event readable{.events = EPOLLIN, .data = {.fd = event.get()}};
  if (!epoll || !event || epoll_ctl(epoll.get(), EPOLL_CTL_ADD, event.get(), &readable) != 0) {
    return Error(ErrorCode::INTERNAL_ERROR, "epoll: {}", std::strerror(errno));
  }
  return std::unique_ptr<EventLoop>(new EventLoop(std::move(epoll), std::move(event)));
}

EventLoop::EventLoop(Fd epoll, Fd event) : epoll_(std::move(epoll)), event_(std::move(event)) {}

EventLoop::~EventLoop() {
  Stop();
}

void EventLoop::Start(std::function<TimePoint()> before_wait) {
  before_wait_ = std::move(before_wait);
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "shm");
}

void EventLoop::Stop() {
  stopping_ = true;
  Wake();
  if (thread_.joinable()) thread_.join();
}

void EventLoop::Wake() {
  const uint64_t one = 1;
  // The only failure is a counter that is full, and then the loop is awake.
  if (write(event_.get(), &one, sizeof one) < 0) MC_CHECK(errno == EAGAIN, "eventfd: {}", std::strerror(errno));
}

Result<void> EventLoop::Watch(int fd, std::function<void()> handler) {
  epoll_event readable{.events = EPOLLIN, .data = {.fd = fd}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &readable) != 0) {
    return Error(ErrorCode::INTERNAL_ERROR, "epoll_ctl: {}", std::strerror(errno));
  }
  handlers_[fd] = std::move(handler);
  return {};
}

void EventLoop::Forget(int fd) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  handlers_.erase(fd);
}

void EventLoop::WatchWritable(int fd, bool wanted) {
  epoll_event events{.events = EPOLLIN, .data = {.fd = fd}};
  if (wanted) events.events |= EPOLLOUT;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &events);  // fails for one that is forgotten: nothing to watch
}

void EventLoop::Run() {
  epoll_event events[kMaxEvents];
  while (!stopping_) {
    const TimePoint next = before_wait_();
    const int count = epoll_wait(epoll_.get(), events, kMaxEvents, MillisUntil(next));
    for (int i = 0; i < count && !stopping_; ++i) {
      if (events[i].data.fd == event_.get()) {
        uint64_t wakes = 0;
        (void)!read(event_.get(), &wakes, sizeof wakes);
        continue;
      }
      // One that an earlier event of this round has closed is not there, or is another by now and finds nothing to
      // read.
      const auto found = handlers_.find(events[i].data.fd);
      if (found == handlers_.end()) continue;
      const auto handler = found->second;  // may forget itself
      handler();
    }
  }
}

}  // namespace mooncake::shm
