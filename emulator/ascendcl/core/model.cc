// Parameters and resources of the time model.
#include "core/model.h"

#include <array>
#include <atomic>
#include <cmath>
#include <mutex>
#include <utility>
#include <vector>

#include "core/config.h"

namespace aclemu {
namespace {

constexpr uint64_t kDriverCache = 36ULL << 20;  // allocations up to here come from a cache of the driver

struct Param {
  const char* name;
  double ModelParams::* member;
  double a2, a3, bench;
  bool may_be_zero;
};

constexpr Param kParams[] = {
    {"h2d_gbps", &ModelParams::h2d_gbps, 23, 60, 2, false},
    {"d2h_gbps", &ModelParams::d2h_gbps, 23, 54, 2, false},
    {"d2d_gbps", &ModelParams::d2d_gbps, 600, 600, 8, false},
    {"peer_gbps", &ModelParams::peer_gbps, 25, 165, 2, false},
    {"host_bus_gbps", &ModelParams::host_bus_gbps, 40, 0, 0, true},
    {"pageable_factor", &ModelParams::pageable_factor, 0.6, 0.6, 0.6, false},
    {"submit_us", &ModelParams::submit_us, 3, 3, 3, true},
    {"latency_us", &ModelParams::latency_us, 8, 10, 8, true},
    {"sync_copy_us", &ModelParams::sync_copy_us, 15, 15, 15, true},
    {"sync_us", &ModelParams::sync_us, 5, 5, 5, true},
    {"event_us", &ModelParams::event_us, 2, 2, 2, true},
    {"malloc_small_us", &ModelParams::malloc_small_us, 5, 5, 5, true},
    {"malloc_large_us", &ModelParams::malloc_large_us, 100, 100, 100, true},
    {"malloc_page_us", &ModelParams::malloc_page_us, 1, 1, 1, true},
    {"free_small_us", &ModelParams::free_small_us, 5, 5, 5, true},
    {"free_large_us", &ModelParams::free_large_us, 100, 100, 100, true},
    {"pin_2m_us", &ModelParams::pin_2m_us, 150, 150, 150, true},
    {"set_first_us", &ModelParams::set_first_us, 1.5e6, 1.5e6, 0, true},
    {"set_other_us", &ModelParams::set_other_us, 20000, 20000, 0, true},
    {"set_repeat_us", &ModelParams::set_repeat_us, 1, 1, 1, true},
};

ModelParams& Params() {
  static ModelParams* const params = [] {
    auto* p = new ModelParams{};
    for (const Param& param : kParams) p->*param.member = param.a2;
    return p;
  }();
  return *params;
}

const Param* FindParam(const std::string& name) {
  for (const Param& param : kParams) {
    if (name == param.name) return &param;
  }
  return nullptr;
}

struct Resources {
  std::mutex mu;  // guards both
  std::vector<std::array<Clock::time_point, 4>> free_at = std::vector<std::array<Clock::time_point, 4>>(64);
  Clock::time_point bus_free_at{};
};

Resources& Shared() {
  static Resources* const resources = new Resources;
  return *resources;
}

thread_local Clock::time_point call_due{};
thread_local bool paid_once = false;

}  // namespace

bool ModelOn() {
  return Settings().time != TimeMode::kOff;
}

const ModelParams& Model() {
  return Params();
}

bool SetModelProfile(const std::string& profile) {
  if (profile != "a2" && profile != "a3" && profile != "bench") return false;
  for (const Param& p : kParams) Params().*p.member = profile == "a2" ? p.a2 : profile == "a3" ? p.a3 : p.bench;
  return true;
}

bool SetModelParam(const std::string& name, double value) {
  const Param* param = FindParam(name);
  if (param == nullptr || !std::isfinite(value) || value < 0 || value > 1e9) return false;
  if (value == 0 && !param->may_be_zero) return false;
  Params().*param->member = value;
  return true;
}

bool GetModelParam(const std::string& name, double* value) {
  const Param* param = FindParam(name);
  if (param != nullptr) *value = Params().*param->member;
  return param != nullptr;
}

std::string ModelParamNames() {
  std::string names;
  for (const Param& param : kParams) names += std::string(names.empty() ? "" : ", ") + param.name;
  return names;
}

void BeginCallTime() {
  if (!ModelOn()) return;
  call_due = Clock::now();
  paid_once = false;
}

Clock::time_point Due(double us) {
  return call_due += Microseconds(us);
}

void ChargeUntil(Clock::time_point time) {
  if (!ModelOn()) return;
  call_due = std::max(call_due, time);
  SleepUntil(call_due, nullptr);
  AdvanceTo(call_due);
}

void Charge(double us) {
  if (ModelOn()) ChargeUntil(Due(us));
}

Clock::time_point DueOnce(double us) {
  return std::exchange(paid_once, true) ? call_due : Due(us);
}

void ChargeOnce(double us) {
  if (ModelOn()) ChargeUntil(DueOnce(us));
}

Way WayOf(const Place& dst, const Place& src) {
  Way way{DirectionOf(dst, src), 0, false, false};
  if (!src.OnHost()) {
    way.device = src.range->device;
  } else if (!dst.OnHost()) {
    way.device = dst.range->device;
  }
  way.peer = way.direction == Direction::kD2D && dst.range->device != src.range->device;
  way.pageable = src.cls == MemClass::kPageable || dst.cls == MemClass::kPageable;
  return way;
}

double RateOf(const Way& way) {
  const ModelParams& m = Params();
  double rate = way.direction == Direction::kH2D   ? m.h2d_gbps
                : way.direction == Direction::kD2H ? m.d2h_gbps
                : way.peer                         ? m.peer_gbps
                                                   : m.d2d_gbps;
  return rate * (way.pageable ? m.pageable_factor : 1) / way.slower;
}

Clock::time_point Reserve(const Way& way, Clock::time_point ready, double latency_us, uint64_t bytes) {
  if (way.direction == Direction::kH2H) return ready;
  auto takes = [&](double rate) { return Clock::duration(std::llround(static_cast<double>(bytes) / rate)); };
  Resources& shared = Shared();
  std::lock_guard lock(shared.mu);
  Clock::time_point& free_at = shared.free_at[static_cast<size_t>(way.device)][static_cast<size_t>(way.direction)];
  Clock::time_point start = std::max(ready + Microseconds(latency_us), free_at);
  Clock::time_point end = start + takes(RateOf(way));
  if (way.direction != Direction::kD2D && Params().host_bus_gbps > 0) {
    shared.bus_free_at = std::max(shared.bus_free_at, start) + takes(Params().host_bus_gbps);
    end = std::max(end, shared.bus_free_at);
  }
  return free_at = end;
}

void ChargeMalloc(uint64_t bytes) {
  const ModelParams& m = Params();
  double pages = std::ceil(static_cast<double>(bytes) / static_cast<double>(kChunk));
  Charge(bytes <= kDriverCache ? m.malloc_small_us : m.malloc_large_us + pages * m.malloc_page_us);
}

void ChargeFree(uint64_t bytes) {
  Charge(bytes <= kDriverCache ? Params().free_small_us : Params().free_large_us);
}

void ChargeSetDevice(bool repeat) {
  static std::atomic<bool> any{false};
  const ModelParams& m = Params();
  Charge(repeat ? m.set_repeat_us : any.exchange(true) ? m.set_other_us : m.set_first_us);
}

void ChargePin(uint64_t bytes) {
  Charge(static_cast<double>(bytes) / static_cast<double>(kChunk) * Params().pin_2m_us);
}

}  // namespace aclemu
