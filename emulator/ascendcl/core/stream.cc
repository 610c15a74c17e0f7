// Streams, their tasks, and events.
#include "core/stream.h"

#include <algorithm>

#include "core/config.h"
#include "core/fault.h"
#include "core/model.h"
#include "core/runtime.h"
#include "core/transfer.h"

namespace aclemu {
namespace {

using namespace std::chrono_literals;

constexpr auto kVirtualPoll = 1us;  // what asking costs when time is virtual
constexpr auto kLongestHold = 20ms;

// A waiting thread runs the tasks itself.
bool WaiterDrives() {
  return Settings().sched == Sched::kLazy || IsVirtualTime();
}

bool HasWorkers() {
  return !WaiterDrives() && Settings().sched != Sched::kManual;
}

void Finish(const std::shared_ptr<Record>& record, aclError error, Clock::time_point when) {
  std::lock_guard lock(Event::mutex());
  record->done = true;
  record->error = error;
  record->when = when;
  Event::changed().notify_all();
}

uint64_t NextRandom(uint64_t* state) {
  uint64_t z = (*state += 0x9E3779B97F4A7C15ULL);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

struct Registry {
  std::mutex mu;
  std::vector<std::weak_ptr<Stream>> used;  // guarded by mu
};

Registry& Used() {
  static Registry* const registry = new Registry;
  return *registry;
}

void Register(std::weak_ptr<Stream> stream) {
  Registry& registry = Used();
  std::lock_guard lock(registry.mu);
  std::erase_if(registry.used, [](const auto& s) { return s.expired(); });
  registry.used.push_back(std::move(stream));
}

int64_t NextNumber() {
  static std::atomic<int64_t> next{1};
  return next.fetch_add(1);
}

// One thread moves virtual time at a time.
std::mutex& Turn() {
  static std::mutex* const turn = new std::mutex;
  return *turn;
}

}  // namespace

const char* Name(Task::Kind kind) {
  constexpr const char* kNames[] = {"copy", "set", "record", "wait", "reset", "call"};
  return kNames[static_cast<int>(kind)];
}

std::vector<std::shared_ptr<Stream>> UsedStreams() {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    Registry& registry = Used();
    std::lock_guard lock(registry.mu);
    for (const auto& weak : registry.used) {
      if (auto stream = weak.lock()) streams.push_back(std::move(stream));
    }
  }
  std::ranges::stable_sort(streams, {}, &Stream::number);
  return streams;
}

void DumpStreams() {
  Log("watchdog: a wait without a timeout made no progress for %llu ms; streams:",
      static_cast<unsigned long long>(Settings().watchdog_ms));
  for (const auto& stream : UsedStreams()) Log("  %s", stream->Describe().c_str());
}

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

std::shared_ptr<Waiter> Event::AddWaiter(const std::shared_ptr<Stream>& stream) {
  auto waiter = std::make_shared<Waiter>(Waiter{stream});
  std::lock_guard lock(mutex());
  std::erase_if(waiters_, [](const auto& w) { return w.expired(); });
  waiters_.push_back(waiter);
  return waiter;
}

std::shared_ptr<Stream> Event::FirstWaiter() {
  std::lock_guard lock(mutex());
  for (const auto& waiter : waiters_) {
    if (auto live = waiter.lock()) return live->stream.lock();
  }
  return nullptr;
}

std::shared_ptr<Record> Event::AwaitRecord(Deadline deadline, const Stop* stop) const {
  std::unique_lock lock(mutex());
  Watch watch(deadline);
  while (last_ == nullptr) {
    if (stop->IsSet()) return nullptr;
    if (watch.Wait(changed(), lock) && last_ == nullptr) return nullptr;
  }
  return last_;
}

Waited Await(const std::shared_ptr<Record>& record, Deadline deadline, const Stop* stop) {
  auto stream = record->stream.lock();
  if (stream != nullptr) stream->Want(record->sequence.load());
  if (stream != nullptr && Settings().sched == Sched::kLazy) {
    Waited waited = stream->WaitFor(record->sequence.load(), deadline, stop);
    if (waited == Waited::kTimeout || (stop != nullptr && stop->IsSet())) return waited;
  }
  std::unique_lock lock(Event::mutex());
  Watch watch(deadline);
  while (!record->done) {
    if (stop != nullptr && stop->IsSet()) return Waited::kStopped;
    if (IsVirtualTime() && stop == nullptr) {
      lock.unlock();
      bool ran = Stream::RunEarliest(deadline);
      lock.lock();
      if (ran || record->done) continue;
    }
    if (watch.Wait(Event::changed(), lock) && !record->done) return Waited::kTimeout;
  }
  if (IsVirtualTime() && stop == nullptr) {
    AdvanceTo(std::min(record->when, deadline));
    if (record->when > deadline) return Waited::kTimeout;
  }
  return Waited::kDone;
}

bool IsComplete(const std::shared_ptr<Record>& record) {
  if (IsVirtualTime()) {
    AdvanceTo(Clock::now() + kVirtualPoll);
    Stream::RunEarliest(Clock::now());
  }
  {
    std::lock_guard lock(Event::mutex());
    if (record->done && (!IsVirtualTime() || record->when <= Clock::now())) return true;
  }
  auto stream = record->stream.lock();
  if (stream != nullptr) stream->Want(record->sequence.load());
  if (stream != nullptr && Settings().sched == Sched::kLazy) stream->Query();
  return false;
}

Stream::Stream(int on_device, uint64_t of_context, std::shared_ptr<FailureState> failure, StreamTraits with_traits)
    : device(on_device),
      context(of_context),
      traits(with_traits),
      number(traits.id == 0 ? 0 : NextNumber()),
      failure_(std::move(failure)),
      random_(Settings().sched_seed + static_cast<uint64_t>(number) * 0x2545F4914F6CDD1DULL) {}

Stream::~Stream() {
  if (!closed_) Broken("a stream was dropped without being closed");
}

void Stream::AwaitRoom(Lock& lock) {
  const size_t depth = Settings().soc->stream_depth;
  if (queue_.size() < depth) return;
  Bump(Stats().submits_blocked);
  auto begin = std::chrono::steady_clock::now();
  Watch watch(kForever);
  while (queue_.size() >= depth && !closed_) {
    wanted_ = std::max(wanted_, completed_ + 1);
    if (WaiterDrives() && !busy_ && Drive(lock, kForever, nullptr)) continue;
    changed_.notify_all();
    watch.Wait(changed_, lock);
  }
  auto waited = std::chrono::steady_clock::now() - begin;
  Bump(Stats().submit_blocked_ns, static_cast<uint64_t>(waited.count()));
}

bool Stream::Submit(Task task) {
  static std::atomic<uint64_t> next_order{1};
  if (task.kind == Task::Kind::kCopy || task.kind == Task::Kind::kSet) {
    ChargeOnce(Model().submit_us);
  } else {
    Charge(Model().event_us);
  }
  task.race = RaceTicket(task);
  Lock lock(mu_);
  AwaitRoom(lock);
  if (closed_) return false;
  if (submitted_ == 0) Register(weak_from_this());
  if (HasWorkers() && !worker_.joinable()) worker_ = std::thread([this] { Work(); });
  ++submitted_;
  task.order = next_order.fetch_add(1);
  if (ModelOn()) task.submitted = Clock::now();
  task.api = CurrentApi();
  if (task.kind == Task::Kind::kRecord) {
    task.record->stream = weak_from_this();
    task.record->sequence.store(submitted_);
  }
  queue_.push_back(std::move(task));
  NoteProgress();
  changed_.notify_all();
  if (WaiterDrives()) {
    // Who waits for host code can go on.
    std::lock_guard events(Event::mutex());
    Event::changed().notify_all();
  }
  return true;
}

void Stream::Work() {
  MarkOwnThread();
  Lock lock(mu_);
  while (true) {
    changed_.wait(lock, [&] { return !queue_.empty() || closed_; });
    if (Settings().sched == Sched::kRandom && !queue_.empty()) Dither(lock);
    if (queue_.empty()) {
      if (closed_) return;
      continue;
    }
    RunFront(lock, kForever, nullptr);
  }
}

// True when the wait is over: the record is done, or *code says that it was not done in time.
bool Stream::RunWait(Task& task, Clock::time_point ready, Deadline deadline, const Stop& stop, aclError* code) {
  if (task.wait_limit.count() > 0 && task.wait_end == kForever) {
    task.wait_end = (ModelOn() ? ready : Clock::now()) + task.wait_limit;
  }
  auto late = [&] {
    *code = ACL_ERROR_RT_WAIT_TIMEOUT;
    return true;
  };
  Deadline until = std::min(deadline, task.wait_end);
  if (task.record == nullptr) task.record = task.event->AwaitRecord(until, &stop);
  if (task.record != nullptr && Await(task.record, until, &stop) == Waited::kDone) {
    std::lock_guard events(Event::mutex());
    return task.record->when > task.wait_end ? late() : true;
  }
  if (stop.IsSet() || Clock::now() < task.wait_end) return false;
  return late();
}

// Waits a little, or until somebody needs the front task, so that streams overtake each other and a missing synchronize
// shows.
void Stream::Dither(Lock& lock) {
  uint64_t draw = NextRandom(&random_);
  auto limit = draw % 16 == 0   ? std::chrono::nanoseconds(kLongestHold)
               : draw % 16 <= 7 ? std::chrono::nanoseconds(0)
                                : std::chrono::nanoseconds(NextRandom(&random_) % 300'000);
  if (limit.count() == 0) return;
  uint64_t aborts = aborts_, sequence = completed_ + 1;
  bool hold = draw % 16 == 0;
  changed_.wait_for(lock, limit, [&] { return closed_ || aborts_ != aborts || (hold && wanted_ >= sequence); });
}

aclError Stream::Execute(Task& task, Deadline deadline, const Stop& stop, Clock::time_point* end, bool* gave_up) {
  aclError code = Runtime::Get().LostCode(device);
  if (code == ACL_SUCCESS && failure_->stops.load()) code = failure_->error.load();
  if (code != ACL_SUCCESS) {
    // The records go on, so that nobody waits for them for ever.
    if (task.kind == Task::Kind::kRecord) Finish(task.record, code, Clock::now());
    return code;
  }
  Clock::time_point ready = std::max(task.submitted, *end);
  Transfer transfer{task.dst, task.src, task.bytes, task.api, true, number, ready, &stop};
  // Records and waits take their time too; what is not modelled ends when it ends.
  auto later = [&] {
    *end = ModelOn() ? ready + Microseconds(Model().event_us) : Clock::now();
    if (ModelOn()) SleepUntil(*end, &stop);
  };
  Outcome outcome;
  switch (task.kind) {
    case Task::Kind::kCopy:
      outcome = RunCopy(transfer);
      *end = outcome.end;
      return outcome.code != ACL_SUCCESS ? outcome.code : task.race.CheckSource(task);
    case Task::Kind::kSet:
      outcome = RunFill(transfer, task.value);
      *end = outcome.end;
      return outcome.code;
    case Task::Kind::kRecord:
      later();
      Finish(task.record, ACL_SUCCESS, *end);
      break;
    case Task::Kind::kReset:
      later();
      task.event->Reset(task.record);
      break;
    case Task::Kind::kWait:
      *gave_up = !RunWait(task, ready, deadline, stop, &code);
      if (*gave_up) break;
      if (code != ACL_SUCCESS) {
        ready = std::max(ready, task.wait_end);
      } else {
        std::lock_guard events(Event::mutex());
        ready = std::max(ready, task.record->when);
      }
      later();
      break;
    case Task::Kind::kCall:
      later();
      // Host code sees the time at which it runs.
      AdvanceTo(*end);
      *gave_up = !task.call(deadline, &stop);
      if (!IsVirtualTime()) *end = Clock::now();
      break;
  }
  return code;
}

bool Stream::RunFront(Lock& lock, Deadline deadline, const Stop* outer) {
  // A task that comes during an abort would be told to stop too, give up, and be run again without an end.
  changed_.wait(lock, [&] { return aborting_ == 0; });
  if (queue_.empty() || busy_) return true;
  Stop stop{&interrupt_, outer};
  Task task = std::move(queue_.front());
  queue_.pop_front();
  busy_ = true;
  running_ = Name(task.kind);
  uint64_t aborts = aborts_;
  Clock::time_point end = tail_;
  lock.unlock();
  bool gave_up = false;
  aclError code = Execute(task, deadline, stop, &end, &gave_up);
  // What the task used is free before anybody can learn that the task is done.
  if (!gave_up) {
    task.dst_use = InFlight();
    task.src_use = InFlight();
    task.race = RaceTicket();
    task.dst = Place();
    task.src = Place();
    task.waiter = nullptr;
  }
  lock.lock();
  busy_ = false;
  bool aborted = aborts_ != aborts;
  if (gave_up && !aborted) {
    queue_.push_front(std::move(task));
  } else {
    ++completed_;
    tail_ = std::max(tail_, end);
    if (code != ACL_SUCCESS && !aborted) {
      error_ = code;
      if (failure_->stops.load()) failure_->error.store(code);
    }
    NoteProgress();
  }
  if (interrupt_) {
    // Who frees memory of a lost device waits for this.
    std::lock_guard events(Event::mutex());
    Event::changed().notify_all();
  }
  changed_.notify_all();
  return !gave_up || aborted;
}

bool Stream::Step() {
  Lock lock(mu_);
  if (busy_ || queue_.empty()) return false;
  return RunFront(lock, Clock::now(), nullptr);
}

bool Stream::Drive(Lock& lock, Deadline deadline, const Stop* stop) {
  if (IsVirtualTime()) {
    lock.unlock();
    bool ran = RunEarliest(deadline);
    lock.lock();
    return ran;
  }
  RunFront(lock, deadline, stop);
  return true;
}

Stream::Ready Stream::FrontReady() {
  std::lock_guard lock(mu_);
  if (busy_ || queue_.empty()) return {};
  const Task& front = queue_.front();
  Ready ready{std::max(front.submitted, tail_), front.order};
  if (front.kind != Task::Kind::kWait) return ready;
  auto record = front.record != nullptr ? front.record : front.event->last();
  Clock::time_point limit = front.wait_limit.count() > 0 ? ready.at + front.wait_limit : kForever;
  std::lock_guard events(Event::mutex());
  bool done = record != nullptr && record->done;
  ready.at = done ? std::min(limit, std::max(ready.at, record->when)) : limit;
  return ready;
}

// Virtual time: of all tasks that could run, runs the one that is ready first. False when none is before the deadline.
bool Stream::RunEarliest(Deadline deadline, Deadline patience) {
  std::unique_lock turn(Turn());
  std::shared_ptr<Stream> earliest;
  Ready best;
  for (auto& stream : UsedStreams()) {
    Ready ready = stream->FrontReady();
    if (ready.at == kForever) continue;
    if (earliest != nullptr && std::pair(ready.at, ready.order) >= std::pair(best.at, best.order)) continue;
    earliest = stream;
    best = ready;
  }
  if (earliest == nullptr || best.at > deadline) return false;
  Lock lock(earliest->mu_);
  if (earliest->busy_ || earliest->queue_.empty()) return true;
  // Host code may ask about streams, or wait for a thread that does.
  if (earliest->queue_.front().kind == Task::Kind::kCall) turn.unlock();
  earliest->RunFront(lock, patience, nullptr);
  return true;
}

bool StepStreams() {
  if (!WaiterDrives()) return false;
  if (IsVirtualTime()) {
    Stream::RunEarliest(kForever, Clock::time_point());
  } else {
    for (const auto& stream : UsedStreams()) stream->Query();
  }
  return true;
}

void Stream::Want(uint64_t sequence) {
  Lock lock(mu_);
  if (wanted_ >= sequence) return;
  wanted_ = sequence;
  changed_.notify_all();
}

Waited Stream::WaitFor(uint64_t sequence, Deadline deadline, const Stop* stop) {
  Want(sequence);
  Lock lock(mu_);
  Watch watch(deadline);
  uint64_t aborts = aborts_;
  while (completed_ < sequence) {
    if (aborts_ != aborts || (stop != nullptr && stop->IsSet())) return Waited::kStopped;
    if (WaiterDrives() && !busy_) {
      if (deadline != kForever && Clock::now() >= deadline) return Waited::kTimeout;
      if (Drive(lock, deadline, stop) || completed_ >= sequence) continue;
    } else if (IsVirtualTime() && busy_) {
      changed_.wait(lock);
      continue;
    }
    if (watch.Wait(changed_, lock) && completed_ < sequence) return Waited::kTimeout;
  }
  if (aborts_ != aborts) return Waited::kStopped;
  if (IsVirtualTime() && stop == nullptr) {
    AdvanceTo(std::min(tail_, deadline));
    if (tail_ > deadline) return Waited::kTimeout;
  }
  return Waited::kDone;
}

aclError Stream::Synchronize(Deadline deadline) {
  auto lost = [&] {
    aclError code = Runtime::Get().LostCode(device);
    return code == ACL_SUCCESS ? code : Fail(code, "device %d is lost", device);
  };
  if (aclError code = lost(); code != ACL_SUCCESS) return code;
  auto begin = std::chrono::steady_clock::now();
  uint64_t target;
  {
    std::lock_guard lock(mu_);
    target = submitted_;
  }
  Waited waited = WaitFor(target, deadline, nullptr);
  Bump(Stats().waited_ns, static_cast<uint64_t>((std::chrono::steady_clock::now() - begin).count()));
  if (aclError code = lost(); code != ACL_SUCCESS) return code;
  if (waited == Waited::kTimeout) return Fail(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "the stream still has work");
  if (waited == Waited::kStopped) return Fail(ACL_ERROR_RT_STREAM_ABORT, "the stream was aborted");
  ChargeUntil(Clock::now() + Microseconds(Model().sync_us));
  if (failure_->stops.load() && failure_->error.load() != ACL_SUCCESS) return failure_->error.load();
  std::lock_guard lock(mu_);
  return std::exchange(error_, ACL_SUCCESS);
}

bool Stream::Query() {
  if (IsVirtualTime()) {
    AdvanceTo(Clock::now() + kVirtualPoll);
    RunEarliest(Clock::now());
    Lock lock(mu_);
    return completed_ == submitted_ && tail_ <= Clock::now();
  }
  Lock lock(mu_);
  bool done = completed_ == submitted_;
  if (!done && wanted_ < submitted_) {
    wanted_ = submitted_;
    changed_.notify_all();
  }
  if (done || !WaiterDrives() || busy_) return done;
  // The deadline has passed: a task that must wait for something gives up at once.
  RunFront(lock, Clock::now(), nullptr);
  return false;
}

void Stream::DropPending(Lock& lock, aclError code) {
  std::deque<Task> dropped;
  dropped.swap(queue_);
  completed_ += dropped.size();
  lock.unlock();
  for (Task& task : dropped) {
    if (task.kind == Task::Kind::kRecord) Finish(task.record, code, Clock::now());
  }
  dropped.clear();
  lock.lock();
}

void Stream::Interrupt(Lock& lock, aclError code) {
  ++aborts_;
  interrupt_ = true;
  DropPending(lock, code);
  NoteProgress();
  {
    std::lock_guard events(Event::mutex());
    Event::changed().notify_all();
  }
  changed_.notify_all();
}

void Stream::Abort() {
  Lock lock(mu_);
  ++aborting_;
  Interrupt(lock, ACL_ERROR_RT_STREAM_ABORT);
  Watch watch(kForever);
  while (busy_) watch.Wait(changed_, lock);
  error_ = ACL_SUCCESS;
  if (--aborting_ > 0) return;
  interrupt_ = false;
  changed_.notify_all();
}

void Stream::Lose(aclError code) {
  Lock lock(mu_);
  if (!closed_) Interrupt(lock, code);
}

void Stream::Close(bool drain) {
  if (drain) Synchronize(kForever);
  std::thread worker;
  {
    Lock lock(mu_);
    closed_ = true;
    Interrupt(lock, ACL_ERROR_RT_STREAM_ABORT);
    changed_.wait(lock, [&] { return !busy_; });
    worker = std::move(worker_);
  }
  if (worker.joinable()) worker.join();
}

std::string Stream::Describe() {
  Lock lock(mu_, std::try_to_lock);
  std::string text = "stream " + std::to_string(number) + " of device " + std::to_string(device);
  if (!lock.owns_lock()) return text + ": in use";
  text += ": " + std::to_string(completed_) + " of " + std::to_string(submitted_) + " tasks done";
  if (busy_) text += std::string(", running: ") + running_;
  if (queue_.empty()) return text;
  const Task& front = queue_.front();
  text += std::string(", next: ") + Name(front.kind) + " by " + Name(front.api);
  if (front.bytes > 0) text += " of " + std::to_string(front.bytes) + " bytes";
  return text;
}

}  // namespace aclemu
