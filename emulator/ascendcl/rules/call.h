// The frame of every API function: what is checked before its body and noted after it, and the checks bodies share.
#pragma once
#include <cerrno>
#include <cstring>
#include <new>

#include "core/fault.h"
#include "core/model.h"
#include "core/report.h"
#include "core/runtime.h"
#include "core/trace.h"
#include "core/transfer.h"

namespace aclemu {

// Declares the entry point that the facades call.
#define ACLEMU_ENTRY(ret) extern "C" __attribute__((visibility("default"))) ret

enum class NeedsInit { kNo, kYes };

// The device of a call, -1 when there is none.
int DeviceOf(Runtime& runtime, const CallArgs& args);
// Device loss and injected faults. 0 when the call may go on.
aclError CheckHealth(Runtime& runtime, Api api, const CallArgs& args);
// Rule S1: functions that wait, allocate or launch.
bool ForbiddenInCallback(Api api);

inline aclError BeforeCall(Api api, NeedsInit needs_init, const CallArgs& args) {
  Runtime& runtime = Runtime::Get();
  if (runtime.InForkedChild()) return Refuse(Rule::kT3, ACL_ERROR_RT_CONTEXT_NULL, "ACL used in a forked child");
  if (needs_init == NeedsInit::kYes && runtime.init_count.load(std::memory_order_relaxed) == 0) {
    aclError code = Strict(Rule::kI1, ACL_ERROR_UNINITIALIZE, "called without aclInit");
    if (code != ACL_SUCCESS) return code;
  }
  if (Runtime::Thread().in_callback && ForbiddenInCallback(api)) {
    return Refuse(Rule::kS1, ACL_ERROR_RT_PARAM_INVALID, "called inside a callback, where it can never end");
  }
  return CheckHealth(runtime, api, args);
}

// Nothing is thrown across the C boundary; errno is overwritten, as a real runtime does.
template <typename Body>
aclError Call(Api api, NeedsInit needs_init, const CallArgs& args, Body&& body) noexcept {
  SetCurrentApi(api);
  BeginCallTime();
  Clock::time_point begin = TraceBegin();
  Bump(Stats().calls[static_cast<size_t>(api)]);
  aclError code;
  try {
    code = BeforeCall(api, needs_init, args);
    if (code == ACL_SUCCESS) code = body(Runtime::Get());
  } catch (const std::exception& error) {
    code = Fail(ACL_ERROR_BAD_ALLOC, "%s", error.what());
  }
  if (code != ACL_SUCCESS) {
    Bump(Stats().failed_calls[static_cast<size_t>(api)]);
    Runtime::Thread().last_error = code;
    if (args.out != nullptr && Settings().poison_out) memset(args.out, 0xEE, args.out_bytes);
  }
  Trace(api, args, begin, code);
  errno = ENOTTY;
  return code;
}

template <typename Body>
aclError Call(Api api, NeedsInit needs_init, Body&& body) noexcept {
  return Call(api, needs_init, CallArgs{}, std::forward<Body>(body));
}

template <typename Body>
aclError Call(Api api, const CallArgs& args, Body&& body) noexcept {
  return Call(api, NeedsInit::kYes, args, std::forward<Body>(body));
}

template <typename Body>
aclError Call(Api api, Body&& body) noexcept {
  return Call(api, NeedsInit::kYes, CallArgs{}, std::forward<Body>(body));
}

// Names an output for ACLEMU_POISON_OUT.
template <typename T>
CallArgs Out(T* out, CallArgs args = {}) {
  args.out = out;
  args.out_bytes = sizeof(T);
  return args;
}

inline aclError NullPointer(const char* what) {
  return Fail(ACL_ERROR_INVALID_PARAM, "%s is NULL", what);
}

// Rule T1. 0 when the thread has a context.
inline aclError NeedContext() {
  if (Runtime::Current() != nullptr) return ACL_SUCCESS;
  return Refuse(Rule::kT1, ACL_ERROR_RT_CONTEXT_NULL, "the thread has no device or its context is gone");
}

inline aclError NeedDevice(Runtime& runtime, int64_t id) {
  if (runtime.ValidDevice(id)) return ACL_SUCCESS;
  return Fail(ACL_ERROR_RT_INVALID_DEVICEID, "device %lld of %u", static_cast<long long>(id), runtime.device_count());
}

// Finds a stream of any context; NULL is the default stream of the current one. Needs a context.
aclError FindStream(Runtime& runtime, aclrtStream handle, std::shared_ptr<Stream>* out);
// As above, and the stream must belong to the current context (rule T2).
aclError FindOwnStream(Runtime& runtime, aclrtStream handle, std::shared_ptr<Stream>* out);
aclError FindEvent(Runtime& runtime, aclrtEvent handle, std::shared_ptr<Event>* out);
// Event and stream of a call that queues something for both.
aclError FindPair(Runtime& runtime, aclrtEvent event_handle, aclrtStream stream_handle, std::shared_ptr<Event>* event,
                  std::shared_ptr<Stream>* stream);
// All streams of the current device.
aclError SynchronizeDevice(Runtime& runtime, Deadline deadline);
// -1: for ever; anything below 1 else is refused.
aclError ParseTimeout(int32_t ms, Deadline* out);

// 0 when bytes from there lie inside one block (rule C5), or the place is pageable and meets no block.
aclError CheckInside(const Place& place, const char* what, uint64_t bytes);
// 0 unless the caller claims more room than the block has (rule C6).
aclError CheckRoom(const Place& place, uint64_t claimed);

#define ACLEMU_TRY(expression)                    \
  do {                                            \
    aclError try_code = (expression);             \
    if (try_code != ACL_SUCCESS) return try_code; \
  } while (false)

}  // namespace aclemu
