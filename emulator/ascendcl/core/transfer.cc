// Copies and fills with their faults and their time.
#include "core/transfer.h"

#include <algorithm>
#include <atomic>

#include "core/fault.h"
#include "core/model.h"
#include "core/runtime.h"

namespace aclemu {
namespace {

using Steady = std::chrono::steady_clock;

// A copy takes its way piece by piece, so that copies of several streams share it.
constexpr double kSliceNs = 2e6;
constexpr uint64_t kSliceAlign = 64 << 10;

// What the emulator's own move costs, learnt from the moves so far.
std::atomic<double> ns_per_byte{0.4};

Place Part(const Place& place, uint64_t at) {
  Place part = place;
  part.addr += at;
  part.room = place.room == UINT64_MAX ? UINT64_MAX : place.room - at;
  return part;
}

bool Stopped(const Stop* stop) {
  return stop != nullptr && stop->IsSet();
}

aclError LostCodeOf(const Place& place) {
  return place.cls == MemClass::kDevice ? Runtime::Get().LostCode(place.range->device) : ACL_SUCCESS;
}

// Inverts a byte at the begin, in the middle and at the end.
void FlipBytes(const Place& dst, uint64_t bytes) {
  for (uint64_t at : {uint64_t{0}, bytes / 2, bytes - 1}) {
    uint8_t byte = 0;
    Place local;
    local.addr = reinterpret_cast<uintptr_t>(&byte);
    if (CopyBytes(local, Part(dst, at), 1) != ACL_SUCCESS) return;
    byte = static_cast<uint8_t>(~byte);
    CopyBytes(Part(dst, at), local, 1);
  }
}

// move(at, bytes) moves one piece. Each piece arrives about when the model says.
template <typename Move>
Outcome MoveInTime(const Transfer& t, const Way& way, uint64_t bytes, Move&& move) {
  double slice_bytes = std::max<double>(RateOf(way) * kSliceNs, kSliceAlign);
  uint64_t pieces = std::max<uint64_t>(1, static_cast<uint64_t>(static_cast<double>(bytes) / slice_bytes + 0.5));
  uint64_t piece = (bytes / pieces + kSliceAlign - 1) / kSliceAlign * kSliceAlign;
  Outcome outcome{ACL_SUCCESS, t.ready};
  for (uint64_t at = 0; at < bytes && !Stopped(t.stop); at += piece) {
    uint64_t n = std::min(piece, bytes - at);
    outcome.end = Reserve(way, outcome.end, at == 0 && t.async ? Model().latency_us : 0, n);
    double per_byte = ns_per_byte.load(std::memory_order_relaxed);
    auto lead = Clock::duration(static_cast<Clock::rep>(per_byte * static_cast<double>(n) * 1.25) + 60'000);
    if (outcome.end - lead > Clock::now()) SleepUntil(outcome.end - lead, t.stop);
    auto begin = Steady::now();
    outcome.code = move(at, n);
    if (outcome.code != ACL_SUCCESS) return outcome;
    NoteProgress();
    double measured = static_cast<double>((Steady::now() - begin).count()) / static_cast<double>(n);
    if (n >= kSliceAlign) ns_per_byte.store(per_byte * 0.75 + measured * 0.25, std::memory_order_relaxed);
  }
  SleepUntil(outcome.end, t.stop);
  return outcome;
}

template <typename Move>
Outcome MoveAtOnce(const Transfer& t, double slower, uint64_t bytes, Move&& move) {
  auto begin = Clock::now();
  aclError code = move(0, bytes);
  if (slower > 1)
    Pause(begin + std::chrono::duration_cast<Clock::duration>((Clock::now() - begin) * slower),
          [&] { return Stopped(t.stop); });
  return {code, Clock::now()};
}

}  // namespace

Outcome RunCopy(const Transfer& t) {
  Way way = WayOf(t.dst, t.src);
  int direction = static_cast<int>(way.direction);
  for (aclError lost : {LostCodeOf(t.dst), LostCodeOf(t.src)}) {
    if (lost != ACL_SUCCESS) return {lost, t.ready};
  }
  auto moment = t.async ? FaultPoint::Moment::kExec : FaultPoint::Moment::kCopy;
  int device = way.direction == Direction::kH2H ? -1 : way.device;
  FaultAction fault = FaultPlan::Get().Check({moment, t.api, direction, device, t.bytes, t.stream}, t.stop);
  Transfer timed{t.dst, t.src, t.bytes, t.api, t.async, t.stream, t.ready, t.stop};
  if (IsVirtualTime() && t.async) {
    timed.ready += std::chrono::milliseconds(fault.later_ms);
  } else if (fault.fires && ModelOn()) {
    timed.ready = std::max(t.ready, Clock::now());  // after a delay
  }
  bool partial = fault.effect == Effect::kPartial;
  if (fault.code != ACL_SUCCESS && !partial) return {fault.code, timed.ready};
  if (Stopped(t.stop)) return {ACL_SUCCESS, timed.ready};
  if (t.async && way.pageable) {
    // Only reached in the 8.5 behaviour: a device copy that was told a pageable address.
    return {ACL_ERROR_RT_SYS_DMA, timed.ready};
  }
  if (fault.effect == Effect::kSlow) way.slower = fault.factor;
  uint64_t bytes = partial ? t.bytes / 2 : t.bytes;
  auto move = [&](uint64_t at, uint64_t n) { return CopyBytes(Part(t.dst, at), Part(t.src, at), n); };
  Outcome outcome = ModelOn() && way.direction != Direction::kH2H ? MoveInTime(timed, way, bytes, move)
                                                                  : MoveAtOnce(timed, way.slower, bytes, move);
  if (outcome.code == ACL_SUCCESS && partial) outcome.code = fault.code;
  if (fault.effect == Effect::kCorrupt) FlipBytes(t.dst, bytes);
  if (outcome.code != ACL_SUCCESS && !t.async) return outcome;
  Counters& stats = Stats();
  Bump((t.async ? stats.async_copies : stats.sync_copies)[direction]);
  Bump((t.async ? stats.async_bytes : stats.sync_bytes)[direction], t.bytes);
  size_t host = static_cast<size_t>(t.src.OnHost() ? t.src.cls : t.dst.cls);
  Bump(stats.copies_by_class[t.async][direction][host]);
  Bump(stats.bytes_by_class[t.async][direction][host], t.bytes);
  if (!t.async && way.pageable) Bump(stats.pageable_copies);
  return outcome;
}

Outcome RunFill(const Transfer& t, uint8_t value) {
  aclError lost = LostCodeOf(t.dst);
  if (lost != ACL_SUCCESS) return {lost, t.ready};
  auto move = [&](uint64_t at, uint64_t n) {
    SetBytes(Part(t.dst, at), value, n);
    return ACL_SUCCESS;
  };
  if (!ModelOn() || t.dst.OnHost()) return MoveAtOnce(t, 1, t.bytes, move);
  return MoveInTime(t, WayOf(t.dst, t.dst), t.bytes, move);
}

}  // namespace aclemu
