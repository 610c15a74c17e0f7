// Jobs of the copier: run by the submitting thread, by workers, or by a thread of its own when the workers are full.
#include "transfer_engine/transport/local/piecewise_copy.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

#include "device/npu_runtime.h"

namespace mooncake {
namespace {

constexpr size_t kMaxRangesPerStep = 256;  // of NPU copies that share a synchronisation

struct Sides {
  MemoryRange target;
  MemoryRange source;
};

Sides SidesOf(const PieceCopy& copy) {
  if (copy.operation.opcode == TransferOpcode::kRead) return {copy.operation.local, copy.remote};
  return {copy.remote, copy.operation.local};
}

bool Overlap(const Sides& sides) {
  if (IsHost(sides.target) != IsHost(sides.source)) return false;
  if (!IsHost(sides.target) &&
      std::get<NpuRange>(sides.target).at.device_id != std::get<NpuRange>(sides.source).at.device_id) {
    return false;
  }
  const uintptr_t target = AddressOf(sides.target);
  const uintptr_t source = AddressOf(sides.source);
  const size_t size = SizeOf(sides.target);
  return target < source + size && source < target + size;
}

NpuRuntime* RuntimeOf(const Sides& sides) {
  if (const auto* npu = std::get_if<NpuRange>(&sides.target)) return npu->runtime;
  if (const auto* npu = std::get_if<NpuRange>(&sides.source)) return npu->runtime;
  return nullptr;
}

// Where the next piece begins: overlapping ranges are copied from the end that is not overwritten too early.
size_t PieceOffset(const Sides& sides, size_t done, size_t piece) {
  const bool backwards = AddressOf(sides.target) > AddressOf(sides.source) && Overlap(sides);
  return backwards ? SizeOf(sides.target) - done - piece : done;
}

// The runtime's copies must not overlap, so a piece passes through host memory as a whole.
Result<void> CopyThroughHost(const MemoryRange& target, const MemoryRange& source) {
  std::vector<std::byte> between(SizeOf(source));
  MC_TRY(CopyToHost(between, source));
  return CopyFromHost(target, between);
}

// Copies that are run, cancelled and timed out together; their results are their own.
struct Job {
  std::vector<PieceCopy> copies;
  size_t next = 0;        // the first that has not ended
  size_t next_bytes = 0;  // of it that are in place
  size_t total_bytes = 0;
  BatchId tag = kInvalidBatch;
  Deadline deadline = Deadline::After({});
  std::atomic<bool> canceled{false};

  bool ended() const { return next == copies.size(); }
  void EndNext(Result<void> result) {
    PieceCopy& copy = copies[next++];
    next_bytes = 0;
    copy.memory.reset();
    EndOperation(copy.operation, std::move(result));
  }
  void EndAll(const Status& why) {
    while (!ended()) EndNext(std::unexpected(why));
  }
};
using JobPtr = std::shared_ptr<Job>;

}  // namespace

void EndOperation(TransferOperation& operation, Result<void> result) {
  operation.local_use.Release();
  auto done = std::move(operation.done);
  done(std::move(result));
}

class PiecewiseCopier::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(std::string name, Executor& workers, Limits limits)
      : name_(std::move(name)), workers_(workers), limits_(limits) {}

  void Start() {
    helper_ = std::thread([this] { RunHelper(); });
    pthread_setname_np(helper_.native_handle(), ("copy-" + name_).substr(0, 15).c_str());
  }
  void Run(std::vector<PieceCopy> copies, Caller caller);
  void Cancel(BatchId tag);
  void EndUnusable();
  void Stop();

 private:
  void Take(JobPtr job, bool now);
  // Have a runner begin if one more may. With the lock, which is given back for a moment.
  void Kick(std::unique_lock<std::mutex>& lock);
  void RunOnWorker();
  // Waiting jobs, until about so many bytes have been copied.
  void RunWaiting(size_t bytes);
  void RunHelper();
  void Execute(Job& job);
  void Finished(Job& job);
  std::optional<Status> Stopped(const Job& job) const;
  void ExpireWaiting();

  // One piece of the job's next copy.
  void Step(Job& job);
  void StepOnNpu(Job& job);
  void StepDone(Job& job, size_t bytes, const Result<void>& result);

  const std::string name_;
  Executor& workers_;
  const Limits limits_;
  std::mutex mutex_;
  std::condition_variable wake_helper_;
  std::condition_variable idle_;  // running_ became empty
  std::deque<JobPtr> waiting_;
  std::list<Job*> running_;
  size_t runners_ = 0;  // tasks of ours that the workers have, begun or not
  bool helper_wanted_ = false;
  std::atomic<bool> stopping_{false};
  std::atomic<TimePoint> next_expiry_{TimePoint::max()};  // not later than any waiting job's deadline
  std::thread helper_;
};

void PiecewiseCopier::Core::Run(std::vector<PieceCopy> copies, Caller caller) {
  size_t inline_bytes = 0;
  JobPtr job;
  bool job_now = false;
  for (PieceCopy& copy : copies) {
    const size_t size = copy.operation.length();
    const bool now =
        caller == Caller::kWaits || (size <= limits_.inline_bytes && inline_bytes + size <= limits_.inline_total_bytes);
    if (now) inline_bytes += size;
    const bool joins = job != nullptr && job_now == now && job->tag == copy.operation.tag &&
                       job->deadline.time() == copy.operation.deadline.time() &&
                       (now || job->total_bytes + size <= limits_.piece_bytes);
    if (!joins) {
      if (job != nullptr) Take(std::move(job), job_now);
      job = std::make_shared<Job>();
      job->tag = copy.operation.tag;
      job->deadline = copy.operation.deadline;
      job_now = now;
    }
    job->total_bytes += size;
    job->copies.push_back(std::move(copy));
  }
  if (job != nullptr) Take(std::move(job), job_now);
}

void PiecewiseCopier::Core::Take(JobPtr job, bool now) {
  std::unique_lock lock(mutex_);
  if (!now && !stopping_ && waiting_.size() < limits_.max_waiting) {
    if (job->deadline.time() < next_expiry_.load()) {
      next_expiry_ = job->deadline.time();
      wake_helper_.notify_one();
    }
    waiting_.push_back(std::move(job));
    Kick(lock);
    return;
  }
  running_.push_back(job.get());
  lock.unlock();
  Execute(*job);
}

void PiecewiseCopier::Core::Kick(std::unique_lock<std::mutex>& lock) {
  if (stopping_ || waiting_.empty() || runners_ >= limits_.max_runners) return;
  ++runners_;
  lock.unlock();
  std::move_only_function<void()> task = [self = shared_from_this()] { self->RunOnWorker(); };
  const bool taken = workers_.TrySubmit(task);
  lock.lock();
  if (taken) return;
  if (--runners_ > 0) return;  // one of the others goes on with it
  helper_wanted_ = true;
  wake_helper_.notify_one();
}

void PiecewiseCopier::Core::RunOnWorker() {
  RunWaiting(limits_.runner_bytes);
  std::unique_lock lock(mutex_);
  --runners_;
  Kick(lock);
}

void PiecewiseCopier::Core::RunWaiting(size_t bytes) {
  for (size_t copied = 0; copied < bytes;) {
    JobPtr job;
    {
      std::lock_guard lock(mutex_);
      if (stopping_ || waiting_.empty()) return;
      job = std::move(waiting_.front());
      waiting_.pop_front();
      running_.push_back(job.get());
    }
    copied += job->total_bytes + 1;
    Execute(*job);
  }
}

// Watches the deadlines of what waits, and copies while the workers' queue is full of others' work.
void PiecewiseCopier::Core::RunHelper() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (helper_wanted_) {
      helper_wanted_ = false;
      lock.unlock();
      RunWaiting(limits_.runner_bytes);
      lock.lock();
      Kick(lock);
      continue;
    }
    const TimePoint next = next_expiry_.load();
    if (next == TimePoint::max()) {
      wake_helper_.wait(lock);
    } else {
      wake_helper_.wait_until(lock, next);
    }
    lock.unlock();
    ExpireWaiting();
    lock.lock();
  }
}

void PiecewiseCopier::Core::Execute(Job& job) {
  while (!job.ended()) {
    if (const auto why = Stopped(job)) {
      job.EndAll(*why);
      break;
    }
    Step(job);
    ExpireWaiting();
  }
  Finished(job);
}

void PiecewiseCopier::Core::Finished(Job& job) {
  std::lock_guard lock(mutex_);
  running_.remove(&job);
  if (running_.empty()) idle_.notify_all();
}

std::optional<Status> PiecewiseCopier::Core::Stopped(const Job& job) const {
  if (stopping_) return Status(ErrorCode::SHUTTING_DOWN, "the transfer engine is closed");
  if (job.canceled) return Status(ErrorCode::TRANSFER_CANCELED, "canceled by the application");
  if (job.deadline.Passed()) {
    return Status(ErrorCode::TRANSFER_TIMEOUT,
                  fmt::format("deadline passed: {} transfer to '{}' has {} of {} B in place", name_,
                              job.copies[job.next].operation.target->name, job.next_bytes,
                              job.copies[job.next].operation.length()));
  }
  return std::nullopt;
}

void PiecewiseCopier::Core::ExpireWaiting() {
  if (std::chrono::steady_clock::now() < next_expiry_.load(std::memory_order_relaxed)) return;
  std::vector<JobPtr> expired;
  {
    std::lock_guard lock(mutex_);
    TimePoint next = TimePoint::max();
    std::erase_if(waiting_, [&](JobPtr& job) {
      if (!job->deadline.Passed()) return next = std::min(next, job->deadline.time()), false;
      expired.push_back(std::move(job));
      return true;
    });
    next_expiry_ = next;
  }
  for (const JobPtr& job : expired) job->EndAll(*Stopped(*job));
}

void PiecewiseCopier::Core::Step(Job& job) {
  const PieceCopy& copy = job.copies[job.next];
  if (auto usable = copy.memory->Usable(); !usable) return job.EndNext(std::move(usable));
  const Sides sides = SidesOf(copy);
  const NpuRuntime* const runtime = RuntimeOf(sides);
  if (runtime != nullptr && !Overlap(sides)) return StepOnNpu(job);
  const size_t piece = std::min(limits_.piece_bytes, copy.operation.length() - job.next_bytes);
  const size_t at = PieceOffset(sides, job.next_bytes, piece);
  if (runtime != nullptr) {
    return StepDone(job, piece, CopyThroughHost(SubRange(sides.target, at, piece), SubRange(sides.source, at, piece)));
  }
  // To a peer's memory these are plain stores. What makes them visible there before the peer hears of them is the way
  // the news takes: a system call of this process and one of the peer's, which order memory on every architecture.
  std::memmove(std::get<HostRange>(sides.target).data() + at, std::get<HostRange>(sides.source).data() + at, piece);
  StepDone(job, piece, {});
}

// Several short copies or a part of a long one; they share a synchronisation with the device.
void PiecewiseCopier::Core::StepOnNpu(Job& job) {
  NpuRuntime* const runtime = RuntimeOf(SidesOf(job.copies[job.next]));
  std::vector<RangeCopy> pieces;
  size_t left = limits_.npu_piece_bytes;
  size_t done = job.next_bytes;
  for (size_t i = job.next; i < job.copies.size() && left > 0 && pieces.size() < kMaxRangesPerStep; ++i) {
    const Sides sides = SidesOf(job.copies[i]);
    if (RuntimeOf(sides) != runtime || Overlap(sides) || !job.copies[i].memory->Usable()) break;
    const size_t piece = std::min(left, SizeOf(sides.target) - std::exchange(done, 0));
    const size_t at = i == job.next ? job.next_bytes : 0;
    pieces.push_back({SubRange(sides.target, at, piece), SubRange(sides.source, at, piece)});
    left -= piece;
  }
  if (pieces.empty()) return;  // became unusable just now: the next step says so
  CopyRanges(pieces);
  for (const RangeCopy& piece : pieces) StepDone(job, SizeOf(piece.source), piece.result);
}

void PiecewiseCopier::Core::StepDone(Job& job, size_t bytes, const Result<void>& result) {
  const TransferOperation& operation = job.copies[job.next].operation;
  if (!result) {
    return job.EndNext(std::unexpected(
        Status(ErrorCode::TRANSFER_FAIL,
               fmt::format("copy to or from '{}': {}", operation.target->name, result.error().ToString()),
               result.error().vendor_code())));
  }
  job.next_bytes += bytes;
  if (job.next_bytes == operation.length()) job.EndNext({});
}

void PiecewiseCopier::Core::Cancel(BatchId tag) {
  std::vector<JobPtr> canceled;
  {
    std::lock_guard lock(mutex_);
    std::erase_if(waiting_, [&](JobPtr& job) {
      if (job->tag != tag) return false;
      canceled.push_back(std::move(job));
      return true;
    });
    for (Job* job : running_) {
      if (job->tag == tag) job->canceled = true;
    }
  }
  for (const JobPtr& job : canceled) {
    job->EndAll(Status(ErrorCode::TRANSFER_CANCELED, "canceled by the application"));
  }
}

void PiecewiseCopier::Core::EndUnusable() {
  std::vector<std::pair<PieceCopy, Status>> ended;
  {
    std::lock_guard lock(mutex_);
    for (const JobPtr& job : waiting_) {
      std::erase_if(job->copies, [&](PieceCopy& copy) {
        auto usable = copy.memory->Usable();
        if (usable) return false;
        ended.emplace_back(std::move(copy), std::move(usable.error()));
        return true;
      });
    }
    std::erase_if(waiting_, [](const JobPtr& job) { return job->copies.empty(); });
  }
  for (auto& [copy, why] : ended) {
    copy.memory.reset();
    EndOperation(copy.operation, std::unexpected(std::move(why)));
  }
}

void PiecewiseCopier::Core::Stop() {
  std::deque<JobPtr> waiting;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    waiting.swap(waiting_);
    wake_helper_.notify_one();
  }
  for (const JobPtr& job : waiting) job->EndAll(*Stopped(*job));
  if (helper_.joinable()) helper_.join();
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return running_.empty(); });
}

PiecewiseCopier::PiecewiseCopier(std::string name, Executor& workers, Limits limits)
    : core_(std::make_shared<Core>(std::move(name), workers, limits)) {
  core_->Start();
}

PiecewiseCopier::~PiecewiseCopier() {
  Stop();
}

void PiecewiseCopier::Run(std::vector<PieceCopy> copies, Caller caller) {
  core_->Run(std::move(copies), caller);
}

void PiecewiseCopier::Cancel(BatchId tag) {
  core_->Cancel(tag);
}

void PiecewiseCopier::EndUnusable() {
  core_->EndUnusable();
}

void PiecewiseCopier::Stop() {
  core_->Stop();
}

}  // namespace mooncake
