// Device memory, pinned and registered host memory, pointer queries.
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <mutex>
#include <set>
#include <vector>

#include "rules/memory.h"
#include "rules/sharing.h"

namespace aclemu {
namespace {

constexpr uint64_t kGiantPage = 1ULL << 30;

uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

enum class Pages { kNormal, kHuge, kHugeElseNormal, kHuge1G };

// Which pages a policy gets for a size that is already padded.
Pages Choose(aclrtMemMallocPolicy policy, uint64_t padded) {
  switch (static_cast<uint32_t>(policy)) {
    case ACL_MEM_MALLOC_HUGE_FIRST:
    case ACL_MEM_MALLOC_HUGE_FIRST_P2P:
      return padded <= kChunk / 2 ? Pages::kNormal : Pages::kHugeElseNormal;
    case ACL_MEM_MALLOC_HUGE_ONLY:
    case ACL_MEM_MALLOC_HUGE_ONLY_P2P:
      return Pages::kHuge;
    case ACL_MEM_MALLOC_NORMAL_ONLY:
    case ACL_MEM_MALLOC_NORMAL_ONLY_P2P:
      return Pages::kNormal;
    case ACL_MEM_MALLOC_HUGE1G_ONLY:
    case ACL_MEM_MALLOC_HUGE1G_ONLY_P2P:
      return Pages::kHuge1G;
    default:
      return padded >= kChunk ? Pages::kHugeElseNormal : Pages::kNormal;
  }
}

// Of the begin of a block.
uint64_t AlignmentOf(const Range& block) {
  if (!block.huge) return kPage;
  return block.paged % kGiantPage == 0 ? kGiantPage : kChunk;
}

// Where the program called the ACL function that runs now: the first return address outside the emulator.
void* CallSite() {
  void* frames[16];
  int count = backtrace(frames, 16);
  for (int i = 1; i < count; ++i) {
    Dl_info info{};
    if (dladdr(frames[i], &info) == 0 || info.dli_fname == nullptr) return frames[i];
    bool ours = false;
    for (const char* name : {"libaclemu_core.so", "libascendcl.so", "libacl_rt.so"}) {
      ours = ours || strstr(info.dli_fname, name) != nullptr;
    }
    if (!ours) return frames[i];
  }
  return nullptr;
}

// Rule M4: the padding alone costs such a block another large page.
void AdviseOnSize(size_t size, aclrtMemMallocPolicy policy, uint64_t padding) {
  if (size % kChunk != 0 || padding == 0) return;
  Pages pages = Choose(policy, size + padding);
  if (pages != Pages::kHuge && pages != Pages::kHugeElseNormal) return;
  static std::mutex* const mutex = new std::mutex;
  static auto* const sites = new std::set<void*>;
  bool first;
  {
    std::lock_guard lock(*mutex);
    first = sites->insert(CallSite()).second;
  }
  Advise(Rule::kM4, first, "%zu bytes take a page of 2 MiB more than they need; aclrtMallocAlign32 does not", size);
}

// Fills in where the bytes of the block live. False when the device is full.
bool TakePages(DevicePool& pool, Pages pages, uint64_t padded, Range* block) {
  block->huge = pages != Pages::kNormal;
  block->paged = AlignUp(padded, pages == Pages::kHuge1G ? kGiantPage : block->huge ? kChunk : kPage);
  bool taken = pool.Take(block->paged, block->huge, &block->extents);
  if (!taken && pages == Pages::kHugeElseNormal) {
    block->huge = false;
    block->paged = AlignUp(padded, kPage);
    taken = pool.Take(block->paged, false, &block->extents);
  }
  if (!taken) return false;
  block->pool = &pool;
  AddPagedBytes(block->paged);
  return true;
}

aclError Malloc(Runtime& runtime, void** out, size_t size, aclrtMemMallocPolicy policy, uint64_t padding) {
  if (out == nullptr) return NullPointer("devPtr");
  if (size == 0) return Fail(ACL_ERROR_INVALID_PARAM, "size 0");
  AdviseOnSize(size, policy, padding);
  ACLEMU_TRY(NeedContext());
  int device = Runtime::Current()->device;
  DevicePool& pool = runtime.pool(device);
  runtime.FeedTenant(device);
  auto block = std::make_shared<Range>(MemClass::kDevice, 0, size);
  block->device = device;
  block->policy = static_cast<int>(policy);
  block->stack = CaptureStack();
  bool fits = size <= Settings().hbm_bytes;
  if (fits) {
    uint64_t rounded = AlignUp(size, 32);
    Pages pages = Choose(policy, rounded + padding);
    fits = TakePages(pool, pages, pages == Pages::kHuge1G ? rounded : rounded + padding, block.get());
  }
  if (fits) block->base = runtime.ranges.ReserveAddresses(device, block->paged, AlignmentOf(*block));
  if (!fits || block->base == 0) {
    Bump(Stats().device_allocs_failed);
    return Fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "device %d has no room for %zu bytes", device, size);
  }
  if (Settings().poison) {
    for (const Extent& extent : block->extents) Fill(pool.At(extent.offset), extent.bytes, 0xA5);
  }
  ChargeMalloc(block->bytes);
  *out = reinterpret_cast<void*>(block->base);
  if (!runtime.ranges.Insert(std::move(block))) Broken("a fresh device address is taken");
  Bump(Stats().device_allocs);
  return ACL_SUCCESS;
}

// Takes a block out of the map if it has the class and no queued task uses it.
aclError Release(Runtime& runtime, void* ptr, MemClass cls, Rule in_flight_rule, aclError unknown,
                 std::shared_ptr<Range>* out) {
  uint32_t users = 0;
  auto base = reinterpret_cast<uintptr_t>(ptr);
  auto idle = [&](const Range& range) {
    if (range.cls != cls) return false;
    users = range.in_flight.load(std::memory_order_acquire);
    return users == 0;
  };
  *out = runtime.ranges.Remove(base, idle);
  if (*out == nullptr && users > 0) {
    runtime.AwaitLostTasks([&] { return (*out = runtime.ranges.Remove(base, idle)) != nullptr; });
  }
  if (*out == nullptr && users > 0) {
    ACLEMU_TRY(Strict(in_flight_rule, ACL_ERROR_RT_PARAM_INVALID, "%u queued tasks still use %p", users, ptr));
    *out = runtime.ranges.Remove(base, [&](const Range& range) { return range.cls == cls; });
  }
  if (*out != nullptr) return ACL_SUCCESS;
  return Refuse(Rule::kM1, unknown, "%p is not the begin of such a live block", ptr);
}

// Memory that the kernel refuses to pin, as it refuses the real driver's; ordinary memory when the system has none.
void* MapPinned(uint64_t bytes) {
  void* map = mmap(nullptr, bytes + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  void* filled = MAP_FAILED;
#ifdef SYS_memfd_secret
  if (Settings().host_mem != HostMem::kPlain) {
    int fd = static_cast<int>(syscall(SYS_memfd_secret, O_CLOEXEC));
    if (fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0) {
      filled = mmap(map, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    }
    if (fd >= 0) close(fd);
  }
#endif
  if (filled == MAP_FAILED && Settings().host_mem != HostMem::kSecret) {
    filled = mmap(map, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  }
  if (filled == MAP_FAILED) {
    munmap(map, bytes + kPage);
    return nullptr;
  }
  madvise(map, bytes, MADV_DONTFORK);
  return map;
}

// Whether every page of the range is mapped.
bool IsMapped(uintptr_t begin, uint64_t bytes) {
  constexpr uint64_t kStep = 256u << 20;
  std::vector<unsigned char> pages(std::min(kStep, AlignUp(bytes, kPage)) / kPage);
  for (uint64_t at = 0; at < bytes; at += kStep) {
    if (mincore(reinterpret_cast<void*>(begin + at), std::min(kStep, bytes - at), pages.data()) != 0) return false;
  }
  return true;
}

aclError RegisterHost(Runtime& runtime, void* ptr, uint64_t size, std::shared_ptr<Range>* out) {
  if (!Settings().soc->registers_host) {
    return Fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "%s registers no host memory", Settings().soc->soc_name);
  }
  auto base = reinterpret_cast<uintptr_t>(ptr);
  if (base % kPage != 0) return Fail(ACL_ERROR_RT_PARAM_INVALID, "%p is not page aligned", ptr);
  if (base + size < base || !runtime.ranges.Find(ptr).OnHost()) {
    return Fail(ACL_ERROR_RT_PARAM_INVALID, "%p is no host range of %llu bytes", ptr,
                static_cast<unsigned long long>(size));
  }
  if (!IsMapped(base, size)) return Fail(ACL_ERROR_RT_PARAM_INVALID, "%p: not all pages are mapped", ptr);
  *out = std::make_shared<Range>(MemClass::kRegistered, base, size);
  (*out)->stack = CaptureStack();
  if (!runtime.ranges.Insert(*out)) {
    return Fail(ACL_ERROR_RT_HOST_MEMORY_ALREADY_REGISTERED, "%p overlaps pinned or registered memory", ptr);
  }
  ChargePin(size);
  Bump(Stats().host_registers);
  return ACL_SUCCESS;
}

aclError MemInfo(Runtime& runtime, aclrtMemAttr attr, size_t* free_bytes, size_t* total) {
  runtime.FeedTenant(Runtime::Current()->device);
  DevicePool::Room room = runtime.pool(Runtime::Current()->device).GetRoom();
  uint64_t total_huge = room.total - room.total_normal;
  // Either kind of memory answers to its own names only, and to those without a kind.
  const bool hbm = Settings().soc->has_hbm;
  switch (static_cast<uint32_t>(attr)) {
    case ACL_DDR_MEM:
    case ACL_HBM_MEM:
      if (hbm != (attr == ACL_HBM_MEM)) break;
      *free_bytes = room.free_huge + room.free_normal;
      *total = room.total;
      return ACL_SUCCESS;
    case ACL_DDR_MEM_HUGE:
    case ACL_HBM_MEM_HUGE:
    case ACL_MEM_HUGE:
      if (attr != ACL_MEM_HUGE && hbm != (attr == ACL_HBM_MEM_HUGE)) break;
      *free_bytes = room.free_huge;
      *total = total_huge;
      return ACL_SUCCESS;
    case ACL_DDR_MEM_NORMAL:
    case ACL_HBM_MEM_NORMAL:
    case ACL_MEM_NORMAL:
      if (attr != ACL_MEM_NORMAL && hbm != (attr == ACL_HBM_MEM_NORMAL)) break;
      *free_bytes = room.free_normal;
      *total = room.total_normal;
      return ACL_SUCCESS;
    case ACL_HBM_MEM_HUGE1G:
    case ACL_MEM_HUGE1G:
      if (attr != ACL_MEM_HUGE1G && !hbm) break;
      *free_bytes = room.free_huge / kGiantPage * kGiantPage;
      *total = total_huge / kGiantPage * kGiantPage;
      return ACL_SUCCESS;
    default:
      break;
  }
  // What this chip does not have.
  *free_bytes = 0;
  *total = 0;
  return ACL_SUCCESS;
}

}  // namespace

aclError MallocDevice(Runtime& runtime, void** out, size_t size, aclrtMemMallocPolicy policy, uint64_t padding) {
  return Malloc(runtime, out, size, policy, padding);
}

aclError FreeDevice(Runtime& runtime, void* ptr) {
  std::shared_ptr<Range> block;
  ACLEMU_TRY(CheckFree(runtime.ranges.Find(ptr)));
  ACLEMU_TRY(Release(runtime, ptr, MemClass::kDevice, Rule::kM2, ACL_ERROR_RT_PARAM_INVALID, &block));
  ChargeFree(block->bytes);
  Bump(Stats().device_frees);
  return ACL_SUCCESS;
}

aclError MallocHost(Runtime& runtime, void** ptr, size_t size) {
  if (ptr == nullptr) return NullPointer("hostPtr");
  if (size == 0) return Fail(ACL_ERROR_INVALID_PARAM, "size 0");
  ACLEMU_TRY(NeedContext());
  uint64_t bytes = size > (1ULL << 46) ? 0 : AlignUp(size, kPage);
  void* map = bytes == 0 ? nullptr : MapPinned(bytes);
  if (map == nullptr) return Fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "no pinned memory of %zu bytes", size);
  auto block = std::make_shared<Range>(MemClass::kPinned, reinterpret_cast<uintptr_t>(map), size);
  block->map = map;
  block->stack = CaptureStack();
  block->map_bytes = bytes + kPage;
  if (Settings().poison) Fill(static_cast<std::byte*>(map), size, 0xA5);
  if (!runtime.ranges.Insert(std::move(block))) {
    // The program unmapped registered memory without unregistering it, and the system reused the addresses.
    return Refuse(Rule::kM1, ACL_ERROR_RT_MEMORY_ALLOCATION, "%p is registered but was unmapped", map);
  }
  ChargePin(size);
  *ptr = map;
  Bump(Stats().host_allocs);
  return ACL_SUCCESS;
}

aclError FreeHost(Runtime& runtime, void* ptr) {
  std::shared_ptr<Range> block;
  ACLEMU_TRY(Release(runtime, ptr, MemClass::kPinned, Rule::kR2, ACL_ERROR_RT_PARAM_INVALID, &block));
  Bump(Stats().host_frees);
  return ACL_SUCCESS;
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtMalloc(void** ptr, size_t size, aclrtMemMallocPolicy policy) {
  return Call(Api::aclrtMalloc, Out(ptr, {.bytes = size}),
              [&](Runtime& runtime) { return Malloc(runtime, ptr, size, policy, Settings().soc->malloc_padding); });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtMallocAlign32(void** ptr, size_t size, aclrtMemMallocPolicy policy) {
  return Call(Api::aclrtMallocAlign32, Out(ptr, {.bytes = size}),
              [&](Runtime& runtime) { return Malloc(runtime, ptr, size, policy, 0); });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtFree(void* ptr) {
  return Call(Api::aclrtFree, {.a = ptr}, [&](Runtime& runtime) {
    if (ptr == nullptr) return NullPointer("devPtr");
    return FreeDevice(runtime, ptr);
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtMallocHost(void** ptr, size_t size) {
  return Call(Api::aclrtMallocHost, Out(ptr, {.bytes = size}),
              [&](Runtime& runtime) { return MallocHost(runtime, ptr, size); });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtFreeHost(void* ptr) {
  return Call(Api::aclrtFreeHost, {.a = ptr}, [&](Runtime& runtime) {
    if (ptr == nullptr) return NullPointer("hostPtr");
    return FreeHost(runtime, ptr);
  });
}

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtHostRegister(void* ptr, uint64_t size, aclrtHostRegisterType type, void** device_ptr) {
  return Call(Api::aclrtHostRegister, {.a = ptr, .bytes = size}, [&](Runtime& runtime) {
    if (ptr == nullptr || device_ptr == nullptr) return NullPointer("ptr or devPtr");
    if (size == 0) return Fail(ACL_ERROR_INVALID_PARAM, "size 0");
    if (type != ACL_HOST_REGISTER_MAPPED) return Fail(ACL_ERROR_INVALID_PARAM, "type %d", static_cast<int>(type));
    ACLEMU_TRY(NeedContext());
    std::shared_ptr<Range> block;
    ACLEMU_TRY(RegisterHost(runtime, ptr, size, &block));
    uintptr_t address = DeviceView(runtime, *block);
    if (address == 0) {
      runtime.ranges.Remove(block->base, [&](const Range& range) { return &range == block.get(); });
      return Fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "no device addresses left");
    }
    *device_ptr = reinterpret_cast<void*>(address);
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtHostRegisterV2(void* ptr, uint64_t size, uint32_t flag) {
  return Call(Api::aclrtHostRegisterV2, {.a = ptr, .bytes = size}, [&](Runtime& runtime) {
    if (ptr == nullptr) return NullPointer("ptr");
    if (size == 0) return Fail(ACL_ERROR_INVALID_PARAM, "size 0");
    constexpr uint32_t kReserved = ACL_HOST_REG_IOMEMORY | ACL_HOST_REG_READONLY;
    if (flag == 0 || (flag & ~(ACL_HOST_REG_MAPPED | ACL_HOST_REG_PINNED | kReserved)) != 0) {
      return Fail(ACL_ERROR_RT_PARAM_INVALID, "flag 0x%x", flag);
    }
    if ((flag & kReserved) != 0) return Fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "flag 0x%x is reserved", flag);
    ACLEMU_TRY(NeedContext());
    std::shared_ptr<Range> block;
    return RegisterHost(runtime, ptr, size, &block);
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtHostUnregister(void* ptr) {
  return Call(Api::aclrtHostUnregister, {.a = ptr}, [&](Runtime& runtime) {
    if (ptr == nullptr) return NullPointer("ptr");
    ACLEMU_TRY(NeedContext());
    std::shared_ptr<Range> block;
    ACLEMU_TRY(
        Release(runtime, ptr, MemClass::kRegistered, Rule::kR2, ACL_ERROR_RT_HOST_MEMORY_NOT_REGISTERED, &block));
    Bump(Stats().host_unregisters);
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtPointerGetAttributes(const void* ptr, aclrtPtrAttributes* attributes) {
  return Call(Api::aclrtPointerGetAttributes, Out(attributes, {.a = ptr}), [&](Runtime& runtime) {
    if (ptr == nullptr || attributes == nullptr) return NullPointer("ptr or attributes");
    ACLEMU_TRY(NeedContext());
    Place place = runtime.ranges.Find(ptr);
    aclrtPtrAttributes found{};
    switch (place.cls) {
      case MemClass::kDevice:
        found.location = {static_cast<uint32_t>(place.range->device), ACL_MEM_LOCATION_TYPE_DEVICE};
        found.pageSize = static_cast<uint32_t>(place.range->huge ? kChunk : kPage);
        break;
      case MemClass::kPinned:
      case MemClass::kRegistered:
        found.location = {0, ACL_MEM_LOCATION_TYPE_HOST};
        found.pageSize = kPage;
        break;
      case MemClass::kPageable:
        // Releases before 8.5 do not know such memory; callers must live with both answers.
        if (!Settings().pageable_sync) return Fail(ACL_ERROR_RT_PARAM_INVALID, "%p is not known to ACL", ptr);
        found.location = {0, ACL_MEM_LOCATION_TYPE_UNREGISTERED};
        break;
      case MemClass::kDeadDevice:
        return Fail(ACL_ERROR_RT_PARAM_INVALID, "%p is in no live block", ptr);
    }
    *attributes = found;
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtGetMemInfo(aclrtMemAttr attr, size_t* free_bytes, size_t* total) {
  return Call(Api::aclrtGetMemInfo, Out(free_bytes), [&](Runtime& runtime) {
    if (free_bytes == nullptr || total == nullptr) return NullPointer("free or total");
    if (static_cast<uint32_t>(attr) > ACL_MEM_P2P_HUGE1G) return Fail(ACL_ERROR_INVALID_PARAM, "attribute %d", attr);
    ACLEMU_TRY(NeedContext());
    return MemInfo(runtime, attr, free_bytes, total);
  });
}

}  // namespace aclemu
