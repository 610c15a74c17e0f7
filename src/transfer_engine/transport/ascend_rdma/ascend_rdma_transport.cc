// Lanes by device, wires by target.
#include "transfer_engine/transport/ascend_rdma/ascend_rdma_transport.h"

#include <unistd.h>

#include "common/log.h"
#include "device/npu_driver.h"
#include "transfer_engine/transport/ascend_rdma/calibration.h"
#include "transfer_engine/transport/ascend_rdma/npu_copy_port.h"

namespace mooncake {
namespace {

constexpr size_t kRingBytesMax = size_t{3} << 30;

Result<void> CheckOptions(const AscendRdmaOptions& options) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (options.slot_bytes == 0 || options.slot_bytes % page != 0 || options.ring_bytes < options.slot_bytes ||
      options.ring_bytes > kRingBytesMax || options.copies_per_direction == 0) {
    return Error(
        ErrorCode::INVALID_PARAMS,
        "a ring of {} B in slots of {} B with {} copies at once: slots are whole pages of {} B, a ring holds at "
        "least one slot and at most {} B",
        options.ring_bytes, options.slot_bytes, options.copies_per_direction, page, kRingBytesMax);
  }
  const bridge::LaneOptions& lane = options.lane;
  if (lane.wire_depth == 0 || lane.bulk_wire_depth == 0 || lane.attempts <= 0 || lane.scheduler.pieces_per_slot == 0 ||
      lane.scheduler.operations_max == 0 || lane.scheduler.operations_per_peer_max == 0) {
    return Error(ErrorCode::INVALID_PARAMS,
                 "a wire depth of {} ({} for bulk), {} attempts, {} pieces in a slot, {} operations, {} of a peer: all "
                 "are at least 1",
                 lane.wire_depth, lane.bulk_wire_depth, lane.attempts, lane.scheduler.pieces_per_slot,
                 lane.scheduler.operations_max, lane.scheduler.operations_per_peer_max);
  }
  return {};
}

void End(TransferOperation& operation, Result<void> result) {
  auto done = std::move(operation.done);
  operation.local_use.Release();
  done(std::move(result));
}

}  // namespace

Result<std::unique_ptr<AscendRdmaTransport>> AscendRdmaTransport::Open(std::shared_ptr<NpuRuntime> runtime,
                                                                       std::vector<Transport*> wires,
                                                                       AscendRdmaOptions options,
                                                                       const std::vector<int32_t>& devices) {
  MC_TRY(CheckOptions(options));
  if (runtime == nullptr || runtime->AsyncDriver() == nullptr) {
    return Error(ErrorCode::NOT_SUPPORTED_TRANSPORT, "ascend_rdma needs an NPU runtime with asynchronous copies");
  }
  if (wires.empty()) {
    return Error(ErrorCode::NOT_SUPPORTED_TRANSPORT, "ascend_rdma needs a host transport to carry its bytes");
  }
  std::unique_ptr<AscendRdmaTransport> transport(
      new AscendRdmaTransport(std::move(runtime), std::move(wires), options));
  for (const int32_t device_id : devices) MC_TRY(transport->OpenLane(device_id));
  return transport;
}

AscendRdmaTransport::~AscendRdmaTransport() = default;

Result<void> AscendRdmaTransport::OpenLane(int32_t device_id) {
  std::lock_guard one(opening_);
  const bridge::Lane* const known = LaneOf(device_id);
  if (!Online(device_id, known)) {
    return Error(ErrorCode::DEVICE_NOT_FOUND, "NPU device {} is lost and out of use", device_id);
  }
  if (known != nullptr) return {};
  MC_TRY(runtime_->OpenDevice(device_id));
  const size_t slots = (options_.ring_bytes + options_.slot_bytes - 1) / options_.slot_bytes;
  auto memory = MC_TRY(bridge::BounceMemory::Create(*runtime_, device_id, slots * options_.slot_bytes, wires_));
  auto port = MC_TRY(bridge::NpuCopyPort::Open(*runtime_->AsyncDriver(), device_id, options_.copies_per_direction,
                                               memory->page_locked()));
  bridge::LaneOptions lane = options_.lane;
  lane.scheduler.slot_bytes = options_.slot_bytes;
  lane.scheduler.chunk_bytes = options_.slot_bytes;
  if (options_.calibrate) {
    const auto rates = MC_TRY(bridge::MeasureCopies(*runtime_, *port, device_id,
                                                    memory->bytes().first(options_.slot_bytes), lane.copy_patience));
    lane.scheduler.chunk_bytes = bridge::BestChunk(rates, lane.scheduler.chunk_bytes_min, options_.slot_bytes);
    log::Info("NPU device {}: {} slots of {} B, chunks of {} B; a copy takes {:.1f} us and {:.1f} GB/s", device_id,
              slots, options_.slot_bytes, lane.scheduler.chunk_bytes,
              std::chrono::duration<double, std::micro>(rates.overhead).count(), rates.bytes_per_second / 1e9);
  }
  auto opened = std::make_unique<bridge::Lane>(device_id, lane, std::move(memory), std::move(port));
  std::lock_guard lock(mutex_);
  lanes_.emplace(device_id, std::move(opened));
  return {};
}

bridge::Lane* AscendRdmaTransport::LaneOf(int32_t device_id) const {
  std::shared_lock lock(mutex_);
  const auto lane = lanes_.find(device_id);
  return lane == lanes_.end() ? nullptr : lane->second.get();  // stays until the transport ends
}

// Without a lane: as far as the runtime knows.
bool AscendRdmaTransport::Online(int32_t device_id, const bridge::Lane* lane) const {
  return (lane == nullptr || lane->online()) && (device_id < 0 || !runtime_->DeviceLost(device_id));
}

Transport* AscendRdmaTransport::WireFor(const bridge::Lane& lane, const SegmentDescriptor& target,
                                        const SegmentRegion& region) const {
  for (Transport* const wire : wires_) {
    if (wire->Reaches(lane.sample(), target, region)) return wire;
  }
  return nullptr;
}

bool AscendRdmaTransport::Reaches(const MemoryRange& local, const SegmentDescriptor& target,
                                  const SegmentRegion& region) const {
  const auto* const npu = std::get_if<NpuRange>(&local);
  if (npu == nullptr) return false;
  const bridge::Lane* const lane = LaneOf(npu->at.device_id);
  return lane != nullptr && Online(npu->at.device_id, lane) && WireFor(*lane, target, region) != nullptr;
}

Result<void> AscendRdmaTransport::RegisterRegion(Region& region) {
  if (!region.IsNpu()) return {};
  return OpenLane(region.options.device_id);
}

void AscendRdmaTransport::Submit(std::vector<TransferOperation> operations, Caller) {
  std::unordered_map<bridge::Lane*, std::vector<bridge::BridgedOperation>> by_lane;
  for (TransferOperation& operation : operations) {
    const auto* const npu = std::get_if<NpuRange>(&operation.local);
    if (npu == nullptr) {
      End(operation, Error(ErrorCode::TRANSFER_FAIL, "ascend_rdma does not move host memory"));
      continue;
    }
    bridge::Lane* const lane = LaneOf(npu->at.device_id);
    if (lane == nullptr) {
      End(operation, Error(ErrorCode::DEVICE_NOT_FOUND, "no memory of NPU device {} is registered", npu->at.device_id));
      continue;
    }
    Transport* const wire = WireFor(*lane, *operation.target, operation.region);
    if (wire == nullptr) {
      End(operation, Error(ErrorCode::TRANSFER_FAIL, "{}: no host transport reaches it", operation.target->name));
      continue;
    }
    by_lane[lane].push_back({std::move(operation), wire});
  }
  for (auto& [lane, bridged] : by_lane) lane->Submit(std::move(bridged));
}

void AscendRdmaTransport::Cancel(BatchId tag) {
  std::shared_lock lock(mutex_);
  for (const auto& [id, lane] : lanes_) lane->Cancel(tag);
}

const bridge::LaneCounters* AscendRdmaTransport::counters(int32_t device_id) const {
  const bridge::Lane* const lane = LaneOf(device_id);
  return lane == nullptr ? nullptr : &lane->counters();
}

}  // namespace mooncake
