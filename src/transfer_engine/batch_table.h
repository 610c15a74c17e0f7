// Batches of transfer requests: how far each request is, and who waits for the end.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "common/clock.h"
#include "transfer_engine/types.h"

namespace mooncake {

// The states of a batch's tasks, and of further items (notifications) that the batch waits for but that are no tasks.
// An item is WAITING until End, which comes exactly once. Any thread; callbacks run without a lock.
class Batch {
 public:
  using Watcher = std::move_only_function<void(const TransferStatus&)>;

  // `spin`: how long those who wait look for the end before they sleep, see IdleSpin.
  explicit Batch(size_t max_tasks, Duration spin = Duration::zero()) : max_tasks_(max_tasks), spin_(spin) {}
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  // One waiting task per request, and one item more if asked for. The number of the first; the others follow. All or
  // none: TOO_MANY_REQUESTS beyond the tasks it was made for, INVALID_PARAMS once closed.
  Result<size_t> Add(std::span<const TransferRequest> requests, bool with_extra_item = false);
  void End(size_t item, const Result<void>& result);

  // INVALID_PARAMS for a task that does not exist.
  Result<TransferStatus> Task(size_t task) const;
  TransferStatus Summary() const;
  TransferStatus Wait(Deadline deadline) const;
  // Waits without a limit: for whoever owns memory that the tasks use.
  TransferStatus WaitForEnd() const;
  void OnEnd(Watcher done);

  // Nothing is added any more. BATCH_BUSY while something waits, INVALID_PARAMS the second time.
  Result<void> Close();

  // Grows with every Cancel, so that who submits can tell that one came meanwhile.
  uint64_t cancels() const { return cancels_.load(); }
  void CountCancel() { cancels_.fetch_add(1); }

 private:
  struct Item {
    TransferState state = TransferState::kWaiting;
    bool is_task = true;
    size_t length = 0;
    Status error;
  };
  struct Waiter {
    size_t items;    // it waits for those before this number
    size_t waiting;  // of them, not ended
    Watcher done;
  };
  TransferStatus SummaryOf(size_t items) const;  // of the first so many, all ended

  TransferStatus WaitUntil(std::optional<TimePoint> time) const;  // without one: for ever

  const size_t max_tasks_;
  const Duration spin_;
  std::atomic<uint64_t> cancels_{0};
  // Written under the lock; polls that find the batch waiting read them without.
  std::atomic<size_t> waiting_{0};
  std::atomic<size_t> completed_bytes_{0};
  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  bool closed_ = false;
  std::vector<Item> items_;
  size_t tasks_ = 0;
  std::vector<size_t> extra_items_;  // ascending
  std::vector<Waiter> waiters_;
};

// Batches by handle. An id is an index and the number of its use, so that one that was freed, or never given out, is
// told from a live one. Any thread.
class BatchTable {
 public:
  explicit BatchTable(size_t max_batches, Duration spin = Duration::zero()) : max_batches_(max_batches), spin_(spin) {}

  // TOO_MANY_REQUESTS when max_batches are open.
  Result<BatchId> Allocate(size_t max_tasks);
  // INVALID_PARAMS for an id that is not open.
  Result<std::shared_ptr<Batch>> Find(BatchId id) const;
  Result<void> Free(BatchId id);
  size_t open() const { return open_.load(); }

 private:
  static constexpr size_t kShards = 16;
  struct Slot {
    uint32_t use = 1;  // 1 .. 2^31 - 1
    std::shared_ptr<Batch> batch;
  };
  struct Shard {
    mutable std::mutex mutex;
    std::vector<Slot> slots;
    std::vector<uint32_t> free;
  };

  const size_t max_batches_;
  const Duration spin_;
  std::atomic<size_t> open_{0};
  std::atomic<size_t> next_shard_{0};
  std::array<Shard, kShards> shards_;
};

}  // namespace mooncake
