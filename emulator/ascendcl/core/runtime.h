// The state of the process: devices, contexts, the handles given out, and what each thread is bound to.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "acl/acl.h"
#include "core/config.h"
#include "core/pool.h"
#include "core/ranges.h"
#include "core/shared_device.h"
#include "core/stream.h"

namespace aclemu {

struct Context {
  uint64_t handle;
  int device;
  bool primary;
  std::atomic<bool> alive{true};
  std::shared_ptr<FailureState> failure = std::make_shared<FailureState>();
  std::shared_ptr<Stream> default_stream;
  std::atomic<uint64_t> default_handle{0};  // 0 until somebody asked for it
};

struct Device {
  std::mutex mu;  // guards set_count, primary, pool creation
  uint64_t set_count = 0;
  std::shared_ptr<Context> primary;
  std::unique_ptr<DevicePool> pool;
  std::atomic<int32_t> next_stream_id{1};  // 0: the default streams
  std::atomic<uint64_t> peers{0};          // bit d: access to device d was enabled from here
  std::atomic<bool> lost_noticed{false};   // pending work has ended because the device is lost
  std::atomic<bool> lost_watched{false};   // a thread waits for other processes to lose it
  std::mutex tenant_mu;                    // guards the next two
  uint64_t tenant_wants = 0;               // memory that the limit of LimitCapacity takes away
  std::vector<Extent> tenant_has;          // the part of it that was free so far, in whole chunks
  std::atomic<bool> has_tenant{false};
  std::atomic<bool> set_before{false};  // for the time model
};

struct ThreadState {
  std::shared_ptr<Context> bound;      // by aclrtSetDevice
  std::shared_ptr<Context> preferred;  // by aclrtSetCurrentContext or aclrtCreateContext; wins over bound
  aclError last_error = ACL_SUCCESS;
  bool in_callback = false;    // runs code that a stream called
  bool repeated_init = false;  // its last aclInit was not the first of the process
};

struct Leak {
  const char* kind;
  int device;
  uint64_t address;
  uint64_t bytes;
  int policy = -1;
  std::vector<void*> stack{};
};

// Objects by handle. A handle is a number shaped like an address where nothing is mapped; it is never used twice, so a
// stale one is recognised. Thread safe.
template <typename T>
class HandleTable {
 public:
  void Add(uint64_t handle, std::shared_ptr<T> object) {
    std::unique_lock lock(mu_);
    objects_.emplace(handle, std::move(object));
  }
  std::shared_ptr<T> Find(const void* handle) const {
    std::shared_lock lock(mu_);
    auto found = objects_.find(reinterpret_cast<uint64_t>(handle));
    return found == objects_.end() ? nullptr : found->second;
  }
  std::shared_ptr<T> Remove(const void* handle) {
    std::unique_lock lock(mu_);
    auto found = objects_.find(reinterpret_cast<uint64_t>(handle));
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }
  template <typename Match>
  std::vector<std::pair<uint64_t, std::shared_ptr<T>>> Select(Match match) const {
    std::vector<std::pair<uint64_t, std::shared_ptr<T>>> selected;
    std::shared_lock lock(mu_);
    for (const auto& [handle, object] : objects_) {
      if (match(*object)) selected.emplace_back(handle, object);
    }
    return selected;
  }

 private:
  mutable std::shared_mutex mu_;
  std::unordered_map<uint64_t, std::shared_ptr<T>> objects_;
};

// Never destroyed: threads and exit handlers of the program may call until the very end. Thread safe.
class Runtime {
 public:
  static Runtime& Get();
  static bool Started();

  uint32_t device_count() const { return visible_devices_; }
  bool ValidDevice(int64_t id) const { return id >= 0 && id < visible_devices_; }
  Device& device(int id) { return devices_[static_cast<size_t>(id)]; }
  DevicePool& pool(int id);
  SharedDevice& shared(int id) { return SharedDevice::Of(id); }

  static ThreadState& Thread();
  // The context of the calling thread; null if it has none or it is gone.
  static const std::shared_ptr<Context>& Current();

  std::shared_ptr<Context> NewContext(int device, bool primary);
  // Ends a context: its streams run dry and go, with the default one.
  void EndContext(const std::shared_ptr<Context>& context);
  // Ends everything on a device whose handle is below the limit (somebody may set the device anew meanwhile), and its
  // memory. The caller holds no lock; the primary context was already taken out of the Device.
  void EndDevice(int id, uint64_t handle_limit);

  // The device is gone, for every process: pending work ends with the code, and so does every later call.
  void LoseDevice(int id, aclError code);
  aclError LostCode(int id) { return shared(id).Lost(); }
  // Ends the pending work of this process on a device that was lost, maybe by another process. The caller holds no
  // lock.
  void NoticeLost(int id);
  // Tasks of a lost device let go in a moment; before somebody is told that they still use what he frees.
  void AwaitLostTasks(const std::function<bool()>& gone);
  // As if somebody else held all but that many bytes of the device; what is in use now goes to him when it is freed.
  void LimitCapacity(int id, uint64_t bytes);
  // Before memory is taken or counted: lets the other one have what has become free.
  void FeedTenant(int id);

  // A handle for the default stream, which NULL means as well.
  uint64_t DefaultStreamHandle(Context& context);

  uint64_t NewHandle() { return next_handle_.fetch_add(64); }

  std::vector<Leak> Leaks();
  std::vector<Leak> LeaksOf(int device);  // device memory, streams and events of one device

  bool InForkedChild() const { return forked_child_.load(std::memory_order_relaxed); }

  std::mutex init_mu;
  std::atomic<uint64_t> init_count{0};
  std::string init_config;  // guarded by init_mu; text of the first configuration
  bool was_init = false;    // guarded by init_mu

  std::atomic<bool> capturing{false};  // some stream of the process records a graph

  RangeMap ranges;
  HandleTable<Context> contexts;
  HandleTable<Stream> streams;
  HandleTable<Stream> default_streams;  // those whose handle was asked for
  HandleTable<Event> events;

 private:
  Runtime();
  static void AfterForkInChild();
  void WatchLost(int id);

  uint32_t visible_devices_;
  std::vector<Device> devices_;
  std::atomic<uint64_t> next_handle_{0x0acc'0000'0040ULL};
  std::atomic<bool> forked_child_{false};
  std::atomic<bool> any_lost_{false};
};

}  // namespace aclemu
