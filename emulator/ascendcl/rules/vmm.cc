// Virtual memory: argument rules of reserved addresses, physical memory, mappings and shareable handles (rule V1).
#include <cstring>

#include "core/virtual_memory.h"
#include "rules/sharing.h"

namespace aclemu {
namespace {

constexpr uint64_t kGiantPage = 1ULL << 30;
constexpr uint64_t kTiB = 1ULL << 40;

struct Window {
  uintptr_t begin, end;
  uint64_t granularity;
};
constexpr Window kUsual{16 * kTiB, 24 * kTiB, kChunk}, kNoUC{40 * kTiB, 224 * kTiB, kGiantPage};

uintptr_t Address(const void* ptr) {
  return reinterpret_cast<uintptr_t>(ptr);
}
uint64_t Handle(const void* handle) {
  return reinterpret_cast<uint64_t>(handle);
}

aclError Wrong(const char* what, uint64_t value) {
  return Refuse(Rule::kV1, ACL_ERROR_RT_PARAM_INVALID, "%s 0x%llx", what, static_cast<unsigned long long>(value));
}

aclError Reserve(void** ptr, size_t size, size_t alignment, void* expect, uint64_t flags, const Window& window) {
  if (ptr == nullptr) return NullPointer("virPtr");
  if (size == 0 || size % window.granularity != 0 || size > window.end - window.begin) return Wrong("size", size);
  if (alignment != 0) return Wrong("alignment must be 0, not", alignment);
  if (flags > 1) return Wrong("flags", flags);
  uintptr_t wish = Address(expect);
  bool fits = wish % kChunk == 0 && wish >= window.begin && wish < window.end && size <= window.end - wish;
  if (wish != 0 && !fits) return Wrong("the expected address is outside of what this call serves:", wish);
  ACLEMU_TRY(NeedContext());
  uintptr_t base = 0;
  ACLEMU_TRY(VirtualMemory::Get().Reserve(Runtime::Current()->device, size, window.granularity, wish, &base));
  *ptr = reinterpret_cast<void*>(base);
  return ACL_SUCCESS;
}

enum class Attr { kHuge, kNormal, kGiant, kUnknown };

Attr AttrOf(aclrtMemAttr attr) {
  switch (static_cast<uint32_t>(attr)) {
    case ACL_HBM_MEM_HUGE:
    case ACL_HBM_MEM_P2P_HUGE:
    case ACL_MEM_HUGE:
    case ACL_MEM_P2P_HUGE:
      return Attr::kHuge;
    case ACL_HBM_MEM_NORMAL:
    case ACL_HBM_MEM_P2P_NORMAL:
    case ACL_MEM_NORMAL:
    case ACL_MEM_P2P_NORMAL:
      return Attr::kNormal;
    case ACL_HBM_MEM_HUGE1G:
    case ACL_HBM_MEM_P2P_HUGE1G:
    case ACL_MEM_HUGE1G:
    case ACL_MEM_P2P_HUGE1G:
      return Attr::kGiant;
    default:
      return Attr::kUnknown;
  }
}

aclError CheckDevice(Runtime& runtime, const aclrtMemLocation& location) {
  if (location.type == ACL_MEM_LOCATION_TYPE_HOST || location.type == ACL_MEM_LOCATION_TYPE_HOST_NUMA) {
    return Fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "virtual memory of the host is not emulated");
  }
  if (location.type != ACL_MEM_LOCATION_TYPE_DEVICE) {
    return Refuse(Rule::kV1, ACL_ERROR_INVALID_PARAM, "location type %d", static_cast<int>(location.type));
  }
  return NeedDevice(runtime, location.id);
}

aclError CheckProp(Runtime& runtime, const aclrtPhysicalMemProp* prop, uint64_t* granularity) {
  if (prop == nullptr) return NullPointer("prop");
  if (prop->handleType == ACL_MEM_HANDLE_TYPE_POSIX) {
    return Fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "POSIX handles are not emulated");
  }
  Attr attr = AttrOf(prop->memAttr);
  if (prop->handleType != ACL_MEM_HANDLE_TYPE_NONE || prop->allocationType != ACL_MEM_ALLOCATION_TYPE_PINNED ||
      attr == Attr::kUnknown || prop->reserve != 0) {
    return Refuse(
        Rule::kV1, ACL_ERROR_INVALID_PARAM, "handle type %d, allocation type %d, attribute %d, reserve must be 0",
        static_cast<int>(prop->handleType), static_cast<int>(prop->allocationType), static_cast<int>(prop->memAttr));
  }
  *granularity = attr == Attr::kGiant ? kGiantPage : kChunk;
  return CheckDevice(runtime, prop->location);
}

aclError MallocPhysical(Runtime& runtime, uint64_t size, const aclrtPhysicalMemProp& prop, aclrtDrvMemHandle* out) {
  auto device = static_cast<int>(prop.location.id);
  DevicePool& pool = runtime.pool(device);
  auto memory = std::make_shared<Physical>(pool, device);
  memory->huge = AttrOf(prop.memAttr) != Attr::kNormal;
  runtime.FeedTenant(device);
  bool fits = size <= Settings().hbm_bytes && pool.Take(size, memory->huge, &memory->extents);
  if (!fits) {
    Bump(Stats().device_allocs_failed);
    return Fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "device %d has no room for %llu bytes", device,
                static_cast<unsigned long long>(size));
  }
  memory->bytes = size;
  AddPagedBytes(size);
  if (Settings().poison) {
    for (const Extent& extent : memory->extents) Fill(pool.At(extent.offset), extent.bytes, 0xA5);
  }
  ChargeMalloc(size);
  *out = reinterpret_cast<void*>(VirtualMemory::Get().Add(std::move(memory)));
  return ACL_SUCCESS;
}

aclError CheckAccess(Runtime& runtime, const aclrtMemAccessDesc& desc) {
  ACLEMU_TRY(CheckDevice(runtime, desc.location));
  if (desc.flags == ACL_RT_MEM_ACCESS_FLAGS_NONE || desc.flags == ACL_RT_MEM_ACCESS_FLAGS_READWRITE) return ACL_SUCCESS;
  return Fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "access flags %d", static_cast<int>(desc.flags));
}

aclError Export(const void* handle, uint64_t flags, ShareKey* key) {
  if (handle == nullptr) return NullPointer("handle");
  if (flags > ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION) return Wrong("flags", flags);
  ACLEMU_TRY(NeedSharing());
  return VirtualMemory::Get().Export(Handle(handle), flags != 0, key);
}

aclError AllowPids(std::optional<ShareKey> key, const int32_t* pids, size_t count) {
  if (pids == nullptr) return NullPointer("pid");
  if (count == 0) return Wrong("pidNum", count);
  if (!key) return Fail(ACL_ERROR_RT_PARAM_INVALID, "that is no shareable handle");
  ACLEMU_TRY(NeedSharing());
  return Answer(AllowPids(*key, ShareKind::kPhysical, pids, count), Rule::kV1);
}

aclError ImportHandle(Runtime& runtime, std::optional<ShareKey> key, aclrtDrvMemHandle* out) {
  if (out == nullptr) return NullPointer("handle");
  if (!key) return Fail(ACL_ERROR_RT_PARAM_INVALID, "that is no shareable handle");
  ACLEMU_TRY(NeedContext());
  ACLEMU_TRY(NeedSharing());
  std::shared_ptr<Import> import;
  ACLEMU_TRY(Answer(Take(*key, ShareKind::kPhysical, &import), Rule::kV1));
  int device = import->device.device();
  auto memory = std::make_shared<Physical>(runtime.pool(device), device);
  memory->bytes = import->bytes;
  memory->huge = import->huge;
  memory->extents = import->extents;
  memory->import = std::move(import);
  *out = reinterpret_cast<void*>(VirtualMemory::Get().Add(std::move(memory)));
  return ACL_SUCCESS;
}

// A shareable handle of the V2 calls.
aclError ReadShareable(const void* shareable, aclrtMemSharedHandleType type, std::optional<ShareKey>* key) {
  if (shareable == nullptr) return NullPointer("shareableHandle");
  if (type == ACL_MEM_SHARE_HANDLE_TYPE_DEFAULT) {
    uint64_t number = 0;
    memcpy(&number, shareable, sizeof(number));
    *key = FromNumber(number);
    return ACL_SUCCESS;
  }
  if (type != ACL_MEM_SHARE_HANDLE_TYPE_FABRIC)
    return Fail(ACL_ERROR_INVALID_PARAM, "share type %d", static_cast<int>(type));
  *key = FromText(static_cast<const char*>(shareable), kKeyChars);
  return ACL_SUCCESS;
}

}  // namespace

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtReserveMemAddress(void** ptr, size_t size, size_t alignment, void* expect, uint64_t flags) {
  return Call(Api::aclrtReserveMemAddress, Out(ptr, {.bytes = size}),
              [&](Runtime&) { return Reserve(ptr, size, alignment, expect, flags, kUsual); });
}

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtReserveMemAddressNoUCMemory(void** ptr, size_t size, size_t alignment, void* expect, uint64_t flags) {
  return Call(Api::aclrtReserveMemAddressNoUCMemory, Out(ptr, {.bytes = size}),
              [&](Runtime&) { return Reserve(ptr, size, alignment, expect, flags, kNoUC); });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtReleaseMemAddress(void* ptr) {
  return Call(Api::aclrtReleaseMemAddress, {.a = ptr}, [&](Runtime&) {
    return ptr == nullptr ? NullPointer("virPtr") : VirtualMemory::Get().Release(Address(ptr));
  });
}

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtMallocPhysical(aclrtDrvMemHandle* handle, size_t size, const aclrtPhysicalMemProp* prop,
                                uint64_t flags) {
  return Call(Api::aclrtMallocPhysical, Out(handle, {.bytes = size}), [&](Runtime& runtime) {
    if (handle == nullptr) return NullPointer("handle");
    uint64_t granularity = 0;
    ACLEMU_TRY(CheckProp(runtime, prop, &granularity));
    if (size == 0 || size % granularity != 0) return Wrong("size is no multiple of the granularity:", size);
    if (flags != 0) return Wrong("flags must be 0, not", flags);
    ACLEMU_TRY(NeedContext());
    return MallocPhysical(runtime, size, *prop, handle);
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtFreePhysical(aclrtDrvMemHandle handle) {
  return Call(Api::aclrtFreePhysical, {.a = handle}, [&](Runtime&) {
    return handle == nullptr ? NullPointer("handle") : VirtualMemory::Get().Free(Handle(handle));
  });
}

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtMapMem(void* ptr, size_t size, size_t offset, aclrtDrvMemHandle handle, uint64_t flags) {
  return Call(Api::aclrtMapMem, {.a = ptr, .b = handle, .bytes = size}, [&](Runtime&) {
    if (ptr == nullptr || handle == nullptr) return NullPointer("virPtr or handle");
    if (offset != 0) return Wrong("offset must be 0, not", offset);
    if (flags != 0) return Wrong("flags must be 0, not", flags);
    if (Address(ptr) % kChunk != 0) return Wrong("the address is not aligned to 2 MiB:", Address(ptr));
    ACLEMU_TRY(NeedContext());
    return VirtualMemory::Get().Map(Address(ptr), size, Handle(handle));
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtUnmapMem(void* ptr) {
  return Call(Api::aclrtUnmapMem, {.a = ptr}, [&](Runtime& runtime) {
    if (ptr == nullptr) return NullPointer("virPtr");
    runtime.AwaitLostTasks([&] { return VirtualMemory::Get().TasksAt(Address(ptr)) == 0; });
    return VirtualMemory::Get().Unmap(Address(ptr));
  });
}

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtMemGetAllocationGranularity(aclrtPhysicalMemProp* prop, aclrtMemGranularityOptions option,
                                             size_t* granularity) {
  return Call(Api::aclrtMemGetAllocationGranularity, Out(granularity), [&](Runtime& runtime) {
    if (granularity == nullptr) return NullPointer("granularity");
    if (static_cast<uint32_t>(option) > ACL_RT_MEM_ALLOC_GRANULARITY_RECOMMENDED) {
      return Fail(ACL_ERROR_INVALID_PARAM, "option %d", static_cast<int>(option));
    }
    uint64_t found = 0;
    ACLEMU_TRY(CheckProp(runtime, prop, &found));
    *granularity = found;
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtMemSetAccess(void* ptr, size_t size, aclrtMemAccessDesc* desc, size_t count) {
  return Call(Api::aclrtMemSetAccess, {.a = ptr, .bytes = size}, [&](Runtime& runtime) {
    if (ptr == nullptr || desc == nullptr) return NullPointer("virPtr or desc");
    if (size == 0 || count == 0) return Wrong("size or count", 0);
    ACLEMU_TRY(NeedContext());
    for (size_t i = 0; i < count; ++i) ACLEMU_TRY(CheckAccess(runtime, desc[i]));
    for (size_t i = 0; i < count; ++i) {
      ACLEMU_TRY(VirtualMemory::Get().SetAccess(Address(ptr), size, static_cast<int>(desc[i].location.id),
                                                desc[i].flags == ACL_RT_MEM_ACCESS_FLAGS_READWRITE));
    }
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtMemGetAccess(void* ptr, aclrtMemLocation* location, uint64_t* flags) {
  return Call(Api::aclrtMemGetAccess, Out(flags, {.a = ptr}), [&](Runtime& runtime) {
    if (ptr == nullptr || location == nullptr || flags == nullptr) return NullPointer("virPtr, location or flags");
    ACLEMU_TRY(CheckDevice(runtime, *location));
    bool allowed = false;
    ACLEMU_TRY(VirtualMemory::Get().GetAccess(Address(ptr), static_cast<int>(location->id), &allowed));
    *flags = allowed ? ACL_RT_MEM_ACCESS_FLAGS_READWRITE : ACL_RT_MEM_ACCESS_FLAGS_NONE;
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtMemRetainAllocationHandle(void* ptr, aclrtDrvMemHandle* handle) {
  return Call(Api::aclrtMemRetainAllocationHandle, Out(handle, {.a = ptr}), [&](Runtime&) {
    if (ptr == nullptr || handle == nullptr) return NullPointer("virPtr or handle");
    uint64_t found = 0;
    ACLEMU_TRY(VirtualMemory::Get().Retain(Address(ptr), &found));
    *handle = reinterpret_cast<void*>(found);
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtMemExportToShareableHandle(aclrtDrvMemHandle handle, aclrtMemHandleType type, uint64_t flags,
                                            uint64_t* shareable) {
  return Call(Api::aclrtMemExportToShareableHandle, Out(shareable, {.a = handle}), [&](Runtime&) {
    if (shareable == nullptr) return NullPointer("shareableHandle");
    if (type != ACL_MEM_HANDLE_TYPE_NONE)
      return Fail(ACL_ERROR_INVALID_PARAM, "handle type %d", static_cast<int>(type));
    ShareKey key;
    ACLEMU_TRY(Export(handle, flags, &key));
    *shareable = ToNumber(key);
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtMemExportToShareableHandleV2(aclrtDrvMemHandle handle, uint64_t flags, aclrtMemSharedHandleType type,
                                              void* shareable) {
  return Call(Api::aclrtMemExportToShareableHandleV2, {.a = handle}, [&](Runtime&) {
    if (shareable == nullptr) return NullPointer("shareableHandle");
    bool fabric = type == ACL_MEM_SHARE_HANDLE_TYPE_FABRIC;
    if (!fabric && type != ACL_MEM_SHARE_HANDLE_TYPE_DEFAULT) {
      return Fail(ACL_ERROR_INVALID_PARAM, "share type %d", static_cast<int>(type));
    }
    ShareKey key;
    ACLEMU_TRY(Export(handle, flags, &key));
    if (fabric) {
      memset(shareable, 0, sizeof(aclrtMemFabricHandle));
      memcpy(shareable, ToText(key).data(), kKeyChars);
    } else {
      uint64_t number = ToNumber(key);
      memcpy(shareable, &number, sizeof(number));
    }
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtMemSetPidToShareableHandle(uint64_t shareable, int32_t* pids, size_t count) {
  return Call(Api::aclrtMemSetPidToShareableHandle,
              [&](Runtime&) { return AllowPids(FromNumber(shareable), pids, count); });
}

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtMemSetPidToShareableHandleV2(void* shareable, aclrtMemSharedHandleType type, int32_t* pids,
                                              size_t count) {
  return Call(Api::aclrtMemSetPidToShareableHandleV2, [&](Runtime&) {
    std::optional<ShareKey> key;
    ACLEMU_TRY(ReadShareable(shareable, type, &key));
    return AllowPids(key, pids, count);
  });
}

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtMemImportFromShareableHandle(uint64_t shareable, int32_t device, aclrtDrvMemHandle* handle) {
  return Call(Api::aclrtMemImportFromShareableHandle, Out(handle), [&](Runtime& runtime) {
    ACLEMU_TRY(NeedDevice(runtime, device));
    return ImportHandle(runtime, FromNumber(shareable), handle);
  });
}

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtMemImportFromShareableHandleV2(void* shareable, aclrtMemSharedHandleType type, uint64_t flags,
                                                aclrtDrvMemHandle* handle) {
  return Call(Api::aclrtMemImportFromShareableHandleV2, Out(handle), [&](Runtime& runtime) {
    if (flags != 0) return Wrong("flags must be 0, not", flags);
    std::optional<ShareKey> key;
    ACLEMU_TRY(ReadShareable(shareable, type, &key));
    return ImportHandle(runtime, key, handle);
  });
}

}  // namespace aclemu
