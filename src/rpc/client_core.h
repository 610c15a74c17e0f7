// One RpcClient's connection, calls and deadlines. Lives on one I/O thread; other threads only leave calls in a list.
#pragma once

#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "rpc/deadline_heap.h"
#include "rpc/frame_channel.h"
#include "rpc/handshake.h"
#include "rpc/io_thread.h"
#include "rpc/rpc_client.h"

namespace mooncake::rpc::internal {

struct PendingCall {
  uint16_t method = 0;
  bool connect_only = false;  // wants the handshake, sends nothing
  bool over_limit = false;
  bool counted = false;  // holds one of max_in_flight
  bool sent = false;     // its last byte has left
  uint64_t id = 0;
  // Set when the submitting thread wrote the frame itself: on which connection, and how much of it left.
  uint64_t direct_connection = 0;
  size_t direct_bytes = 0;
  FrameHeader direct_header{};
  std::string body;
  CallArguments arguments;
  Deadline deadline;
  TimePoint started;
  RpcClient::Completion completion;
  // Known early, delivered when the caller's memory is free: an answer that overtook the rest of the request, or the
  // reason for which this call has the connection closed.
  std::optional<Result<std::string>> outcome;
};

class ClientCore final : public FrameChannel::Owner, public Abortable, public std::enable_shared_from_this<ClientCore> {
 public:
  ClientCore(std::shared_ptr<IoThread> thread, ClientOptions options);

  // Any thread.
  void Submit(std::unique_ptr<PendingCall> call);
  void Close();
  Identity peer_identity() const;
  bool connected() const { return connected_.load(std::memory_order_acquire); }
  const Endpoint& peer() const { return options_.peer; }

  // I/O thread.
  void Abort() override;

 private:
  enum class State { kIdle, kConnecting, kReady };
  using CallMap = std::unordered_map<uint64_t, std::unique_ptr<PendingCall>>;

  void OnFrame(const FrameHeader& header, std::string body) override;
  void OnSent(const FrameHeader& header) override;
  void OnClosing() override;
  void OnClosed(const Status& reason, FrameChannel::CloseCause cause) override;

  bool TrySendDirect(PendingCall& call);
  FrameHeader HeaderOf(const PendingCall& call) const;
  void AllowDirect();
  void DrainSubmitted();
  void FailSubmitted();
  void Admit(std::unique_ptr<PendingCall> call);
  void AdmitDirect(std::unique_ptr<PendingCall> call);
  void Register(std::unique_ptr<PendingCall> call);
  void SendCall(PendingCall& call);
  void OnResponse(const FrameHeader& header, std::string body);
  void ReceiveResponse(const FrameHeader& header, std::string body, PendingCall& call);
  void Answer(uint64_t id, Result<std::string> outcome);
  void FinishById(uint64_t id, Result<std::string> outcome);
  void Finish(std::unique_ptr<PendingCall> call, Result<std::string> outcome);
  void ProtocolError(std::string_view what);
  Status LostStatus(const Status& reason) const;

  void ArmTimer(TimePoint time);
  void OnTimer();
  void Expire(uint64_t id, PendingCall& call);
  Status TimeoutStatus(const PendingCall& call, std::string_view stage) const;

  // client_connect.cc
  void StartConnect();
  void ConnectTo(uint64_t attempt, std::vector<asio::ip::tcp::endpoint> targets);
  void StartHandshake(asio::ip::tcp::socket socket);
  void OnHandshakeFrame(const FrameHeader& header, const std::string& body);
  Result<HelloMessage> JudgeWelcome(const FrameHeader& header, const std::string& body) const;
  void BecomeReady(const HelloMessage& welcome);
  void ConnectFailed(const Status& why);
  void ResetAttempt();

  const std::shared_ptr<IoThread> thread_;
  const ClientOptions options_;
  const std::string peer_name_;

  std::mutex submit_mutex_;
  std::vector<std::unique_ptr<PendingCall>> submitted_;
  bool drain_posted_ = false;
  bool closed_ = false;  // refuse new calls
  uint64_t next_id_ = 1;
  // A lone small call is written by its own thread, which saves a wake-up of the I/O thread. Allowed while the
  // connection is ready and nothing is queued on it; the mutex keeps the descriptor open meanwhile.
  int direct_socket_ = -1;
  size_t direct_limit_ = 0;                    // largest body the peer takes
  uint64_t connection_ = 0;                    // counts the connections
  TimePoint direct_until_ = TimePoint::max();  // deadlines from here on are found by the timer that is armed anyway
  // end of what submit_mutex_ guards
  std::atomic<size_t> in_flight_{0};
  std::atomic<bool> connected_{false};
  mutable std::mutex identity_mutex_;
  Identity peer_identity_;

  // I/O thread only from here.
  State state_ = State::kIdle;
  bool aborted_ = false;
  std::shared_ptr<FrameChannel> channel_;
  CallMap calls_;
  std::vector<uint64_t> waiting_;  // ids to send once connected, in order
  uint64_t receiving_ = 0;         // id of the call whose payload is being read, 0 = none
  HelloMessage peer_hello_;
  DeadlineHeap deadlines_;
  asio::steady_timer timer_;
  std::optional<TimePoint> armed_;

  uint64_t attempt_ = 0;  // handlers of an earlier attempt find another number and do nothing
  asio::ip::tcp::resolver resolver_;
  std::shared_ptr<asio::ip::tcp::socket> connecting_;  // also held by the attempt's handler, which Asio lets look at it
  asio::steady_timer connect_timer_;
  Duration back_off_{0};
  TimePoint retry_at_{};
  Status last_error_;  // why the last attempt to connect failed
  Status last_loss_;   // why the last connection ended
};

}  // namespace mooncake::rpc::internal
