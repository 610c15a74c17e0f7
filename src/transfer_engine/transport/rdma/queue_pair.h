// A reliable connected queue pair, from its making to its end.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "common/status.h"
#include "transfer_engine/transport/rdma/rdma_device.h"
#include "transfer_engine/transport/rdma/rdma_messages.h"

namespace mooncake::rdma {

// Every call but Post may take milliseconds. Post is serialised by the caller, and so are the changes of state; Post
// may run beside ToError. The device outlives it.
class QueuePair {
 public:
  // One that posts: its completions go to `on_completions`.
  static Result<std::unique_ptr<QueuePair>> OpenSender(RdmaDevice& device, const RdmaOptions& options,
                                                       RdmaDevice::OnCompletions on_completions);
  // One that only serves what the other end posts.
  static Result<std::unique_ptr<QueuePair>> OpenReceiver(RdmaDevice& device, const RdmaOptions& options);
  // After return the device touches no memory for it any more and none of its completions are delivered, but for those
  // being delivered now.
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  const RdmaDevice& device() const { return device_; }
  uint32_t serial() const { return seat_ ? seat_->serial : 0; }
  uint32_t depth() const { return depth_; }
  // How the other end reaches it.
  QueueAddress Address() const;

  // INVALID_PARAMS for an address that cannot be one, TRANSFER_FAIL with the system's reason.
  Result<void> Receive(const QueueAddress& peer);
  Result<void> Send(const QueueAddress& peer);
  // All that is posted ends: completions with an error, for what has not ended yet.
  Result<void> ToError();

  // Chained requests, `wr_id` with serial() in its upper half. False: `first_refused` and all after it are not posted.
  bool Post(ibv_send_wr* requests, ibv_send_wr** first_refused);

 private:
  QueuePair(RdmaDevice& device, const RdmaOptions& options) : device_(device), options_(options) {}
  static Result<std::unique_ptr<QueuePair>> Finish(std::unique_ptr<QueuePair> pair, ibv_cq* queue, uint32_t depth);
  Result<void> Modify(ibv_qp_attr& attributes, int mask, const char* what);

  RdmaDevice& device_;
  const RdmaOptions& options_;
  std::optional<RdmaDevice::Seat> seat_;
  PortState port_;  // as it was when this was made
  uint32_t first_packet_ = 0;
  uint32_t depth_ = 0;
  ibv_qp* pair_ = nullptr;
};

}  // namespace mooncake::rdma
