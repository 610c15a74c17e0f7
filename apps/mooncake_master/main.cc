// mooncake_master: keeps which client owns which key. Composition root.
#include <fmt/format.h>
#include <gflags/gflags.h>

#include <algorithm>
#include <thread>

#include "common/http_server.h"
#include "common/listen_address.h"
#include "common/log.h"
#include "daemon/daemon.h"
#include "master/master_service.h"
#include "mooncake_master/reports.h"
#include "protocol/master_view.h"
#include "transfer_engine/metadata/http_metadata_server.h"

DEFINE_string(deployment_mode, "Centralization", "P2P; Centralization is accepted and means P2P as well");
DEFINE_int32(rpc_port, 0, "port for clients; 0: the value of --port");
DEFINE_int32(port, 50051, "older name of --rpc_port");
DEFINE_string(rpc_address, "0.0.0.0", "address to listen on, for RPC and HTTP");
DEFINE_int32(rpc_thread_num, 0, "RPC threads; 0: min(--max_threads, cores)");
DEFINE_int32(max_threads, 4, "most RPC threads when --rpc_thread_num is 0");
DEFINE_int32(
    metrics_port, 9003,
    "HTTP port (/health, /metrics, /role, /leader, /get_all_segments, /get_key_count); when the default is taken "
    "the next free one is used");
DEFINE_int64(client_ttl, 10, "seconds of silence after which a client is not offered any more");
DEFINE_int64(client_crashed_ttl, 30,
             "seconds of silence after which a client and its keys are forgotten; default 3 x --client_ttl");
DEFINE_int32(max_client_per_key, 1, "owners of one key; 0: no limit");
DEFINE_bool(enable_ha, false,
            "one of several masters: etcd chooses the one that answers, the others take over when it is gone");
DEFINE_string(etcd_endpoints, "", "host:port[;host:port...] of that etcd");
DEFINE_string(election_backend, "etcd", "etcd: the only one");
DEFINE_string(cluster_id, mooncake::protocol::kDefaultClusterId,
              "masters and clients of one cluster; default: MC_STORE_CLUSTER_ID, else mooncake_cluster");
DEFINE_bool(enable_http_metadata_server, false,
            "also serve metadata of transfer engines: http://host:port/metadata is their metadata server");
DEFINE_int32(http_metadata_server_port, 8080, "its port");
DEFINE_string(http_metadata_server_host, "0.0.0.0", "its address to listen on");
// Accepted for command lines written for a centralised master; see kWithoutMeaning.
DEFINE_int32(rpc_conn_timeout_seconds, 0, "accepted, without meaning here");
DEFINE_bool(rpc_enable_tcp_no_delay, true, "accepted, always on");
DEFINE_bool(enable_metric_reporting, true, "accepted, without meaning here: metrics are served on --metrics_port");
DEFINE_int64(default_kv_lease_ttl, 5000, "accepted, without meaning here: reads hold references, not leases");
DEFINE_int64(default_kv_soft_pin_ttl, 1800000, "accepted, without meaning here");
DEFINE_bool(allow_evict_soft_pinned_objects, true, "accepted, without meaning here");
DEFINE_double(eviction_ratio, 0.05, "accepted, without meaning here: clients evict least recently used blocks");
DEFINE_double(eviction_high_watermark_ratio, 0.95, "accepted, without meaning here");
DEFINE_string(memory_allocator, "offset", "accepted, without meaning here");
DEFINE_string(root_fs_dir, "", "accepted, without meaning here");
DEFINE_bool(enable_offload, false, "accepted, without meaning here");

namespace {

constexpr const char* kProgram = "mooncake_master";
constexpr const mooncake::env::Variable* kVariables[] = {&mooncake::env::kLogLevel, &mooncake::env::kStoreClusterId};
constexpr int32_t kMaxThreads = 1024;
constexpr const char* kUsage =
    "mooncake_master keeps which client of the KV-cache store owns which key. It holds no data: after a restart "
    "clients\n"
    "register again and announce their keys. Start it first, then clients:\n\n"
    "  mooncake_master --rpc_address 127.0.0.1 --rpc_port 50051\n"
    "  mooncake_client --master_server_address 127.0.0.1:50051 \\\n"
    "    --tiered_backend_config '{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":\"1GB\",\"priority\":10}]}'";

mooncake::Result<mooncake::ElectionOptions> ElectionFromFlags() {
  using namespace mooncake;
  ElectionOptions election;
  if (!FLAGS_enable_ha) {
    if (!FLAGS_etcd_endpoints.empty()) {
      return Error(ErrorCode::INVALID_PARAMS, "--etcd_endpoints {} is of no use without --enable_ha",
                   FLAGS_etcd_endpoints);
    }
    return election;
  }
  if (FLAGS_election_backend != "etcd")
    return Error(ErrorCode::INVALID_PARAMS, "--election_backend '{}': write etcd", FLAGS_election_backend);
  std::string_view members = FLAGS_etcd_endpoints;
  for (const std::string_view scheme : {"etcd://", "http://"}) {
    if (members.starts_with(scheme)) members.remove_prefix(scheme.size());
  }
  auto parsed = ParseEtcdMembers(members);
  if (!parsed) return Annotate(parsed.error(), fmt::format("--etcd_endpoints '{}'", FLAGS_etcd_endpoints));
  election.etcd = std::move(*parsed);
  election.cluster_id = daemon::IsSet("cluster_id") ? FLAGS_cluster_id : protocol::ClusterIdOfEnvironment();
  if (election.cluster_id.empty()) return Error(ErrorCode::INVALID_PARAMS, "--cluster_id '': write a name");
  // 0.0.0.0 is nothing that clients could connect to: then it is the address that faces etcd.
  election.advertised_host = MC_TRY(ChooseListenAddress(FLAGS_rpc_address, election.etcd.front())).advertise;
  return election;
}

mooncake::Result<mooncake::MasterOptions> OptionsFromFlags() {
  using namespace mooncake;
  MC_TRY(daemon::CheckDeploymentMode(FLAGS_deployment_mode));
  if (FLAGS_client_ttl <= 0)
    return Error(ErrorCode::INVALID_PARAMS, "--client_ttl {}: write a number of seconds above 0", FLAGS_client_ttl);
  const int64_t crashed = daemon::IsSet("client_crashed_ttl") ? FLAGS_client_crashed_ttl : 3 * FLAGS_client_ttl;
  if (crashed < FLAGS_client_ttl) {
    return Error(ErrorCode::INVALID_PARAMS, "--client_crashed_ttl {} is below --client_ttl {}", crashed,
                 FLAGS_client_ttl);
  }
  if (FLAGS_max_client_per_key < 0)
    return Error(ErrorCode::INVALID_PARAMS, "--max_client_per_key {} is negative", FLAGS_max_client_per_key);
  if (FLAGS_rpc_thread_num < 0 || FLAGS_rpc_thread_num > kMaxThreads) {
    return Error(ErrorCode::INVALID_PARAMS, "--rpc_thread_num {}: write a number from 0 (automatic) to {}",
                 FLAGS_rpc_thread_num, kMaxThreads);
  }
  if (FLAGS_max_threads < 1 || FLAGS_max_threads > kMaxThreads) {
    return Error(ErrorCode::INVALID_PARAMS, "--max_threads {}: write a number from 1 to {}", FLAGS_max_threads,
                 kMaxThreads);
  }
  if (FLAGS_rpc_address.empty())
    return Error(ErrorCode::INVALID_PARAMS, "--rpc_address '': write an address of this host, or 0.0.0.0 for all");
  MasterOptions options;
  const bool use_rpc_port = FLAGS_rpc_port != 0;
  options.listen = {FLAGS_rpc_address, MC_TRY(daemon::Port(use_rpc_port ? FLAGS_rpc_port : FLAGS_port,
                                                           use_rpc_port ? "rpc_port" : "port"))};
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  options.rpc_threads =
      static_cast<size_t>(FLAGS_rpc_thread_num > 0 ? FLAGS_rpc_thread_num : std::clamp(cores, 1, FLAGS_max_threads));
  options.client_ttl = std::chrono::seconds(FLAGS_client_ttl);
  options.client_crashed_ttl = std::chrono::seconds(crashed);
  options.max_client_per_key = static_cast<size_t>(FLAGS_max_client_per_key);
  options.election = MC_TRY(ElectionFromFlags());
  return options;
}

mooncake::Result<std::unique_ptr<mooncake::HttpServer>> ServeHttp(mooncake::MasterService& master) {
  using namespace mooncake;
  HttpServer::Options http;
  http.listen = {FLAGS_rpc_address, MC_TRY(daemon::Port(FLAGS_metrics_port, "metrics_port"))};
  http.move_on_if_taken = !daemon::IsSet("metrics_port");
  http.get["/health"] = [](const HttpRequest&) { return HttpReply{.body = "OK\n"}; };
  http.get["/metrics"] = [&](const HttpRequest&) { return HttpReply{.body = master.MetricsText()}; };
  http.get["/role"] = [&](const HttpRequest&) {
    return HttpReply{.body = master.leading() ? "leader\n" : "standby\n"};
  };
  http.get["/leader"] = [&](const HttpRequest&) {
    const std::string leader = master.LeaderEndpoint();
    return leader.empty() ? HttpReply{.code = 404, .body = "no leader is known\n"} : HttpReply{.body = leader + "\n"};
  };
  http.get["/get_key_count"] = [&](const HttpRequest&) {
    return HttpReply{.body = std::to_string(master.KeyCount()) + "\n"};
  };
  http.get["/get_all_segments"] = [&](const HttpRequest&) { return SegmentsReport(master); };
  http.get["/tiers"] = [&](const HttpRequest&) { return ClientsReport(master); };
  http.get["/metrics/summary"] = [&](const HttpRequest&) { return SummaryReport(master); };
  http.get["/query_key"] = [&](const HttpRequest& request) { return KeyReport(master, request); };
  http.get["/batch_query_keys"] = [&](const HttpRequest& request) { return KeysReport(master, request); };
  return HttpServer::Open(std::move(http));
}

// Null unless it is wanted.
mooncake::Result<std::unique_ptr<mooncake::HttpMetadataServer>> ServeMetadata() {
  using namespace mooncake;
  if (!FLAGS_enable_http_metadata_server) return nullptr;
  const uint16_t port = MC_TRY(daemon::Port(FLAGS_http_metadata_server_port, "http_metadata_server_port"));
  if (FLAGS_http_metadata_server_host.empty()) {
    return Error(ErrorCode::INVALID_PARAMS,
                 "--http_metadata_server_host '': write an address of this host, or 0.0.0.0 for all");
  }
  return HttpMetadataServer::Open({.listen = {FLAGS_http_metadata_server_host, port}});
}

mooncake::Result<void> Run() {
  using namespace mooncake;
  const MasterOptions options = MC_TRY(OptionsFromFlags());
  const auto master = MC_TRY(MasterService::Open(options));
  const auto http = MC_TRY(ServeHttp(*master));
  const auto metadata = MC_TRY(ServeMetadata());
  const std::string idle = daemon::GivenOf(
      {"rpc_conn_timeout_seconds", "rpc_enable_tcp_no_delay", "enable_metric_reporting", "default_kv_lease_ttl",
       "default_kv_soft_pin_ttl", "allow_evict_soft_pinned_objects", "eviction_ratio", "eviction_high_watermark_ratio",
       "memory_allocator", "root_fs_dir", "enable_offload"});
  if (!idle.empty()) log::Info("accepted, but without meaning in P2P deployment: {}", idle);
  const std::string metadata_at =
      metadata == nullptr ? ""
                          : fmt::format(", metadata http://{}/metadata",
                                        Endpoint{FLAGS_http_metadata_server_host, metadata->port()}.ToString());
  const std::string election = FLAGS_enable_ha ? fmt::format(", one of cluster '{}' at etcd {}",
                                                             options.election.cluster_id, FLAGS_etcd_endpoints)
                                               : "";
  daemon::PrintReady(fmt::format("mooncake_master ready: rpc {}, http {}, client_ttl {} s, mode P2P{}{}",
                                 Endpoint{FLAGS_rpc_address, master->port()}.ToString(),
                                 Endpoint{FLAGS_rpc_address, http->port()}.ToString(), FLAGS_client_ttl, election,
                                 metadata_at));
  log::Info("{}: leaving", daemon::WaitForSignal());
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  return mooncake::daemon::Main(argc, argv, kProgram, kUsage, kVariables, Run);
}
