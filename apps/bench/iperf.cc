// Starting iperf3 and reading its JSON.
#include "bench/iperf.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

namespace mooncake::bench {
namespace {

constexpr Duration kStartBudget = std::chrono::seconds(10);
constexpr Duration kRunBudget = std::chrono::seconds(20);
constexpr const char* kLoopback = "127.0.0.1";

Result<bool> IsInstalled() {
  Child version = MC_TRY(Child::Start({"iperf3", "--version"}));
  return MC_TRY(version.ReadAll(Deadline::After(kStartBudget))).starts_with("iperf");
}

}  // namespace

uint16_t FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool found = fd >= 0 && bind(fd, generic, size) == 0 && getsockname(fd, generic, &size) == 0;
  if (fd >= 0) close(fd);
  return found ? ntohs(address.sin_port) : 0;
}

Result<std::unique_ptr<Iperf>> Iperf::Start() {
  if (!MC_TRY(IsInstalled())) return nullptr;
  const uint16_t port = FreePort();
  if (port == 0) return Error(ErrorCode::INTERNAL_ERROR, "no free port for iperf3");
  Child server =
      MC_TRY(Child::Start({"iperf3", "--server", "--bind", kLoopback, "--port", std::to_string(port), "--forceflush"}));
  const Deadline deadline = Deadline::After(kStartBudget);
  while (!MC_TRY(server.ReadLine(deadline)).starts_with("Server listening")) {
  }
  return std::unique_ptr<Iperf>(new Iperf(std::move(server), port));
}

Result<double> Iperf::Measure(const std::string& congestion) {
  Child client = MC_TRY(Child::Start({"iperf3", "--client", kLoopback, "--port", std::to_string(port_), "--length",
                                      "1M", "--congestion", congestion, "--time", "1", "--json"}));
  const std::string text = MC_TRY(client.ReadAll(Deadline::After(kRunBudget)));
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const nlohmann::json::json_pointer rate("/end/sum_received/bits_per_second");
  if (json.is_discarded() || !json.contains(rate) || !json[rate].is_number()) {
    return Error(ErrorCode::INTERNAL_ERROR, "iperf3 gave no rate: {}", text.substr(0, 400));
  }
  return json[rate].get<double>() / 8 / 1e9;
}

}  // namespace mooncake::bench
