// Reading and writing of frames.
#include "rpc/frame_channel.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "common/check.h"

namespace mooncake::rpc::internal {
namespace {

// Small frames are read in bulk through this buffer; of a large body or payload only what came along with its header
// passes through it.
constexpr size_t kBufferBytes = 16 << 10;
// A body's memory grows by what has arrived so far, at least by this.
constexpr size_t kBodyStepBytes = 1 << 20;
// One turn of a connection before others on the thread get theirs.
constexpr size_t kTurnBytes = 4 << 20;
constexpr size_t kMaxPieces = 256;

std::string ErrnoText(int error) {
  return std::system_category().message(error);
}

void SetOption(int socket, int level, int name, int value) {
  // A socket that refuses an option (it may be dead already) works without it.
  (void)setsockopt(socket, level, name, &value, sizeof(value));
}

}  // namespace

FrameChannel::FrameChannel(asio::ip::tcp::socket socket, Owner& owner)
    : socket_(std::move(socket)), owner_(owner), buffer_(kBufferBytes) {}

void FrameChannel::Start() {
  const int descriptor = socket_.native_handle();
  SetOption(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  SetOption(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  SetOption(descriptor, IPPROTO_TCP, TCP_KEEPCNT, 3);
  WaitReadable();
}

void FrameChannel::Close(Status reason, CloseCause cause) {
  if (closed_) return;
  const auto self = shared_from_this();
  closed_ = true;
  owner_.OnClosing();
  asio::error_code ignored;
  socket_.close(ignored);
  const std::deque<OutFrame> unsent = std::move(queue_);
  const std::vector<MutableSpan> spans = std::move(spans_);
  const auto dropped = std::move(payload_done_);
  queue_.clear();
  owner_.OnClosed(reason, cause);
}

void FrameChannel::CloseWhenSent(Status reason) {
  close_when_sent_ = true;
  close_reason_ = std::move(reason);
  Flush();
}

bool FrameChannel::StalledSinceLastCheck() {
  const bool owes_input = state_ == ReadState::kBody || state_ == ReadState::kPayload ||
                          state_ == ReadState::kDiscard || (state_ == ReadState::kHeader && !paused_ && buffered() > 0);
  const bool stalled = (owes_input && checked_in_ == bytes_in_) || (!queue_.empty() && checked_out_ == bytes_out_);
  // A check only counts against the next one if something was owed at both.
  checked_in_ = owes_input ? bytes_in_ : ~uint64_t{0};
  checked_out_ = queue_.empty() ? ~uint64_t{0} : bytes_out_;
  return stalled;
}

// ---- reading

void FrameChannel::WaitReadable() {
  if (waiting_readable_) return;
  waiting_readable_ = true;
  socket_.async_wait(asio::ip::tcp::socket::wait_read, [self = shared_from_this()](const asio::error_code&) {
    self->waiting_readable_ = false;
    self->Pump();  // an error of the socket is found by the read itself
  });
}

void FrameChannel::Resume() {
  paused_ = false;
  Pump();
}

void FrameChannel::Pump() {
  if (pumping_ || closed_) return;
  const auto self = shared_from_this();
  pumping_ = true;
  bool wants_bytes = Consume();
  bool drained = false;
  const uint64_t turn_end = bytes_in_ + kTurnBytes;
  while (!closed_ && wants_bytes && !drained && bytes_in_ < turn_end) {
    if (!ReadOnce(drained)) break;
    wants_bytes = Consume();
    if (!closed_ && !queue_.empty()) FlushNow();
    // The flush may have freed room that Consume had stopped for.
    if (!closed_ && !wants_bytes) wants_bytes = Consume();
  }
  pumping_ = false;
  if (closed_) return;
  Flush();
  if (!closed_ && wants_bytes) WaitReadable();
}

// Takes what is buffered and hands out frames. True when only more bytes from the socket can help.
bool FrameChannel::Consume() {
  while (!closed_) {
    switch (state_) {
      case ReadState::kHeader:
        if (paused_) return false;
        if (!TakeHeader()) return true;
        break;
      case ReadState::kBody:
        if (!TakeBody()) return true;
        break;
      case ReadState::kPayloadWaiting:
        return false;
      case ReadState::kPayload:
        if (!TakePayload()) return true;
        break;
      case ReadState::kDiscard:
        if (!TakeDiscarded()) return true;
        break;
    }
  }
  return false;
}

bool FrameChannel::TakeHeader() {
  // The magic alone condemns foreign protocols, whose first message may be shorter than a header.
  uint32_t magic = kFrameMagic;
  std::memcpy(&magic, buffer_.data() + buffer_begin_, std::min(buffered(), sizeof(magic)));
  if (magic != kFrameMagic) {
    Close(Status(ErrorCode::RPC_FAIL, "the peer does not speak this protocol"), CloseCause::kBadFrame);
    return false;
  }
  if (buffered() < sizeof(FrameHeader)) return false;
  std::memcpy(&header_, buffer_.data() + buffer_begin_, sizeof(FrameHeader));
  buffer_begin_ += sizeof(FrameHeader);
  if (header_.body_bytes > limits_.body_bytes || header_.payload_bytes > limits_.payload_bytes) {
    Close(Status(ErrorCode::RPC_FAIL,
                 fmt::format("the peer sent a frame of {} + {} bytes, the limits are {} + {}", header_.body_bytes,
                             header_.payload_bytes, limits_.body_bytes, limits_.payload_bytes)),
          CloseCause::kTooLarge);
    return false;
  }
  body_.clear();
  body_have_ = 0;
  state_ = ReadState::kBody;
  return true;
}

bool FrameChannel::TakeBody() {
  const size_t take = std::min<size_t>(buffered(), header_.body_bytes - body_have_);
  if (take > 0) {
    body_.resize(body_have_);
    body_.append(buffer_.data() + buffer_begin_, take);
    buffer_begin_ += take;
    body_have_ += take;
  }
  if (body_have_ < header_.body_bytes) return false;
  payload_left_ = header_.payload_bytes;
  state_ = payload_left_ > 0 ? ReadState::kPayloadWaiting : ReadState::kHeader;
  owner_.OnFrame(header_, std::move(body_));
  return true;
}

void FrameChannel::ReceivePayload(std::vector<MutableSpan> spans, std::move_only_function<void()> done) {
  MC_CHECK(state_ == ReadState::kPayloadWaiting && TotalBytes(spans) == payload_left_, "payload {} spans {}",
           payload_left_, TotalBytes(spans));
  spans_ = std::move(spans);
  span_index_ = 0;
  payload_done_ = std::move(done);
  state_ = ReadState::kPayload;
  Pump();
}

void FrameChannel::DiscardPayload() {
  MC_CHECK(state_ == ReadState::kPayloadWaiting, "state {}", static_cast<int>(state_));
  state_ = ReadState::kDiscard;
  Pump();
}

bool FrameChannel::TakePayload() {
  while (payload_left_ > 0 && buffered() > 0) {
    MutableSpan& span = spans_[span_index_];
    const size_t take = std::min(buffered(), span.size());
    if (take > 0) std::memcpy(span.data(), buffer_.data() + buffer_begin_, take);
    span = span.subspan(take);
    if (span.empty()) ++span_index_;
    buffer_begin_ += take;
    payload_left_ -= take;
  }
  if (payload_left_ > 0) return false;
  spans_.clear();
  state_ = ReadState::kHeader;
  std::exchange(payload_done_, nullptr)();
  return true;
}

bool FrameChannel::TakeDiscarded() {
  const size_t take = std::min<uint64_t>(buffered(), payload_left_);
  buffer_begin_ += take;
  payload_left_ -= take;
  if (payload_left_ > 0) return false;
  state_ = ReadState::kHeader;
  return true;
}

void FrameChannel::GrowBody() {
  const size_t step = std::max(kBodyStepBytes, body_have_);
  const size_t size = std::min<size_t>(header_.body_bytes, body_have_ + step);
  if (body_.size() < size) body_.resize_and_overwrite(size, [size](char*, size_t) { return size; });
}

// One system call. Bytes go where they belong at once; what follows the current frame lands in the buffer. False when
// there was nothing or the channel closed; `drained` when the socket had less than was asked for.
bool FrameChannel::ReadOnce(bool& drained) {
  if (buffered() == 0) buffer_begin_ = buffer_end_ = 0;
  if (buffer_begin_ > 0) {  // part of a header
    std::memmove(buffer_.data(), buffer_.data() + buffer_begin_, buffered());
    buffer_end_ -= buffer_begin_;
    buffer_begin_ = 0;
  }
  pieces_.clear();
  size_t direct = 0;
  bool reaches_end = true;
  if (state_ == ReadState::kBody) {
    if (header_.body_bytes - body_have_ > kBufferBytes) GrowBody();
    direct = body_.size() > body_have_ ? body_.size() - body_have_ : 0;
    if (direct > 0) pieces_.push_back({body_.data() + body_have_, direct});
    reaches_end = direct == 0 || body_.size() == header_.body_bytes;
  } else if (state_ == ReadState::kPayload) {
    for (size_t i = span_index_; i < spans_.size() && pieces_.size() + 1 < kMaxPieces; ++i) {
      if (!spans_[i].empty()) pieces_.push_back({spans_[i].data(), spans_[i].size()});
      direct += spans_[i].size();
    }
    reaches_end = direct == payload_left_;
  }
  size_t asked = direct;
  if (reaches_end) {
    pieces_.push_back({buffer_.data() + buffer_end_, buffer_.size() - buffer_end_});
    asked += buffer_.size() - buffer_end_;
  }
  msghdr message{};
  message.msg_iov = pieces_.data();
  message.msg_iovlen = pieces_.size();
  const ssize_t got = recvmsg(socket_.native_handle(), &message, MSG_DONTWAIT);
  if (got < 0 && errno == EINTR) return true;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (got <= 0) {
    Close(Status(ErrorCode::RPC_FAIL, got == 0 ? "the peer closed the connection" : ErrnoText(errno),
                 got == 0 ? 0 : errno),
          CloseCause::kPeer);
    return false;
  }
  bytes_in_ += static_cast<size_t>(got);
  drained = static_cast<size_t>(got) < asked;
  const size_t placed = std::min<size_t>(static_cast<size_t>(got), direct);
  buffer_end_ += static_cast<size_t>(got) - placed;
  if (state_ == ReadState::kBody) body_have_ += placed;
  if (state_ == ReadState::kPayload) {
    payload_left_ -= placed;
    for (size_t left = placed; left > 0 || (span_index_ < spans_.size() && spans_[span_index_].empty());) {
      MutableSpan& span = spans_[span_index_];
      const size_t take = std::min(left, span.size());
      span = span.subspan(take);
      left -= take;
      if (span.empty()) ++span_index_;
    }
  }
  return true;
}

// ---- writing

void FrameChannel::Send(OutFrame frame, uint64_t already_sent) {
  if (closed_) return;
  MC_CHECK(already_sent == 0 || queue_.empty(), "{} bytes of a frame left before {} others", already_sent,
           queue_.size());
  if (already_sent > 0) front_sent_ = already_sent;
  frame.header.body_bytes = static_cast<uint32_t>(frame.body.size());
  frame.header.payload_bytes = TotalBytes(frame.payload);
  queue_.push_back(std::move(frame));
}

void FrameChannel::WaitWritable() {
  waiting_writable_ = true;
  socket_.async_wait(asio::ip::tcp::socket::wait_write, [self = shared_from_this()](const asio::error_code&) {
    self->waiting_writable_ = false;
    self->Flush();
  });
}

FrameChannel::CancelResult FrameChannel::Cancel(uint64_t id) {
  for (auto frame = queue_.begin(); frame != queue_.end(); ++frame) {
    if (frame->header.id != id) continue;
    if (frame == queue_.begin() && front_sent_ > 0) return CancelResult::kPartlySent;
    queue_.erase(frame);
    return CancelResult::kRemoved;
  }
  return CancelResult::kNotQueued;
}

// The unsent bytes of as many queued frames as fit, so that small frames share a system call.
size_t FrameChannel::GatherQueue(iovec* pieces, size_t limit) const {
  size_t count = 0;
  uint64_t skip = front_sent_;
  const auto add = [&](const void* data, size_t size) {
    if (skip >= size) {
      skip -= size;
      return true;
    }
    if (count == limit) return false;
    pieces[count++] = {const_cast<char*>(static_cast<const char*>(data)) + skip, size - skip};
    skip = 0;
    return true;
  };
  for (const OutFrame& frame : queue_) {
    if (!add(&frame.header, sizeof(frame.header)) || !add(frame.body.data(), frame.body.size())) return count;
    for (const ConstSpan& span : frame.payload) {
      if (!add(span.data(), span.size())) return count;
    }
  }
  return count;
}

void FrameChannel::MarkSent(size_t bytes) {
  bytes_out_ += bytes;
  front_sent_ += bytes;
  while (!closed_ && !queue_.empty()) {
    const FrameHeader& front = queue_.front().header;
    const uint64_t size = sizeof(FrameHeader) + front.body_bytes + front.payload_bytes;
    if (front_sent_ < size) return;
    front_sent_ -= size;
    const OutFrame sent = std::move(queue_.front());
    queue_.pop_front();
    owner_.OnSent(sent.header);
  }
}

void FrameChannel::FlushNow() {
  if (flushing_ || waiting_writable_ || closed_) return;
  const auto self = shared_from_this();
  flushing_ = true;
  const uint64_t turn_end = bytes_out_ + kTurnBytes;
  while (!closed_ && !queue_.empty() && !waiting_writable_) {
    iovec pieces[kMaxPieces];
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = GatherQueue(pieces, kMaxPieces);
    size_t offered = 0;
    for (size_t i = 0; i < message.msg_iovlen; ++i) offered += pieces[i].iov_len;
    const ssize_t sent = sendmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
      const int error = errno;
      Close(Status(ErrorCode::RPC_FAIL, ErrnoText(error), error), CloseCause::kPeer);
      break;
    }
    if (sent > 0) MarkSent(static_cast<size_t>(sent));
    const bool full = sent < 0 || static_cast<size_t>(sent) < offered || bytes_out_ >= turn_end;
    if (full && !closed_ && !queue_.empty()) WaitWritable();
  }
  flushing_ = false;
  if (!closed_ && close_when_sent_ && queue_.empty()) Close(close_reason_);
}

}  // namespace mooncake::rpc::internal
