// Streams, their tasks, and events. Time and hidden concurrency of a real device start here: a scheduler mode or a time
// model decides in Stream when a task runs, Execute says what it does.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "acl/acl.h"
#include "core/copy.h"

namespace aclemu {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;
constexpr Deadline kForever = Deadline::max();

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
  Clock::time_point when{};
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

  // One lock for all events: held for a few instructions only.
  static std::mutex& mutex();
  static std::condition_variable& changed();

 private:
  std::shared_ptr<Record> last_;  // guarded by mutex()
};

// Waits for the record, making the work happen that it depends on when streams are lazy. Stops early when *stop is set.
enum class Waited { kDone, kTimeout, kStopped };
Waited Await(const std::shared_ptr<Record>& record, Deadline deadline, const Stop* stop);

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
  enum class Kind { kCopy, kSet, kRecord, kWait, kReset, kCall, kNone };
  Kind kind;
  Place dst, src;  // copy; set uses dst
  uint64_t bytes = 0;
  uint8_t value = 0;
  InFlight dst_use, src_use;
  std::shared_ptr<Event> event;        // wait for an event not yet recorded, reset
  std::shared_ptr<Record> record;      // record, wait, reset
  std::chrono::seconds wait_limit{0};  // wait: 0 is for ever, else counted from its first run
  Deadline wait_end = kForever;
  // call: host code. False when it gave up waiting; it is called again then. Waits on Event::changed() if at all.
  std::function<bool(Deadline, const Stop*)> call;
};

// A bounded queue run in order: by its own thread (eager) or by whoever needs the result (lazy). Thread safe.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(int on_device, uint64_t of_context, std::shared_ptr<FailureState> failure, StreamTraits with_traits = {})
      : device(on_device), context(of_context), traits(with_traits), failure_(std::move(failure)) {}
  ~Stream();

  const int device;
  const uint64_t context;  // handle of the context it belongs to
  const StreamTraits traits;

  // Blocks while the queue is full. False when the stream was closed; the task is dropped then.
  bool Submit(Task task);

  // Waits for all tasks submitted so far. The error of a failed task is returned once, the last one wins.
  aclError Synchronize(Deadline deadline);
  // Waits for the task with that number; no error is consumed.
  Waited WaitFor(uint64_t sequence, Deadline deadline, const Stop* stop);
  // Whether all is done. Lazy: runs one task first, so that polling makes progress and still sees "not ready".
  bool Query();

  // Drops pending tasks and waits for the running one; a waiting Synchronize returns ACL_ERROR_RT_STREAM_ABORT.
  void Abort();
  // Ends the stream; pending tasks run (drain) or are dropped. Nobody may submit afterwards.
  void Close(bool drain);

 private:
  using Lock = std::unique_lock<std::mutex>;

  // Runs the front task. False when it had to give up waiting; the task is at the front again then.
  bool RunFront(Lock& lock, Deadline deadline, const Stop* stop);
  static bool RunWait(Task& task, Deadline deadline, const Stop* stop, aclError* code);
  void DropPending(Lock& lock);
  void Work();

  const std::shared_ptr<FailureState> failure_;

  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Task> queue_;
  uint64_t submitted_ = 0;
  uint64_t completed_ = 0;  // including dropped ones
  uint64_t aborts_ = 0;
  bool busy_ = false;
  bool closed_ = false;
  aclError error_ = ACL_SUCCESS;
  std::thread worker_;
  std::atomic<bool> interrupt_{false};  // a task that waits must return
};

}  // namespace aclemu
