// Helpers of the RPC tests: a started server, and peers that speak raw bytes.
#pragma once

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "rpc/frame.h"
#include "rpc/handshake.h"
#include "rpc/rpc_client.h"
#include "rpc/rpc_server.h"

namespace mooncake::rpc {

inline Deadline Soon() {
  return Deadline::After(std::chrono::seconds(60));
}
inline Duration Millis(int64_t count) {
  return std::chrono::milliseconds(count);
}

inline Identity MakeIdentity(std::string role) {
  return {.role = std::move(role), .node = Uuid::Random(), .software_version = "test-1"};
}

inline std::vector<std::byte> RandomBytes(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Values handed from I/O threads to the test; Take waits.
template <typename T>
class Mailbox {
 public:
  void Put(T value) {
    std::lock_guard lock(mutex_);
    values_.push_back(std::move(value));
    changed_.notify_all();
  }
  T Take() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(120), [&] { return !values_.empty(); })) {
      ADD_FAILURE() << "nothing arrived";
      std::abort();
    }
    T value = std::move(values_.front());
    values_.pop_front();
    return value;
  }
  bool Empty() {
    std::lock_guard lock(mutex_);
    return values_.empty();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> values_;
};

class RpcFixture : public ::testing::Test {
 protected:
  enum Method : uint16_t { kEcho = 1, kHold = 2, kFail = 3 };

  ServerOptions server_options_{.listen = {"127.0.0.1", 0}, .self = MakeIdentity("client")};

  // Registers echo (body back, upper-level payload ignored), hold (call goes to held_) and fail, then starts.
  void StartServer(const std::function<void(RpcServer&)>& more = {}) {
    auto server = RpcServer::Listen(pool_, server_options_);
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = std::move(*server);
    server_->Handle(kEcho, [](ServerCall call) {
      std::string body(call.body());
      std::move(call).Reply(std::move(body));
    });
    server_->Handle(kHold, [this](ServerCall call) { held_.Put(std::move(call)); });
    server_->Handle(kFail, [](ServerCall call) {
      std::move(call).Fail(Status(ErrorCode::OBJECT_NOT_FOUND, "no such key", 507000));
    });
    if (more) more(*server_);
    server_->Start();
  }

  ClientOptions ClientTo(uint16_t port) {
    return {.peer = {"127.0.0.1", port}, .self = MakeIdentity("tool"), .expected_role = "", .expected_node = {}};
  }
  std::shared_ptr<RpcClient> Connect() { return RpcClient::Create(pool_, ClientTo(server_->port())); }

  // Waits until `condition` holds of the server's counters, which change on its I/O threads.
  void AwaitStats(const std::function<bool(const ServerStats&)>& condition) {
    const Deadline deadline = Soon();
    while (!condition(server_->stats())) {
      ASSERT_FALSE(deadline.Passed()) << "counters never got there";
      std::this_thread::yield();
    }
  }

  IoPool pool_{2};
  Mailbox<ServerCall> held_;
  std::unique_ptr<RpcServer> server_;
};

// A blocking socket that says what it is told to, right or wrong.
class RawPeer {
 public:
  static RawPeer ConnectTo(uint16_t port) {
    RawPeer peer(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address = Loopback(port);
    EXPECT_EQ(::connect(peer.socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0) << strerror(errno);
    return peer;
  }
  static sockaddr_in Loopback(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }

  explicit RawPeer(int socket) : socket_(socket) {
    const timeval limit{60, 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  }
  RawPeer(RawPeer&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  ~RawPeer() { Close(); }

  void Close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }

  // False when the other side has closed.
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  bool SendFrame(internal::FrameHeader header, std::string_view body = {}) {
    header.body_bytes = static_cast<uint32_t>(body.size());
    return Send(std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + std::string(body));
  }
  std::optional<std::string> Receive(size_t size) {
    std::string bytes(size, '\0');
    if (size > 0 && ::recv(socket_, bytes.data(), size, MSG_WAITALL) != static_cast<ssize_t>(size)) return std::nullopt;
    return bytes;
  }
  struct Frame {
    internal::FrameHeader header;
    std::string body;
    std::string payload;
  };
  std::optional<Frame> ReceiveFrame() {
    Frame frame;
    const auto header = Receive(sizeof(frame.header));
    if (!header) return std::nullopt;
    std::memcpy(&frame.header, header->data(), sizeof(frame.header));
    const auto body = Receive(frame.header.body_bytes);
    const auto payload = Receive(frame.header.payload_bytes);
    if (!body || !payload) return std::nullopt;
    frame.body = *body;
    frame.payload = *payload;
    return frame;
  }
  // True once the other side has closed; swallows what it sent before.
  bool AwaitClose() {
    char scratch[4096];
    ssize_t got = 0;
    while ((got = ::recv(socket_, scratch, sizeof(scratch), 0)) > 0) {
    }
    return got == 0 || errno == ECONNRESET;
  }
  bool ShakeHandsAsClient() {
    return SendFrame({.kind = internal::FrameKind::kHello},
                     Encode(internal::MakeHello(MakeIdentity("tool"), 64u << 20, 1ull << 30))) &&
           ReceiveFrame().has_value();
  }
  bool ShakeHandsAsServer() {
    return ReceiveFrame().has_value() &&
           SendFrame({.kind = internal::FrameKind::kWelcome},
                     Encode(internal::MakeHello(MakeIdentity("client"), 64u << 20, 1ull << 30)));
  }

 private:
  int socket_;
};

// A listening socket whose connections the test plays by hand.
class RawListener {
 public:
  RawListener() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = RawPeer::Loopback(0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(socket_, 16), 0);
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~RawListener() { ::close(socket_); }
  uint16_t port() const { return port_; }
  RawPeer Accept() { return RawPeer(::accept(socket_, nullptr, nullptr)); }

 private:
  int socket_;
  uint16_t port_ = 0;
};

}  // namespace mooncake::rpc
