// mooncake_replay: plays a request trace against a running cluster. Composition root.
#include <fmt/format.h>
#include <gflags/gflags.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>

#include "common/byte_size.h"
#include "common/log.h"
#include "daemon/daemon.h"
#include "replay/progress.h"
#include "replay/summary.h"

DEFINE_string(trace, "", "the trace: a file with one JSON request a line (required)");
DEFINE_string(master_server_address, "127.0.0.1:50051", "host:port of the master, or etcd://host:port[;host:port...]");
DEFINE_string(host, "", "own host name, as peers see it; default: the address that faces the master");
DEFINE_uint64(bytes_per_token, 512, "a block is 512 tokens of so many bytes");
DEFINE_double(speed, 0, "0: as fast as possible; 1: at the trace's own times; 2: twice as fast");
DEFINE_uint64(requests, 0, "play only the first so many requests; 0: all");
DEFINE_string(json, "", "write all numbers to this file as well");
DEFINE_bool(verify, true, "compare every byte read with what was put");
DEFINE_string(
    key_prefix, "",
    "what keys begin with; default: unique, so that blocks of earlier runs are not found (give the same prefix "
    "to several runs to play against a warm cache)");

namespace {

using namespace mooncake;
using namespace mooncake::replay;

constexpr const char* kProgram = "mooncake_replay";
constexpr const char* kUsage =
    "mooncake_replay plays a trace of LLM requests against a running cluster, as an inference engine would use it: "
    "for\n"
    "each request it looks up the longest cached prefix, gets its blocks, checks every byte and puts the missing "
    "ones.\n"
    "It lends no memory itself. At the end it prints the hit ratio beside that of an ideal LRU cache of the same "
    "size.\n\n"
    "  mooncake_master --rpc_address 127.0.0.1 &\n"
    "  mooncake_client --host 127.0.0.1 --tiered_backend_config \\\n"
    "    '{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":\"1GB\",\"priority\":10}]}' &\n"
    "  mooncake_replay --trace examples/conversation_trace_500.jsonl --bytes_per_token 512 --json result.json\n\n"
    "A line of the trace: {\"timestamp\": 27, \"input_length\": 1031, \"output_length\": 45, \"hash_ids\": [0, 1, 2]}\n"
    "(milliseconds since the start; lengths in tokens; equal ids are equal blocks of 512 tokens).\n\n"
    "Exit code: 0 every byte read was right; 1 wrong bytes, or the cluster was lost on the way; 2 it could not begin;\n"
    "130 ended by a signal (the summary so far is printed).";

constexpr Duration kMasterWait = std::chrono::seconds(3);
// Owners tell the master about their tiers once a second.
constexpr Duration kTierReport = std::chrono::milliseconds(1500);
constexpr uint64_t kMaxBlockBytes = uint64_t{1} << 30;

int CannotBegin(const Status& status) {
  fmt::print(stderr, "{}: {}\n", kProgram, status.message());
  return 2;
}

// SIGINT and SIGTERM, noticed between requests. After the first one the next kills as usual.
class StopSignal {
 public:
  StopSignal() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    fd_ = signalfd(-1, &set, SFD_CLOEXEC);
    MC_CHECK(fd_ >= 0, "signalfd: {}", std::strerror(errno));
  }
  ~StopSignal() { close(fd_); }
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // Waits until `time`, or not at all when it is past. A signal ends the wait, later waits are whole again; false when
  // one has come.
  bool WaitUntil(TimePoint time) {
    for (;;) {
      const auto left = std::max(Duration::zero(), time - SteadyClock::Instance().Now());
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
      const timespec timeout{seconds.count(), (left - seconds).count()};
      pollfd poll{fd_, POLLIN, 0};
      const int ready = ppoll(&poll, 1, &timeout, nullptr);
      if (ready > 0) Take();
      if (ready >= 0) return !stopped_;
    }
  }

 private:
  void Take() {
    signalfd_siginfo info;
    if (read(fd_, &info, sizeof(info)) != sizeof(info)) return;
    stopped_ = true;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  }

  int fd_ = -1;
  bool stopped_ = false;
};

Result<ReplayOptions> OptionsFromFlags() {
  if (FLAGS_trace.empty())
    return Error(ErrorCode::INVALID_PARAMS, "--trace FILE is required (--help shows an example)");
  if (!std::isfinite(FLAGS_speed) || FLAGS_speed < 0)
    return Error(ErrorCode::INVALID_PARAMS, "--speed {}: write 0 or a factor above 0", FLAGS_speed);
  if (FLAGS_bytes_per_token == 0 || FLAGS_bytes_per_token > kMaxBlockBytes / kTokensPerBlock) {
    return Error(ErrorCode::INVALID_PARAMS, "--bytes_per_token {}: write 1 to {}", FLAGS_bytes_per_token,
                 kMaxBlockBytes / kTokensPerBlock);
  }
  ReplayOptions options;
  options.block_bytes = FLAGS_bytes_per_token * kTokensPerBlock;
  options.verify = FLAGS_verify;
  options.key_prefix =
      FLAGS_key_prefix.empty() ? fmt::format("replay/{:016x}/", Uuid::Random().first) : FLAGS_key_prefix;
  return options;
}

Result<std::unique_ptr<RealClient>> Connect() {
  RealClientOptions options;
  options.local_hostname = FLAGS_host;
  options.master = MC_TRY(MasterAddress::Parse(FLAGS_master_server_address));
  options.master_wait = kMasterWait;
  options.require_master = true;
  return RealClient::Open(std::move(options));
}

// Plays requests until the end, a signal or a lost cluster.
Result<void> PlayAll(Replayer& replayer, const std::vector<TraceRequest>& trace, StopSignal& stop, Progress& progress) {
  const TimePoint start = SteadyClock::Instance().Now();
  for (const TraceRequest& request : trace) {
    TimePoint due = start;
    if (FLAGS_speed > 0)
      due += std::chrono::duration_cast<Duration>(
          std::chrono::duration<double, std::milli>(request.timestamp_ms / FLAGS_speed));
    if (!stop.WaitUntil(due)) return {};
    MC_TRY(replayer.Play(request));
    progress.Update(replayer.counts());
  }
  return {};
}

void AnnounceStart(const std::vector<TraceRequest>& trace, const ReplayOptions& options, uint64_t capacity_blocks) {
  uint64_t blocks = 0;
  for (const auto& request : trace) blocks += request.block_ids.size();
  fmt::print(stderr, "{}: {} requests, {} blocks of {}, against a cluster that holds {} blocks\n", kProgram,
             trace.size(), blocks, FormatBytes(options.block_bytes), capacity_blocks);
}

Result<void> WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.close();
  if (file) return {};
  return Error(ErrorCode::INVALID_PARAMS, "--json {}: {}", path, std::strerror(errno));
}

// A path that cannot be written should not cost a whole run first. An existing file is left as it is until the end.
Result<void> CheckWritable(const std::string& path) {
  if (path.empty() || std::ofstream(path, std::ios::app)) return {};
  return Error(ErrorCode::INVALID_PARAMS, "--json {}: {}", path, std::strerror(errno));
}

int Report(Summary& summary, const Result<void>& played) {
  fmt::print("{}", SummaryTable(summary));
  std::fflush(stdout);
  int code = 0;
  if (!FLAGS_json.empty()) {
    if (auto written = WriteFile(FLAGS_json, SummaryJson(summary)); !written) code = CannotBegin(written.error());
  }
  if (summary.interrupted) code = 130;
  if (!played) {
    fmt::print(stderr, "{}: {}\n", kProgram, played.error().ToString());
    code = 1;
  }
  return summary.counts.verification_errors > 0 ? 1 : code;
}

int Run() {
  const auto options = OptionsFromFlags();
  if (!options) return CannotBegin(options.error());
  const auto trace = LoadTrace(FLAGS_trace, FLAGS_requests);
  if (!trace) return CannotBegin(trace.error());
  if (const auto writable = CheckWritable(FLAGS_json); !writable) return CannotBegin(writable.error());
  const auto client = Connect();
  if (!client) return CannotBegin(client.error());
  const auto before = (*client)->ListClients();
  if (!before) return CannotBegin(before.error());
  const uint64_t capacity = CapacityBlocks(*before, options->block_bytes);
  if (capacity == 0) {
    fmt::print(stderr, "{}: no client of {} has a tier that holds a block of {} B: start a mooncake_client first\n",
               kProgram, FLAGS_master_server_address, options->block_bytes);
    return 2;
  }

  AnnounceStart(*trace, *options, capacity);
  StopSignal stop;
  Progress progress(stderr, isatty(fileno(stderr)) == 1, trace->size());
  Replayer replayer(**client, *options, IdealLru(capacity),
                    [&progress](const std::string& line) { progress.Interrupt(line); });
  const TimePoint start = SteadyClock::Instance().Now();
  const auto played = PlayAll(replayer, *trace, stop, progress);
  const TimePoint end = SteadyClock::Instance().Now();
  progress.Finish();

  Summary summary{.trace = FLAGS_trace, .requests_total = trace->size(), .options = *options, .speed = FLAGS_speed};
  summary.counts = replayer.counts();
  summary.interrupted = summary.counts.requests < trace->size();
  summary.seconds = std::chrono::duration<double>(end - start).count();
  summary.ideal_capacity_blocks = capacity;
  summary.ideal_hit_ratio = replayer.ideal().HitRatio();
  (void)stop.WaitUntil(end + kTierReport);
  auto after = (*client)->ListClients();
  if (!after)
    fmt::print(stderr, "{}: the tiers below are those of the start: {}\n", kProgram, after.error().ToString());
  summary.tiers = CompareTiers(*before, after ? *after : *before);
  return Report(summary, played);
}

}  // namespace

int main(int argc, char** argv) {
  daemon::ParseFlags(argc, argv, kProgram, kUsage, {});
  daemon::BlockSignals();
  log::SetLevel(log::Level::kWarn);
  return Run();
}
