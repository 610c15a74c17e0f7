// The engine's options from the environment.
#include <unistd.h>

#include <charconv>
#include <fstream>
#include <sstream>

#include "common/env.h"
#include "transfer_engine/topology.h"
#include "transfer_engine/transfer_engine.h"

namespace mooncake {
namespace {

constexpr int64_t kMinTimeoutSeconds = 5;  // below it, transfers that only waited their turn would fail
constexpr int64_t kMaxTimeoutSeconds = 86'400;
constexpr int64_t kMaxSpinMicroseconds = 10'000;

std::unexpected<Status> Wrong(const env::Variable& variable, std::string_view value, std::string_view expected) {
  return Error(ErrorCode::INVALID_PARAMS, "{}='{}': {} expected", variable.name, value, expected);
}

Result<std::optional<int64_t>> ReadNumber(const env::Variable& variable, int64_t min, int64_t max) {
  const auto value = env::Get(variable);
  if (!value) return std::nullopt;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), number);
  if (error != std::errc() || end != value->data() + value->size() || number < min || number > max) {
    return Wrong(variable, *value, fmt::format("a number from {} to {}", min, max));
  }
  return number;
}

Result<void> ReadPort(const env::Variable& variable, uint16_t& port) {
  if (const auto number = MC_TRY(ReadNumber(variable, 1, UINT16_MAX))) port = static_cast<uint16_t>(*number);
  return {};
}

Result<void> ReadTopology(std::string& topology) {
  const auto value = env::Get(env::kCustomTopology);
  if (!value || value->empty()) return {};
  topology = *value;
  if (value->find('{') == std::string::npos) {  // no JSON: a path
    std::ifstream file(*value);
    std::stringstream text;
    if (!(text << file.rdbuf())) return Wrong(env::kCustomTopology, *value, "JSON or a readable file");
    topology = std::move(text).str();
  }
  if (const auto parsed = Topology::Parse(topology); !parsed) {
    return Annotate(parsed.error(), env::kCustomTopology.name);
  }
  return {};
}

Result<void> ReadTimeout(Duration& timeout) {
  const auto seconds = MC_TRY(ReadNumber(env::kTransferTimeout, 0, kMaxTimeoutSeconds));
  if (seconds) timeout = std::chrono::seconds(std::max(*seconds, kMinTimeoutSeconds));
  return {};
}

Result<void> ReadSpin(Duration& spin) {
  const auto microseconds = MC_TRY(ReadNumber(env::kTransferSpin, 0, kMaxSpinMicroseconds));
  if (microseconds) spin = std::chrono::microseconds(*microseconds);
  return {};
}

void ReadFilter(std::vector<std::string>& filter) {
  std::stringstream list(env::Get(env::kDeviceFilter).value_or(""));
  for (std::string device; std::getline(list, device, ',');) {
    const size_t first = device.find_first_not_of(" \t");
    if (first == std::string::npos) continue;
    filter.push_back(device.substr(first, device.find_last_not_of(" \t") - first + 1));
  }
}

}  // namespace

Result<TransferEngineOptions> TransferEngineOptionsFromEnvironment() {
  TransferEngineOptions options;
  options.force_tcp = MC_TRY(env::GetFlag(env::kForceTcp));
  options.strict_protocol = MC_TRY(env::GetFlag(env::kStrictProtocol));
  options.legacy_port_binding = MC_TRY(env::GetFlag(env::kLegacyRpcPortBinding));
  MC_TRY(ReadTimeout(options.default_timeout));
  MC_TRY(ReadSpin(options.spin));
  MC_TRY(ReadTopology(options.custom_topology));
  MC_TRY(ReadPort(env::kMinRpcPort, options.min_control_port));
  MC_TRY(ReadPort(env::kMaxRpcPort, options.max_control_port));
  if (options.min_control_port > options.max_control_port) {
    return Wrong(env::kMaxRpcPort, std::to_string(options.max_control_port),
                 fmt::format("at least {} ({})", env::kMinRpcPort.name, options.min_control_port));
  }
  options.bind_address = env::Get(env::kTcpBindAddress).value_or("");
  ReadFilter(options.device_filter);
  return options;
}

}  // namespace mooncake
