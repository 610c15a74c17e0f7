// One thread that is the lane, the wire and the application; the clock is the emulator's.
#include "bench/bridge_virtual.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "bench/bridge_load.h"
#include "bench/emulator.h"
#include "bench/measure.h"
#include "common/env.h"
#include "transfer_engine/transport/ascend_rdma/ascend_rdma_transport.h"
#include "transfer_engine/transport/ascend_rdma/calibration.h"
#include "transfer_engine/transport/ascend_rdma/lane_core.h"
#include "transfer_engine/transport/ascend_rdma/npu_copy_port.h"

namespace mooncake::bench {
namespace {

constexpr size_t kMiB = 1 << 20;
constexpr size_t kBulk = 64 * kMiB;
constexpr size_t kSmall = 4 << 10;
constexpr size_t kSlot = 2 * kMiB;
constexpr size_t kRing = 64 * kMiB;
constexpr env::Variable kEmulatorTime{"ACLEMU_TIME", "of the emulator"};
constexpr Duration kPause = std::chrono::microseconds(200);  // between small reads, and up to 1 ms more

using std::chrono::duration;

class VirtualBridge {
 public:
  static Result<std::unique_ptr<VirtualBridge>> Open(std::shared_ptr<NpuRuntime> runtime) {
    const auto now = reinterpret_cast<uint64_t (*)()>(dlsym(RTLD_DEFAULT, "aclemu_model_now_ns"));
    const auto rate = ModelParameter("d2h_gbps");
    const auto submit = ModelParameter("submit_us");
    const auto latency = ModelParameter("latency_us");
    if (now == nullptr || !rate || !submit || !latency || env::Get(kEmulatorTime).value_or("") != "virtual") {
      return Error(ErrorCode::NOT_IMPLEMENTED, "no emulator in virtual time");
    }
    std::unique_ptr<VirtualBridge> made(new VirtualBridge(std::move(runtime), now));
    VirtualBridge& self = *made;
    const auto overhead = duration_cast<Duration>(duration<double, std::micro>(*submit + *latency));
    self.rate_ = *rate * 1e9;
    self.chunk_ = bridge::BestChunk({overhead, self.rate_}, bridge::SchedulerOptions{}.chunk_bytes_min, kSlot);
    self.ends_ = MC_TRY(BothEnds::Open(self.runtime_, kBulk + kSmall));
    self.wire_ = std::make_unique<PacedWire>(WireOptions{.bytes_per_second = self.rate_}, self.ends_->peer(),
                                             PacedWire::Time::kByHand);
    Transport* const wires[] = {self.wire_.get()};
    self.memory_ = MC_TRY(bridge::BounceMemory::Create(*self.runtime_, 0, kRing, wires));
    self.port_ = MC_TRY(
        bridge::NpuCopyPort::Open(*self.runtime_->AsyncDriver(), 0, AscendRdmaOptions{}.copies_per_direction, true));
    self.ring_ = std::make_unique<bridge::SlotRing>(self.memory_->bytes(), kSlot);
    bridge::LaneOptions lane;
    lane.scheduler.slot_bytes = kSlot;
    lane.scheduler.chunk_bytes = self.chunk_;
    self.core_ = std::make_unique<bridge::LaneCore>(0, lane, *self.ring_, *self.port_);
    return made;
  }
  ~VirtualBridge() {
    if (core_ == nullptr) return;
    core_->Stop();
    while (!core_->Done()) Step({});
  }

  double chunk_seconds() const { return static_cast<double>(chunk_) / rate_; }
  double best_seconds() const { return static_cast<double>(kBulk) / rate_; }

  // Seconds of one transfer.
  Result<double> Alone(TransferOpcode opcode, size_t bytes) {
    const TimePoint begin = Now();
    Landing landing(1);
    Submit(opcode, 0, bytes, landing);
    while (!landing.over()) Step({});
    MC_TRY(landing.Await());
    return duration<double>(Now() - begin).count();
  }

  // The same without the bridge: all of it copied, then sent, or the other way round.
  Result<double> Serial(TransferOpcode opcode, size_t bytes) {
    const TimePoint begin = Now();
    const HostRange staged = memory_->bytes().first(bytes);
    if (opcode == TransferOpcode::kWrite) {
      MC_TRY(runtime_->CopyDeviceToHost(staged.data(), staged.size(), ends_->block(), bytes));
    }
    Landing landing(1);
    std::vector<TransferOperation> one;
    one.push_back(ends_->Request(opcode, 0, bytes, *wire_, landing));
    one.front().local = staged;
    wire_->SetNow(Now());
    wire_->Submit(std::move(one), Caller::kWaits);
    while (!landing.over()) Step({});
    MC_TRY(landing.Await());
    if (opcode == TransferOpcode::kRead) {
      MC_TRY(runtime_->CopyHostToDevice(ends_->block(), bytes, staged.data(), bytes));
    }
    return duration<double>(Now() - begin).count();
  }

  // Seconds of each 4 KiB read while `count` writes of 64 MiB are under way, all submitted at once.
  Result<std::vector<double>> ReadsUnderWrites(size_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<double> taken;
    Landing stream(count);
    for (size_t i = 0; i < count; ++i) Submit(TransferOpcode::kWrite, 0, kBulk, stream);
    while (!stream.over()) {
      const TimePoint next = Now() + kPause + std::chrono::microseconds(random() % 1000);
      while (Now() < next) Step(next);
      const TimePoint begin = Now();
      Landing read(1);
      Submit(TransferOpcode::kRead, kBulk, kSmall, read);
      while (!read.over()) Step({});
      MC_TRY(read.Await());
      taken.push_back(duration<double>(Now() - begin).count());
    }
    MC_TRY(stream.Await());
    return taken;
  }

 private:
  VirtualBridge(std::shared_ptr<NpuRuntime> runtime, uint64_t (*now_ns)())
      : runtime_(std::move(runtime)),
        now_ns_(now_ns),
        origin_(SteadyClock::Instance().Now() - Duration(static_cast<int64_t>(now_ns()))) {}

  TimePoint Now() const { return origin_ + Duration(static_cast<int64_t>(now_ns_())); }

  void Submit(TransferOpcode opcode, size_t at, size_t bytes, Landing& landing) {
    std::vector<bridge::BridgedOperation> one;
    one.push_back({ends_->Request(opcode, at, bytes, *wire_, landing), wire_.get()});
    core_->Submit(std::move(one));
  }

  // Everything that can be done now. When there is nothing, time goes on: by itself while copies are asked about, else
  // to whatever is due next, or to `latest`.
  void Step(std::optional<TimePoint> latest) {
    const TimePoint now = Now();
    wire_->SetNow(now);
    bool progress = core_->Step(now);
    while (wire_->Advance(now)) progress = true;
    if (progress || core_->MustPoll()) return;
    std::optional<TimePoint> next = latest;
    for (const auto& at : {wire_->NextAt(), core_->WakeAt(now)}) {
      if (at) next = std::min(next.value_or(*at), *at);
    }
    // No copy is under way, so nothing in the emulator sees the leap.
    if (next && *next > now) origin_ += *next - now;
  }

  const std::shared_ptr<NpuRuntime> runtime_;
  uint64_t (*const now_ns_)();
  TimePoint origin_;
  double rate_ = 0;
  size_t chunk_ = 0;
  std::unique_ptr<BothEnds> ends_;
  std::unique_ptr<PacedWire> wire_;
  std::unique_ptr<bridge::BounceMemory> memory_;
  std::unique_ptr<bridge::NpuCopyPort> port_;
  std::unique_ptr<bridge::SlotRing> ring_;
  std::unique_ptr<bridge::LaneCore> core_;
};

}  // namespace

void PrepareVirtualTime() {
  setenv("ACLEMU_TIME", "virtual", 1);
  setenv("ACLEMU_SCHED", "eager", 1);
  PrepareEmulator();
}

Result<void> MeasureInVirtualTime(int runs, bool quick, const std::function<void(const std::string&)>& print) {
  auto runtime = MC_TRY(OpenNpuRuntime());
  const auto bridge = MC_TRY(VirtualBridge::Open(std::move(runtime)));
  const auto record = [&](const std::string& name, double value, const char* unit, const char* against = "") {
    print(fmt::format("bridge.virtual_{}|{}|{}|{}", name, value, unit, against));
  };
  for (int run = 0; run < runs; ++run) {
    for (const bool write : {true, false}) {
      const auto opcode = write ? TransferOpcode::kWrite : TransferOpcode::kRead;
      const char* const name = write ? "write" : "read";
      const double seconds = MC_TRY(bridge->Alone(opcode, kBulk));
      const double serial = MC_TRY(bridge->Serial(opcode, kBulk));
      record(fmt::format("{}_64m_gbps", name), kBulk / 1e9 / seconds, "GB/s");
      record(fmt::format("{}_64m_vs_min", name), bridge->best_seconds() / seconds, "ratio", "min(copy, wire)");
      record(fmt::format("{}_64m_vs_serial", name), serial / seconds, "ratio", "serial");
      record(fmt::format("{}_4k_us", name), MC_TRY(bridge->Alone(opcode, kSmall)) * 1e6, "us");
    }
    const auto reads = MC_TRY(bridge->ReadsUnderWrites(quick ? 2 : 32, static_cast<unsigned>(run) + 1));
    record("mixed_read_4k_p50_chunks", Quantile(reads, 0.5) / bridge->chunk_seconds(), "chunks");
    record("mixed_read_4k_p99_chunks", Quantile(reads, 0.99) / bridge->chunk_seconds(), "chunks");
    record("mixed_read_4k_p99_us", Quantile(reads, 0.99) * 1e6, "us");
  }
  return {};
}

}  // namespace mooncake::bench
