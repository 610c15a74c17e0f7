// What is exported, what is imported, and the copier between.
#include "transfer_engine/transport/ascend/ascend_direct_transport.h"

#include <algorithm>
#include <string_view>

#include "common/env.h"
#include "common/log.h"
#include "transfer_engine/transport/shm/host_id.h"

namespace mooncake {
namespace {

// Another process's memory while it is imported.
class Imported {
 public:
  Imported(std::shared_ptr<NpuRuntime> runtime, NpuIpc& ipc, std::string key)
      : runtime_(std::move(runtime)), ipc_(ipc), key_(std::move(key)) {}
  ~Imported() {
    if (const auto closed = ipc_.CloseImport(key_); !closed) log::Warn("{}", closed.error().ToString());
  }
  Imported(const Imported&) = delete;
  Imported& operator=(const Imported&) = delete;

 private:
  const std::shared_ptr<NpuRuntime> runtime_;
  NpuIpc& ipc_;
  const std::string key_;
};

bool IsNpu(const SegmentRegion& region) {
  return region.npu_id != 0 || region.location.starts_with("npu:");
}

}  // namespace

Result<std::unique_ptr<AscendDirectTransport>> AscendDirectTransport::Open(const TransportContext& context) {
  Limits limits;
  limits.copies.max_runners = std::max<size_t>(1, context.options.worker_threads);
  return Open(context, UsedNpuRuntime, limits);
}

Result<std::unique_ptr<AscendDirectTransport>> AscendDirectTransport::Open(const TransportContext& context,
                                                                           NpuRuntimeSource npu_runtime,
                                                                           Limits limits) {
  const bool any_user = env::Get(env::kShmAnyUser).value_or("0") == "1";
  auto loop = MC_TRY(shm::EventLoop::Open());
  std::unique_ptr<AscendDirectTransport> transport(
      new AscendDirectTransport(context, std::move(npu_runtime), limits, std::move(loop), any_user));
  transport->server_ = MC_TRY(shm::RegionServer::Open(
      *transport->loop_, transport->unacknowledged_,
      {.generation = context.generation, .any_user = any_user, .revoke_timeout = limits.revoke_timeout}));
  transport->loop_->Start([raw = transport.get()] { return raw->peers_.Tick(); });
  return transport;
}

AscendDirectTransport::AscendDirectTransport(const TransportContext& context, NpuRuntimeSource npu_runtime,
                                             Limits limits, std::unique_ptr<shm::EventLoop> loop, bool any_user)
    : regions_(context.regions),
      generation_(context.generation),
      host_id_(HostId()),
      npu_runtime_(std::move(npu_runtime)),
      unacknowledged_(context.metrics.GetCounter(
          "mooncake_transfer_ascend_unacknowledged_total",
          "Peers of this host that were disconnected because they did not let go of withdrawn NPU memory in time")),
      copier_("ascend", context.workers, limits.copies),
      loop_(std::move(loop)),
      peers_(*loop_, context.workers,
             {.generation = context.generation,
              .any_user = any_user,
              .id = &SegmentRegion::npu_id,
              .socket = &SegmentDescriptor::npu_socket},
             {.ready = [this](std::vector<PieceCopy> copies) { copier_.Run(std::move(copies), Caller::kGoesOn); },
              .unusable = [this] { copier_.EndUnusable(); },
              .importer = [this](const auto& owner, const auto& wanted,
                                 const auto& mapped) { return Import(owner, wanted, mapped); }}) {}

AscendDirectTransport::~AscendDirectTransport() {
  copier_.Stop();
  // Importers close before their exporter: they are asked to as long as the loop hears their answers.
  for (;;) {
    uint64_t id = 0;
    {
      std::lock_guard lock(mutex_);
      if (exports_.empty()) break;
      id = exports_.begin()->first;
    }
    EndExport(id);
  }
  loop_->Stop();
  peers_.Stop();
}

std::shared_ptr<NpuRuntime> AscendDirectTransport::Runtime() {
  {
    std::lock_guard lock(mutex_);
    if (runtime_ != nullptr) return runtime_;
  }
  std::shared_ptr<NpuRuntime> runtime = npu_runtime_();
  std::lock_guard lock(mutex_);
  if (runtime_ == nullptr) runtime_ = std::move(runtime);
  return runtime_;
}

// --- what it carries ---

Result<void> AscendDirectTransport::Carries(const MemoryRange& local, const SegmentDescriptor& target,
                                            const SegmentRegion& region) const {
  const auto no = [](std::string_view why) { return Error(ErrorCode::NOT_SUPPORTED_TRANSPORT, "{}", why); };
  const bool own = target.generation == generation_;
  if (IsHost(local) && !IsNpu(region)) return no("neither end is NPU memory");
  if (own) return {};
  if (host_id_.empty() || target.host_id != host_id_) {
    return no("the target is on another node, and the cross-node engine (HIXL) is not built");
  }
  if (IsHost(local) || !IsNpu(region)) {
    return no("between processes it copies from NPU to NPU, and one end is host memory");
  }
  if (region.npu_id == 0 || !target.npu_socket.starts_with(shm::kSocketPrefix)) {
    return no(
        "the target does not share this NPU memory with other processes; without aclrtIpcMemGetExportKey "
        "(CANN before 8.5) it cannot");
  }
  if (const auto ipc = std::get<NpuRange>(local).runtime->Ipc(); !ipc) return no(ipc.error().message());
  return {};
}

bool AscendDirectTransport::Reaches(const MemoryRange& local, const SegmentDescriptor& target,
                                    const SegmentRegion& region) const {
  return Carries(local, target, region).has_value();
}

std::string AscendDirectTransport::WhyNot(const MemoryRange& local, const SegmentDescriptor& target,
                                          const SegmentRegion& region) const {
  const auto carries = Carries(local, target, region);
  return carries ? std::string() : std::string(carries.error().message());
}

// --- own memory ---

Result<void> AscendDirectTransport::RegisterRegion(Region& region) {
  if (!region.IsNpu() || region.options.access == RegionAccess::kLocal) return {};
  const std::shared_ptr<NpuRuntime> runtime = Runtime();
  if (runtime == nullptr) return {};
  const auto ipc = runtime->Ipc();
  if (!ipc) {
    log::Debug("NPU memory {:#x} is not shared with processes of this host: {}", region.address, ipc.error().message());
    return {};
  }
  const auto address = static_cast<DeviceAddress>(region.address);
  const auto exported = (*ipc)->Export({region.options.device_id, address}, region.length);
  if (!exported) {
    log::Warn("NPU memory [{:#x}, +{}) is not shared with processes of this host: {}", region.address, region.length,
              exported.error().ToString());
    return {};
  }
  region.published.npu_key = exported->key;
  region.published.npu_id = server_->Offer(region.address, region.length, exported->offset,
                                           [runtime, raw = *ipc, key = exported->key](uint64_t asker) -> Result<void> {
                                             if (asker == 0 || asker > INT32_MAX)
                                               return Error(ErrorCode::INVALID_PARAMS, "process number {}", asker);
                                             return raw->Allow(key, static_cast<int32_t>(asker));
                                           });
  std::lock_guard lock(mutex_);
  exports_.emplace(region.published.npu_id, exported->key);
  return {};
}

bool AscendDirectTransport::EndExport(uint64_t id) {
  std::string key;
  std::shared_ptr<NpuRuntime> runtime;
  {
    std::lock_guard lock(mutex_);
    const auto found = exports_.find(id);
    if (found == exports_.end()) return false;
    key = std::move(found->second);
    exports_.erase(found);
    runtime = runtime_;
  }
  server_->Remove(id);
  const auto ipc = runtime->Ipc();
  const Result<void> closed = ipc ? (*ipc)->CloseExport(key) : std::unexpected(ipc.error());
  if (!closed) log::Warn("a process still holds NPU memory that is withdrawn: {}", closed.error().ToString());
  return true;
}

void AscendDirectTransport::WithdrawRegion(const Region& region) {
  copier_.EndUnusable();
  if (region.published.npu_id != 0) EndExport(region.published.npu_id);
}

void AscendDirectTransport::Describe(SegmentDescriptor& self) const {
  self.host_id = host_id_;
  self.npu_socket = server_->socket_name();
}

void AscendDirectTransport::Fence(const Uuid& node) {
  server_->Fence(node);
}

// --- operations ---

Result<void> AscendDirectTransport::PrepareAsking() {
  {
    std::lock_guard lock(mutex_);
    if (asks_) return {};
  }
  const std::shared_ptr<NpuRuntime> runtime = Runtime();
  if (runtime == nullptr) return Error(ErrorCode::TRANSFER_FAIL, "this process has no NPU runtime");
  NpuIpc* const ipc = MC_TRY(runtime->Ipc());
  const int32_t pid = MC_TRY(ipc->OwnPid());
  peers_.SetAsker(static_cast<uint64_t>(pid));
  std::lock_guard lock(mutex_);
  asks_ = true;
  return {};
}

Result<std::shared_ptr<shm::MappedRegion>> AscendDirectTransport::Import(const std::shared_ptr<shm::Socket>& owner,
                                                                         const shm::PeerRegions::Wanted& wanted,
                                                                         const shm::Message& mapped) {
  const std::shared_ptr<NpuRuntime> runtime = Runtime();
  NpuIpc* const ipc = MC_TRY(runtime->Ipc());
  const auto at = MC_TRY(ipc->Import(wanted.region.npu_key, std::get<NpuRange>(wanted.local).at.device_id));
  auto backing = std::make_shared<Imported>(runtime, *ipc, wanted.region.npu_key);
  const NpuRange memory{at + mapped.offset, mapped.length, runtime.get(), true};
  return std::make_shared<shm::MappedRegion>(owner, std::move(backing), memory, mapped.address);
}

void AscendDirectTransport::Submit(std::vector<TransferOperation> operations, Caller caller) {
  std::vector<PieceCopy> copies;
  copies.reserve(operations.size());
  for (TransferOperation& operation : operations) {
    if (operation.target->generation == generation_) {
      auto copy = ResolveOwn(regions_, generation_, npu_runtime_, operation);
      if (!copy) {
        EndOperation(operation, std::unexpected(std::move(copy.error())));
        continue;
      }
      copy->operation = std::move(operation);
      copies.push_back(std::move(*copy));
      continue;
    }
    Result<void> usable = Carries(operation.local, *operation.target, operation.region);
    if (usable) usable = PrepareAsking();
    if (!usable) {
      EndOperation(operation, std::move(usable));
    } else if (const auto region = peers_.FindOrAwait(operation)) {
      shm::PeerRegions::Resolve(std::move(operation), region, copies);
    }
  }
  copier_.Run(std::move(copies), caller);
}

void AscendDirectTransport::Cancel(BatchId tag) {
  peers_.Cancel(tag);
  copier_.Cancel(tag);
}

}  // namespace mooncake
