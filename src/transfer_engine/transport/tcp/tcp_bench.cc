// Latency and throughput of the tcp transport between two processes over loopback, beside iperf3 when there is one.
// tcp_bench [name=value ...]: lanes, chunk, window, lend, threads, depth, seconds, rounds.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <map>
#include <thread>

#include "common/memfd.h"
#include "transfer_engine/transport/tcp/tcp_test_util.h"

namespace mooncake::tcp {
namespace {

constexpr size_t kMemory = 64 << 20;

struct Settings {
  TcpOptions tcp;
  size_t threads = 2;
  size_t depth = 4;
  double seconds = 0.5;
  int rounds = 3;
};

// What the child tells its parent.
struct Offer {
  Uuid generation;
  uint16_t port;
  uint64_t address;
  uint64_t key;
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// As the engine allocates it; lives as long as the process.
std::span<std::byte> Memory() {
  static const auto memfd = CreateMemfd("tcp_bench", kMemory, 0);
  if (!memfd) std::exit(1);
  auto* const base = static_cast<std::byte*>(MapMemfd(memfd->get(), kMemory, 0));
  if (base == MAP_FAILED || PopulateMemfd(base, memfd->get(), 0, kMemory) != 0) std::exit(1);
  return {base, kMemory};
}

[[noreturn]] void Serve(int pipe_end, const Settings& settings) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  static const std::span<std::byte> memory = Memory();
  static Node node(settings.tcp, settings.threads);
  const auto region = node.Register(memory);
  const Offer offer{node.generation(), node.transport().port(), region->address, region->published.key};
  if (write(pipe_end, &offer, sizeof(offer)) != sizeof(offer)) std::exit(1);
  for (;;) pause();
}

class Bench {
 public:
  Bench(const Settings& settings, const Offer& offer) : settings_(settings), node_(settings.tcp, settings.threads) {
    auto target = std::make_shared<SegmentDescriptor>();
    target->generation = offer.generation;
    target->tcp_data = {"127.0.0.1", offer.port};
    job_.target = target;
    job_.region = {.address = offer.address, .length = kMemory, .key = offer.key};
    job_.deadline = Soon(std::chrono::hours(1));
  }

  void Latency(TransferOpcode opcode, size_t bytes, const char* beside = "", int count = 20'000) {
    std::vector<double> micros;
    const int warm_up = count / 10;
    for (int i = 0; i < warm_up + count; ++i) {
      Job job = At(opcode, i, bytes);
      const double start = Now();
      if (const auto result = RunJob(node_.transport(), job); !result) Die(result);
      if (i >= warm_up) micros.push_back(1e6 * (Now() - start));
    }
    std::sort(micros.begin(), micros.end());
    std::printf("%s %zu B one at a time%s: p50 %.1f us, p99 %.1f us\n", Word(opcode), bytes, beside,
                micros[micros.size() / 2], micros[micros.size() * 99 / 100]);
  }

  // How long a small read takes while 16 MiB requests keep every connection busy.
  void LatencyUnderLoad(TransferOpcode load) {
    std::atomic<bool> stop{false};
    Results chains(settings_.depth);
    std::atomic<size_t> index{0};
    std::function<void(size_t)> next = [&](size_t chain) {
      Submit(node_.transport(), At(load, index++, 16 << 20).With([&, chain](Result<void> result) {
        if (!result) Die(result);
        stop ? chains.At(chain)({}) : next(chain);
      }));
    };
    for (size_t chain = 0; chain < settings_.depth; ++chain) next(chain);
    Latency(TransferOpcode::kRead, 4096,
            load == TransferOpcode::kRead ? " beside 16 MiB reads" : " beside 16 MiB writes", 500);
    stop = true;
    chains.Wait();
  }

  double Throughput(TransferOpcode opcode, size_t bytes, size_t depth) {
    std::atomic<uint64_t> moved{0};
    std::atomic<size_t> index{0};
    const double start = Now();
    const double end = start + settings_.seconds;
    Results chains(depth);
    std::function<void(size_t)> next = [&](size_t chain) {
      Submit(node_.transport(), At(opcode, index++, bytes).With([&, chain](Result<void> result) {
        if (!result) Die(result);
        moved += bytes;
        Now() < end ? next(chain) : chains.At(chain)({});
      }));
    };
    for (size_t chain = 0; chain < depth; ++chain) next(chain);
    chains.Wait();
    return 1e-9 * static_cast<double>(moved.load()) / (Now() - start);
  }

 private:
  static const char* Word(TransferOpcode opcode) { return opcode == TransferOpcode::kRead ? "read" : "write"; }
  static void Die(const Result<void>& result) {
    std::fprintf(stderr, "%s\n", result.error().ToString().c_str());
    std::exit(1);
  }
  // The same few megabytes over and over: as hot as the one buffer of iperf3 lets them be.
  Job At(TransferOpcode opcode, size_t index, size_t bytes) {
    const size_t offset = index * bytes % std::max<size_t>(bytes, 4 << 20);
    Job job = job_;
    job.opcode = opcode;
    job.local = memory_.subspan(offset, bytes);
    job.address = job_.region.address + offset;
    return job;
  }

  const Settings settings_;
  Node node_;
  Job job_;
  const std::span<std::byte> memory_ = Memory();
};

// GB/s, or 0 without iperf3.
double Iperf(double seconds) {
  const std::string command =
      "iperf3 -s -1 -p 15599 >/dev/null 2>&1 & sleep 0.3; iperf3 -c 127.0.0.1 -p 15599 -C cubic -l 1M -f m -t " +
      std::to_string(std::max(1, static_cast<int>(seconds))) + " 2>/dev/null | awk '/receiver/ {print $7}'; wait";
  FILE* out = popen(command.c_str(), "r");
  double megabits = 0;
  if (out != nullptr) {
    if (std::fscanf(out, "%lf", &megabits) != 1) megabits = 0;
    pclose(out);
  }
  return megabits / 8e3;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int Main(const Settings& settings) {
  int ends[2];
  if (pipe(ends) != 0) return 1;
  const pid_t child = fork();
  if (child == 0) Serve(ends[1], settings);
  Offer offer;
  if (read(ends[0], &offer, sizeof(offer)) != sizeof(offer)) return 1;
  {
    Bench bench(settings, offer);
    for (const auto opcode : {TransferOpcode::kRead, TransferOpcode::kWrite}) bench.Latency(opcode, 4096);
    for (const auto load : {TransferOpcode::kRead, TransferOpcode::kWrite}) bench.LatencyUnderLoad(load);
    std::map<std::string, std::vector<double>> rates;
    for (int round = 0; round < settings.rounds; ++round) {
      rates["iperf3 -l 1M"].push_back(Iperf(settings.seconds));
      for (const size_t bytes : {size_t{1} << 20, size_t{16} << 20}) {
        const std::string size = std::to_string(bytes >> 20) + " MiB";
        rates["read " + size].push_back(bench.Throughput(TransferOpcode::kRead, bytes, settings.depth));
        rates["write " + size].push_back(bench.Throughput(TransferOpcode::kWrite, bytes, settings.depth));
      }
      rates["read 4 KiB x64"].push_back(bench.Throughput(TransferOpcode::kRead, 4096, 64));
      rates["write 4 KiB x64"].push_back(bench.Throughput(TransferOpcode::kWrite, 4096, 64));
    }
    const double reference = Median(rates["iperf3 -l 1M"]);
    for (const auto& [name, values] : rates) {
      std::printf("%-16s %.2f GB/s", name.c_str(), Median(values));
      if (reference > 0) std::printf("  (%.2f of iperf3)", Median(values) / reference);
      std::printf("\n");
    }
  }
  kill(child, SIGTERM);
  waitpid(child, nullptr, 0);
  return 0;
}

}  // namespace
}  // namespace mooncake::tcp

int main(int argc, char** argv) {
  mooncake::tcp::Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    if (equals == std::string::npos) return 2;
    const std::string name = argument.substr(0, equals);
    const double value = std::stod(argument.substr(equals + 1));
    const auto whole = static_cast<size_t>(value);
    if (name == "lanes") settings.tcp.lanes_per_peer = whole;
    if (name == "chunk") settings.tcp.chunk_bytes = whole;
    if (name == "window") settings.tcp.window_bytes = whole;
    if (name == "lend") settings.tcp.lend_bytes = whole;
    if (name == "threads") settings.threads = whole;
    if (name == "depth") settings.depth = whole;
    if (name == "seconds") settings.seconds = value;
    if (name == "rounds") settings.rounds = static_cast<int>(value);
  }
  return mooncake::tcp::Main(settings);
}
