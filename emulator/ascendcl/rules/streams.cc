// Streams and events.
#include "rules/call.h"

namespace aclemu {

aclError FindStream(Runtime& runtime, aclrtStream handle, std::shared_ptr<Stream>* out) {
  ACLEMU_TRY(NeedContext());
  *out = handle == nullptr ? Runtime::Current()->default_stream : runtime.streams.Find(handle);
  if (*out == nullptr) *out = runtime.default_streams.Find(handle);
  return *out != nullptr ? ACL_SUCCESS : Fail(ACL_ERROR_RT_PARAM_INVALID, "no such stream (destroyed?)");
}

aclError FindOwnStream(Runtime& runtime, aclrtStream handle, std::shared_ptr<Stream>* out) {
  ACLEMU_TRY(FindStream(runtime, handle, out));
  if ((*out)->context == Runtime::Current()->handle) return ACL_SUCCESS;
  return Refuse(Rule::kT2, ACL_ERROR_RT_STREAM_CONTEXT, "the stream belongs to another context");
}

aclError FindEvent(Runtime& runtime, aclrtEvent handle, std::shared_ptr<Event>* out) {
  if (handle == nullptr) return NullPointer("event");
  *out = runtime.events.Find(handle);
  return *out != nullptr ? ACL_SUCCESS : Fail(ACL_ERROR_RT_PARAM_INVALID, "no such event (destroyed?)");
}

aclError ParseTimeout(int32_t ms, Deadline* out) {
  if (ms == 0 || ms < -1) return Fail(ACL_ERROR_RT_PARAM_INVALID, "timeout %d", ms);
  *out = ms == -1 ? kForever : Clock::now() + std::chrono::milliseconds(ms);
  return ACL_SUCCESS;
}

aclError FindPair(Runtime& runtime, aclrtEvent event_handle, aclrtStream stream_handle, std::shared_ptr<Event>* event,
                  std::shared_ptr<Stream>* stream) {
  ACLEMU_TRY(FindEvent(runtime, event_handle, event));
  ACLEMU_TRY(FindOwnStream(runtime, stream_handle, stream));
  if ((*event)->device == (*stream)->device) return ACL_SUCCESS;
  return Fail(ACL_ERROR_RT_PARAM_INVALID, "event of device %d, stream of device %d", (*event)->device,
              (*stream)->device);
}

namespace {

constexpr uint32_t kEventFlags = ACL_EVENT_SYNC | ACL_EVENT_CAPTURE_STREAM_PROGRESS | ACL_EVENT_TIME_LINE |
                                 ACL_EVENT_DEVICE_USE_ONLY | ACL_EVENT_EXTERNAL | ACL_EVENT_IPC;
constexpr uint32_t kStreamFlags = 0x3F;
constexpr uint32_t kNeverSynchronized = ACL_STREAM_PERSISTENT | ACL_STREAM_CPU_SCHEDULE | ACL_STREAM_DEVICE_USE_ONLY;
constexpr uint32_t kLowestPriority = 7;

aclError CreateStream(Runtime& runtime, aclrtStream* out, uint32_t priority, uint32_t flag) {
  if (out == nullptr) return NullPointer("stream");
  if (priority > kLowestPriority || (flag & ~kStreamFlags) != 0) {
    return Fail(ACL_ERROR_RT_PARAM_INVALID, "priority %u, flag 0x%x", priority, flag);
  }
  ACLEMU_TRY(NeedContext());
  const Context& context = *Runtime::Current();
  Device& device = runtime.device(context.device);
  const uint64_t limit = Settings().soc->max_streams;
  if (!runtime.shared(context.device).TakeStream(limit)) {
    return Fail(ACL_ERROR_RT_NO_STREAM_RESOURCE, "device %d has %llu streams", context.device,
                static_cast<unsigned long long>(limit));
  }
  uint64_t handle = runtime.NewHandle();
  StreamTraits traits{device.next_stream_id.fetch_add(1), priority, flag};
  runtime.streams.Add(handle, std::make_shared<Stream>(context.device, context.handle, context.failure, traits));
  *out = reinterpret_cast<aclrtStream>(handle);
  Bump(Stats().streams_created);
  Bump(Stats().streams_live);
  return ACL_SUCCESS;
}

aclError DestroyStream(Runtime& runtime, aclrtStream handle, bool drain) {
  if (handle == nullptr) return NullPointer("stream");
  std::shared_ptr<Stream> stream;
  ACLEMU_TRY(FindOwnStream(runtime, handle, &stream));
  // Of two threads that destroy the same stream, one wins.
  if (runtime.streams.Remove(handle) == nullptr) return Fail(ACL_ERROR_RT_PARAM_INVALID, "no such stream (destroyed?)");
  stream->Close(drain);
  runtime.shared(stream->device).GiveStream();
  Stats().streams_live.fetch_sub(1);
  return ACL_SUCCESS;
}

aclError SynchronizeStream(Runtime& runtime, aclrtStream handle, Deadline deadline) {
  std::shared_ptr<Stream> stream;
  ACLEMU_TRY(FindStream(runtime, handle, &stream));
  Bump(Stats().synchronizes);
  if ((stream->traits.flags & kNeverSynchronized) != 0) return ACL_SUCCESS;
  return stream->Synchronize(deadline);
}

aclError TakeEventId(Runtime& runtime, Event& event) {
  if (event.counted.exchange(true)) return ACL_SUCCESS;
  if (runtime.shared(event.device).TakeEvent()) return ACL_SUCCESS;
  event.counted = false;
  return Fail(ACL_ERROR_RT_NO_EVENT_RESOURCE, "device %d has %llu events", event.device,
              static_cast<unsigned long long>(kMaxEvents));
}

aclError CreateEvent(Runtime& runtime, aclrtEvent* out, uint32_t flags, bool is_ex) {
  if (out == nullptr) return NullPointer("event");
  bool exclusive = (flags & ACL_EVENT_EXTERNAL) != 0 || (flags & ACL_EVENT_DEVICE_USE_ONLY) != 0;
  if (flags == 0 || (flags & ~kEventFlags) != 0 || (exclusive && (flags & (flags - 1)) != 0)) {
    return Fail(ACL_ERROR_RT_PARAM_INVALID, "flag 0x%x", flags);
  }
  ACLEMU_TRY(NeedContext());
  auto event = std::make_shared<Event>(Runtime::Current()->device, flags, is_ex);
  // An event of the newer kind takes no id before its first record.
  if (!is_ex) ACLEMU_TRY(TakeEventId(runtime, *event));
  uint64_t handle = runtime.NewHandle();
  runtime.events.Add(handle, std::move(event));
  *out = reinterpret_cast<aclrtEvent>(handle);
  Bump(Stats().events_created);
  Bump(Stats().events_live);
  return ACL_SUCCESS;
}

aclError Submit(Stream& stream, Task task) {
  if (stream.Submit(std::move(task))) return ACL_SUCCESS;
  return Fail(ACL_ERROR_RT_PARAM_INVALID, "the stream was destroyed meanwhile");
}

aclError SynchronizeEvent(Runtime& runtime, aclrtEvent handle, Deadline deadline) {
  std::shared_ptr<Event> event;
  ACLEMU_TRY(FindEvent(runtime, handle, &event));
  Bump(Stats().synchronizes);
  auto record = event->last();
  if (record == nullptr) {
    return event->is_ex ? ACL_SUCCESS : Fail(ACL_ERROR_RT_PARAM_INVALID, "the event was never recorded");
  }
  auto begin = std::chrono::steady_clock::now();
  Waited waited = Await(record, deadline, nullptr);
  Bump(Stats().waited_ns, static_cast<uint64_t>((std::chrono::steady_clock::now() - begin).count()));
  ChargeUntil(Clock::now() + Microseconds(Model().sync_us));
  if (waited != Waited::kDone) {
    return Fail(ACL_ERROR_RT_EVENT_SYNC_TIMEOUT, "the event is not complete");
  }
  std::lock_guard lock(Event::mutex());
  return record->error;
}

}  // namespace

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtCreateStream(aclrtStream* stream) {
  return Call(Api::aclrtCreateStream, Out(stream),
              [&](Runtime& runtime) { return CreateStream(runtime, stream, 0, 0); });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t priority, uint32_t flag) {
  return Call(Api::aclrtCreateStreamWithConfig, Out(stream),
              [&](Runtime& runtime) { return CreateStream(runtime, stream, priority, flag); });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtDestroyStream(aclrtStream stream) {
  return Call(Api::aclrtDestroyStream, {.stream = stream, .has_stream = true},
              [&](Runtime& runtime) { return DestroyStream(runtime, stream, true); });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtDestroyStreamForce(aclrtStream stream) {
  return Call(Api::aclrtDestroyStreamForce, {.stream = stream, .has_stream = true},
              [&](Runtime& runtime) { return DestroyStream(runtime, stream, false); });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtSynchronizeStream(aclrtStream stream) {
  return Call(Api::aclrtSynchronizeStream, {.stream = stream, .has_stream = true},
              [&](Runtime& runtime) { return SynchronizeStream(runtime, stream, kForever); });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t ms) {
  return Call(Api::aclrtSynchronizeStreamWithTimeout, {.stream = stream, .has_stream = true}, [&](Runtime& runtime) {
    Deadline deadline;
    ACLEMU_TRY(ParseTimeout(ms, &deadline));
    return SynchronizeStream(runtime, stream, deadline);
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtStreamQuery(aclrtStream handle, aclrtStreamStatus* status) {
  return Call(Api::aclrtStreamQuery, Out(status, {.stream = handle, .has_stream = true}), [&](Runtime& runtime) {
    if (status == nullptr) return NullPointer("status");
    std::shared_ptr<Stream> stream;
    ACLEMU_TRY(FindStream(runtime, handle, &stream));
    *status = stream->Query() ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtStreamAbort(aclrtStream handle) {
  return Call(Api::aclrtStreamAbort, {.stream = handle, .has_stream = true}, [&](Runtime& runtime) {
    if (handle == nullptr) return NullPointer("stream");
    std::shared_ptr<Stream> stream;
    ACLEMU_TRY(FindStream(runtime, handle, &stream));
    stream->Abort();
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtCreateEvent(aclrtEvent* event) {
  return Call(Api::aclrtCreateEvent, Out(event), [&](Runtime& runtime) {
    return CreateEvent(runtime, event, ACL_EVENT_SYNC | ACL_EVENT_CAPTURE_STREAM_PROGRESS | ACL_EVENT_TIME_LINE, false);
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t flag) {
  return Call(Api::aclrtCreateEventWithFlag, Out(event),
              [&](Runtime& runtime) { return CreateEvent(runtime, event, flag, false); });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t flag) {
  return Call(Api::aclrtCreateEventExWithFlag, Out(event),
              [&](Runtime& runtime) { return CreateEvent(runtime, event, flag, true); });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtDestroyEvent(aclrtEvent handle) {
  return Call(Api::aclrtDestroyEvent, [&](Runtime& runtime) {
    if (handle == nullptr) return NullPointer("event");
    auto event = runtime.events.Remove(handle);
    if (event == nullptr) return Fail(ACL_ERROR_RT_PARAM_INVALID, "no such event (destroyed?)");
    if (event->counted) runtime.shared(event->device).GiveEvent();
    Stats().events_live.fetch_sub(1);
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtRecordEvent(aclrtEvent event_handle, aclrtStream stream_handle) {
  const CallArgs args{.a = event_handle, .stream = stream_handle, .has_stream = true};
  return Call(Api::aclrtRecordEvent, args, [&](Runtime& runtime) {
    std::shared_ptr<Event> event;
    std::shared_ptr<Stream> stream;
    ACLEMU_TRY(FindPair(runtime, event_handle, stream_handle, &event, &stream));
    ACLEMU_TRY(TakeEventId(runtime, *event));
    Task task{};
    task.kind = Task::Kind::kRecord;
    task.record = std::make_shared<Record>();
    auto record = task.record;
    ACLEMU_TRY(Submit(*stream, std::move(task)));
    event->SetLast(std::move(record));
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtResetEvent(aclrtEvent event_handle, aclrtStream stream_handle) {
  return Call(Api::aclrtResetEvent, {.a = event_handle, .stream = stream_handle, .has_stream = true},
              [&](Runtime& runtime) {
                std::shared_ptr<Event> event;
                std::shared_ptr<Stream> stream;
                ACLEMU_TRY(FindPair(runtime, event_handle, stream_handle, &event, &stream));
                if (event->is_ex)
                  return Fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "events of CreateEventExWithFlag have no reset");
                Task task{};
                task.kind = Task::Kind::kReset;
                task.event = event;
                task.record = event->last();
                return Submit(*stream, std::move(task));
              });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtSynchronizeEvent(aclrtEvent event) {
  return Call(Api::aclrtSynchronizeEvent, [&](Runtime& runtime) { return SynchronizeEvent(runtime, event, kForever); });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t ms) {
  return Call(Api::aclrtSynchronizeEventWithTimeout, [&](Runtime& runtime) {
    Deadline deadline;
    ACLEMU_TRY(ParseTimeout(ms, &deadline));
    return SynchronizeEvent(runtime, event, deadline);
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtQueryEventStatus(aclrtEvent handle, aclrtEventRecordedStatus* status) {
  return Call(Api::aclrtQueryEventStatus, Out(status), [&](Runtime& runtime) {
    if (status == nullptr) return NullPointer("status");
    std::shared_ptr<Event> event;
    ACLEMU_TRY(FindEvent(runtime, handle, &event));
    auto record = event->last();
    bool done = record == nullptr ? event->is_ex : IsComplete(record);
    *status = done ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtEventElapsedTime(float* ms, aclrtEvent start_handle, aclrtEvent end_handle) {
  return Call(Api::aclrtEventElapsedTime, Out(ms), [&](Runtime& runtime) {
    if (ms == nullptr) return NullPointer("ms");
    std::shared_ptr<Event> start, end;
    ACLEMU_TRY(FindEvent(runtime, start_handle, &start));
    ACLEMU_TRY(FindEvent(runtime, end_handle, &end));
    if ((start->flags & end->flags & ACL_EVENT_TIME_LINE) == 0) {
      return Refuse(Rule::kS2, ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, "both events need the TIME_LINE flag");
    }
    auto first = start->last(), last = end->last();
    std::lock_guard lock(Event::mutex());
    if (first == nullptr || last == nullptr || !first->done || !last->done) {
      return Fail(ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, "an event is not recorded yet");
    }
    if (last->when < first->when) return Fail(ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL, "the end is before the start");
    *ms = std::chrono::duration<float, std::milli>(last->when - first->when).count();
    return ACL_SUCCESS;
  });
}

}  // namespace aclemu
