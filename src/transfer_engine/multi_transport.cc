// Choice of transports, second attempts, ends of requests.
#include "transfer_engine/multi_transport.h"

#include <algorithm>
#include <ranges>

#include "common/check.h"

namespace mooncake {
namespace {

// After a plain failure the target may just have been restarted; this long it may take to find out.
constexpr Duration kRestartPatience = std::chrono::milliseconds(500);
constexpr Duration kUntilDeadline = std::chrono::hours(24);

const char* OpcodeName(TransferOpcode opcode) {
  return opcode == TransferOpcode::kRead ? "read" : "write";
}

// The others are recognised by identities, and no target lists them.
bool IsListed(std::string_view transport) {
  constexpr std::array<std::string_view, 5> kOthers = {"local", "shm", "ascend", "staged", "ascend_rdma"};
  return std::ranges::find(kOthers, transport) == kOthers.end();
}

bool Offers(const SegmentDescriptor& segment, std::string_view transport) {
  return !IsListed(transport) || std::ranges::find(segment.protocols, transport) != segment.protocols.end();
}

std::string NearestRegion(const SegmentDescriptor& segment, uint64_t address) {
  if (segment.regions.empty()) return "it has no registered memory";
  const auto after = std::ranges::upper_bound(segment.regions, address, {}, &SegmentRegion::address);
  const SegmentRegion& nearest = after == segment.regions.begin() ? *after : *std::prev(after);
  return fmt::format("the nearest region is [{:#x}, +{})", nearest.address, nearest.length);
}

std::unexpected<Status> NotRegistered(const SegmentDescriptor& segment, uint64_t address, uint64_t length) {
  return Error(ErrorCode::ADDRESS_NOT_REGISTERED, "segment '{}' has not registered [{:#x}, +{}); {}", segment.name,
               address, length, NearestRegion(segment, address));
}

Result<void> Validate(const TransferRequest& request) {
  if (request.opcode != TransferOpcode::kRead && request.opcode != TransferOpcode::kWrite) {
    return Error(ErrorCode::INVALID_PARAMS, "opcode {} is neither read nor write", static_cast<int>(request.opcode));
  }
  if (request.length == 0) return {};
  const auto local = reinterpret_cast<uintptr_t>(request.local);
  if (local == 0 || request.length > UINTPTR_MAX - local) {
    return Error(ErrorCode::INVALID_PARAMS, "local memory [{:#x}, +{}) does not exist", local, request.length);
  }
  if (request.length > UINT64_MAX - request.target_address) {
    return Error(ErrorCode::INVALID_PARAMS, "range [{:#x}, +{}) of the target wraps around", request.target_address,
                 request.length);
  }
  return {};
}

// How long the target's new descriptor is waited for after an end of this kind; nothing: that was the end.
std::optional<Duration> Patience(const Status& error, bool own_process) {
  switch (error.code()) {
    case ErrorCode::STALE_SEGMENT:
    case ErrorCode::ADDRESS_NOT_REGISTERED:
      return kUntilDeadline;
    case ErrorCode::TRANSFER_FAIL:
      if (own_process) return std::nullopt;  // it was not restarted
      return kRestartPatience;
    default:
      return std::nullopt;
  }
}

}  // namespace

class MultiTransport::Targets {
 public:
  struct Known {
    SegmentPtr segment;
    bool refreshed = false;
  };
  explicit Targets(const SegmentCache& segments) : segments_(segments) {}

  Result<Known*> Get(SegmentId id) {
    if (last_ != nullptr && last_id_ == id) return last_;
    const auto [found, added] = known_.try_emplace(id);
    if (added) found->second.segment = MC_TRY(segments_.Get(id));
    last_id_ = id;
    last_ = &found->second;
    return last_;
  }
  const std::unordered_map<SegmentId, Known>& all() const { return known_; }

 private:
  const SegmentCache& segments_;
  std::unordered_map<SegmentId, Known> known_;
  SegmentId last_id_ = kInvalidSegment;
  Known* last_ = nullptr;
};

MultiTransport::MultiTransport(Parts parts)
    : parts_(std::move(parts)),
      rerouted_(parts_.metrics.GetCounter("mooncake_transfer_rerouted_total",
                                          "requests tried again because their target had changed")),
      notifier_(parts_.links),
      reroutes_(parts_.segments, [this](auto outcomes) { Rerouted(std::move(outcomes)); }) {
  for (const auto& transport : parts_.transports) {
    auto& meters = meters_.emplace_back();
    for (const TransferOpcode opcode : {TransferOpcode::kRead, TransferOpcode::kWrite}) {
      const MetricLabels labels = {{"transport", transport->name()}, {"opcode", OpcodeName(opcode)}};
      meters[static_cast<size_t>(opcode)] = {
          &parts_.metrics.GetCounter("mooncake_transfer_requests_total", "requests handed to a transport", labels),
          &parts_.metrics.GetCounter("mooncake_transfer_bytes_total", "bytes of requests that completed", labels),
          &parts_.metrics.GetCounter("mooncake_transfer_failures_total", "requests that ended otherwise", labels)};
    }
  }
}

MultiTransport::~MultiTransport() {
  StopTransports();
}

void MultiTransport::StopTransports() {
  reroutes_.Stop();
  // Backwards: some stand on those before them.
  for (auto& transport : parts_.transports | std::views::reverse) transport.reset();
}

std::shared_ptr<NpuRuntime> MultiTransport::UsedRuntime() {
  {
    std::lock_guard lock(npu_mutex_);
    if (npu_ != nullptr) return npu_;
  }
  std::shared_ptr<NpuRuntime> runtime = parts_.npu();
  std::lock_guard lock(npu_mutex_);
  if (npu_ == nullptr) npu_ = std::move(runtime);
  return npu_;
}

int32_t MultiTransport::DeviceOf(const void* address) {
  const std::shared_ptr<NpuRuntime> runtime = UsedRuntime();
  return runtime == nullptr ? -1 : runtime->DeviceOf(address).value_or(-1);
}

Result<void> MultiTransport::FillLocal(TransferJob& job, void* address, size_t length, KnownRuntime& known) {
  auto use = parts_.regions.Find(reinterpret_cast<uintptr_t>(address), length);
  if (use) job.local_use = std::move(*use);
  if (!known && (!job.local_use || job.local_use.region().IsNpu())) known = UsedRuntime();
  const int32_t device = job.local_use ? job.local_use.region().options.device_id
                         : *known      ? (*known)->DeviceOf(address).value_or(-1)
                                       : -1;
  if (device < 0) {
    job.local = HostRange(static_cast<std::byte*>(address), length);
    return {};
  }
  if (!job.local_use) return Annotate(use.error(), fmt::format("local memory of NPU {}", device));
  if (*known == nullptr) {
    return Error(ErrorCode::DEVICE_NOT_FOUND, "local memory {} is registered as NPU {}'s, but no NPU runtime is in use",
                 address, device);
  }
  const auto on_device = static_cast<DeviceAddress>(reinterpret_cast<uintptr_t>(address));
  job.local = NpuRange{{device, on_device}, length, known->get()};
  return {};
}

Result<void> MultiTransport::Route(TransferJob& job, const SegmentPtr& segment) const {
  const size_t length = SizeOf(job.local);
  if (const auto* const npu = std::get_if<NpuRange>(&job.local); npu != nullptr && npu->runtime != nullptr) {
    MC_TRY(CheckNotLost(*npu->runtime, npu->at.device_id));
  }
  job.segment = segment;
  job.region = segment->Find(job.target_address, length);
  if (job.grant) {
    job.granted =
        job.region != nullptr ? *job.region : SegmentRegion{.address = job.grant->address, .length = job.grant->length};
    job.granted->key = job.grant->key;
    job.region = &*job.granted;
  }
  if (job.region == nullptr) return NotRegistered(*segment, job.target_address, length);
  for (size_t i = 0; i < parts_.transports.size(); ++i) {
    const Transport& transport = *parts_.transports[i];
    if (!Offers(*segment, transport.name()) || !transport.Reaches(job.local, *segment, *job.region)) continue;
    job.transport = i;
    return {};
  }
  return Error(ErrorCode::NOT_SUPPORTED_TRANSPORT,
               "no transport moves {} B of {} memory from or to [{:#x}, ...) of '{}':{}", length,
               IsHost(job.local) ? "host" : "NPU", job.target_address, segment->name,
               WhyNone(job, parts_.transports.size()));
}

std::string MultiTransport::WhyNone(const TransferJob& job, size_t count) const {
  std::string reasons;
  for (const auto& transport : parts_.transports | std::views::take(count)) {
    reasons += fmt::format("{} {}: {}", reasons.empty() ? "" : ",", transport->name(), WhyNot(*transport, job));
  }
  return reasons.empty() ? " this engine has none" : reasons;
}

Result<std::string> MultiTransport::Explain(const TransferRequest& request, Deadline deadline) {
  MC_TRY(Validate(request));
  if (request.length == 0) return std::string("nothing moves: 0 B");
  Targets targets(parts_.segments);
  std::vector<TransferJobPtr> jobs = MC_TRY(Plan({&request, 1}, targets, deadline));
  const TransferJob& job = *jobs.front();
  const auto* const npu = std::get_if<NpuRange>(&job.local);
  const std::string memory = npu == nullptr ? "host memory" : fmt::format("memory of NPU {}", npu->at.device_id);
  const std::string way = parts_.transports[job.transport]->Way(job.local, *job.segment, *job.region);
  return fmt::format("{} of {} B between {} and [{:#x}, ...) of '{}': {}{}", OpcodeName(job.opcode), request.length,
                     memory, job.target_address, job.segment->name, way,
                     job.transport == 0 ? "" : "; not" + WhyNone(job, job.transport));
}

std::string MultiTransport::WhyNot(const Transport& transport, const TransferJob& job) const {
  const std::string_view name = transport.name();
  const SegmentDescriptor& target = *job.segment;
  if (!Offers(target, name)) return "the target does not offer it";
  if (std::string reason = transport.WhyNot(job.local, target, *job.region); !reason.empty()) return reason;
  if (name == "local" && target.generation != parts_.generation) return "the target is another process";
  if (name == "shm" && job.region->shm_id == 0) return "the region is not shared memory";
  if (name == "shm") return "the target is on another host";
  if ((name == "tcp" || name == "rdma") && job.region->location.starts_with("npu")) {
    return "the target's memory is an NPU's";
  }
  if (name == "tcp" && job.region->key == 0) return "the region is open to grants only";
  if (name == "rdma" && job.region->rkeys.empty()) return "the region has no rdma keys";
  if (!IsHost(job.local)) return "it does not take this NPU memory";
  return "it has no way between these memories";
}

Result<void> MultiTransport::WithFreshTarget(SegmentId id, Targets& targets, Deadline deadline,
                                             const std::function<Result<void>(const SegmentPtr&)>& attempt) const {
  Targets::Known& known = *MC_TRY(targets.Get(id));
  Result<void> done = attempt(known.segment);
  // No news of the target brings a lost device back.
  if (done || known.refreshed || done.error().code() == ErrorCode::DEVICE_NOT_FOUND) return done;
  known.refreshed = true;
  auto fresh = parts_.segments.Refresh(id, deadline);
  if (!fresh) {
    return Error(done.error().code(), "{} (and it cannot be asked again: {})", done.error().message(),
                 fresh.error().message());
  }
  known.segment = std::move(*fresh);
  return attempt(known.segment);
}

Result<std::vector<TransferJobPtr>> MultiTransport::Plan(std::span<const TransferRequest> requests, Targets& targets,
                                                         Deadline deadline) {
  std::vector<TransferJobPtr> jobs;
  jobs.reserve(requests.size());
  KnownRuntime runtime;
  for (const TransferRequest& request : requests) {
    MC_TRY(Validate(request));
    TransferJobPtr& job = jobs.emplace_back();
    if (request.length == 0) {
      MC_TRY(WithFreshTarget(request.target, targets, deadline, [&](const SegmentPtr& segment) -> Result<void> {
        if (segment->Find(request.target_address, 0) != nullptr) return {};
        return NotRegistered(*segment, request.target_address, 0);
      }));
      continue;
    }
    job = std::make_unique<TransferJob>();
    job->opcode = request.opcode;
    job->target = request.target;
    job->target_address = request.target_address;
    MC_TRY(FillLocal(*job, request.local, request.length, runtime));
    MC_TRY(WithFreshTarget(request.target, targets, deadline,
                           [&](const SegmentPtr& segment) { return Route(*job, segment); }));
  }
  return jobs;
}

Result<void> MultiTransport::Submit(const std::shared_ptr<Batch>& batch, BatchId tag,
                                    std::span<const TransferRequest> requests, SubmitOptions options) {
  if (requests.empty()) return {};
  uint64_t bytes = 0;
  for (const TransferRequest& request : requests) bytes += std::min<uint64_t>(request.length, uint64_t{1} << 40);
  const auto of = std::make_shared<Submission>();
  of->batch = batch;
  of->tag = tag;
  of->cancels = batch->cancels();
  of->deadline = options.deadline.value_or(Deadline::After(parts_.default_timeout + Duration(bytes)));
  Targets targets(parts_.segments);
  std::vector<TransferJobPtr> jobs = MC_TRY(Plan(requests, targets, of->deadline));

  const size_t first = MC_TRY(batch->Add(requests, options.notify.has_value()));
  if (options.notify) {
    of->notify = std::move(options.notify);
    of->notify_item = first + requests.size();
    of->unfinished = requests.size();
    for (const auto& [id, known] : targets.all()) of->targets.push_back({.id = id, .segment = known.segment});
  }
  Operations operations(parts_.transports.size());
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i] == nullptr) continue;
    jobs[i]->of = of;
    jobs[i]->item = first + i;
    const size_t transport = jobs[i]->transport;
    operations[transport].push_back(MakeOperation(std::move(jobs[i])));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].length != 0) continue;
    batch->End(first + i, {});
    CountEnd(of, nullptr, true);
  }
  Hand(std::move(operations), options.caller);
  if (of->Canceled()) CancelIn(tag);  // it may have come between the plan and the hand-over
  return {};
}

Result<void> MultiTransport::SubmitGranted(const std::shared_ptr<Batch>& batch, TransferOpcode opcode,
                                           const MemoryRange& local, SegmentId target, const GrantedRange& remote,
                                           uint64_t offset, Deadline deadline) {
  const size_t length = SizeOf(local);
  if (offset > remote.length || length > remote.length - offset || remote.length > UINT64_MAX - remote.address) {
    return Error(ErrorCode::INVALID_PARAMS, "[{}, +{}) of a grant of {} B at {:#x}", offset, length, remote.length,
                 remote.address);
  }
  auto job = std::make_unique<TransferJob>();
  job->of = std::make_shared<Submission>();
  job->of->batch = batch;
  job->of->deadline = deadline;
  job->opcode = opcode;
  job->target = target;
  job->target_address = remote.address + offset;
  job->grant = remote;
  job->local = local;
  const auto* npu = std::get_if<NpuRange>(&local);
  const uint64_t address = npu != nullptr ? static_cast<uint64_t>(npu->at.device_ptr)
                                          : reinterpret_cast<uintptr_t>(std::get<HostRange>(local).data());
  if (auto use = parts_.regions.Find(address, length)) job->local_use = std::move(*use);
  Targets targets(parts_.segments);
  MC_TRY(targets.Get(target));
  const TransferRequest request{.length = length};
  if (length == 0) {
    batch->End(MC_TRY(batch->Add({&request, 1})), {});
    return {};
  }
  MC_TRY(WithFreshTarget(target, targets, deadline, [&](const SegmentPtr& segment) { return Route(*job, segment); }));
  job->item = MC_TRY(batch->Add({&request, 1}));
  Operations operations(parts_.transports.size());
  const size_t transport = job->transport;
  operations[transport].push_back(MakeOperation(std::move(job)));
  Hand(std::move(operations), Caller::kWaits);
  return {};
}

TransferOperation MultiTransport::MakeOperation(TransferJobPtr job) {
  TransferOperation operation;
  operation.opcode = job->opcode;
  operation.local = job->local;
  if (job->local_use) operation.local_use = job->local_use.Again();
  operation.target = job->segment;
  operation.region = *job->region;
  operation.target_address = job->target_address;
  operation.tag = job->of->tag;
  operation.deadline = job->of->deadline;
  operation.done = [this, job = std::move(job)](Result<void> result) mutable {
    MC_CHECK(job != nullptr, "a transport ended a request twice");
    Ended(std::move(job), std::move(result));
  };
  return operation;
}

void MultiTransport::Hand(Operations operations, Caller caller) {
  size_t left = 0;
  for (const auto& group : operations) left += group.empty() ? 0 : 1;
  for (size_t i = 0; i < operations.size(); ++i) {
    if (operations[i].empty()) continue;
    for (const TransferOperation& operation : operations[i]) {
      meters_[i][static_cast<size_t>(operation.opcode)].requests->Add();
    }
    // Only the last may keep this thread: the others' wires should be busy meanwhile.
    parts_.transports[i]->Submit(std::move(operations[i]), --left == 0 ? caller : Caller::kGoesOn);
  }
}

void MultiTransport::Cancel(const std::shared_ptr<Batch>& batch, BatchId tag) {
  batch->CountCancel();
  CancelIn(tag);
  reroutes_.Wake();
}

void MultiTransport::CancelIn(BatchId tag) {
  for (const auto& transport : parts_.transports) transport->Cancel(tag);
}

void MultiTransport::Ended(TransferJobPtr job, Result<void> result) {
  if (!result && !job->second_attempt && !job->of->Canceled()) {
    const auto patience = Patience(result.error(), job->segment->generation == parts_.generation);
    if (patience && reroutes_.Add(job, result.error(), *patience)) return;
  }
  Finish(*job, result);
}

void MultiTransport::Finish(TransferJob& job, const Result<void>& result) {
  const Meter& meter = meters_[job.transport][static_cast<size_t>(job.opcode)];
  if (result) {
    meter.bytes->Add(SizeOf(job.local));
  } else {
    meter.failures->Add();
  }
  job.local_use.Release();  // before anybody can see the end
  const std::shared_ptr<Submission> of = job.of;
  of->batch->End(job.item, result);
  CountEnd(of, &job, result.has_value());
}

void MultiTransport::CountEnd(const std::shared_ptr<Submission>& of, const TransferJob* job, bool success) {
  if (!of->notify) return;
  {
    std::lock_guard lock(of->mutex);
    if (!success) of->data_failed = true;
    for (Submission::Target& target : of->targets) {
      if (!success || job == nullptr || target.id != job->target) continue;
      const Uuid& served_by = job->segment->generation;
      if (!target.served_by.IsNil() && target.served_by != served_by) {
        of->failure =
            Error(ErrorCode::STALE_SEGMENT, "'{}' was restarted while its data was on the way", job->segment->name);
      }
      target.served_by = served_by;
      target.segment = job->segment;
    }
    if (--of->unfinished > 0) return;
  }
  // A request that failed speaks for itself; nobody is told of data that is not there.
  if (of->data_failed) return of->batch->End(of->notify_item, {});
  if (!of->failure) return of->batch->End(of->notify_item, of->failure);
  notifier_.Send(of);
}

Result<void> MultiTransport::PrepareSecond(TransferJob& job, const SegmentPtr& segment) const {
  job.second_attempt = true;
  job.region = nullptr;
  return Route(job, segment);
}

void MultiTransport::Rerouted(std::vector<RerouteQueue::Outcome> outcomes) {
  Operations operations(parts_.transports.size());
  std::vector<std::shared_ptr<Submission>> submissions;
  for (auto& [job, segment] : outcomes) {
    const Result<void> ready = segment ? PrepareSecond(*job, *segment) : Result<void>(std::unexpected(segment.error()));
    if (!ready) {
      Finish(*job, ready);
      continue;
    }
    rerouted_.Add();
    if (submissions.empty() || submissions.back() != job->of) submissions.push_back(job->of);
    const size_t transport = job->transport;
    operations[transport].push_back(MakeOperation(std::move(job)));
  }
  Hand(std::move(operations), Caller::kGoesOn);
  for (const auto& of : submissions) {
    if (of->Canceled()) CancelIn(of->tag);
  }
}

}  // namespace mooncake
