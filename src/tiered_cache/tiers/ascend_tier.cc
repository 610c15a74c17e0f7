// Allocation in NPU memory.
#include "tiered_cache/tiers/ascend_tier.h"

#include "common/byte_size.h"
#include "common/log.h"

namespace mooncake {
namespace {

// The runtime's number for a device that answers no more (lost heartbeat).
constexpr int32_t kDeviceLost = 507010;

Status LostStatus(ErrorCode code, int32_t device_id, const std::string& what) {
  return Status(code,
                fmt::format("{}: NPU device {} is lost ({}), nothing on it can be used until this process is "
                            "restarted",
                            what, device_id, kDeviceLost),
                kDeviceLost);
}

}  // namespace

// A piece of a slab.
class AscendCacheTier::SlabBlock final : public AscendBufferBase {
 public:
  SlabBlock(AscendCacheTier& tier, const AscendSlabs::Piece& piece) : tier_(tier), piece_(piece) {}
  ~SlabBlock() override { tier_.slabs_->Free(piece_.range); }
  size_t size() const override { return piece_.range.size; }
  AscendUnifiedPointer pointer() const override { return piece_.at; }
  NpuRuntime& runtime() const override { return *tier_.runtime_; }

 private:
  AscendCacheTier& tier_;
  const AscendSlabs::Piece piece_;
};

// An allocation of its own: it is freed first, then its bytes leave the tier's usage.
class AscendCacheTier::DirectBlock final : public AscendBufferBase {
 public:
  DirectBlock(AscendCacheTier& tier, AscendUnifiedPointer pointer, size_t size, CapacityBudget::Reservation room)
      : room_(std::move(room)), tier_(tier), pointer_(pointer), size_(size) {}
  ~DirectBlock() override {
    const auto freed = runtime().Free(pointer_);
    if (!freed) tier_.Quarantine(std::move(room_), size_, freed.error());
  }
  size_t size() const override { return size_; }
  AscendUnifiedPointer pointer() const override { return pointer_; }
  NpuRuntime& runtime() const override { return *tier_.runtime_; }

 private:
  CapacityBudget::Reservation room_;  // destroyed after the destructor's body has freed the block
  AscendCacheTier& tier_;
  const AscendUnifiedPointer pointer_;
  const size_t size_;
};

Result<std::shared_ptr<AscendCacheTier>> AscendCacheTier::Open(const Options& options,
                                                               std::shared_ptr<NpuRuntime> runtime) {
  const int32_t device = options.device_id;
  const std::string what = fmt::format("ASCEND_NPU tier of {} B ({})", options.capacity, FormatBytes(options.capacity));
  MC_TRY(runtime->OpenDevice(device));
  if (runtime->DeviceLost(device)) return std::unexpected(LostStatus(ErrorCode::INTERNAL_ERROR, device, what));
  const auto memory = MC_TRY(runtime->GetMemoryInfo(device));
  if (options.promised > memory.free_bytes || options.capacity > memory.free_bytes - options.promised) {
    return Error(ErrorCode::INVALID_PARAMS, "{} does not fit on device {}: {} free of {}{}{}", what, device,
                 FormatBytes(memory.free_bytes), FormatBytes(memory.total_bytes), PromisedText(options.promised),
                 options.taken == 0 ? "" : fmt::format("; other tiers have {}", FormatBytes(options.taken)));
  }
  if (LargestSizeWithin(*runtime, options.capacity, 1) == 0) {
    return Error(ErrorCode::INVALID_PARAMS, "{} holds no block: on device {} the smallest takes {} B", what, device,
                 runtime->DeviceBytes(1));
  }
  Info info{Uuid::Random(),         fmt::format("ASCEND_NPU:{}", device),
            MemoryType::ASCEND_NPU, options.capacity,
            options.priority,       options.tags};
  std::unique_ptr<AscendSlabs> slabs;
  if (options.allocation == Allocation::kSlab) {
    auto taken = AscendSlabs::Take(runtime, device, options.capacity, options.slab_size);
    if (!taken) return Annotate(taken.error(), fmt::format("{} on device {}", what, device));
    slabs = std::move(*taken);
    info.capacity = slabs->capacity();
    if (info.capacity < options.capacity) {
      log::Info("tier {}: {} B of the {} B configured are usable, the rest is lost to the device's page sizes",
                info.name, info.capacity, options.capacity);
    }
  }
  return std::shared_ptr<AscendCacheTier>(
      new AscendCacheTier(std::move(info), device, std::move(runtime), std::move(slabs)));
}

AscendCacheTier::AscendCacheTier(Info info, int32_t device_id, std::shared_ptr<NpuRuntime> runtime,
                                 std::unique_ptr<AscendSlabs> slabs)
    : CacheTier(std::move(info)),
      device_id_(device_id),
      runtime_(std::move(runtime)),
      slabs_(std::move(slabs)),
      budget_(this->info().capacity) {}

AscendCacheTier::~AscendCacheTier() {
  if (quarantine_.empty()) return;
  log::Error(
      "tier {}: {} blocks with {} B could not be given back to the device; they are lost until this process ends",
      info().name, quarantine_.size(), quarantined_bytes());
}

Result<DataSource> AscendCacheTier::Allocate(size_t size) {
  if (size == 0) return Error(ErrorCode::INVALID_PARAMS, "tier {}: a block of 0 B", info().name);
  if (runtime_->DeviceLost(device_id_)) return Lost(size);
  return slabs_ ? AllocateFromSlabs(size) : AllocateDirectly(size);
}

Result<DataSource> AscendCacheTier::AllocateFromSlabs(size_t size) {
  if (size > slabs_->largest_piece() && slabs_->slab_count() > 1) {
    return Error(
        ErrorCode::NO_AVAILABLE_HANDLE,
        "tier {} holds no block of {} B: its slabs are {} B each, raise \"slab_size\" or leave it out (used {} "
        "of {} B, largest hole {} B)",
        info().name, size, slabs_->largest_piece(), usage(), info().capacity, largest_hole());
  }
  const auto piece = slabs_->Allocate(size);
  if (!piece) return Full(size);
  return DataSource{std::make_unique<SlabBlock>(*this, *piece), MemoryType::ASCEND_NPU};
}

Result<DataSource> AscendCacheTier::AllocateDirectly(size_t size) {
  const size_t spent = runtime_->DeviceBytes(size);
  if (spent < size) return Full(size);  // wrapped: nothing is that large
  auto room = budget_.Reserve(spent);
  if (!room) return Full(size);
  const auto pointer = runtime_->Allocate(device_id_, size);
  if (!pointer) {  // `room` gives its bytes back
    if (runtime_->DeviceLost(device_id_)) return Lost(size);
    if (pointer.error().vendor_code() != 0) refusals_.fetch_add(1, std::memory_order_relaxed);
    return std::unexpected(pointer.error());
  }
  return DataSource{std::make_unique<DirectBlock>(*this, *pointer, size, std::move(*room)), MemoryType::ASCEND_NPU};
}

std::unexpected<Status> AscendCacheTier::Lost(size_t size) {
  refusals_.fetch_add(1, std::memory_order_relaxed);
  return std::unexpected(
      LostStatus(ErrorCode::NO_AVAILABLE_HANDLE, device_id_,
                 fmt::format("tier {} refuses {} B (used {} of {} B)", info().name, size, usage(), info().capacity)));
}

size_t AscendCacheTier::largest_hole() const {
  if (slabs_) return slabs_->largest_hole();
  return LargestSizeWithin(*runtime_, budget_.capacity() - budget_.used(), 1);
}

size_t AscendCacheTier::largest_block() const {
  return slabs_ ? slabs_->largest_piece() : LargestSizeWithin(*runtime_, info().capacity, 1);
}

void AscendCacheTier::Quarantine(CapacityBudget::Reservation room, size_t size, const Status& why) {
  bool first = false;
  {
    std::lock_guard lock(quarantine_mutex_);
    first = quarantine_.empty();
    quarantine_.push_back(std::move(room));
  }
  quarantined_bytes_.fetch_add(runtime_->DeviceBytes(size), std::memory_order_relaxed);
  // Once: on a lost device every block ends up here. The destructor tells how many there were.
  if (first) {
    log::Error("tier {}: a block of {} B was not taken back and stays in the usage: {}", info().name, size,
               why.ToString());
  }
}

}  // namespace mooncake
