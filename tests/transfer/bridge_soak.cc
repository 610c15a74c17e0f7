// NPU memory of several devices through the bridge for minutes, while copies fail and hang, devices are lost, peers are
// stopped and killed, requests are canceled and time out: every byte right, every request settled, nothing left over.
#include <dlfcn.h>
#include <malloc.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "device/acl/test_emulator_probe.h"
#include "transfer/bridge_soak.h"

namespace mooncake::transfer_test {
namespace {

using std::chrono::milliseconds;

constexpr const char* kUsage = R"(Usage: scripts/with_npu_emulator.sh bridge_soak [--seconds N] [--seed N]

Reads and writes of 0 B to 300 MB between emulated NPUs of this process and two others, over tcp. An engine lives for some
seconds; in the second half of its life a device may be lost, which the next engine has again. Fails on a wrong byte, on a
byte that changes after its request has ended, on a request that fails for no reason, on streams, events, page-locked or
device memory left behind by an engine, and when memory or descriptors grow after the first quarter.
  --seconds N   how long (default 600)
  --seed N      of sizes, offsets and faults (default: random, printed)
  --help        this text
)";

}  // namespace

void BridgeSoak::Report(const std::string& what) {
  std::lock_guard lock(mutex_);
  if (counts_.wrong.fetch_add(1) < 10) std::printf("soak: %s\n", what.c_str());
  failed_ = true;
  changed_.notify_all();
}

bool BridgeSoak::Stopping() {
  std::lock_guard lock(mutex_);
  return life_over_ || failed_;
}

void BridgeSoak::Sleep(Duration time) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, time, [&] { return failed_; });
}

void BridgeSoak::Progress(const Use& use) const {
  const auto count = [](const std::atomic<uint64_t>& value) { return static_cast<unsigned long long>(value); };
  std::printf(
      "soak: %zu engines, %llu requests, %.1f GB, %llu ended as asked, %llu excused, %llu of lost devices, %zu times "
      "failing copies, %zu devices lost, %zu kills, %zu MiB, %zu descriptors\n",
      lives_, count(counts_.requests), static_cast<double>(counts_.bytes) / 1e9, count(counts_.asked),
      count(counts_.excused), count(counts_.lost), faults_, losses_, kills_, use.memory_bytes / kMiB, use.descriptors);
  std::fflush(stdout);
}

// --- lives of the engine, on the main thread

Result<void> BridgeSoak::OpenEngine() {
  npu_ = MC_TRY(OpenNpuRuntime());
  if (npu_->DeviceCount() != kDevices) {
    return Error(ErrorCode::INVALID_PARAMS, "{} devices, not {}", npu_->DeviceCount(), kDevices);
  }
  engine_ = MC_TRY(TransferEngine::Open(NearOptions("npu_tcp")));
  for (Place& place : places_) {
    const SegmentId target = MC_TRY(engine_->OpenSegment(place.end->ports().name, Soon()));
    std::lock_guard lock(place.mutex);
    place.target = target;
  }
  return {};
}

// Whatever happened: nothing of it is left on the devices, and the rings had all their slots, or the process is gone.
Result<void> BridgeSoak::CloseEngine() {
  engine_.reset();
  npu_.reset();
  const aclemu_stats stats = EmulatorProbe::Stats();
  if (stats.streams_live + stats.events_live + stats.host_live_blocks + stats.device_live_blocks == 0 &&
      stats.violations == 0) {
    return {};
  }
  return Error(ErrorCode::INTERNAL_ERROR,
               "left behind: {} streams, {} events, {} page-locked ranges, {} device blocks; {} rules were broken",
               stats.streams_live, stats.events_live, stats.host_live_blocks, stats.device_live_blocks,
               stats.violations);
}

// A process at this place, on the port it had before.
Result<void> BridgeSoak::Populate(Place& place) {
  const uint16_t port = place.end ? place.end->ports().control : 0;
  if (place.end) place.end->process().Kill();
  place.end = MC_TRY(FarEnd::Start("tcp", port));
  const auto map = [&](size_t length) -> Result<uint64_t> {
    const uint64_t address = MC_TRY(place.end->AskNumber(fmt::format("map {} 0 0", length)));
    MC_TRY(place.end->Do(fmt::format("register {} {}", address, length)));
    return address;
  };
  const uint64_t constant = MC_TRY(map(kLargest));
  MC_TRY(place.end->Do(fmt::format("fill {} {} {} 0", constant, kLargest, kConstantSeed)));
  std::array<uint64_t, kWorkers> slots{};
  for (size_t worker = 0; worker < kWorkers; ++worker) slots[worker] = MC_TRY(map(ShareOf(worker) * SlotsOf(worker)));
  std::lock_guard lock(place.mutex);
  place.constant = constant;
  place.slots = slots;
  return {};
}

void BridgeSoak::FailCopies() {
  ++faults_;
  const uint64_t seed = random_();
  const std::array<std::string, 4> rules = {
      fmt::format("aclrtMemcpyAsync@%0.02:exec:seed={}=507001", seed),
      fmt::format("D2H@%0.02:seed={}=partial,507899;H2D@%0.02:seed={}=partial,507899", seed, seed + 1),
      fmt::format("aclrtMemcpyAsync@%0.02:seed={}=507899;aclrtStreamQuery@%0.001:seed={}=507899", seed, seed + 1),
      "aclrtMemcpyAsync@1:exec=hang",  // until the rules are removed; then it does its work
  };
  copies_.Begin();
  EmulatorProbe::Inject(rules[random_() % rules.size()].c_str());
  Sleep(milliseconds(200));
  EmulatorProbe::Inject("");
  copies_.End();
}

// By what one of its copies answers; until this engine and its runtime end.
void BridgeSoak::LoseADevice() {
  ++losses_;
  const auto device = static_cast<int32_t>(random_() % kDevices);
  EmulatorProbe::Inject(fmt::format("{}[dev={}]@1:call=507010", random_() % 2 == 0 ? "D2H" : "H2D", device).c_str());
  for (int i = 0; i < 40 && !npu_->DeviceLost(device); ++i) Sleep(milliseconds(25));
  EmulatorProbe::Inject("");
}

Result<void> BridgeSoak::Disturb() {
  Place& place = places_[random_() % kPeers];
  switch (random_() % 8) {
    case 0:
    case 1:
    case 2:
      FailCopies();
      return {};
    case 3:  // slow copies are no failure
      EmulatorProbe::Inject(fmt::format("aclrtMemcpyAsync@%0.05:exec:seed={}=delay:3", random_()).c_str());
      Sleep(milliseconds(200));
      EmulatorProbe::Inject("");
      return {};
    case 4:
    case 5:  // nor is a peer that stands still for a while
      place.end->process().Stop();
      Sleep(milliseconds(200));
      place.end->process().Continue();
      return place.end->Do("ping");
    case 6: {
      ++kills_;
      place.epoch.Begin();
      MC_TRY(Populate(place));
      place.epoch.End();
      return {};
    }
    default:
      Sleep(milliseconds(200));
      return {};
  }
}

Result<void> BridgeSoak::Live() {
  ++lives_;
  MC_TRY(OpenEngine());
  ready_ = 0;
  {
    std::lock_guard lock(mutex_);
    life_over_ = false;
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kWorkers; ++i) threads.emplace_back(&BridgeSoak::Work, this, i, random_());
  const Deadline half = Deadline::After(kLife / 2);
  const Deadline end = Deadline::After(kLife);
  bool lose = random_() % 2 == 0;
  Result<void> disturbed;
  // Lanes open as on a device that is well.
  for (size_t ready = ready_; ready < kWorkers; ready = ready_) ready_.wait(ready);
  while (disturbed && !end.Passed() && !Stopping()) {
    disturbed = Disturb();
    if (half.Passed() && std::exchange(lose, false)) LoseADevice();
  }
  {
    std::lock_guard lock(mutex_);
    life_over_ = true;
  }
  for (std::thread& thread : threads) thread.join();
  MC_TRY(CloseEngine());
  return disturbed;
}

int BridgeSoak::Run() {
  // The emulator's own words on what is left need it loaded from the first engine to after the last one.
  if (dlopen("libascendcl.so", RTLD_NOW | RTLD_GLOBAL) == nullptr || !EmulatorProbe::Loaded()) {
    std::printf("soak: the emulator is not there; run it by scripts/with_npu_emulator.sh\n");
    return 1;
  }
  for (Place& place : places_) {
    if (const auto done = Populate(place); !done) Report(done.error().ToString());
  }
  const Deadline end = Deadline::After(length_);
  const Deadline warm = Deadline::After(length_ / 4);
  std::optional<Use> first;
  Use last;
  while (!end.Passed() && !failed_) {
    if (const auto done = Live(); !done) Report(done.error().ToString());
    (void)malloc_trim(0);  // what is free is no growth
    last = UseOfThisProcess();
    if (!first && warm.Passed()) first = last;
    Progress(last);
  }
  const bool flat = first && Flat(*first, last, kMemoryMargin, kDescriptorMargin);
  const bool right = counts_.wrong == 0 && counts_.requests > 0;
  std::printf("soak: %s\n", flat && right ? "passed" : "FAILED");
  return flat && right ? 0 : 1;
}

namespace {

int Main(int argc, char** argv) {
  const SoakOptions options = ParseSoakOptions(argc, argv, "bridge_soak", kUsage);
  // Read when the emulator and the engine are used first. Many times the ring goes through a large request.
  setenv("ACLEMU_DEVICES", std::to_string(kDevices).c_str(), 1);
  setenv("ACLEMU_KEEP", "0", 0);
  setenv("MC_NPU_BRIDGE_RING", "16MB", 0);
  setenv("MC_NPU_BRIDGE_SLOT", "1MB", 0);
  // Large buffers go back to the system at once; left to itself, the limit moves and free memory looks like growth.
  (void)mallopt(M_MMAP_THRESHOLD, 256 * 1024);
  AllowManyFiles();
  return BridgeSoak(options).Run();
}

}  // namespace
}  // namespace mooncake::transfer_test

int main(int argc, char** argv) {
  return mooncake::transfer_test::Main(argc, argv);
}
