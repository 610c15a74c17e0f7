// Table of control connections.
#include "transfer_engine/peer_links.h"

#include <future>

namespace mooncake {

Result<std::shared_ptr<rpc::RpcClient>> PeerLinks::To(const Endpoint& peer, const Uuid& generation) {
  std::shared_ptr<rpc::RpcClient> outdated;  // closed after the lock is gone
  std::lock_guard lock(mutex_);
  if (closed_) return Error(ErrorCode::SHUTTING_DOWN, "connections to peers are closed");
  Link& link = links_[peer.ToString() + (generation.IsNil() ? "" : "#")];
  if (link.connection == nullptr || link.generation != generation) {
    outdated = std::move(link.connection);
    rpc::ClientOptions options = OptionsFor(peer);
    options.expected_node = generation;
    link = {generation, rpc::RpcClient::Create(io_, std::move(options))};
  }
  return link.connection;
}

rpc::ClientOptions PeerLinks::OptionsFor(const Endpoint& peer) const {
  rpc::ClientOptions options;
  options.peer = peer;
  options.self = self_;
  options.expected_role = role_;
  if (connect_timeout_) options.connect_timeout = *connect_timeout_;
  return options;
}

Result<std::shared_ptr<rpc::RpcClient>> PeerLinks::Fresh(const Endpoint& peer) {
  std::shared_ptr<rpc::RpcClient> fresh = rpc::RpcClient::Create(io_, OptionsFor(peer));
  std::lock_guard lock(mutex_);
  if (closed_) return Error(ErrorCode::SHUTTING_DOWN, "connections to peers are closed");
  fresh_.insert(fresh);
  return fresh;
}

void PeerLinks::Forget(const std::shared_ptr<rpc::RpcClient>& fresh) {
  std::lock_guard lock(mutex_);
  fresh_.erase(fresh);  // never the last holder: the caller has it
}

void PeerLinks::CallAnyone(const Endpoint& peer, uint16_t method, std::string body, Deadline deadline,
                           rpc::RpcClient::Completion completion) {
  auto link = To(peer);
  if (!link) return completion(std::unexpected(link.error()));
  std::string again = body;
  (*link)->CallAsync(method, std::move(body), {}, deadline,
                     [this, peer, method, again = std::move(again), deadline,
                      completion = std::move(completion)](Result<std::string> reply) mutable {
                       if (reply || reply.error().code() != ErrorCode::RPC_FAIL || deadline.Passed()) {
                         return completion(std::move(reply));
                       }
                       auto fresh = Fresh(peer);
                       if (!fresh) return completion(std::unexpected(fresh.error()));
                       const std::shared_ptr<rpc::RpcClient> connection = *fresh;
                       connection->CallAsync(
                           method, std::move(again), {}, deadline,
                           [this, connection, completion = std::move(completion)](Result<std::string> second) mutable {
                             Forget(connection);
                             completion(std::move(second));
                           });
                     });
}

Result<std::string> PeerLinks::AskAnyone(const Endpoint& peer, uint16_t method, std::string body, Deadline deadline) {
  std::promise<Result<std::string>> reply;
  CallAnyone(peer, method, std::move(body), deadline,
             [&reply](Result<std::string> answer) { reply.set_value(std::move(answer)); });
  return reply.get_future().get();
}

void PeerLinks::Close() {
  std::unordered_map<std::string, Link> links;
  std::unordered_set<std::shared_ptr<rpc::RpcClient>> fresh;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    links.swap(links_);
    fresh.swap(fresh_);
  }
  for (auto& [endpoint, link] : links) link.connection->Close();
  for (const auto& connection : fresh) connection->Close();
}

}  // namespace mooncake
