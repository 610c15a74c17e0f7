// The state of the process.
#include "core/runtime.h"

#include <pthread.h>

#include "core/report.h"
#include "core/shares.h"
#include "core/virtual_memory.h"

namespace aclemu {
namespace {

std::atomic<bool> started{false};

}  // namespace

Runtime& Runtime::Get() {
  static Runtime* const runtime = new Runtime;
  return *runtime;
}

bool Runtime::Started() {
  return started.load();
}

Runtime::Runtime() : visible_devices_(static_cast<uint32_t>(VisibleDevices().size())), devices_(Settings().devices) {
  Stats();
  started = true;
  pthread_atfork(nullptr, nullptr, &Runtime::AfterForkInChild);
}

void Runtime::AfterForkInChild() {
  if (Started() && Get().init_count.load() > 0) Get().forked_child_ = true;
}

DevicePool& Runtime::pool(int id) {
  Device& d = device(id);
  std::lock_guard lock(d.mu);
  if (d.pool == nullptr) d.pool = std::make_unique<DevicePool>(shared(id));
  return *d.pool;
}

ThreadState& Runtime::Thread() {
  thread_local ThreadState state;
  return state;
}

const std::shared_ptr<Context>& Runtime::Current() {
  static const std::shared_ptr<Context>* const none = new std::shared_ptr<Context>;
  const ThreadState& thread = Thread();
  const auto& context = thread.preferred != nullptr ? thread.preferred : thread.bound;
  return context != nullptr && context->alive.load(std::memory_order_acquire) ? context : *none;
}

std::shared_ptr<Context> Runtime::NewContext(int id, bool primary) {
  auto context = std::make_shared<Context>();
  context->handle = NewHandle();
  context->device = id;
  context->primary = primary;
  context->default_stream = std::make_shared<Stream>(id, context->handle);
  contexts.Add(context->handle, context);
  return context;
}

void Runtime::EndContext(const std::shared_ptr<Context>& context) {
  // One thread ends it; for all others it is gone from here on.
  if (!context->alive.exchange(false)) return;
  contexts.Remove(reinterpret_cast<void*>(context->handle));
  for (auto& [handle, stream] : streams.Select([&](const Stream& s) { return s.context == context->handle; })) {
    if (streams.Remove(reinterpret_cast<void*>(handle)) == nullptr) continue;
    stream->Close(true);
    shared(stream->device).GiveStream();
    Stats().streams_live.fetch_sub(1);
  }
  context->default_stream->Close(true);
}

void Runtime::EndDevice(int id, uint64_t handle_limit) {
  for (auto& [handle, context] : contexts.Select([&](const Context& c) { return c.device == id; })) {
    if (handle < handle_limit) EndContext(context);
  }
  for (auto& [handle, event] : events.Select([&](const Event& e) { return e.device == id; })) {
    if (handle >= handle_limit || events.Remove(reinterpret_cast<void*>(handle)) == nullptr) continue;
    shared(id).GiveEvent();
    Stats().events_live.fetch_sub(1);
  }
  IpcKeys::Get().DropDevice(id);
  VirtualMemory::Get().DropDevice(id);
  // Dropping the blocks gives their storage back.
  Bump(Stats().device_frees, ranges.RemoveDevice(id).size());
}

std::vector<Leak> Runtime::LeaksOf(int id) {
  std::vector<Leak> leaks;
  ranges.ForEach([&](const Range& range) {
    if (range.cls == MemClass::kDevice && range.device == id) {
      constexpr const char* kKinds[] = {"device memory", "mapped memory", "imported memory"};
      leaks.push_back({kKinds[static_cast<int>(range.origin)], id, range.base, range.bytes});
    }
  });
  VirtualMemory::Get().AddLeaks(id, &leaks);
  for (auto& [handle, stream] : streams.Select([&](const Stream& s) { return s.device == id; })) {
    leaks.push_back({"stream", id, handle, 0});
  }
  for (auto& [handle, event] : events.Select([&](const Event& e) { return e.device == id; })) {
    leaks.push_back({"event", id, handle, 0});
  }
  for (auto& [handle, context] : contexts.Select([&](const Context& c) { return c.device == id && !c.primary; })) {
    leaks.push_back({"context", id, handle, 0});
  }
  return leaks;
}

std::vector<Leak> Runtime::Leaks() {
  std::vector<Leak> leaks;
  for (size_t id = 0; id < devices_.size(); ++id) {
    for (Leak& leak : LeaksOf(static_cast<int>(id))) leaks.push_back(leak);
  }
  ranges.ForEach([&](const Range& range) {
    if (range.cls == MemClass::kDevice) return;
    const char* kind = range.cls == MemClass::kPinned ? "pinned memory" : "registered memory";
    leaks.push_back({kind, -1, range.base, range.bytes});
  });
  return leaks;
}

}  // namespace aclemu
