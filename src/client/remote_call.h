// One asynchronous call whose result somebody waits for.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>

#include "common/status.h"
#include "protocol/master_messages.h"
#include "protocol/peer_messages.h"
#include "transfer_engine/peer_links.h"
#include "transfer_engine/window_transport.h"

namespace mooncake {

// The connection to a client of the store. INVALID_PARAMS for an endpoint that is none. A client that came back under
// the same endpoint has another id, and gets another connection.
inline Result<std::shared_ptr<rpc::RpcClient>> LinkTo(PeerLinks& links, const protocol::ClientAddress& client) {
  return links.To(MC_TRY(Endpoint::Parse(client.endpoint)), client.id);
}

// What an owner opened, as transports want to have it.
inline RemoteWindow WindowOf(std::shared_ptr<rpc::RpcClient> peer, const protocol::ClientAddress& owner,
                             const protocol::OpenReply& opened) {
  return {.peer = std::move(peer),
          .id = opened.window,
          .size = opened.size,
          .endpoint = owner.endpoint,
          .grant = {.address = opened.address, .length = opened.size, .key = opened.key}};
}

// Completed once, on any thread, and waited for by one. The wait has no deadline of its own: the call underneath has,
// and completes only after it has let go of the memory it was given.
class PendingReply {
 public:
  void Complete(Result<std::string> reply) {
    std::lock_guard lock(mutex_);
    reply_ = std::move(reply);
    done_.notify_one();
  }
  Result<std::string> Wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return reply_.has_value(); });
    return std::move(reply_).value();
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  std::optional<Result<std::string>> reply_;
};

}  // namespace mooncake
