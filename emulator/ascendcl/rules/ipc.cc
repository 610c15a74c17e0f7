// Memory of aclrtMalloc shared between processes by key.
#include <unistd.h>

#include <cstring>

#include "core/virtual_memory.h"
#include "rules/sharing.h"

namespace aclemu {

aclError CheckImported(const Place& dst, const Place& src, aclrtMemcpyKind kind, bool async) {
  bool any = false;
  for (const Place* place : {&dst, &src}) {
    if (place->cls != MemClass::kDevice || place->range->origin != Origin::kImport) continue;
    any = true;
    if (static_cast<Import*>(place->range->backing.get())->OwnerGone()) {
      return Fail(ACL_ERROR_RT_IPC_ERROR, "the process that exported this memory is gone");
    }
  }
  bool fits = async && kind == ACL_MEMCPY_DEVICE_TO_DEVICE && DirectionOf(dst, src) == Direction::kD2D;
  if (!any || fits) return ACL_SUCCESS;
  return Strict(Rule::kV2, ACL_ERROR_RT_PARAM_INVALID,
                "an imported pointer serves asynchronous copies of kind DEVICE_TO_DEVICE only");
}

bool ReachableByShare(const Place& dst, const Place& src) {
  return (src.range->reach.load() >> dst.range->device & 1) != 0 ||
         (dst.range->reach.load() >> src.range->device & 1) != 0;
}

aclError CheckFree(const Place& place) {
  if (VirtualMemory::Get().IsReserved(place.addr)) {
    return Refuse(Rule::kV1, ACL_ERROR_RT_PARAM_INVALID, "%p is of aclrtReserveMemAddress",
                  reinterpret_cast<void*>(place.addr));
  }
  if (place.cls != MemClass::kDevice || place.addr != place.range->base) return ACL_SUCCESS;
  if (place.range->origin == Origin::kImport) {
    return Refuse(Rule::kV2, ACL_ERROR_RT_PARAM_INVALID, "imported memory ends with aclrtIpcMemClose");
  }
  for (const ShareKey& key : IpcKeys::Get().ExportsIn(place.range->base, place.range->paged)) {
    ACLEMU_TRY(Strict(Rule::kV2, ACL_ERROR_RT_PARAM_INVALID, "freed before importers and exporter closed the key"));
    IpcKeys::Get().EndExport(key, true);
  }
  return ACL_SUCCESS;
}

aclError Answer(ShareAnswer answer, Rule rule) {
  switch (answer) {
    case ShareAnswer::kDone:
      return ACL_SUCCESS;
    case ShareAnswer::kUnknown:
      return Fail(ACL_ERROR_RT_PARAM_INVALID, "no such shared memory (closed, or its process ended?)");
    case ShareAnswer::kInvisible:
      return Fail(ACL_ERROR_RT_INVALID_DEVICEID, "the shared memory is on a device this process cannot see");
    case ShareAnswer::kNotAllowed:
      return Refuse(rule, ACL_ERROR_RT_NO_PERMISSION, "pid %d is not on the list of the exporter", getpid());
    case ShareAnswer::kOwn:
      return Refuse(rule, ACL_ERROR_RT_PARAM_INVALID, "the exporting process cannot import");
    case ShareAnswer::kTwice:
      return Refuse(rule, ACL_ERROR_RT_PARAM_INVALID, "this process has imported it already");
    case ShareAnswer::kFull:
      return Fail(ACL_ERROR_RT_RESOURCE_ALLOC_FAIL, "too many shares, pids, or pieces of one block");
  }
  return ACL_ERROR_RT_INTERNAL_ERROR;
}

namespace {

aclError ParseKey(const char* text, ShareKey* key) {
  if (text == nullptr) return NullPointer("key");
  auto parsed = FromText(text, strnlen(text, kKeyChars + 1));
  if (!parsed) return Fail(ACL_ERROR_RT_PARAM_INVALID, "that is no key");
  *key = *parsed;
  return ACL_SUCCESS;
}

// The storage of [offset, offset + bytes) of a block, counted from 0.
std::vector<Extent> Cut(const Range& block, uint64_t offset, uint64_t bytes) {
  std::vector<Extent> out;
  for (const Extent& extent : block.extents) {
    uint64_t begin = std::max(extent.start, offset), end = std::min(extent.start + extent.bytes, offset + bytes);
    if (begin < end) DevicePool::Append(extent.offset + begin - extent.start, end - begin, &out);
  }
  return out;
}

aclError Export(Runtime& runtime, void* ptr, size_t size, char* text, uint64_t flags) {
  Place place = runtime.ranges.Find(ptr);
  if (place.cls != MemClass::kDevice || place.range->origin != Origin::kMalloc) {
    return Refuse(Rule::kV2, ACL_ERROR_RT_PARAM_INVALID, "%p is not memory of aclrtMalloc", ptr);
  }
  // The last page is exported whole, where the block does not fill it.
  if (size > place.range->paged - place.offset()) {
    return Refuse(Rule::kC5, ACL_ERROR_RT_PARAM_INVALID, "devPtr %p + %zu leaves the pages of its block", ptr, size);
  }
  uint64_t page = place.range->huge ? kChunk : kPage;
  if ((place.offset() | size) % page != 0) {
    return Refuse(Rule::kV2, ACL_ERROR_RT_PARAM_INVALID,
                  "begin and size of an exported range must be whole pages of %llu",
                  static_cast<unsigned long long>(page));
  }
  if (!IpcKeys::Get().ExportsIn(place.addr, size).empty()) {
    return Refuse(Rule::kV2, ACL_ERROR_RT_PARAM_INVALID, "some of the range is exported already");
  }
  ACLEMU_TRY(NeedSharing());
  ShareKey key;
  bool open = (flags & ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION) != 0;
  SharedDevice& device = runtime.shared(place.range->device);
  ACLEMU_TRY(
      Answer(Offer(device, ShareKind::kIpc, Cut(*place.range, place.offset(), size), place.range->huge, open, &key),
             Rule::kV2));
  IpcKeys::Get().AddExport({key, place.range, place.range->device, place.addr, size});
  memcpy(text, ToText(key).c_str(), kKeyChars + 1);
  return ACL_SUCCESS;
}

aclError ImportKey(Runtime& runtime, const ShareKey& key, bool peers, void** ptr) {
  std::shared_ptr<Import> import;
  ACLEMU_TRY(Answer(Take(key, ShareKind::kIpc, &import), Rule::kV2));
  int device = import->device.device();
  uintptr_t base = runtime.ranges.ReserveAddresses(device, import->bytes, import->huge ? kChunk : kPage);
  if (base == 0) return Fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "no addresses left");
  auto range = std::make_shared<Range>(MemClass::kDevice, base, import->bytes);
  range->device = device;
  range->paged = import->bytes;
  range->huge = import->huge;
  range->extents = import->extents;
  range->pool = &runtime.pool(device);
  range->origin = Origin::kImport;
  range->backing = import;
  range->reach = peers ? UINT64_MAX : 0;
  if (!runtime.ranges.Insert(std::move(range))) Broken("a fresh device address is taken");
  IpcKeys::Get().AddImport(key, device, base);
  *ptr = reinterpret_cast<void*>(base);
  return ACL_SUCCESS;
}

aclError CloseImport(Runtime& runtime, const ShareKey& key, uintptr_t base) {
  uint32_t users = 0;
  auto idle = [&](const Range& range) {
    users = range.in_flight.load(std::memory_order_acquire);
    return users == 0;
  };
  auto range = runtime.ranges.Remove(base, idle);
  if (range == nullptr && users > 0) {
    runtime.AwaitLostTasks([&] { return (range = runtime.ranges.Remove(base, idle)) != nullptr; });
  }
  if (range == nullptr && users > 0) {
    ACLEMU_TRY(Strict(Rule::kV2, ACL_ERROR_RT_PARAM_INVALID, "%u queued tasks still use the imported memory", users));
    range = runtime.ranges.Remove(base, [](const Range&) { return true; });
  }
  IpcKeys::Get().RemoveImport(key);
  return ACL_SUCCESS;
}

aclError CloseExport(const ShareKey& key) {
  if (!IpcKeys::Get().IsExport(key))
    return Fail(ACL_ERROR_RT_PARAM_INVALID, "the key is closed, or not of this process");
  if (IpcKeys::Get().EndExport(key, false)) return ACL_SUCCESS;
  ACLEMU_TRY(Strict(Rule::kV2, ACL_ERROR_RT_PARAM_INVALID, "importers must close the key before its exporter"));
  IpcKeys::Get().EndExport(key, true);
  return ACL_SUCCESS;
}

}  // namespace

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtIpcMemGetExportKey(void* ptr, size_t size, char* key, size_t len, uint64_t flags) {
  return Call(Api::aclrtIpcMemGetExportKey, {.a = ptr, .bytes = size}, [&](Runtime& runtime) {
    if (ptr == nullptr || key == nullptr) return NullPointer("devPtr or key");
    if (size == 0 || len != kKeyChars + 1 || flags > ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION) {
      return Refuse(Rule::kV2, ACL_ERROR_RT_PARAM_INVALID, "size %zu, len %zu (must be 65), flags 0x%llx", size, len,
                    static_cast<unsigned long long>(flags));
    }
    ACLEMU_TRY(NeedContext());
    return Export(runtime, ptr, size, key, flags);
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtIpcMemSetImportPid(const char* text, int32_t* pids, size_t count) {
  return Call(Api::aclrtIpcMemSetImportPid, [&](Runtime&) {
    ShareKey key;
    ACLEMU_TRY(ParseKey(text, &key));
    if (pids == nullptr) return NullPointer("pid");
    if (count == 0) return Fail(ACL_ERROR_RT_PARAM_INVALID, "no pids");
    ACLEMU_TRY(NeedSharing());
    return Answer(AllowPids(key, ShareKind::kIpc, pids, count), Rule::kV2);
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtIpcMemImportByKey(void** ptr, const char* text, uint64_t flags) {
  return Call(Api::aclrtIpcMemImportByKey, Out(ptr), [&](Runtime& runtime) {
    if (ptr == nullptr) return NullPointer("devPtr");
    ShareKey key;
    ACLEMU_TRY(ParseKey(text, &key));
    if (flags > ACL_RT_IPC_MEM_IMPORT_FLAG_ENABLE_PEER_ACCESS) {
      return Fail(ACL_ERROR_RT_PARAM_INVALID, "flags 0x%llx", static_cast<unsigned long long>(flags));
    }
    ACLEMU_TRY(NeedContext());
    ACLEMU_TRY(NeedSharing());
    return ImportKey(runtime, key, flags != 0, ptr);
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtIpcMemClose(const char* text) {
  return Call(Api::aclrtIpcMemClose, [&](Runtime& runtime) {
    ShareKey key;
    ACLEMU_TRY(ParseKey(text, &key));
    uintptr_t base = IpcKeys::Get().ImportBase(key);
    return base != 0 ? CloseImport(runtime, key, base) : CloseExport(key);
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtIpcMemSetAttr(const char* text, aclrtIpcMemAttrType type, uint64_t attr) {
  return Call(Api::aclrtIpcMemSetAttr, [&](Runtime&) {
    ShareKey key;
    ACLEMU_TRY(ParseKey(text, &key));
    // The link between the two dies of one package: SIO 0 or HCCS 1. Nothing here depends on it.
    if (type != ACL_RT_IPC_MEM_ATTR_ACCESS_LINK || attr > 1) {
      return Fail(ACL_ERROR_RT_PARAM_INVALID, "type %d, attribute %llu", static_cast<int>(type),
                  static_cast<unsigned long long>(attr));
    }
    return ACL_SUCCESS;
  });
}

}  // namespace aclemu
