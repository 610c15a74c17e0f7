// The pipeline of one device: takes operations, moves their bytes through the slots, and ends each exactly once.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "transfer_engine/transport.h"
#include "transfer_engine/transport/ascend_rdma/copy_port.h"
#include "transfer_engine/transport/ascend_rdma/scheduler.h"

namespace mooncake::bridge {

struct LaneOptions {
  SchedulerOptions scheduler;
  size_t wire_depth = 4;                                // loads of a direction on the wire at once
  size_t bulk_wire_depth = 2;                           // of those, bulk: what a small operation may have to wait for
  int attempts = 3;                                     // of the wire, per piece
  Duration retry_delay = std::chrono::milliseconds(2);  // before the second attempt; eight times as long each further
  Duration copy_patience = std::chrono::seconds(30);    // before a copy is aborted
  // Past an operation's failure, until a wire that ought to have ended its pieces is no longer waited for. Their slots
  // stay out of use until it has; what it still sends may change the target's memory.
  Duration wire_grace = std::chrono::seconds(10);
};

// Since the lane was opened. What is written by the lane's thread may be read by any.
struct LaneCounters {
  std::atomic<uint64_t> bytes_written = 0;
  std::atomic<uint64_t> bytes_read = 0;
  std::atomic<uint64_t> loads = 0;
  std::atomic<uint64_t> pieces = 0;
  std::atomic<uint64_t> wire_retries = 0;
  std::atomic<uint64_t> copy_failures = 0;
  std::atomic<uint64_t> quarantines = 0;
  std::atomic<uint64_t> slot_ns = 0;    // time in use, of all slots together
  std::atomic<uint64_t> slots_max = 0;  // in use at once
};

// An operation and the host transport that carries its bytes to and from the slots.
struct BridgedOperation {
  TransferOperation operation;  // `local` is NPU memory of the lane's device
  Transport* wire = nullptr;
};

// No thread of its own: somebody calls Step again and again, one thread at a time. Only Submit, Cancel and Stop may
// come from others. All it refers to outlives it, and so do the transports.
class LaneCore {
 public:
  LaneCore(int32_t device_id, LaneOptions options, SlotRing& ring, CopyPort& port);
  ~LaneCore();  // Done
  LaneCore(const LaneCore&) = delete;
  LaneCore& operator=(const LaneCore&) = delete;

  void Submit(std::vector<BridgedOperation> operations);
  void Cancel(BatchId tag);
  // Ends everything with SHUTTING_DOWN, also what comes later.
  void Stop();

  // False once the device is known to be lost: then all ends with DEVICE_NOT_FOUND. Any thread.
  bool online() const { return online_.load(std::memory_order_acquire); }

  // Everything that can be done now; false when there was nothing.
  bool Step(TimePoint now);
  // Something came in that the next Step will look at.
  bool HasInput() const { return inbox_->filled.load(std::memory_order_acquire); }
  // Sleeps until something comes in, or until then.
  void WaitForInput(TimePoint until);
  // Copies are under way, whose end nobody tells.
  bool MustPoll() const { return !copies_.empty(); }
  // When Step has something to do even if nothing happens until then.
  std::optional<TimePoint> WakeAt(TimePoint now) const;
  // No operation and no slot is in use, and Stop was called.
  bool Done() const { return stopping_ && operations_.empty() && loads_.empty() && !HasInput(); }

  const LaneCounters& counters() const { return counters_; }
  const LaneOptions& options() const { return options_; }

 private:
  struct WireEnd {
    uint64_t load;
    size_t piece;
    int attempt;
    Result<void> result;
  };
  // What other threads leave for the lane. Shared with the callbacks of pieces on the wire.
  struct Inbox {
    std::mutex mutex;
    std::condition_variable came;
    std::atomic<bool> filled = false;
    std::vector<BridgedOperation> submitted;
    std::vector<BatchId> canceled;
    std::vector<WireEnd> ended;
    bool stop = false;

    template <typename Fill>
    void Put(Fill fill) {
      std::lock_guard lock(mutex);
      fill();
      filled.store(true, std::memory_order_release);
      came.notify_one();
    }
  };
  struct Op {
    BridgedOperation bridged;
    Direction direction;
    BatchId wire_tag;       // names its pieces, and nothing else, on the wire
    bool admitted = false;  // by the scheduler
    size_t moved = 0;       // bytes of pieces that are through
    size_t in_flight = 0;   // pieces that hold a slot and may touch memory
    std::optional<Status> error;
    TimePoint failed_at{};
  };
  enum class PieceState : uint8_t { kWaiting, kOnWire, kRetry, kThrough, kDropped, kOrphaned };
  struct LoadPiece : Piece {
    PieceState state = PieceState::kWaiting;
    int attempts = 0;
  };
  struct LoadState {
    Direction direction;
    Uuid peer;
    bool bulk;
    SlotRing::Slot slot;
    std::vector<LoadPiece> pieces;
    size_t on_wire = 0;   // pieces on the wire or about to be again
    size_t orphaned = 0;  // pieces on the wire that nobody waits for
    bool copying = false;
    // For the wire, or for a copy.
    bool AnyWaits() const {
      return std::ranges::any_of(pieces, [](const LoadPiece& piece) { return piece.state == PieceState::kWaiting; });
    }
  };
  struct Copying {
    uint64_t load;
    Direction direction;
    CopyPort::Ticket ticket;
    TimePoint started;
    bool aborted = false;
  };

  void CountSlots(TimePoint now);
  bool TakeInput(TimePoint now);
  void Admit(BridgedOperation bridged, TimePoint now);
  bool Schedule(uint64_t id, Op& op, TimePoint now);
  // Those beyond the limits, when others have ended.
  void AdmitWaiting(TimePoint now);
  void PollCopies(TimePoint now, bool& progress);
  void CopyEnded(const Copying& copy, Result<void> result, TimePoint now);
  void WireEnded(WireEnd end, TimePoint now);
  bool Timers(TimePoint now);
  bool Issue(Direction direction, TimePoint now);
  bool IssueQueued(Direction direction, TimePoint now);
  bool PickOne(Direction direction, TimePoint now);

  bool CopyFree(Direction direction) const { return copying_[Index(direction)] < port_.depth(); }
  bool WireFree(Direction direction, bool bulk) const;
  void StartCopy(uint64_t id, LoadState& load, TimePoint now);
  void StartWire(uint64_t id, LoadState& load);
  TransferOperation WireOperation(uint64_t id, const LoadState& load, size_t piece, const Op& op);
  // All pieces are off the wire.
  void WireOver(uint64_t id, LoadState& load, TimePoint now);
  void LeaveWire(LoadState& load);
  void FreeLoad(uint64_t id, LoadState& load);
  void EndPiece(LoadPiece& piece, PieceState how);
  void GiveUpOnWire(uint64_t op_id, TimePoint now);
  void DropRetries(uint64_t op_id, TimePoint now);
  // Its pieces in slots that nothing touches: those may have to wait for long.
  void DropWaiting(uint64_t op_id);
  void Enqueue(uint64_t id, const LoadState& load);
  void TellFinished();

  void Fail(uint64_t op_id, Op& op, Status why, TimePoint now);
  void FailAll(const Status& why, TimePoint now);
  void GoOffline(const Status& why, TimePoint now);
  // Ends the operation if nothing of it is under way.
  void MaybeFinish(uint64_t op_id);
  Status Context(const Op& op, const Status& why, std::string_view stage) const;

  const int32_t device_id_;
  const LaneOptions options_;
  SlotRing& ring_;
  CopyPort& port_;
  Scheduler scheduler_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();

  // Of the lane's thread.
  uint64_t last_id_ = 0;
  std::unordered_map<uint64_t, Op> operations_;
  std::unordered_map<uint64_t, LoadState> loads_;
  std::map<Uuid, std::deque<uint64_t>> waiting_;                   // of each peer, beyond the scheduler's limits
  std::set<std::pair<TimePoint, uint64_t>> deadlines_;             // of operations
  std::set<std::pair<TimePoint, uint64_t>> overdue_;               // failed operations with pieces on the wire
  std::multimap<TimePoint, std::pair<uint64_t, size_t>> retries_;  // (load, piece)
  std::vector<Copying> copies_;
  std::array<std::deque<uint64_t>, kDirections> queued_;  // loads that wait for the wire (writes) or a copy (reads)
  std::array<size_t, kDirections> copying_{};
  std::array<size_t, kDirections> wire_loads_{};
  std::array<size_t, kDirections> bulk_wire_loads_{};
  bool read_first_ = true;
  std::optional<TimePoint> last_step_;
  bool stopping_ = false;
  std::atomic<bool> online_ = true;
  std::optional<Status> offline_;
  std::vector<std::pair<TransferOperation, Result<void>>> finished_;  // of this Step; told at its end
  LaneCounters counters_;
};

}  // namespace mooncake::bridge
