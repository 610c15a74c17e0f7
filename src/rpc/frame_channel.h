// Frames over one connected socket. Bytes move only inside non-blocking system calls on the connection's own I/O
// thread; the reactor is asked for readiness, never handed memory. So once Close has returned no memory of a caller is
// touched.
#pragma once

#include <sys/uio.h>

#include <asio/ip/tcp.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "rpc/frame.h"

namespace mooncake::rpc::internal {

// One I/O thread only. The owner outlives the channel's open life: after OnClosed it is not called again.
class FrameChannel : public std::enable_shared_from_this<FrameChannel> {
 public:
  enum class CloseCause { kLocal, kPeer, kBadFrame, kTooLarge };

  class Owner {
   public:
    virtual ~Owner() = default;
    // A frame's header and body are here. With a payload the channel reads on only after ReceivePayload or
    // DiscardPayload.
    virtual void OnFrame(const FrameHeader& header, std::string body) = 0;
    // The last byte of a frame went to the kernel.
    virtual void OnSent(const FrameHeader& header) = 0;
    // The descriptor is about to be closed, its number to be reused.
    virtual void OnClosing() {}
    // Exactly once, from within Close or after an error of the socket.
    virtual void OnClosed(const Status& reason, CloseCause cause) = 0;
  };

  struct Limits {
    uint32_t body_bytes = kMaxHelloBytes;
    uint64_t payload_bytes = 0;
  };

  FrameChannel(asio::ip::tcp::socket socket, Owner& owner);

  // Sets socket options and begins to read, with the limits of the handshake.
  void Start();
  void SetLimits(Limits limits) { limits_ = limits; }

  // Queues a frame, of which the first bytes may have left already if nothing else is queued; Flush sends what is
  // queued (frames queued from within OnFrame are flushed by the channel).
  void Send(OutFrame frame, uint64_t already_sent = 0);
  void Flush() {
    if (!pumping_) FlushNow();
  }

  // Nothing is queued: another may write whole frames to the descriptor until the next Send.
  bool idle() const { return queue_.empty() && !closed_; }
  int descriptor() { return socket_.native_handle(); }

  enum class CancelResult { kRemoved, kPartlySent, kNotQueued };
  CancelResult Cancel(uint64_t id);

  // Between frames: stop and go on reading.
  void Pause() { paused_ = true; }
  void Resume();

  // The spans total the payload's size. `done` runs when the last byte is in place, never if the channel closes before.
  void ReceivePayload(std::vector<MutableSpan> spans, std::move_only_function<void()> done);
  void DiscardPayload();

  void Close(Status reason, CloseCause cause = CloseCause::kLocal);
  // After the queue has drained.
  void CloseWhenSent(Status reason);

  // True when the peer owes bytes (rest of a frame, room for ours) and none moved since the previous call.
  bool StalledSinceLastCheck();

 private:
  enum class ReadState { kHeader, kBody, kPayloadWaiting, kPayload, kDiscard };

  void Pump();
  void FlushNow();
  bool Consume();
  bool TakeHeader();
  bool TakeBody();
  bool TakePayload();
  bool TakeDiscarded();
  bool ReadOnce(bool& drained);
  void GrowBody();
  void WaitReadable();
  void WaitWritable();
  size_t GatherQueue(iovec* pieces, size_t limit) const;
  void MarkSent(size_t bytes);
  size_t buffered() const { return buffer_end_ - buffer_begin_; }

  asio::ip::tcp::socket socket_;
  Owner& owner_;
  Limits limits_;
  bool closed_ = false;

  ReadState state_ = ReadState::kHeader;
  bool paused_ = false;
  bool pumping_ = false;
  bool waiting_readable_ = false;
  std::vector<char> buffer_;
  size_t buffer_begin_ = 0;
  size_t buffer_end_ = 0;
  FrameHeader header_;
  std::string body_;
  size_t body_have_ = 0;
  std::vector<MutableSpan> spans_;
  size_t span_index_ = 0;      // first span with room
  uint64_t payload_left_ = 0;  // of the payload being received or discarded
  std::move_only_function<void()> payload_done_;
  std::vector<iovec> pieces_;

  std::deque<OutFrame> queue_;
  uint64_t front_sent_ = 0;  // bytes of queue_.front() that left
  bool flushing_ = false;
  bool waiting_writable_ = false;
  bool close_when_sent_ = false;
  Status close_reason_;

  uint64_t bytes_in_ = 0;
  uint64_t bytes_out_ = 0;
  uint64_t checked_in_ = ~uint64_t{0};
  uint64_t checked_out_ = ~uint64_t{0};
};

}  // namespace mooncake::rpc::internal
