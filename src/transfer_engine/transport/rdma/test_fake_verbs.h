// Verbs without hardware: devices of one process that copy memory among each other, and fail when told to.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "transfer_engine/transport/rdma/verbs_library.h"

namespace mooncake::rdma {

// One at a time in a process; the functions of Verbs have no other place for their state. Any thread.
class FakeFabric {
 public:
  explicit FakeFabric(size_t devices);  // "fake0", "fake1", ...
  ~FakeFabric();
  FakeFabric(const FakeFabric&) = delete;
  FakeFabric& operator=(const FakeFabric&) = delete;

  const Verbs& verbs() const { return verbs_; }

  // --- faults ---
  // Requests are taken and lie there; false carries them out.
  void Hold(bool hold);
  // Requests of this device vanish: no completion, not even a flushed one.
  void Swallow(size_t device, bool swallow);
  // What was swallowed reaches its target now, if the queue pair there still takes it.
  void DeliverSwallowed();
  // This many requests of the device fail with this status before anything is copied.
  void FailRequests(size_t device, ibv_wc_status status, int count);
  // The device refuses to take this many posts.
  void RefusePosts(size_t device, int count);
  // Registrations from the n-th on fail (counted from now, 0 is the next); -1: none.
  void FailRegistrations(int from, int error = ENOMEM);
  void FailConnections(bool fail);  // no queue pair goes to RTR
  void SetPort(size_t device, bool active);
  void SetMaxMrBytes(uint64_t bytes) { max_mr_bytes_ = bytes; }

  // --- what there is ---
  size_t queue_pairs();
  size_t registrations();
  size_t held();                  // requests that lie there
  uint64_t bytes(size_t device);  // moved by requests of it
  size_t largest_request();
  size_t posts();     // calls that posted something
  size_t requests();  // in them

 private:
  struct Device;
  struct Channel;
  struct Queue;
  struct Pair;
  friend struct FakeCalls;

  void Execute(Pair& pair, const ibv_send_wr& request, const ibv_sge& element);
  void Complete(Pair& pair, const ibv_send_wr& request, ibv_wc_status status);
  void Break(Pair& pair);
  Pair* Find(uint32_t number);
  bool Covers(uint32_t key, uint64_t address, uint64_t length, unsigned access) const;

  std::mutex mutex_;
  Verbs verbs_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::set<ibv_context*> contexts_;  // opened
  std::map<ibv_context*, std::deque<ibv_event_type>> events_;
  std::map<uint32_t, Pair*> pairs_;
  std::map<uint32_t, ibv_mr*> mrs_;  // by key
  std::map<uint32_t, unsigned> access_;
  uint32_t next_number_ = 100;
  struct Late {
    uint32_t peer = 0;
    uint64_t address = 0;
    uint32_t key = 0;
    std::vector<std::byte> bytes;
  };
  std::vector<Late> late_;
  bool hold_ = false;
  int fail_registrations_ = -1;
  int registration_error_ = 0;
  bool fail_connections_ = false;
  uint64_t max_mr_bytes_ = UINT64_MAX;
  size_t largest_request_ = 0;
  size_t posts_ = 0;
  size_t requests_ = 0;
};

}  // namespace mooncake::rdma
