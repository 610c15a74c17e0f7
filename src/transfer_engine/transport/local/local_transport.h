// Transfers whose two ends are this process: a copy.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>

#include "device/npu_runtime.h"
#include "transfer_engine/transport.h"
#include "transfer_engine/transport/local/piecewise_copy.h"
#include "transfer_engine/transport_context.h"

namespace mooncake {

// `npu_runtime` gives the runtime of this process's registered NPU memory, or null.
using NpuRuntimeSource = std::function<std::shared_ptr<NpuRuntime>()>;

// The operation's target range in this process, found and held; the copy's operation is empty still. STALE_SEGMENT when
// the target is another process than `generation`.
Result<PieceCopy> ResolveOwn(RegionRegistry& regions, const Uuid& generation, const NpuRuntimeSource& npu_runtime,
                             const TransferOperation& operation);

class LocalTransport final : public Transport {
 public:
  static Result<std::unique_ptr<LocalTransport>> Open(const TransportContext& context);
  static Result<std::unique_ptr<LocalTransport>> Open(const TransportContext& context, NpuRuntimeSource npu_runtime,
                                                      PiecewiseCopier::Limits limits);

  const char* name() const override { return "local"; }
  bool Reaches(const MemoryRange& local, const SegmentDescriptor& target, const SegmentRegion& region) const override;
  void WithdrawRegion(const Region& region) override;
  void Submit(std::vector<TransferOperation> operations, Caller caller) override;
  void Cancel(BatchId tag) override;

 private:
  LocalTransport(const TransportContext& context, NpuRuntimeSource npu_runtime, PiecewiseCopier::Limits limits);

  RegionRegistry& regions_;
  const Uuid generation_;
  const NpuRuntimeSource npu_runtime_;
  PiecewiseCopier copier_;
};

}  // namespace mooncake
