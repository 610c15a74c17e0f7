// Control connections to the engines of other processes: one per peer, made when first needed.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "rpc/rpc_client.h"

namespace mooncake {

// Any thread.
class PeerLinks {
 public:
  PeerLinks(rpc::IoPool& io, rpc::Identity self) : io_(io), self_(std::move(self)) {}
  ~PeerLinks() { Close(); }

  // The connection to the process of this generation at this endpoint; nil: whoever answers there. It may not be up
  // yet. SHUTTING_DOWN after Close.
  Result<std::shared_ptr<rpc::RpcClient>> To(const Endpoint& peer, const Uuid& generation = {});
  void Close();
  const rpc::Identity& self() const { return self_; }

 private:
  struct Link {
    Uuid generation;
    std::shared_ptr<rpc::RpcClient> connection;
  };
  rpc::IoPool& io_;
  const rpc::Identity self_;
  std::mutex mutex_;
  bool closed_ = false;
  std::unordered_map<std::string, Link> links_;  // by endpoint, apart for any and for a certain generation
};

}  // namespace mooncake
