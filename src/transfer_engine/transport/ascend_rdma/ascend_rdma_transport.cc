// Lanes by device, wires by target.
#include "transfer_engine/transport/ascend_rdma/ascend_rdma_transport.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "common/log.h"
#include "device/npu_driver.h"
#include "transfer_engine/transport/ascend_rdma/calibration.h"
#include "transfer_engine/transport/ascend_rdma/npu_copy_port.h"

namespace mooncake {
namespace {

// With fewer, one direction's large transfers get too few to keep copies and wire busy at the same time. Slots of less
// than the minimum cost more than that.
constexpr size_t kSlotsMin = 8;
constexpr size_t kSlotBytesMin = size_t{512} << 10;
// Past a failure, until a peer that has not returned its slots is fenced.
constexpr Duration kPeerGrace = std::chrono::seconds(3);

Result<void> CheckOptions(const AscendRdmaOptions& options) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (options.slot_bytes == 0 || options.slot_bytes % page != 0 || options.ring_bytes < options.slot_bytes ||
      options.ring_bytes > AscendRdmaOptions::kRingBytesMax || options.copies_per_direction == 0 ||
      options.chunk_bytes > options.slot_bytes) {
    return Error(
        ErrorCode::INVALID_PARAMS,
        "a ring of {} B in slots of {} B for chunks of {} B with {} copies at once: slots are whole pages of {} B and "
        "hold a chunk, a ring holds at least one slot and at most {} B",
        options.ring_bytes, options.slot_bytes, options.chunk_bytes, options.copies_per_direction, page,
        AscendRdmaOptions::kRingBytesMax);
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

bool CanDrive(const std::shared_ptr<NpuRuntime>& runtime) {
  return runtime != nullptr && runtime->AsyncDriver() != nullptr;
}

size_t SlotBytes(const AscendRdmaOptions& options, size_t ring_bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t share = ring_bytes / kSlotsMin / page * page;
  return std::min(options.slot_bytes, std::max(share, kSlotBytesMin));
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
  if (!CanDrive(runtime)) {
    return Error(ErrorCode::NOT_SUPPORTED_TRANSPORT, "ascend_rdma needs an NPU runtime with asynchronous copies");
  }
  if (wires.empty()) {
    return Error(ErrorCode::NOT_SUPPORTED_TRANSPORT, "ascend_rdma needs a host transport to carry its bytes");
  }
  auto transport =
      MC_TRY(Make([runtime = std::move(runtime)] { return runtime; }, std::move(wires), std::move(options)));
  for (const int32_t device_id : devices) MC_TRY(transport->OpenLane(device_id));
  return transport;
}

Result<std::unique_ptr<AscendRdmaTransport>> AscendRdmaTransport::Make(RuntimeSource source,
                                                                       std::vector<Transport*> wires,
                                                                       AscendRdmaOptions options) {
  MC_TRY(CheckOptions(options));
  return std::unique_ptr<AscendRdmaTransport>(
      new AscendRdmaTransport(std::move(source), std::move(wires), std::move(options)));
}

Result<std::unique_ptr<AscendRdmaTransport>> AscendRdmaTransport::Open(const TransportContext& context,
                                                                       std::vector<Transport*> wires, bool needed) {
  AscendRdmaOptions options = MC_TRY(AscendRdmaOptions::FromEnvironment());
  std::unique_ptr<AscendRdmaTransport> transport;
  if (needed) {
    const std::vector<int32_t> devices = options.devices;
    std::shared_ptr<NpuRuntime> runtime = MC_TRY(OpenNpuRuntime());
    transport = MC_TRY(Open(std::move(runtime), std::move(wires), std::move(options), devices));
  } else {
    transport = MC_TRY(Make(UsedNpuRuntime, std::move(wires), std::move(options)));
  }
  transport->metrics_ = &context.metrics;
  transport->Lend(context);
  return transport;
}

AscendRdmaTransport::~AscendRdmaTransport() {
  if (lender_ == nullptr) return;
  lender_->Close();
  Lanes lanes;
  {
    std::lock_guard lock(mutex_);
    lanes.swap(target_lanes_);
  }
  lanes.clear();
  lender_->Join();
}

void AscendRdmaTransport::Lend(const TransportContext& context) {
  if (wires_.empty() || options_.target_ring_bytes == 0) return;
  regions_ = &context.regions;
  lender_ = std::make_shared<bridge::SlotLender>(
      bridge::SlotLender::Parts{.regions = context.regions,
                                .generation = context.generation,
                                .wires = wires_,
                                .find = [this](int32_t device_id) { return LaneIn(target_lanes_, device_id); },
                                .open = [this](int32_t device_id) { return OpenTargetLane(device_id); },
                                .npu = [this] { return runtime_.get(); }},
      bridge::SlotLender::Options{});
  lender_->Serve(context.server);
}

Result<void> AscendRdmaTransport::OpenLane(int32_t device_id) {
  if (wires_.empty()) return {};
  if (const bridge::Lane* const lane = LaneOf(device_id); lane != nullptr && Online(device_id, lane)) return {};
  std::lock_guard one(opening_);
  if (runtime_ == nullptr) {
    auto runtime = source_();
    if (!CanDrive(runtime)) return {};
    runtime_ = std::move(runtime);
  }
  const bridge::Lane* const known = LaneOf(device_id);
  if (!Online(device_id, known)) return OutOfUse(device_id);
  if (known != nullptr) return {};
  MC_TRY(runtime_->OpenDevice(device_id));
  auto opened = MC_TRY(MakeLane(device_id, options_.ring_bytes, nullptr));
  std::lock_guard lock(mutex_);
  lanes_.emplace(device_id, std::move(opened));
  return {};
}

Result<std::unique_ptr<bridge::Lane>> AscendRdmaTransport::MakeLane(int32_t device_id, size_t ring_bytes,
                                                                    RegionRegistry* lent_in) {
  const size_t slot_bytes = SlotBytes(options_, ring_bytes);
  const size_t slots = (ring_bytes + slot_bytes - 1) / slot_bytes;
  auto memory = MC_TRY(bridge::BounceMemory::Create(*runtime_, device_id, slots * slot_bytes, wires_, lent_in));
  auto port = MC_TRY(bridge::NpuCopyPort::Open(*runtime_->AsyncDriver(), device_id, options_.copies_per_direction,
                                               memory->page_locked()));
  bridge::LaneOptions lane = options_.lane;
  lane.scheduler.slot_bytes = slot_bytes;
  lane.scheduler.chunk_bytes = options_.chunk_bytes == 0 ? slot_bytes : std::min(options_.chunk_bytes, slot_bytes);
  if (lent_in != nullptr) {
    // Measured when the device's own lane was opened. Peers have their slots for as long as they take.
    if (const auto* const own = lane_options(device_id); own != nullptr) {
      lane.scheduler.chunk_bytes = std::min(own->scheduler.chunk_bytes, slot_bytes);
    }
    lane.wire_depth = slots;
    lane.bulk_wire_depth = std::max<size_t>(1, slots / 2);
    lane.scheduler.loads_per_peer_max = std::max<size_t>(1, slots / 4);
    lane.wire_grace = kPeerGrace;
  } else if (options_.calibrate && options_.chunk_bytes == 0) {
    MC_TRY(Calibrate(device_id, memory->bytes(), *port, lane));
  }
  lane.scheduler.chunk_bytes_min = std::min(lane.scheduler.chunk_bytes_min, lane.scheduler.chunk_bytes);
  return std::make_unique<bridge::Lane>(device_id, lane, std::move(memory), std::move(port));
}

Result<void> AscendRdmaTransport::Calibrate(int32_t device_id, HostRange ring, bridge::CopyPort& port,
                                            bridge::LaneOptions& lane) const {
  const size_t slot_bytes = lane.scheduler.slot_bytes;
  const size_t slots = ring.size() / slot_bytes;
  const auto rates = bridge::MeasureCopies(*runtime_, port, device_id, ring.first(slot_bytes), lane.copy_patience);
  if (rates) {
    lane.scheduler.chunk_bytes = bridge::BestChunk(*rates, lane.scheduler.chunk_bytes_min, slot_bytes);
    log::Info("NPU device {}: {} slots of {} B, chunks of {} B; a copy takes {:.1f} us and {:.1f} GB/s", device_id,
              slots, slot_bytes, lane.scheduler.chunk_bytes,
              std::chrono::duration<double, std::micro>(rates->overhead).count(), rates->bytes_per_second / 1e9);
    return {};
  }
  // An NPU that its user has filled still transfers: only the trial needs a block of it.
  const bool full = rates.error().code() == ErrorCode::NO_AVAILABLE_HANDLE && !runtime_->DeviceLost(device_id);
  if (!full) return std::unexpected(rates.error());
  log::Info("NPU device {}: {} slots of {} B, chunks as large, as it has no room to time its copies: {}", device_id,
            slots, slot_bytes, rates.error().message());
  return {};
}

Result<bridge::Lane*> AscendRdmaTransport::OpenTargetLane(int32_t device_id) {
  std::lock_guard one(opening_);
  if (bridge::Lane* const open = LaneIn(target_lanes_, device_id)) return open;
  // Not without the device's own: that was opened when its memory was registered.
  const bridge::Lane* const own = LaneOf(device_id);
  if (own == nullptr || !Online(device_id, own)) return OutOfUse(device_id);
  auto opened = MC_TRY(MakeLane(device_id, options_.target_ring_bytes, regions_));
  log::Info("NPU device {}: peers reach its memory through {} B of host memory", device_id, options_.target_ring_bytes);
  std::lock_guard lock(mutex_);
  return target_lanes_.emplace(device_id, std::move(opened)).first->second.get();
}

bridge::Lane* AscendRdmaTransport::LaneIn(const Lanes& lanes, int32_t device_id) const {
  std::shared_lock lock(mutex_);
  const auto lane = lanes.find(device_id);
  return lane == lanes.end() ? nullptr : lane->second.get();  // stays until the transport ends
}

std::unexpected<Status> AscendRdmaTransport::OutOfUse(int32_t device_id) const {
  auto lost = CheckNotLost(*runtime_, device_id);
  if (!lost) return std::unexpected(std::move(lost).error());
  return Error(ErrorCode::DEVICE_NOT_FOUND, "NPU device {} is lost and out of use", device_id);
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

std::string AscendRdmaTransport::WhyNot(const MemoryRange& local, const SegmentDescriptor&,
                                        const SegmentRegion&) const {
  const auto* const npu = std::get_if<NpuRange>(&local);
  if (npu == nullptr) return "it is for NPU memory";
  if (wires_.empty()) return "this engine has no transport that could carry it";
  const bridge::Lane* const lane = LaneOf(npu->at.device_id);
  if (lane != nullptr && !Online(npu->at.device_id, lane)) return fmt::format("NPU {} is lost", npu->at.device_id);
  if (lane == nullptr) {
    return fmt::format("no memory of NPU {} was registered with a runtime that copies asynchronously",
                       npu->at.device_id);
  }
  return "nothing that carries host memory reaches the target's";
}

std::string AscendRdmaTransport::Way(const MemoryRange& local, const SegmentDescriptor& target,
                                     const SegmentRegion& region) const {
  const bridge::Lane* const lane = LaneOf(std::get<NpuRange>(local).at.device_id);
  const Transport* const wire = lane == nullptr ? nullptr : WireFor(*lane, target, region);
  return wire == nullptr ? name() : fmt::format("{} over {}", name(), wire->Way(lane->sample(), target, region));
}

Result<void> AscendRdmaTransport::RegisterRegion(Region& region) {
  if (!region.IsNpu()) return {};
  const int32_t device_id = region.options.device_id;
  MC_TRY(OpenLane(device_id));
  region.published.staged =
      lender_ != nullptr && region.options.access != RegionAccess::kLocal && LaneOf(device_id) != nullptr;
  return {};
}

void AscendRdmaTransport::WithdrawRegion(const Region& region) {
  if (region.IsNpu() && lender_ != nullptr) lender_->Withdraw(region);
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

Result<bool> AscendRdmaTransport::PrepareDevice(int32_t device_id) {
  MC_TRY(OpenLane(device_id));
  return LaneOf(device_id) != nullptr;
}

void AscendRdmaTransport::UpdateMetrics() {
  if (metrics_ == nullptr) return;
  std::lock_guard one(counting_);
  std::shared_lock lock(mutex_);
  for (const auto& [id, lane] : lanes_) CountLane(id, *lane, "initiator");
  for (const auto& [id, lane] : target_lanes_) CountLane(id, *lane, "target");
  if (lender_ == nullptr) return;
  metrics_->GetGauge("mooncake_npu_bridge_leases", "transfers of peers from and to NPU memory of this process")
      .Set(static_cast<double>(lender_->leases()));
  metrics_->GetGauge("mooncake_npu_bridge_pieces_lent", "parts of host slots that peers have")
      .Set(static_cast<double>(lender_->lent()));
}

void AscendRdmaTransport::CountLane(int32_t device_id, const bridge::Lane& lane, const char* role) {
  using Field = std::atomic<uint64_t> bridge::LaneCounters::*;
  struct Metric {
    const char* name;
    const char* help;
    Field field;
    MetricLabels labels;
  };
  static const std::array<Metric, 7> kMetrics = {{
      {"mooncake_npu_bridge_bytes_total",
       "bytes of NPU memory through host slots",
       &bridge::LaneCounters::bytes_written,
       {{"opcode", "write"}}},
      {"mooncake_npu_bridge_bytes_total",
       "bytes of NPU memory through host slots",
       &bridge::LaneCounters::bytes_read,
       {{"opcode", "read"}}},
      {"mooncake_npu_bridge_loads_total", "slots filled", &bridge::LaneCounters::loads, {}},
      {"mooncake_npu_bridge_pieces_total", "parts of requests in them", &bridge::LaneCounters::pieces, {}},
      {"mooncake_npu_bridge_wire_retries_total",
       "parts sent again from their slots",
       &bridge::LaneCounters::wire_retries,
       {}},
      {"mooncake_npu_bridge_copy_failures_total",
       "copies of the device that failed",
       &bridge::LaneCounters::copy_failures,
       {}},
      {"mooncake_npu_bridge_quarantines_total",
       "slots set aside because something may still touch them",
       &bridge::LaneCounters::quarantines,
       {}},
  }};
  for (const Metric& metric : kMetrics) {
    MetricLabels labels = metric.labels;
    labels["device"] = std::to_string(device_id);
    labels["role"] = role;
    Counter& counter = metrics_->GetCounter(metric.name, metric.help, labels);
    const uint64_t now = lane.counters().*(metric.field);
    counter.Add(now - std::exchange(counted_[&counter], now));
  }
}

const bridge::LaneCounters* AscendRdmaTransport::counters(int32_t device_id) const {
  const bridge::Lane* const lane = LaneOf(device_id);
  return lane == nullptr ? nullptr : &lane->counters();
}

const bridge::LaneCounters* AscendRdmaTransport::target_counters(int32_t device_id) const {
  const bridge::Lane* const lane = LaneIn(target_lanes_, device_id);
  return lane == nullptr ? nullptr : &lane->counters();
}

const bridge::LaneOptions* AscendRdmaTransport::lane_options(int32_t device_id) const {
  const bridge::Lane* const lane = LaneOf(device_id);
  return lane == nullptr ? nullptr : &lane->options();
}

}  // namespace mooncake
