// What the far end is asked, in this process or over the pipe of another one.
#include "transfer/far_end.h"

#include <sys/resource.h>

#include <cstdlib>
#include <sstream>

#include "common/check.h"
#include "device/npu_runtime.h"
#include "transfer_engine/protocol_names.h"

namespace mooncake::transfer_test {
namespace {

using std::chrono::seconds;

constexpr std::string_view kOnNpu = "npu_";
constexpr std::string_view kFarOnNpu = "_npu";

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

// Options of both engines, so that nothing but the wire can carry the bytes.
std::string OptionsOf(const std::string& wire) {
  if (wire == "tcp") return "protocols=tcp force_tcp=1 same_host=0";
  if (wire == "rdma") return "protocols=rdma strict=1 same_host=0";
  return "protocols=tcp same_host=1";
}

}  // namespace

std::vector<std::string> WiresUnderTest() {
  const char* const chosen = std::getenv("MC_TRANSFER_TEST_PROTOCOLS");
  if (chosen != nullptr) return Split(chosen);
  std::vector<std::string> wires = {"local", "shm", "tcp"};
  if (NpuSupportBuilt() && CheckBridgeBuilt()) wires.insert(wires.end(), {"npu_tcp", "tcp_npu", "npu_tcp_npu"});
  return wires;
}

std::vector<std::string> WiresToPeers() {
  std::vector<std::string> wires = WiresUnderTest();
  std::erase(wires, "local");
  // Two ways in a row, each of which is there by itself.
  std::erase_if(wires, [](const std::string& wire) { return OnNpu(wire) && FarOnNpu(wire); });
  return wires;
}

std::string WireOf(const std::string& parameter) {
  std::string wire = OnNpu(parameter) ? parameter.substr(kOnNpu.size()) : parameter;
  if (FarOnNpu(parameter)) wire.resize(wire.size() - kFarOnNpu.size());
  return wire;
}

bool FarOnNpu(const std::string& parameter) {
  return parameter.ends_with(kFarOnNpu);
}

bool OnNpu(const std::string& parameter) {
  return parameter.starts_with(kOnNpu);
}

Deadline Soon() {
  return Deadline::After(seconds(100));
}

Deadline Far() {
  return Deadline::After(seconds(3600));
}

void AllowManyFiles() {
  rlimit limit{};
  MC_CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
  limit.rlim_cur = limit.rlim_max;
  MC_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit {}", limit.rlim_max);
}

Result<std::unique_ptr<FarEnd>> FarEnd::Start(const std::string& wire, uint16_t port, const std::string& devices) {
  std::unique_ptr<FarEnd> end(new FarEnd(MC_TRY(PeerProcess::Start())));
  std::string command = fmt::format("open {} port={} timeout_ms=100000", OptionsOf(wire), port);
  if (!devices.empty()) command += " devices=" + devices;
  std::istringstream words(MC_TRY(end->Ask(command)));
  Ports& ports = end->ports_;
  if (words >> ports.name >> ports.control >> ports.tcp_data >> ports.shm_socket) return end;
  return Error(ErrorCode::INTERNAL_ERROR, "unreadable answer to open: '{}'", words.str());
}

Result<std::string> FarEnd::Ask(const std::string& command) {
  if (process_) return process_->Ask(command, Soon());
  return ParseAnswer(shell_->Execute(command));
}

Result<uint64_t> FarEnd::AskNumber(const std::string& command) {
  const std::string answer = MC_TRY(Ask(command));
  std::istringstream words(answer);
  uint64_t number = 0;
  if (words >> number) return number;
  return Error(ErrorCode::INTERNAL_ERROR, "'{}' is no number", answer);
}

Result<void> FarEnd::Do(const std::string& command) {
  const auto answer = Ask(command);
  if (!answer) return std::unexpected(answer.error());
  return {};
}

TransferEngineOptions NearOptions(const std::string& parameter, const std::string& devices) {
  const std::string wire = WireOf(parameter);
  TransferEngineOptions options;
  options.device_filter = Split(devices);
  options.local_name = "127.0.0.1";
  options.protocols = {wire == "rdma" ? "rdma" : "tcp"};
  if (OnNpu(parameter)) options.protocols.emplace_back(kBridgeProtocol);
  options.force_tcp = wire == "tcp";
  options.same_host = wire == "shm" || wire == "local";
  options.strict_protocol = wire == "rdma";
  options.default_timeout = seconds(100);
  return options;
}

}  // namespace mooncake::transfer_test
