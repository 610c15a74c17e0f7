// The best of a few copies of two sizes, and the line through them.
#include "transfer_engine/transport/ascend_rdma/calibration.h"

#include <sched.h>

#include <algorithm>
#include <cmath>

namespace mooncake::bridge {
namespace {

constexpr size_t kSmall = size_t{64} << 10;
constexpr size_t kUnit = size_t{64} << 10;
constexpr double kTypicalTransfer = 64 << 20;
constexpr int kTries = 3;

Result<Duration> TimeCopy(CopyPort& port, Direction direction, const SlotCopy& copy, Duration patience) {
  const TimePoint begin = SteadyClock::Instance().Now();
  const CopyPort::Ticket ticket = port.Start(direction, {&copy, 1});
  bool aborted = false;
  while (true) {
    auto outcome = port.Poll(ticket);
    const Duration took = SteadyClock::Instance().Now() - begin;
    if (outcome) {
      MC_TRY(std::move(*outcome));
      if (aborted) return Error(ErrorCode::DATA_COPY_FAILED, "a trial copy of {} B did not end in time", copy.bytes);
      return took;
    }
    if (took > patience && !std::exchange(aborted, true)) port.Abort(ticket);
    (void)sched_yield();
  }
}

Result<Duration> BestOf(CopyPort& port, Direction direction, const SlotCopy& copy, Duration patience) {
  Duration best = Duration::max();
  for (int i = 0; i < kTries; ++i) best = std::min(best, MC_TRY(TimeCopy(port, direction, copy, patience)));
  return best;
}

Result<CopyRates> MeasureOn(CopyPort& port, AscendUnifiedPointer block, HostRange host, Duration patience) {
  CopyRates slower{.overhead = {}, .bytes_per_second = 1e15};
  for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
    const size_t small = std::min(kSmall, host.size());
    const Duration few = MC_TRY(BestOf(port, direction, {host.data(), block, small}, patience));
    const Duration many = MC_TRY(BestOf(port, direction, {host.data(), block, host.size()}, patience));
    if (host.size() == small || many <= few) {
      slower.overhead = std::max(slower.overhead, few);
      continue;
    }
    const double rate = static_cast<double>(host.size() - small) / std::chrono::duration<double>(many - few).count();
    const auto moving =
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(static_cast<double>(small) / rate));
    slower.bytes_per_second = std::min(slower.bytes_per_second, rate);
    slower.overhead = std::max(slower.overhead, few - std::min(few, moving));
  }
  // Too fast for a difference to show: say no more than what was seen.
  if (slower.bytes_per_second >= 1e15 && slower.overhead > Duration::zero()) {
    slower.bytes_per_second = static_cast<double>(host.size()) / std::chrono::duration<double>(slower.overhead).count();
  }
  return slower;
}

}  // namespace

Result<CopyRates> MeasureCopies(NpuRuntime& runtime, CopyPort& port, int32_t device_id, HostRange host,
                                Duration patience) {
  const AscendUnifiedPointer block = MC_TRY(runtime.Allocate(device_id, host.size()));
  auto rates = MeasureOn(port, block, host, patience);
  const auto freed = runtime.Free(block);
  if (rates && !freed) return std::unexpected(freed.error());
  return rates;
}

size_t BestChunk(const CopyRates& rates, size_t bytes_min, size_t bytes_max) {
  const double overhead = std::chrono::duration<double>(rates.overhead).count();
  const double best = std::min(std::sqrt(kTypicalTransfer * overhead * rates.bytes_per_second), 1e12);
  const size_t rounded = (static_cast<size_t>(best) + kUnit - 1) / kUnit * kUnit;
  return std::clamp(rounded, std::min(bytes_min, bytes_max), bytes_max);
}

}  // namespace mooncake::bridge
