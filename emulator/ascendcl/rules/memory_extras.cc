// Rarer ways to allocate and free, caches, and the view devices have of registered memory.
#include <map>
#include <mutex>

#include "rules/memory.h"

namespace aclemu {
namespace {

aclError CheckConfig(const aclrtMallocConfig* config) {
  if (config == nullptr) return ACL_SUCCESS;
  if (config->numAttrs > 0 && config->attrs == nullptr) return NullPointer("attrs");
  for (size_t i = 0; i < config->numAttrs; ++i) {
    if (static_cast<uint32_t>(config->attrs[i].attr) > ACL_RT_MEM_ATTR_DEVICE_ID) {
      return Fail(ACL_ERROR_INVALID_PARAM, "attribute %d", static_cast<int>(config->attrs[i].attr));
    }
  }
  return ACL_SUCCESS;
}

// Caches are always coherent here; what remains is that the range must be device memory.
aclError CheckCached(Runtime& runtime, const void* ptr, size_t bytes) {
  if (ptr == nullptr) return NullPointer("devPtr");
  if (bytes == 0) return Fail(ACL_ERROR_INVALID_PARAM, "size 0");
  ACLEMU_TRY(NeedContext());
  Place place = runtime.ranges.Find(ptr);
  if (place.OnHost()) return Fail(ACL_ERROR_RT_PARAM_INVALID, "%p is no device memory", ptr);
  return CheckInside(place, "devPtr", bytes);
}

// A failed synchronize keeps the block.
aclError SynchronizeThen(Runtime& runtime, void* ptr, aclError (*release)(Runtime&, void*)) {
  if (ptr == nullptr) return NullPointer("ptr");
  ACLEMU_TRY(NeedContext());
  ACLEMU_TRY(SynchronizeDevice(runtime, kForever));
  return release(runtime, ptr);
}

}  // namespace

uintptr_t DeviceView(Runtime& runtime, const Range& registered) {
  static std::mutex* const mutex = new std::mutex;
  // Kept when the range goes: memory registered at the same place again is seen at the same address.
  static auto* const views = new std::map<std::pair<uintptr_t, uint64_t>, uintptr_t>;
  std::lock_guard lock(*mutex);
  uintptr_t& view = (*views)[{registered.base, registered.bytes}];
  if (view == 0) view = runtime.ranges.ReserveAddresses(Runtime::Current()->device, registered.bytes, kPage);
  return view;
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtMallocCached(void** ptr, size_t size, aclrtMemMallocPolicy policy) {
  return Call(Api::aclrtMallocCached, Out(ptr, {.bytes = size}), [&](Runtime& runtime) {
    return MallocDevice(runtime, ptr, size, policy, Settings().soc->malloc_padding);
  });
}

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtMallocWithCfg(void** ptr, size_t size, aclrtMemMallocPolicy policy, aclrtMallocConfig* config) {
  return Call(Api::aclrtMallocWithCfg, Out(ptr, {.bytes = size}), [&](Runtime& runtime) {
    ACLEMU_TRY(CheckConfig(config));
    return MallocDevice(runtime, ptr, size, policy, Settings().soc->malloc_padding);
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtMallocHostWithCfg(void** ptr, uint64_t size, aclrtMallocConfig* config) {
  return Call(Api::aclrtMallocHostWithCfg, Out(ptr, {.bytes = size}), [&](Runtime& runtime) {
    ACLEMU_TRY(CheckConfig(config));
    return MallocHost(runtime, ptr, size);
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtFreeWithDevSync(void* ptr) {
  return Call(Api::aclrtFreeWithDevSync, {.a = ptr},
              [&](Runtime& runtime) { return SynchronizeThen(runtime, ptr, FreeDevice); });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtFreeHostWithDevSync(void* ptr) {
  return Call(Api::aclrtFreeHostWithDevSync, {.a = ptr},
              [&](Runtime& runtime) { return SynchronizeThen(runtime, ptr, FreeHost); });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtMemFlush(void* ptr, size_t bytes) {
  return Call(Api::aclrtMemFlush, {.a = ptr, .bytes = bytes},
              [&](Runtime& runtime) { return CheckCached(runtime, ptr, bytes); });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtMemInvalidate(void* ptr, size_t bytes) {
  return Call(Api::aclrtMemInvalidate, {.a = ptr, .bytes = bytes},
              [&](Runtime& runtime) { return CheckCached(runtime, ptr, bytes); });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtHostGetDevicePointer(void* ptr, void** device_ptr, uint32_t flag) {
  return Call(Api::aclrtHostGetDevicePointer, Out(device_ptr, {.a = ptr}), [&](Runtime& runtime) {
    if (ptr == nullptr || device_ptr == nullptr) return NullPointer("pHost or pDevice");
    if (flag != 0) return Fail(ACL_ERROR_RT_PARAM_INVALID, "flag 0x%x", flag);
    ACLEMU_TRY(NeedContext());
    Place place = runtime.ranges.Find(ptr);
    if (place.cls != MemClass::kRegistered) {
      return Fail(ACL_ERROR_RT_HOST_MEMORY_NOT_REGISTERED, "%p is not registered", ptr);
    }
    uintptr_t view = DeviceView(runtime, *place.range);
    if (view == 0) return Fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "no device addresses left");
    *device_ptr = reinterpret_cast<void*>(view + place.offset());
    return ACL_SUCCESS;
  });
}

}  // namespace aclemu
