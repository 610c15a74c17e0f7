// Table of peer connections.
#include "client/peer_pool.h"

#include "protocol/methods.h"

namespace mooncake {

Result<std::shared_ptr<rpc::RpcClient>> PeerPool::To(const protocol::ClientAddress& peer) {
  const Endpoint endpoint = MC_TRY(Endpoint::Parse(peer.endpoint));
  std::shared_ptr<rpc::RpcClient> outdated;  // closed after the lock is gone
  std::lock_guard lock(mutex_);
  if (closed_) return Error(ErrorCode::SHUTTING_DOWN, "the store is closed");
  Peer& slot = peers_[peer.endpoint];
  if (slot.connection == nullptr || slot.id != peer.id) {
    outdated = std::move(slot.connection);
    rpc::ClientOptions options;
    options.peer = endpoint;
    options.self = self_;
    options.expected_role = protocol::kRoleClient;
    options.expected_node = peer.id;
    slot = {peer.id, rpc::RpcClient::Create(io_, std::move(options))};
  }
  return slot.connection;
}

void PeerPool::Close() {
  std::unordered_map<std::string, Peer> peers;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    peers.swap(peers_);
  }
  for (auto& [endpoint, peer] : peers) peer.connection->Close();
}

}  // namespace mooncake
