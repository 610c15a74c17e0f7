// Keeps the master's index true: tells it the state of every key that changed, in batches.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "protocol/master_messages.h"

namespace mooncake {

// States, not operations: a changed key is only marked; when its turn comes the sender looks up what is true then. So
// marks merge, a repeated send is harmless, and the last announcement of a key always agrees with the index. One batch
// is under way at a time; marks made meanwhile form the next one. Any thread.
class Announcer {
 public:
  struct Hooks {
    // Truth about a key now; nullopt when this process no longer has it. Called without locks.
    std::function<std::optional<protocol::KeyState>(const std::string& key)> state_of;
    std::function<Result<protocol::AnnounceReply>(std::vector<protocol::KeyState> keys)> send;
    // Other owners hold these already: ours is surplus.
    std::function<void(const std::string& key)> on_rejected;
    // A batch could not be delivered; the announcer has paused itself.
    std::function<void(const Status& status)> on_failed;
  };
  // `delivered` is false when announcing paused or stopped instead: nobody was told.
  using Completion = std::move_only_function<void(bool delivered)>;

  Announcer(Hooks hooks, size_t max_batch);
  ~Announcer();

  // This key changed. Cheap; forgotten while paused, since a resume announces everything.
  // Returns a ticket to wait for the delivery of this mark and those before it.
  uint64_t Mark(std::string_view key);
  // Runs `done` once every mark made before this call has been delivered, or announcing has paused (nobody to tell): on
  // the announcer's thread or that of Pause and Stop, or at once on this one when there is nothing to wait for. Marks
  // made later, however many, do not delay it.
  void WhenDelivered(Completion done);
  void WhenDelivered(uint64_t ticket, Completion done);
  // Same, blocking; false when the deadline came first, true also when announcing paused.
  bool WaitDelivered(Deadline deadline);
  bool WaitDelivered(uint64_t ticket, Deadline deadline);

  // Starts paused. Resume: from now on marks count again; the caller marks all its keys.
  void Resume();
  void Pause();
  void Stop();  // idempotent; releases all waiters

 private:
  struct Batch {
    std::vector<std::string> keys;
    uint64_t covers = 0;  // marks up to this one are delivered with it
    uint64_t epoch = 0;
  };
  void Run();
  Batch TakeBatchLocked();
  // True when the master has it.
  bool Deliver(const Batch& batch);
  void PauseLocked(std::vector<Completion>& released);
  static void RunAll(std::vector<Completion>& completions, bool delivered);

  const Hooks hooks_;
  const size_t max_batch_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool running_ = false;
  bool stopping_ = false;
  uint64_t epoch_ = 0;  // pauses so far: what a batch of an earlier one brings says nothing about now
  // Marked keys in the order of their first mark. A key marked again while it waits keeps its place: its state is read
  // when its turn comes, which is later than both marks.
  std::unordered_map<std::string, uint64_t> marked_;  // to its place in the queue
  std::map<uint64_t, const std::string*> queue_;      // by mark number; the text is marked_'s
  uint64_t mark_count_ = 0;                           // marks so far
  uint64_t delivered_count_ = 0;                      // all marks up to this one are delivered
  std::multimap<uint64_t, Completion> waiters_;       // by the mark count they wait for
  std::thread thread_;
};

}  // namespace mooncake
