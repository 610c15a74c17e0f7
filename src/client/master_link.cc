// Registration and heartbeats.
#include "client/master_link.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "protocol/key_records.h"
#include "protocol/methods.h"

namespace mooncake {
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

MasterLink::MasterLink(Options options, Hooks hooks)
    : options_(std::move(options)), hooks_(std::move(hooks)), locator_(options_.master) {
  if (locator_.fixed()) connection_ = MakeConnection({.endpoint = options_.master.fixed});
}

MasterLink::~MasterLink() {
  Stop();
}

bool MasterLink::IsDoubtful(const Status& status) {
  return status.code() == ErrorCode::RPC_FAIL || status.code() == ErrorCode::UNAVAILABLE_IN_CURRENT_STATUS;
}

Status MasterLink::AsUnreachable(const Status& status) {
  return status.code() == ErrorCode::UNAVAILABLE_IN_CURRENT_STATUS ? Status(ErrorCode::RPC_FAIL, status.message())
                                                                   : status;
}

std::unexpected<Status> MasterLink::Unreachable() const {
  std::lock_guard lock(mutex_);
  return Error(ErrorCode::RPC_FAIL, "master {} is not reachable: {}", options_.master.ToString(), last_error_);
}

std::shared_ptr<const MasterLink::Connection> MasterLink::CurrentConnection() const {
  std::lock_guard lock(mutex_);
  return connection_;
}

std::shared_ptr<const MasterLink::Connection> MasterLink::MakeConnection(MasterLocator::Found master) {
  rpc::ClientOptions options;
  options.peer = master.endpoint;
  options.self = options_.self;
  options.expected_role = protocol::kRoleMaster;
  options.connect_timeout = options_.attempt_timeout;
  return std::make_shared<const Connection>(std::move(master), rpc::RpcClient::Create(io_, options),
                                            rpc::RpcClient::Create(io_, options));
}

Result<std::shared_ptr<const MasterLink::Connection>> MasterLink::Connect() {
  auto current = CurrentConnection();
  if (locator_.fixed()) return current;
  MasterLocator::Found found = MC_TRY(locator_.Locate(Deadline::After(options_.attempt_timeout)));
  if (current != nullptr && found.term <= current->master.term) return current;
  // Calls under way on the old connection keep it until they end.
  auto fresh = MakeConnection(std::move(found));
  std::lock_guard lock(mutex_);
  if (stopping_) return Error(ErrorCode::SHUTTING_DOWN, "the client is closing");
  connection_ = fresh;
  return fresh;
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
  const auto connection = CurrentConnection();  // there will be no other
  if (connection) connection->heartbeats->Close();
  if (thread_.joinable()) thread_.join();
  if (health() != ClientHealth::DEGRADED) {
    const auto left = connection->calls->Call<protocol::RegisterReply>(protocol::kUnregister,
                                                                       protocol::UnregisterRequest{options_.self.node},
                                                                       Deadline::After(std::chrono::seconds(1)));
    if (!left) log::Warn("leaving the master: {}", left.error().ToString());
  }
  health_.store(ClientHealth::DEGRADED);
  if (connection) connection->calls->Close();
}

Result<void> MasterLink::Register() {
  const protocol::RegisterRequest request{.client_id = options_.self.node,
                                          .sequence = ++sequence_,
                                          .endpoint = options_.advertised,
                                          .tiers = hooks_.tiers(),
                                          .resync = true};
  auto attempt = [&]() -> Result<protocol::RegisterReply> {
    const auto connection = MC_TRY(Connect());
    return connection->calls->Call<protocol::RegisterReply>(protocol::kRegister, request,
                                                            Deadline::After(options_.attempt_timeout));
  };
  const auto reply = attempt();
  if (!reply) {
    std::lock_guard lock(mutex_);
    last_error_ = reply.error().message();
    return std::unexpected(AsUnreachable(reply.error()));
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
  const protocol::AnnounceRequest request{
      .client_id = options_.self.node, .sequence = ++sequence_, .packed = protocol::PackKeyStates(keys)};
  return Call<protocol::AnnounceReply>(protocol::kAnnounce, request, deadline);
}

Result<protocol::AnnounceReply> MasterLink::FinishResync(Deadline deadline) {
  const protocol::AnnounceRequest request{
      .client_id = options_.self.node, .sequence = ++sequence_, .resync_done = true};
  return Call<protocol::AnnounceReply>(protocol::kAnnounce, request, deadline);
}

void MasterLink::HeartbeatLoop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    Duration interval = options_.heartbeat_interval;
    if (const uint64_t ttl_ms = client_ttl_ms_.load(); ttl_ms > 0)
      interval = std::min<Duration>(interval, std::chrono::milliseconds(std::max<uint64_t>(1, ttl_ms / 3)));
    if (!locator_.fixed() && health() == ClientHealth::DEGRADED)
      interval = std::min(interval, options_.search_interval);
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
  const auto reply = CurrentConnection()->heartbeats->Call<protocol::HeartbeatReply>(
      protocol::kHeartbeat, request, Deadline::After(options_.attempt_timeout));
  if (!reply) {
    if (reply.error().code() == ErrorCode::SHUTTING_DOWN) return;
    ReportLost(reply.error());
  } else if (!reply->known) {
    ReportLost(Status(ErrorCode::CLIENT_NOT_FOUND, "the master does not know this client (restarted?)"));
  }
  (void)TellLost();
}

}  // namespace mooncake
