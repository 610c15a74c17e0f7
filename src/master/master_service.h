// The master: answers clients' registrations, announcements, look-ups and write routes. Holds no data, calls nobody.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "common/clock.h"
#include "common/content_stamp.h"
#include "common/metrics.h"
#include "master/client_registry.h"
#include "master/key_index.h"
#include "master/leader.h"
#include "rpc/rpc_server.h"

namespace mooncake {

// One of several masters, of which etcd chooses the one that answers.
struct ElectionOptions {
  std::vector<Endpoint> etcd;  // empty: a master by itself
  std::string cluster_id;
  std::string advertised_host;  // where clients reach this master
  std::chrono::seconds lease{5};
};

struct MasterOptions {
  Endpoint listen{"0.0.0.0", 50051};
  size_t rpc_threads = 2;
  Duration client_ttl = std::chrono::seconds(10);
  Duration client_crashed_ttl = std::chrono::seconds(30);
  Duration sweep_interval = std::chrono::milliseconds(250);
  size_t max_client_per_key = 1;  // owners per key, 0 = no limit
  ElectionOptions election;
};

// Any thread. Handlers touch memory only and run on the RPC threads. A standby refuses every call with
// UNAVAILABLE_IN_CURRENT_STATUS and knows nothing; a new leader starts empty, for clients to tell it everything.
class MasterService {
 public:
  // Binds the port; a taken one is an error that names it.
  static Result<std::unique_ptr<MasterService>> Open(MasterOptions options,
                                                     const Clock& clock = SteadyClock::Instance());
  ~MasterService();

  uint16_t port() const { return server_->port(); }
  size_t KeyCount() const { return index_.KeyCount(); }
  std::vector<ClientRegistry::Entry> Clients() const { return registry_.List(); }
  // True for a master by itself.
  bool leading() const { return Term().has_value(); }
  // Endpoint of the leader: itself for a master by itself, empty when none is known.
  std::string LeaderEndpoint() const;
  // What a reader is told: owners that are offered now.
  Result<protocol::LookupReply> Lookup(const protocol::LookupRequest& request) const;
  struct RequestCount {
    uint64_t received = 0;
    uint64_t refused = 0;
  };
  // Of a method, by its name in the metrics ("heartbeat").
  RequestCount Requests(const std::string& method);
  // Prometheus text, gauges brought up to date.
  std::string MetricsText();
  // Expires silent clients now (the sweeper thread does it each sweep_interval).
  void SweepOnce();

 private:
  MasterService(MasterOptions options, const Clock& clock);
  void OpenElection(const Clock& clock);
  // nullopt while it must not answer; 0 for a master by itself.
  std::optional<uint64_t> Term() const { return leader_ ? leader_->Term() : std::optional<uint64_t>(0); }
  Status NotLeading() const;
  template <typename Request, typename Handler>
  void Serve(uint16_t method, const char* name, Handler handler);
  void RegisterHandlers();
  Result<protocol::RegisterReply> Register(const protocol::RegisterRequest& request);
  Result<protocol::HeartbeatReply> Heartbeat(const protocol::HeartbeatRequest& request);
  Result<protocol::AnnounceReply> Announce(const protocol::AnnounceRequest& request);
  Result<protocol::WriteRouteReply> WriteRoute(const protocol::WriteRouteRequest& request);
  Result<protocol::RegisterReply> ReportPeer(const protocol::ReportPeerRequest& request);
  Result<protocol::RemoveKeysReply> RemoveKeys(const protocol::RemoveKeysRequest& request);
  Result<protocol::ListClientsReply> RemoveFloor(const protocol::RemoveFloorRequest& request);
  Result<protocol::ListClientsReply> ListClients(const protocol::ListClientsRequest& request) const;
  class Entering;
  void ForgetClient(uint32_t number);
  uint64_t Hlc() { return stamps_.Next(/*upserted=*/false).hlc; }
  void SweepLoop();

  const MasterOptions options_;
  const Clock& clock_;
  StampClock stamps_{/*writer=*/0};
  MetricRegistry metrics_;
  ClientRegistry registry_;
  KeyIndex index_;
  std::unique_ptr<rpc::IoPool> io_;
  std::unique_ptr<rpc::RpcServer> server_;
  std::unique_ptr<Leader> leader_;  // null for a master by itself

  std::mutex sweep_mutex_;
  std::condition_variable sweep_wake_;
  bool stopping_ = false;
  std::thread sweeper_;
};

}  // namespace mooncake
