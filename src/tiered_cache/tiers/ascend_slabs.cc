// Taking, cutting up and giving back slabs of NPU memory.
#include "tiered_cache/tiers/ascend_slabs.h"

#include "common/byte_size.h"
#include "common/check.h"
#include "common/log.h"

namespace mooncake {
namespace {

// In reverse order; what the device does not take back stays with it and is told once.
void GiveBack(NpuRuntime& runtime, const std::vector<AscendUnifiedPointer>& slabs) {
  size_t failed = 0;
  Status first;
  for (auto slab = slabs.rbegin(); slab != slabs.rend(); ++slab) {
    const auto freed = runtime.Free(*slab);
    if (!freed && failed++ == 0) first = freed.error();
  }
  if (failed != 0) {
    log::Error("{} of {} slabs on NPU device {} could not be given back; they are lost until this process ends: {}",
               failed, slabs.size(), slabs.front().device_id, first.ToString());
  }
}

struct Plan {
  size_t count;
  size_t slab_size;       // usable bytes of each slab but the last
  size_t last_slab_size;  // of the last
};

// A last slab too small for the device to give is left out.
Plan MakePlan(const NpuRuntime& runtime, size_t capacity, size_t slab_bytes) {
  if (slab_bytes == 0 || slab_bytes >= capacity) {
    const size_t size = LargestSizeWithin(runtime, capacity, AscendSlabs::kAlignment);
    return {size == 0 ? size_t{0} : size_t{1}, size, size};
  }
  const size_t size = LargestSizeWithin(runtime, slab_bytes, AscendSlabs::kAlignment);
  const size_t rest = LargestSizeWithin(runtime, capacity % slab_bytes, AscendSlabs::kAlignment);
  const size_t whole = size == 0 ? 0 : capacity / slab_bytes;
  return {whole + (rest == 0 ? 0 : 1), size, rest == 0 ? size : rest};
}

std::string FreeText(NpuRuntime& runtime, int32_t device_id) {
  const auto memory = runtime.GetMemoryInfo(device_id);
  if (!memory) return fmt::format("free memory unknown ({})", memory.error().message());
  return fmt::format("{} free of {}", FormatBytes(memory->free_bytes), FormatBytes(memory->total_bytes));
}

}  // namespace

size_t LargestSizeWithin(const NpuRuntime& runtime, size_t room, size_t unit) {
  size_t fits = 0;
  size_t beyond = room / unit + 1;
  if (runtime.DeviceBytes((beyond - 1) * unit) <= room) return (beyond - 1) * unit;
  while (beyond - fits > 1) {  // what a block takes grows with its size
    const size_t middle = fits + (beyond - fits) / 2;
    (runtime.DeviceBytes(middle * unit) <= room ? fits : beyond) = middle;
  }
  return fits * unit;
}

Result<std::unique_ptr<AscendSlabs>> AscendSlabs::Take(std::shared_ptr<NpuRuntime> runtime, int32_t device_id,
                                                       size_t capacity, size_t slab_bytes) {
  const Plan plan = MakePlan(*runtime, capacity, slab_bytes);
  if (plan.count == 0 || plan.slab_size == 0) {
    return Error(ErrorCode::INVALID_PARAMS, "{} B in slabs are less than NPU device {} hands out: {} B for {} B",
                 capacity, device_id, runtime->DeviceBytes(kAlignment), kAlignment);
  }
  std::vector<AscendUnifiedPointer> slabs;
  slabs.reserve(plan.count);
  while (slabs.size() < plan.count) {
    const size_t size = slabs.size() + 1 == plan.count ? plan.last_slab_size : plan.slab_size;
    const auto slab = runtime->Allocate(device_id, size);
    if (slab) {
      slabs.push_back(*slab);
      continue;
    }
    const std::string text =
        fmt::format("slab {} of {} ({} B) refused with {}; {} B were taken before and are given back", slabs.size() + 1,
                    plan.count, size, FreeText(*runtime, device_id), slabs.size() * plan.slab_size);
    if (!slabs.empty()) GiveBack(*runtime, slabs);
    return Annotate(slab.error(), text);
  }
  return std::unique_ptr<AscendSlabs>(
      new AscendSlabs(std::move(runtime), std::move(slabs), plan.slab_size, plan.last_slab_size));
}

AscendSlabs::AscendSlabs(std::shared_ptr<NpuRuntime> runtime, std::vector<AscendUnifiedPointer> slabs, size_t slab_size,
                         size_t last_slab_size)
    : runtime_(std::move(runtime)),
      slabs_(std::move(slabs)),
      slab_size_(slab_size),
      capacity_((slabs_.size() - 1) * slab_size + last_slab_size),
      allocator_(capacity_ + walls_bytes(), kAlignment) {
  // The only hole is what lies behind the last range, so ranges come one after the other: slab, wall, slab, wall.
  std::vector<OffsetAllocator::Range> inside;
  for (size_t i = 0; i + 1 < slabs_.size(); ++i) {
    inside.push_back(*allocator_.Allocate(slab_size_));
    const auto wall = allocator_.Allocate(kAlignment);
    MC_CHECK(wall && wall->offset == (i + 1) * (slab_size_ + kAlignment) - kAlignment, "wall {} is out of place", i);
  }
  for (const auto& range : inside) allocator_.Free(range);
}

AscendSlabs::~AscendSlabs() {
  MC_CHECK(usage() == 0, "NPU slabs destroyed with {} B handed out", usage());
  GiveBack(*runtime_, slabs_);
}

std::optional<AscendSlabs::Piece> AscendSlabs::Allocate(size_t size) {
  std::optional<OffsetAllocator::Range> range;
  {
    std::lock_guard lock(mutex_);
    range = allocator_.Allocate(size);
  }
  if (!range) return std::nullopt;
  const size_t step = slab_size_ + kAlignment;
  return Piece{slabs_[range->offset / step] + range->offset % step, *range};
}

void AscendSlabs::Free(const OffsetAllocator::Range& range) {
  std::lock_guard lock(mutex_);
  allocator_.Free(range);
}

std::vector<DeviceMemory> AscendSlabs::memory() const {
  std::vector<DeviceMemory> memory;
  memory.reserve(slabs_.size());
  for (const AscendUnifiedPointer& slab : slabs_) {
    memory.push_back({slab, std::min(slab_size_, capacity_ - memory.size() * slab_size_)});
  }
  return memory;
}

size_t AscendSlabs::usage() const {
  std::lock_guard lock(mutex_);
  return allocator_.allocated_bytes() - walls_bytes();
}

size_t AscendSlabs::largest_hole() const {
  std::lock_guard lock(mutex_);
  return allocator_.largest_free();
}

}  // namespace mooncake
