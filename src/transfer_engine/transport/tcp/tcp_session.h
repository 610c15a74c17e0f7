// The answering side of one data connection: reads requests, moves bytes from and to registered memory.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>

#include "transfer_engine/region_registry.h"
#include "transfer_engine/transport/tcp/event_loop.h"
#include "transfer_engine/transport/tcp/page_pipe.h"
#include "transfer_engine/transport/tcp/tcp_metrics.h"
#include "transfer_engine/transport/tcp/tcp_options.h"
#include "transfer_engine/transport/tcp/tcp_socket.h"
#include "transfer_engine/transport/tcp/tcp_wire.h"

namespace mooncake::tcp {

class Session;

// What sessions need of the listener that made them. Outlives them.
class SessionHost {
 public:
  virtual ~SessionHost() = default;
  // The session has heard a valid hello: earlier connections of the same instance and slot are closed, then Admit is
  // called on the session's loop.
  virtual void OnHello(const std::shared_ptr<Session>& session) = 0;
  // Called once, on the session's loop; it holds no memory any more.
  virtual void OnClosed(Session& session) = 0;

  RegionRegistry& regions;
  TcpMetrics metrics;
  const TcpOptions options;
  const Uuid self;

 protected:
  SessionHost(RegionRegistry& registry, TcpMetrics counters, TcpOptions choices, Uuid generation)
      : regions(registry), metrics(counters), options(std::move(choices)), self(generation) {}
};

// Everything on the thread of its loop. Holds the use of a region only while bytes of it move, and lets go of one that
// is no longer wanted even when the peer has stopped.
class Session final : public EventLoop::Handler, public std::enable_shared_from_this<Session> {
 public:
  Session(SessionHost& host, std::shared_ptr<EventLoop> loop, Socket socket)
      : host_(host), loop_(std::move(loop)), socket_(std::move(socket)) {}
  ~Session() override;

  void Open();
  void Admit();
  void Close();  // idempotent
  void OnEvents(uint32_t events) override;
  // Gives up uses that are no longer wanted.
  void CheckUses();

  const std::shared_ptr<EventLoop>& loop() const { return loop_; }
  // Of its hello; meaningful after OnHello.
  const Hello& hello() const { return hello_; }
  bool admitted() const { return state_ == State::kServing; }

 private:
  enum class State : uint8_t { kHello, kWaiting, kServing, kClosed };

  // Of a read: looked up only when its turn to be sent has come, so that waiting replies hold no memory.
  struct Answer {
    Reply reply;
    std::optional<Request> read = std::nullopt;
  };
  struct Outgoing {
    Reply reply;
    const std::byte* data = nullptr;
    RegionRegistry::Use use;
    uint64_t address = 0;
    bool lend() const { return reply.lent != 0; }
    size_t bytes() const { return sizeof(Reply) + reply.length; }
  };

  // A read whose payload is out and has not been returned.
  struct Loan {
    uint64_t address = 0;
    uint64_t length = 0;
    RegionRegistry::Use use;
  };

  void Receive();
  void HearHello();
  void Answered(ErrorCode code);
  void Parse();
  void TakeRequest(const Request& request);
  void BeginWrite(const Request& request);
  void TakePayloadFromInput(size_t& at);
  void EndWrite();
  void TakeReturn(const Request& request);
  void GiveUpWrite();
  void Send();
  void Stage();
  Parcel Pack() const;
  void Sent(size_t bytes);
  bool HoldsUses() const;
  void WatchUses();
  void SetInterest();
  Result<RegionRegistry::Use> Find(const Request& request);

  SessionHost& host_;
  const std::shared_ptr<EventLoop> loop_;
  Socket socket_;
  uint64_t token_ = 0;
  uint32_t interest_ = 0;
  State state_ = State::kHello;
  EventLoop::TimerId hello_timer_{};
  Hello hello_;

  std::array<std::byte, 8192> input_;  // requests, and payload that came along with them
  size_t input_bytes_ = 0;

  // The write whose payload is being received.
  uint64_t write_left_ = 0;
  std::byte* write_at_ = nullptr;  // null: refused, the payload is thrown away
  RegionRegistry::Use write_use_;
  Reply write_reply_;

  std::deque<Answer> answers_;     // in the order of their requests
  std::deque<Outgoing> outgoing_;  // being sent; its front has sent_ bytes out
  std::deque<Loan> loans_;
  size_t outgoing_bytes_ = 0;
  size_t sent_ = 0;
  bool blocked_ = false;  // the socket takes no more for now
  bool use_timer_ = false;
};

}  // namespace mooncake::tcp
