// Plain blocking sockets.
#include "bench/plain_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "bench/measure.h"
#include "common/fd.h"

namespace mooncake::bench {
namespace {

constexpr size_t kPiece = 1 << 20;

std::unexpected<Status> Failed(const char* call) {
  return Error(ErrorCode::INTERNAL_ERROR, "plain stream: {}: {}", call, std::strerror(errno));
}

struct Connection {
  Fd sender;
  Fd receiver;
};

Result<Connection> Connect(const std::string& congestion) {
  const Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener.get(), raw, size) != 0 || listen(listener.get(), 1) != 0) return Failed("listen");
  if (getsockname(listener.get(), raw, &size) != 0) return Failed("getsockname");
  Connection connection{.sender = Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), .receiver = Fd()};
  if (setsockopt(connection.sender.get(), IPPROTO_TCP, TCP_CONGESTION, congestion.data(),
                 static_cast<socklen_t>(congestion.size())) != 0)
    return Failed("TCP_CONGESTION");
  if (connect(connection.sender.get(), raw, size) != 0) return Failed("connect");
  connection.receiver = Fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!connection.receiver) return Failed("accept");
  return connection;
}

// `call` is send or recv.
template <typename Call>
Result<void> Move(std::span<std::byte> memory, size_t rounds, const char* name, Call call) {
  for (size_t round = 0; round < rounds; ++round) {
    for (size_t at = 0; at < memory.size();) {
      const ssize_t moved = call(memory.data() + at, std::min(kPiece, memory.size() - at));
      if (moved <= 0) return Failed(name);
      at += static_cast<size_t>(moved);
    }
  }
  return {};
}

}  // namespace

Result<double> MeasurePlainStream(std::span<std::byte> from, std::span<std::byte> to, size_t rounds,
                                  const std::string& congestion) {
  const Connection connection = MC_TRY(Connect(congestion));
  Result<void> sent;
  Result<void> received;
  const double seconds = Seconds([&] {
    std::thread sender([&] {
      sent = Move(from, rounds, "send", [fd = connection.sender.get()](const std::byte* data, size_t size) {
        return send(fd, data, size, MSG_NOSIGNAL);
      });
      if (!sent) (void)shutdown(connection.sender.get(), SHUT_RDWR);
    });
    received = Move(to, rounds, "recv",
                    [fd = connection.receiver.get()](std::byte* data, size_t size) { return recv(fd, data, size, 0); });
    if (!received) (void)shutdown(connection.receiver.get(), SHUT_RDWR);
    sender.join();
  });
  MC_TRY(std::move(sent));
  MC_TRY(std::move(received));
  return static_cast<double>(from.size() * rounds) / 1e9 / seconds;
}

}  // namespace mooncake::bench
