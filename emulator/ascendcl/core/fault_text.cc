// Reads fault rules, in the short form and from JSON.
#include <fnmatch.h>

#include <cerrno>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "core/config.h"
#include "core/fault.h"

namespace aclemu {
namespace {

constexpr size_t kApis = static_cast<size_t>(Api::kCount);
// These only read what the thread's last call left.
constexpr const char* kCannotFail[] = {"aclGetRecentErrMsg", "aclrtPeekAtLastError", "aclrtGetLastError"};

bool CannotFail(const char* name) {
  for (const char* other : kCannotFail) {
    if (strcmp(name, other) == 0) return true;
  }
  return false;
}

std::string Trim(const std::string& text) {
  size_t first = text.find_first_not_of(" \t\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(Trim(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

bool Number(const std::string& text, uint64_t least, uint64_t most, uint64_t* out) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos) return false;
  errno = 0;
  *out = strtoull(text.c_str(), nullptr, 10);
  return errno == 0 && *out >= least && *out <= most;
}

bool Real(const std::string& text, double least, double most, double* out) {
  char* end = nullptr;
  *out = strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0' && *out >= least && *out <= most;
}

// Each setter: false when the value does not fit.
bool SetCode(FaultRule* rule, const std::string& text) {
  uint64_t code = 0;
  if (!Number(text, 1, 999999, &code)) return false;
  rule->code = static_cast<aclError>(code);
  return true;
}

bool SetEffect(FaultRule* rule, const std::string& text) {
  std::string word = text.substr(0, text.find(':'));
  std::string value = word.size() < text.size() ? text.substr(word.size() + 1) : "";
  constexpr std::pair<const char*, Effect> kPlain[] = {{"none", Effect::kNone},
                                                       {"partial", Effect::kPartial},
                                                       {"corrupt", Effect::kCorrupt},
                                                       {"hang", Effect::kHang},
                                                       {"lost", Effect::kLost}};
  for (const auto& [name, effect] : kPlain) {
    if (word != name) continue;
    rule->effect = effect;
    return word.size() == text.size();
  }
  if (word == "slow") {
    rule->effect = Effect::kSlow;
    return Real(value, 1, 1e6, &rule->factor);
  }
  if (word == "delay") {
    rule->effect = Effect::kDelay;
    return Number(value, 1, 3'600'000, &rule->delay_ms);
  }
  if (word != "capacity") return false;
  rule->effect = Effect::kCapacity;
  return TryParseBytes(value, &rule->capacity);
}

bool SetStage(FaultRule* rule, const std::string& text) {
  rule->stage = text == "call" ? Stage::kCall : text == "exec" ? Stage::kExec : Stage::kDefault;
  return rule->stage != Stage::kDefault;
}

bool SetDevice(FaultRule* rule, const std::string& text) {
  uint64_t device = 0;
  if (!Number(text, 0, 63, &device)) return false;
  rule->device = static_cast<int>(device);
  return true;
}

bool SetStream(FaultRule* rule, const std::string& text) {
  uint64_t stream = 0;
  if (!Number(text, 0, INT64_MAX, &stream)) return false;
  rule->stream = static_cast<int64_t>(stream);
  return true;
}

bool SetThread(FaultRule* rule, const std::string& text) {
  uint64_t thread = 0;
  if (!Number(text, 1, UINT32_MAX, &thread)) return false;
  rule->thread = static_cast<uint32_t>(thread);
  return true;
}

// What the rule is about: a class, devN, or functions by name or pattern.
bool SetTarget(FaultRule* rule, const std::string& name, std::string* why) {
  constexpr const char* kDirections[] = {"H2D", "D2H", "D2D"};
  for (int d = 0; d < 3; ++d) {
    if (name != kDirections[d]) continue;
    rule->direction = d + 1;
    return true;
  }
  std::string pattern = name;
  if (name == "sync") pattern = "aclrtSynchronize*";
  if (name == "any") pattern = "*";
  if (name.compare(0, 3, "dev") == 0 && SetDevice(rule, name.substr(3))) {
    pattern = "*";
    rule->by_itself = true;  // until a trigger that counts calls takes it back
  }
  if (CannotFail(name.c_str())) {
    *why = "'" + name + "' cannot fail";
    return false;
  }
  rule->apis.assign(kApis, false);
  bool any = false;
  for (size_t i = 0; i < kApis; ++i) {
    const char* api = Name(static_cast<Api>(i));
    if (fnmatch(pattern.c_str(), api, 0) != 0 || CannotFail(api)) continue;
    rule->apis[i] = any = true;
  }
  if (!any) *why = "'" + name + "' is neither an ACL function nor H2D, D2H, D2D, sync, any or devN";
  return any;
}

struct Field {
  const char* key;
  bool (*set)(FaultRule* rule, const std::string& text);
};

constexpr Field kFilters[] = {
    {"device", SetDevice},
    {"thread", SetThread},
    {"stream", SetStream},
    {"min_size", [](FaultRule* r, const std::string& t) { return TryParseBytes(t, &r->min_bytes); }},
    {"max_size", [](FaultRule* r, const std::string& t) { return TryParseBytes(t, &r->max_bytes); }},
};
constexpr Field kTriggers[] = {
    {"nth", [](FaultRule* r, const std::string& t) { return Number(t, 1, UINT64_MAX, &r->nth); }},
    {"every", [](FaultRule* r, const std::string& t) { return Number(t, 1, UINT64_MAX, &r->every); }},
    {"prob", [](FaultRule* r, const std::string& t) { return Real(t, 1e-12, 1, &r->probability); }},
    {"after_ms", [](FaultRule* r, const std::string& t) { return Number(t, 0, UINT32_MAX, &r->after_ms); }},
    {"times", [](FaultRule* r, const std::string& t) { return Number(t, 1, UINT64_MAX, &r->times); }},
    {"seed", [](FaultRule* r, const std::string& t) { return Number(t, 0, UINT64_MAX, &r->random); }},
};
constexpr Field kResults[] = {{"stage", SetStage}, {"return", SetCode}, {"effect", SetEffect}};

template <size_t n>
const Field* FindField(const Field (&fields)[n], const std::string& key) {
  for (const Field& field : fields) {
    if (key == field.key) return &field;
  }
  return nullptr;
}

// Whether the rule is about something that moves bytes.
bool IsAboutCopies(const FaultRule& rule, bool only_async) {
  if (rule.direction >= 0) return true;
  for (size_t i = 0; i < kApis; ++i) {
    const char* name = Name(static_cast<Api>(i));
    if (rule.apis[i] && strstr(name, "Memcpy") != nullptr && (!only_async || strstr(name, "Async") != nullptr)) {
      return true;
    }
  }
  return false;
}

// Rules that could never do what they say are refused.
bool Complete(FaultRule* rule, std::string* why) {
  auto refuse = [&](const char* reason) {
    *why = "'" + rule->text + "': " + reason;
    return false;
  };
  int triggers = (rule->nth != 0) + (rule->every != 0) + (rule->probability != 0);
  if (triggers > 1) return refuse("only one of nth, every and prob");
  if (triggers > 0) rule->by_itself = false;
  bool of_copies =
      rule->effect == Effect::kPartial || rule->effect == Effect::kCorrupt || rule->effect == Effect::kSlow;
  if (of_copies && !IsAboutCopies(*rule, false)) return refuse("only a copy can be partial, corrupt or slow");
  if (rule->stage == Stage::kExec && !IsAboutCopies(*rule, true)) {
    return refuse("only an asynchronous copy has a stage exec");
  }
  if (rule->effect == Effect::kNone && rule->code == ACL_SUCCESS) return refuse("neither a code nor an effect");
  if ((rule->effect == Effect::kCorrupt || rule->effect == Effect::kSlow || rule->effect == Effect::kCapacity) &&
      rule->code != ACL_SUCCESS) {
    return refuse("this effect takes no code");
  }
  bool of_device = rule->effect == Effect::kLost || rule->effect == Effect::kCapacity;
  if (!of_device) rule->by_itself = false;
  if (rule->times == 0 && (rule->nth != 0 || of_device)) rule->times = 1;
  if (rule->device >= 0 && static_cast<uint32_t>(rule->device) >= Settings().devices) return refuse("no such device");
  if (rule->min_bytes > rule->max_bytes) return refuse("min_size is above max_size");
  return true;
}

// "3", "every:3", "%0.01", "t200", then options "exec", "call", "x2", "seed=7", all separated by ':'.
bool ParseTrigger(const std::string& text, FaultRule* rule) {
  std::vector<std::string> parts = Split(text, ':');
  size_t next = 1;
  const std::string& first = parts[0];
  bool fits = false;
  if (first == "every") {
    fits = parts.size() > 1 && Number(parts[next++], 1, UINT64_MAX, &rule->every);
  } else if (!first.empty() && first[0] == '%') {
    fits = Real(first.substr(1), 1e-12, 1, &rule->probability);
  } else if (!first.empty() && first[0] == 't') {
    fits = Number(first.substr(1), 0, UINT32_MAX, &rule->after_ms);
  } else {
    fits = Number(first, 1, UINT64_MAX, &rule->nth);
  }
  for (; fits && next < parts.size(); ++next) {
    const std::string& option = parts[next];
    if (option.compare(0, 5, "seed=") == 0) {
      fits = Number(option.substr(5), 0, UINT64_MAX, &rule->random);
    } else if (!option.empty() && option[0] == 'x') {
      fits = Number(option.substr(1), 1, UINT64_MAX, &rule->times);
    } else {
      fits = SetStage(rule, option);
    }
  }
  return fits;
}

bool ParseFilters(const std::string& text, FaultRule* rule) {
  for (const std::string& part : Split(text, ',')) {
    size_t equals = part.find('=');
    if (equals == std::string::npos) return false;
    std::string key = part.substr(0, equals);
    if (key == "dev") key = "device";
    if (key == "min" || key == "max") key += "_size";
    const Field* field = FindField(kFilters, key);
    if (field == nullptr || !field->set(rule, part.substr(equals + 1))) return false;
  }
  return true;
}

bool ParseShort(const std::string& text, FaultRule* rule, std::string* why) {
  rule->text = text;
  *why = "'" + text + "' is not name@N=code (or another form of docs/emulator.md)";
  size_t at = text.find('@'), equals = text.rfind('=');
  if (at == std::string::npos || equals == std::string::npos || equals < at) return false;
  std::string target = Trim(text.substr(0, at));
  std::string trigger = Trim(text.substr(at + 1, equals - at - 1));
  size_t bracket = target.find('[');
  // A pattern may hold brackets of its own; filters have an equals sign.
  if (bracket != std::string::npos && target.find('=', bracket) != std::string::npos) {
    if (target.back() != ']') return false;
    if (!ParseFilters(target.substr(bracket + 1, target.size() - bracket - 2), rule)) return false;
    target = Trim(target.substr(0, bracket));
  }
  if (!ParseTrigger(trigger, rule)) return false;
  for (const std::string& result : Split(text.substr(equals + 1), ',')) {
    if (!SetCode(rule, result) && !SetEffect(rule, result)) return false;
  }
  return SetTarget(rule, target, why) && Complete(rule, why);
}

// A number as a person would write it, so that both forms share their setters.
std::string AsText(const JsonValue& value) {
  if (value.kind != JsonValue::Kind::kNumber) return value.text;
  char text[40];
  snprintf(text, sizeof(text), value.number == std::floor(value.number) ? "%.0f" : "%.15g", value.number);
  return text;
}

bool ParseObject(const JsonValue& object, FaultRule* rule, std::string* why) {
  std::string target;
  if (object.kind != JsonValue::Kind::kObject) {
    *why = "a fault is not an object";
    return false;
  }
  for (const auto& [key, value] : object.members) {
    bool scalar = value.kind == JsonValue::Kind::kNumber || value.kind == JsonValue::Kind::kString;
    std::string text = AsText(value);
    rule->text += (rule->text.empty() ? "" : ", ") + key + ": " + text;
    bool fits = scalar;
    if (key == "api" || key == "op") {
      fits = scalar && target.empty();
      target = text;
    } else if (key == "capacity") {
      rule->effect = Effect::kCapacity;
      fits = scalar && TryParseBytes(text, &rule->capacity);
    } else {
      const Field* field = FindField(kFilters, key);
      if (field == nullptr) field = FindField(kTriggers, key);
      if (field == nullptr) field = FindField(kResults, key);
      if (field == nullptr) {
        *why = "unknown key '" + key + "' of a fault";
        return false;
      }
      fits = scalar && field->set(rule, text);
    }
    if (fits) continue;
    *why = "a fault has a bad " + key + " (" + text + ")";
    return false;
  }
  if (target.empty()) target = "any";
  // A target that only names a device must not lose the filter.
  bool by_time = object.Find("after_ms") != nullptr && rule->device >= 0 && target == "any";
  if (!SetTarget(rule, target, why)) return false;
  rule->by_itself = rule->by_itself || by_time;
  return Complete(rule, why);
}

}  // namespace

bool ParseFaults(const JsonValue& array, std::vector<FaultRule>* out, std::string* why) {
  if (array.kind != JsonValue::Kind::kArray) {
    *why = "\"faults\" is not an array";
    return false;
  }
  for (const JsonValue& item : array.items) {
    FaultRule rule;
    if (!ParseObject(item, &rule, why)) return false;
    out->push_back(std::move(rule));
  }
  return true;
}

bool ParseFaults(const std::string& text, std::vector<FaultRule>* out, std::string* why) {
  std::string trimmed = Trim(text);
  if (!trimmed.empty() && (trimmed[0] == '[' || trimmed[0] == '{')) {
    JsonValue value;
    if (!ParseJson(trimmed, &value, why)) return false;
    if (value.kind == JsonValue::Kind::kObject) {
      JsonValue array;
      array.kind = JsonValue::Kind::kArray;
      array.items.push_back(std::move(value));
      return ParseFaults(array, out, why);
    }
    return ParseFaults(value, out, why);
  }
  for (const std::string& one : Split(text, ';')) {
    if (one.empty()) continue;
    FaultRule rule;
    if (!ParseShort(one, &rule, why)) return false;
    out->push_back(std::move(rule));
  }
  return true;
}

}  // namespace aclemu
