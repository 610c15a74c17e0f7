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

class LocalTransport final : public Transport {
 public:
  // `npu_runtime` gives the runtime of this process's registered NPU memory, or null.
  using NpuRuntimeSource = std::function<std::shared_ptr<NpuRuntime>()>;
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
  Result<PieceCopy> Resolve(TransferOperation& operation) const;

  RegionRegistry& regions_;
  const Uuid generation_;
  const NpuRuntimeSource npu_runtime_;
  PiecewiseCopier copier_;
};

}  // namespace mooncake
