// Connections to other clients: one per peer, made when first needed.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "protocol/master_messages.h"
#include "rpc/rpc_client.h"

namespace mooncake {

// Any thread.
class PeerPool {
 public:
  PeerPool(rpc::IoPool& io, rpc::Identity self) : io_(io), self_(std::move(self)) {}
  ~PeerPool() { Close(); }

  // The connection to this client, which may not be up yet. INVALID_PARAMS for an endpoint that is none. A client that
  // came back under the same endpoint has another id, and gets another connection. SHUTTING_DOWN after Close.
  Result<std::shared_ptr<rpc::RpcClient>> To(const protocol::ClientAddress& peer);
  void Close();

 private:
  struct Peer {
    Uuid id;
    std::shared_ptr<rpc::RpcClient> connection;
  };
  rpc::IoPool& io_;
  const rpc::Identity self_;
  std::mutex mutex_;
  bool closed_ = false;
  std::unordered_map<std::string, Peer> peers_;  // by endpoint
};

}  // namespace mooncake
