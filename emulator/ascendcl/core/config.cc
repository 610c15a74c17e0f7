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

namespace aclemu {
namespace {

[[noreturn]] void Die(const std::string& what) {
  RefuseConfig(what);
}

uint64_t ParseBytes(const std::string& name, const std::string& text) {
  char* end = nullptr;
  errno = 0;
  unsigned long long value = strtoull(text.c_str(), &end, 10);
  unsigned shift = 0;
  if (*end != '\0') {
    switch (*end++) {
      case 'k':
      case 'K':
        shift = 10;
        break;
      case 'm':
      case 'M':
        shift = 20;
        break;
      case 'g':
      case 'G':
        shift = 30;
        break;
      case 't':
      case 'T':
        shift = 40;
        break;
      default:
        Die(name + "=" + text + " is no size (bytes, or with K, M, G, T)");
    }
  }
  bool plain = !text.empty() && text[0] >= '0' && text[0] <= '9';
  if (!plain || *end != '\0' || errno != 0 || value > (1ULL << 44 >> shift)) {
    Die(name + "=" + text + " is no size (bytes, or with K, M, G, T)");
  }
  return value << shift;
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
    {"ACLEMU_SCHED",
     [](Config& c, const std::string& n, const std::string& t) {
       c.sched = ParseChoice<Sched>(n, t, {{"eager", Sched::kEager}, {"lazy", Sched::kLazy}});
     }},
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
  if (config.hbm_reserved > config.hbm_bytes) Die("ACLEMU_HBM_RESERVED is more than ACLEMU_HBM");
  return config;
}

}  // namespace

void RefuseConfig(const std::string& what) {
  fprintf(stderr, "aclemu: %s\n", what.c_str());
  fflush(nullptr);
  _exit(kBadConfigExit);
}

const Config& Settings() {
  static const Config* const config = new Config(Parse());
  return *config;
}

}  // namespace aclemu
