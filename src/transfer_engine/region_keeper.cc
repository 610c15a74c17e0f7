// Registration, and the way back from each of its steps.
#include "transfer_engine/region_keeper.h"

#include <sys/mman.h>
#include <unistd.h>

#include "common/check.h"
#include "common/log.h"
#include "transfer_engine/topology.h"

namespace mooncake {
namespace {

// Of one write to a metadata server.
constexpr Duration kPublishTimeout = std::chrono::seconds(5);

uint64_t AddressOf(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

// Peers may read and write all of it: a hole would end this process, and not the call with the wrong length.
Result<void> CheckMapped(const Region& region) {
  if (region.IsNpu() || region.options.shared) return {};
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t first = region.address / page * page;
  void* const start = reinterpret_cast<void*>(first);  // NOLINT(performance-no-int-to-ptr)
  // Writes nothing, and looks at mappings, not at pages.
  if (msync(start, region.address + region.length - first, MS_ASYNC) == 0) return {};
  return Error(ErrorCode::INVALID_PARAMS, "[{:#x}, +{}) is not memory of this process, not all of it is mapped",
               region.address, region.length);
}

}  // namespace

Result<void> RegionKeeper::PublishIf(bool changed) {
  if (!changed || publisher_ == nullptr) return {};
  return publisher_->Publish(Deadline::After(kPublishTimeout));
}

void RegionKeeper::Withdraw(const Region& region) {
  for (const auto& transport : transports_.transports()) transport->WithdrawRegion(region);
}

Result<void> RegionKeeper::Install(Region& region) {
  MC_TRY(CheckMapped(region));
  const auto& transports = transports_.transports();
  for (size_t i = 0; i < transports.size(); ++i) {
    const Result<void> registered = transports[i]->RegisterRegion(region);
    if (registered) continue;
    while (i-- > 0) transports[i]->WithdrawRegion(region);
    return registered;
  }
  return {};
}

Result<void> RegionKeeper::Add(const HostRange& range, RegionOptions options, Added& added) {
  const uint64_t address = AddressOf(range.data());
  if (options.device_id < 0 && !options.shared) options.device_id = transports_.DeviceOf(range.data());
  if (options.location == "*" && address != 0) {
    options.location =
        options.device_id >= 0 ? fmt::format("npu:{}", options.device_id) : LocationOf(range.data(), range.size());
  }
  const auto reserved = MC_TRY(regions_.Reserve(address, range.size(), std::move(options)));
  if (!reserved) {
    added.counted.push_back(address);
    return {};
  }
  if (const Result<void> installed = Install(**reserved); !installed) {
    regions_.Abandon(*reserved);
    return installed;
  }
  added.regions.push_back(*reserved);
  return {};
}

void RegionKeeper::Undo(Added& added) {
  for (const uint64_t address : added.counted) {
    const auto gone = regions_.Unpublish(address);
    // Others may have taken theirs back meanwhile: then this was the last.
    if (!gone || !*gone) continue;
    Withdraw(***gone);
    static_cast<void>(regions_.WaitUnused(**gone, Deadline::After(drain_timeout_)));
  }
  for (const auto& region : added.regions) {
    if (added.published) MC_CHECK(regions_.Unpublish(region->address).has_value(), "region {:#x}", region->address);
    Withdraw(*region);
    if (!added.published) regions_.Abandon(region);
  }
  if (!added.published) return;
  for (const auto& region : added.regions) {
    const auto unused = regions_.WaitUnused(region, Deadline::After(drain_timeout_));
    if (!unused) log::Warn("a registration is undone, but {}", unused.error().message());
  }
}

Result<void> RegionKeeper::Register(std::span<const HostRange> ranges, const RegionOptions& options) {
  Added added;
  for (const HostRange& range : ranges) {
    if (const Result<void> done = Add(range, options, added); !done) {
      Undo(added);
      return done;
    }
  }
  for (const auto& region : added.regions) regions_.Publish(region);
  added.published = true;
  const Result<void> published = PublishIf(!added.regions.empty() && options.access != RegionAccess::kLocal);
  if (!published) Undo(added);
  return published;
}

Result<void> RegionKeeper::Unregister(std::span<void* const> addresses) {
  Result<void> result;
  const auto note = [&](const Result<void>& step) {
    if (result && !step) result = step;
  };
  std::vector<std::shared_ptr<Region>> leaving;
  for (void* const address : addresses) {
    const auto region = regions_.Unpublish(AddressOf(address));
    if (!region) {
      note(std::unexpected(region.error()));
    } else if (*region) {
      leaving.push_back(**region);
    }
  }
  for (const auto& region : leaving) Withdraw(*region);
  note(PublishIf(!leaving.empty()));
  const Deadline deadline = Deadline::After(drain_timeout_);
  for (const auto& region : leaving) note(regions_.WaitUnused(region, deadline));
  return result;
}

Result<void*> RegionKeeper::Allocate(size_t length, std::string location) {
  std::unique_ptr<SharedBuffer> buffer = MC_TRY(SharedBuffer::Create({.bytes = length}));
  RegionOptions options;
  options.location = std::move(location);
  options.shared = SharedMemory{.memfd = buffer->memfd(), .offset = 0};
  const HostRange range(buffer->data(), length);
  MC_TRY(Register({&range, 1}, options));
  std::byte* const address = buffer->data();
  std::lock_guard lock(mutex_);
  allocations_.emplace(AddressOf(address), Allocation{.buffer = std::move(buffer), .leaving = nullptr});
  return address;
}

Result<void> RegionKeeper::Vacate(uint64_t address, Allocation& allocation) {
  Result<void> published;
  if (allocation.leaving == nullptr) {
    auto region = regions_.Unpublish(address);
    if (region && !*region) {
      return Error(ErrorCode::BATCH_BUSY, "memory {:#x} was registered once more; unregister it before it is freed",
                   address);
    }
    if (!region) return {};  // the application has unregistered it by itself
    allocation.leaving = std::move(**region);
    Withdraw(*allocation.leaving);
    published = PublishIf(true);
  }
  MC_TRY(regions_.WaitUnused(allocation.leaving, Deadline::After(drain_timeout_)));
  return published;
}

Result<void> RegionKeeper::Free(void* pointer) {
  const uint64_t address = AddressOf(pointer);
  Allocation* allocation = nullptr;
  {
    std::lock_guard lock(mutex_);
    const auto found = allocations_.find(address);
    if (found == allocations_.end() || found->second.freeing) {
      return Error(ErrorCode::INVALID_PARAMS, "memory {:#x} was not allocated here, or is being freed", address);
    }
    found->second.freeing = true;  // it is this call's until then
    allocation = &found->second;
  }
  const Result<void> vacated = Vacate(address, *allocation);
  std::map<uint64_t, Allocation>::node_type gone;  // unmapped after the lock is gone
  std::lock_guard lock(mutex_);
  allocation->freeing = false;
  // What is still in use stays mapped; the call can be repeated.
  if (vacated || vacated.error().code() == ErrorCode::METADATA_ERROR) gone = allocations_.extract(address);
  return vacated;
}

}  // namespace mooncake
