// Non-blocking SOCK_SEQPACKET sockets of the abstract namespace.
#include "transfer_engine/transport/shm/shm_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace mooncake::shm {
namespace {

static_assert(std::is_trivially_copyable_v<Message> && std::has_unique_object_representations_v<Message>);

constexpr int kBacklog = 1024;
constexpr size_t kMaxFds = 4;

// The name begins with a zero byte, which makes it abstract: no file, gone with the process.
socklen_t AddressOf(std::string_view name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Fd NewSocket() {
  return Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

Fd OpenSpare() {
  return Fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

}  // namespace

Socket::Socket(Fd fd) : fd_(std::move(fd)) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0) {
    peer_ = {credentials.pid, credentials.uid};
  } else {
    peer_.uid = static_cast<uid_t>(-1);
  }
}

Socket::Sent Socket::Send(const Message& message, int fd) const {
  iovec data{const_cast<Message*>(&message), sizeof message};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(fd_.get(), &header, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(sizeof message)) return Sent::kYes;
  // ETOOMANYREFS: too many descriptors are on their way to processes that do not read them.
  return sent < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS) ? Sent::kFull : Sent::kBroken;
}

Socket::Received Socket::Receive(Message& message, Fd& fd) const {
  iovec data{&message, sizeof message};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))];
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ssize_t received = 0;
  do {
    received = recvmsg(fd_.get(), &header, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) return errno == EAGAIN ? Received::kNothing : Received::kClosed;
  size_t fds = 0;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i, ++fds) {
      int one = -1;
      std::memcpy(&one, CMSG_DATA(part) + i * sizeof(int), sizeof one);
      fd = Fd(one);  // all but the last are closed here
    }
  }
  if (received == 0) return Received::kClosed;
  const bool whole = received == static_cast<ssize_t>(sizeof message) && fds <= 1 &&
                     (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  return whole && message.magic == Message::kMagic && message.zero == 0 ? Received::kMessage : Received::kGarbage;
}

void Socket::Shutdown() const {
  shutdown(fd_.get(), SHUT_RDWR);
}

bool MayShare(const Credentials& peer, bool any_user) {
  return any_user || peer.uid == 0 || peer.uid == geteuid();
}

Result<std::shared_ptr<Socket>> ConnectTo(const std::string& name) {
  sockaddr_un address;
  if (name.size() + 1 > sizeof address.sun_path) {
    return Error(ErrorCode::TRANSFER_FAIL, "socket name of {} B", name.size());
  }
  Fd fd = NewSocket();
  if (!fd) return Error(ErrorCode::TRANSFER_FAIL, "socket: {}", std::strerror(errno));
  const socklen_t size = AddressOf(name, address);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    // The name lives as long as the process that was given it, and is not used again.
    const ErrorCode code = errno == ECONNREFUSED ? ErrorCode::STALE_SEGMENT : ErrorCode::TRANSFER_FAIL;
    return Error(code, "connecting to socket '{}': {}", name, std::strerror(errno));
  }
  return std::make_shared<Socket>(std::move(fd));
}

Listener::Listener(Fd fd, std::string name) : fd_(std::move(fd)), name_(std::move(name)), spare_(OpenSpare()) {}

Result<std::unique_ptr<Listener>> Listener::Open() {
  Fd fd = NewSocket();
  const std::string name = std::string(kSocketPrefix) + Uuid::Random().ToString();
  sockaddr_un address;
  const socklen_t size = AddressOf(name, address);
  if (!fd || bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return Error(ErrorCode::INTERNAL_ERROR, "listening at abstract socket '{}': {}", name, std::strerror(errno));
  }
  return std::unique_ptr<Listener>(new Listener(std::move(fd), name));
}

std::shared_ptr<Socket> Listener::Accept() {
  for (;;) {
    Fd fd(accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) return std::make_shared<Socket>(std::move(fd));
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if ((errno != EMFILE && errno != ENFILE) || !spare_) return nullptr;
    spare_ = Fd();
    fd = Fd(accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    fd = Fd();
    spare_ = OpenSpare();
  }
}

}  // namespace mooncake::shm
