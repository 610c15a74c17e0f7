// One accepted connection: handshake, calls in, answers out.
#pragma once

#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rpc/frame_channel.h"
#include "rpc/handshake.h"
#include "rpc/server_core.h"

namespace mooncake::rpc::internal {

// What a ServerCall owns.
struct CallState {
  std::shared_ptr<ServerSession> session;
  uint64_t id = 0;
  uint16_t method = 0;
  std::string body;
  uint64_t payload_bytes = 0;
  Deadline deadline;
  // Names its payload within the session, 0 without one. Not the id: the peer chooses that, and may lie.
  uint64_t payload_ticket = 0;
};

using ReceiveCallback = std::move_only_function<void(ServerCall, Result<void>)>;

// Lives on one I/O thread; Answer and Receive may come from any.
class ServerSession final : public FrameChannel::Owner,
                            public Abortable,
                            public std::enable_shared_from_this<ServerSession> {
 public:
  ServerSession(std::shared_ptr<ServerCore> core, std::shared_ptr<IoThread> thread, SessionId id,
                asio::ip::tcp::socket socket);

  // Any thread.
  void Answer(OutFrame frame);
  void Receive(std::unique_ptr<CallState> call, std::vector<MutableSpan> spans, std::shared_ptr<void> keep_alive,
               ReceiveCallback then);
  SessionId id() const { return id_; }
  const Identity& peer() const { return peer_; }
  const std::string& peer_address() const { return peer_address_; }
  const std::shared_ptr<IoThread>& thread() const { return thread_; }

  // Own I/O thread.
  void Start();
  void Abort() override;

 private:
  enum class State { kHandshake, kOpen, kRefused, kClosed };
  // A payload on its way into a handler's memory.
  struct Receiving {
    std::unique_ptr<CallState> call;
    std::shared_ptr<void> keep_alive;
    ReceiveCallback then;
  };

  void OnFrame(const FrameHeader& header, std::string body) override;
  void OnSent(const FrameHeader& header) override;
  void OnClosed(const Status& reason, FrameChannel::CloseCause cause) override;

  void OnHello(const FrameHeader& header, const std::string& body);
  void Refuse(const Status& why);
  void Dispatch(const FrameHeader& header, std::string body);
  void DrainAnswers();
  void SendAnswer(OutFrame frame);
  void BeginReceive(Receiving receiving, std::vector<MutableSpan> spans);
  void EndReceive(Result<void> result);
  void ArmTimer(Duration after);
  void OnTimer();

  const std::shared_ptr<ServerCore> core_;
  const std::shared_ptr<IoThread> thread_;
  const SessionId id_;
  const std::string peer_address_;
  Identity peer_;  // set by the handshake, before any call
  HelloMessage peer_hello_;

  std::mutex answers_mutex_;
  std::vector<OutFrame> answers_;  // from other threads

  // I/O thread only from here.
  State state_ = State::kHandshake;
  bool handshaken_ = false;
  std::shared_ptr<FrameChannel> channel_;
  asio::steady_timer timer_;
  size_t outstanding_ = 0;
  uint64_t next_ticket_ = 1;
  uint64_t pending_ticket_ = 0;  // of the payload nobody has asked for yet, 0 = none
  Receiving receiving_;
};

}  // namespace mooncake::rpc::internal
