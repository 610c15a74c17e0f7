// A client of the store: its own tiers, its peers' objects, one master. What Python, the C API and the programs stand
// on.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "client/announcer.h"
#include "client/copy_group.h"
#include "client/engine_transport.h"
#include "client/local_memory.h"
#include "client/master_link.h"
#include "client/master_locator.h"
#include "client/object_io.h"
#include "client/peer_service.h"
#include "client/remote_objects.h"
#include "client/tier_factory.h"
#include "common/executor.h"
#include "common/http_server.h"
#include "common/listen_address.h"
#include "common/metrics.h"
#include "rpc/io_pool.h"
#include "tiered_cache/tiered_backend.h"

namespace mooncake {

struct RealClientOptions {
  // "host" or "host:port" that peers reach this client at. Empty: the address that faces the master. "0.0.0.0": listen
  // everywhere, and advertise that same address.
  std::string local_hostname;
  MasterAddress master;
  TieredBackendConfig tiers;  // none: a client that only uses others' memory
  uint16_t rpc_port = 0;      // for peers, unless local_hostname has one; 0: the first free one from 12300 to 14300
  size_t rpc_threads = 2;
  size_t lock_shard_count = 1024;
  Duration call_timeout = std::chrono::seconds(10);  // longest a data call takes
  Duration master_wait{};                            // how long Open tries to reach the master
  bool require_master = false;                       // fail Open when it was not reached
  size_t announce_batch_max = 2000;
  bool async_announce = false;  // put returns before other clients can see the key
  size_t worker_threads = 4;    // device copies and eviction for peers; as many more wait for staging slots
  size_t staging_slots = 8;     // of kTransferChunkBytes each, for serving and for own transfers
  // How large values move between hosts, see ProtocolsOf. Without an RDMA device "rdma" means tcp, said once, unless
  // MC_STRICT_PROTOCOL is set.
  std::string protocol = "tcp";
  std::vector<std::string> rdma_devices;  // that may be used; empty: those of MC_TE_FILTERS
  bool enable_http = false;
  uint16_t http_port = 9003;
  bool http_port_is_default = true;
};

// Every data call may be made from any thread, also while Close runs: it then answers SHUTTING_DOWN. Results come one
// per key, in order; one key's failure is its own. Keys are any bytes, not empty.
class RealClient {
 public:
  static Result<std::unique_ptr<RealClient>> Open(RealClientOptions options);
  ~RealClient();

  // Stores values; a key that exists keeps its value and succeeds. Success means another client can read it now.
  std::vector<Result<void>> BatchPut(std::span<const PutItem> items);
  // Fills the targets. OBJECT_NOT_FOUND for a miss, INVALID_PARAMS for a target smaller than the object.
  std::vector<Result<ObjectInfo>> BatchGetInto(std::span<const GetItem> items);
  // Values of any size in host memory.
  std::vector<Result<ObjectBytes>> BatchGet(std::span<const std::string> keys);
  std::vector<Result<bool>> BatchExist(std::span<const std::string> keys);
  Result<uint64_t> GetSize(const std::string& key);
  // Everywhere. OBJECT_NOT_FOUND when nobody has it.
  Result<void> Remove(const std::string& key);
  // Number of keys removed, here and at all other clients.
  Result<uint64_t> RemoveAll();

  // Memory that values are often put from and got into; needed for nothing but the speed of rdma.
  Result<void> RegisterBuffer(void* address, size_t size);
  Result<void> UnregisterBuffer(void* address);
  // What an address of the application is.
  MemoryRange Classify(void* address, size_t size) const { return memory_->Classify(address, size); }

  // "host:port" as peers see it.
  const std::string& hostname() const { return advertised_; }
  const Uuid& id() const { return id_; }
  uint16_t http_port() const { return http_ ? http_->port() : 0; }
  ClientHealth health() const { return link_->health(); }
  std::vector<TierView> GetTierViews() const;
  size_t KeyCount() const { return backend_ ? backend_->KeyCount() : 0; }
  std::string MetricsText();
  // All clients the master knows, with their tiers.
  Result<protocol::ListClientsReply> ListClients();
  // Leaves the master, ends the servers, lets data calls under way finish or fail. Idempotent.
  void Close();

 private:
  struct Traffic {  // counters of one direction, in the names of the contract
    Counter* requests;
    Counter* hits;
    Counter* misses;
    Counter* failures;
    Counter* bytes;
  };

  RealClient(RealClientOptions options, OpenedTiers tiers);
  Result<void> Start();
  Result<void> Listen(const std::string& bind_host, uint16_t port);
  void LendDeviceMemory();
  Result<void> StartEngine(const ListenAddress& address);
  Result<void> StartHttp(const std::string& bind_host);
  Announcer::Hooks AnnouncerHooks();
  void AnnounceAll();
  std::vector<protocol::TierState> TierStates() const;
  Deadline NewDeadline() const { return Deadline::After(options_.call_timeout); }

  // Both write `result` now or when the group is flushed.
  void PutLocal(const PutItem& item, CopyGroup& group, Deadline room_wait, Result<void>& result);
  void GetLocal(const GetItem& item, CopyGroup& group, Result<ObjectInfo>& result);
  Status Unreadable(const AllocationEntry& block, const Status& error);
  void AwaitVisible(std::span<const PutItem> items, std::vector<Result<void>>& results, Deadline deadline);
  static void CountGet(const Traffic& traffic, const Result<ObjectInfo>& result);
  static void CountPut(const Traffic& traffic, const Result<void>& result, uint64_t size);
  Traffic MakeTraffic(const char* scope, const char* operation);

  const RealClientOptions options_;
  const Uuid id_ = Uuid::Random();
  std::string advertised_;
  std::atomic<bool> closing_{false};
  std::shared_mutex closing_mutex_;  // data calls hold it shared; Close waits for them
  MetricRegistry metrics_;

  // Members below are destroyed in reverse order: servers and threads before what they use.
  const std::shared_ptr<NpuRuntime> npu_runtime_;
  const std::unique_ptr<LocalMemory> memory_;
  StagingPool own_staging_;
  StagingPool serving_staging_;
  std::unique_ptr<rpc::IoPool> io_;
  std::vector<std::shared_ptr<CacheTier>> tiers_;  // handed to the backend at start
  std::vector<DeviceMemory> device_memory_;
  std::vector<HostMemory> host_memory_;  // of those in host memory
  bool uses_rdma_ = false;
  std::unique_ptr<TieredBackend> backend_;  // null without tiers
  std::unique_ptr<MasterLink> link_;
  std::unique_ptr<Announcer> announcer_;  // null without tiers
  std::unique_ptr<PeerLinks> peers_;
  std::unique_ptr<RpcTransport> rpc_transport_;
  std::unique_ptr<TransferEngine> engine_;  // its methods are served by server_
  std::unique_ptr<EngineTransport> transport_;
  std::unique_ptr<RemoteObjects> remote_;
  std::unique_ptr<PeerService> service_;
  // What still waits in their queues needs the service; the stagers hand on to the executor.
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Executor> stagers_;
  std::unique_ptr<rpc::RpcServer> server_;
  std::unique_ptr<HttpServer> http_;
  Traffic local_get_{}, remote_get_{}, total_get_{}, local_put_{}, remote_put_{}, total_put_{};
};

}  // namespace mooncake
