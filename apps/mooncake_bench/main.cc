// mooncake_bench: figures of the store beside yardsticks measured in the same run. Composition root.
#include <fmt/format.h>
#include <gflags/gflags.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "bench/bridge_bench.h"
#include "bench/emulator.h"
#include "bench/store_bench.h"
#include "bench/tier_bench.h"
#include "bench/transfer_bench.h"
#include "common/byte_size.h"
#include "common/log.h"
#include "daemon/daemon.h"

DEFINE_string(json, "", "write the figures to this file as well");
DEFINE_int32(runs, 11, "repetitions; the median counts");
DEFINE_int32(threads, 2, "tier: threads of the figures that use several; transfer: threads that transfer (default 1)");
DEFINE_string(size, "", "transfer: bytes of a request, '64KB,1MB'; default: the fixed set");
DEFINE_string(protocol, "", "transfer: tcp, samehost, rdma; several with commas; default: those of this host");
DEFINE_string(op, "", "transfer: read, write; default: both");
DEFINE_int32(batch, 0, "transfer: requests of a call; 0: as many as make 64 MB, one of up to 64 KB");
DEFINE_string(percentiles, "", "transfer: of the time of a call, '50,99.9'; default: 50,99");
DEFINE_bool(quick, false, "tiny sizes: shows that everything runs, the figures mean nothing");

namespace {

using namespace mooncake;
using namespace mooncake::bench;

constexpr const char* kProgram = "mooncake_bench";
constexpr const char* kUsage =
    "mooncake_bench SUBCOMMAND [flags] measures a part of the store beside a yardstick, pair by pair in one run.\n\n"
    "  mooncake_bench store --json store.json\n"
    "  scripts/with_npu_emulator.sh build/release/bin/mooncake_bench tier --json tier.json\n"
    "  scripts/with_npu_emulator.sh build/release/bin/mooncake_bench bridge --json bridge.json\n\n"
    "Subcommands:\n"
    "  store      put and get in one process and between two, beside memmove (and iperf3 when it is installed), and\n"
    "             look-ups at the master; takes about a minute, uses 127.0.0.1 only\n"
    "  tier       blocks and copies of NPU and DRAM tiers; needs two NPU devices, real or emulated. The emulator then "
    "runs\n"
    "             its time model 'bench' unless ACLEMU_* variables say otherwise, and figures stand beside that model\n"
    "  transfer   the transfer engine between two processes: over TCP beside iperf3, within the host beside memmove, "
    "and\n"
    "             over RDMA beside ib_write_bw and ib_read_bw when there is a device; takes about two minutes\n"
    "  bridge     transfers between NPU memory and a host transport through the bridge, beside copy-then-send: by size "
    "and\n"
    "             ring, of 4 KiB alone and under a stream, processor time, slots; over a wire at the copies' rate, "
    "beside "
    "the\n"
    "             throughput model, and in the emulator's virtual time; needs one NPU device, takes about two "
    "minutes\n\n"
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

int Bridge() {
  PrepareEmulator();
  return Report(RunBridgeBench({.runs = FLAGS_runs, .quick = FLAGS_quick, .on_step = StepPrinter()}));
}

std::vector<std::string> Words(const std::string& list) {
  std::vector<std::string> words;
  for (size_t at = 0; !list.empty() && at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    words.push_back(list.substr(at, comma - at));
    at = comma + 1;
  }
  return words;
}

Result<TransferBenchOptions> TransferOptions() {
  TransferBenchOptions options{
      .runs = FLAGS_runs, .quick = FLAGS_quick, .batch = FLAGS_batch, .on_step = StepPrinter()};
  options.protocols = Words(FLAGS_protocol);
  options.operations = Words(FLAGS_op);
  if (!gflags::GetCommandLineFlagInfoOrDie("threads").is_default) options.threads = FLAGS_threads;
  for (const std::string& word : Words(FLAGS_size)) {
    const auto bytes = ParseByteSize(word);
    if (!bytes) return Annotate(bytes.error(), "--size");
    options.sizes.push_back(*bytes);
  }
  for (const std::string& word : Words(FLAGS_percentiles)) {
    double value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size())
      return Error(ErrorCode::INVALID_PARAMS, "--percentiles '{}' is no number", word);
    options.percentiles.push_back(value);
  }
  MC_TRY(CheckTransferBench(options));
  return options;
}

int Transfer() {
  const auto options = TransferOptions();
  if (!options) return WrongUsage(options.error().message());
  return Report(RunTransferBench(*options));
}

// Started by `transfer` and `store` with pipes as stdin and stdout.
template <typename Serve>
int ServeBytes(std::string_view capacity, const Serve& serve) {
  uint64_t bytes = 0;
  const auto [end, error] = std::from_chars(capacity.data(), capacity.data() + capacity.size(), bytes);
  if (error != std::errc() || end != capacity.data() + capacity.size() || bytes == 0)
    return WrongUsage(fmt::format("'{}' is no capacity", capacity));
  const Result<void> served = serve(bytes);
  return served ? 0 : daemon::Fail(kProgram, served.error());
}

}  // namespace

int main(int argc, char** argv) {
  log::SetLevel(log::Level::kWarn);
  const std::string command = argc > 1 && argv[1][0] != '-' ? argv[1] : "";
  if (command == "serve-as-peer" && argc == 3) return ServeBytes(argv[2], ServeAsPeer);
  if (command == "serve-as-target" && argc == 4) {
    const bool rdma = argv[3] == std::string_view("rdma");
    return ServeBytes(argv[2], [&](uint64_t bytes) { return ServeAsTarget(bytes, rdma); });
  }
  if (command == "measure-in-virtual-time" && argc == 4) {
    const Result<void> served = ServeVirtualTime(std::atoi(argv[2]), argv[3] == std::string_view("quick"));
    return served ? 0 : daemon::Fail(kProgram, served.error());
  }
  if (!command.empty()) {
    --argc;
    argv[1] = argv[0];
    ++argv;
  }
  daemon::ParseFlags(argc, argv, kProgram, kUsage, env::All());
  if (FLAGS_runs < 1) return WrongUsage(fmt::format("--runs {}: write a number above 0", FLAGS_runs));
  if (command == "store") return Store();
  if (command == "tier") return Tier();
  if (command == "transfer") return Transfer();
  if (command == "bridge") return Bridge();
  return WrongUsage(command.empty() ? "no subcommand" : fmt::format("unknown subcommand '{}'", command));
}
