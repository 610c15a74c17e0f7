// Counts the moments of fault rules and lets them fire.
#include "core/fault.h"

#include <thread>

#include "core/config.h"
#include "core/runtime.h"

namespace aclemu {
namespace {

// splitmix64: the same numbers everywhere, from any seed.
double NextRandom(uint64_t* state) {
  uint64_t z = (*state += 0x9E3779B97F4A7C15ULL);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

bool IsOfCopies(Effect effect) {
  return effect == Effect::kPartial || effect == Effect::kCorrupt || effect == Effect::kSlow;
}

bool Fits(const FaultRule& rule, const FaultPoint& point) {
  using Moment = FaultPoint::Moment;
  if (rule.by_itself) return false;
  if (rule.direction >= 0) {
    if (point.direction != rule.direction) return false;
    bool fits = point.moment == Moment::kCopy   ? rule.stage != Stage::kExec
                : point.moment == Moment::kExec ? rule.stage != Stage::kCall
                                                : point.moment == Moment::kSubmit && rule.stage == Stage::kCall;
    if (!fits) return false;
  } else {
    if (point.api == Api::kCount || !rule.apis[static_cast<size_t>(point.api)]) return false;
    bool fits = IsOfCopies(rule.effect) ? (point.moment == Moment::kCopy && rule.stage != Stage::kExec) ||
                                              (point.moment == Moment::kExec && rule.stage != Stage::kCall)
                                        : point.moment == (rule.stage == Stage::kExec ? Moment::kExec : Moment::kCall);
    if (!fits) return false;
  }
  if (rule.device >= 0 && rule.device != point.device) return false;
  if (rule.stream >= 0 && rule.stream != point.stream) return false;
  if (rule.thread != 0 && rule.thread != ThreadNumber()) return false;
  return point.bytes >= rule.min_bytes && point.bytes <= rule.max_bytes;
}

bool Triggers(FaultRule* rule) {
  ++rule->seen;
  if (rule->times != 0 && rule->fired >= rule->times) return false;
  if (rule->nth != 0) return rule->seen >= rule->nth;
  if (rule->every != 0) return rule->seen % rule->every == 0;
  if (rule->probability != 0) return NextRandom(&rule->random) < rule->probability;
  return true;
}

int64_t NowNs() {
  return Clock::now().time_since_epoch().count();
}

// What a failed copy gives when the rule names no code.
aclError DefaultCode(const FaultPoint& point) {
  if (point.moment != FaultPoint::Moment::kExec) return ACL_ERROR_RT_DRV_INTERNAL_ERROR;
  return point.direction == static_cast<int>(Direction::kD2D) ? ACL_ERROR_RT_SYS_DMA : ACL_ERROR_RT_TS_ERROR;
}

}  // namespace

FaultPlan& FaultPlan::Get() {
  static FaultPlan* const plan = new FaultPlan;
  return *plan;
}

FaultPlan::FaultPlan() {
  std::string why;
  std::vector<FaultRule> rules;
  if (!ParseFaults(Settings().fault, &rules, &why)) {
    RefuseConfig("ACLEMU_FAULT: " + why);
  }
  if (const JsonValue* more = Settings().file.Find("faults"); more != nullptr && !ParseFaults(*more, &rules, &why)) {
    RefuseConfig("ACLEMU_CONFIG: " + why);
  }
  Insert(std::move(rules));
}

void FaultPlan::Insert(std::vector<FaultRule> rules) {
  std::lock_guard lock(mu_);
  for (FaultRule& rule : rules) {
    rule.added_ns = NowNs();
    if (rule.by_itself) StartTimer(rule);
    rules_.push_back(std::move(rule));
  }
  armed_.store(!rules_.empty(), std::memory_order_relaxed);
}

bool FaultPlan::Add(const std::string& text, std::string* why) {
  std::vector<FaultRule> rules;
  if (!ParseFaults(text, &rules, why)) return false;
  bool at_once = false;
  for (FaultRule& rule : rules) {
    // "dev1@t0=lost": done when the call returns.
    if (!rule.by_itself || rule.after_ms != 0) continue;
    FaultPoint nowhere{FaultPoint::Moment::kCall, Api::kCount};
    Act(rule, nowhere, nullptr, generation_.load());
    fired_.fetch_add(1, std::memory_order_relaxed);
    at_once = true;
  }
  if (at_once) std::erase_if(rules, [](const FaultRule& r) { return r.by_itself && r.after_ms == 0; });
  if (text.find_first_not_of(" \t\n") == std::string::npos) {
    std::lock_guard lock(mu_);
    rules_.clear();
    generation_.fetch_add(1);
    armed_.store(false, std::memory_order_relaxed);
    std::lock_guard events(Event::mutex());
    Event::changed().notify_all();
  }
  if (!rules.empty()) Insert(std::move(rules));
  return true;
}

std::vector<FaultPlan::Count> FaultPlan::Counts() {
  std::lock_guard lock(mu_);
  std::vector<Count> counts;
  for (const FaultRule& rule : rules_) counts.push_back({rule.text, rule.seen, rule.fired});
  return counts;
}

void FaultPlan::StartTimer(const FaultRule& rule) {
  std::thread([this, rule, generation = generation_.load()] {
    MarkOwnThread();
    std::this_thread::sleep_for(std::chrono::milliseconds(rule.after_ms));
    if (generation_.load() != generation) return;
    Act(rule, {FaultPoint::Moment::kCall, Api::kCount}, nullptr, generation);
    fired_.fetch_add(1, std::memory_order_relaxed);
  }).detach();
}

FaultAction FaultPlan::CheckSlow(const FaultPoint& point, const Stop* stop) {
  FaultRule fired;
  bool fires = false;
  uint64_t generation;
  {
    std::lock_guard lock(mu_);
    generation = generation_.load();
    for (FaultRule& rule : rules_) {
      if (!Fits(rule, point)) continue;
      if (rule.after_ms != 0 && NowNs() - rule.added_ns < static_cast<int64_t>(rule.after_ms) * 1'000'000) continue;
      if (!Triggers(&rule) || fires) continue;
      ++rule.fired;
      fired = rule;
      fires = true;
    }
  }
  if (!fires) return {};
  fired_.fetch_add(1, std::memory_order_relaxed);
  return Act(fired, point, stop, generation);
}

FaultAction FaultPlan::Act(const FaultRule& rule, const FaultPoint& point, const Stop* stop, uint64_t generation) {
  FaultAction action{true, rule.effect, rule.code, rule.factor};
  int device = rule.device >= 0 ? rule.device : point.device;
  switch (rule.effect) {
    case Effect::kNone:
    case Effect::kCorrupt:
    case Effect::kSlow:
      break;
    case Effect::kPartial:
      if (action.code == ACL_SUCCESS) action.code = DefaultCode(point);
      break;
    case Effect::kDelay:
      // The clock is the program's; a task that ends later must not move it.
      if (IsVirtualTime() && point.moment == FaultPoint::Moment::kExec) {
        action.later_ms = rule.delay_ms;
        break;
      }
      Pause(Clock::now() + std::chrono::milliseconds(rule.delay_ms), [&] { return stop != nullptr && stop->IsSet(); });
      break;
    case Effect::kHang:
      Pause(kForever, [&] {
        if (stop != nullptr && stop->IsSet()) return true;
        if (device >= 0 && Runtime::Get().LostCode(device) != ACL_SUCCESS) return true;
        return generation_.load() != generation;
      });
      break;
    case Effect::kLost:
      if (action.code == ACL_SUCCESS) action.code = ACL_ERROR_RT_LOST_HEARTBEAT;
      if (device >= 0) Runtime::Get().LoseDevice(device, action.code);
      if (point.api == Api::aclrtSetDevice) action.code = ACL_ERROR_RT_DEV_SETUP_ERROR;
      break;
    case Effect::kCapacity:
      if (device >= 0) Runtime::Get().LimitCapacity(device, rule.capacity);
      break;
  }
  return action;
}

}  // namespace aclemu
