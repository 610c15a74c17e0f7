// The answering side of RDMA connections.
#include "transfer_engine/transport/rdma/receivers.h"

#include <algorithm>

#include "common/check.h"
#include "common/log.h"
#include "protocol/methods.h"

namespace mooncake::rdma {
namespace {

constexpr size_t kMaxQueuesPerCall = 256;
constexpr size_t kMaxQueuesPerSession = 512;

}  // namespace

Receivers::Receivers(std::vector<RdmaDevice*> devices, const RdmaOptions& options, const Uuid& generation,
                     Executor& workers, std::shared_ptr<Agenda> agenda, MetricRegistry& metrics)
    : devices_(std::move(devices)),
      options_(options),
      generation_(generation),
      workers_(workers),
      agenda_(std::move(agenda)),
      count_(metrics.GetGauge("rdma_receiving_queue_pairs", "queue pairs that peers have made with this process")) {}

void Receivers::Serve(rpc::RpcServer& server) {
  Handle(server, protocol::kRdmaConnect, &Receivers::Connect);
  Handle(server, protocol::kRdmaReady, &Receivers::Ready);
  Handle(server, protocol::kRdmaDisconnect, &Receivers::Disconnect);
  server.OnSessionClosed([weak = weak_from_this()](rpc::SessionId session) {
    if (const auto self = weak.lock()) self->SessionClosed(session);
  });
}

// Queue pairs take milliseconds to change: that is done by the workers, whose queue bounds how much is asked for at
// once.
template <typename Request>
void Receivers::Handle(rpc::RpcServer& server, uint16_t method,
                       void (Receivers::*serve)(rpc::ServerCall, Request, Task)) {
  server.Handle<Request>(method, [weak = weak_from_this(), serve](rpc::ServerCall call, Request request) {
    const auto self = weak.lock();
    const std::optional<Task> task = self ? self->Begin(call.session(), call.peer().node) : std::nullopt;
    if (!task) return std::move(call).Fail(Status(ErrorCode::SHUTTING_DOWN, "RDMA is being closed"));
    auto shared_call = std::make_shared<rpc::ServerCall>(std::move(call));
    std::move_only_function<void()> work = [self, serve, shared_call, request = std::move(request), task]() mutable {
      ((*self).*serve)(std::move(*shared_call), std::move(request), *task);
    };
    if (self->workers_.TrySubmit(work)) return;
    (void)self->End(*task, {});
    std::move(*shared_call).Fail(Status(ErrorCode::TOO_MANY_REQUESTS, "too many RDMA connections are being made"));
  });
}

// ---- tasks

Receivers::Task Receivers::BeginLocked(rpc::SessionId session, const Uuid& node) {
  const auto [found, added] = sessions_.try_emplace(session);
  Node& peer = nodes_[node];
  if (added) {
    found->second.node = node;
    ++peer.sessions;
  }
  ++found->second.tasks;
  peer.tasks.insert(peer.fences);
  return {.session = session, .node = node, .fences = peer.fences, .epoch = found->second.epoch};
}

std::optional<Receivers::Task> Receivers::Begin(rpc::SessionId session, const Uuid& node) {
  std::lock_guard lock(mutex_);
  if (closed_) return std::nullopt;
  return BeginLocked(session, node);
}

uint64_t Receivers::End(const Task& task, QueueMap queues) {
  std::unique_lock lock(mutex_);
  Session& session = sessions_.at(task.session);
  MC_CHECK(session.tasks > 0, "session {} has no task", task.session);
  if (closed_ || session.closed || session.epoch != task.epoch) {
    lock.unlock();
    queues.clear();  // destroyed before the task counts as ended
    lock.lock();
  } else {
    const size_t before = session.queues.size();
    session.queues.merge(queues);  // what has the id of another stays behind and is destroyed
    CountQueues(session.queues.size() - before);
  }
  const uint64_t epoch = session.epoch;
  if (--session.tasks == 0 && session.closed) {
    sessions_.erase(task.session);
    --nodes_.at(task.node).sessions;
  }
  EndTask(task.node, task.fences);
  return epoch;
}

void Receivers::EndTask(const Uuid& id, uint64_t fences) {
  Node& node = nodes_.at(id);
  node.tasks.erase(node.tasks.find(fences));
  if (node.tasks.empty() && node.sessions == 0) nodes_.erase(id);
  ended_.notify_all();
}

void Receivers::CountQueues(size_t more) {
  queues_ += more;  // wraps when there are fewer
  count_.Set(static_cast<double>(queues_));
}

Receivers::QueueMap Receivers::TakeOut(const Task& task, const std::vector<uint64_t>& ids) {
  QueueMap taken;
  std::lock_guard lock(mutex_);
  QueueMap& queues = sessions_.at(task.session).queues;
  for (const uint64_t id : ids) {
    if (auto node = queues.extract(id)) taken.insert(std::move(node));
  }
  CountQueues(-taken.size());
  return taken;
}

// ---- calls, on a worker

ConnectReply::Queue Receivers::Make(const ConnectRequest::Queue& wanted, QueueMap& made) {
  const auto make = [&]() -> Result<QueueAddress> {
    const auto device = std::ranges::find(devices_, wanted.device, [](const RdmaDevice* each) { return each->name(); });
    if (device == devices_.end()) {
      return Error(ErrorCode::DEVICE_NOT_FOUND, "there is no RDMA device {} here", wanted.device);
    }
    std::unique_ptr<QueuePair> pair = MC_TRY(QueuePair::OpenReceiver(**device, options_));
    MC_TRY(pair->Receive(wanted.sender));
    QueueAddress address = pair->Address();
    made.try_emplace(wanted.id, Queue{.pair = std::move(pair), .sender = wanted.sender});
    return address;
  };
  const Result<QueueAddress> address = make();
  if (address) return {.receiver = *address};
  return {.code = ToInt(address.error().code()), .message = address.error().message()};
}

void Receivers::Connect(rpc::ServerCall call, ConnectRequest request, Task task) {
  ConnectReply reply{.epoch = task.epoch};
  size_t held = 0;
  {
    std::lock_guard lock(mutex_);
    held = sessions_.at(task.session).queues.size();
  }
  Status refusal;
  if (request.target != generation_) {
    refusal = Status(ErrorCode::STALE_SEGMENT,
                     fmt::format("process {} is meant, this is {}", request.target.ToString(), generation_.ToString()));
  } else if (request.queues.size() > kMaxQueuesPerCall || held + request.queues.size() > kMaxQueuesPerSession) {
    refusal = Status(ErrorCode::INVALID_PARAMS,
                     fmt::format("{} queue pairs are asked for, there are {}; {} are allowed at once and {} in all",
                                 request.queues.size(), held, kMaxQueuesPerCall, kMaxQueuesPerSession));
  }
  QueueMap made;
  if (refusal.ok() && request.epoch == task.epoch) {
    for (const ConnectRequest::Queue& wanted : request.queues) reply.queues.push_back(Make(wanted, made));
  }
  const uint64_t epoch = End(task, std::move(made));
  if (epoch != task.epoch) reply = {.epoch = epoch};
  if (!refusal.ok()) return std::move(call).Fail(refusal);
  std::move(call).Reply(rpc::Encode(reply));
}

void Receivers::Ready(rpc::ServerCall call, QueueList request, Task task) {
  QueueListReply reply;
  QueueMap queues = TakeOut(task, request.ids);
  for (auto& [id, queue] : queues) {
    const Result<void> sends = queue.pair->Send(queue.sender);
    if (sends)
      reply.ids.push_back(id);
    else
      log::Debug("RDMA queue pair {}: {}", id, sends.error().ToString());
  }
  reply.epoch = End(task, std::move(queues));
  std::move(call).Reply(rpc::Encode(reply));
}

void Receivers::Disconnect(rpc::ServerCall call, QueueList request, Task task) {
  QueueListReply reply;
  QueueMap queues = TakeOut(task, request.ids);
  for (const auto& [id, queue] : queues) reply.ids.push_back(id);
  queues.clear();
  reply.epoch = End(task, {});
  std::move(call).Reply(rpc::Encode(reply));
}

// ---- ends

void Receivers::SessionClosed(rpc::SessionId id) {
  {
    std::lock_guard lock(mutex_);
    const auto session = sessions_.find(id);
    if (session == sessions_.end()) return;
    doomed_.push_back({.task = BeginLocked(id, session->second.node), .queues = TakeAll(session->second)});
    session->second.closed = true;
  }
  agenda_->Now(shared_from_this());
}

Receivers::QueueMap Receivers::TakeAll(Session& session) {
  CountQueues(-session.queues.size());
  return std::exchange(session.queues, {});
}

TimePoint Receivers::Attend() {
  std::vector<Doomed> doomed;
  {
    std::lock_guard lock(mutex_);
    doomed.swap(doomed_);
  }
  for (Doomed& each : doomed) {
    each.queues.clear();
    (void)End(each.task, {});
  }
  return TimePoint::max();
}

void Receivers::Fence(const Uuid& id) {
  std::vector<QueueMap> fenced;
  std::unique_lock lock(mutex_);
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return;
  const uint64_t before = found->second.fences++;
  found->second.tasks.insert(before);  // so that another fence waits for this one
  for (auto& [session_id, session] : sessions_) {
    if (session.node != id) continue;
    ++session.epoch;
    fenced.push_back(TakeAll(session));
  }
  lock.unlock();
  fenced.clear();
  lock.lock();
  EndTask(id, before);
  // What had begun before ends, and destroys its queue pairs as it sees the new epoch.
  ended_.wait(lock, [&] {
    const auto node = nodes_.find(id);
    return node == nodes_.end() || node->second.tasks.empty() || *node->second.tasks.begin() > before;
  });
}

void Receivers::Close() {
  std::vector<QueueMap> left;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    for (auto& [id, session] : sessions_) left.push_back(TakeAll(session));
  }
  left.clear();
  (void)Attend();
  std::unique_lock lock(mutex_);
  ended_.wait(lock,
              [&] { return std::ranges::all_of(nodes_, [](const auto& each) { return each.second.tasks.empty(); }); });
}

size_t Receivers::size() const {
  std::lock_guard lock(mutex_);
  return queues_;
}

}  // namespace mooncake::rdma
