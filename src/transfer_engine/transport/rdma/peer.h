// Everything this process does with one peer over RDMA: its rails and queue pairs, and the operations under way.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/metrics.h"
#include "transfer_engine/peer_links.h"
#include "transfer_engine/transport.h"
#include "transfer_engine/transport/rdma/agenda.h"
#include "transfer_engine/transport/rdma/handshake_gate.h"
#include "transfer_engine/transport/rdma/memory_table.h"
#include "transfer_engine/transport/rdma/queue_pair.h"
#include "transfer_engine/transport/rdma/rail_plan.h"

namespace mooncake::rdma {

struct Meters {
  explicit Meters(MetricRegistry& registry);
  Counter& slices;
  Counter& slice_bytes;
  Counter& retries;      // slices sent once more
  Counter& handshakes;   // begun
  Counter& queues_lost;  // queue pairs that ended in an error
  Counter& rails_paused;
  Counter& peers_lost;
  Counter& timeouts;  // operations
};

// What all peers of a transport share. Outlives those that are not gone.
struct Fabric {
  const RdmaOptions& options;
  std::vector<RdmaDevice*> devices;
  std::vector<std::string> device_names;
  MemoryTable& memory;
  PeerLinks& links;
  const Topology& topology;
  Uuid generation;
  std::shared_ptr<Agenda> agenda;
  HandshakeGate gate;
  Meters meters;
};

// A request cut into slices, at most one queue pair for each. Guarded by its peer's lock.
struct Work {
  TransferOperation operation;
  MemoryTable::Pin memory;                                // around operation.local
  std::shared_ptr<const std::vector<uint8_t>> distances;  // of each rail
  uint64_t cut = 0;                                       // bytes that are in slices
  size_t slices = 0;                                      // that exist: posted, or to be posted again
  std::optional<Status> failure;                          // the first; nothing more is posted
  std::list<Work>* list = nullptr;
  std::list<Work>::iterator self;
  std::multimap<TimePoint, Work*>::iterator due;  // its deadline, or when its posted slices are stopped

  bool Cut() const { return cut == operation.length(); }
};

struct Slice {
  Work* work = nullptr;
  uint64_t offset = 0;
  uint32_t length = 0;
  int attempts = 0;  // that failed
};

// Any thread, but Attend. One process of a certain generation is one peer.
class Peer : public Chore, public std::enable_shared_from_this<Peer> {
 public:
  // `on_gone` runs once, on the agenda's thread, when it is dead and nothing of it is left: the fabric is not touched
  // any more.
  static std::shared_ptr<Peer> Create(Fabric& fabric, SegmentPtr target,
                                      std::function<void(const std::shared_ptr<Peer>&)> on_gone);

  // An operation and its registered memory. False when it is dead; then nothing is taken.
  struct Prepared {
    TransferOperation operation;
    MemoryTable::Pin memory;
  };
  bool Submit(std::vector<Prepared>& prepared);
  void Cancel(BatchId tag);
  // Own operations that use this memory end soon.
  void StopUsersOf(const RegisteredMemory* memory);
  void OnPortChange(size_t device, const PortState& now);
  // All operations end with this.
  void Shutdown(const Status& why);

  const Uuid& generation() const { return target_->generation; }
  // For people: rails, queue pairs, what is under way.
  std::string Describe() const;

  TimePoint Attend() override;

 private:
  enum class LaneState : uint8_t {
    kDown,     // no queue pair
    kOpening,  // in the handshake
    kUp,
    kEnding,   // to be flushed and destroyed
    kTelling,  // destroyed; the peer has to drop its end before what was not completed may be sent elsewhere
  };
  // A queue pair and what is posted on it, oldest first.
  struct Lane {
    size_t index = 0;
    size_t rail = 0;
    LaneState state = LaneState::kDown;
    std::unique_ptr<QueuePair> pair;
    uint64_t id = 0;            // what the peer knows it by
    uint32_t serial = 0;        // of the pair, while its completions count
    uint32_t first_number = 0;  // of in_flight.front()
    std::deque<Slice> in_flight;
    uint64_t bytes = 0;    // in flight
    size_t staged = 0;     // the last ones of in_flight, not posted yet
    TimePoint progress{};  // of the last completion, or since there is something in flight
    TimePoint ending_since{};
    bool stopped = false;       // in state kEnding: the pair was told
    bool told = false;          // in state kTelling: the peer was
    std::vector<Slice> parked;  // in states kEnding and kTelling
  };
  struct RailState {
    Rail rail;
    TimePoint paused_until{};
    int failures = 0;  // since the last success
    uint64_t bytes = 0;
    std::string reason;  // of the last pause
  };
  enum class Step : uint8_t { kNone, kWaiting, kConnecting, kReadying };
  struct Handshake {
    Step step = Step::kNone;
    uint64_t round = 0;  // answers of earlier ones are late
    uint64_t epoch = 0;  // that was named
    std::vector<size_t> lanes;
    std::map<size_t, QueueAddress> receivers;  // by lane
    std::optional<Result<std::string>> answer;
  };
  using Lock = std::unique_lock<std::mutex>;
  struct Finished {
    TransferOperation operation;
    MemoryTable::Pin memory;
    Result<void> result;
  };

  Peer(Fabric& fabric, SegmentPtr target, std::function<void(const std::shared_ptr<Peer>&)> on_gone);

  // peer.cc: operations and slices; all with the lock.
  void Add(Prepared prepared);
  std::shared_ptr<const std::vector<uint8_t>> DistancesFor(const TransferOperation& operation);
  void Pump();
  bool NextSlice(Slice& slice, bool take);
  Slice CutSlice(Work& work, bool take);
  Lane* LaneFor(const Slice& slice);
  void PostStaged(Lane& lane);
  void OnCompletions(size_t index, std::span<const ibv_wc> completions);
  void OnCompletion(Lane& lane, const ibv_wc& completion);
  Slice TakeOldest(Lane& lane);
  void Succeeded(Lane& lane, const Slice& slice);
  void Park(Lane& lane, const Slice& slice);
  void FailedFirst(Lane& lane, Slice& slice, ibv_wc_status status);
  void DropSlice(const Slice& slice);
  void DropSlicesOf(Work& work);
  void SetDue(Work& work, TimePoint time);
  bool HasWork() const;
  void Fail(Work& work, Status status, TimePoint stop_at);
  void FailAll(const Status& status);
  void FinishIfDone(Work& work);
  void Reschedule(TimePoint time);
  std::string PeerName() const;
  // Without the lock: reports what has ended.
  void Report(Lock& lock);

  // peer_lanes.cc: with the lock, on any thread.
  void EndLane(Lane& lane);
  void PauseRail(size_t rail, std::string reason);
  void EndRail(size_t rail, std::string reason);
  void Die(Status why);
  void LearnEpoch(uint64_t epoch);
  bool Gone() const;
  // On the agenda's thread; those with a Lock parameter release it in between.
  void ExpireWorks(TimePoint now);
  void StopSlicesOf(const Work& work);
  void WatchProgress(TimePoint now);
  void EndLanes(Lock& lock);
  void StopPair(Lane& lane, Lock& lock);
  void DestroyPair(Lane& lane, Lock& lock);
  void TellPeer(Lock& lock, TimePoint now);
  void OnTold(const std::vector<uint64_t>& ids, const Result<std::string>& answer);
  TimePoint NextDue(TimePoint now) const;

  // peer_connect.cc: on the agenda's thread; releases the lock in between.
  void Watch(Lock& lock);
  void OnWatchEnd(const Status& why);
  void Call(Lock& lock, uint16_t method, std::string body, std::function<void(Peer&, Result<std::string>)> then);
  void AdvanceHandshake(Lock& lock, TimePoint now);
  std::vector<size_t> LanesToConnect(TimePoint now, TimePoint* next) const;  // `next`: when there may be more
  void BeginHandshake(Lock& lock, const std::vector<size_t>& lanes);
  void AwaitAnswer(Lock& lock, Step step, uint16_t method, std::string body);
  void OnConnectAnswer(Lock& lock, const Result<std::string>& answer);
  void OnReadyAnswer(Lock& lock, const Result<std::string>& answer);
  void HandshakeFailed(Lock& lock, const Status& status);
  // Those still in the handshake are given up, and it is over.
  void EndHandshake(Lock& lock, bool tell);
  void CloseOpening(Lane& lane, Lock& lock, bool tell);

  Fabric& fabric_;
  const SegmentPtr target_;
  const Topology target_topology_;
  const std::shared_ptr<Agenda> agenda_;
  const std::function<void(const std::shared_ptr<Peer>&)> on_gone_;
  std::shared_ptr<rpc::RpcClient> link_;  // on the agenda's thread

  mutable std::mutex mutex_;
  std::optional<Status> dead_;
  bool gone_ = false;
  bool watched_ = false;
  TimePoint watch_again_{};  // not before
  bool answered_ = false;    // it was there since it is watched
  std::string trouble_;      // the last, for those who wait in vain
  uint64_t epoch_ = 0;
  uint64_t next_id_ = 1;
  std::vector<RailState> rails_;
  std::vector<Lane> lanes_;
  Handshake handshake_;
  TimePoint tell_again_{};
  TimePoint scheduled_ = TimePoint::max();  // when the agenda comes at the latest

  std::array<std::list<Work>, 2> waiting_;  // not cut entirely: small ones, large ones
  size_t turn_ = 0;                         // which of them is next
  std::list<Work> cut_;                     // all in slices, or failed
  std::multimap<TimePoint, Work*> dues_;
  std::deque<Slice> again_;
  std::vector<Finished> finished_;  // to be reported without the lock
  std::map<std::pair<std::string, std::string>, std::shared_ptr<const std::vector<uint8_t>>> distances_;
  std::vector<ibv_send_wr> requests_;  // scratch of PostStaged
  std::vector<ibv_sge> elements_;
};

}  // namespace mooncake::rdma
