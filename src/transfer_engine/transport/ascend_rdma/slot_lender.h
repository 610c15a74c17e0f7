// NPU memory as a target: peers read and write it through host slots that they are lent, a piece at a time.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/executor.h"
#include "device/npu_runtime.h"
#include "rpc/rpc_server.h"
#include "transfer_engine/transport/ascend_rdma/lane.h"
#include "transfer_engine/transport/staged/staged_messages.h"

namespace mooncake::bridge {

// A peer's transfer is an operation of a lane whose wire is the peer: what the lane puts on this wire is lent to the
// peer, and off it when the peer has returned it. So the lane's rules hold for peers as well: turns, classes, limits,
// deadlines, and a slot that is free only when nothing touches it. A slot whose user cannot be trusted any more (its
// connection is gone, it did not return it in time, its write failed half way) is taken back: its key for tcp goes,
// and RDMA of that process is fenced. Any thread, but for Close and destruction.
class SlotLender : public std::enable_shared_from_this<SlotLender> {
 public:
  struct Options {
    size_t leases_per_session = 256;
    size_t calls_per_lease = 16;
    Duration lease_max = std::chrono::hours(1);
  };
  struct Parts {
    RegionRegistry& regions;
    Uuid generation;                // of this process
    std::vector<Transport*> wires;  // that peers may use
    // Of a device; both outlive the lane's operations. `open`: blocks.
    std::function<Lane*(int32_t device_id)> find;
    std::function<Result<Lane*>(int32_t device_id)> open;
    std::function<NpuRuntime*()> npu;
  };
  SlotLender(Parts parts, Options options);
  ~SlotLender();

  // Adds the handlers, which may outlive this.
  void Serve(rpc::RpcServer& server);
  // Transfers of this region end soon; the registry lets no new one begin.
  void Withdraw(const Region& region);
  // Takes everything back and lends nothing more. The lanes' operations end as far as peers hold them up. Lanes may
  // come here until they are gone.
  void Close();

  // When no lane comes here any more, before the last reference goes.
  void Join();

  // For tests and metrics: transfers, and pieces that peers have.
  size_t leases() const;
  size_t lent() const;

 private:
  class Wire;
  using LeaseId = BatchId;  // tag of the lane's operation
  struct Piece {
    TransferOperation operation;
    LeaseId lease = 0;
    Uuid node;
    uint64_t key = 0;
    bool lent = false;
  };
  struct Lease {
    rpc::SessionId session = 0;
    uint64_t id = 0;  // the peer's
    Uuid node;
    uint64_t region = 0;     // address
    Lane* lane = nullptr;    // null: it is being opened
    bool gone = false;       // the session
    bool giving_up = false;  // no more pieces
    bool told = false;       // the result
    std::optional<Status> why;
    std::optional<Result<void>> result;
    std::deque<uint64_t> ready;  // pieces for the peer
    std::set<uint64_t> lent;
    std::deque<rpc::ServerCall> calls;
  };
  // What a change of the tables brings about; done without the lock.
  struct Effects {
    struct Ending {
      Piece piece;
      Result<void> result;
      bool fence = false;
    };
    std::vector<std::pair<rpc::ServerCall, staged::LeaseReply>> replies;
    std::vector<std::pair<rpc::ServerCall, Status>> failures;
    std::vector<std::pair<Lane*, LeaseId>> cancels;
    std::vector<Ending> endings;
    std::vector<rpc::ServerCall> dropped;
  };

  void Serve(rpc::ServerCall call, const staged::LeaseRequest& request);
  Result<void> Open(const rpc::ServerCall& call, const staged::LeaseRequest& request);
  Result<LeaseId> Insert(const rpc::ServerCall& call, const staged::LeaseRequest& request,
                         const RegionRegistry::Use& use);
  void Start(LeaseId id, Lane* lane, TransferOperation operation);
  void OpenLane(LeaseId id, int32_t device_id, TransferOperation operation);
  void SessionClosed(rpc::SessionId session);

  void Lend(std::vector<TransferOperation> operations);
  void TakeBack(BatchId tag);
  void Ended(LeaseId id, Result<void> result);

  // With the lock.
  Lease* Find(rpc::SessionId session, uint64_t id);
  void Match(Lease& lease, Effects& effects);
  staged::LeaseReply Describe(uint64_t id, const Piece& piece, const Lease& lease) const;
  void Cancel(LeaseId id, Lease& lease, Effects& effects);
  void EndLent(Lease& lease, bool fence, Effects& effects);
  void EndPiece(uint64_t piece, Result<void> result, bool fence, Effects& effects);
  void EraseIfOver(LeaseId id);

  void Run(Effects effects);
  void EndNow(Effects::Ending ending);
  // False: it was not to be had, and the task still is the caller's.
  bool Block(std::move_only_function<void()>& work);
  void Fenced(const Uuid& node, std::move_only_function<void()> then);

  const Parts parts_;
  const Options options_;
  const bool over_tcp_;
  const std::vector<Transport*> to_fence_;
  const std::unique_ptr<Wire> wire_;
  mutable std::mutex mutex_;
  bool closed_ = false;
  uint64_t last_ = 0;  // of leases and pieces
  std::unordered_map<LeaseId, Lease> leases_;
  std::unordered_map<rpc::SessionId, std::unordered_map<uint64_t, LeaseId>> sessions_;
  std::unordered_map<uint64_t, Piece> pieces_;
  std::once_flag blocking_once_;
  std::unique_ptr<Executor> blocking_;  // opens lanes, fences; with the first that is to be done
};

}  // namespace mooncake::bridge
