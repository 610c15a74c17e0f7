// This process's relation to the master: registered or not, heartbeats, look-ups.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "client/master_locator.h"
#include "common/clock.h"
#include "protocol/master_messages.h"
#include "rpc/io_pool.h"
#include "rpc/rpc_client.h"

namespace mooncake {

enum class ClientHealth { DEGRADED, SYNCING, FULL };
std::string_view ClientHealthName(ClientHealth health);

// Registers, sends heartbeats on a thread and a connection of its own, and registers again whenever the master does not
// know us or could not be reached: on_registered then announces everything anew, and FinishResync says that this is
// all. Where several masters choose a leader, each registration looks for it; what one of an earlier term still answers
// counts as not answered. Its connections have an I/O thread of their own: bulk data never delays a heartbeat. Any
// thread.
class MasterLink {
 public:
  struct Options {
    MasterAddress master;
    rpc::Identity self;
    std::string advertised;                                 // endpoint where peers reach us
    Duration heartbeat_interval = std::chrono::seconds(1);  // less where the master's TTL asks for it
    Duration attempt_timeout = std::chrono::seconds(2);
    Duration search_interval = std::chrono::milliseconds(500);  // between looks for a leader
  };
  struct Hooks {
    std::function<std::vector<protocol::TierState>()> tiers;
    // Both on one thread (the heartbeat thread; before Start returns, the caller's), so that they alternate: what a
    // loss stops can never be stopped after the registration that follows it.
    std::function<void()> on_registered;
    std::function<void()> on_lost;
  };

  MasterLink(Options options, Hooks hooks);
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

  // Any call to the master. Fails with RPC_FAIL at once while degraded, and when the master has lost the lead.
  template <typename Reply, typename Request>
  Result<Reply> Call(uint16_t method, const Request& request, Deadline deadline) {
    const auto connection = CurrentConnection();
    if (health() == ClientHealth::DEGRADED || connection == nullptr) return Unreachable();
    return Judged(*connection, connection->calls->Call<Reply>(method, request, deadline));
  }
  Result<protocol::AnnounceReply> Announce(std::vector<protocol::KeyState> keys, Deadline deadline);
  // Everything that was to be announced after the registration has been: what the master knew of us before and was not
  // told again is gone.
  Result<protocol::AnnounceReply> FinishResync(Deadline deadline);

 private:
  struct Connection {
    MasterLocator::Found master;
    std::shared_ptr<rpc::RpcClient> calls;
    std::shared_ptr<rpc::RpcClient> heartbeats;
  };
  std::shared_ptr<const Connection> CurrentConnection() const;
  // To where the master is now.
  Result<std::shared_ptr<const Connection>> Connect();
  std::shared_ptr<const Connection> MakeConnection(MasterLocator::Found master);
  // What an answer is worth: an error of the transport raises doubt, one of a master that leads no more is RPC_FAIL.
  template <typename Reply>
  Result<Reply> Judged(const Connection& connection, Result<Reply> reply) {
    if (!reply && IsDoubtful(reply.error())) {
      ReportDoubt();  // a heartbeat decides
      return std::unexpected(AsUnreachable(reply.error()));
    }
    if (const auto now = CurrentConnection(); now != nullptr && now->master.term > connection.master.term) {
      return Error(ErrorCode::RPC_FAIL, "answered by {}, which has lost the lead to {}",
                   connection.master.endpoint.ToString(), now->master.endpoint.ToString());
    }
    return reply;
  }
  static bool IsDoubtful(const Status& status);
  // A standby is no more than a master that is not there.
  static Status AsUnreachable(const Status& status);
  std::unexpected<Status> Unreachable() const;
  Result<void> Register();
  void HeartbeatLoop();
  void Beat();
  // Runs on_lost if it is due. True while degraded; a loss that comes later is for the next call.
  bool TellLost();

  const Options options_;
  const Hooks hooks_;
  MasterLocator locator_;
  rpc::IoPool io_{1};
  std::atomic<ClientHealth> health_{ClientHealth::DEGRADED};
  std::atomic<uint64_t> sequence_{0};
  std::atomic<uint64_t> client_ttl_ms_{0};  // as the master said; 0: not yet

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::shared_ptr<const Connection> connection_;  // null: not found yet
  std::string last_error_ = "not registered yet";
  bool beat_now_ = false;
  bool tell_lost_ = false;  // on_lost is due
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace mooncake
