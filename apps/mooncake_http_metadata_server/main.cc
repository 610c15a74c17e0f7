// mooncake_http_metadata_server: where transfer engines find each other when there is no etcd or Redis.
#include <fmt/format.h>
#include <gflags/gflags.h>

#include "common/log.h"
#include "daemon/daemon.h"
#include "transfer_engine/metadata/http_metadata_server.h"

DEFINE_string(host, "0.0.0.0", "address to listen on");
DEFINE_int32(port, 8080, "port to listen on; 0: a free one");

namespace {

constexpr const char* kProgram = "mooncake_http_metadata_server";
constexpr const mooncake::env::Variable* kVariables[] = {&mooncake::env::kLogLevel};
constexpr const char* kUsage =
    "mooncake_http_metadata_server keeps where transfer engines are and what memory they offer: GET, PUT and DELETE\n"
    "/metadata?key=... It keeps all in memory; after a restart engines have to be started again.\n\n"
    "  mooncake_http_metadata_server --host 127.0.0.1 --port 8080\n"
    "  then \"http://127.0.0.1:8080/metadata\" is the metadata server of every engine";

mooncake::Result<void> Run() {
  using namespace mooncake;
  const uint16_t port = MC_TRY(daemon::Port(FLAGS_port, "port"));
  if (FLAGS_host.empty()) {
    return Error(ErrorCode::INVALID_PARAMS, "--host '': write an address of this host, or 0.0.0.0 for all");
  }
  const auto server = MC_TRY(HttpMetadataServer::Open({.listen = {FLAGS_host, port}}));
  daemon::PrintReady(
      fmt::format("{} ready: http://{}/metadata", kProgram, Endpoint{FLAGS_host, server->port()}.ToString()));
  log::Info("{}: leaving", daemon::WaitForSignal());
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  return mooncake::daemon::Main(argc, argv, kProgram, kUsage, kVariables, Run);
}
