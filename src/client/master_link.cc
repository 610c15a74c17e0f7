// Registration and heartbeats.
#include "client/master_link.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "protocol/methods.h"
#include "rpc/io_pool.h"

namespace mooncake {
namespace {

std::shared_ptr<rpc::RpcClient> Connection(rpc::IoPool& io, const MasterLink::Options& options) {
  rpc::ClientOptions connection;
  connection.peer = options.master;
  connection.self = options.self;
  connection.expected_role = protocol::kRoleMaster;
  connection.connect_timeout = options.attempt_timeout;
  return rpc::RpcClient::Create(io, std::move(connection));
}

}  // namespace

std::string_view ClientHealthName(ClientHealth health) {
  switch (health) {
    case ClientHealth::DEGRADED:
      return "DEGRADED";
    case ClientHealth::SYNCING:
      return "SYNCING";
    case ClientHealth::FULL:
      return "FULL";
  }
  return "UNKNOWN";
}

MasterLink::MasterLink(rpc::IoPool& io, Options options, Hooks hooks)
    : options_(std::move(options)),
      hooks_(std::move(hooks)),
      calls_(Connection(io, options_)),
      heartbeats_(Connection(io, options_)) {}

MasterLink::~MasterLink() {
  Stop();
}

std::unexpected<Status> MasterLink::Unreachable() const {
  std::lock_guard lock(mutex_);
  return Error(ErrorCode::RPC_FAIL, "master {} is not reachable: {}", options_.master.ToString(), last_error_);
}

Result<void> MasterLink::Start(Duration wait) {
  const Deadline deadline = Deadline::After(wait);
  Result<void> registered = Register();
  while (!registered && registered.error().code() == ErrorCode::RPC_FAIL && !deadline.Passed()) {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, std::min<Duration>(deadline.Remaining(), std::chrono::milliseconds(200)),
                   [this] { return stopping_; });
    lock.unlock();
    registered = Register();
  }
  thread_ = std::thread([this] { HeartbeatLoop(); });
  return registered;
}

void MasterLink::Stop() {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
  }
  wake_.notify_all();
  heartbeats_->Close();
  if (thread_.joinable()) thread_.join();
  if (health() != ClientHealth::DEGRADED) {
    const auto left =
        calls_->Call<protocol::RegisterReply>(protocol::kUnregister, protocol::UnregisterRequest{options_.self.node},
                                              Deadline::After(std::chrono::seconds(1)));
    if (!left) log::Warn("leaving the master: {}", left.error().ToString());
  }
  health_.store(ClientHealth::DEGRADED);
  calls_->Close();
}

Result<void> MasterLink::Register() {
  const protocol::RegisterRequest request{options_.self.node, ++sequence_, options_.advertised, hooks_.tiers()};
  const auto reply =
      calls_->Call<protocol::RegisterReply>(protocol::kRegister, request, Deadline::After(options_.attempt_timeout));
  if (!reply) {
    std::lock_guard lock(mutex_);
    last_error_ = reply.error().message();
    return std::unexpected(reply.error());
  }
  client_ttl_ms_.store(reply->client_ttl_ms);
  health_.store(ClientHealth::SYNCING);
  hooks_.on_registered();
  return {};
}

void MasterLink::SetSynced() {
  ClientHealth expected = ClientHealth::SYNCING;
  if (health_.compare_exchange_strong(expected, ClientHealth::FULL)) {
    log::Info("in step with master {}", options_.master.ToString());
  }
}

void MasterLink::ReportLost(const Status& status) {
  {
    std::lock_guard lock(mutex_);
    last_error_ = status.message();
    if (health_.exchange(ClientHealth::DEGRADED) == ClientHealth::DEGRADED) return;
    beat_now_ = tell_lost_ = true;
  }
  wake_.notify_all();
  log::Warn("lost master {}: {}; serving locally and trying again", options_.master.ToString(), status.ToString());
}

void MasterLink::ReportDoubt() {
  {
    std::lock_guard lock(mutex_);
    beat_now_ = true;
  }
  wake_.notify_all();
}

bool MasterLink::TellLost() {
  bool lost = false;
  bool degraded = false;
  {
    std::lock_guard lock(mutex_);
    lost = std::exchange(tell_lost_, false);
    degraded = health() == ClientHealth::DEGRADED;
  }
  if (lost) hooks_.on_lost();
  return degraded;
}

Result<protocol::AnnounceReply> MasterLink::Announce(std::vector<protocol::KeyState> keys, Deadline deadline) {
  const protocol::AnnounceRequest request{options_.self.node, ++sequence_, std::move(keys)};
  return Call<protocol::AnnounceReply>(protocol::kAnnounce, request, deadline);
}

void MasterLink::HeartbeatLoop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    Duration interval = options_.heartbeat_interval;
    if (const uint64_t ttl_ms = client_ttl_ms_.load(); ttl_ms > 0)
      interval = std::min<Duration>(interval, std::chrono::milliseconds(std::max<uint64_t>(1, ttl_ms / 3)));
    wake_.wait_for(lock, interval, [this] { return stopping_ || beat_now_; });
    if (stopping_) return;
    beat_now_ = false;
    lock.unlock();
    Beat();
    lock.lock();
  }
}

void MasterLink::Beat() {
  if (TellLost()) {
    if (Register()) log::Info("registered with master {}", options_.master.ToString());
    return;
  }
  const protocol::HeartbeatRequest request{options_.self.node, hooks_.tiers()};
  const auto reply = heartbeats_->Call<protocol::HeartbeatReply>(protocol::kHeartbeat, request,
                                                                 Deadline::After(options_.attempt_timeout));
  if (!reply) {
    if (reply.error().code() == ErrorCode::SHUTTING_DOWN) return;
    ReportLost(reply.error());
  } else if (!reply->known) {
    ReportLost(Status(ErrorCode::CLIENT_NOT_FOUND, "the master does not know this client (restarted?)"));
  }
  (void)TellLost();
}

}  // namespace mooncake
