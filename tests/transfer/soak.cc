// Transfers over tcp and shared memory for minutes, among processes that are killed, stopped and started again: every
// byte right, every request settled, memory and descriptors of this process flat.
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "transfer/far_end.h"
#include "transfer/pattern.h"
#include "transfer/soak_support.h"

namespace mooncake::transfer_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* kUsage = R"(Usage: transfer_soak [--seconds N] [--seed N]

Transfers between this process and four others, which are killed, stopped and started again all the time. Fails on a wrong
byte, on a request that fails although its peer was there, and when memory or descriptors grow after the warm-up.
  --seconds N   how long (default 600)
  --seed N      of sizes, offsets and who dies when (default: random, printed)
  --help        this text
)";

constexpr size_t kThreads = 4;
constexpr size_t kPeers = 4;
constexpr size_t kShare = 4 * kMiB;          // of each thread, in each peer's memory
constexpr size_t kMemoryMargin = 48 * kMiB;  // growth after the warm-up that is still the allocator's business
constexpr size_t kDescriptorMargin = 24;

// One place among the peers. `epoch` is odd while its process is not to be counted on.
struct Place {
  std::string wire;
  std::unique_ptr<FarEnd> end;  // main thread only
  std::atomic<uint64_t> epoch{1};
  std::mutex mutex;
  SegmentId target = kInvalidSegment;  // under the mutex, as what follows
  uint64_t address = 0;
};

struct Counts {
  std::atomic<uint64_t> transfers{0};
  std::atomic<uint64_t> bytes{0};
  std::atomic<uint64_t> excused{0};  // failed while their peer was being replaced or stood still
  std::atomic<uint64_t> wrong{0};
};

class Soak {
 public:
  Soak(seconds length, uint64_t seed) : length_(length), random_(seed) {}

  // Exit code.
  int Run();

 private:
  TransferEngine& EngineFor(const std::string& wire) { return wire == "tcp" ? *tcp_ : *shared_; }
  Result<void> Open();
  // A process at this place, on the port it had before.
  Result<void> Populate(Place& place);
  // It also reaches for this process, so that the serving side sees peers come and go.
  Result<void> ReachBack(Place& place);
  Result<void> Disturb();
  void Work(size_t thread, uint64_t seed);
  // Writes and reads back. Errors of a peer that was there all the time are reported.
  void OneRoundTrip(Place& place, size_t share, std::span<std::byte> memory, std::mt19937_64& random);
  void Report(const std::string& what, const std::string& wire);
  void Progress(const Use& use) const;

  const seconds length_;
  std::mt19937_64 random_;
  std::unique_ptr<TransferEngine> tcp_;
  std::unique_ptr<TransferEngine> shared_;
  std::vector<std::byte> served_ = std::vector<std::byte>(kMiB);  // what peers reach back for
  std::array<Place, kPeers> places_;
  Counts counts_;
  size_t kills_ = 0;
  size_t stops_ = 0;
  std::mutex mutex_;
  std::condition_variable failed_;
  bool stopping_ = false;
};

Result<void> Soak::Open() {
  tcp_ = MC_TRY(TransferEngine::Open(NearOptions("tcp")));
  shared_ = MC_TRY(TransferEngine::Open(NearOptions("shm")));
  for (TransferEngine* engine : {tcp_.get(), shared_.get()}) {
    MC_TRY(engine->RegisterMemory(served_.data(), served_.size()));
  }
  for (size_t i = 0; i < kPeers; ++i) {
    places_[i].wire = i % 2 == 0 ? "tcp" : "shm";
    MC_TRY(Populate(places_[i]));
  }
  return {};
}

Result<void> Soak::Populate(Place& place) {
  const uint16_t port = place.end ? place.end->ports().control : 0;
  if (place.end) place.end->process().Kill();
  place.end = MC_TRY(FarEnd::Start(place.wire, port));
  const uint64_t address = MC_TRY(place.end->AskNumber(fmt::format("allocate {}", kThreads * kShare)));
  const SegmentId target = MC_TRY(EngineFor(place.wire).OpenSegment(place.end->ports().name, Soon()));
  {
    std::lock_guard lock(place.mutex);
    place.target = target;
    place.address = address;
  }
  MC_TRY(ReachBack(place));
  place.epoch.fetch_add(1);
  return {};
}

Result<void> Soak::ReachBack(Place& place) {
  const uint64_t local = MC_TRY(place.end->AskNumber("map 1048576 0 0"));
  return place.end->Do(fmt::format("transfer read {} {} {} {} 100000", EngineFor(place.wire).local_name(), local,
                                   reinterpret_cast<uint64_t>(served_.data()), served_.size()));
}

Result<void> Soak::Disturb() {
  Place& place = places_[random_() % kPeers];
  place.epoch.fetch_add(1);
  if (random_() % 3 != 0) {
    ++kills_;
    if (random_() % 2 == 0) place.end->process().Stop();  // dies without a last word
    return Populate(place);
  }
  ++stops_;
  place.end->process().Stop();
  {
    std::unique_lock lock(mutex_);
    failed_.wait_for(lock, milliseconds(700), [&] { return stopping_; });
  }
  place.end->process().Continue();
  MC_TRY(place.end->Do("ping"));
  place.epoch.fetch_add(1);
  return {};
}

void Soak::Report(const std::string& what, const std::string& wire) {
  std::lock_guard lock(mutex_);
  if (counts_.wrong.fetch_add(1) < 10) std::printf("soak: %s: %s\n", wire.c_str(), what.c_str());
  stopping_ = true;
  failed_.notify_all();
}

void Soak::OneRoundTrip(Place& place, size_t share, std::span<std::byte> memory, std::mt19937_64& random) {
  const uint64_t epoch = place.epoch;
  if (epoch % 2 != 0 && random() % 8 != 0) return;  // now and then also when it is not there
  TransferRequest request{.opcode = TransferOpcode::kWrite, .local = memory.data()};
  {
    std::lock_guard lock(place.mutex);
    request.target = place.target;
    request.target_address = place.address + share * kShare;
  }
  const size_t length = random() % (size_t{1} << (random() % 23));
  const size_t offset = random() % (kShare - length);
  request.target_address += offset;
  request.length = length;
  const uint64_t seed = random();
  Fill(memory.first(length), seed);
  const Deadline deadline = Deadline::After(seconds(20));
  TransferEngine& engine = EngineFor(place.wire);
  Result<void> result = engine.Transfer({&request, 1}, deadline);
  Result<void> checked;
  if (result) {
    Fill(memory.first(length), ~seed);
    request.opcode = TransferOpcode::kRead;
    result = engine.Transfer({&request, 1}, deadline);
    if (result) checked = Check(memory.first(length), seed);
  }
  if (result && checked) {
    counts_.transfers += 2;
    counts_.bytes += 2 * length;
  } else if (place.epoch != epoch || epoch % 2 != 0) {
    ++counts_.excused;
  } else {
    Report((result ? checked : result).error().ToString(), place.wire);
  }
}

void Soak::Work(size_t thread, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> memory(kShare);
  for (TransferEngine* engine : {tcp_.get(), shared_.get()}) {
    if (const auto done = engine->RegisterMemory(memory.data(), memory.size()); !done) {
      Report(done.error().ToString(), "registration");
    }
  }
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (stopping_) break;
    }
    OneRoundTrip(places_[random() % kPeers], thread, memory, random);
  }
  for (TransferEngine* engine : {tcp_.get(), shared_.get()}) {
    if (const auto done = engine->UnregisterMemory(memory.data()); !done) {
      Report(done.error().ToString(), "registration");
    }
  }
}

void Soak::Progress(const Use& use) const {
  std::printf("soak: %llu transfers, %.1f GB, %llu excused, %zu kills, %zu stops, %zu MiB, %zu descriptors\n",
              static_cast<unsigned long long>(counts_.transfers), static_cast<double>(counts_.bytes) / 1e9,
              static_cast<unsigned long long>(counts_.excused), kills_, stops_, use.memory_bytes / kMiB,
              use.descriptors);
  std::fflush(stdout);
}

int Soak::Run() {
  if (const auto opened = Open(); !opened) {
    std::printf("soak: %s\n", opened.error().ToString().c_str());
    return 1;
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) threads.emplace_back(&Soak::Work, this, i, random_());
  const Deadline end = Deadline::After(length_);
  const Deadline warm = Deadline::After(length_ / 4);
  Deadline report = Deadline::After(seconds(10));
  std::optional<Use> first;
  const auto failed = [&] {
    std::lock_guard lock(mutex_);
    return stopping_;
  };
  while (!end.Passed() && !failed()) {
    if (const auto done = Disturb(); !done) Report(done.error().ToString(), "peer");
    const Use use = UseOfThisProcess();
    if (!first && warm.Passed()) first = use;
    if (report.Passed()) {
      Progress(use);
      report = Deadline::After(seconds(10));
    }
    std::unique_lock lock(mutex_);
    failed_.wait_for(lock, milliseconds(300), [&] { return stopping_; });
  }
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads) thread.join();
  const Use last = UseOfThisProcess();
  Progress(last);
  const bool flat = first && Flat(*first, last, kMemoryMargin, kDescriptorMargin);
  const bool right = counts_.wrong == 0 && counts_.transfers > 0;
  std::printf("soak: %s\n", flat && right ? "passed" : "FAILED");
  return flat && right ? 0 : 1;
}

int Main(int argc, char** argv) {
  const SoakOptions options = ParseSoakOptions(argc, argv, "transfer_soak", kUsage);
  return Soak(options.length, options.seed).Run();
}

}  // namespace
}  // namespace mooncake::transfer_test

int main(int argc, char** argv) {
  return mooncake::transfer_test::Main(argc, argv);
}
