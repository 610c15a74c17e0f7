// The measurements of `mooncake_bench bridge`.
#include "bench/bridge_bench.h"

#include <dirent.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <thread>

#include "bench/bridge_load.h"
#include "bench/bridge_serial.h"
#include "bench/bridge_virtual.h"
#include "bench/child.h"
#include "bench/emulator.h"
#include "transfer_engine/transport/ascend_rdma/ascend_rdma_transport.h"
#include "transfer_engine/transport/ascend_rdma/npu_copy_port.h"

namespace mooncake::bench {
namespace {

constexpr size_t kKiB = 1 << 10;
constexpr size_t kMiB = 1 << 20;
constexpr size_t kSmall = 4 * kKiB;
constexpr size_t kBulk = 64 * kMiB;  // what a figure moves at least, and the size of most of them
constexpr auto kWrite = TransferOpcode::kWrite;
constexpr auto kRead = TransferOpcode::kRead;

struct Sizes {
  std::vector<size_t> requests;
  std::vector<size_t> rings;
  size_t stream;  // requests of 64 MiB, all of a load
  int small;      // requests of one latency
};

Sizes SizesFor(bool quick) {
  if (quick) return {{256 * kKiB, kBulk}, {8 * kMiB, kBulk}, 2, 20};
  return {{256 * kKiB, kMiB, 4 * kMiB, 16 * kMiB, kBulk, 256 * kMiB}, {8 * kMiB, 16 * kMiB, 32 * kMiB, kBulk}, 32, 200};
}

std::string SizeName(size_t bytes) {
  return bytes % kMiB == 0 ? fmt::format("{}m", bytes / kMiB) : fmt::format("{}k", bytes / kKiB);
}

const char* Name(TransferOpcode opcode) {
  return opcode == kWrite ? "write" : "read";
}

double Gigabytes(size_t bytes) {
  return static_cast<double>(bytes) / 1e9;
}

// Processor seconds so far of this process's threads of that name; of all for "".
double CpuOf(const std::string& name) {
  uint64_t sum_ns = 0;
  DIR* const tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return 0;
  while (const dirent* task = readdir(tasks)) {
    const std::string folder = fmt::format("/proc/self/task/{}/", task->d_name);
    std::string comm;
    uint64_t ns = 0;
    if (!(std::ifstream(folder + "comm") >> comm) || !(std::ifstream(folder + "schedstat") >> ns)) continue;
    if (name.empty() || comm == name) sum_ns += ns;
  }
  closedir(tasks);
  return static_cast<double>(sum_ns) / 1e9;
}

class BridgeBench {
 public:
  explicit BridgeBench(const BridgeBenchOptions& options)
      : options_(options), sizes_(SizesFor(options.quick)), host_(DescribeHost()) {}

  Result<BridgeBenchResult> Run() {
    host_.iperf3 = "not used";
    MC_TRY(InVirtualTime());
    runtime_ = MC_TRY(OpenNpuRuntime());
    ends_ = MC_TRY(BothEnds::Open(runtime_, sizes_.requests.back()));
    for (const bool write : {true, false}) copy_rate_[write] = MC_TRY(CopyRate(write));
    wire_.emplace(WireOptions{.bytes_per_second = copy_rate_[1]}, ends_->peer(), PacedWire::Time::kWall);
    serial_ = MC_TRY(SerialBridge::Open(runtime_, *wire_, 0, sizes_.requests.back()));
    for (const size_t ring : sizes_.rings) MC_TRY(ByRing(ring));
    bridge_ = MC_TRY(OpenBridge(*wire_, kBulk));
    MC_TRY(ends_->Verify(*serial_, sizes_.requests.back(), *wire_));
    MC_TRY(ends_->Verify(*bridge_, sizes_.requests.back(), *wire_));
    for (const size_t bytes : sizes_.requests) MC_TRY(BySize(bytes));
    MC_TRY(Alone());
    MC_TRY(Mixed());
    MC_TRY(Cost());
    MC_TRY(ByWire());
    return BridgeBenchResult{host_, figures_.Take()};
  }

 private:
  void Step(const std::string& what, int run) {
    if (options_.on_step) options_.on_step(fmt::format("{}: run {} of {}", what, run + 1, options_.runs));
  }
  void Record(const std::string& name, double value, const char* unit, const char* against = "") {
    figures_.Record("bridge." + name, value, unit, against);
  }

  // In a process of its own: a runtime has one clock.
  Result<void> InVirtualTime() {
    if (options_.on_step) options_.on_step("in virtual time");
    Child child = MC_TRY(Child::Start(
        {options_.self, "measure-in-virtual-time", std::to_string(options_.runs), options_.quick ? "quick" : "full"}));
    const std::string output = MC_TRY(child.ReadAll(Deadline::After(std::chrono::minutes(10))));
    if (!output.ends_with("ended\n")) {
      return Error(ErrorCode::INTERNAL_ERROR, "the measurements in virtual time did not come to an end");
    }
    for (size_t at = 0; at < output.size(); at = output.find('\n', at) + 1) {
      std::array<std::string, 4> words;
      std::string line = output.substr(at, output.find('\n', at) - at);
      for (size_t i = 0; i < words.size(); ++i) {
        words[i] = line.substr(0, line.find('|'));
        line.erase(0, words[i].size() + 1);
      }
      double value = 0;
      if (words[1].empty()) continue;
      std::from_chars(words[1].data(), words[1].data() + words[1].size(), value);
      figures_.Record(words[0], value, words[2].c_str(), words[3].c_str());
    }
    return {};
  }

  // Bytes per second of the device's copies to or from page-locked host memory: the model's, or as found.
  Result<double> CopyRate(bool write) {
    if (const auto gbps = ModelParameter(write ? "d2h_gbps" : "h2d_gbps")) return *gbps * 1e9;
    const auto memory = MC_TRY(bridge::BounceMemory::Create(*runtime_, 0, kBulk, {}));
    const HostRange host = memory->bytes();
    std::vector<double> seconds(5);
    for (double& one : seconds) {
      one = MC_TRY(Timed([&] {
        return write ? runtime_->CopyDeviceToHost(host.data(), host.size(), ends_->block(), host.size())
                     : runtime_->CopyHostToDevice(ends_->block(), host.size(), host.data(), host.size());
      }));
    }
    return kBulk / Quantile(seconds, 0.5);
  }

  Result<std::unique_ptr<AscendRdmaTransport>> OpenBridge(PacedWire& wire, size_t ring) {
    AscendRdmaOptions options;
    options.ring_bytes = ring;
    return AscendRdmaTransport::Open(runtime_, {&wire}, options, {0});
  }
  static size_t ChunkBytes(const AscendRdmaTransport& bridge) { return bridge.lane_options(0)->scheduler.chunk_bytes; }
  double BestSeconds(TransferOpcode opcode, size_t bytes, const PacedWire& wire) const {
    return static_cast<double>(bytes) / std::min(copy_rate_[opcode == kWrite], wire.options().bytes_per_second);
  }

  // Requests of one size, handed over at once: 64 MiB in all, or one that is larger.
  Result<void> BySize(size_t bytes) {
    const size_t count = std::max<size_t>(1, kBulk / bytes);
    for (int run = 0; run < options_.runs; ++run) {
      Step("requests of " + SizeName(bytes), run);
      for (const TransferOpcode opcode : {kWrite, kRead}) {
        const std::string name = fmt::format("{}_{}", Name(opcode), SizeName(bytes));
        const double bridged = MC_TRY(ends_->Move(*bridge_, opcode, bytes, count, *wire_));
        const double serial = MC_TRY(ends_->Move(*serial_, opcode, bytes, count, *wire_));
        Record(name + "_gbps", Gigabytes(count * bytes) / bridged, "GB/s");
        Record(name + "_serial_gbps", Gigabytes(count * bytes) / serial, "GB/s");
        Record(name + "_vs_min", BestSeconds(opcode, count * bytes, *wire_) / bridged, "ratio", "min(copy, wire)");
        Record(name + "_vs_serial", serial / bridged, "ratio", "serial");
      }
    }
    return {};
  }

  // Writes of 64 MiB through rings of different size, and how many slots they take.
  Result<void> ByRing(size_t ring) {
    const auto bridge = MC_TRY(OpenBridge(*wire_, ring));
    const bridge::LaneCounters& counters = *bridge->counters(0);
    const auto slots = static_cast<double>(ring) / static_cast<double>(bridge->lane_options(0)->scheduler.slot_bytes);
    const std::string name = fmt::format("ring_{}", SizeName(ring));
    for (int run = 0; run < options_.runs; ++run) {
      Step("a ring of " + SizeName(ring), run);
      const uint64_t before = counters.slot_ns;
      const double seconds = MC_TRY(ends_->Move(*bridge, kWrite, kBulk, 1, *wire_));
      Record(name + "_write_64m_gbps", Gigabytes(kBulk) / seconds, "GB/s");
      Record(name + "_write_64m_vs_min", BestSeconds(kWrite, kBulk, *wire_) / seconds, "ratio", "min(copy, wire)");
      const auto used_ns = static_cast<double>(counters.slot_ns - before);
      Record(name + "_slots_mean", used_ns / 1e9 / seconds, "slots");
      Record(name + "_slots_max", static_cast<double>(counters.slots_max), "slots");
      Record(name + "_occupancy", used_ns / 1e9 / seconds / slots, "part");
    }
    return {};
  }

  // One request of 4 KiB at a time, and what its copy and its way over the wire take alone; medians of a run.
  Result<void> Alone() {
    const auto memory = MC_TRY(bridge::BounceMemory::Create(*runtime_, 0, kSmall, {}));
    auto port = MC_TRY(bridge::NpuCopyPort::Open(*runtime_->AsyncDriver(), 0, 1, memory->page_locked()));
    const bridge::SlotCopy copy{memory->bytes().data(), ends_->block(), kSmall};
    const auto median = [&](Duration pause, const auto& once) -> Result<double> {
      std::vector<double> us;
      for (int i = 0; i < sizes_.small; ++i) {
        if (pause > Duration::zero()) std::this_thread::sleep_for(pause);
        const double seconds = MC_TRY(once());
        us.push_back(seconds * 1e6);
      }
      return Quantile(us, 0.5);
    };
    for (int run = 0; run < options_.runs; ++run) {
      Step("one request of 4k", run);
      for (const TransferOpcode opcode : {kWrite, kRead}) {
        const auto direction = opcode == kWrite ? bridge::Direction::kWrite : bridge::Direction::kRead;
        const auto copied = [&] { return Timed([&] { return CopyOnce(*port, direction, copy); }); };
        const auto wired = [&] { return SendOnce(opcode, memory->bytes()); };
        const auto bridged = [&] { return ends_->Move(*bridge_, opcode, kSmall, 1, *wire_); };
        const auto serially = [&] { return ends_->Move(*serial_, opcode, kSmall, 1, *wire_); };
        const double copy_us = MC_TRY(median({}, copied));
        const double wire_us = MC_TRY(median({}, wired));
        const double bridge_us = MC_TRY(median({}, bridged));
        const std::string name = Name(opcode);
        Record(name + "_4k_us", bridge_us, "us");
        Record(name + "_4k_copy_us", copy_us, "us");
        Record(name + "_4k_wire_us", wire_us, "us");
        Record(name + "_4k_over_copy_and_wire_us", bridge_us - copy_us - wire_us, "us");
        Record(name + "_4k_serial_us", MC_TRY(median({}, serially)), "us");
        const double after_pause_us = MC_TRY(median(std::chrono::milliseconds(2), bridged));
        Record(name + "_4k_after_2ms_us", after_pause_us, "us");
        Record(name + "_4k_after_2ms_over_copy_and_wire_us", after_pause_us - copy_us - wire_us, "us");
      }
    }
    return {};
  }

  static Result<void> CopyOnce(bridge::CopyPort& port, bridge::Direction direction, const bridge::SlotCopy& copy) {
    const auto ticket = port.Start(direction, {&copy, 1});
    while (true) {
      if (auto outcome = port.Poll(ticket)) return std::move(*outcome);
      std::this_thread::yield();
    }
  }

  Result<double> SendOnce(TransferOpcode opcode, HostRange local) {
    Landing landing(1);
    std::vector<TransferOperation> one;
    one.push_back(ends_->Request(opcode, 0, kSmall, *wire_, landing));
    one.front().local = local;
    return Timed([&] {
      wire_->Submit(std::move(one), Caller::kGoesOn);
      return landing.Await();
    });
  }

  // Reads of 4 KiB, one at a time, while writes of 64 MiB are under way that were submitted at once.
  Result<std::vector<double>> ReadsUnderWrites(Transport& policy) {
    Landing stream(sizes_.stream);
    std::vector<TransferOperation> writes;
    writes.reserve(sizes_.stream);
    for (size_t i = 0; i < sizes_.stream; ++i) writes.push_back(ends_->Request(kWrite, 0, kBulk, *wire_, stream));
    policy.Submit(std::move(writes), Caller::kGoesOn);
    std::vector<double> seconds;
    Result<void> read;
    while (!stream.over() && read) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const auto taken = ends_->Move(policy, kRead, kSmall, 1, *wire_);
      if (taken) {
        seconds.push_back(*taken);
      } else {
        read = std::unexpected(taken.error());
      }
    }
    MC_TRY(stream.Await());
    MC_TRY(std::move(read));
    return seconds;
  }

  Result<void> Mixed() {
    const double chunk = static_cast<double>(ChunkBytes(*bridge_)) / copy_rate_[1];
    for (int run = 0; run < options_.runs; ++run) {
      Step("reads of 4k under a stream of writes", run);
      const auto bridged = MC_TRY(ReadsUnderWrites(*bridge_));
      const auto serial = MC_TRY(ReadsUnderWrites(*serial_));
      Record("chunk_us", chunk * 1e6, "us");
      Record("mixed_read_4k_p50_us", Quantile(bridged, 0.5) * 1e6, "us");
      Record("mixed_read_4k_p50_chunks", Quantile(bridged, 0.5) / chunk, "chunks");
      Record("mixed_read_4k_p99_chunks", Quantile(bridged, 0.99) / chunk, "chunks");
      Record("mixed_read_4k_serial_p50_us", Quantile(serial, 0.5) * 1e6, "us");
    }
    return {};
  }

  // Processor time of the threads that carry out a policy; the emulated device and wire also use some, told beside it.
  Result<void> Cost() {
    constexpr size_t kRequests = 4;
    for (int run = 0; run < options_.runs; ++run) {
      Step("processor time", run);
      const auto cost = [&](Transport& policy, const char* thread, const std::string& name) -> Result<void> {
        const double before = CpuOf(thread);
        const double all_before = CpuOf("");
        MC_TRY(ends_->Move(policy, kWrite, kBulk, kRequests, *wire_));
        const double all = CpuOf("") - all_before;
        Record(name + "_cpu_s_per_gb", (CpuOf(thread) - before) / Gigabytes(kRequests * kBulk), "s/GB");
        Record(name + "_process_cpu_s_per_gb", all / Gigabytes(kRequests * kBulk), "s/GB");
        return {};
      };
      MC_TRY(cost(*bridge_, "mc-npu-bridge", "write_64m"));
      MC_TRY(cost(*serial_, "bench-serial", "write_64m_serial"));
    }
    return {};
  }

  // Writes of 64 MiB beside the throughput model, over wires slower than, as fast as and faster than the copies.
  Result<void> ByWire() {
    for (const auto& [part, name] : {std::pair(0.5, "half"), std::pair(1.0, "equal"), std::pair(1.5, "fast")}) {
      PacedWire wire({.bytes_per_second = copy_rate_[1] * part}, ends_->peer(), PacedWire::Time::kWall);
      const auto model = BridgeModel::Of("d2h_gbps", wire.options());
      if (!model) return {};
      const auto bridge = MC_TRY(OpenBridge(wire, kBulk));
      const auto serial = MC_TRY(SerialBridge::Open(runtime_, wire, 0, kBulk));
      for (int run = 0; run < options_.runs; ++run) {
        Step(fmt::format("a wire of {} times the copies' rate", part), run);
        const std::string prefix = fmt::format("wire_{}_write_64m", name);
        const auto beside = [&](const std::string& what, double predicted, double measured) {
          Record(fmt::format("{}_{}predicted_ms", prefix, what), predicted * 1e3, "ms");
          Record(fmt::format("{}_{}ms", prefix, what), measured * 1e3, "ms");
          Record(fmt::format("{}_{}vs_model", prefix, what), measured / predicted, "ratio", "model");
        };
        beside("", model->Pipelined(kBulk, ChunkBytes(*bridge)), MC_TRY(ends_->Move(*bridge, kWrite, kBulk, 1, wire)));
        beside("serial_", model->Serial(kBulk), MC_TRY(ends_->Move(*serial, kWrite, kBulk, 1, wire)));
      }
    }
    return {};
  }

  const BridgeBenchOptions& options_;
  const Sizes sizes_;
  Host host_;
  std::shared_ptr<NpuRuntime> runtime_;
  std::unique_ptr<BothEnds> ends_;
  std::array<double, 2> copy_rate_{};  // bytes per second, of reads and of writes
  std::optional<PacedWire> wire_;
  std::unique_ptr<SerialBridge> serial_;
  std::unique_ptr<AscendRdmaTransport> bridge_;
  Figures figures_;
};

}  // namespace

Result<BridgeBenchResult> RunBridgeBench(const BridgeBenchOptions& options) {
  return BridgeBench(options).Run();
}

Result<void> ServeVirtualTime(int runs, bool quick) {
  PrepareVirtualTime();
  const auto measured = MeasureInVirtualTime(runs, quick, [](const std::string& line) { std::puts(line.c_str()); });
  if (!measured && measured.error().code() != ErrorCode::NOT_IMPLEMENTED) return measured;
  std::puts("ended");
  return {};
}

}  // namespace mooncake::bench
