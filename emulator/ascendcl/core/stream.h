// Streams, their tasks, and events. A scheduler mode and the time model decide in Stream when a task runs, Execute says
// what it does.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "acl/acl.h"
#include "core/clock.h"
#include "core/copy.h"
#include "core/race.h"
#include "core/report.h"

namespace aclemu {

class Stream;

// Reasons to stop waiting early, from the innermost stream to the one whose wait started it all.
struct Stop {
  const std::atomic<bool>* flag;
  const Stop* outer;
  bool IsSet() const { return flag->load() || (outer != nullptr && outer->IsSet()); }
};

// One aclrtRecordEvent. Later records of the same event make new ones, so that waiters keep the one they asked for.
struct Record {
  std::weak_ptr<Stream> stream;
  std::atomic<uint64_t> sequence{0};  // of its task in the stream
  // Guarded by Event::mutex():
  bool done = false;
  aclError error = ACL_SUCCESS;  // not 0 when the record was dropped
  Clock::time_point when{};      // virtual time: may still be to come, see IsComplete
};

// Lives as long as a stream has yet to pass its wait for an event.
struct Waiter {
  std::weak_ptr<Stream> stream;
};

class Event {
 public:
  Event(int on_device, uint32_t with_flags, bool ex) : device(on_device), flags(with_flags), is_ex(ex) {}

  const int device;
  const uint32_t flags;
  const bool is_ex;  // complete before its first record, cannot be reset

  std::shared_ptr<Record> last() const;
  void SetLast(std::shared_ptr<Record> record);
  void Reset(const std::shared_ptr<Record>& record);  // forgets record if it is still the last one
  // The last record, waiting until there is one. Null when the time is over or *stop is set.
  std::shared_ptr<Record> AwaitRecord(Deadline deadline, const Stop* stop) const;

  // A wait that was queued, and a stream that has not passed its wait yet; null when all have.
  std::shared_ptr<Waiter> AddWaiter(const std::shared_ptr<Stream>& stream);
  std::shared_ptr<Stream> FirstWaiter();

  // Set once the event takes one of the ids of its device.
  std::atomic<bool> counted{false};

  // One lock for all events: held for a few instructions only.
  static std::mutex& mutex();
  static std::condition_variable& changed();

 private:
  std::shared_ptr<Record> last_;                // guarded by mutex()
  std::vector<std::weak_ptr<Waiter>> waiters_;  // guarded by mutex()
};

// Waits for the record, making the work happen that it depends on. Stops early when *stop is set. Without stop the
// caller is the program, and virtual time moves to the record.
enum class Waited { kDone, kTimeout, kStopped };
Waited Await(const std::shared_ptr<Record>& record, Deadline deadline, const Stop* stop);
// Whether it is done. Asking makes progress where waiting would, so that polling ends.
bool IsComplete(const std::shared_ptr<Record>& record);

// Shared by the streams of one context. In stop mode the first failure ends them all.
struct FailureState {
  std::atomic<bool> stops{false};
  std::atomic<aclError> error{ACL_SUCCESS};
};

struct StreamTraits {
  int32_t id = 0;
  uint32_t priority = 0;
  uint32_t flags = 0;
};

struct Task {
  enum class Kind { kCopy, kSet, kRecord, kWait, kReset, kCall };
  Kind kind;
  Place dst, src;  // copy; set uses dst
  uint64_t bytes = 0;
  uint8_t value = 0;
  Api api = Api::kCount;  // that submitted it
  InFlight dst_use, src_use;
  RaceTicket race;
  std::shared_ptr<Event> event;        // wait for an event not yet recorded, reset
  std::shared_ptr<Record> record;      // record, wait, reset
  std::chrono::seconds wait_limit{0};  // wait: 0 is for ever, else counted from its first run
  Deadline wait_end = kForever;
  std::shared_ptr<Waiter> waiter;
  // call: host code. False when it gave up waiting; it is called again then. Waits on Event::changed() if at all.
  std::function<bool(Deadline, const Stop*)> call;
  // Set by Submit:
  Clock::time_point submitted{};
  uint64_t order = 0;  // among all tasks of the process
};
const char* Name(Task::Kind kind);

// A bounded queue run in order. Who runs the tasks depends on the mode: its own thread (eager, random, timed), whoever
// needs a result (lazy, virtual time), or only aclemu_step (manual). Thread safe.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(int on_device, uint64_t of_context, std::shared_ptr<FailureState> failure, StreamTraits with_traits = {});
  ~Stream();

  const int device;
  const uint64_t context;  // handle of the context it belongs to
  const StreamTraits traits;
  const int64_t number;  // of all devices 1, 2, ... in the order of creation; default streams (id 0) have 0

  // Blocks while the queue is full. False when the stream was closed; the task is dropped then.
  bool Submit(Task task);

  // Waits for all tasks submitted so far. The error of a failed task is returned once, the last one wins. A lost device
  // answers at once, always.
  aclError Synchronize(Deadline deadline);
  // Waits for the task with that number; no error is consumed.
  Waited WaitFor(uint64_t sequence, Deadline deadline, const Stop* stop);
  // Whether all is done. Asking makes progress where waiting would: lazy runs one task first, so that polling still
  // sees "not ready".
  bool Query();
  // Somebody needs the task with that number: the random mode holds it no longer.
  void Want(uint64_t sequence);
  // Runs the front task (manual). False when there is none or it has to wait.
  bool Step();

  // Drops pending tasks and waits for the running one; a waiting Synchronize returns ACL_ERROR_RT_STREAM_ABORT.
  void Abort();
  // The device is gone: drops pending tasks and interrupts the running one, without waiting for it.
  void Lose(aclError code);
  // Ends the stream; pending tasks run (drain) or are dropped. Nobody may submit afterwards.
  void Close(bool drain);

  std::string Describe();

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Ready {
    Clock::time_point at = kForever;  // kForever: nothing can run
    uint64_t order = 0;
  };

  // Runs the front task. False when it had to give up waiting; the task is at the front again then.
  bool RunFront(Lock& lock, Deadline deadline, const Stop* stop);
  aclError Execute(Task& task, Deadline deadline, const Stop& stop, Clock::time_point* end, bool* gave_up);
  static bool RunWait(Task& task, Clock::time_point ready, Deadline deadline, const Stop& stop, aclError* code);
  // A waiting thread makes a step towards what it waits for. False when there is none.
  bool Drive(Lock& lock, Deadline deadline, const Stop* stop);
  Ready FrontReady();
  // patience: how long host code may wait for its thread.
  static bool RunEarliest(Deadline deadline, Deadline patience = kForever);
  friend bool StepStreams();
  friend Waited Await(const std::shared_ptr<Record>& record, Deadline deadline, const Stop* stop);
  friend bool IsComplete(const std::shared_ptr<Record>& record);

  void AwaitRoom(Lock& lock);
  void Interrupt(Lock& lock, aclError code);
  void DropPending(Lock& lock, aclError code);
  void Dither(Lock& lock);
  void Work();

  const std::shared_ptr<FailureState> failure_;

  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Task> queue_;
  uint64_t submitted_ = 0;
  uint64_t completed_ = 0;  // including dropped ones
  uint64_t wanted_ = 0;     // somebody waits for the task with this number
  uint64_t aborts_ = 0;
  int aborting_ = 0;  // calls of Abort under way
  bool busy_ = false;
  bool closed_ = false;
  const char* running_ = "";  // name of the running task
  Clock::time_point tail_{};  // modelled end of the last task that ran
  uint64_t random_;           // state of the random mode
  aclError error_ = ACL_SUCCESS;
  std::thread worker_;
  std::atomic<bool> interrupt_{false};  // a task that waits must return
};

// Streams that ever had a task and still exist, by number.
std::vector<std::shared_ptr<Stream>> UsedStreams();
// Somebody waits for host code in a stream: where waiting threads run the tasks, each stream may make a step. Never
// waits. False where streams run by themselves.
bool StepStreams();
// Writes the state of all streams to stderr.
void DumpStreams();

}  // namespace aclemu
