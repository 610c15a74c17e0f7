// This process's relation to the master: registered or not, heartbeats, look-ups.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/clock.h"
#include "protocol/master_messages.h"
#include "rpc/rpc_client.h"

namespace mooncake {

enum class ClientHealth { DEGRADED, SYNCING, FULL };
std::string_view ClientHealthName(ClientHealth health);

// Registers, sends heartbeats on a thread and a connection of its own, and registers again whenever the master does not
// know us or could not be reached: registration wipes what the master had of us, and on_registered announces everything
// anew. Any thread.
class MasterLink {
 public:
  struct Options {
    Endpoint master;
    rpc::Identity self;
    std::string advertised;                                 // endpoint where peers reach us
    Duration heartbeat_interval = std::chrono::seconds(1);  // less where the master's TTL asks for it
    Duration attempt_timeout = std::chrono::seconds(2);
  };
  struct Hooks {
    std::function<std::vector<protocol::TierState>()> tiers;
    // Both on one thread (the heartbeat thread; before Start returns, the caller's), so that they alternate: what a
    // loss stops can never be stopped after the registration that follows it.
    std::function<void()> on_registered;
    std::function<void()> on_lost;
  };

  MasterLink(rpc::IoPool& io, Options options, Hooks hooks);
  ~MasterLink();

  // One attempt to register, more until `wait` has passed, then the heartbeat thread takes over. The error of the last
  // attempt; the link keeps trying all the same.
  Result<void> Start(Duration wait);
  // Says good-bye (best effort, one second) and stops the thread. Idempotent.
  void Stop();

  ClientHealth health() const { return health_.load(); }
  // SYNCING becomes FULL.
  void SetSynced();
  // The master does not know us, or has not got what we told it: degrade and register at once.
  void ReportLost(const Status& status);
  // The master did not answer somebody's call. The call's deadline may have been short, so a heartbeat decides, at
  // once.
  void ReportDoubt();

  // Any call to the master. Fails with RPC_FAIL at once while degraded.
  template <typename Reply, typename Request>
  Result<Reply> Call(uint16_t method, const Request& request, Deadline deadline) {
    if (health() == ClientHealth::DEGRADED) return Unreachable();
    auto reply = calls_->Call<Reply>(method, request, deadline);
    if (!reply && reply.error().code() == ErrorCode::RPC_FAIL) ReportDoubt();
    return reply;
  }
  Result<protocol::AnnounceReply> Announce(std::vector<protocol::KeyState> keys, Deadline deadline);

 private:
  std::unexpected<Status> Unreachable() const;
  Result<void> Register();
  void HeartbeatLoop();
  void Beat();
  // Runs on_lost if it is due. True while degraded; a loss that comes later is for the next call.
  bool TellLost();

  const Options options_;
  const Hooks hooks_;
  const std::shared_ptr<rpc::RpcClient> calls_;
  const std::shared_ptr<rpc::RpcClient> heartbeats_;
  std::atomic<ClientHealth> health_{ClientHealth::DEGRADED};
  std::atomic<uint64_t> sequence_{0};
  std::atomic<uint64_t> client_ttl_ms_{0};  // as the master said; 0: not yet

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::string last_error_ = "not registered yet";
  bool beat_now_ = false;
  bool tell_lost_ = false;  // on_lost is due
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace mooncake
