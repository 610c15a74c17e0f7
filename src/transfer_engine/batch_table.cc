// State machines of batches, and the table of their handles.
#include "transfer_engine/batch_table.h"

#include <algorithm>

#include "common/check.h"
#include "common/idle_spin.h"

namespace mooncake {
namespace {

constexpr uint32_t kLastUse = (1u << 31) - 1;  // ids stay positive as signed numbers

// The later in this list, the worse.
int Badness(TransferState state) {
  switch (state) {
    case TransferState::kCanceled:
      return 1;
    case TransferState::kTimeout:
      return 2;
    case TransferState::kFailed:
      return 3;
    default:
      return 0;
  }
}

std::unexpected<Status> UnknownBatch(BatchId id) {
  return Error(ErrorCode::INVALID_PARAMS, "batch {:#x} is not open", id);
}

}  // namespace

Result<size_t> Batch::Add(std::span<const TransferRequest> requests, bool with_extra_item) {
  std::lock_guard lock(mutex_);
  if (closed_) return Error(ErrorCode::INVALID_PARAMS, "the batch was freed");
  if (requests.size() > max_tasks_ - tasks_) {
    return Error(ErrorCode::TOO_MANY_REQUESTS, "{} requests more than the {} of {} that the batch has", requests.size(),
                 tasks_, max_tasks_);
  }
  const size_t first = items_.size();
  for (const TransferRequest& request : requests) items_.push_back({.length = request.length});
  tasks_ += requests.size();
  if (with_extra_item) {
    extra_items_.push_back(items_.size());
    items_.push_back({.is_task = false});
  }
  waiting_ += items_.size() - first;
  return first;
}

void Batch::End(size_t number, const Result<void>& result) {
  std::vector<std::pair<Watcher, TransferStatus>> ready;
  {
    std::lock_guard lock(mutex_);
    MC_CHECK(number < items_.size() && items_[number].state == TransferState::kWaiting, "item {} of {} ended twice",
             number, items_.size());
    Item& item = items_[number];
    item.state = StateOf(result);
    if (result) {
      completed_bytes_ += item.length;
    } else {
      item.error = result.error();
    }
    for (Waiter& waiter : waiters_) {
      if (number < waiter.items && --waiter.waiting == 0) {
        ready.emplace_back(std::move(waiter.done), SummaryOf(waiter.items));
      }
    }
    if (!ready.empty()) std::erase_if(waiters_, [](const Waiter& waiter) { return waiter.waiting == 0; });
    if (--waiting_ == 0) ended_.notify_all();
  }
  for (auto& [done, status] : ready) done(status);
}

TransferStatus Batch::SummaryOf(size_t items) const {
  TransferStatus summary{.state = TransferState::kCompleted};
  for (const Item& item : std::span(items_).first(items)) {
    if (item.state == TransferState::kCompleted) {
      summary.transferred_bytes += item.length;
    } else if (Badness(item.state) > Badness(summary.state)) {
      summary.state = item.state;
      summary.error = item.error;
    }
  }
  return summary;
}

Result<TransferStatus> Batch::Task(size_t task) const {
  std::lock_guard lock(mutex_);
  if (task >= tasks_) return Error(ErrorCode::INVALID_PARAMS, "task {} of a batch with {}", task, tasks_);
  size_t number = task;  // each extra item before it moves it on by one
  for (const size_t extra : extra_items_) number += extra <= number ? 1 : 0;
  const Item& item = items_[number];
  return TransferStatus{.state = item.state,
                        .transferred_bytes = item.state == TransferState::kCompleted ? item.length : 0,
                        .error = item.error};
}

TransferStatus Batch::Summary() const {
  if (waiting_.load() > 0) return {.transferred_bytes = completed_bytes_.load()};
  std::lock_guard lock(mutex_);
  if (waiting_ > 0) return {.transferred_bytes = completed_bytes_.load()};
  return SummaryOf(items_.size());
}

TransferStatus Batch::Wait(Deadline deadline) const {
  return WaitUntil(deadline.time());
}

TransferStatus Batch::WaitForEnd() const {
  return WaitUntil(std::nullopt);
}

TransferStatus Batch::WaitUntil(std::optional<TimePoint> time) const {
  static thread_local IdleSpin idle;
  const auto ended = [this] { return waiting_.load() == 0; };
  const TimePoint start = std::chrono::steady_clock::now();
  if (!ended() && !idle.Until(time ? std::min<Duration>(spin_, *time - start) : spin_, ended)) {
    std::unique_lock lock(mutex_);
    if (!time) {
      ended_.wait(lock, ended);
    } else if (!ended_.wait_until(lock, *time, ended)) {
      return {.transferred_bytes = completed_bytes_.load()};
    }
    idle.Slept(spin_, std::chrono::steady_clock::now() - start);
  }
  std::lock_guard lock(mutex_);
  return SummaryOf(items_.size());
}

void Batch::OnEnd(Watcher done) {
  TransferStatus status;
  {
    std::lock_guard lock(mutex_);
    if (waiting_ > 0) {
      waiters_.push_back({items_.size(), waiting_, std::move(done)});
      return;
    }
    status = SummaryOf(items_.size());
  }
  done(status);
}

Result<void> Batch::Close() {
  std::lock_guard lock(mutex_);
  if (closed_) return Error(ErrorCode::INVALID_PARAMS, "the batch was freed already");
  if (waiting_ > 0) {
    return Error(ErrorCode::BATCH_BUSY, "{} of {} requests have not ended", waiting_.load(), items_.size());
  }
  closed_ = true;
  return {};
}

Result<BatchId> BatchTable::Allocate(size_t max_tasks) {
  if (open_.fetch_add(1) >= max_batches_) {
    --open_;
    return Error(ErrorCode::TOO_MANY_REQUESTS, "{} batches are open", max_batches_);
  }
  auto batch = std::make_shared<Batch>(max_tasks, spin_);
  const size_t number = next_shard_.fetch_add(1, std::memory_order_relaxed) % kShards;
  Shard& shard = shards_[number];
  std::lock_guard lock(shard.mutex);
  if (shard.free.empty()) {
    shard.free.push_back(static_cast<uint32_t>(shard.slots.size()));
    shard.slots.emplace_back();
  }
  const uint32_t at = shard.free.back();
  shard.free.pop_back();
  Slot& slot = shard.slots[at];
  slot.batch = std::move(batch);
  return (static_cast<uint64_t>(slot.use) << 32) | (at * kShards + number);
}

Result<std::shared_ptr<Batch>> BatchTable::Find(BatchId id) const {
  const auto index = static_cast<uint32_t>(id);
  const Shard& shard = shards_[index % kShards];
  std::lock_guard lock(shard.mutex);
  const size_t at = index / kShards;
  if (at >= shard.slots.size() || shard.slots[at].use != id >> 32 || shard.slots[at].batch == nullptr) {
    return UnknownBatch(id);
  }
  return shard.slots[at].batch;
}

Result<void> BatchTable::Free(BatchId id) {
  const std::shared_ptr<Batch> batch = MC_TRY(Find(id));
  MC_TRY(batch->Close());  // from here on it is this call's to remove
  const auto index = static_cast<uint32_t>(id);
  Shard& shard = shards_[index % kShards];
  std::lock_guard lock(shard.mutex);
  const uint32_t at = index / kShards;
  Slot& slot = shard.slots[at];
  slot.batch.reset();  // `batch` still holds it: nothing of the application's is destroyed under the lock
  slot.use = slot.use == kLastUse ? 1 : slot.use + 1;
  shard.free.push_back(at);
  --open_;
  return {};
}

}  // namespace mooncake
