// What an engine answers to its peers.
#pragma once

#include <deque>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "rpc/rpc_server.h"
#include "transfer_engine/engine_messages.h"
#include "transfer_engine/self_segment.h"
#include "transfer_engine/types.h"

namespace mooncake {

// Handlers run on I/O threads; the rest from any thread. The server stops before it goes.
class EngineService {
 public:
  EngineService(const SelfSegment& self, size_t max_notifies) : self_(self), max_notifies_(max_notifies) {}
  EngineService(const EngineService&) = delete;
  EngineService& operator=(const EngineService&) = delete;

  void Serve(rpc::RpcServer& server);
  // Those received since the last call, in order of arrival.
  std::vector<TransferNotify> TakeNotifies();

 private:
  void Describe(rpc::ServerCall call, const DescribeRequest& request);
  void Notify(rpc::ServerCall call, NotifyMessage message);
  void Watch(rpc::ServerCall call);

  const SelfSegment& self_;
  const size_t max_notifies_;
  std::mutex mutex_;
  std::deque<TransferNotify> notifies_;
  size_t notify_bytes_ = 0;
  std::unordered_map<rpc::SessionId, std::vector<rpc::ServerCall>> watches_;
};

}  // namespace mooncake
