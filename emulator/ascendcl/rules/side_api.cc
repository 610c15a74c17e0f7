// The functions of aclemu.h: what tests may ask beyond ACL.
#include "aclemu.h"

#include "rules/call.h"

namespace aclemu {
namespace {

// False unless the bytes lie inside one live device block.
bool FindDeviceBytes(const void* ptr, size_t bytes, Place* place) {
  *place = Runtime::Get().ranges.Find(ptr);
  return place->cls == MemClass::kDevice && bytes <= place->room;
}

Place HostPlace(const void* ptr) {
  Place place;
  place.addr = reinterpret_cast<uintptr_t>(ptr);
  return place;
}

void FillLive(aclemu_stats* out) {
  Runtime::Get().ranges.ForEach([&](const Range& range) {
    if (range.cls == MemClass::kDevice) {
      ++out->device_live_blocks;
      out->device_live_bytes += range.bytes;
    } else {
      ++out->host_live_blocks;
      out->host_live_bytes += range.bytes;
    }
  });
}

}  // namespace
}  // namespace aclemu

using namespace aclemu;

ACLEMU_ENTRY(int) aclemu_get_stats(aclemu_stats* out) {
  if (out == nullptr || out->version != ACLEMU_STATS_VERSION || out->struct_bytes != sizeof(*out)) return -1;
  const Counters& s = Stats();
  aclemu_stats r{};
  r.version = ACLEMU_STATS_VERSION;
  r.struct_bytes = sizeof(r);
#define FIELD(name) r.name = s.name.load();
  ACLEMU_COUNTERS(FIELD)
#undef FIELD
  for (int d = 0; d < 4; ++d) {
    r.sync_copies[d] = s.sync_copies[d].load();
    r.sync_bytes[d] = s.sync_bytes[d].load();
    r.async_copies[d] = s.async_copies[d].load();
    r.async_bytes[d] = s.async_bytes[d].load();
  }
  r.faults_fired = FaultPlan::Get().fired();
  FillLive(&r);
  *out = r;
  return 0;
}

ACLEMU_ENTRY(void) aclemu_reset_stats(void) {
  ResetStats();
}

ACLEMU_ENTRY(int64_t) aclemu_live_allocs(int32_t device) {
  int64_t count = 0;
  Runtime::Get().ranges.ForEach(
      [&](const Range& range) { count += range.cls == MemClass::kDevice && (device == -1 || range.device == device); });
  return count;
}

ACLEMU_ENTRY(int) aclemu_peek(const void* device_ptr, void* host, size_t bytes) {
  Place place;
  if (!FindDeviceBytes(device_ptr, bytes, &place)) return -1;
  return CopyBytes(HostPlace(host), place, bytes) == ACL_SUCCESS ? 0 : -1;
}

ACLEMU_ENTRY(int) aclemu_poke(void* device_ptr, const void* host, size_t bytes) {
  Place place;
  if (!FindDeviceBytes(device_ptr, bytes, &place)) return -1;
  return CopyBytes(place, HostPlace(host), bytes) == ACL_SUCCESS ? 0 : -1;
}

ACLEMU_ENTRY(int) aclemu_ptr_class(const void* ptr) {
  switch (Runtime::Get().ranges.Find(ptr).cls) {
    case MemClass::kPageable:
      return ACLEMU_CLASS_PAGEABLE;
    case MemClass::kPinned:
      return ACLEMU_CLASS_PINNED;
    case MemClass::kRegistered:
      return ACLEMU_CLASS_REGISTERED;
    case MemClass::kDevice:
      return ACLEMU_CLASS_DEVICE;
    case MemClass::kDeadDevice:
      return ACLEMU_CLASS_DEAD_DEVICE;
  }
  return ACLEMU_CLASS_PAGEABLE;
}

ACLEMU_ENTRY(void) aclemu_set_capture(int on) {
  Runtime::Get().capturing = on != 0;
}

ACLEMU_ENTRY(int) aclemu_inject(const char* rules) {
  std::string why;
  if (rules != nullptr && FaultPlan::Get().Add(rules, &why)) return 0;
  Log("aclemu_inject: %s", why.c_str());
  return -1;
}
