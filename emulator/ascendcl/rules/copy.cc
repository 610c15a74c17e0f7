// Copies and fills: argument rules, then the bytes or a task.
#include "rules/copy.h"

#include "core/virtual_memory.h"
#include "rules/sharing.h"

namespace aclemu {

aclError CheckInside(const Place& place, const char* what, uint64_t bytes) {
  auto* at = reinterpret_cast<void*>(place.addr);
  auto size = static_cast<unsigned long long>(bytes);
  // In virtual memory the rest of the addresses is reserved, but nothing is mapped there.
  bool is_virtual = place.range != nullptr && place.range->origin == Origin::kVirtual;
  if (place.cls == MemClass::kDeadDevice || (is_virtual && bytes > place.room)) {
    bool reserved = is_virtual || VirtualMemory::Get().IsReserved(place.addr);
    if (reserved) {
      return Refuse(Rule::kV1, ACL_ERROR_RT_PARAM_INVALID, "%s %p + %llu is not all mapped on one device", what, at,
                    size);
    }
    return Refuse(Rule::kC5, ACL_ERROR_RT_PARAM_INVALID, "%s %p is in no live device block", what, at);
  }
  if (bytes <= place.room) return ACL_SUCCESS;
  ACLEMU_TRY(Strict(Rule::kC5, ACL_ERROR_RT_PARAM_INVALID, "%s %p + %llu leaves its %s", what, at, size,
                    place.range == nullptr ? "pageable memory" : "block"));
  // Lenient as the hardware, which checks pages only.
  if (place.range == nullptr) return ACL_SUCCESS;
  if (place.cls == MemClass::kDevice && place.offset() + bytes <= place.range->paged) return ACL_SUCCESS;
  return Fail(ACL_ERROR_RT_PARAM_INVALID, "%s %p + %llu leaves its pages", what, at, size);
}

aclError CheckRoom(const Place& place, uint64_t claimed) {
  if (place.range == nullptr || claimed <= place.room) return ACL_SUCCESS;
  return Strict(Rule::kC6, ACL_ERROR_RT_PARAM_INVALID, "destMax %llu but the block has %llu bytes left",
                static_cast<unsigned long long>(claimed), static_cast<unsigned long long>(place.room));
}

namespace {

constexpr uint64_t kMaxDeviceCopy = 4ULL << 30;
constexpr uintptr_t kAsyncAlignment = 64;

}  // namespace

// The order is that of the runtime.
aclError CheckArguments(const CopyCall& call) {
  if (call.dst == nullptr || call.src == nullptr) return NullPointer("dst or src");
  if (call.count == 0) return Refuse(Rule::kC3, ACL_ERROR_RT_PARAM_INVALID, "count 0");
  if (static_cast<uint32_t>(call.kind) > ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE) {
    return Fail(ACL_ERROR_INVALID_PARAM, "kind %d", static_cast<int>(call.kind));
  }
  if (call.count > call.dest_max) {
    return Refuse(Rule::kC4, ACL_ERROR_RT_PARAM_INVALID, "count %zu > destMax %zu", call.count, call.dest_max);
  }
  return ACL_SUCCESS;
}

namespace {

bool KindFits(aclrtMemcpyKind kind, Direction direction) {
  switch (kind) {
    case ACL_MEMCPY_DEFAULT:
      return true;
    case ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE:
      return direction == Direction::kH2D;
    default:
      return static_cast<int>(kind) == static_cast<int>(direction);
  }
}

aclError CheckPeers(Runtime& runtime, const Place& dst, const Place& src) {
  int to = dst.range->device, from = src.range->device;
  if (to == from || ReachableByShare(dst, src)) return ACL_SUCCESS;
  bool both = (runtime.device(to).peers.load() >> from & 1) != 0 && (runtime.device(from).peers.load() >> to & 1) != 0;
  if (both) return ACL_SUCCESS;
  return Refuse(Rule::kC11, ACL_ERROR_RT_PARAM_INVALID, "peer access between %d and %d is not enabled both ways", from,
                to);
}

}  // namespace

aclError CheckRoute(Runtime& runtime, aclrtMemcpyKind kind, const Place& dst, const Place& src, Rule kind_rule) {
  ACLEMU_TRY(CheckImported(dst, src, kind, kind_rule == Rule::kC2));
  Direction direction = DirectionOf(dst, src);
  if (!KindFits(kind, direction) && !(kind_rule == Rule::kC2 && Settings().release->corrects_kind)) {
    ACLEMU_TRY(Strict(kind_rule, ACL_ERROR_RT_PARAM_INVALID, "kind %d but the addresses say %s", static_cast<int>(kind),
                      Name(direction)));
  }
  return direction == Direction::kD2D ? CheckPeers(runtime, dst, src) : ACL_SUCCESS;
}

aclError CheckPlaces(Runtime& runtime, const CopyCall& call, const Place& dst, const Place& src, Rule kind_rule) {
  ACLEMU_TRY(CheckInside(src, "src", call.count));
  ACLEMU_TRY(CheckInside(dst, "dst", call.count));
  ACLEMU_TRY(CheckRoom(dst, call.dest_max));
  ACLEMU_TRY(CheckRoute(runtime, call.kind, dst, src, kind_rule));
  uintptr_t apart = dst.addr > src.addr ? dst.addr - src.addr : src.addr - dst.addr;
  if (apart < call.count) {
    ACLEMU_TRY(Strict(Rule::kC10, ACL_ERROR_RT_PARAM_INVALID, "src and dst overlap"));
  }
  if (DirectionOf(dst, src) == Direction::kD2D && call.count > kMaxDeviceCopy) {
    return Refuse(Rule::kC13, ACL_ERROR_RT_PARAM_INVALID, "one device copy moves at most 4 GiB");
  }
  return ACL_SUCCESS;
}

aclError CopyNow(const Place& dst, const Place& src, uint64_t bytes) {
  ACLEMU_TRY(CheckSynchronous(dst, &src, bytes));
  Outcome outcome = RunCopy({dst, src, bytes, CurrentApi(), false, -1, DueOnce(Model().sync_copy_us), nullptr});
  ChargeUntil(outcome.end);
  return outcome.code == ACL_SUCCESS ? ACL_SUCCESS : Fail(outcome.code, "the copy failed");
}

aclError CheckAligned(const Place& dst, const Place& src) {
  const Aligned rule = Settings().release->aligned;
  if (rule == Aligned::kNone) return ACL_SUCCESS;
  if (rule == Aligned::kDeviceToDevice && DirectionOf(dst, src) != Direction::kD2D) return ACL_SUCCESS;
  if ((dst.addr | src.addr) % kAsyncAlignment == 0) return ACL_SUCCESS;
  return Strict(Rule::kC8, ACL_ERROR_RT_ADDR_UNALIGNED, "an asynchronous copy needs 64 byte aligned ends");
}

aclError CheckCapture(Runtime& runtime) {
  if (!runtime.capturing.load()) return ACL_SUCCESS;
  return Refuse(Rule::kG1, ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT, "synchronous while a stream is being captured");
}

bool IsPageable(const Place& dst, const Place& src) {
  return dst.cls == MemClass::kPageable || src.cls == MemClass::kPageable;
}

aclError CheckPageable(aclrtMemcpyKind kind, const Place& dst, const Place& src, bool* now) {
  if (!Settings().pageable_sync) {
    ACLEMU_TRY(Strict(Rule::kC7, ACL_ERROR_RT_PARAM_INVALID, "asynchronous copy of pageable memory"));
  }
  ACLEMU_TRY(CheckImported(dst, src, kind, true));
  Direction direction = DirectionOf(dst, src);
  // A device copy that names pageable memory is not noticed before it runs, and fails there.
  *now = kind != ACL_MEMCPY_DEVICE_TO_DEVICE;
  if (!*now || KindFits(kind, direction)) return ACL_SUCCESS;
  return Refuse(Rule::kC2, ACL_ERROR_RT_PARAM_INVALID, "kind %d but the addresses say %s", static_cast<int>(kind),
                Name(direction));
}

aclError DrainForPageable(Stream& stream) {
  if (Runtime::Get().capturing.load()) {
    return Refuse(Rule::kG1, Settings().release->capture_pageable, "pageable memory while a stream is being captured");
  }
  ACLEMU_TRY(stream.Synchronize(kForever));
  Bump(Stats().pageable_async_fallbacks);
  return ACL_SUCCESS;
}

aclError SubmitCopy(Stream& stream, const Place& dst, const Place& src, uint64_t bytes) {
  FaultAction fault =
      FaultPlan::Get().Check({FaultPoint::Moment::kSubmit, CurrentApi(), static_cast<int>(DirectionOf(dst, src)),
                              stream.device, bytes, stream.number});
  if (fault.code != ACL_SUCCESS) return Fail(fault.code, "injected fault");
  Task task{};
  task.kind = Task::Kind::kCopy;
  task.dst = dst;
  task.src = src;
  task.bytes = bytes;
  task.dst_use = InFlight(dst.range);
  task.src_use = InFlight(src.range);
  if (stream.Submit(std::move(task))) return ACL_SUCCESS;
  return Fail(ACL_ERROR_RT_PARAM_INVALID, "the stream was destroyed meanwhile");
}

namespace {

// Before any look at the pointers, as in the release that does so.
bool IsEmptyAndFine(size_t count) {
  return count == 0 && Settings().release->empty_copy_succeeds;
}

aclError CopyAsync(Runtime& runtime, const CopyCall& call, aclrtStream handle) {
  if (IsEmptyAndFine(call.count)) return ACL_SUCCESS;
  ACLEMU_TRY(CheckArguments(call));
  ACLEMU_TRY(NeedContext());
  std::shared_ptr<Stream> stream;
  ACLEMU_TRY(FindOwnStream(runtime, handle, &stream));
  if (call.dst == call.src) return ACL_SUCCESS;
  Place dst = runtime.ranges.Find(call.dst), src = runtime.ranges.Find(call.src);
  if (dst.OnHost() && src.OnHost()) {
    return Refuse(Rule::kC9, ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "asynchronous host to host copy");
  }
  if (!IsPageable(dst, src)) {
    ACLEMU_TRY(CheckPlaces(runtime, call, dst, src, Rule::kC2));
    ACLEMU_TRY(CheckAligned(dst, src));
    return SubmitCopy(*stream, dst, src, call.count);
  }
  ACLEMU_TRY(CheckInside(src, "src", call.count));
  ACLEMU_TRY(CheckInside(dst, "dst", call.count));
  ACLEMU_TRY(CheckRoom(dst, call.dest_max));
  bool now = false;
  ACLEMU_TRY(CheckPageable(call.kind, dst, src, &now));
  if (!now) return SubmitCopy(*stream, dst, src, call.count);
  ACLEMU_TRY(DrainForPageable(*stream));
  return CopyNow(dst, src, call.count);
}

aclError CheckFill(Runtime& runtime, void* ptr, size_t max_count, size_t count, Place* place) {
  if (ptr == nullptr) return NullPointer("devPtr");
  if (count == 0) return Refuse(Rule::kC3, ACL_ERROR_RT_PARAM_INVALID, "count 0");
  if (count > max_count) {
    return Refuse(Rule::kC4, ACL_ERROR_RT_PARAM_INVALID, "count %zu > maxCount %zu", count, max_count);
  }
  ACLEMU_TRY(NeedContext());
  *place = runtime.ranges.Find(ptr);
  if (place->cls == MemClass::kPageable) {
    return Fail(ACL_ERROR_RT_PARAM_INVALID, "%p is not memory of ACL", ptr);
  }
  ACLEMU_TRY(CheckInside(*place, "devPtr", count));
  ACLEMU_TRY(CheckImported(*place, *place, ACL_MEMCPY_DEFAULT, false));
  return CheckRoom(*place, max_count);
}

}  // namespace

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtMemcpy(void* dst, size_t dest_max, const void* src, size_t count, aclrtMemcpyKind kind) {
  return Call(Api::aclrtMemcpy, {.a = dst, .b = src, .bytes = count}, [&](Runtime& runtime) {
    if (IsEmptyAndFine(count)) return ACL_SUCCESS;
    CopyCall call{dst, dest_max, src, count, kind};
    ACLEMU_TRY(CheckArguments(call));
    if (dst == src) return ACL_SUCCESS;
    ACLEMU_TRY(NeedContext());
    ACLEMU_TRY(CheckCapture(runtime));
    Place to = runtime.ranges.Find(dst), from = runtime.ranges.Find(src);
    ACLEMU_TRY(CheckPlaces(runtime, call, to, from, Rule::kC1));
    return CopyNow(to, from, count);
  });
}

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtMemcpyAsync(void* dst, size_t dest_max, const void* src, size_t count, aclrtMemcpyKind kind,
                             aclrtStream stream) {
  return Call(Api::aclrtMemcpyAsync, {.a = dst, .b = src, .bytes = count, .stream = stream, .has_stream = true},
              [&](Runtime& runtime) { return CopyAsync(runtime, {dst, dest_max, src, count, kind}, stream); });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtMemset(void* ptr, size_t max_count, int32_t value, size_t count) {
  return Call(Api::aclrtMemset, {.a = ptr, .bytes = count}, [&](Runtime& runtime) {
    if (IsEmptyAndFine(count)) return ACL_SUCCESS;
    Place place;
    ACLEMU_TRY(CheckFill(runtime, ptr, max_count, count, &place));
    ACLEMU_TRY(CheckCapture(runtime));
    ACLEMU_TRY(CheckSynchronous(place, nullptr, count));
    Outcome outcome = RunFill({place, place, count, CurrentApi(), false, -1, DueOnce(Model().sync_copy_us), nullptr},
                              static_cast<uint8_t>(value));
    ChargeUntil(outcome.end);
    ACLEMU_TRY(outcome.code);
    Bump(Stats().memsets);
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtMemsetAsync(void* ptr, size_t max_count, int32_t value, size_t count, aclrtStream handle) {
  const CallArgs args{.a = ptr, .bytes = count, .stream = handle, .has_stream = true};
  return Call(Api::aclrtMemsetAsync, args, [&](Runtime& runtime) {
    if (IsEmptyAndFine(count)) return ACL_SUCCESS;
    Task task{};
    task.kind = Task::Kind::kSet;
    ACLEMU_TRY(CheckFill(runtime, ptr, max_count, count, &task.dst));
    std::shared_ptr<Stream> stream;
    ACLEMU_TRY(FindOwnStream(runtime, handle, &stream));
    task.bytes = count;
    task.value = static_cast<uint8_t>(value);
    task.dst_use = InFlight(task.dst.range);
    if (!stream->Submit(std::move(task))) return Fail(ACL_ERROR_RT_PARAM_INVALID, "the stream was destroyed meanwhile");
    Bump(Stats().memsets);
    return ACL_SUCCESS;
  });
}

}  // namespace aclemu
