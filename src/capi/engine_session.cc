// Batches of a session, and how it ends.
#include "capi/engine_session.h"

#include <algorithm>

#include "capi/engine_options.h"

namespace mooncake {
namespace {

constexpr Duration kInterruptInterval = std::chrono::milliseconds(100);
constexpr Duration kProbeBudget = std::chrono::seconds(3);
constexpr size_t kTimeoutsRemembered = 4096;

void* PointerTo(uint64_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

// How a batch that has ended is reported.
Result<void> Outcome(const TransferStatus& status) {
  if (status.state == TransferState::kCompleted) return {};
  if (!status.error.ok()) return std::unexpected(status.error);
  return Error(ErrorCode::TRANSFER_FAIL, "the transfer ended as {}", TransferStateName(status.state));
}

Result<void> CheckRange(uint64_t address, uint64_t length) {
  if (address != 0 && length != 0 && address + length > address) return {};
  return Error(ErrorCode::INVALID_PARAMS, "no memory of {} B can be at {:#x}", length, address);
}

ManagedBuffers::Source SourceOf(TransferEngine& engine) {
  return {[&engine](size_t bytes) { return engine.AllocateMemory(bytes); },
          [&engine](void* address) { return engine.FreeMemory(address); }};
}

// The ends of several batches, gathered on the threads that end them.
class Gathering {
 public:
  explicit Gathering(size_t batches) : left_(batches) {}

  void Ended(const TransferStatus& status) {
    auto outcome = Outcome(status);
    const std::lock_guard lock(mutex_);
    --left_;
    if (!outcome && first_error_.ok()) first_error_ = std::move(outcome).error();
    changed_.notify_all();
  }
  // One of those waited for will not end.
  void Missing(const Status& error) {
    const std::lock_guard lock(mutex_);
    --left_;
    if (first_error_.ok()) first_error_ = error;
  }
  // True: all have ended, or one failed. False: the deadline passed first.
  bool WaitDecided(Deadline deadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline.time(), [&] { return left_ == 0 || !first_error_.ok(); });
  }
  void WaitAll() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return left_ == 0; });
  }
  Result<void> result() {
    const std::lock_guard lock(mutex_);
    if (first_error_.ok()) return {};
    return std::unexpected(first_error_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t left_;
  Status first_error_;
};

}  // namespace

// A call under way.
class EngineSession::Running {
 public:
  explicit Running(EngineSession& session) : session_(session) {}
  ~Running() { session_.Leave(); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  EngineSession& session_;
};

// A batch of the engine that is canceled, drained and freed unless somebody takes it.
class EngineSession::Batch {
 public:
  Batch(EngineSession& session, BatchId id) : session_(session), id_(id) {}
  Batch(EngineSession& session, Begun begun) : session_(session), id_(begun.batch), target_(std::move(begun.target)) {}
  ~Batch() {
    if (id_ == kInvalidBatch) return;
    {
      const std::lock_guard lock(session_.mutex_);
      session_.waited_for_.erase(id_);
    }
    TransferEngine& engine = session_.engine();
    if (engine.FreeBatch(id_)) return;
    (void)engine.Cancel(id_);
    for (auto status = engine.BatchStatus(id_); status && status->state == TransferState::kWaiting;)
      status = engine.Wait(id_, Deadline::After(kInterruptInterval));
    (void)engine.FreeBatch(id_);
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  BatchId id() const { return id_; }
  // The target stays open until the batch has ended: it may have to be looked up again.
  void SetTarget(OpenTargets::Use target) { target_ = std::move(target); }
  SegmentId target() const { return target_.id(); }
  Begun Release() { return {std::exchange(id_, kInvalidBatch), std::move(target_)}; }

 private:
  EngineSession& session_;
  BatchId id_;
  OpenTargets::Use target_;
};

Result<std::shared_ptr<EngineSession>> EngineSession::Open(TransferEngineOptions options,
                                                           ManagedBufferOptions buffers) {
  const Duration timeout = options.default_timeout;
  std::shared_ptr<TransferEngine> engine = MC_TRY(TransferEngine::Open(std::move(options)));
  return std::shared_ptr<EngineSession>(new EngineSession(std::move(engine), timeout, buffers));
}

EngineSession::EngineSession(std::shared_ptr<TransferEngine> engine, Duration timeout, ManagedBufferOptions buffers)
    : engine_(std::move(engine)), timeout_(timeout), targets_(*engine_), buffers_(SourceOf(*engine_), buffers) {}

EngineSession::~EngineSession() {
  for (auto& [number, begun] : begun_) {
    const Batch ends_it(*this, std::move(begun));
  }
}

// --- life cycle ---

Result<void> EngineSession::Enter() {
  const std::lock_guard lock(mutex_);
  if (closing_) return Error(ErrorCode::SHUTTING_DOWN, "the engine is being closed");
  ++running_;
  return {};
}

void EngineSession::Leave() {
  const std::lock_guard lock(mutex_);
  if (--running_ == 0) left_.notify_all();
}

bool EngineSession::closing() const {
  const std::lock_guard lock(mutex_);
  return closing_;
}

bool EngineSession::Close(Deadline deadline) {
  std::vector<BatchId> batches;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    batches.assign(waited_for_.begin(), waited_for_.end());
    for (const auto& [number, begun] : begun_) batches.push_back(begun.batch);
  }
  for (const BatchId id : batches) (void)engine_->Cancel(id);  // one that was freed meanwhile has ended
  std::unique_lock lock(mutex_);
  return left_.wait_until(lock, deadline.time(), [&] { return running_ == 0; });
}

// --- transfers ---

Deadline EngineSession::DeadlineOf(const TransferCall& call) const {
  constexpr uint64_t kMost = uint64_t{1} << 60;  // nanoseconds, 36 years
  uint64_t bytes = 0;
  for (const TransferPiece& piece : call.pieces) bytes = std::min(kMost, bytes + std::min(piece.length, kMost));
  return Deadline::After(timeout_ + Duration(static_cast<int64_t>(bytes)));
}

Result<std::vector<TransferRequest>> EngineSession::RequestsOf(const TransferCall& call, SegmentId target) const {
  std::vector<TransferRequest> requests;
  requests.reserve(call.pieces.size());
  for (const TransferPiece& piece : call.pieces) {
    if (piece.length == 0) continue;
    MC_TRY(CheckRange(piece.local, piece.length));
    requests.push_back({.opcode = call.opcode,
                        .local = PointerTo(piece.local),
                        .target = target,
                        .target_address = piece.remote,
                        .length = piece.length});
  }
  return requests;
}

Result<void> EngineSession::Submit(const TransferCall& call, Batch& batch, Caller caller) {
  const Deadline deadline = DeadlineOf(call);
  batch.SetTarget(MC_TRY(targets_.Open(call.target, deadline)));
  const auto requests = MC_TRY(RequestsOf(call, batch.target()));
  if (!requests.empty()) return engine_->Submit(batch.id(), requests, {deadline, call.notify, caller});
  if (call.notify) return engine_->SendNotify(batch.target(), *call.notify, deadline);
  return {};
}

Result<void> EngineSession::Transfer(const TransferCall& call, const Interrupted& interrupted) {
  MC_TRY(Enter());
  const Running running(*this);
  Batch batch(*this, MC_TRY(engine_->AllocateBatch(call.pieces.size())));
  {
    const std::lock_guard lock(mutex_);
    waited_for_.insert(batch.id());
  }
  MC_TRY(Submit(call, batch, Caller::kWaits));
  return WaitFor(batch, interrupted);
}

Result<void> EngineSession::WaitFor(Batch& batch, const Interrupted& interrupted) {
  for (;;) {
    // A Close that came before the submission has canceled nothing.
    if (closing()) MC_TRY(engine_->Cancel(batch.id()));
    const auto status = MC_TRY(engine_->Wait(batch.id(), Deadline::After(kInterruptInterval)));
    if (status.state != TransferState::kWaiting) return Outcome(status);
    if (interrupted && interrupted()) return Error(ErrorCode::TRANSFER_CANCELED, "interrupted");
  }
}

Result<uint64_t> EngineSession::Begin(const TransferCall& call) {
  MC_TRY(Enter());
  const Running running(*this);
  Batch batch(*this, MC_TRY(engine_->AllocateBatch(call.pieces.size())));
  MC_TRY(Submit(call, batch, Caller::kGoesOn));
  const std::lock_guard lock(mutex_);
  if (closing_) return Error(ErrorCode::SHUTTING_DOWN, "the engine is being closed");
  const uint64_t number = ++last_number_;
  begun_.emplace(number, batch.Release());
  return number;
}

std::optional<EngineSession::Begun> EngineSession::TakeNumber(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto node = begun_.extract(number);
  if (node.empty()) return std::nullopt;
  return std::move(node.mapped());
}

void EngineSession::RememberTimeout(uint64_t number) {
  const std::lock_guard lock(mutex_);
  timed_out_.insert(number);
  timed_out_order_.push_back(number);
  if (timed_out_order_.size() <= kTimeoutsRemembered) return;
  timed_out_.erase(timed_out_order_.front());
  timed_out_order_.pop_front();
}

Result<bool> EngineSession::Check(uint64_t number) {
  BatchId id = kInvalidBatch;
  {
    const std::lock_guard lock(mutex_);
    if (timed_out_.contains(number))
      return Error(ErrorCode::TRANSFER_TIMEOUT, "batch {} ran out of time before", number);
    const auto found = begun_.find(number);
    if (found == begun_.end()) return Error(ErrorCode::INVALID_PARAMS, "no batch {} (freed already?)", number);
    id = found->second.batch;
  }
  const auto status = MC_TRY(engine_->BatchStatus(id));
  if (status.state == TransferState::kWaiting) return false;
  auto begun = TakeNumber(number);
  if (!begun) return Error(ErrorCode::INVALID_PARAMS, "batch {} was freed by another thread", number);
  const Batch ends_here(*this, std::move(*begun));
  if (status.state == TransferState::kTimeout) RememberTimeout(number);
  MC_TRY(Outcome(status));
  return true;
}

Result<void> EngineSession::WaitAll(std::span<const uint64_t> numbers, const Interrupted& interrupted) {
  MC_TRY(Enter());
  const Running running(*this);
  const std::unordered_set<uint64_t> distinct(numbers.begin(), numbers.end());
  const auto gathering = std::make_shared<Gathering>(distinct.size());
  std::vector<std::pair<uint64_t, BatchId>> batches;
  for (const uint64_t number : distinct) {
    const std::lock_guard lock(mutex_);
    if (const auto found = begun_.find(number); found != begun_.end()) {
      batches.emplace_back(number, found->second.batch);
    } else {
      gathering->Missing(Status(ErrorCode::INVALID_PARAMS, fmt::format("no batch {}", number)));
    }
  }
  for (const auto& [number, id] : batches) {
    const auto told = engine_->OnEnd(id, [gathering](const TransferStatus& status) { gathering->Ended(status); });
    if (!told) gathering->Missing(told.error());
  }
  while (!gathering->WaitDecided(Deadline::After(kInterruptInterval))) {
    if (interrupted && interrupted()) return Error(ErrorCode::TRANSFER_CANCELED, "interrupted");
  }
  auto result = gathering->result();
  for (const auto& [number, id] : batches) {
    if (!result) (void)engine_->Cancel(id);
  }
  gathering->WaitAll();
  for (const auto& [number, id] : batches) {
    auto begun = TakeNumber(number);
    if (!begun) continue;  // freed by another thread
    const Batch ends_here(*this, std::move(*begun));
  }
  return result;
}

// --- memory ---

Result<void> EngineSession::Register(uint64_t address, uint64_t length, std::string_view location) {
  return RegisterAll({&address, 1}, {&length, 1}, location);
}

Result<void> EngineSession::RegisterAll(std::span<const uint64_t> addresses, std::span<const uint64_t> lengths,
                                        std::string_view location) {
  MC_TRY(Enter());
  const Running running(*this);
  if (addresses.size() != lengths.size())
    return Error(ErrorCode::INVALID_PARAMS, "{} addresses with {} lengths", addresses.size(), lengths.size());
  auto options = MC_TRY(RegionOptionsOf(location));
  std::vector<HostRange> ranges;
  for (size_t i = 0; i < addresses.size(); ++i) {
    MC_TRY(CheckRange(addresses[i], lengths[i]));
    ranges.emplace_back(static_cast<std::byte*>(PointerTo(addresses[i])), lengths[i]);
  }
  return engine_->RegisterMemoryBatch(ranges, std::move(options));
}

Result<void> EngineSession::Unregister(uint64_t address) {
  MC_TRY(Enter());
  const Running running(*this);
  return engine_->UnregisterMemory(PointerTo(address));
}

Result<void> EngineSession::UnregisterAll(std::span<const uint64_t> addresses) {
  MC_TRY(Enter());
  const Running running(*this);
  std::vector<void*> pointers;
  for (const uint64_t address : addresses) pointers.push_back(PointerTo(address));
  return engine_->UnregisterMemoryBatch(pointers);
}

bool EngineSession::IsDeviceMemory(uint64_t address, uint64_t length) {
  const auto use = engine_->regions().Find(address, length);
  return use && use->region().IsNpu();
}

// --- peers ---

Result<uint64_t> EngineSession::FirstBufferAddress(const std::string& target) {
  MC_TRY(Enter());
  const Running running(*this);
  const auto use = MC_TRY(targets_.Open(target, Deadline::After(timeout_)));
  const SegmentPtr segment = MC_TRY(engine_->GetSegment(use.id(), /*refresh=*/true));
  if (segment->regions.empty()) return Error(ErrorCode::ADDRESS_NOT_REGISTERED, "{} has no buffers", target);
  return segment->regions.front().address;
}

Result<std::string> EngineSession::Explain(const TransferCall& call) {
  MC_TRY(Enter());
  const Running running(*this);
  const Deadline deadline = DeadlineOf(call);
  const auto use = MC_TRY(targets_.Open(call.target, deadline));
  const auto requests = MC_TRY(RequestsOf(call, use.id()));
  if (requests.empty()) return std::string("nothing moves: 0 B");
  return engine_->Explain(requests.front(), deadline);
}

Result<void> EngineSession::Probe(const std::string& target) {
  MC_TRY(Enter());
  const Running running(*this);
  return engine_->Probe(target, Deadline::After(kProbeBudget));
}

}  // namespace mooncake
