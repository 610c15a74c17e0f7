// What this client does for its peers: serves their reads, takes their writes, removes what they ask it to remove.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "client/announcer.h"
#include "common/executor.h"
#include "common/metrics.h"
#include "device/staging_pool.h"
#include "protocol/peer_messages.h"
#include "rpc/rpc_server.h"
#include "tiered_cache/tiered_backend.h"
#include "transfer_engine/transfer_engine.h"
#include "transfer_engine/transport/rpc_transport.h"
#include "transfer_engine/window_table.h"

namespace mooncake {

// Handlers run on I/O threads; whatever may touch a device or evict runs on the other threads. A put is answered when
// its keys are announced. Any thread.
class PeerService {
 public:
  struct Parts {  // all outlive the service
    TieredBackend& backend;
    Announcer& announcer;
    ServingThreads threads;
    StagingPool& staging;
    MetricRegistry& metrics;
    TransferEngine& engine;  // of the same server
  };

  explicit PeerService(Parts parts);
  // Before the server starts; the service outlives the server.
  void Serve(rpc::RpcServer& server);

 private:
  struct Incoming;  // a put under way
  struct PendingWrite {
    std::string key;
    AllocationHandle handle;
  };
  struct SessionWrites {
    Uuid node;  // of the peer
    std::unordered_map<uint64_t, PendingWrite> windows;
  };

  void Get(rpc::ServerCall call, protocol::GetRequest request);
  void Put(rpc::ServerCall call, protocol::PutRequest request);
  void PreparePut(rpc::ServerCall call, const std::shared_ptr<Incoming>& incoming);
  void ReceivePut(rpc::ServerCall call, const std::shared_ptr<Incoming>& incoming);
  void FinishPut(rpc::ServerCall call, const std::shared_ptr<Incoming>& incoming);
  void OpenRead(rpc::ServerCall call, const protocol::OpenReadRequest& request);
  void OpenWrite(rpc::ServerCall call, const protocol::OpenWriteRequest& request);
  void CommitWrite(rpc::ServerCall call, protocol::WindowRequest request);
  void CloseWindow(rpc::SessionId session, uint64_t window);
  void CloseSession(rpc::SessionId session);
  // A window on the block, and a grant for the engine where that reaches it; both are filled in.
  Result<void> OpenWindow(rpc::SessionId session, const AllocationHandle& handle, bool writable,
                          protocol::OpenReply& reply);
  void Remove(rpc::ServerCall call, const protocol::KeysRequest& request);
  void Exist(rpc::ServerCall call, const protocol::KeysRequest& request);
  // Answers with what `make_body` makes once all changes so far are announced.
  void ReplyAnnounced(rpc::ServerCall call, std::move_only_function<std::string()> make_body);
  // True unless the master refused our copy of a key because another client owns it (or it left again since).
  bool Kept(const std::string& key) const { return parts_.backend.Exist(key); }

  const Parts parts_;
  WindowTable windows_;
  std::mutex mutex_;
  // By session, then window. A session has an entry from its first write window until it ends: a window that is opened
  // on the executor for a session that ended meanwhile finds none.
  std::unordered_map<rpc::SessionId, SessionWrites> writes_;
  Counter& get_requests_;
  Counter& get_hits_;
  Counter& get_misses_;
  Counter& put_requests_;
};

}  // namespace mooncake
