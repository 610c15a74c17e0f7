// The data port: accepts connections, spreads them over the loops, knows which session belongs to whom.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "transfer_engine/transport/tcp/tcp_session.h"

namespace mooncake::tcp {

// Any thread, but for Open and destruction; the loops have been stopped before it is destroyed, and outlive it.
class Listener final : public SessionHost {
 public:
  static Result<std::unique_ptr<Listener>> Open(RegionRegistry& regions, TcpMetrics metrics, const TcpOptions& options,
                                                const Uuid& self, const std::string& host,
                                                std::vector<std::shared_ptr<EventLoop>> loops);
  ~Listener() override;

  uint16_t port() const { return port_; }
  size_t open_sessions() const { return open_.load(); }

  // After return no session of that process exists, nor one that has not said whose it is. Blocks until the loops have
  // had their turn; not from one of them.
  void CloseSessionsOf(const Uuid& initiator);
  // Soon: every session gives up uses that are no longer wanted.
  void CheckUses();

  void OnHello(const std::shared_ptr<Session>& session) override;
  void OnClosed(Session& session) override;

 private:
  struct Acceptor final : EventLoop::Handler {
    void OnEvents(uint32_t) override { listener->Accept(); }
    Listener* listener = nullptr;
  };
  using Slot = std::pair<uint64_t, uint32_t>;  // instance and slot of a hello

  Listener(RegionRegistry& regions, TcpMetrics metrics, const TcpOptions& options, const Uuid& self,
           std::vector<std::shared_ptr<EventLoop>> loops, ListeningSocket listening);
  void Accept();
  void PauseAccepting();
  void Adopt(const std::shared_ptr<EventLoop>& loop, Socket socket);
  static void CloseThenAdmit(std::vector<std::shared_ptr<Session>> earlier, const std::shared_ptr<Session>& session);
  std::vector<std::shared_ptr<Session>> SessionsOn(const EventLoop& loop);
  void Count(size_t open);

  const std::vector<std::shared_ptr<EventLoop>> loops_;
  Socket socket_;
  const uint16_t port_;
  uint64_t token_ = 0;
  size_t next_loop_ = 0;  // on the first loop only, as all of accepting
  std::atomic<size_t> open_{0};

  std::mutex mutex_;
  std::unordered_set<std::shared_ptr<Session>> sessions_;
  std::map<Slot, std::vector<std::shared_ptr<Session>>> by_slot_;  // that have not closed; the last may serve
};

}  // namespace mooncake::tcp
