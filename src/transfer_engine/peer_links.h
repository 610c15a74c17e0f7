// Connections to the control ports of other processes: one per peer, made when first needed.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "rpc/rpc_client.h"

namespace mooncake {

// Any thread. Outlives the completions of its calls.
class PeerLinks {
 public:
  // `role`: what the other side has to be; "": anything. `connect_timeout`: of one attempt; empty: RpcClient's.
  PeerLinks(rpc::IoPool& io, rpc::Identity self, std::string role = {}, std::optional<Duration> connect_timeout = {})
      : io_(io), self_(std::move(self)), role_(std::move(role)), connect_timeout_(connect_timeout) {}
  ~PeerLinks() { Close(); }

  // The connection to the process of this generation at this endpoint; nil: whoever answers there. It may not be up
  // yet. SHUTTING_DOWN after Close.
  Result<std::shared_ptr<rpc::RpcClient>> To(const Endpoint& peer, const Uuid& generation = {});
  // Asks whoever answers there now. A connection that remembers a failure (its peer was just restarted, say) is not
  // the last word: one new attempt is made before the call fails. For calls that may be answered twice.
  void CallAnyone(const Endpoint& peer, uint16_t method, std::string body, Deadline deadline,
                  rpc::RpcClient::Completion completion);
  // The same; blocks.
  Result<std::string> AskAnyone(const Endpoint& peer, uint16_t method, std::string body, Deadline deadline);
  void Close();

 private:
  struct Link {
    Uuid generation;
    std::shared_ptr<rpc::RpcClient> connection;
  };
  rpc::ClientOptions OptionsFor(const Endpoint& peer) const;
  Result<std::shared_ptr<rpc::RpcClient>> Fresh(const Endpoint& peer);
  void Forget(const std::shared_ptr<rpc::RpcClient>& fresh);

  rpc::IoPool& io_;
  const rpc::Identity self_;
  const std::string role_;
  const std::optional<Duration> connect_timeout_;
  std::mutex mutex_;
  bool closed_ = false;
  std::unordered_map<std::string, Link> links_;  // by endpoint, apart for any and for a certain generation
  std::unordered_set<std::shared_ptr<rpc::RpcClient>> fresh_;  // of one call each
};

}  // namespace mooncake
