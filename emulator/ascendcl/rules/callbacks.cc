// Host code inside streams: host functions, and callbacks that a thread of the program fetches.
#include <pthread.h>

#include <chrono>
#include <map>

#include "rules/call.h"

namespace aclemu {
namespace {

constexpr size_t kMaxThreads = 1024;

struct Report {
  aclrtCallback fn;
  void* data;
  bool done = false;
};

// The reports of one thread, in the order in which their streams came to them.
struct Subscriber {
  std::deque<std::shared_ptr<Report>> queue;
  size_t streams = 0;  // 0: nobody will fetch the reports
};

// A stream has callbacks of one of the two systems, never of both.
struct StreamUse {
  uint64_t thread = 0;
  bool host_functions = false;
};

// Everything here is guarded by Event::mutex(), so that an abort wakes those who wait for a callback.
struct Callbacks {
  std::map<uint64_t, std::shared_ptr<Subscriber>> threads;
  std::map<std::weak_ptr<Stream>, StreamUse, std::owner_less<>> streams;

  static Callbacks& Get() {
    static Callbacks* const callbacks = new Callbacks;
    return *callbacks;
  }
  void ForgetDeadStreams() {
    for (auto it = streams.begin(); it != streams.end();) {
      if (!it->first.expired()) {
        ++it;
        continue;
      }
      Leave(it->second.thread);
      it = streams.erase(it);
    }
  }
  void Leave(uint64_t thread) {
    auto found = threads.find(thread);
    if (found == threads.end() || --found->second->streams > 0) return;
    for (auto& report : found->second->queue) report->done = true;
    threads.erase(found);
    Event::changed().notify_all();
  }
};

// True when the time is over. By the wall clock: a thread that waits for callbacks does not move virtual time.
bool WaitForChange(std::unique_lock<std::mutex>& lock, std::chrono::steady_clock::time_point deadline) {
  if (deadline != kForever) return Event::changed().wait_until(lock, deadline) == std::cv_status::timeout;
  Event::changed().wait(lock);
  return false;
}

void RunInCallback(void (*fn)(void*), void* data) {
  Api api = CurrentApi();
  Runtime::Thread().in_callback = true;
  fn(data);
  Runtime::Thread().in_callback = false;
  SetCurrentApi(api);
}

// On no thread of the program: whatever runs the stream lends its thread, but not its device.
void RunHostFunction(aclrtHostFunc fn, void* data) {
  ThreadState own = std::exchange(Runtime::Thread(), ThreadState{});
  RunInCallback(fn, data);
  Runtime::Thread() = std::move(own);
}

// Hands the report to its thread. Called again when it gave up waiting.
bool PostReport(Subscriber& subscriber, const std::shared_ptr<Report>& report, bool* posted, bool block,
                Deadline deadline, const Stop* stop) {
  std::unique_lock lock(Event::mutex());
  Watch watch(deadline);
  if (!*posted && subscriber.streams > 0) {
    subscriber.queue.push_back(report);
    Event::changed().notify_all();
  }
  *posted = true;
  while (block && !report->done && subscriber.streams > 0) {
    if (stop->IsSet()) {
      std::erase(subscriber.queue, report);
      return false;
    }
    if (deadline <= Clock::now() || (watch.Wait(Event::changed(), lock) && !report->done)) return false;
  }
  return true;
}

aclError SubmitCall(Stream& stream, std::function<bool(Deadline, const Stop*)> call) {
  Task task{};
  task.kind = Task::Kind::kCall;
  task.call = std::move(call);
  if (stream.Submit(std::move(task))) return ACL_SUCCESS;
  return Fail(ACL_ERROR_RT_PARAM_INVALID, "the stream was destroyed meanwhile");
}

aclError Subscribe(uint64_t thread, const std::shared_ptr<Stream>& stream) {
  std::lock_guard lock(Event::mutex());
  Callbacks& all = Callbacks::Get();
  all.ForgetDeadStreams();
  StreamUse& use = all.streams[stream];
  if (use.host_functions) return Fail(ACL_ERROR_RT_STREAM_SUBSCRIBE, "the stream runs host functions");
  if (use.thread != 0) return Fail(ACL_ERROR_RT_STREAM_SUBSCRIBE, "the stream is subscribed already");
  auto& subscriber = all.threads[thread];
  if (subscriber == nullptr) {
    if (all.threads.size() > kMaxThreads) {
      all.threads.erase(thread);
      return Fail(ACL_ERROR_RT_OVER_LIMIT, "%zu threads are subscribed", kMaxThreads);
    }
    subscriber = std::make_shared<Subscriber>();
  }
  ++subscriber->streams;
  use.thread = thread;
  return ACL_SUCCESS;
}

aclError Unsubscribe(uint64_t thread, const std::shared_ptr<Stream>& stream) {
  std::lock_guard lock(Event::mutex());
  Callbacks& all = Callbacks::Get();
  auto found = all.streams.find(stream);
  if (found == all.streams.end() || found->second.thread == 0) {
    return Fail(ACL_ERROR_RT_STREAM_NO_CB_REG, "the stream is not subscribed");
  }
  if (found->second.thread != thread) return Fail(ACL_ERROR_RT_THREAD_SUBSCRIBE, "subscribed for another thread");
  all.streams.erase(found);
  all.Leave(thread);
  return ACL_SUCCESS;
}

aclError ProcessReport(int32_t ms) {
  if (ms == 0 || ms < -1) return Fail(ACL_ERROR_INVALID_PARAM, "timeout %d", ms);
  auto deadline = ms == -1 ? kForever : std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
  auto thread = static_cast<uint64_t>(pthread_self());
  std::shared_ptr<Subscriber> subscriber;
  {
    std::lock_guard lock(Event::mutex());
    auto found = Callbacks::Get().threads.find(thread);
    if (found == Callbacks::Get().threads.end()) {
      return Fail(ACL_ERROR_RT_THREAD_SUBSCRIBE, "this thread is not subscribed to a stream");
    }
    subscriber = found->second;
  }
  std::unique_lock lock(Event::mutex());
  while (subscriber->queue.empty()) {
    // Streams without a thread run what leads to a report now, since somebody waits for it.
    uint64_t before = Progress();
    lock.unlock();
    bool may_step = StepStreams();
    lock.lock();
    if (!subscriber->queue.empty()) break;
    if (may_step && Progress() != before && std::chrono::steady_clock::now() < deadline) continue;
    if (WaitForChange(lock, deadline) && subscriber->queue.empty()) {
      return Fail(ACL_ERROR_RT_REPORT_TIMEOUT, "no callback within %d ms", ms);
    }
  }
  while (!subscriber->queue.empty()) {
    auto report = std::move(subscriber->queue.front());
    subscriber->queue.pop_front();
    lock.unlock();
    RunInCallback(report->fn, report->data);
    lock.lock();
    report->done = true;
    NoteProgress();
    Event::changed().notify_all();
  }
  return ACL_SUCCESS;
}

}  // namespace

bool ForbiddenInCallback(Api api) {
  switch (api) {
    case Api::aclrtSynchronizeDevice:
    case Api::aclrtSynchronizeDeviceWithTimeout:
    case Api::aclrtSynchronizeStream:
    case Api::aclrtSynchronizeStreamWithTimeout:
    case Api::aclrtSynchronizeEvent:
    case Api::aclrtSynchronizeEventWithTimeout:
    case Api::aclrtProcessReport:
    case Api::aclrtResetDevice:
    case Api::aclrtResetDeviceForce:
    case Api::aclrtDestroyContext:
    case Api::aclrtDestroyStream:
    case Api::aclrtDestroyStreamForce:
    case Api::aclrtStreamAbort:
    case Api::aclrtStreamStop:
    case Api::aclrtMalloc:
    case Api::aclrtMallocAlign32:
    case Api::aclrtMallocCached:
    case Api::aclrtMallocWithCfg:
    case Api::aclrtMallocHost:
    case Api::aclrtMallocHostWithCfg:
    case Api::aclrtMallocPhysical:
    case Api::aclrtFreeWithDevSync:
    case Api::aclrtFreeHostWithDevSync:
    case Api::aclrtMemcpy:
    case Api::aclrtMemcpyAsync:
    case Api::aclrtMemcpy2d:
    case Api::aclrtMemcpy2dAsync:
    case Api::aclrtMemcpyBatch:
    case Api::aclrtMemcpyBatchAsync:
    case Api::aclrtMemcpyBatchV2:
    case Api::aclrtMemcpyBatchAsyncV2:
    case Api::aclrtMemset:
    case Api::aclrtMemsetAsync:
    case Api::aclrtRecordEvent:
    case Api::aclrtResetEvent:
    case Api::aclrtStreamWaitEvent:
    case Api::aclrtStreamWaitEventWithTimeout:
    case Api::aclrtLaunchCallback:
    case Api::aclrtLaunchHostFunc:
      return true;
    default:
      return false;
  }
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtSubscribeReport(uint64_t thread, aclrtStream handle) {
  return Call(Api::aclrtSubscribeReport, {.stream = handle, .has_stream = true}, [&](Runtime& runtime) {
    if (thread == 0) return Fail(ACL_ERROR_INVALID_PARAM, "thread 0");
    std::shared_ptr<Stream> stream;
    ACLEMU_TRY(FindOwnStream(runtime, handle, &stream));
    return Subscribe(thread, stream);
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtUnSubscribeReport(uint64_t thread, aclrtStream handle) {
  return Call(Api::aclrtUnSubscribeReport, {.stream = handle, .has_stream = true}, [&](Runtime& runtime) {
    std::shared_ptr<Stream> stream;
    ACLEMU_TRY(FindOwnStream(runtime, handle, &stream));
    return Unsubscribe(thread, stream);
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtProcessReport(int32_t ms) {
  return Call(Api::aclrtProcessReport, [&](Runtime&) { return ProcessReport(ms); });
}

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtLaunchCallback(aclrtCallback fn, void* data, aclrtCallbackBlockType type, aclrtStream handle) {
  return Call(Api::aclrtLaunchCallback, {.a = data, .stream = handle, .has_stream = true}, [&](Runtime& runtime) {
    if (fn == nullptr) return NullPointer("fn");
    if (type != ACL_CALLBACK_NO_BLOCK && type != ACL_CALLBACK_BLOCK) {
      return Fail(ACL_ERROR_INVALID_PARAM, "block type %d", static_cast<int>(type));
    }
    std::shared_ptr<Stream> stream;
    ACLEMU_TRY(FindOwnStream(runtime, handle, &stream));
    std::shared_ptr<Subscriber> subscriber;
    {
      std::lock_guard lock(Event::mutex());
      auto found = Callbacks::Get().streams.find(stream);
      if (found != Callbacks::Get().streams.end() && found->second.thread != 0) {
        subscriber = Callbacks::Get().threads.at(found->second.thread);
      }
    }
    if (subscriber == nullptr) return Fail(ACL_ERROR_RT_STREAM_NO_CB_REG, "the stream is not subscribed");
    auto report = std::make_shared<Report>(Report{fn, data});
    return SubmitCall(*stream, [=, posted = false](Deadline deadline, const Stop* stop) mutable {
      return PostReport(*subscriber, report, &posted, type == ACL_CALLBACK_BLOCK, deadline, stop);
    });
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtLaunchHostFunc(aclrtStream handle, aclrtHostFunc fn, void* data) {
  return Call(Api::aclrtLaunchHostFunc, {.a = data, .stream = handle, .has_stream = true}, [&](Runtime& runtime) {
    if (fn == nullptr) return NullPointer("fn");
    std::shared_ptr<Stream> stream;
    ACLEMU_TRY(FindOwnStream(runtime, handle, &stream));
    {
      std::lock_guard lock(Event::mutex());
      StreamUse& use = Callbacks::Get().streams[stream];
      if (use.thread != 0) return Fail(ACL_ERROR_RT_STREAM_SUBSCRIBE, "the stream is subscribed for callbacks");
      use.host_functions = true;
    }
    return SubmitCall(*stream, [=](Deadline, const Stop*) {
      RunHostFunction(fn, data);
      return true;
    });
  });
}

}  // namespace aclemu
