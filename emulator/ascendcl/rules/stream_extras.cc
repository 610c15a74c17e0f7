// Properties of streams, failure modes, and what events can do beyond record and wait.
#include "rules/call.h"

namespace aclemu {
namespace {

// What an aclrtStreamWaitEvent without its own limit gets, process wide.
std::atomic<uint32_t> default_wait_seconds{0};

template <typename T, typename Read>
aclError ReadTrait(Runtime& runtime, aclrtStream handle, T* out, Read read) {
  if (out == nullptr) return NullPointer("the result");
  std::shared_ptr<Stream> stream;
  ACLEMU_TRY(FindStream(runtime, handle, &stream));
  *out = read(stream->traits);
  return ACL_SUCCESS;
}

aclError WaitEvent(Runtime& runtime, aclrtStream stream_handle, aclrtEvent event_handle, std::chrono::seconds limit) {
  std::shared_ptr<Event> event;
  std::shared_ptr<Stream> stream;
  ACLEMU_TRY(FindPair(runtime, event_handle, stream_handle, &event, &stream));
  if ((event->flags & ACL_EVENT_SYNC) == 0) {
    return Refuse(Rule::kS2, ACL_ERROR_RT_PARAM_INVALID, "a wait needs an event with the SYNC flag");
  }
  Task task{};
  task.kind = Task::Kind::kWait;
  task.event = event;
  task.record = event->last();
  task.wait_limit = limit;
  if (task.record == nullptr && event->is_ex) return ACL_SUCCESS;
  task.waiter = event->AddWaiter(stream);
  if (stream->Submit(std::move(task))) return ACL_SUCCESS;
  return Fail(ACL_ERROR_RT_PARAM_INVALID, "the stream was destroyed meanwhile");
}

aclError NotOfEx(const Event& event) {
  if (!event.is_ex) return ACL_SUCCESS;
  return Fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "not for events of CreateEventExWithFlag");
}

}  // namespace

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtStreamGetId(aclrtStream stream, int32_t* id) {
  return Call(Api::aclrtStreamGetId, Out(id, {.stream = stream, .has_stream = true}), [&](Runtime& runtime) {
    return ReadTrait(runtime, stream, id, [](const StreamTraits& traits) { return traits.id; });
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtStreamGetPriority(aclrtStream stream, uint32_t* priority) {
  return Call(Api::aclrtStreamGetPriority, Out(priority, {.stream = stream, .has_stream = true}),
              [&](Runtime& runtime) {
                return ReadTrait(runtime, stream, priority, [](const StreamTraits& traits) { return traits.priority; });
              });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtStreamGetFlags(aclrtStream stream, uint32_t* flags) {
  return Call(Api::aclrtStreamGetFlags, Out(flags, {.stream = stream, .has_stream = true}), [&](Runtime& runtime) {
    return ReadTrait(runtime, stream, flags, [](const StreamTraits& traits) { return traits.flags; });
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtGetStreamAvailableNum(uint32_t* count) {
  return Call(Api::aclrtGetStreamAvailableNum, Out(count), [&](Runtime& runtime) {
    if (count == nullptr) return NullPointer("streamCount");
    ACLEMU_TRY(NeedContext());
    uint64_t limit = Settings().soc->max_streams, used = runtime.shared(Runtime::Current()->device).StreamsInUse();
    *count = static_cast<uint32_t>(limit - std::min(limit, used));
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtCtxGetCurrentDefaultStream(aclrtStream* stream) {
  return Call(Api::aclrtCtxGetCurrentDefaultStream, Out(stream), [&](Runtime& runtime) {
    if (stream == nullptr) return NullPointer("stream");
    ACLEMU_TRY(NeedContext());
    *stream = reinterpret_cast<aclrtStream>(runtime.DefaultStreamHandle(*Runtime::Current()));
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtSetStreamFailureMode(aclrtStream handle, uint64_t mode) {
  return Call(Api::aclrtSetStreamFailureMode, {.stream = handle, .has_stream = true}, [&](Runtime& runtime) {
    if (handle == nullptr) return NullPointer("stream");
    if (mode > ACL_STOP_ON_FAILURE)
      return Fail(ACL_ERROR_RT_PARAM_INVALID, "mode %llu", static_cast<unsigned long long>(mode));
    std::shared_ptr<Stream> stream;
    ACLEMU_TRY(FindOwnStream(runtime, handle, &stream));
    std::atomic<bool>& stops = Runtime::Current()->failure->stops;
    if (mode == ACL_STOP_ON_FAILURE) {
      stops = true;
    } else if (stops) {
      return Fail(ACL_ERROR_RT_PARAM_INVALID, "the context stops on failure, for good");
    }
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtStreamStop(aclrtStream handle) {
  return Call(Api::aclrtStreamStop, {.stream = handle, .has_stream = true}, [&](Runtime& runtime) {
    if (handle == nullptr) return NullPointer("stream");
    std::shared_ptr<Stream> stream;
    ACLEMU_TRY(FindOwnStream(runtime, handle, &stream));
    stream->Abort();
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  return Call(Api::aclrtStreamWaitEvent, {.a = event, .stream = stream, .has_stream = true}, [&](Runtime& runtime) {
    return WaitEvent(runtime, stream, event, std::chrono::seconds(default_wait_seconds.load()));
  });
}

// 0 and -1 take the limit of all waits.
ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtStreamWaitEventWithTimeout(aclrtStream stream, aclrtEvent event, int32_t seconds) {
  return Call(Api::aclrtStreamWaitEventWithTimeout, {.a = event, .stream = stream, .has_stream = true},
              [&](Runtime& runtime) {
                if (seconds < -1) return Fail(ACL_ERROR_RT_PARAM_INVALID, "timeout %d s", seconds);
                uint32_t limit = seconds > 0 ? static_cast<uint32_t>(seconds) : default_wait_seconds.load();
                return WaitEvent(runtime, stream, event, std::chrono::seconds(limit));
              });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtSetOpWaitTimeout(uint32_t seconds) {
  return Call(Api::aclrtSetOpWaitTimeout, [&](Runtime&) {
    ACLEMU_TRY(NeedContext());
    default_wait_seconds = seconds;
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtQueryEvent(aclrtEvent handle, aclrtEventStatus* status) {
  return Call(Api::aclrtQueryEvent, Out(status, {.a = handle}), [&](Runtime& runtime) {
    if (status == nullptr) return NullPointer("status");
    std::shared_ptr<Event> event;
    ACLEMU_TRY(FindEvent(runtime, handle, &event));
    ACLEMU_TRY(NotOfEx(*event));
    auto record = event->last();
    *status = record != nullptr && IsComplete(record) ? ACL_EVENT_STATUS_COMPLETE : ACL_EVENT_STATUS_NOT_READY;
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtQueryEventWaitStatus(aclrtEvent handle, aclrtEventWaitStatus* status) {
  return Call(Api::aclrtQueryEventWaitStatus, Out(status, {.a = handle}), [&](Runtime& runtime) {
    if (status == nullptr) return NullPointer("status");
    std::shared_ptr<Event> event;
    ACLEMU_TRY(FindEvent(runtime, handle, &event));
    ACLEMU_TRY(NotOfEx(*event));
    std::shared_ptr<Stream> waiting = event->FirstWaiter();
    *status = waiting == nullptr ? ACL_EVENT_WAIT_STATUS_COMPLETE : ACL_EVENT_WAIT_STATUS_NOT_READY;
    // A query makes progress when streams are lazy, as time would on a device.
    if (waiting != nullptr) waiting->Query();
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtEventGetTimestamp(aclrtEvent handle, uint64_t* us) {
  return Call(Api::aclrtEventGetTimestamp, Out(us, {.a = handle}), [&](Runtime& runtime) {
    if (us == nullptr) return NullPointer("timestamp");
    std::shared_ptr<Event> event;
    ACLEMU_TRY(FindEvent(runtime, handle, &event));
    if ((event->flags & ACL_EVENT_TIME_LINE) == 0) {
      return Refuse(Rule::kS2, ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, "the event needs the TIME_LINE flag");
    }
    auto record = event->last();
    std::lock_guard lock(Event::mutex());
    if (record == nullptr || !record->done) {
      return Fail(ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, "the event is not recorded yet");
    }
    auto since_start = std::chrono::duration_cast<std::chrono::microseconds>(record->when.time_since_epoch());
    *us = static_cast<uint64_t>(since_start.count());
    return ACL_SUCCESS;
  });
}

}  // namespace aclemu
