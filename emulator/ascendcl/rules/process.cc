// Process, device, context, peer access.
#include <cstdio>

#include "rules/call.h"

namespace aclemu {

aclError SynchronizeDevice(Runtime& runtime, Deadline deadline) {
  ACLEMU_TRY(NeedContext());
  std::shared_ptr<Context> current = Runtime::Current();
  Bump(Stats().synchronizes);
  aclError result = ACL_SUCCESS;
  auto wait = [&](Stream& stream) {
    aclError code = stream.Synchronize(deadline);
    if (code != ACL_SUCCESS) result = code;
  };
  for (auto& [handle, context] :
       runtime.contexts.Select([&](const Context& c) { return c.device == current->device; })) {
    wait(*context->default_stream);
  }
  for (auto& [handle, stream] : runtime.streams.Select([&](const Stream& s) { return s.device == current->device; })) {
    wait(*stream);
  }
  return result;
}

namespace {

aclError ReadConfig(const char* path, std::string* text) {
  if (path == nullptr) return ACL_SUCCESS;
  FILE* file = fopen(path, "re");
  if (file == nullptr) return Fail(ACL_ERROR_INVALID_FILE, "cannot read %s", path);
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), file)) > 0;) text->append(buffer, n);
  bool failed = ferror(file) != 0;
  fclose(file);
  return failed ? Fail(ACL_ERROR_INVALID_FILE, "cannot read %s", path) : ACL_SUCCESS;
}

// Live objects are a mistake, but the call that finds them goes on.
void NoteLeaks(Rule rule, const std::vector<Leak>& leaks) {
  for (const Leak& leak : leaks) {
    Strict(rule, ACL_SUCCESS, "%s of device %d still live (0x%llx, %llu bytes)", leak.kind, leak.device,
           static_cast<unsigned long long>(leak.address), static_cast<unsigned long long>(leak.bytes));
  }
}

aclError Reset(Runtime& runtime, int32_t id, bool force) {
  ACLEMU_TRY(NeedDevice(runtime, id));
  Device& device = runtime.device(id);
  std::shared_ptr<Context> primary;
  uint64_t limit;
  {
    std::lock_guard lock(device.mu);
    if (device.set_count == 0) return Fail(ACL_ERROR_RT_CONTEXT_RELEASE_ERROR, "device %d is not set", id);
    device.set_count = force ? 0 : device.set_count - 1;
    if (device.set_count > 0) return ACL_SUCCESS;
    primary = std::move(device.primary);
    device.primary = nullptr;
    limit = runtime.NewHandle();
  }
  NoteLeaks(Rule::kM3, runtime.LeaksOf(id));
  runtime.EndContext(primary);
  runtime.EndDevice(id, limit);
  return ACL_SUCCESS;
}

// The answer to a question, not a broken rule: libraries ask before they bind a thread of somebody else.
aclError Unbound() {
  return Fail(ACL_ERROR_RT_CONTEXT_NULL, "the thread has no device");
}

aclError CheckPeer(Runtime& runtime, int32_t peer) {
  ACLEMU_TRY(NeedContext());
  ACLEMU_TRY(NeedDevice(runtime, peer));
  if (peer == Runtime::Current()->device) return Fail(ACL_ERROR_INVALID_PARAM, "device %d is no peer of itself", peer);
  return ACL_SUCCESS;
}

}  // namespace

ACLEMU_ENTRY(aclError) aclemu_impl_aclInit(const char* config) {
  return Call(Api::aclInit, NeedsInit::kNo, [&](Runtime& runtime) {
    std::string text;
    ACLEMU_TRY(ReadConfig(config, &text));
    std::lock_guard lock(runtime.init_mu);
    if (runtime.init_count.load() == 0) {
      runtime.init_config = std::move(text);
      runtime.init_count = 1;
      Runtime::Thread().repeated_init = false;
      return ACL_SUCCESS;
    }
    if (config != nullptr && text != runtime.init_config) {
      return Fail(ACL_ERROR_INVALID_PARAM, "aclInit again with another configuration");
    }
    Runtime::Thread().repeated_init = true;
    if (Settings().release->counts_init) runtime.init_count.fetch_add(1);
    return ACL_ERROR_REPEAT_INITIALIZE;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclFinalize(void) {
  return Call(Api::aclFinalize, NeedsInit::kNo, [&](Runtime& runtime) {
    std::lock_guard lock(runtime.init_mu);
    if (runtime.init_count.load() == 0) return Fail(ACL_ERROR_REPEAT_FINALIZE, "not initialised");
    if (Runtime::Thread().repeated_init) {
      Strict(Rule::kI2, ACL_SUCCESS, "finalized by one whose aclInit was not the first");
    }
    NoteLeaks(Rule::kI2, runtime.Leaks());
    runtime.init_count = 0;
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclFinalizeReference(uint64_t* count) {
  return Call(Api::aclFinalizeReference, NeedsInit::kNo, [&](Runtime& runtime) {
    std::lock_guard lock(runtime.init_mu);
    if (runtime.init_count.load() == 0) return Fail(ACL_ERROR_REPEAT_FINALIZE, "not initialised");
    if (runtime.init_count.load() == 1) NoteLeaks(Rule::kI2, runtime.Leaks());
    uint64_t left = runtime.init_count.fetch_sub(1) - 1;
    if (count != nullptr) *count = left;
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(const char*) aclemu_impl_aclGetRecentErrMsg(void) {
  return TakeMessage();
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtGetDeviceCount(uint32_t* count) {
  return Call(Api::aclrtGetDeviceCount, Out(count), [&](Runtime& runtime) {
    if (count == nullptr) return NullPointer("count");
    *count = runtime.device_count();
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtSetDevice(int32_t id) {
  return Call(Api::aclrtSetDevice, {.device = id}, [&](Runtime& runtime) {
    ACLEMU_TRY(NeedDevice(runtime, id));
    Device& device = runtime.device(id);
    if (runtime.LostCode(id) != ACL_SUCCESS) return Fail(ACL_ERROR_RT_DEV_SETUP_ERROR, "device %d is lost", id);
    ChargeSetDevice(device.set_before.exchange(true));
    std::shared_ptr<Context> primary;
    {
      std::lock_guard lock(device.mu);
      if (device.primary == nullptr) device.primary = runtime.NewContext(id, true);
      ++device.set_count;
      primary = device.primary;
    }
    ThreadState& thread = Runtime::Thread();
    Bump(Stats().set_device_calls);
    if (thread.bound != nullptr && thread.bound->device != id) Bump(Stats().set_device_switches);
    thread.bound = std::move(primary);
    thread.preferred = nullptr;
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtResetDevice(int32_t id) {
  return Call(Api::aclrtResetDevice, {.device = id}, [&](Runtime& runtime) { return Reset(runtime, id, false); });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtResetDeviceForce(int32_t id) {
  return Call(Api::aclrtResetDeviceForce, {.device = id}, [&](Runtime& runtime) { return Reset(runtime, id, true); });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtGetDevice(int32_t* id) {
  return Call(Api::aclrtGetDevice, Out(id), [&](Runtime&) {
    if (id == nullptr) return NullPointer("device");
    if (Runtime::Current() == nullptr) return Unbound();
    *id = Runtime::Current()->device;
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtSynchronizeDevice(void) {
  return Call(Api::aclrtSynchronizeDevice, [&](Runtime& runtime) { return SynchronizeDevice(runtime, kForever); });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtSynchronizeDeviceWithTimeout(int32_t ms) {
  return Call(Api::aclrtSynchronizeDeviceWithTimeout, [&](Runtime& runtime) {
    Deadline deadline;
    ACLEMU_TRY(ParseTimeout(ms, &deadline));
    return SynchronizeDevice(runtime, deadline);
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtCreateContext(aclrtContext* context, int32_t id) {
  return Call(Api::aclrtCreateContext, Out(context, {.device = id}), [&](Runtime& runtime) {
    if (context == nullptr) return NullPointer("context");
    ACLEMU_TRY(NeedDevice(runtime, id));
    auto created = runtime.NewContext(id, false);
    *context = reinterpret_cast<aclrtContext>(created->handle);
    Runtime::Thread().preferred = std::move(created);
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtDestroyContext(aclrtContext handle) {
  return Call(Api::aclrtDestroyContext, [&](Runtime& runtime) {
    if (handle == nullptr) return NullPointer("context");
    auto context = runtime.contexts.Find(handle);
    if (context == nullptr) return Fail(ACL_ERROR_RT_PARAM_INVALID, "no such context");
    if (context->primary) return Fail(ACL_ERROR_RT_CONTEXT_NULL, "the context of aclrtSetDevice ends by a reset only");
    std::vector<Leak> leaks;
    for (auto& [stream, s] : runtime.streams.Select([&](const Stream& s) { return s.context == context->handle; })) {
      leaks.push_back({"stream", s->device, stream, 0});
    }
    NoteLeaks(Rule::kM3, leaks);
    runtime.EndContext(context);
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtSetCurrentContext(aclrtContext handle) {
  return Call(Api::aclrtSetCurrentContext, [&](Runtime& runtime) {
    if (handle == nullptr) return NullPointer("context");
    auto context = runtime.contexts.Find(handle);
    if (context == nullptr) return Fail(ACL_ERROR_RT_PARAM_INVALID, "no such context");
    Runtime::Thread().preferred = std::move(context);
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtGetCurrentContext(aclrtContext* context) {
  return Call(Api::aclrtGetCurrentContext, Out(context), [&](Runtime&) {
    if (context == nullptr) return NullPointer("context");
    if (Runtime::Current() == nullptr) return Unbound();
    *context = reinterpret_cast<aclrtContext>(Runtime::Current()->handle);
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtQueryDeviceStatus(int32_t id, aclrtDeviceStatus* status) {
  return Call(Api::aclrtQueryDeviceStatus, Out(status, {.device = id}), [&](Runtime& runtime) {
    if (status == nullptr) return NullPointer("status");
    ACLEMU_TRY(NeedDevice(runtime, id));
    *status = runtime.LostCode(id) == ACL_SUCCESS ? ACL_RT_DEVICE_STATUS_NORMAL : ACL_RT_DEVICE_STATUS_ABNORMAL;
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtDeviceCanAccessPeer(int32_t* can, int32_t id, int32_t peer) {
  return Call(Api::aclrtDeviceCanAccessPeer, Out(can), [&](Runtime& runtime) {
    if (can == nullptr) return NullPointer("canAccessPeer");
    if (id == peer) return Fail(ACL_ERROR_INVALID_PARAM, "device %d is no peer of itself", id);
    ACLEMU_TRY(NeedDevice(runtime, id));
    ACLEMU_TRY(NeedDevice(runtime, peer));
    *can = 1;
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t flags) {
  return Call(Api::aclrtDeviceEnablePeerAccess, [&](Runtime& runtime) {
    if (flags != 0) return Fail(ACL_ERROR_FEATURE_UNSUPPORTED, "flags must be 0");
    ACLEMU_TRY(CheckPeer(runtime, peer));
    runtime.device(Runtime::Current()->device).peers.fetch_or(1ULL << peer);
    return ACL_SUCCESS;
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtDeviceDisablePeerAccess(int32_t peer) {
  return Call(Api::aclrtDeviceDisablePeerAccess, [&](Runtime& runtime) {
    ACLEMU_TRY(CheckPeer(runtime, peer));
    uint64_t bit = 1ULL << peer;
    uint64_t before = runtime.device(Runtime::Current()->device).peers.fetch_and(~bit);
    return (before & bit) != 0 ? ACL_SUCCESS : Fail(ACL_ERROR_RT_PARAM_INVALID, "access was not enabled");
  });
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtDevicePeerAccessStatus(int32_t id, int32_t peer, int32_t* status) {
  return Call(Api::aclrtDevicePeerAccessStatus, [&](Runtime& runtime) {
    if (status == nullptr) return NullPointer("status");
    if (id == peer) return Fail(ACL_ERROR_INVALID_PARAM, "device %d is no peer of itself", id);
    ACLEMU_TRY(NeedDevice(runtime, id));
    ACLEMU_TRY(NeedDevice(runtime, peer));
    *status = static_cast<int32_t>(runtime.device(id).peers.load() >> peer & 1);
    return ACL_SUCCESS;
  });
}

// These two must not change what they read, so they are not counted as calls that may fail.
ACLEMU_ENTRY(aclError) aclemu_impl_aclrtPeekAtLastError(aclrtLastErrLevel level) {
  return level == ACL_RT_THREAD_LEVEL ? Runtime::Thread().last_error : ACL_ERROR_INVALID_PARAM;
}

ACLEMU_ENTRY(aclError) aclemu_impl_aclrtGetLastError(aclrtLastErrLevel level) {
  if (level != ACL_RT_THREAD_LEVEL) return ACL_ERROR_INVALID_PARAM;
  return std::exchange(Runtime::Thread().last_error, ACL_SUCCESS);
}

}  // namespace aclemu
