// One transfer from or to staged memory: asks the owner for slots, moves its bytes, returns them.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "rpc/rpc_client.h"
#include "transfer_engine/peer_links.h"
#include "transfer_engine/transport.h"
#include "transfer_engine/transport/staged/staged_messages.h"

namespace mooncake::staged {

class Queue;

// Several calls are out at once, so that the owner's NPU copies one piece while others are on the wire. A read has
// ended when all of its bytes are here, a write when the owner says that all are there. When something goes wrong: no
// new piece, the wire lets go of those that are out, the owner is told and has let go of the rest, then the end. Any
// thread.
class Transfer : public std::enable_shared_from_this<Transfer> {
 public:
  // `links` and `wire` live as long as the operation has not ended.
  Transfer(std::shared_ptr<Queue> queue, PeerLinks& links, Transport& wire, TransferOperation operation);

  size_t length() const { return length_; }
  Deadline deadline() const { return deadline_; }
  BatchId tag() const { return tag_; }
  const Uuid& peer() const { return target_->generation; }

  // Either of them, once.
  void Start();
  void Refuse(Status why);
  // After Start; the first error counts.
  void Stop(Status why);

 private:
  // What is to be done when the lock is gone.
  struct Next {
    std::vector<LeaseRequest> calls;
    std::vector<TransferOperation> pieces;
    bool cancel = false;  // the wire's pieces
    std::optional<Result<void>> end;
  };

  void Answered(Result<std::string> body, bool closing);
  void Moved(uint64_t piece, size_t bytes, Result<void> result);
  void Do(Next next);
  void Call(LeaseRequest request);

  // With the lock.
  void TakeAnswer(const LeaseReply& reply, Next& next);
  void TakePiece(const LeaseReply& reply, Next& next);
  void Fail(Status why, Next& next);
  void CloseOrEnd(Next& next);
  void End(Result<void> result, Next& next);
  LeaseRequest Request() const;
  Status InWords(const Status& why) const;

  const std::shared_ptr<Queue> queue_;
  PeerLinks& links_;
  Transport& wire_;
  const SegmentPtr target_;
  const TransferOpcode opcode_;
  const size_t length_;
  const Deadline deadline_;
  const BatchId tag_;
  const uint64_t id_;                     // in calls
  const BatchId wire_tag_;                // of the pieces
  std::shared_ptr<rpc::RpcClient> link_;  // set by Start

  std::mutex mutex_;
  TransferOperation operation_;
  size_t on_wire_ = 0;   // pieces
  size_t promised_ = 0;  // bytes of the pieces so far
  size_t moved_ = 0;
  std::optional<Status> error_;
  bool unsure_ = false;      // a piece's write may not have stopped yet
  bool owner_over_ = false;  // it has ended the transfer, or cannot be told anything
  bool closing_ = false;     // the closing call is out
  bool ended_ = false;
};

}  // namespace mooncake::staged
