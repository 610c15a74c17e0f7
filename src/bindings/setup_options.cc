// The two tables of set-up parameters and what each parameter does.
#include "bindings/setup_options.h"

#include <algorithm>
#include <thread>

#include "bindings/setup_arguments.h"
#include "common/env.h"
#include "common/log.h"
#include "transfer_engine/protocol_names.h"

namespace mooncake::python {
namespace {

namespace py = pybind11;
using Type = SetupParameter::Type;
using Role = SetupParameter::Role;

constexpr const char* kHostMeaning =
    "host or address where peers reach this process, with or without ':port'; '' takes the address facing the master";
constexpr const char* kMetadataMeaning =
    "'P2PHANDSHAKE'; peers find each other through the master, whatever stands here";
constexpr const char* kBufferMeaning = "bytes; accepted, no staging pool is needed";
constexpr const char* kProtocolMeaning =
    "'rdma' ('tcp' where there is no device), 'ascend_rdma' (rdma, needs an NPU) or 'tcp': how values move between "
    "hosts";
constexpr const char* kDevicesMeaning = "RDMA devices to use, comma separated; '' = those of MC_TE_FILTERS";
constexpr const char* kMasterMeaning =
    "'host:port' of the master, or 'etcd://host:port[;host:port...]' where several choose their leader";
constexpr const char* kEngineMeaning = "a transfer engine to share; only None so far";
constexpr const char* kHttpPortMeaning = "port of /health and /metrics; the default moves on when it is taken";
constexpr const char* kRuntimeMeaning = "only '' so far";
constexpr const char* kIdleMeaning = "accepted, without effect";
constexpr const char* kWaitMeaning = "seconds to wait for the master";
constexpr const char* kAnnounceMeaning = "True: put returns before other clients can see the key";

constexpr SetupParameter kSetupParameters[] = {
    {"local_hostname", nullptr, Type::kText, "", Role::kUsed, kHostMeaning, true, true},
    {"metadata_server", nullptr, Type::kText, "P2PHANDSHAKE", Role::kUsed, kMetadataMeaning, true, true},
    {"global_segment_size", nullptr, Type::kSize, "16777216", Role::kUsed,
     "bytes of DRAM lent to the store; 0 lends nothing", true},
    {"local_buffer_size", nullptr, Type::kSize, "16777216", Role::kUsed, kBufferMeaning, true},
    {"protocol", nullptr, Type::kText, "tcp", Role::kUsed, kProtocolMeaning, true},
    {"rdma_devices", nullptr, Type::kText, "", Role::kUsed, kDevicesMeaning, true},
    {"master_server_addr", nullptr, Type::kText, "127.0.0.1:50051", Role::kUsed, kMasterMeaning, true},
    {"engine", nullptr, Type::kObject, "None", Role::kUnbuilt, kEngineMeaning},
    {"enable_offload", nullptr, Type::kFlag, "False", Role::kUnbuilt, "only False so far", false, false, true},
    {"enable_ssd_offload", nullptr, Type::kFlag, "False", Role::kUnbuilt, "only False so far", false, false, true},
    {"ssd_offload_path", nullptr, Type::kText, "", Role::kIdle, kIdleMeaning, false, false, true},
    {"tenant_id", nullptr, Type::kText, "default", Role::kUnbuilt, "only 'default' so far", false, false, true},
    {"http_port", "client_http_port", Type::kNumber, "9003", Role::kUsed, kHttpPortMeaning, false, false, true},
    {"enable_http_server", "enable_client_http_server", Type::kFlag, "True", Role::kUsed, "serve HTTP", false, false,
     true},
    {"runtime_config", nullptr, Type::kText, "", Role::kUnbuilt, kRuntimeMeaning, false, false, true},
    {"enable_metric_collection", nullptr, Type::kFlag, "True", Role::kIdle, kIdleMeaning, false, false, true},
    {"metric_report_interval_seconds", nullptr, Type::kNumber, "60", Role::kIdle, kIdleMeaning, false, false, true},
    {"heartbeat_rpc_port", nullptr, Type::kNumber, "0", Role::kIdle, kIdleMeaning, false, false, true},
    {"ipc_socket_path", nullptr, Type::kText, "", Role::kIdle, kIdleMeaning, false, false, true},
    {"redis_cluster_id", nullptr, Type::kText, "mooncake_cluster", Role::kIdle, kIdleMeaning, false, false, true},
    {"redis_username", nullptr, Type::kText, "", Role::kIdle, kIdleMeaning, false, false, true},
    {"redis_password", nullptr, Type::kText, "", Role::kIdle, kIdleMeaning, false, false, true},
    {"redis_db_index", nullptr, Type::kNumber, "0", Role::kIdle, kIdleMeaning, false, false, true},
    {"redis_master_view_ttl_sec", nullptr, Type::kNumber, "4", Role::kIdle, kIdleMeaning, false, false, true},
    {"redis_heartbeat_interval_sec", nullptr, Type::kNumber, "1", Role::kIdle, kIdleMeaning, false, false, true},
    {"wait", nullptr, Type::kSeconds, "5.0", Role::kUsed, kWaitMeaning, false, false, true},
    {"async_announce", nullptr, Type::kFlag, "False", Role::kUsed, kAnnounceMeaning, false, false, true},
};

constexpr SetupParameter kSetupP2pParameters[] = {
    {"local_hostname", nullptr, Type::kText, "", Role::kUsed, kHostMeaning, true, true},
    {"metadata_server", nullptr, Type::kText, "P2PHANDSHAKE", Role::kUsed, kMetadataMeaning, true, true},
    {"tiered_backend_config_json", "tiered_backend_config", Type::kText, "", Role::kUsed,
     "tiers as JSON text or a file path; '' takes MOONCAKE_TIRED_CONFIG, then MOONCAKE_TIERED_CONFIG", true},
    {"local_buffer_size", nullptr, Type::kSize, "16777216", Role::kUsed, kBufferMeaning, true},
    {"protocol", nullptr, Type::kText, "tcp", Role::kUsed, kProtocolMeaning, true},
    {"rdma_devices", nullptr, Type::kText, "", Role::kUsed, kDevicesMeaning, true},
    {"master_server_addr", nullptr, Type::kText, "127.0.0.1:50051", Role::kUsed, kMasterMeaning, true},
    {"client_rpc_port", nullptr, Type::kNumber, "12345", Role::kUsed,
     "port for peers unless local_hostname has one; 0: the first free one from 12300"},
    {"client_rpc_thread_num", "rpc_thread_num", Type::kNumber, "16", Role::kUsed,
     "threads for peers, at most 2 x cores: they never block"},
    {"lock_shard_count", nullptr, Type::kNumber, "1024", Role::kUsed, "shards of the key index"},
    {"route_cache_max_memory", "route_cache_max_memory_bytes", Type::kSize, "314572800", Role::kIdle, kIdleMeaning},
    {"route_cache_ttl_ms", nullptr, Type::kNumber, "60000", Role::kIdle, kIdleMeaning},
    {"local_transfer_mode", nullptr, Type::kText, "te", Role::kUsed,
     "'te' or 'memcpy'; local transfers are copies either way"},
    {"local_memcpy_async_worker_num", nullptr, Type::kNumber, "32", Role::kIdle, kIdleMeaning},
    {"http_port", nullptr, Type::kNumber, "9003", Role::kUsed, kHttpPortMeaning},
    {"enable_http_server", nullptr, Type::kFlag, "True", Role::kUsed, "serve HTTP"},
    {"async_sender_thread_count", nullptr, Type::kNumber, "4", Role::kIdle,
     "accepted; one sender batches announcements"},
    {"async_max_batch_size", nullptr, Type::kNumber, "2000", Role::kUsed, "keys of one announcement to the master"},
    {"async_route_queue_size", nullptr, Type::kNumber, "0", Role::kIdle, kIdleMeaning},
    {"p2p_key_lease_duration_ms", nullptr, Type::kNumber, "5000", Role::kIdle,
     "accepted; reads hold references, not leases"},
    {"p2p_key_lease_scan_interval_ms", nullptr, Type::kNumber, "1000", Role::kIdle, kIdleMeaning},
    {"p2p_transfer_direction_mode", nullptr, Type::kText, "reverse", Role::kUsed,
     "'reverse' or 'forward'; accepted, without effect"},
    {"engine", nullptr, Type::kObject, "None", Role::kUnbuilt, kEngineMeaning},
    {"runtime_config", nullptr, Type::kText, "", Role::kUnbuilt, kRuntimeMeaning},
    {"enable_metric_collection", nullptr, Type::kFlag, "True", Role::kIdle, kIdleMeaning},
    {"metric_report_interval_seconds", nullptr, Type::kNumber, "60", Role::kIdle, kIdleMeaning},
    {"heartbeat_rpc_port", nullptr, Type::kNumber, "0", Role::kIdle, kIdleMeaning},
    {"wait", nullptr, Type::kSeconds, "5.0", Role::kUsed, kWaitMeaning, false, false, true},
    {"async_announce", nullptr, Type::kFlag, "False", Role::kUsed, kAnnounceMeaning, false, false, true},
    {"ipc_socket_path", nullptr, Type::kText, "", Role::kIdle, kIdleMeaning, false, false, true},
    {"redis_cluster_id", nullptr, Type::kText, "mooncake_cluster", Role::kIdle, kIdleMeaning, false, false, true},
    {"redis_username", nullptr, Type::kText, "", Role::kIdle, kIdleMeaning, false, false, true},
    {"redis_password", nullptr, Type::kText, "", Role::kIdle, kIdleMeaning, false, false, true},
    {"redis_db_index", nullptr, Type::kNumber, "0", Role::kIdle, kIdleMeaning, false, false, true},
    {"redis_master_view_ttl_sec", nullptr, Type::kNumber, "4", Role::kIdle, kIdleMeaning, false, false, true},
    {"redis_heartbeat_interval_sec", nullptr, Type::kNumber, "1", Role::kIdle, kIdleMeaning, false, false, true},
};

void CheckWord(const SetupArguments& arguments, const char* name, const char* first, const char* second) {
  const std::string& word = arguments.Text(name);
  if (word != first && word != second)
    throw std::runtime_error(fmt::format("{} '{}': write '{}' or '{}'", name, word, first, second));
}

// What both calls have in common.
Result<RealClientOptions> CommonOptions(const char* call, const SetupArguments& arguments) {
  MC_TRY(arguments.CheckBuilt());
  RealClientOptions options;
  options.local_hostname = arguments.Text("local_hostname");
  options.master = MC_TRY(MasterAddress::Parse(arguments.Text("master_server_addr")));
  options.enable_http = arguments.Flag("enable_http_server");
  options.http_port = static_cast<uint16_t>(MC_TRY(arguments.NumberWithin("http_port", 0, UINT16_MAX)));
  options.http_port_is_default = !arguments.Given("http_port");
  options.master_wait = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(arguments.Seconds("wait")));
  options.require_master = true;
  options.async_announce = arguments.Flag("async_announce");
  options.protocol = arguments.Text("protocol");
  options.rdma_devices = DeviceList(arguments.Text("rdma_devices"));
  if (const std::string idle = arguments.ChangedIdle(); !idle.empty())
    log::Info("{}: accepted, but without effect here: {}", call, idle);
  return options;
}

}  // namespace

Result<RealClientOptions> ReadSetup(const py::args& args, const py::kwargs& kwargs) {
  SetupArguments arguments(kSetupCall, kSetupParameters);
  MC_TRY(arguments.Read(args, kwargs));
  RealClientOptions options = MC_TRY(CommonOptions(kSetupCall, arguments));
  options.tiers.source = "setup()";
  if (const uint64_t size = arguments.Number("global_segment_size"); size > 0) {
    TierConfig tier;
    tier.type = kDramTierType;
    tier.capacity_bytes = size;
    tier.path = "global_segment_size";
    options.tiers.tiers.push_back(std::move(tier));
    options.tiers = MC_TRY(WithTierEnvironment(std::move(options.tiers), env::Get));
  }
  return options;
}

Result<RealClientOptions> ReadSetupP2p(const py::args& args, const py::kwargs& kwargs) {
  SetupArguments arguments(kSetupP2pCall, kSetupP2pParameters);
  MC_TRY(arguments.Read(args, kwargs));
  CheckWord(arguments, "local_transfer_mode", "te", "memcpy");
  CheckWord(arguments, "p2p_transfer_direction_mode", "reverse", "forward");
  RealClientOptions options = MC_TRY(CommonOptions(kSetupP2pCall, arguments));
  options.rpc_port = static_cast<uint16_t>(MC_TRY(arguments.NumberWithin("client_rpc_port", 0, UINT16_MAX)));
  options.rpc_threads = std::min<size_t>(MC_TRY(arguments.NumberWithin("client_rpc_thread_num", 1, 1024)),
                                         size_t{2} * std::max(1U, std::thread::hardware_concurrency()));
  options.lock_shard_count = MC_TRY(arguments.NumberWithin("lock_shard_count", 1, 1 << 20));
  options.announce_batch_max = MC_TRY(arguments.NumberWithin("async_max_batch_size", 1, 1 << 20));
  std::optional<std::string_view> config;
  if (arguments.Given("tiered_backend_config_json")) config = arguments.Text("tiered_backend_config_json");
  auto tiers = LoadTieredBackendConfig(config, env::Get, BuiltTierSupport());
  if (!tiers) throw std::runtime_error(tiers.error().message());
  options.tiers = std::move(*tiers);
  for (const std::string& notice : options.tiers.notices) log::Warn("{}", notice);
  return options;
}

std::string SetupDocument() {
  return SetupArguments::Document(
      kSetupCall, kSetupParameters,
      "Joins the store with one DRAM tier of global_segment_size bytes, or with none. Returns 0 when the store can be "
      "used, -900 when the master was not reached, -600 for a bad value, another negative code otherwise; the reason "
      "is "
      "printed on stderr. In the dict form only local_hostname and metadata_server are required.\n\n"
      "    store.setup('localhost', 'P2PHANDSHAKE', 64 << 20, 16 << 20, 'tcp', '', '127.0.0.1:50051')");
}

std::string SetupP2pDocument() {
  return SetupArguments::Document(
      kSetupP2pCall, kSetupP2pParameters,
      "Joins the store with the tiers of a configuration. Returns 0 when the store can be used, -900 when the master "
      "was "
      "not reached, -600 for a bad value, another negative code otherwise; the reason is printed on stderr. A bad tier "
      "configuration raises RuntimeError with place, line and column. In the dict form only local_hostname and "
      "metadata_server are required.\n\n"
      "    store.setup_p2p_real_client('localhost', 'P2PHANDSHAKE', "
      "'{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":\"64MB\"}]}', "
      "0, 'tcp', '', '127.0.0.1:50051')");
}

}  // namespace mooncake::python
