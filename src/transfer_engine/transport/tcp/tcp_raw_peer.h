// The other end of a data connection as tests want it: a socket that speaks the wire's words one by one, and lies.
#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <span>
#include <string>

#include "transfer_engine/transport/tcp/tcp_socket.h"
#include "transfer_engine/transport/tcp/tcp_test_util.h"
#include "transfer_engine/transport/tcp/tcp_wire.h"

namespace mooncake::tcp {

// Blocking, with a generous limit so that a broken test ends.
class RawConnection {
 public:
  explicit RawConnection(Socket socket) : socket_(std::move(socket)) {
    const timeval limit{.tv_sec = 30};
    (void)setsockopt(socket_.fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    (void)setsockopt(socket_.fd(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  }
  static RawConnection To(uint16_t port, int receive_buffer = 0) {
    Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (receive_buffer > 0) {
      (void)setsockopt(socket.fd(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    MC_CHECK(connect(socket.fd(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0, "{}",
             std::strerror(errno));
    return RawConnection(std::move(socket));
  }

  // False when the other end does not take or give all of it.
  bool Send(const void* data, size_t bytes) {
    return send(socket_.fd(), data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
  }
  bool Receive(void* data, size_t bytes) {
    return recv(socket_.fd(), data, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
  }
  template <typename Record>
  bool Send(const Record& record) {
    return Send(&record, sizeof(record));
  }
  template <typename Record>
  bool Receive(Record& record) {
    return Receive(&record, sizeof(record));
  }
  // Waits for the end of the connection. Reads nothing, as that would let a sender go on that is about to end it.
  bool IsClosedByPeer() {
    pollfd end{.fd = socket_.fd(), .events = POLLRDHUP, .revents = 0};
    constexpr int kLimitMs = 30'000;
    return poll(&end, 1, kLimitMs) == 1;
  }
  void LimitSending(const timeval& limit) {
    (void)setsockopt(socket_.fd(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  }

  // As an initiator: hello and its answer's code.
  ErrorCode Greet(const Hello& hello) {
    HelloAnswer answer;
    if (!Send(hello) || !Receive(answer)) return ErrorCode::RPC_FAIL;
    return static_cast<ErrorCode>(answer.code);
  }
  // As a target: hears the hello and welcomes.
  Hello Welcome(const Uuid& self) {
    Hello hello;
    const HelloAnswer answer{.target = self};
    MC_CHECK(Receive(hello) && Send(answer), "no hello");
    return hello;
  }

 private:
  Socket socket_;
};

// A target that accepts and says only what the test tells it to.
class RawTarget {
 public:
  explicit RawTarget(int receive_buffer = 0) {
    auto listening = Listen("127.0.0.1", {});
    MC_CHECK(listening.has_value(), "cannot listen");
    socket_ = std::move(listening->socket);
    port_ = listening->port;
    if (receive_buffer > 0) {
      (void)setsockopt(socket_.fd(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    }
    const int flags = 0;
    MC_CHECK(fcntl(socket_.fd(), F_SETFL, flags) == 0, "blocking");
    const timeval limit{.tv_sec = 30};
    (void)setsockopt(socket_.fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }
  RawConnection Accept() { return RawConnection(Socket(accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC))); }
  RawConnection AcceptAndWelcome() {
    RawConnection connection = Accept();
    connection.Welcome(generation_);
    return connection;
  }
  // Any address is in its region.
  Job Serve(TransferOpcode opcode, std::span<std::byte> local) const {
    auto segment = std::make_shared<SegmentDescriptor>();
    segment->name = "raw";
    segment->generation = generation_;
    segment->tcp_data = {"127.0.0.1", port_};
    return {.opcode = opcode,
            .local = local,
            .target = segment,
            .region = {.address = 4096, .length = uint64_t{1} << 40, .key = 1},
            .address = 4096};
  }
  uint16_t port() const { return port_; }
  void Close() { socket_.Close(); }
  const Uuid& generation() const { return generation_; }

 private:
  const Uuid generation_ = Uuid::Random();
  Socket socket_;
  uint16_t port_ = 0;
};

}  // namespace mooncake::tcp
