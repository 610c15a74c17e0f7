// vmsplice into a pipe, splice from it.
#include "transfer_engine/transport/tcp/page_pipe.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>

namespace mooncake::tcp {

PagePipe& PagePipe::OfThread() {
  static thread_local PagePipe pipe;
  return pipe;
}

void PagePipe::AllowOnThisThread() {
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  OfThread().allowed_ = true;
}

bool PagePipe::WorthIt() {
  static const bool worth_it = [] {
    utsname kernel{};
    int major = 0;
    int minor = 0;
    if (uname(&kernel) != 0 || std::sscanf(kernel.release, "%d.%d", &major, &minor) != 2) return false;
    return major > 6 || (major == 6 && minor >= 5);
  }();
  return worth_it;
}

bool PagePipe::Open() {
  if (in_ || !allowed_) return allowed_;
  std::array<int, 2> ends;
  Fd nowhere(open("/dev/null", O_WRONLY | O_CLOEXEC));
  if (!nowhere || pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return false;
  Fd out(ends[0]);
  Fd in(ends[1]);
  // Where a user's pipes have used up what they may take it stays small: a few pages at a time are slower than a copy.
  allowed_ = fcntl(in.get(), F_SETPIPE_SZ, static_cast<int>(kPieceBytes)) >= static_cast<int>(kPieceBytes);
  if (!allowed_) return false;
  nowhere_ = std::move(nowhere);
  out_ = std::move(out);
  in_ = std::move(in);
  return true;
}

// What the socket did not take is given up; it is lent again when there is room.
void PagePipe::Empty() {
  while (splice(out_.get(), nullptr, nowhere_.get(), nullptr, kPieceBytes, SPLICE_F_NONBLOCK) > 0) continue;
}

std::optional<ssize_t> PagePipe::Send(int socket, const std::byte* data, size_t size, bool more) {
  if (!Open()) return std::nullopt;
  const size_t wanted = std::min(size, kPieceBytes);
  const iovec piece{const_cast<std::byte*>(data), wanted};
  const ssize_t held = vmsplice(in_.get(), &piece, 1, SPLICE_F_NONBLOCK);
  if (held <= 0) return std::nullopt;
  const unsigned flags = SPLICE_F_NONBLOCK | (more || static_cast<size_t>(held) < size ? SPLICE_F_MORE : 0U);
  ssize_t sent = 0;
  while (sent < held) {
    const ssize_t now = splice(out_.get(), nullptr, socket, nullptr, static_cast<size_t>(held - sent), flags);
    if (now > 0) {
      sent += now;
      continue;
    }
    const int error = now == 0 ? EAGAIN : errno;
    Empty();
    if (sent > 0) return sent;
    errno = error;
    return -1;
  }
  return sent;
}

namespace {

ssize_t SendMessage(int fd, const msghdr& message, int flags) {
#ifdef __SANITIZE_THREAD__
  // TSan notes the reads of sendmsg when it has returned. By then the peer may have the bytes, and whoever it tells may
  // write the memory again: a race that is none. So the order is told apart from the reads.
  (void)send(fd, nullptr, 0, MSG_NOSIGNAL | MSG_DONTWAIT);
  return syscall(SYS_sendmsg, fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT | flags);
#else
  return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT | flags);
#endif
}

}  // namespace

ssize_t SendParcel(int socket, Parcel& parcel, Counter& lent) {
  if (parcel.lend) {
    const iovec& piece = parcel.pieces[0];
    const auto* const data = static_cast<const std::byte*>(piece.iov_base);
    if (const auto sent = PagePipe::OfThread().Send(socket, data, piece.iov_len, parcel.more)) {
      if (*sent > 0) lent.Add(static_cast<uint64_t>(*sent));
      parcel.bytes = std::min(parcel.bytes, PagePipe::kPieceBytes);
      return *sent;
    }
  }
  msghdr message{};
  message.msg_iov = parcel.pieces.data();
  message.msg_iovlen = parcel.count;
  return SendMessage(socket, message, parcel.more ? MSG_MORE : 0);
}

}  // namespace mooncake::tcp
