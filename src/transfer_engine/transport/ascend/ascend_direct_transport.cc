// What is exported, what is imported, and the copier between.
#include "transfer_engine/transport/ascend/ascend_direct_transport.h"

#include <unistd.h>

#include <algorithm>

#include "common/env.h"
#include "common/log.h"
#include "transfer_engine/transport/shm/host_id.h"

namespace mooncake {
namespace {

// Another process's memory while it is imported. Its transport keeps the runtime.
class Imported {
 public:
  Imported(NpuIpc& ipc, std::string key) : ipc_(ipc), key_(std::move(key)) {}
  ~Imported() {
    if (const auto closed = ipc_.CloseImport(key_); !closed) log::Warn("{}", closed.error().ToString());
  }
  Imported(const Imported&) = delete;
  Imported& operator=(const Imported&) = delete;

 private:
  NpuIpc& ipc_;
  const std::string key_;
};

}  // namespace

Result<std::unique_ptr<AscendDirectTransport>> AscendDirectTransport::Open(const TransportContext& context) {
  std::shared_ptr<NpuRuntime> runtime = UsedNpuRuntime();
  if (runtime == nullptr) runtime = MC_TRY(OpenNpuRuntime());
  Limits limits;
  limits.copies.max_runners = std::max<size_t>(1, context.options.worker_threads);
  return Open(context, std::move(runtime), limits);
}

Result<std::unique_ptr<AscendDirectTransport>> AscendDirectTransport::Open(const TransportContext& context,
                                                                           std::shared_ptr<NpuRuntime> runtime,
                                                                           Limits limits) {
  const bool any_user = MC_TRY(env::GetFlag(env::kShmAnyUser));
  auto loop = MC_TRY(shm::EventLoop::Open());
  std::unique_ptr<AscendDirectTransport> transport(
      new AscendDirectTransport(context, std::move(runtime), limits, std::move(loop), any_user));
  transport->server_ = MC_TRY(shm::RegionServer::Open(
      *transport->loop_, transport->unacknowledged_,
      {.generation = context.generation, .any_user = any_user, .revoke_timeout = limits.revoke_timeout}));
  transport->loop_->Start([raw = transport.get()] { return raw->peers_.Tick(); });
  return transport;
}

Result<AscendDirectTransport::Ipc> AscendDirectTransport::FindIpc(NpuRuntime& runtime) {
  NpuIpc* const calls = MC_TRY(runtime.Ipc());
  return Ipc{calls, MC_TRY(calls->OwnPid())};
}

AscendDirectTransport::AscendDirectTransport(const TransportContext& context, std::shared_ptr<NpuRuntime> runtime,
                                             Limits limits, std::unique_ptr<shm::EventLoop> loop, bool any_user)
    : generation_(context.generation),
      host_id_(HostId()),
      runtime_(std::move(runtime)),
      ipc_(FindIpc(*runtime_)),
      unacknowledged_(context.metrics.GetCounter(
          "mooncake_transfer_ascend_unacknowledged_total",
          "Peers of this host that were disconnected because they did not let go of withdrawn NPU memory in time")),
      copier_("ascend", context.workers, limits.copies),
      loop_(std::move(loop)),
      peers_(*loop_, context.workers,
             {.generation = context.generation,
              .any_user = any_user,
              .id = &SegmentRegion::npu_id,
              .socket = &SegmentDescriptor::npu_socket,
              .asker = ipc_ ? ipc_->own_pid : 0},
             {.ready = [this](std::vector<PieceCopy> copies) { copier_.Run(std::move(copies), Caller::kGoesOn); },
              .unusable = [this] { copier_.EndUnusable(); },
              .importer = [this](const auto& owner, const auto& mapped,
                                 const auto& local) { return Import(owner, mapped, local); }}) {}

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

std::string_view AscendDirectTransport::Obstacle(const MemoryRange& local, const SegmentDescriptor& target,
                                                 const SegmentRegion& region) const {
  if (target.generation == generation_) return "the target is this engine";
  if (IsHost(local)) return "it copies from NPU to NPU, and the local memory is the host's";
  if (host_id_.empty() || target.host_id != host_id_) {
    return "the target is on another node, and the cross-node engine (HIXL) is not built";
  }
  if (!ipc_) return ipc_.error().message();
  if (region.npu_id == 0 || !target.npu_socket.starts_with(shm::kSocketPrefix)) {
    return "it copies from NPU to NPU, and the target's memory is the host's, or not shared with other processes (its "
           "log says why; CANN before 8.5 has no aclrtIpcMemGetExportKey)";
  }
  return "";
}

// --- own memory ---

Result<void> AscendDirectTransport::RegisterRegion(Region& region) {
  if (!region.IsNpu() || region.options.access == RegionAccess::kLocal) return {};
  if (!ipc_) {
    log::Debug("NPU memory {:#x} is not shared with processes of this host: {}", region.address,
               ipc_.error().message());
    return {};
  }
  NpuIpc& ipc = *ipc_->calls;
  const auto address = static_cast<DeviceAddress>(region.address);
  const auto exported = ipc.Export({region.options.device_id, address}, region.length);
  if (!exported) {
    log::Warn("NPU memory [{:#x}, +{}) is not shared with processes of this host: {}", region.address, region.length,
              exported.error().ToString());
    return {};
  }
  const auto grant = [&ipc, key = exported->key](int64_t asker) -> Result<void> {
    if (asker <= 0 || asker > INT32_MAX) return Error(ErrorCode::INVALID_PARAMS, "process number {}", asker);
    return ipc.Allow(key, static_cast<int32_t>(asker));
  };
  const uint64_t id = server_->Offer(region.address, region.length, exported->key, exported->offset, grant);
  region.published.npu_id = id;
  std::lock_guard lock(mutex_);
  exports_.emplace(id, exported->key);
  return {};
}

void AscendDirectTransport::EndExport(uint64_t id) {
  std::string key;
  {
    std::lock_guard lock(mutex_);
    auto found = exports_.extract(id);
    if (found.empty()) return;
    key = std::move(found.mapped());
  }
  if (!server_->Remove(id)) return ipc_->calls->AbandonExport(key);
  if (const auto closed = ipc_->calls->CloseExport(key); !closed) {
    log::Warn("NPU memory that is withdrawn stays exported: {}", closed.error().ToString());
  }
}

void AscendDirectTransport::WithdrawRegion(const Region& region) {
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

Result<std::shared_ptr<shm::MappedRegion>> AscendDirectTransport::Import(const std::shared_ptr<shm::Socket>& owner,
                                                                         const shm::Message& mapped,
                                                                         const MemoryRange& local) {
  if (owner->peer().pid == getpid()) {  // the runtime does not import there, and need not
    const auto device = runtime_->DeviceOf(reinterpret_cast<const void*>(mapped.address));
    if (!device) return Error(ErrorCode::TRANSFER_FAIL, "{:#x} is not on an NPU any more", mapped.address);
    const NpuRange memory{{*device, static_cast<DeviceAddress>(mapped.address)}, mapped.length, runtime_.get()};
    return std::make_shared<shm::MappedRegion>(owner, nullptr, memory, mapped.address);
  }
  const std::string key = mapped.key.data();
  const auto at = MC_TRY(ipc_->calls->Import(key, std::get<NpuRange>(local).at.device_id));
  const NpuRange memory{at + mapped.offset, mapped.length, runtime_.get(), true};
  return std::make_shared<shm::MappedRegion>(owner, std::make_shared<Imported>(*ipc_->calls, key), memory,
                                             mapped.address);
}

void AscendDirectTransport::Submit(std::vector<TransferOperation> operations, Caller caller) {
  std::vector<PieceCopy> copies;
  copies.reserve(operations.size());
  for (TransferOperation& operation : operations) {
    if (const auto region = peers_.FindOrAwait(operation)) {
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
