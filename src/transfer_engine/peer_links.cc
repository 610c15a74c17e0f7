// Table of control connections.
#include "transfer_engine/peer_links.h"

namespace mooncake {

Result<std::shared_ptr<rpc::RpcClient>> PeerLinks::To(const Endpoint& peer, const Uuid& generation) {
  std::shared_ptr<rpc::RpcClient> outdated;  // closed after the lock is gone
  std::lock_guard lock(mutex_);
  if (closed_) return Error(ErrorCode::SHUTTING_DOWN, "the transfer engine is closed");
  Link& link = links_[peer.ToString() + (generation.IsNil() ? "" : "#")];
  if (link.connection == nullptr || link.generation != generation) {
    outdated = std::move(link.connection);
    rpc::ClientOptions options;
    options.peer = peer;
    options.self = self_;
    options.expected_node = generation;
    link = {generation, rpc::RpcClient::Create(io_, std::move(options))};
  }
  return link.connection;
}

void PeerLinks::Close() {
  std::unordered_map<std::string, Link> links;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    links.swap(links_);
  }
  for (auto& [endpoint, link] : links) link.connection->Close();
}

}  // namespace mooncake
