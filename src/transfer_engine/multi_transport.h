// Takes requests apart, finds a way for each, and sees each to its one end.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/metrics.h"
#include "device/npu_runtime.h"
#include "transfer_engine/notifier.h"
#include "transfer_engine/reroute_queue.h"
#include "transfer_engine/segment_cache.h"
#include "transfer_engine/transfer_engine.h"
#include "transfer_engine/transfer_job.h"
#include "transfer_engine/transport.h"

namespace mooncake {

// Any thread, but for Stop and destruction. Everything in Parts outlives it but for the transports, which it owns.
class MultiTransport {
 public:
  struct Parts {
    std::vector<std::unique_ptr<Transport>> transports;  // the first that reaches a target carries the request
    RegionRegistry& regions;
    SegmentCache& segments;
    PeerLinks& links;
    MetricRegistry& metrics;
    Uuid generation;  // of this process
    Duration default_timeout;
    std::function<std::shared_ptr<NpuRuntime>()> npu;  // the runtime in use, or null
  };
  explicit MultiTransport(Parts parts);
  ~MultiTransport();
  MultiTransport(const MultiTransport&) = delete;
  MultiTransport& operator=(const MultiTransport&) = delete;

  // See TransferEngine::Submit.
  Result<void> Submit(const std::shared_ptr<Batch>& batch, BatchId tag, std::span<const TransferRequest> requests,
                      SubmitOptions options);
  // One request of a batch of one.
  Result<void> SubmitGranted(const std::shared_ptr<Batch>& batch, TransferOpcode opcode, const MemoryRange& local,
                             SegmentId target, const GrantedRange& remote, uint64_t offset, Deadline deadline);
  void Cancel(const std::shared_ptr<Batch>& batch, BatchId tag);
  // See TransferEngine::Explain.
  Result<std::string> Explain(const TransferRequest& request, Deadline deadline);

  // The NPU that memory of the application belongs to, -1: host memory.
  int32_t DeviceOf(const void* address);
  const std::vector<std::unique_ptr<Transport>>& transports() const { return parts_.transports; }

  // Ends everything: waiting second attempts, then the transports with all their operations. Requests submitted
  // meanwhile are the caller's mistake.
  void StopTransports();
  // Until no notification is under way. The connections have been closed.
  void WaitNotified() { notifier_.WaitIdle(); }

 private:
  struct Meter {
    Counter* requests;
    Counter* bytes;
    Counter* failures;
  };
  using Operations = std::vector<std::vector<TransferOperation>>;  // by transport
  // Targets of one Submit call: each looked up once, and refreshed once at most.
  class Targets;

  // Of one Submit call: asked for at the first address that needs it.
  using KnownRuntime = std::optional<std::shared_ptr<NpuRuntime>>;
  Result<void> FillLocal(TransferJob& job, void* address, size_t length, KnownRuntime& known);
  std::shared_ptr<NpuRuntime> UsedRuntime();
  // Sets the job's segment, region and transport.
  Result<void> Route(TransferJob& job, const SegmentPtr& segment) const;
  // The attempt with the target as known; when it fails, once more with the target as it is now.
  Result<void> WithFreshTarget(SegmentId id, Targets& targets, Deadline deadline,
                               const std::function<Result<void>(const SegmentPtr&)>& attempt) const;
  // Of the first `count` transports.
  std::string WhyNone(const TransferJob& job, size_t count) const;
  std::string WhyNot(const Transport& transport, const TransferJob& job) const;
  // Everything of a call that needs no batch yet: a job for each request that moves bytes, null for the others.
  Result<std::vector<TransferJobPtr>> Plan(std::span<const TransferRequest> requests, Targets& targets,
                                           Deadline deadline);
  TransferOperation MakeOperation(TransferJobPtr job);
  void Hand(Operations operations, Caller caller);
  void CancelIn(BatchId tag);

  void Ended(TransferJobPtr job, Result<void> result);
  void Finish(TransferJob& job, const Result<void>& result);
  void CountEnd(const std::shared_ptr<Submission>& of, const TransferJob* job, bool success);
  void Rerouted(std::vector<RerouteQueue::Outcome> outcomes);
  Result<void> PrepareSecond(TransferJob& job, const SegmentPtr& segment) const;

  Parts parts_;
  std::vector<std::array<Meter, 2>> meters_;  // by transport and opcode
  Counter& rerouted_;
  std::mutex npu_mutex_;
  std::shared_ptr<NpuRuntime> npu_;  // once seen, kept for the ranges that name it
  Notifier notifier_;
  RerouteQueue reroutes_;
};

}  // namespace mooncake
