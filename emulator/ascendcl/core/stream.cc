// Streams, their tasks, and events.
#include "core/stream.h"

#include <signal.h>

#include "core/config.h"
#include "core/fault.h"
#include "core/report.h"

namespace aclemu {
namespace {

bool Lazy() {
  return Settings().sched == Sched::kLazy;
}

// Waits on a condition variable, for ever if so asked. True when the time is over.
bool WaitUntil(std::condition_variable& cv, std::unique_lock<std::mutex>& lock, Deadline deadline) {
  if (deadline == kForever) {
    cv.wait(lock);
    return false;
  }
  return cv.wait_until(lock, deadline) == std::cv_status::timeout;
}

void Finish(const std::shared_ptr<Record>& record, aclError error) {
  std::lock_guard lock(Event::mutex());
  record->done = true;
  record->error = error;
  record->when = Clock::now();
  Event::changed().notify_all();
}

aclError RunCopy(const Task& task) {
  Direction direction = DirectionOf(task.dst, task.src);
  aclError code = FaultPlan::Get().Check(Name(direction));
  if (code != ACL_SUCCESS) return code;
  if (task.dst.cls == MemClass::kPageable || task.src.cls == MemClass::kPageable) {
    // Only reached in the 8.5 behaviour: a device copy that was told a pageable address.
    return ACL_ERROR_RT_SYS_DMA;
  }
  code = CopyBytes(task.dst, task.src, task.bytes);
  Bump(Stats().async_copies[static_cast<int>(direction)]);
  Bump(Stats().async_bytes[static_cast<int>(direction)], task.bytes);
  return code;
}

}  // namespace

std::mutex& Event::mutex() {
  static std::mutex* const mutex = new std::mutex;
  return *mutex;
}

std::condition_variable& Event::changed() {
  static std::condition_variable* const changed = new std::condition_variable;
  return *changed;
}

std::shared_ptr<Record> Event::last() const {
  std::lock_guard lock(mutex());
  return last_;
}

void Event::SetLast(std::shared_ptr<Record> record) {
  std::lock_guard lock(mutex());
  last_ = std::move(record);
  changed().notify_all();
}

void Event::Reset(const std::shared_ptr<Record>& record) {
  std::lock_guard lock(mutex());
  if (last_ == record) last_ = nullptr;
}

std::shared_ptr<Record> Event::AwaitRecord(Deadline deadline, const Stop* stop) const {
  std::unique_lock lock(mutex());
  while (last_ == nullptr) {
    if (stop->IsSet()) return nullptr;
    if (WaitUntil(changed(), lock, deadline) && last_ == nullptr) return nullptr;
  }
  return last_;
}

Waited Await(const std::shared_ptr<Record>& record, Deadline deadline, const Stop* stop) {
  if (Lazy()) {
    if (auto stream = record->stream.lock()) {
      Waited waited = stream->WaitFor(record->sequence.load(), deadline, stop);
      if (waited == Waited::kTimeout || (stop != nullptr && stop->IsSet())) return waited;
    }
  }
  std::unique_lock lock(Event::mutex());
  while (!record->done) {
    if (stop != nullptr && stop->IsSet()) return Waited::kStopped;
    if (WaitUntil(Event::changed(), lock, deadline) && !record->done) return Waited::kTimeout;
  }
  return Waited::kDone;
}

Stream::~Stream() {
  if (!closed_) Broken("a stream was dropped without being closed");
}

bool Stream::Submit(Task task) {
  const size_t depth = Settings().soc->stream_depth;
  Lock lock(mu_);
  if (queue_.size() >= depth) Bump(Stats().submits_blocked);
  while (queue_.size() >= depth && !closed_) {
    if (Lazy() && !busy_) {
      RunFront(lock, kForever, nullptr);
    } else {
      changed_.wait(lock);
    }
  }
  if (closed_) return false;
  if (!Lazy() && !worker_.joinable()) worker_ = std::thread([this] { Work(); });
  ++submitted_;
  if (task.kind == Task::Kind::kRecord) {
    task.record->stream = weak_from_this();
    task.record->sequence.store(submitted_);
  }
  queue_.push_back(std::move(task));
  if (!Lazy()) changed_.notify_all();
  return true;
}

void Stream::Work() {
  // Signals belong to the program's own threads.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  Lock lock(mu_);
  while (true) {
    changed_.wait(lock, [&] { return !queue_.empty() || closed_; });
    if (queue_.empty()) return;
    RunFront(lock, kForever, nullptr);
  }
}

bool Stream::RunWait(Task& task, Deadline deadline, const Stop* stop, aclError* code) {
  if (task.wait_limit.count() > 0 && task.wait_end == kForever) task.wait_end = Clock::now() + task.wait_limit;
  Deadline until = std::min(deadline, task.wait_end);
  if (task.record == nullptr) task.record = task.event->AwaitRecord(until, stop);
  if (task.record != nullptr && Await(task.record, until, stop) == Waited::kDone) return true;
  if (stop->IsSet() || Clock::now() < task.wait_end) return false;
  *code = ACL_ERROR_RT_WAIT_TIMEOUT;
  return true;
}

bool Stream::RunFront(Lock& lock, Deadline deadline, const Stop* outer) {
  Stop stop{&interrupt_, outer};
  Task task = std::move(queue_.front());
  queue_.pop_front();
  busy_ = true;
  uint64_t aborts = aborts_;
  lock.unlock();
  aclError code = ACL_SUCCESS;
  bool gave_up = false;
  if (failure_->stops.load()) code = failure_->error.load();
  // Of a stopped stream only the records go on, so that nobody waits for them for ever.
  if (code != ACL_SUCCESS && task.kind != Task::Kind::kRecord) task.kind = Task::Kind::kNone;
  switch (task.kind) {
    case Task::Kind::kNone:
      break;
    case Task::Kind::kCopy:
      code = RunCopy(task);
      break;
    case Task::Kind::kSet:
      SetBytes(task.dst, task.value, task.bytes);
      break;
    case Task::Kind::kRecord:
      Finish(task.record, code);
      break;
    case Task::Kind::kReset:
      task.event->Reset(task.record);
      break;
    case Task::Kind::kWait:
      gave_up = !RunWait(task, deadline, &stop, &code);
      break;
    case Task::Kind::kCall:
      gave_up = !task.call(deadline, &stop);
      break;
  }
  // What the task used is free before anybody can learn that the task is done.
  task.dst_use = InFlight();
  task.src_use = InFlight();
  task.dst = Place();
  task.src = Place();
  lock.lock();
  busy_ = false;
  bool aborted = aborts_ != aborts;
  if (gave_up && !aborted) {
    queue_.push_front(std::move(task));
  } else {
    ++completed_;
    if (code != ACL_SUCCESS && !aborted) {
      error_ = code;
      if (failure_->stops.load()) failure_->error.store(code);
    }
  }
  changed_.notify_all();
  return !gave_up || aborted;
}

Waited Stream::WaitFor(uint64_t sequence, Deadline deadline, const Stop* stop) {
  Lock lock(mu_);
  uint64_t aborts = aborts_;
  while (completed_ < sequence) {
    if (aborts_ != aborts || (stop != nullptr && stop->IsSet())) return Waited::kStopped;
    if (Lazy() && !busy_) {
      if (deadline != kForever && Clock::now() >= deadline) return Waited::kTimeout;
      RunFront(lock, deadline, stop);
    } else if (WaitUntil(changed_, lock, deadline) && completed_ < sequence) {
      return Waited::kTimeout;
    }
  }
  return aborts_ == aborts ? Waited::kDone : Waited::kStopped;
}

aclError Stream::Synchronize(Deadline deadline) {
  uint64_t target;
  {
    std::lock_guard lock(mu_);
    target = submitted_;
  }
  Waited waited = WaitFor(target, deadline, nullptr);
  if (waited == Waited::kTimeout) return Fail(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "the stream still has work");
  if (waited == Waited::kStopped) return Fail(ACL_ERROR_RT_STREAM_ABORT, "the stream was aborted");
  if (failure_->stops.load() && failure_->error.load() != ACL_SUCCESS) return failure_->error.load();
  std::lock_guard lock(mu_);
  return std::exchange(error_, ACL_SUCCESS);
}

bool Stream::Query() {
  Lock lock(mu_);
  bool done = completed_ == submitted_;
  if (done || !Lazy() || busy_) return done;
  // The deadline has passed: a task that must wait for something gives up at once.
  RunFront(lock, Clock::now(), nullptr);
  return false;
}

void Stream::DropPending(Lock& lock) {
  std::deque<Task> dropped;
  dropped.swap(queue_);
  completed_ += dropped.size();
  lock.unlock();
  for (Task& task : dropped) {
    if (task.kind == Task::Kind::kRecord) Finish(task.record, ACL_ERROR_RT_STREAM_ABORT);
  }
  dropped.clear();
  lock.lock();
}

void Stream::Abort() {
  Lock lock(mu_);
  ++aborts_;
  interrupt_ = true;
  DropPending(lock);
  {
    std::lock_guard events(Event::mutex());
    Event::changed().notify_all();
  }
  changed_.notify_all();
  changed_.wait(lock, [&] { return !busy_; });
  interrupt_ = false;
  error_ = ACL_SUCCESS;
}

void Stream::Close(bool drain) {
  if (drain) Synchronize(kForever);
  std::thread worker;
  {
    Lock lock(mu_);
    closed_ = true;
    ++aborts_;
    interrupt_ = true;
    DropPending(lock);
    {
      std::lock_guard events(Event::mutex());
      Event::changed().notify_all();
    }
    changed_.notify_all();
    changed_.wait(lock, [&] { return !busy_; });
    worker = std::move(worker_);
  }
  if (worker.joinable()) worker.join();
}

}  // namespace aclemu
