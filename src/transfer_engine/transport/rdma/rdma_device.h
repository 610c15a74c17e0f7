// One RDMA device in use: its port, its address, its completion queues and the thread that waits on them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "common/status.h"
#include "transfer_engine/transport/rdma/addressing.h"
#include "transfer_engine/transport/rdma/rdma_options.h"
#include "transfer_engine/transport/rdma/verbs_library.h"

namespace mooncake::rdma {

// What is known of a device's port now.
struct PortState {
  bool active = false;
  bool failed = false;  // the device is lost, for good
  uint16_t lid = 0;
  bool ethernet = true;
  ibv_mtu mtu = IBV_MTU_256;  // of the port, not more than configured
  GidChoice gid;
};

// Any thread. Outlives its queue pairs and memory registrations.
class RdmaDevice {
 public:
  // Completions of one queue pair, in order, on the device's thread.
  using OnCompletions = std::function<void(std::span<const ibv_wc>)>;
  // The port went down or came back, or got another address; on the device's thread.
  using OnPortChange = std::function<void(const PortState& now)>;

  // DEVICE_NOT_FOUND when there is no such device or its port cannot be used.
  static Result<std::unique_ptr<RdmaDevice>> Open(const Verbs& verbs, const std::string& name,
                                                  const RdmaOptions& options);
  ~RdmaDevice();
  RdmaDevice(const RdmaDevice&) = delete;
  RdmaDevice& operator=(const RdmaDevice&) = delete;

  // Begins to deliver completions and port changes; ends with Stop, after which no callback runs.
  void Start(OnPortChange on_port_change);
  void Stop();

  const std::string& name() const { return name_; }
  const Verbs& verbs() const { return verbs_; }
  ibv_pd* pd() const { return pd_; }
  const ibv_device_attr& attributes() const { return attributes_; }
  PortState port() const;
  // Work requests a queue pair of this device may have.
  uint32_t queue_depth() const { return queue_depth_; }

  // Room for the completions of one queue pair. `wr_id` of its work requests has the serial in its upper half.
  struct Seat {
    ibv_cq* queue = nullptr;
    uint32_t serial = 0;
  };
  Result<Seat> TakeSeat(OnCompletions on_completions);
  // No completion of it is delivered after return, but for one that is being delivered.
  void LeaveSeat(const Seat& seat);
  // For queue pairs that never post: their completion queue.
  ibv_cq* passive_queue() const { return passive_queue_; }

 private:
  struct CompletionQueue {
    ibv_cq* queue = nullptr;
    size_t taken = 0;
  };
  struct Sitter {
    OnCompletions on_completions;
    size_t queue = 0;
  };

  RdmaDevice(const Verbs& verbs, std::string name, const RdmaOptions& options)
      : verbs_(verbs), name_(std::move(name)), options_(options) {}
  Result<void> Set(ibv_context* context);
  Result<PortState> QueryPort() const;
  Result<size_t> RoomyQueue();  // with the lock
  void Run();
  void HandleAsyncEvents();
  void HandleCompletionEvents();
  bool Drain(ibv_cq* queue);
  void Deliver(std::span<const ibv_wc> completions);

  const Verbs& verbs_;
  const std::string name_;
  const RdmaOptions options_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_device_attr attributes_{};
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* passive_queue_ = nullptr;
  uint32_t queue_depth_ = 0;
  size_t seats_per_queue_ = 1;
  int wake_ = -1;
  std::atomic<bool> stopping_{false};
  OnPortChange on_port_change_;
  std::thread thread_;

  mutable std::mutex mutex_;
  PortState port_;
  uint32_t next_serial_ = 1;
  std::vector<CompletionQueue> queues_;
  std::unordered_map<uint32_t, std::shared_ptr<Sitter>> sitters_;
};

// The CPUs of a NUMA node a device sits on, for its thread; empty when it is not known.
std::vector<int> CpusNearDevice(const std::string& device, const std::string& root = "/sys");

}  // namespace mooncake::rdma
