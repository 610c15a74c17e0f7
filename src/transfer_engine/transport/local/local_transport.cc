// Finds and holds the target's range in this process's registry; the copier does the rest.
#include "transfer_engine/transport/local/local_transport.h"

namespace mooncake {
namespace {

// A registered range of this process as the far side of a copy.
class HeldRegion final : public RemoteMemory {
 public:
  HeldRegion(RegionRegistry::Use use, std::shared_ptr<NpuRuntime> runtime)
      : runtime_(std::move(runtime)), use_(std::move(use)) {}
  Result<void> Usable() const override {
    if (use_.wanted()) return {};
    return Error(ErrorCode::ADDRESS_NOT_REGISTERED, "memory [{:#x}, +{}) is being unregistered", use_.region().address,
                 use_.region().length);
  }

 private:
  const std::shared_ptr<NpuRuntime> runtime_;  // null for host memory, and when the local range has it
  const RegionRegistry::Use use_;
};

}  // namespace

Result<std::unique_ptr<LocalTransport>> LocalTransport::Open(const TransportContext& context) {
  return Open(context, UsedNpuRuntime, {.max_runners = std::max<size_t>(1, context.options.worker_threads)});
}

Result<std::unique_ptr<LocalTransport>> LocalTransport::Open(const TransportContext& context,
                                                             NpuRuntimeSource npu_runtime,
                                                             PiecewiseCopier::Limits limits) {
  return std::unique_ptr<LocalTransport>(new LocalTransport(context, std::move(npu_runtime), limits));
}

LocalTransport::LocalTransport(const TransportContext& context, NpuRuntimeSource npu_runtime,
                               PiecewiseCopier::Limits limits)
    : regions_(context.regions),
      generation_(context.generation),
      npu_runtime_(std::move(npu_runtime)),
      copier_("local", context.workers, limits) {}

bool LocalTransport::Reaches(const MemoryRange&, const SegmentDescriptor& target, const SegmentRegion&) const {
  return target.generation == generation_;
}

void LocalTransport::WithdrawRegion(const Region&) {
  copier_.EndUnusable();
}

Result<PieceCopy> LocalTransport::Resolve(TransferOperation& operation) const {
  if (operation.target->generation != generation_) {
    return Error(ErrorCode::STALE_SEGMENT, "segment '{}' is another process", operation.target->name);
  }
  const uint64_t address = operation.target_address;
  const size_t length = operation.length();
  // With a key as a peer would come; without one the memory is open to this process alone, or by grant.
  RegionRegistry::Use use = operation.region.key != 0
                                ? MC_TRY(regions_.FindByKey(operation.region.key, address, length,
                                                            operation.opcode == TransferOpcode::kWrite))
                                : MC_TRY(regions_.Find(address, length));
  if (!use.region().IsNpu()) {
    const HostRange remote(reinterpret_cast<std::byte*>(address), length);
    return PieceCopy{{}, remote, std::make_shared<HeldRegion>(std::move(use), nullptr)};
  }
  NpuRange remote{{use.region().options.device_id, static_cast<DeviceAddress>(address)}, length, nullptr};
  std::shared_ptr<NpuRuntime> runtime;
  if (const auto* local = std::get_if<NpuRange>(&operation.local)) {
    remote.runtime = local->runtime;
  } else {
    runtime = npu_runtime_();
    remote.runtime = runtime.get();
  }
  if (remote.runtime == nullptr) {
    return Error(ErrorCode::TRANSFER_FAIL, "memory {:#x} is on NPU {}, but this process has no NPU runtime", address,
                 use.region().options.device_id);
  }
  return PieceCopy{{}, remote, std::make_shared<HeldRegion>(std::move(use), std::move(runtime))};
}

void LocalTransport::Submit(std::vector<TransferOperation> operations, Caller caller) {
  std::vector<PieceCopy> copies;
  copies.reserve(operations.size());
  for (TransferOperation& operation : operations) {
    auto copy = Resolve(operation);
    if (!copy) {
      EndOperation(operation, std::unexpected(std::move(copy.error())));
      continue;
    }
    copy->operation = std::move(operation);
    copies.push_back(std::move(*copy));
  }
  copier_.Run(std::move(copies), caller);
}

void LocalTransport::Cancel(BatchId tag) {
  copier_.Cancel(tag);
}

}  // namespace mooncake
