// The queue pairs that peers have made with this process to read and write its memory.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "common/executor.h"
#include "common/metrics.h"
#include "rpc/rpc_server.h"
#include "transfer_engine/transport/rdma/agenda.h"
#include "transfer_engine/transport/rdma/queue_pair.h"

namespace mooncake::rdma {

// Any thread. A queue pair lives as long as the control connection it was asked for on; nothing outlives Close.
class Receivers : public Chore, public std::enable_shared_from_this<Receivers> {
 public:
  Receivers(std::vector<RdmaDevice*> devices, const RdmaOptions& options, const Uuid& generation, Executor& workers,
            std::shared_ptr<Agenda> agenda, MetricRegistry& metrics);

  // Adds the handlers, which may outlive this.
  void Serve(rpc::RpcServer& server);
  // After return nothing that `node` has begun changes memory. Blocks.
  void Fence(const Uuid& node);
  // Ends all queue pairs and refuses new ones. Blocks.
  void Close();
  size_t size() const;

  TimePoint Attend() override;  // destroys what is doomed

 private:
  struct Queue {
    std::unique_ptr<QueuePair> pair;
    QueueAddress sender;
  };
  using QueueMap = std::map<uint64_t, Queue>;  // by the sender's id
  // Work on queue pairs of one process that is under way outside the lock.
  struct Node {
    size_t sessions = 0;
    uint64_t fences = 0;            // so far
    std::multiset<uint64_t> tasks;  // by the number of fences when each began
  };
  struct Session {
    Uuid node;
    bool closed = false;
    size_t tasks = 0;
    uint64_t epoch = 0;
    QueueMap queues;
  };
  // One piece of such work: it has taken queue pairs out of the tables, or makes new ones.
  struct Task {
    rpc::SessionId session = 0;
    Uuid node;
    uint64_t fences = 0;
    uint64_t epoch = 0;
  };
  struct Doomed {
    Task task;
    QueueMap queues;
  };

  template <typename Request>
  void Handle(rpc::RpcServer& server, uint16_t method, void (Receivers::*serve)(rpc::ServerCall, Request, Task));
  void Connect(rpc::ServerCall call, ConnectRequest request, Task task);
  void Ready(rpc::ServerCall call, QueueList request, Task task);
  void Disconnect(rpc::ServerCall call, QueueList request, Task task);
  ConnectReply::Queue Make(const ConnectRequest::Queue& wanted, QueueMap& made);
  void SessionClosed(rpc::SessionId session);

  std::optional<Task> Begin(rpc::SessionId session, const Uuid& node);
  Task BeginLocked(rpc::SessionId session, const Uuid& node);
  // Hands queue pairs back to their session; those that it must not have any more are destroyed. Returns its epoch.
  uint64_t End(const Task& task, QueueMap queues);
  QueueMap TakeOut(const Task& task, const std::vector<uint64_t>& ids);
  // With the lock.
  QueueMap TakeAll(Session& session);
  void EndTask(const Uuid& node, uint64_t fences);
  void CountQueues(size_t more);

  const std::vector<RdmaDevice*> devices_;
  const RdmaOptions& options_;
  const Uuid generation_;
  Executor& workers_;
  const std::shared_ptr<Agenda> agenda_;
  Gauge& count_;

  mutable std::mutex mutex_;
  std::condition_variable ended_;  // some task
  bool closed_ = false;
  size_t queues_ = 0;  // in sessions_
  std::unordered_map<rpc::SessionId, Session> sessions_;
  std::map<Uuid, Node> nodes_;
  std::vector<Doomed> doomed_;
};

}  // namespace mooncake::rdma
