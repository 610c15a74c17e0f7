// Transfers of staged memory that wait for their turn, and those that are under way.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transfer_engine/peer_links.h"
#include "transfer_engine/transport.h"
#include "transfer_engine/transport/staged/staged_transfer.h"

namespace mooncake::staged {

// To each peer a few large transfers are open at a time and more small ones, each kind in order: what is small does not
// wait for what is large, and the owner holds a bounded number of calls. Any thread. Shared with what is under way.
class Queue : public std::enable_shared_from_this<Queue> {
 public:
  explicit Queue(PeerLinks& links) : links_(links) {}
  ~Queue();

  void Add(TransferOperation operation, Transport& wire);
  void Cancel(BatchId tag);
  // Ends everything with SHUTTING_DOWN, also what comes later; blocks until all have ended.
  void Close();

  // By a transfer that has ended: the next one's turn.
  void Left(const std::shared_ptr<Transfer>& transfer);

 private:
  using TransferPtr = std::shared_ptr<Transfer>;
  static constexpr size_t kSmallBytes = size_t{1} << 20;  // up to
  static constexpr size_t kOpenSmall = 32;                // per peer
  static constexpr size_t kOpenLarge = 4;
  struct Kind {
    size_t limit;  // of those open
    size_t open = 0;
    std::deque<TransferPtr> waiting;
  };
  struct Peer {
    Kind small{.limit = kOpenSmall, .waiting = {}};
    Kind large{.limit = kOpenLarge, .waiting = {}};
    Kind& Of(const Transfer& transfer) { return transfer.length() <= kSmallBytes ? small : large; }
    bool Idle() const { return small.open + large.open == 0 && small.waiting.empty() && large.waiting.empty(); }
  };

  // With the lock.
  TransferPtr Next(Kind& kind);
  void StopWaiting(const TransferPtr& transfer);
  void StartThread();
  void Run();

  PeerLinks& links_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  std::unordered_map<Uuid, Peer> peers_;
  std::unordered_map<Transfer*, TransferPtr> open_;
  std::set<std::pair<TimePoint, Transfer*>> deadlines_;  // of those that wait
  std::thread thread_;                                   // ends what waits too long
};

}  // namespace mooncake::staged
