// Table of registered regions.
#include "client/local_memory.h"

namespace mooncake {

int32_t LocalMemory::DeviceOf(const void* address) const {
  if (runtime_ == nullptr) return -1;
  return runtime_->DeviceOf(address).value_or(-1);
}

Result<void> LocalMemory::Register(void* address, size_t size) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  if (address == nullptr || size == 0 || begin + size < begin) {
    return Error(ErrorCode::INVALID_PARAMS, "cannot register {} B at {:#x}", size, begin);
  }
  const int32_t device_id = DeviceOf(address);
  std::lock_guard lock(mutex_);
  if (const auto same = regions_.find(begin); same != regions_.end() && same->second.size == size) {
    ++same->second.count;
    return {};
  }
  auto next = regions_.upper_bound(begin);
  if (next != regions_.begin() && std::prev(next)->first + std::prev(next)->second.size > begin) --next;
  if (next != regions_.end() && next->first < begin + size) {
    return Error(ErrorCode::INVALID_PARAMS, "region [{:#x}, +{}) overlaps the registered region [{:#x}, +{})", begin,
                 size, next->first, next->second.size);
  }
  regions_.emplace(begin, Region{size, 1, device_id});
  return {};
}

Result<void> LocalMemory::Unregister(void* address) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  std::lock_guard lock(mutex_);
  const auto found = regions_.find(begin);
  if (found == regions_.end()) {
    return Error(ErrorCode::INVALID_PARAMS, "no registered region starts at {:#x}", begin);
  }
  if (--found->second.count == 0) regions_.erase(found);
  return {};
}

MemoryRange LocalMemory::Classify(void* address, size_t size) const {
  int32_t device_id = -1;
  bool known = runtime_ == nullptr || size == 0;
  if (!known) {
    const auto begin = reinterpret_cast<uintptr_t>(address);
    std::lock_guard lock(mutex_);
    const auto next = regions_.upper_bound(begin);
    if (next != regions_.begin()) {
      const auto& [start, region] = *std::prev(next);
      known = begin + size <= start + region.size;
      if (known) device_id = region.device_id;
    }
  }
  if (!known) device_id = DeviceOf(address);
  if (device_id < 0) return HostRange(static_cast<std::byte*>(address), size);
  return NpuRange{{device_id, static_cast<DeviceAddress>(reinterpret_cast<uintptr_t>(address))}, size, runtime_.get()};
}

}  // namespace mooncake
