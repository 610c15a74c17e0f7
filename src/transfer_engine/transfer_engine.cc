// The engine's face: each call goes to the part that answers it.
#include "transfer_engine/transfer_engine.h"

#include "transfer_engine/engine_core.h"

namespace mooncake {

TransferEngine::TransferEngine(std::unique_ptr<internal::EngineCore> core) : core_(std::move(core)) {}
TransferEngine::~TransferEngine() = default;

Result<std::unique_ptr<TransferEngine>> TransferEngine::Open(TransferEngineOptions options) {
  auto core = MC_TRY(internal::EngineCore::Open(std::move(options)));  // outside of new, which it would leave
  return std::unique_ptr<TransferEngine>(new TransferEngine(std::move(core)));
}

Result<std::unique_ptr<TransferEngine>> TransferEngine::OpenOn(TransferEngineOptions options, Host host) {
  auto core = MC_TRY(internal::EngineCore::Open(std::move(options), std::move(host)));
  return std::unique_ptr<TransferEngine>(new TransferEngine(std::move(core)));
}

const std::string& TransferEngine::local_name() const {
  return core_->name();
}
uint16_t TransferEngine::control_port() const {
  return core_->control_port();
}
const Uuid& TransferEngine::generation() const {
  return core_->generation();
}
std::string TransferEngine::TopologyJson() const {
  return core_->topology().ToJson();
}
std::vector<std::string> TransferEngine::TransportNames() const {
  return core_->TransportNames();
}
SegmentDescriptor TransferEngine::Describe() const {
  return *core_->Describe();
}
std::string TransferEngine::MetricsText() const {
  return core_->MetricsText();
}

Result<void> TransferEngine::RegisterMemory(void* address, size_t length, RegionOptions options) {
  const HostRange range(static_cast<std::byte*>(address), length);
  return core_->keeper().Register({&range, 1}, options);
}
Result<void> TransferEngine::UnregisterMemory(void* address) {
  return core_->keeper().Unregister({&address, 1});
}
Result<void> TransferEngine::RegisterMemoryBatch(std::span<const HostRange> ranges, RegionOptions options) {
  return core_->keeper().Register(ranges, options);
}
Result<void> TransferEngine::UnregisterMemoryBatch(std::span<void* const> addresses) {
  return core_->keeper().Unregister(addresses);
}
Result<void*> TransferEngine::AllocateMemory(size_t length, std::string location) {
  return core_->keeper().Allocate(length, std::move(location));
}
Result<void> TransferEngine::FreeMemory(void* address) {
  return core_->keeper().Free(address);
}
RegionRegistry& TransferEngine::regions() {
  return core_->regions();
}

Result<SegmentId> TransferEngine::OpenSegment(const std::string& name, std::optional<Deadline> deadline) {
  return core_->segments().Open(name, deadline.value_or(Deadline::After(2 * kSegmentLookupTimeout)));
}
Result<void> TransferEngine::CloseSegment(SegmentId id) {
  return core_->segments().Close(id);
}
Result<SegmentPtr> TransferEngine::GetSegment(SegmentId id, bool refresh) {
  if (!refresh) return core_->segments().Get(id);
  return core_->segments().Refresh(id, Deadline::After(2 * kSegmentLookupTimeout));
}
Result<void> TransferEngine::Probe(const std::string& name, Deadline deadline) {
  return core_->Probe(name, deadline);
}
Result<void> TransferEngine::SendNotify(SegmentId id, const TransferNotify& notify, Deadline deadline) {
  return core_->SendNotify(id, notify, deadline);
}
std::vector<TransferNotify> TransferEngine::GetNotifies() {
  return core_->GetNotifies();
}

Result<BatchId> TransferEngine::AllocateBatch(size_t max_tasks) {
  return core_->batches().Allocate(max_tasks);
}
Result<void> TransferEngine::Submit(BatchId batch, std::span<const TransferRequest> requests, SubmitOptions options) {
  return core_->Submit(batch, requests, std::move(options));
}
Result<TransferStatus> TransferEngine::TaskStatus(BatchId batch, size_t task) const {
  return MC_TRY(core_->batches().Find(batch))->Task(task);
}
Result<TransferStatus> TransferEngine::BatchStatus(BatchId batch) const {
  return MC_TRY(core_->batches().Find(batch))->Summary();
}
Result<TransferStatus> TransferEngine::Wait(BatchId batch, Deadline deadline) const {
  return MC_TRY(core_->batches().Find(batch))->Wait(deadline);
}
Result<void> TransferEngine::OnEnd(BatchId batch, std::move_only_function<void(const TransferStatus&)> done) {
  MC_TRY(core_->batches().Find(batch))->OnEnd(std::move(done));
  return {};
}
Result<void> TransferEngine::Cancel(BatchId batch) {
  return core_->Cancel(batch);
}
Result<void> TransferEngine::FreeBatch(BatchId batch) {
  return core_->batches().Free(batch);
}

Result<void> TransferEngine::Transfer(std::span<const TransferRequest> requests, Deadline deadline,
                                      std::optional<TransferNotify> notify) {
  return core_->Transfer(requests, deadline, std::move(notify));
}
Result<void> TransferEngine::TransferGranted(TransferOpcode opcode, const MemoryRange& local, SegmentId target,
                                             const GrantedRange& remote, uint64_t offset, Deadline deadline) {
  return core_->TransferGranted(opcode, local, target, remote, offset, deadline);
}

Result<std::string> TransferEngine::Explain(const TransferRequest& request, std::optional<Deadline> deadline) {
  return core_->Explain(request, deadline.value_or(Deadline::After(2 * kSegmentLookupTimeout)));
}
Result<bool> TransferEngine::PrepareDevice(int32_t device_id) {
  return core_->PrepareDevice(device_id);
}

void TransferEngine::Fence(const Uuid& node) {
  core_->Fence(node);
}

}  // namespace mooncake
