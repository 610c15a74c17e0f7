// The state of the process.
#include "core/runtime.h"

#include <pthread.h>

#include <thread>

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
  context->default_stream = std::make_shared<Stream>(id, context->handle, context->failure);
  contexts.Add(context->handle, context);
  WatchLost(id);
  return context;
}

uint64_t Runtime::DefaultStreamHandle(Context& context) {
  uint64_t handle = context.default_handle.load();
  if (handle != 0) return handle;
  uint64_t fresh = NewHandle();
  if (!context.default_handle.compare_exchange_strong(handle, fresh)) return handle;
  default_streams.Add(fresh, context.default_stream);
  return fresh;
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
  default_streams.Remove(reinterpret_cast<void*>(context->default_handle.load()));
  context->default_stream->Close(true);
}

void Runtime::EndDevice(int id, uint64_t handle_limit) {
  for (auto& [handle, context] : contexts.Select([&](const Context& c) { return c.device == id; })) {
    if (handle < handle_limit) EndContext(context);
  }
  for (auto& [handle, event] : events.Select([&](const Event& e) { return e.device == id; })) {
    if (handle >= handle_limit || events.Remove(reinterpret_cast<void*>(handle)) == nullptr) continue;
    if (event->counted) shared(id).GiveEvent();
    Stats().events_live.fetch_sub(1);
  }
  IpcKeys::Get().DropDevice(id);
  VirtualMemory::Get().DropDevice(id);
  // Dropping the blocks gives their storage back.
  Bump(Stats().device_frees, ranges.RemoveDevice(id).size());
}

void Runtime::LoseDevice(int id, aclError code) {
  shared(id).SetLost(code);
  NoticeLost(id);
}

void Runtime::NoticeLost(int id) {
  any_lost_ = true;
  if (device(id).lost_noticed.exchange(true)) return;
  aclError code = LostCode(id);
  for (const auto& stream : UsedStreams()) {
    if (stream->device == id) stream->Lose(code);
  }
  std::lock_guard lock(Event::mutex());
  Event::changed().notify_all();
}

void Runtime::AwaitLostTasks(const std::function<bool()>& gone) {
  if (any_lost_.load(std::memory_order_relaxed)) Pause(Clock::now() + std::chrono::seconds(1), gone);
}

void Runtime::WatchLost(int id) {
  if (!SharedDevice::Sharing() || device(id).lost_watched.exchange(true)) return;
  std::thread([this, id] {
    MarkOwnThread();
    shared(id).AwaitLost();
    NoticeLost(id);
  }).detach();
}

void Runtime::LimitCapacity(int id, uint64_t bytes) {
  Device& d = device(id);
  uint64_t total = pool(id).GetRoom().total;
  {
    std::lock_guard lock(d.tenant_mu);
    if (!d.tenant_has.empty()) pool(id).GiveAside(d.tenant_has);
    d.tenant_has.clear();
    d.tenant_wants = bytes >= total ? 0 : (total - bytes) / kChunk * kChunk;
    d.has_tenant = d.tenant_wants > 0;
  }
  FeedTenant(id);
}

void Runtime::FeedTenant(int id) {
  Device& d = device(id);
  if (!d.has_tenant.load(std::memory_order_relaxed)) return;
  DevicePool& from = pool(id);
  std::lock_guard lock(d.tenant_mu);
  std::vector<Extent> taken;
  while (d.tenant_wants > 0) {
    uint64_t bytes = std::min(d.tenant_wants, from.GetRoom().free_huge);
    if (bytes == 0 || !from.TakeAside(bytes, &taken)) return;
    d.tenant_has.insert(d.tenant_has.end(), taken.begin(), taken.end());
    d.tenant_wants -= bytes;
  }
}

std::vector<Leak> Runtime::LeaksOf(int id) {
  std::vector<Leak> leaks;
  ranges.ForEach([&](const Range& range) {
    if (range.cls == MemClass::kDevice && range.device == id) {
      constexpr const char* kKinds[] = {"device memory", "mapped memory", "imported memory"};
      leaks.push_back({kKinds[static_cast<int>(range.origin)], id, range.base, range.bytes, range.policy, range.stack});
    }
  });
  VirtualMemory::Get().AddLeaks(id, &leaks);
  // Nothing but memory can be given back on a lost device.
  if (device(id).lost_noticed.load()) return leaks;
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
    leaks.push_back({kind, -1, range.base, range.bytes, -1, range.stack});
  });
  return leaks;
}

}  // namespace aclemu
