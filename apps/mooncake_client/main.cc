// mooncake_client: lends this host's memory tiers to the store. Composition root.
#include <fmt/format.h>
#include <gflags/gflags.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "client/real_client.h"
#include "common/byte_size.h"
#include "common/env.h"
#include "common/log.h"
#include "common/version.h"
#include "daemon/daemon.h"
#include "protocol/methods.h"
#include "protocol/peer_messages.h"
#include "rpc/rpc_server.h"
#include "transfer_engine/protocol_names.h"

DEFINE_string(host, "0.0.0.0",
              "host name or address peers reach this client at; default: the address that faces the master. 0.0.0.0 "
              "given explicitly listens everywhere");
DEFINE_string(metadata_server, "http://127.0.0.1:8080/metadata",
              "P2PHANDSHAKE: none is needed, peers find each other through the master");
DEFINE_string(device_names, "", "RDMA devices, comma separated");
DEFINE_string(master_server_address, "127.0.0.1:50051",
              "host:port of the master, or etcd://host:port[;host:port...] where several masters choose their leader");
DEFINE_string(
    protocol, "tcp",
    "rdma (tcp where there is no device), ascend_rdma (rdma, needs an NPU) or tcp: how values move between hosts");
DEFINE_int32(port, 50052, "local control port, on 127.0.0.1 only");
DEFINE_int32(threads, 1, "threads of the local control port");
DEFINE_string(global_segment_size, "4 GB",
              "accepted, without meaning in P2P deployment: tiers come from --tiered_backend_config");
DEFINE_string(local_buffer_size, "0", "accepted, without meaning here: no staging pool is needed");
DEFINE_string(deployment_mode, "Centralization", "P2P; Centralization is accepted and means P2P as well");
DEFINE_string(tiered_backend_config, "conf/tiered_backend.json",
              "tiers as JSON text or a file path; '' takes MOONCAKE_TIRED_CONFIG or MOONCAKE_TIERED_CONFIG");
DEFINE_int32(client_rpc_port, 12345, "port for peers");
DEFINE_int32(rpc_thread_num, 16, "threads for peers (capped at 2 x cores: they never block)");
DEFINE_int32(lock_shard_count, 1024, "shards of the key index");
DEFINE_string(route_cache_max_memory, "300 MB", "accepted, without meaning yet");
DEFINE_int32(route_cache_ttl_ms, 60000, "accepted, without meaning yet");
DEFINE_int32(async_sender_thread_count, 4, "accepted: one sender batches announcements");
DEFINE_int32(async_max_batch_size, 2000, "keys of one announcement to the master");
DEFINE_int32(async_route_queue_size, 0, "accepted, without meaning here");
DEFINE_string(p2p_local_transfer_mode, "te", "te or memcpy: accepted, local transfers are always copies");
DEFINE_int32(local_memcpy_async_worker_num, 32, "accepted, without meaning here");
DEFINE_string(p2p_transfer_direction_mode, "reverse", "reverse or forward: accepted, the owner's side decides");
DEFINE_int32(p2p_key_lease_duration_ms, 0, "accepted, without meaning here: reads hold references, not leases");
DEFINE_int32(p2p_key_lease_scan_interval_ms, 0, "accepted, without meaning here");
DEFINE_int32(
    http_port, 9003,
    "HTTP port (/health, /metrics, /tiers, /get_key_count); when the default is taken the next free one is used");
DEFINE_bool(enable_http_server, true, "serve HTTP");
DEFINE_string(runtime_config, "", "accepted, without meaning yet");
DEFINE_bool(enable_client_metric_collection, true, "accepted, always on");
DEFINE_int32(metric_report_interval_seconds, 60, "accepted, without meaning here: metrics are served over HTTP");
DEFINE_int32(heartbeat_rpc_port, 0, "accepted: heartbeats have a connection of their own to the master's port");
DEFINE_bool(enable_offload, false, "accepted, without meaning in P2P deployment");

namespace {

constexpr const char* kProgram = "mooncake_client";
constexpr const char* kUsage =
    "mooncake_client lends memory tiers of this host (DRAM, Ascend NPU) to the KV-cache store and serves them to its "
    "peers.\n"
    "Without a master it starts all the same, serves what it has and tries again each second.\n\n"
    "  mooncake_client --master_server_address 127.0.0.1:50051 --port 50052 --client_rpc_port 12345 \\\n"
    "    --deployment_mode P2P --metadata_server P2PHANDSHAKE \\\n"
    "    --tiered_backend_config '{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":\"512MB\",\"priority\":100}]}'";

using namespace mooncake;

constexpr int32_t kMaxAnnounceBatch = std::numeric_limits<int32_t>::max();
constexpr int32_t kMaxThreads = 1024;
constexpr int32_t kMaxShards = 1 << 20;  // as in the Python set-up

Result<size_t> Within(int32_t value, const char* flag, int32_t most) {
  if (value >= 1 && value <= most) return static_cast<size_t>(value);
  return Error(ErrorCode::INVALID_PARAMS, "--{} {}: write a number from 1 to {}", flag, value, most);
}

// Flags of the control port, checked before anything starts: a wrong one must not cost a registration.
struct ControlOptions {
  uint16_t port = 0;
  size_t threads = 1;
};

Result<ControlOptions> ControlFromFlags() {
  return ControlOptions{MC_TRY(daemon::Port(FLAGS_port, "port", 0)),
                        MC_TRY(Within(FLAGS_threads, "threads", kMaxThreads))};
}

Result<RealClientOptions> OptionsFromFlags() {
  MC_TRY(daemon::CheckDeploymentMode(FLAGS_deployment_mode));
  if (FLAGS_p2p_local_transfer_mode != "te" && FLAGS_p2p_local_transfer_mode != "memcpy") {
    return Error(ErrorCode::INVALID_PARAMS, "--p2p_local_transfer_mode '{}': write te or memcpy",
                 FLAGS_p2p_local_transfer_mode);
  }
  if (FLAGS_p2p_transfer_direction_mode != "reverse" && FLAGS_p2p_transfer_direction_mode != "forward") {
    return Error(ErrorCode::INVALID_PARAMS, "--p2p_transfer_direction_mode '{}': write reverse or forward",
                 FLAGS_p2p_transfer_direction_mode);
  }
  RealClientOptions options;
  const bool config_given = daemon::IsSet("tiered_backend_config") || FLAGS_tiered_backend_config.empty();
  options.tiers = MC_TRY(LoadTieredBackendConfig(
      config_given ? std::optional<std::string_view>(FLAGS_tiered_backend_config) : std::nullopt, env::Get,
      BuiltTierSupport()));
  options.local_hostname = daemon::IsSet("host") ? FLAGS_host : "";
  options.master = MC_TRY(MasterAddress::Parse(FLAGS_master_server_address));
  options.rpc_port = MC_TRY(daemon::Port(FLAGS_client_rpc_port, "client_rpc_port", 1));
  // They only move bytes and never block, so more than the cores can feed is of no use.
  options.rpc_threads = std::min<size_t>(MC_TRY(Within(FLAGS_rpc_thread_num, "rpc_thread_num", kMaxThreads)),
                                         2UL * std::thread::hardware_concurrency());
  options.lock_shard_count = MC_TRY(Within(FLAGS_lock_shard_count, "lock_shard_count", kMaxShards));
  options.announce_batch_max = MC_TRY(Within(FLAGS_async_max_batch_size, "async_max_batch_size", kMaxAnnounceBatch));
  options.protocol = FLAGS_protocol;
  options.rdma_devices = DeviceList(FLAGS_device_names);
  options.enable_http = FLAGS_enable_http_server;
  options.http_port = MC_TRY(daemon::Port(FLAGS_http_port, "http_port", 0));
  options.http_port_is_default = !daemon::IsSet("http_port");
  return options;
}

// Local tools ask here; thin clients of this host will attach here.
Result<std::unique_ptr<rpc::RpcServer>> ServeControlPort(rpc::IoPool& io, RealClient& client, uint16_t port) {
  rpc::ServerOptions options;
  options.listen = {"127.0.0.1", port};
  options.self = {.role = protocol::kRoleClient, .node = client.id(), .software_version = kSoftwareVersion};
  auto listening = rpc::RpcServer::Listen(io, options);
  if (!listening) return Annotate(listening.error(), fmt::format("--port {}", port));
  auto server = std::move(*listening);
  server->Handle<protocol::Empty>(protocol::kHealth, [&client](rpc::ServerCall call, protocol::Empty) {
    std::move(call).Reply(rpc::Encode(protocol::HealthReply{std::string(ClientHealthName(client.health()))}));
  });
  server->Start();
  return server;
}

// The keys of a tier object, from the table the parser works with.
std::string TierKeysHelp() {
  std::string text = "\nTiers: {\"tiers\": [{...}, ...]}, comments allowed. Keys of a tier:\n";
  for (const TierConfigKey& key : TierConfigKeys()) {
    text += fmt::format("  {} ({}; {}; default {}){}\n      {}\n", key.name, key.tier_types, key.form,
                        key.default_value, key.built ? "" : " - not built yet", key.meaning);
  }
  return text;
}

std::string DescribeTiers(const RealClient& client) {
  std::string text;
  for (const TierView& tier : client.GetTierViews()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : " + ", tier.name, FormatBytes(tier.capacity));
  }
  return text;
}

Result<void> Run() {
  const ControlOptions control_options = MC_TRY(ControlFromFlags());
  const RealClientOptions options = MC_TRY(OptionsFromFlags());
  for (const std::string& notice : options.tiers.notices) log::Warn("{}", notice);
  const auto client = MC_TRY(RealClient::Open(options));
  rpc::IoPool io(control_options.threads);
  const auto control = MC_TRY(ServeControlPort(io, *client, control_options.port));
  const std::string idle = daemon::GivenOf(
      {"global_segment_size", "local_buffer_size", "route_cache_max_memory", "route_cache_ttl_ms",
       "async_sender_thread_count", "async_route_queue_size", "local_memcpy_async_worker_num",
       "p2p_key_lease_duration_ms", "p2p_key_lease_scan_interval_ms", "runtime_config",
       "enable_client_metric_collection", "metric_report_interval_seconds", "heartbeat_rpc_port", "enable_offload"});
  if (!idle.empty()) log::Info("accepted, but without meaning here: {}", idle);
  const ClientHealth health = client->health();
  daemon::PrintReady(fmt::format(
      "mooncake_client ready: peers {}, control 127.0.0.1:{}, http {}, master {} {}, tiers {}", client->hostname(),
      control->port(), client->http_port() != 0 ? std::to_string(client->http_port()) : "off",
      FLAGS_master_server_address,
      health == ClientHealth::DEGRADED ? "DEGRADED (not reachable, trying again each second)" : "registered",
      DescribeTiers(*client)));
  log::Info("{}: leaving", daemon::WaitForSignal());
  control->Stop();
  client->Close();
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  return daemon::Main(argc, argv, kProgram, kUsage, env::All(), Run, TierKeysHelp());
}
