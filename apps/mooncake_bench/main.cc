// mooncake_bench: figures of the store beside yardsticks measured in the same run. Composition root.
#include <fmt/format.h>
#include <gflags/gflags.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <string>

#include "bench/store_bench.h"
#include "bench/tier_bench.h"
#include "common/log.h"
#include "daemon/daemon.h"

DEFINE_string(json, "", "write the figures to this file as well");
DEFINE_int32(runs, 11, "repetitions; the median counts");
DEFINE_int32(threads, 2, "tier: threads of the figures that use several");
DEFINE_bool(quick, false, "tiny sizes: shows that everything runs, the figures mean nothing");

namespace {

using namespace mooncake;
using namespace mooncake::bench;

constexpr const char* kProgram = "mooncake_bench";
constexpr const char* kUsage =
    "mooncake_bench SUBCOMMAND [flags] measures a part of the store beside a yardstick, pair by pair in one run.\n\n"
    "  mooncake_bench store --json store.json\n"
    "  scripts/with_npu_emulator.sh build/release/bin/mooncake_bench tier --json tier.json\n\n"
    "Subcommands:\n"
    "  store      put and get in one process and between two, beside memmove (and iperf3 when it is installed), and\n"
    "             look-ups at the master; takes about a minute, uses 127.0.0.1 only\n"
    "  tier       blocks and copies of NPU and DRAM tiers; needs two NPU devices, real or emulated. The emulator then "
    "runs\n"
    "             its time model 'bench' unless ACLEMU_* variables say otherwise, and figures stand beside that model\n"
    "  transfer, bridge    not built yet\n\n"
    "The JSON file: {\"version\":1, \"host\":{...}, \"results\":[{\"name\", \"value\", \"unit\", \"min\", \"max\", "
    "\"n\", "
    "\"against\"}]};\nvalue is the median of n runs, a ratio's pairs are measured in the same run.\n\n"
    "Exit code: 0 measured; 1 a measurement failed; 2 wrong usage.";

int WrongUsage(const std::string& reason) {
  fmt::print(stderr, "{}: {}; see --help\n", kProgram, reason);
  return 2;
}

bool WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.close();
  return file.good();
}

// Shows which step runs, on a terminal.
std::function<void(const std::string&)> StepPrinter() {
  if (isatty(STDERR_FILENO) != 1) return nullptr;
  return [](const std::string& step) {
    fmt::print(stderr, "\r\033[K{}", step);
    std::fflush(stderr);
  };
}

// Prints the figures, writes the file; the program's exit code.
template <typename BenchResult>
int Report(const Result<BenchResult>& result) {
  if (isatty(STDERR_FILENO) == 1) fmt::print(stderr, "\r\033[K");
  if (!result) return daemon::Fail(kProgram, result.error());
  fmt::print("{}", ReportTable(result->host, result->figures));
  if (!FLAGS_json.empty() && !WriteFile(FLAGS_json, ReportJson(result->host, result->figures)))
    return daemon::Fail(kProgram, fmt::format("--json {}: {}", FLAGS_json, std::strerror(errno)));
  return 0;
}

int Store() {
  return Report(RunStoreBench({.runs = FLAGS_runs, .quick = FLAGS_quick, .on_step = StepPrinter()}));
}

int Tier() {
  if (FLAGS_threads < 1 || FLAGS_threads > 64) return WrongUsage(fmt::format("--threads {}: 1 to 64", FLAGS_threads));
  PrepareEmulator();
  return Report(
      RunTierBench({.runs = FLAGS_runs, .threads = FLAGS_threads, .quick = FLAGS_quick, .on_step = StepPrinter()}));
}

// Started by `store` with pipes as stdin and stdout.
int ServePeer(std::string_view capacity) {
  uint64_t bytes = 0;
  const auto [end, error] = std::from_chars(capacity.data(), capacity.data() + capacity.size(), bytes);
  if (error != std::errc() || end != capacity.data() + capacity.size() || bytes == 0)
    return WrongUsage(fmt::format("'{}' is no capacity", capacity));
  const auto served = ServeAsPeer(bytes);
  return served ? 0 : daemon::Fail(kProgram, served.error());
}

}  // namespace

int main(int argc, char** argv) {
  log::SetLevel(log::Level::kWarn);
  const std::string command = argc > 1 && argv[1][0] != '-' ? argv[1] : "";
  if (command == "serve-as-peer" && argc == 3) return ServePeer(argv[2]);
  if (!command.empty()) {
    --argc;
    argv[1] = argv[0];
    ++argv;
  }
  daemon::ParseFlags(argc, argv, kProgram, kUsage, env::All());
  if (FLAGS_runs < 1) return WrongUsage(fmt::format("--runs {}: write a number above 0", FLAGS_runs));
  if (command == "store") return Store();
  if (command == "tier") return Tier();
  if (command == "transfer" || command == "bridge") {
    fmt::print(stderr, "{}: '{}' is not built yet\n", kProgram, command);
    return 2;
  }
  return WrongUsage(command.empty() ? "no subcommand" : fmt::format("unknown subcommand '{}'", command));
}
