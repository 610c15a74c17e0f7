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
  void OnClosed(const Status& reason, FrameChannel::CloseCause cause) override;

  void DrainSubmitted();
  void FailSubmitted();
  void Admit(std::unique_ptr<PendingCall> call);
  void SendCall(uint64_t id, PendingCall& call);
  void OnResponse(const FrameHeader& header, std::string body);
  void ReceiveResponse(const FrameHeader& header, std::string body, PendingCall& call);
  void Answer(uint64_t id, Result<std::string> outcome);
  void FinishById(uint64_t id, Result<std::string> outcome);
  void Finish(std::unique_ptr<PendingCall> call, Result<std::string> outcome);
  void ProtocolError(std::string_view what);

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
  bool closed_ = false;  // under submit_mutex_: refuse new calls
  std::atomic<size_t> in_flight_{0};
  std::atomic<bool> connected_{false};
  mutable std::mutex identity_mutex_;
  Identity peer_identity_;

  // I/O thread only from here.
  State state_ = State::kIdle;
  bool aborted_ = false;
  std::shared_ptr<FrameChannel> channel_;
  uint64_t next_id_ = 1;
  CallMap calls_;
  std::vector<uint64_t> waiting_;  // ids to send once connected, in order
  uint64_t receiving_ = 0;         // id of the call whose payload is being read, 0 = none
  HelloMessage peer_hello_;
  DeadlineHeap deadlines_;
  asio::steady_timer timer_;
  std::optional<TimePoint> armed_;

  uint64_t attempt_ = 0;  // handlers of an earlier attempt find another number and do nothing
  asio::ip::tcp::resolver resolver_;
  std::unique_ptr<asio::ip::tcp::socket> connecting_;
  asio::steady_timer connect_timer_;
  Duration back_off_{0};
  TimePoint retry_at_{};
  Status last_error_;
};

}  // namespace mooncake::rpc::internal
