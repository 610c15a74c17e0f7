// The asking side of the tcp transport: operations towards one target process and the connections they go over.
#pragma once

#include <array>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/executor.h"
#include "transfer_engine/transport.h"
#include "transfer_engine/transport/tcp/event_loop.h"
#include "transfer_engine/transport/tcp/tcp_metrics.h"
#include "transfer_engine/transport/tcp/tcp_options.h"
#include "transfer_engine/transport/tcp/tcp_socket.h"
#include "transfer_engine/transport/tcp/tcp_wire.h"

namespace mooncake::tcp {

class Peer;

// A TransferOperation under way. What `cut` begins is under the peer's lock.
struct Pending {
  TransferOperation request;
  std::byte* memory = nullptr;
  size_t length = 0;
  std::shared_ptr<Peer> peer;  // which holds it as long as it is live

  size_t cut = 0;                      // bytes that have become chunks
  size_t chunks = 0;                   // that have not been answered
  bool queued = false;                 // not all cut: in a queue of the peer
  size_t busy = 0;                     // system calls that use `memory` at this moment
  int losses = 0;                      // connections lost under it
  std::optional<Result<void>> result;  // how it ends, once `busy` is 0
  EventLoop::TimerId timer;
  std::list<std::shared_ptr<Pending>>::iterator place;
};
using PendingPtr = std::shared_ptr<Pending>;

// What every peer of a transport shares. Outlives none of them: held by each.
struct PeerEnvironment {
  TcpOptions options;
  Uuid self;
  std::vector<std::shared_ptr<EventLoop>> loops;
  Executor* workers;  // name look-ups; used only while the transport lives
  mutable TcpMetrics metrics;
};

// One process at one address. An operation is cut into chunks, which are numbered within their connection (lane) and
// answered in order. One lock guards all state; system calls are made without it, by whoever holds the lane's sending
// or receiving role, so that memory is let go of as soon as the current call returns. Any thread.
class Peer final : public std::enable_shared_from_this<Peer> {
 public:
  Peer(std::shared_ptr<const PeerEnvironment> environment, Endpoint address, Uuid generation, size_t home);

  // False: retired, and `operations` is untouched. At most `inline_bytes` are sent on this thread.
  [[nodiscard]] bool Submit(std::vector<TransferOperation>& operations, size_t inline_bytes);
  void Cancel(BatchId tag);
  void Expire(const PendingPtr& operation);
  // Ends everything with SHUTTING_DOWN, hangs up, and takes nothing more.
  void Close();
  // True when nothing is under way or connected; then it takes nothing more.
  bool RetireIfIdle();

 private:
  struct Chunk {
    PendingPtr operation;  // null: nobody waits for the answer any more
    size_t offset = 0;     // in the operation
    Request header;
    bool lent = false;  // of a read that is arriving: has to be returned
    bool IsRead() const { return header.operation == Operation::kRead; }
    bool IsWrite() const { return header.operation == Operation::kWrite; }
    bool IsReturn() const { return header.operation == Operation::kReturn; }
    // That count for the connection's window.
    size_t Bytes() const { return IsReturn() ? 0 : header.length; }
    size_t WireBytes() const { return sizeof(Request) + (IsWrite() ? header.length : 0); }
  };

  enum class State : uint8_t { kDown, kResolving, kConnecting, kHello, kReady };

  // A slot for a connection; the connection itself comes and goes.
  struct Lane final : EventLoop::Handler {
    void OnEvents(uint32_t events) override;

    std::weak_ptr<Peer> peer;
    uint32_t slot = 0;
    std::shared_ptr<EventLoop> loop;

    // The rest is under the peer's lock.
    State state = State::kDown;
    uint64_t dial = 0;  // counts attempts, so that a late look-up knows it is outdated
    std::vector<Address> addresses;
    Socket socket;
    uint64_t token = 0;
    bool wants_writable = false;
    TimePoint not_before{};  // of the next attempt

    std::deque<Chunk> flight;   // handed to this connection, ids without gaps
    std::deque<Chunk> orphans;  // of the connection before; sent again when the next one stands
    uint64_t flight_bytes = 0;
    uint64_t next_id = 0;
    uint64_t sent_id = 0;    // of the first chunk that is not entirely sent
    size_t sent_bytes = 0;   // of that chunk
    uint64_t batch_end = 0;  // while `sending`: ids below may be in the kernel's hands
    size_t strays = 0;       // writes nobody waits for that may still reach the target, also from the connection before

    std::array<std::byte, 8192> input;  // headers, and payload that came along with them
    size_t input_bytes = 0;
    uint64_t body_left = 0;  // payload of flight.front() still to come

    bool sending = false;
    bool one_by_one = false;  // a system call with several chunks found memory that is not there
    bool receiving = false;
    std::optional<Status> failure;  // to be taken down as soon as neither of the two
    bool our_fault = false;         // we broke it off: nobody's loss

    bool Up() const { return state == State::kReady && !failure; }
    bool Dialing() const { return state != State::kDown && state != State::kReady; }
    size_t UnsentIndex() const { return flight.empty() ? 0 : static_cast<size_t>(sent_id - flight.front().header.id); }
    bool HasUnsent() const { return sent_id != next_id; }
  };

  class Turn;
  struct Batch;

  // tcp_peer.cc: operations
  PendingPtr Take(TransferOperation& operation);
  void End(Turn& turn, const PendingPtr& operation, Result<void> result);
  void LetGo(Turn& turn, const PendingPtr& operation);
  void Abandon(Turn& turn, const Pending& operation);
  void Complete(Turn& turn, const PendingPtr& operation);
  void Unqueue(const PendingPtr& operation);
  std::deque<PendingPtr>& QueueOf(const Pending& operation);
  std::deque<PendingPtr>& NextLongQueue();
  Chunk CutFrom(std::deque<PendingPtr>& queue);
  bool HasLongWork() const { return !small_.empty() || !large_.empty(); }
  bool HasWork() const { return HasLongWork() || !brief_.empty(); }
  Lane& Express() { return *lanes_.back(); }
  bool HasRoom(const Lane& lane) const;
  void AddStray(Lane& lane);
  void DropStray(Lane& lane);
  void DropAllStrays(Lane& lane);
  void Resume(Turn& turn);
  Lane* LeastLoaded();
  bool Crowded(const Lane* least_loaded) const;
  Lane* LaneForBrief();
  void Assign(Turn& turn);
  void Kick(Turn& turn, Lane* own, size_t inline_bytes);
  void HangUpIfUnwanted(Turn& turn);
  std::string Name() const;

  // tcp_lane_dial.cc: connections come and go
  void DialMore(Turn& turn);
  void DialExpress(Turn& turn);
  void Dial(Turn& turn, Lane& lane);
  void Connect(Turn& turn, Lane& lane);
  void SayHello(Turn& turn, Lane& lane);
  void HearAnswer(Turn& turn, Lane& lane);
  void Ready(Turn& turn, Lane& lane);
  void DialFailed(Turn& turn, Lane& lane, const Status& status);
  void HangUp(Lane& lane);
  void Fail(Lane& lane, Status status, bool our_fault = false);
  void TakeDownIfFailed(Turn& turn, Lane& lane);

  // tcp_lane_io.cc: bytes
  void OnLaneEvents(Lane& lane, uint32_t events);
  void Prune(Lane& lane);
  void Gather(Lane& lane, Batch& batch);
  void EndUnreadable(Turn& turn, Lane& lane, const Batch& batch);
  void EndUnwritable(Turn& turn, const PendingPtr& operation);
  void Account(Lane& lane, const Batch& batch, size_t sent);
  void Send(Turn& turn, Lane& lane, size_t limit);
  void WantWritable(Lane& lane, bool wanted);
  void Receive(Turn& turn, Lane& lane);
  void Parse(Turn& turn, Lane& lane);
  bool TakeReply(Turn& turn, Lane& lane, const Reply& reply);
  Chunk PopFront(Lane& lane);
  void ReadArrived(Turn& turn, Lane& lane);
  bool Lends(const Chunk& chunk) const;

  const std::shared_ptr<const PeerEnvironment> environment_;
  const Endpoint address_;
  const Uuid generation_;
  const uint64_t instance_;  // random, see Hello

  std::mutex mutex_;
  bool closed_ = false;
  std::list<PendingPtr> live_;
  std::deque<PendingPtr> brief_;
  std::deque<PendingPtr> small_;  // not brief, but one chunk each
  std::deque<PendingPtr> large_;
  bool brief_is_next_ = false;
  bool large_is_next_ = false;
  size_t strays_ = 0;    // of all lanes
  bool resume_ = false;  // there are fewer of them, so that operations may have to be assigned
  std::vector<std::shared_ptr<Lane>> lanes_;
  std::span<const std::shared_ptr<Lane>> long_lanes_;  // all but the last, which is for brief operations only
};

// Holds the peer's lock and reports, whenever it gives it up, the operations that have ended meanwhile.
class Peer::Turn {
 public:
  explicit Turn(Peer& peer) : lock_(peer.mutex_) {}
  ~Turn() { Report(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  template <typename Call>
  auto Unlocked(Call call) {
    Report();
    auto result = call();
    lock_.lock();
    return result;
  }
  void Ended(PendingPtr operation) { ended_.push_back(std::move(operation)); }

 private:
  void Report();  // unlocks

  std::unique_lock<std::mutex> lock_;
  std::vector<PendingPtr> ended_;
};

}  // namespace mooncake::tcp
