// The state of the process: devices, contexts, the handles given out, and what each thread is bound to.
#pragma once
#include <atomic>
#include <cstdint>
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
#include "core/stream.h"

namespace aclemu {

constexpr uint64_t kMaxEvents = 65536;  // per device

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
  std::atomic<uint64_t> streams{0}, events{0};
  std::atomic<int32_t> next_stream_id{1};  // 0: the default streams
  std::atomic<uint64_t> peers{0};          // bit d: access to device d was enabled from here
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

  static ThreadState& Thread();
  // The context of the calling thread; null if it has none or it is gone.
  static const std::shared_ptr<Context>& Current();

  std::shared_ptr<Context> NewContext(int device, bool primary);
  // Ends a context: its streams run dry and go, with the default one.
  void EndContext(const std::shared_ptr<Context>& context);
  // Ends everything on a device whose handle is below the limit (somebody may set the device anew meanwhile), and its
  // memory. The caller holds no lock; the primary context was already taken out of the Device.
  void EndDevice(int id, uint64_t handle_limit);

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

  uint32_t visible_devices_;
  std::vector<Device> devices_;
  std::atomic<uint64_t> next_handle_{0x0acc'0000'0040ULL};
  std::atomic<bool> forked_child_{false};
};

}  // namespace aclemu
