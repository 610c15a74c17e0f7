// Memory, requests, and the throughput model.
#include "bench/bridge_load.h"

#include <sys/mman.h>

#include <cerrno>
#include <cmath>
#include <cstring>

#include "bench/emulator.h"
#include "bench/measure.h"
#include "common/idle_spin.h"

namespace mooncake::bench {
namespace {

constexpr Duration kPatience = std::chrono::minutes(2);
constexpr Duration kLook = std::chrono::microseconds(200);

// Differs between neighbours and between pages, and with the seed.
void Fill(HostRange bytes, uint64_t seed) {
  auto* const words = reinterpret_cast<uint64_t*>(bytes.data());
  for (size_t i = 0; i < bytes.size() / sizeof(uint64_t); ++i) words[i] = (i + seed) * 0x9E3779B97F4A7C15;
}

bool Filled(HostRange bytes, uint64_t seed) {
  const auto* const words = reinterpret_cast<const uint64_t*>(bytes.data());
  for (size_t i = 0; i < bytes.size() / sizeof(uint64_t); ++i) {
    if (words[i] != (i + seed) * 0x9E3779B97F4A7C15) return false;
  }
  return true;
}

double InSeconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

std::move_only_function<void(Result<void>)> Landing::Done() {
  return [this](Result<void> result) {
    std::lock_guard lock(mutex_);
    if (!result && result_) result_ = std::move(result);
    if (left_.fetch_sub(1, std::memory_order_release) == 1) over_.notify_one();
  };
}

Result<void> Landing::Await() {
  IdleSpin spin;
  (void)spin.Until(kLook, [this] { return over(); });
  std::unique_lock lock(mutex_);
  over_.wait(lock, [this] { return over(); });
  return result_;
}

Result<std::unique_ptr<BothEnds>> BothEnds::Open(std::shared_ptr<NpuRuntime> runtime, size_t bytes) {
  MC_TRY(runtime->OpenDevice(0));
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return Error(ErrorCode::INTERNAL_ERROR, "no {} B for the peer's memory: {}", bytes, strerror(errno));
  }
  const HostRange peer(static_cast<std::byte*>(mapped), bytes);
  (void)madvise(mapped, bytes, MADV_HUGEPAGE);
  Fill(peer, 0);
  const auto block = runtime->Allocate(0, bytes);
  if (!block) {
    (void)munmap(mapped, bytes);
    return std::unexpected(block.error());
  }
  return std::unique_ptr<BothEnds>(new BothEnds(std::move(runtime), *block, peer));
}

BothEnds::~BothEnds() {
  (void)runtime_->Free(block_);
  (void)munmap(peer_.data(), peer_.size());
}

TransferOperation BothEnds::Request(TransferOpcode opcode, size_t at, size_t bytes, const PacedWire& wire,
                                    Landing& landing) const {
  TransferOperation operation;
  operation.opcode = opcode;
  operation.local = NpuRange{block_ + at, bytes, runtime_.get()};
  operation.target = wire.target();
  operation.region = wire.region();
  operation.target_address = wire.region().address + at;
  operation.tag = 1;
  operation.deadline = Deadline::After(kPatience);
  operation.done = landing.Done();
  return operation;
}

Result<double> BothEnds::Move(Transport& policy, TransferOpcode opcode, size_t bytes, size_t count,
                              const PacedWire& wire) const {
  Landing landing(count);
  std::vector<TransferOperation> operations;
  operations.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    operations.push_back(Request(opcode, i % (peer_.size() / bytes) * bytes, bytes, wire, landing));
  }
  return Timed([&] {
    policy.Submit(std::move(operations), Caller::kGoesOn);
    return landing.Await();
  });
}

Result<void> BothEnds::Verify(Transport& policy, size_t bytes, const PacedWire& wire) const {
  const HostRange used = peer_.first(bytes);
  const auto seed = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(&policy));
  Fill(used, seed);
  MC_TRY(Move(policy, TransferOpcode::kRead, bytes, 1, wire));
  std::memset(used.data(), 0, used.size());
  MC_TRY(Move(policy, TransferOpcode::kWrite, bytes, 1, wire));
  if (!Filled(used, seed)) return Error(ErrorCode::INTERNAL_ERROR, "{}: {} B came back changed", policy.name(), bytes);
  return {};
}

std::optional<BridgeModel> BridgeModel::Of(const char* rate, const WireOptions& wire) {
  const auto gbps = ModelParameter(rate);
  const auto submit = ModelParameter("submit_us");
  const auto latency = ModelParameter("latency_us");
  const auto sync = ModelParameter("sync_copy_us");
  if (!gbps || !submit || !latency || !sync) return std::nullopt;
  return BridgeModel{*gbps * 1e9, *submit * 1e-6, *latency * 1e-6, *sync * 1e-6, wire};
}

double BridgeModel::Serial(size_t bytes) const {
  const auto size = static_cast<double>(bytes);
  return sync_overhead + size / copy_rate + InSeconds(wire.request_cost) + size / wire.bytes_per_second +
         InSeconds(wire.latency);
}

// The slower stage, and one chunk of the faster one before or after it. Copies that wait in the queue hide their
// latency, so only the first one pays it.
double BridgeModel::Pipelined(size_t bytes, size_t chunk) const {
  const auto size = static_cast<double>(bytes);
  const auto piece = static_cast<double>(std::min(bytes, chunk));
  const double pieces = std::ceil(size / piece);
  const double copy = pieces * copy_overhead + size / copy_rate;
  const double send = pieces * InSeconds(wire.request_cost) + size / wire.bytes_per_second;
  const double fill =
      piece / std::max(copy_rate, wire.bytes_per_second) + copy_overhead + copy_latency + InSeconds(wire.latency);
  return std::max(copy, send) + fill;
}

}  // namespace mooncake::bench
