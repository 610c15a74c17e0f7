// Parses the ACLEMU_* environment variables.
#include "core/config.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "core/model.h"

namespace aclemu {
namespace {

[[noreturn]] void Die(const std::string& what) {
  RefuseConfig(what);
}

uint64_t ParseBytes(const std::string& name, const std::string& text) {
  uint64_t bytes = 0;
  if (!TryParseBytes(text, &bytes)) Die(name + "=" + text + " is no size (bytes, or with K, M, G, T)");
  return bytes;
}

// "30s", "500ms", 0 for never.
uint64_t ParseMilliseconds(const std::string& name, const std::string& text) {
  char* end = nullptr;
  unsigned long long value = strtoull(text.c_str(), &end, 10);
  std::string unit = end;
  bool plain = !text.empty() && text[0] >= '0' && text[0] <= '9' && value <= 1'000'000'000;
  if (plain && value == 0 && unit.empty()) return 0;
  if (plain && unit == "ms") return value;
  if (plain && unit == "s") return value * 1000;
  Die(name + "=" + text + " is no time (like 30s or 500ms, 0 for never)");
}

bool ParseBool(const std::string& name, const std::string& text) {
  if (text == "1") return true;
  if (text == "0") return false;
  Die(name + "=" + text + " must be 0 or 1");
}

template <typename E>
E ParseChoice(const std::string& name, const std::string& text, std::initializer_list<std::pair<const char*, E>> all) {
  std::string known;
  for (const auto& [word, value] : all) {
    if (text == word) return value;
    known += std::string(known.empty() ? "" : "|") + word;
  }
  Die(name + "=" + text + " must be " + known);
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

void ParseSched(Config& c, const std::string& name, const std::string& text) {
  constexpr const char kRandom[] = "random:";
  if (text.compare(0, strlen(kRandom), kRandom) == 0) {
    std::string seed = text.substr(strlen(kRandom));
    if (seed.empty() || seed.find_first_not_of("0123456789") != std::string::npos) Die(name + "=" + text + ": no seed");
    c.sched = Sched::kRandom;
    c.sched_seed = strtoull(seed.c_str(), nullptr, 10);
    return;
  }
  c.sched = ParseChoice<Sched>(name, text,
                               {{"eager", Sched::kEager},
                                {"lazy", Sched::kLazy},
                                {"random:SEED", Sched::kRandom},
                                {"timed", Sched::kTimed},
                                {"manual", Sched::kManual}});
}

JsonValue ReadFile(const std::string& path) {
  std::string text, why;
  FILE* file = fopen(path.c_str(), "re");
  if (file == nullptr) Die("ACLEMU_CONFIG: cannot read " + path);
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), file)) > 0;) text.append(buffer, n);
  bool unreadable = ferror(file) != 0;  // a directory opens
  fclose(file);
  if (unreadable) Die("ACLEMU_CONFIG: cannot read " + path);
  JsonValue value;
  if (!ParseJson(text, &value, &why)) Die("ACLEMU_CONFIG: " + path + ": " + why);
  if (value.kind != JsonValue::Kind::kObject) Die("ACLEMU_CONFIG: " + path + " holds no object");
  for (const auto& [key, member] : value.members) {
    if (key != "faults" && key != "model") Die("ACLEMU_CONFIG: unknown key '" + key + "' (known: faults, model)");
  }
  return value;
}

void SetParam(const std::string& where, const std::string& name, double value) {
  double present = 0;
  if (!GetModelParam(name, &present)) {
    Die(where + ": unknown model parameter '" + name + "' (known: " + ModelParamNames() + ")");
  }
  if (!SetModelParam(name, value)) Die(where + ": bad value of " + name);
}

// The file first, so that the knob wins.
void ApplyModel(const Config& config) {
  if (const JsonValue* model = config.file.Find("model")) {
    if (model->kind != JsonValue::Kind::kObject) Die("ACLEMU_CONFIG: \"model\" is no object");
    if (const JsonValue* profile = model->Find("profile"); profile != nullptr && !SetModelProfile(profile->text)) {
      Die("ACLEMU_CONFIG: the model profile must be a2|a3|bench");
    }
    for (const auto& [name, value] : model->members) {
      if (name == "profile") continue;
      if (value.kind != JsonValue::Kind::kNumber) Die("ACLEMU_CONFIG: " + name + " is no number");
      SetParam("ACLEMU_CONFIG", name, value.number);
    }
  }
  std::string rest = config.model;
  for (bool first = true; !rest.empty(); first = false) {
    std::string part = rest.substr(0, rest.find(','));
    rest.erase(0, part.size() + 1);
    size_t equals = part.find('=');
    if (equals == std::string::npos && first && SetModelProfile(part)) continue;
    if (equals == std::string::npos) Die("ACLEMU_MODEL=" + config.model + " must be a2|a3|bench, then name=value,...");
    char* end = nullptr;
    double value = strtod(part.c_str() + equals + 1, &end);
    if (*end != '\0' || end == part.c_str() + equals + 1) Die("ACLEMU_MODEL: " + part + " has no number");
    SetParam("ACLEMU_MODEL", part.substr(0, equals), value);
  }
}

// What knobs mean together.
void Combine(Config& c) {
  SetModelProfile(c.soc->name);  // chips without a profile of their own take the first
  if (c.sched == Sched::kTimed && c.time == TimeMode::kOff) c.time = TimeMode::kModel;
  if (c.time == TimeMode::kVirtual && c.sched != Sched::kEager && c.sched != Sched::kTimed) {
    Die("ACLEMU_TIME=virtual decides itself when tasks run: ACLEMU_SCHED must be eager or timed");
  }
  ApplyModel(c);
}

struct Knob {
  const char* name;
  void (*apply)(Config&, const std::string& name, const std::string& text);
};

constexpr Knob kKnobs[] = {
    {"ACLEMU_DEVICES",
     [](Config& c, const std::string& n, const std::string& t) {
       uint64_t count = ParseBytes(n, t);
       if (count < 1 || count > 64) Die(n + "=" + t + " must be 1 to 64");
       c.devices = static_cast<uint32_t>(count);
     }},
    {"ACLEMU_HBM",
     [](Config& c, const std::string& n, const std::string& t) {
       c.hbm_bytes = ParseBytes(n, t) >> 21 << 21;
       if (c.hbm_bytes == 0) Die(n + "=" + t + " is less than one page of 2M");
     }},
    {"ACLEMU_KEEP", [](Config& c, const std::string& n, const std::string& t) { c.keep_bytes = ParseBytes(n, t); }},
    {"ACLEMU_SCHED", [](Config& c, const std::string& n, const std::string& t) { ParseSched(c, n, t); }},
    {"ACLEMU_VIOLATION",
     [](Config& c, const std::string& n, const std::string& t) {
       c.on_violation = ParseChoice<OnViolation>(
           n, t, {{"return", OnViolation::kReturn}, {"abort", OnViolation::kAbort}, {"log", OnViolation::kLog}});
     }},
    {"ACLEMU_HOSTMEM",
     [](Config& c, const std::string& n, const std::string& t) {
       c.host_mem = ParseChoice<HostMem>(
           n, t, {{"auto", HostMem::kAuto}, {"plain", HostMem::kPlain}, {"secret", HostMem::kSecret}});
     }},
    {"ACLEMU_PAGEABLE",
     [](Config& c, const std::string& n, const std::string& t) {
       c.pageable_sync = ParseChoice<bool>(n, t, {{"refuse", false}, {"sync", true}});
       c.pageable_chosen = true;
     }},
    {"ACLEMU_PROFILE",
     [](Config& c, const std::string& n, const std::string& t) {
       c.release = FindRelease(t);
       if (c.release == nullptr) Die(n + "=" + t + " must be " + ReleaseNames());
     }},
    {"ACLEMU_SOC",
     [](Config& c, const std::string& n, const std::string& t) {
       c.soc = FindSoc(t);
       if (c.soc == nullptr) Die(n + "=" + t + " must be " + SocNames());
     }},
    {"ACLEMU_POISON", [](Config& c, const std::string& n, const std::string& t) { c.poison = ParseBool(n, t); }},
    {"ACLEMU_LEAK_FATAL",
     [](Config& c, const std::string& n, const std::string& t) { c.leak_fatal = ParseBool(n, t); }},
    {"ACLEMU_REPORT", [](Config& c, const std::string&, const std::string& t) { c.report = t; }},
    {"ACLEMU_FAULT", [](Config& c, const std::string&, const std::string& t) { c.fault = t; }},
    {"ACLEMU_DIR", [](Config& c, const std::string&, const std::string& t) { c.dir = t; }},
    {"ACLEMU_HBM_RESERVED",
     [](Config& c, const std::string& n, const std::string& t) {
       c.hbm_reserved = (ParseBytes(n, t) + (2u << 20) - 1) >> 21 << 21;
     }},
    {"ACLEMU_CACHE", [](Config& c, const std::string& n, const std::string& t) { c.cache = ParseBool(n, t); }},
    {"ACLEMU_SEGV", [](Config& c, const std::string& n, const std::string& t) { c.segv = ParseBool(n, t); }},
    {"ACLEMU_TIME",
     [](Config& c, const std::string& n, const std::string& t) {
       c.time = ParseChoice<TimeMode>(
           n, t, {{"off", TimeMode::kOff}, {"model", TimeMode::kModel}, {"virtual", TimeMode::kVirtual}});
     }},
    {"ACLEMU_MODEL", [](Config& c, const std::string&, const std::string& t) { c.model = t; }},
    {"ACLEMU_CONFIG", [](Config& c, const std::string&, const std::string& t) { c.file = ReadFile(t); }},
    {"ACLEMU_WATCHDOG",
     [](Config& c, const std::string& n, const std::string& t) { c.watchdog_ms = ParseMilliseconds(n, t); }},
    {"ACLEMU_RACE", [](Config& c, const std::string& n, const std::string& t) { c.race = ParseBool(n, t); }},
    {"ACLEMU_STACK", [](Config& c, const std::string& n, const std::string& t) { c.stack = ParseBool(n, t); }},
    {"ACLEMU_POISON_OUT",
     [](Config& c, const std::string& n, const std::string& t) { c.poison_out = ParseBool(n, t); }},
    {"ACLEMU_TRACE", [](Config& c, const std::string&, const std::string& t) { c.trace = t; }},
};

void RefuseUnknown(const std::string& name) {
  const char* nearest = kKnobs[0].name;
  for (const Knob& knob : kKnobs) {
    if (EditDistance(name, knob.name) < EditDistance(name, nearest)) nearest = knob.name;
  }
  Die("unknown knob " + name + " (nearest: " + nearest + ")");
}

// What the knobs left open. The libraries decide which functions a program finds, so they must not be of a later
// release than the rules.
void Complete(Config* config) {
  const ReleaseTraits& facade = FacadeRelease();
  if (config->release == nullptr) config->release = &facade;
  const std::string name = config->release->name;
  if (config->release->number < facade.number) {
    Die("ACLEMU_PROFILE=" + name + " needs the libraries of lib64-" + name + ", but those of " + facade.name +
        " were loaded (with_npu_emulator.sh --profile " + name + ")");
  }
  if (config->soc == nullptr) config->soc = FindSoc("a2");
  if (!config->pageable_chosen) config->pageable_sync = config->release->pageable_sync;
}

Config Parse() {
  Config config;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (strncmp(*entry, "ACLEMU_", 7) != 0) continue;
    std::string name(*entry, strcspn(*entry, "="));
    std::string text = (*entry)[name.size()] == '=' ? *entry + name.size() + 1 : "";
    const Knob* known =
        std::find_if(std::begin(kKnobs), std::end(kKnobs), [&](const Knob& k) { return name == k.name; });
    if (known == std::end(kKnobs)) RefuseUnknown(name);
    known->apply(config, name, text);
  }
  Complete(&config);
  Combine(config);
  if (config.hbm_reserved > config.hbm_bytes) Die("ACLEMU_HBM_RESERVED is more than ACLEMU_HBM");
  return config;
}

}  // namespace

void RefuseConfig(const std::string& what) {
  fprintf(stderr, "aclemu: %s\n", what.c_str());
  fflush(nullptr);
  _exit(kBadConfigExit);
}

bool TryParseBytes(const std::string& text, uint64_t* out) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return false;
  char* end = nullptr;
  errno = 0;
  unsigned long long value = strtoull(text.c_str(), &end, 10);
  constexpr const char kUnits[] = "KMGT";
  unsigned shift = 0;
  if (*end != '\0') {
    const char* unit = strchr(kUnits, toupper(*end++));
    if (unit == nullptr) return false;
    shift = static_cast<unsigned>(unit - kUnits + 1) * 10;
  }
  if (*end != '\0' || errno != 0 || value > (1ULL << 44 >> shift)) return false;
  *out = value << shift;
  return true;
}

const Config& Settings() {
  static const Config* const config = new Config(Parse());
  return *config;
}

}  // namespace aclemu
