// The functions of aclemu.h: what tests may ask beyond ACL.
#include "aclemu.h"

#include <cstring>

#include "core/model.h"
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
  if (out == nullptr) return -1;
  uint32_t version = out->version, bytes = out->struct_bytes;
  constexpr uint32_t kBytes1 = offsetof(aclemu_stats, submit_blocked_ns);
  bool known = (version == 1 && bytes == kBytes1) || (version == ACLEMU_STATS_VERSION && bytes == sizeof(*out));
  if (!known) return -1;
  const Counters& s = Stats();
  aclemu_stats r{};
  r.version = version;
  r.struct_bytes = bytes;
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
  memcpy(out, &r, bytes);
  return 0;
}

ACLEMU_ENTRY(void) aclemu_reset_stats(void) {
  ResetStats();
}

ACLEMU_ENTRY(int64_t) aclemu_live_allocs(int32_t device) {
  int64_t count = 0;
  Runtime::Get().ranges.ForEach([&](const Range& range) {
    count +=
        range.cls == MemClass::kDevice && range.origin == Origin::kMalloc && (device == -1 || range.device == device);
  });
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

ACLEMU_ENTRY(uint64_t) aclemu_calls(const char* name) {
  if (name == nullptr) return UINT64_MAX;
  bool all = strcmp(name, "any") == 0;
  uint64_t sum = 0;
  for (size_t i = 0; i < static_cast<size_t>(Api::kCount); ++i) {
    uint64_t calls = Stats().calls[i].load();
    if (!all && strcmp(name, Name(static_cast<Api>(i))) == 0) return calls;
    sum += calls;
  }
  return all ? sum : UINT64_MAX;
}

ACLEMU_ENTRY(int) aclemu_step(void* handle) {
  if (Settings().sched != Sched::kManual) return -1;
  if (handle != nullptr) {
    auto stream = Runtime::Get().streams.Find(handle);
    return stream == nullptr ? -1 : stream->Step();
  }
  for (const auto& stream : UsedStreams()) {
    if (stream->Step()) return 1;
  }
  return 0;
}

ACLEMU_ENTRY(uint64_t) aclemu_model_now_ns(void) {
  return static_cast<uint64_t>(Clock::now().time_since_epoch().count());
}

ACLEMU_ENTRY(double) aclemu_model_param(const char* name) {
  double value = -1;
  Settings();  // so that the knobs are applied
  return name != nullptr && GetModelParam(name, &value) ? value : -1;
}
