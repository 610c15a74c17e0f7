// The measurements of `mooncake_bench transfer`.
#include "bench/transfer_bench.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>

#include "bench/child.h"
#include "bench/iperf.h"
#include "bench/perftest.h"
#include "bench/plain_stream.h"
#include "common/env.h"
#include "transfer_engine/topology.h"
#include "transfer_engine/transfer_engine.h"
#include "transfer_engine/transport/tcp/tcp_socket.h"

namespace mooncake::bench {
namespace {

constexpr size_t kKiB = 1 << 10;
constexpr size_t kMiB = 1 << 20;
constexpr const char* kLoopback = "127.0.0.1";
constexpr size_t kBatchBytes = 16 * kMiB;  // of one call
constexpr size_t kSmall = 64 * kKiB;       // up to here a call is one request: latency counts
constexpr Duration kStartBudget = std::chrono::seconds(30);
constexpr Duration kCallBudget = std::chrono::seconds(30);

// One figure's shape.
struct Case {
  std::string protocol;  // "tcp", "samehost", "rdma"
  std::string operation;
  size_t bytes = 0;
  size_t batch = 1;

  TransferOpcode opcode() const { return operation == "read" ? TransferOpcode::kRead : TransferOpcode::kWrite; }
  bool small() const { return bytes <= kSmall; }
  // "transfer.tcp_read_1m"
  std::string Name() const { return fmt::format("transfer.{}_{}_{}", protocol, operation, SizeName()); }
  std::string SizeName() const {
    if (bytes % kMiB == 0) return fmt::format("{}m", bytes / kMiB);
    if (bytes % kKiB == 0) return fmt::format("{}k", bytes / kKiB);
    return std::to_string(bytes);
  }
};

struct Measured {
  double gbps = 0;
  std::vector<double> call_us;
};

// An engine of this process, and the other process's memory as it sees it.
struct Side {
  std::unique_ptr<TransferEngine> engine;
  SegmentId target = kInvalidSegment;
  HostRange local;  // memory that the engine has registered
};

Result<TransferEngineOptions> OptionsFor(const std::string& protocol) {
  TransferEngineOptions options = MC_TRY(TransferEngineOptionsFromEnvironment());
  options.local_name = kLoopback;
  options.protocols = {protocol == "rdma" ? "rdma" : "tcp"};
  options.strict_protocol = true;
  options.force_tcp = protocol == "tcp";
  options.same_host = protocol == "samehost";
  return options;
}

// What data connections on this host use, and iperf3 then uses as well. Told to both processes in so many words.
std::string ChooseCongestion() {
  std::string chosen = env::Get(env::kTcpCongestion).value_or("");
  if (chosen.empty()) chosen = tcp::CheckCongestion("cubic") ? "cubic" : "reno";
  setenv(env::kTcpCongestion.name, chosen.c_str(), /*overwrite=*/1);
  return chosen;
}

std::vector<std::string> DevicesOfHost() {
  const auto topology = Topology::Discover();
  return topology ? topology->devices() : std::vector<std::string>{};
}

class TransferBench {
 public:
  TransferBench(const TransferBenchOptions& options, Host host) : options_(options), host_(std::move(host)) {
    devices_ = DevicesOfHost();
    MakeCases();
    for (const Case& one : cases_) slice_bytes_ = std::max(slice_bytes_, WorkingSet(one));
  }

  Result<TransferBenchResult> Run() {
    // All before the first thread of this process.
    host_.tcp_congestion = ChooseCongestion();
    Child peer = MC_TRY(
        Child::Start({options_.self, "serve-as-target", std::to_string(Capacity()), Uses("rdma") ? "rdma" : "tcp"}));
    if (Uses("tcp")) iperf_ = MC_TRY(Iperf::Start());
    host_.iperf3 = !Uses("tcp") ? "not needed" : iperf_ ? "used" : "not installed: figures against it are left out";
    has_perftest_ = Uses("rdma") && MC_TRY(HasPerftest());
    std::istringstream line(MC_TRY(peer.ReadLine(Deadline::After(kStartBudget))));
    std::string word;
    if (!(line >> word >> peer_name_ >> peer_address_) || word != "ready")
      return Error(ErrorCode::INTERNAL_ERROR, "the second process did not say that it is ready");
    for (const char* protocol : {"tcp", "samehost", "rdma"}) {
      if (Uses(protocol)) MC_TRY(RunProtocol(protocol));
    }
    return TransferBenchResult{host_, figures_.Take()};
  }

 private:
  bool Uses(const std::string& protocol) const {
    return std::any_of(cases_.begin(), cases_.end(), [&](const Case& one) { return one.protocol == protocol; });
  }
  size_t Capacity() const { return slice_bytes_ * static_cast<size_t>(options_.threads); }

  void MakeCases() {
    auto protocols = options_.protocols;
    if (protocols.empty()) protocols = {"tcp", "samehost"};
    if (options_.protocols.empty() && !devices_.empty()) protocols.emplace_back("rdma");
    auto operations = options_.operations;
    if (operations.empty()) operations = {"read", "write"};
    for (const std::string& protocol : protocols) {
      auto sizes = options_.sizes;
      if (sizes.empty()) sizes = {4 * kKiB, kMiB};
      if (options_.sizes.empty() && protocol == "tcp") sizes.push_back(16 * kMiB);
      for (const size_t bytes : sizes) {
        size_t batch = static_cast<size_t>(options_.batch);
        if (batch == 0) batch = bytes <= kSmall ? 1 : std::max<size_t>(1, kBatchBytes / bytes);
        for (const std::string& operation : operations) cases_.push_back({protocol, operation, bytes, batch});
      }
    }
  }

  // A thread's part of the memory on each side. Copies are measured beyond four times the cache; over a wire each
  // request uses the same memory, as iperf3 and perftest do.
  size_t WorkingSet(const Case& one) const {
    if (one.protocol != "samehost" || options_.quick) return std::max(one.bytes, kMiB);
    const size_t least = std::max<size_t>(4 * host_.llc_bytes, 64 * kMiB);
    return (least + one.bytes - 1) / one.bytes * one.bytes;
  }

  Result<Side> OpenSide(const std::string& protocol) {
    Side side;
    TransferEngineOptions options = MC_TRY(OptionsFor(protocol));
    side.engine = MC_TRY(TransferEngine::Open(std::move(options)));
    side.target = MC_TRY(side.engine->OpenSegment(peer_name_));
    auto* const memory = static_cast<std::byte*>(MC_TRY(side.engine->AllocateMemory(Capacity())));
    std::memset(memory, 1, Capacity());
    side.local = {memory, Capacity()};
    return side;
  }

  Result<void> RunProtocol(const std::string& protocol) {
    const Side side = MC_TRY(OpenSide(protocol));
    std::optional<Side> other;  // the same kind of memory, to copy from and to
    if (protocol == "samehost") other = MC_TRY(OpenSide(protocol));
    for (const Case& one : cases_) {
      if (one.protocol != protocol) continue;
      (void)MC_TRY(Measure(side, one));  // connects, maps
      for (int run = 0; run < options_.runs; ++run) {
        if (options_.on_step) options_.on_step(fmt::format("{}: run {} of {}", one.Name(), run + 1, options_.runs));
        MC_TRY(RunCase(side, one, other ? other->local : HostRange{}));
      }
    }
    return {};
  }

  Result<void> RunCase(const Side& side, const Case& one, HostRange other) {
    std::optional<double> yardstick;
    if (!one.small()) yardstick = MC_TRY(Yardstick(side, one, other));
    const Measured measured = MC_TRY(Measure(side, one));
    const std::string name = one.Name();
    figures_.Record(name + "_gbps", measured.gbps, "GB/s");
    for (const double percentile : Percentiles())
      figures_.Record(fmt::format("{}{}_p{:g}_us", name, one.batch > 1 ? "_call" : "", percentile),
                      Quantile(measured.call_us, percentile / 100), "us");
    if (yardstick) {
      const char* const against = AgainstOf(one.protocol);
      figures_.Record(fmt::format("transfer.{}_{}_gbps", against, one.SizeName()), *yardstick, "GB/s");
      figures_.Record(fmt::format("{}_vs_{}", name, against), measured.gbps / *yardstick, "ratio", against);
    }
    if (one.protocol == "tcp" && one.bytes > kMiB) {
      const double stream = MC_TRY(PlainStreamGbps(side, one));
      figures_.Record(fmt::format("transfer.stream_{}_gbps", one.SizeName()), stream, "GB/s");
      figures_.Record(name + "_vs_stream", measured.gbps / stream, "ratio", "plain TCP stream");
    }
    RecordFixed(one, measured, yardstick);
    return {};
  }

  std::vector<double> Percentiles() const {
    return options_.percentiles.empty() ? std::vector<double>{50, 99} : options_.percentiles;
  }

  // Names without a direction are those of reads.
  void RecordFixed(const Case& one, const Measured& measured, std::optional<double> yardstick) {
    if (one.operation != "read" || options_.threads != 1) return;
    if (one.protocol == "tcp" && one.bytes == 4 * kKiB && one.batch == 1)
      figures_.Record("transfer.tcp_4k_p50_us", Quantile(measured.call_us, 0.5), "us");
    if (one.protocol == "samehost" && one.bytes == kMiB && yardstick)
      figures_.Record("transfer.samehost_1m_vs_memmove", measured.gbps / *yardstick, "ratio", "memmove");
  }

  static const char* AgainstOf(const std::string& protocol) {
    if (protocol == "tcp") return "iperf3";
    return protocol == "rdma" ? "perftest" : "memmove";
  }

  // GB/s, or nothing when its program is not installed.
  Result<std::optional<double>> Yardstick(const Side& side, const Case& one, HostRange other) {
    if (one.protocol == "samehost") return MemmoveGbps(side, one, other);
    if (one.protocol == "tcp") {
      if (!iperf_) return std::nullopt;
      return MC_TRY(iperf_->Measure(host_.tcp_congestion));
    }
    if (!has_perftest_) return std::nullopt;
    const auto direction = one.operation == "read" ? PerftestDirection::kRead : PerftestDirection::kWrite;
    return MC_TRY(MeasurePerftest(direction, devices_.front(), one.bytes, options_.quick ? 20 : 500));
  }

  Result<double> PlainStreamGbps(const Side& side, const Case& one) const {
    std::vector<std::byte> received(one.bytes, std::byte{1});
    return MeasurePlainStream({side.local.data(), one.bytes}, received, CallsFor(one, 1) * one.batch,
                              host_.tcp_congestion);
  }

  // One thread, the local addresses and the order of the transfers.
  double MemmoveGbps(const Side& side, const Case& one, HostRange other) const {
    const size_t set = WorkingSet(one);
    const double seconds = Seconds([&] {
      for (size_t at = 0; at + one.bytes <= set; at += one.bytes) {
        const bool read = one.opcode() == TransferOpcode::kRead;
        std::memmove((read ? side.local : other).data() + at, (read ? other : side.local).data() + at, one.bytes);
      }
    });
    const size_t moved = set / one.bytes * one.bytes;
    return static_cast<double>(moved) / 1e9 / seconds;
  }

  Result<Measured> Measure(const Side& side, const Case& one) const {
    const auto count = static_cast<size_t>(options_.threads);
    std::vector<Result<std::vector<double>>> results(count);
    const auto work = [&](size_t thread) { results[thread] = Calls(side, one, thread * slice_bytes_); };
    const double seconds = Seconds([&] {
      std::vector<std::thread> threads;
      for (size_t thread = 1; thread < count; ++thread) threads.emplace_back(work, thread);
      work(0);
      for (std::thread& thread : threads) thread.join();
    });
    Measured measured;
    for (auto& result : results) {
      const std::vector<double> calls = MC_TRY(std::move(result));
      measured.call_us.insert(measured.call_us.end(), calls.begin(), calls.end());
    }
    measured.gbps = static_cast<double>(measured.call_us.size() * one.batch * one.bytes) / 1e9 / seconds;
    return measured;
  }

  // Microseconds of each call of one thread, whose memory begins at `offset` on both sides.
  Result<std::vector<double>> Calls(const Side& side, const Case& one, size_t offset) const {
    const size_t set = one.protocol == "samehost" ? WorkingSet(one) : one.bytes;
    const size_t pieces = set / one.bytes;
    const size_t calls = CallsFor(one, pieces);
    std::vector<double> us;
    us.reserve(calls);
    std::vector<TransferRequest> requests(one.batch);
    for (size_t call = 0; call < calls; ++call) {
      for (size_t i = 0; i < one.batch; ++i) {
        const size_t at = offset + (call * one.batch + i) % pieces * one.bytes;
        requests[i] = {one.opcode(), side.local.data() + at, side.target, peer_address_ + at, one.bytes};
      }
      us.push_back(1e6 * MC_TRY(Timed([&] { return side.engine->Transfer(requests, Deadline::After(kCallBudget)); })));
    }
    return us;
  }

  size_t CallsFor(const Case& one, size_t pieces) const {
    if (options_.quick) return 3;
    if (one.small()) return 2'000;
    // A second or less of a fast wire; copies go once over the working set.
    const size_t bytes = one.protocol == "samehost" ? pieces * one.bytes : size_t{1} << 30;
    return std::max<size_t>(4, bytes / (one.bytes * one.batch));
  }

  const TransferBenchOptions& options_;
  Host host_;
  std::vector<std::string> devices_;
  std::vector<Case> cases_;
  size_t slice_bytes_ = kMiB;  // of a thread, on each side
  bool has_perftest_ = false;
  std::string peer_name_;
  uint64_t peer_address_ = 0;
  std::unique_ptr<Iperf> iperf_;
  Figures figures_;
};

Result<void> CheckWords(const std::vector<std::string>& words, std::initializer_list<std::string_view> known,
                        const char* option) {
  for (const std::string& word : words) {
    if (std::find(known.begin(), known.end(), word) == known.end())
      return Error(ErrorCode::INVALID_PARAMS, "--{} '{}': write {}", option, word, fmt::join(known, ", "));
  }
  return {};
}

}  // namespace

Result<void> CheckTransferBench(const TransferBenchOptions& options) {
  MC_TRY(CheckWords(options.protocols, {"tcp", "samehost", "rdma"}, "protocol"));
  MC_TRY(CheckWords(options.operations, {"read", "write"}, "op"));
  for (const size_t bytes : options.sizes) {
    if (bytes == 0 || bytes > (size_t{1} << 30))
      return Error(ErrorCode::INVALID_PARAMS, "--size {}: 1 B to 1 GB", bytes);
  }
  for (const double percentile : options.percentiles) {
    if (!(percentile >= 0 && percentile <= 100))
      return Error(ErrorCode::INVALID_PARAMS, "--percentiles {}: 0 to 100", percentile);
  }
  if (options.threads < 1 || options.threads > 64)
    return Error(ErrorCode::INVALID_PARAMS, "--threads {}: 1 to 64", options.threads);
  if (options.batch < 0 || options.batch > 4096)
    return Error(ErrorCode::INVALID_PARAMS, "--batch {}: 0 to 4096", options.batch);
  return {};
}

Result<TransferBenchResult> RunTransferBench(const TransferBenchOptions& options) {
  MC_TRY(CheckTransferBench(options));
  return TransferBench(options, DescribeHost()).Run();
}

Result<void> ServeAsTarget(uint64_t capacity_bytes, bool rdma) {
  TransferEngineOptions options = MC_TRY(OptionsFor("samehost"));
  if (rdma) options.protocols = {"rdma", "tcp"};
  const auto engine = MC_TRY(TransferEngine::Open(std::move(options)));
  void* const memory = MC_TRY(engine->AllocateMemory(capacity_bytes));
  std::memset(memory, 2, capacity_bytes);
  std::cout << "ready " << engine->local_name() << ' ' << reinterpret_cast<uintptr_t>(memory) << '\n' << std::flush;
  std::string ignored;
  while (std::getline(std::cin, ignored)) {
  }
  return {};
}

}  // namespace mooncake::bench
