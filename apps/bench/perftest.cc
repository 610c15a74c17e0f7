// Starting perftest's programs and reading their table.
#include "bench/perftest.h"

#include <sstream>

#include "bench/child.h"
#include "bench/iperf.h"

namespace mooncake::bench {
namespace {

constexpr Duration kStartBudget = std::chrono::seconds(10);
constexpr Duration kRunBudget = std::chrono::seconds(60);
constexpr int kConnectAttempts = 20;  // the server says that it waits a moment before it listens

}  // namespace

Result<bool> HasPerftest() {
  Child version = MC_TRY(Child::Start({"ib_write_bw", "--version"}));
  return MC_TRY(version.ReadAll(Deadline::After(kStartBudget))).find("ersion") != std::string::npos;
}

Result<double> ParsePerftest(const std::string& report, size_t bytes) {
  std::istringstream lines(report);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream row(line);
    size_t size = 0;
    size_t messages = 0;
    double peak = 0;
    double average = 0;
    if (row >> size >> messages >> peak >> average && size == bytes && average > 0) return average / 8;
  }
  return Error(ErrorCode::INTERNAL_ERROR, "perftest gave no rate: {}", report.substr(0, 400));
}

Result<double> MeasurePerftest(PerftestDirection direction, const std::string& device, size_t bytes, size_t messages) {
  const uint16_t port = FreePort();
  if (port == 0) return Error(ErrorCode::INTERNAL_ERROR, "no free port for perftest");
  const std::vector<std::string> command = {"stdbuf",
                                            "-oL",
                                            direction == PerftestDirection::kRead ? "ib_read_bw" : "ib_write_bw",
                                            "-d",
                                            device,
                                            "-p",
                                            std::to_string(port),
                                            "-s",
                                            std::to_string(bytes),
                                            "-n",
                                            std::to_string(messages),
                                            "-F",
                                            "--report_gbits"};
  Child server = MC_TRY(Child::Start(command));
  while (MC_TRY(server.ReadLine(Deadline::After(kStartBudget))).find("Waiting for client") == std::string::npos) {
  }
  std::vector<std::string> client = command;
  client.emplace_back("127.0.0.1");
  Result<double> rate;
  for (int attempt = 0; attempt < kConnectAttempts; ++attempt) {
    Child run = MC_TRY(Child::Start(client));
    rate = ParsePerftest(MC_TRY(run.ReadAll(Deadline::After(kRunBudget))), bytes);
    if (rate) break;
  }
  return rate;
}

}  // namespace mooncake::bench
