// Counters, violations and the report at exit.
#include "core/report.h"

#include <execinfo.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "core/config.h"
#include "core/fault.h"
#include "core/runtime.h"

namespace aclemu {
namespace {

constexpr const char* kApiNames[] = {
#define ACL_API(ret, name, params, args) #name,
#include "rules/api_list.inc"
#undef ACL_API
};
constexpr const char* kRuleNames[] = {"I1", "I2", "T1", "T2",  "T3", "M1", "M2", "M3",  "C1",  "C2",
                                      "C3", "C4", "C5", "C6",  "C7", "C8", "C9", "C10", "C11", "C13",
                                      "R2", "S1", "S2", "C12", "R1", "V1", "V2", "G1",  "M4"};
static_assert(std::size(kRuleNames) == static_cast<size_t>(Rule::kCount));

bool IsAdvice(size_t rule) {
  return rule == static_cast<size_t>(Rule::kM4);
}

// A program that breaks one rule in a loop must not drown its own output.
constexpr uint64_t kLoggedPerRule = 20;

struct ThreadText {
  char current[400] = "";
  char taken[400] = "";
  Api api = Api::kCount;
};
thread_local ThreadText thread_text;

void Format(const char* format, va_list args) {
  vsnprintf(thread_text.current, sizeof(thread_text.current), format, args);
}

// The first violation of each rule, for the report.
struct FirstCall {
  std::once_flag once;
  std::string call, message;
  std::vector<void*> stack;
};
FirstCall& First(size_t rule) {
  static auto* const all = new FirstCall[static_cast<size_t>(Rule::kCount)];
  return all[rule];
}

void Violated(Rule rule) {
  size_t index = static_cast<size_t>(rule);
  Bump(Stats().violations);
  uint64_t earlier = Stats().violations_by_rule[index].fetch_add(1, std::memory_order_relaxed);
  std::call_once(First(index).once, [&] {
    First(index).call = Name(CurrentApi());
    First(index).message = thread_text.current;
    First(index).stack = CaptureStack();
  });
  bool abort_now = Settings().on_violation == OnViolation::kAbort;
  if (earlier < kLoggedPerRule || abort_now) {
    Log("violation %s in %s: %s%s", Name(rule), Name(CurrentApi()), thread_text.current,
        earlier + 1 == kLoggedPerRule ? " (further ones are only counted)" : "");
  }
  if (!abort_now) return;
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
  abort();
}

class Json {
 public:
  void Number(const char* key, uint64_t value) { text_ += Key(key) + std::to_string(value); }
  void Open(const char* key, char bracket) {
    text_ += Key(key) + bracket;
    first_ = true;
  }
  void Close(char bracket) {
    text_ += bracket;
    first_ = false;
  }
  void Item(const std::string& json) {
    text_ += (first_ ? "" : ",");
    text_ += json;
    first_ = false;
  }
  const std::string& text() const { return text_; }

 private:
  std::string Key(const char* key) {
    std::string out = first_ ? "" : ",";
    first_ = false;
    return *key == '\0' ? out : out + "\"" + key + "\":";
  }
  std::string text_;
  bool first_ = true;
};

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

// ,"stack":[...] or nothing.
std::string StackJson(const std::vector<void*>& stack) {
  if (stack.empty()) return "";
  char** names = backtrace_symbols(stack.data(), static_cast<int>(stack.size()));
  if (names == nullptr) return "";
  std::string out = ",\"stack\":[";
  for (size_t i = 0; i < stack.size(); ++i) out += (i == 0 ? "" : ",") + Quoted(names[i]);
  free(names);
  return out + "]";
}

std::string LeakJson(const Leak& leak) {
  char line[200];
  snprintf(line, sizeof(line), "{\"kind\":\"%s\",\"device\":%d,\"address\":\"0x%llx\"", leak.kind, leak.device,
           static_cast<unsigned long long>(leak.address));
  std::string out = line;
  if (leak.policy >= 0) out += ",\"policy\":" + std::to_string(leak.policy);
  return out + StackJson(leak.stack) + ",\"bytes\":" + std::to_string(leak.bytes) + "}";
}

void AddCopies(Json* json) {
  constexpr const char* kDirections[] = {"h2h", "h2d", "d2h", "d2d"};
  constexpr const char* kClasses[] = {"pageable", "pinned", "registered", "device"};
  Counters& stats = Stats();
  json->Open("copies", '[');
  for (int async = 0; async < 2; ++async) {
    for (int d = 0; d < 4; ++d) {
      for (int c = 0; c < 4; ++c) {
        uint64_t count = stats.copies_by_class[async][d][c].load();
        if (count == 0) continue;
        json->Item(std::string("{\"kind\":\"") + kDirections[d] + "\",\"mode\":\"" + (async == 1 ? "async" : "sync") +
                   "\",\"host\":\"" + kClasses[c] + "\",\"count\":" + std::to_string(count) +
                   ",\"bytes\":" + std::to_string(stats.bytes_by_class[async][d][c].load()) + "}");
      }
    }
  }
  json->Close(']');
}

void AddFirstViolations(Json* json) {
  json->Open("first_violations", '[');
  for (size_t i = 0; i < std::size(kRuleNames); ++i) {
    const FirstCall& first = First(i);
    if (first.call.empty()) continue;
    json->Item("{\"rule\":" + Quoted(kRuleNames[i]) + ",\"call\":" + Quoted(first.call) +
               ",\"message\":" + Quoted(first.message) + StackJson(first.stack) + "}");
  }
  json->Close(']');
}

void AddFaults(Json* json) {
  json->Open("faults", '[');
  for (const FaultPlan::Count& count : FaultPlan::Get().Counts()) {
    json->Item("{\"rule\":" + Quoted(count.rule) + ",\"seen\":" + std::to_string(count.seen) +
               ",\"fired\":" + std::to_string(count.fired) + "}");
  }
  json->Close(']');
}

std::string ReportJson(const std::vector<Leak>& leaks) {
  Counters& stats = Stats();
  Json json;
  json.Open("", '{');
  json.Open("counters", '{');
#define FIELD(name) json.Number(#name, stats.name.load());
  ACLEMU_COUNTERS(FIELD)
#undef FIELD
  constexpr const char* kDirections[] = {"h2h", "h2d", "d2h", "d2d"};
  for (int d = 0; d < 4; ++d) {
    std::string direction = kDirections[d];
    json.Number(("sync_" + direction + "_copies").c_str(), stats.sync_copies[d].load());
    json.Number(("sync_" + direction + "_bytes").c_str(), stats.sync_bytes[d].load());
    json.Number(("async_" + direction + "_copies").c_str(), stats.async_copies[d].load());
    json.Number(("async_" + direction + "_bytes").c_str(), stats.async_bytes[d].load());
  }
  json.Number("faults_fired", FaultPlan::Get().fired());
  json.Close('}');
  json.Open("calls", '{');
  for (size_t i = 0; i < std::size(kApiNames); ++i) {
    if (stats.calls[i].load() != 0) json.Number(kApiNames[i], stats.calls[i].load());
  }
  json.Close('}');
  json.Open("failed_calls", '{');
  for (size_t i = 0; i < std::size(kApiNames); ++i) {
    if (stats.failed_calls[i].load() != 0) json.Number(kApiNames[i], stats.failed_calls[i].load());
  }
  json.Close('}');
  json.Open("violations", '{');
  for (size_t i = 0; i < std::size(kRuleNames); ++i) {
    uint64_t count = stats.violations_by_rule[i].load();
    if (count != 0 && !IsAdvice(i)) json.Number(kRuleNames[i], count);
  }
  json.Close('}');
  json.Open("advice", '{');
  for (size_t i = 0; i < std::size(kRuleNames); ++i) {
    uint64_t count = stats.violations_by_rule[i].load();
    if (count != 0 && IsAdvice(i)) json.Number(kRuleNames[i], count);
  }
  json.Close('}');
  AddFirstViolations(&json);
  AddCopies(&json);
  AddFaults(&json);
  json.Open("leaks", '[');
  for (const Leak& leak : leaks) json.Item(LeakJson(leak));
  json.Close(']');
  json.Close('}');
  return json.text() + "\n";
}

void WriteReport(const std::vector<Leak>& leaks) {
  const std::string& where = Settings().report;
  if (where.empty()) return;
  FILE* file = where == "stderr" ? stderr : fopen(where.c_str(), "we");
  if (file == nullptr) {
    Log("cannot write the report %s", where.c_str());
    return;
  }
  std::string text = ReportJson(leaks);
  bool written = fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file != stderr) written = fclose(file) == 0 && written;
  if (!written) Log("the report %s is incomplete", where.c_str());
}

// Runs after the program's own exit handlers and destructors, as this library is loaded before and never unloaded.
__attribute__((destructor)) void AtExit() {
  if (!Runtime::Started() || Runtime::Get().InForkedChild()) return;
  std::vector<Leak> leaks = Runtime::Get().Leaks();
  WriteReport(leaks);
  if (leaks.empty() || !Settings().leak_fatal) return;
  for (const Leak& leak : leaks) {
    Log("leak: %s on device %d, %llu bytes at 0x%llx", leak.kind, leak.device,
        static_cast<unsigned long long>(leak.bytes), static_cast<unsigned long long>(leak.address));
  }
  fflush(nullptr);
  _exit(kLeakExit);
}

}  // namespace

const char* Name(Api api) {
  return api == Api::kCount ? "?" : kApiNames[static_cast<size_t>(api)];
}
const char* Name(Rule rule) {
  return kRuleNames[static_cast<size_t>(rule)];
}

Counters& Stats() {
  static Counters* const counters = new Counters{};
  return *counters;
}

void AddPagedBytes(uint64_t bytes) {
  uint64_t now = Stats().device_paged_bytes.fetch_add(bytes) + bytes;
  uint64_t peak = Stats().device_peak_paged_bytes.load();
  while (peak < now && !Stats().device_peak_paged_bytes.compare_exchange_weak(peak, now)) {
  }
}

void ResetStats() {
  Counters& s = Stats();
  for (Counter* c :
       {&s.device_allocs, &s.device_allocs_failed, &s.device_frees, &s.host_allocs, &s.host_frees, &s.host_registers,
        &s.host_unregisters, &s.memsets, &s.pageable_copies, &s.pageable_async_fallbacks, &s.set_device_calls,
        &s.set_device_switches, &s.streams_created, &s.events_created, &s.submits_blocked, &s.synchronizes,
        &s.violations, &s.submit_blocked_ns, &s.waited_ns}) {
    c->store(0);
  }
  for (auto* four : {&s.sync_copies, &s.sync_bytes, &s.async_copies, &s.async_bytes}) {
    for (Counter& c : *four) c.store(0);
  }
  for (auto* all : {&s.copies_by_class, &s.bytes_by_class}) {
    for (auto& mode : *all) {
      for (auto& direction : mode) {
        for (Counter& c : direction) c.store(0);
      }
    }
  }
  for (Counter& c : s.violations_by_rule) c.store(0);
  for (Counter& c : s.calls) c.store(0);
  for (Counter& c : s.failed_calls) c.store(0);
  s.device_peak_paged_bytes.store(s.device_paged_bytes.load());
  FaultPlan::Get().ResetFired();
}

void Log(const char* format, ...) {
  char line[600] = "aclemu: ";
  va_list args;
  va_start(args, format);
  vsnprintf(line + 8, sizeof(line) - 9, format, args);
  va_end(args);
  size_t length = strlen(line);
  line[length] = '\n';
  // One write, so that lines of several threads do not mix.
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, line, length + 1);
}

void Broken(const char* what) {
  Log("cannot go on: %s (%s)", what, strerror(errno));
  abort();
}

void SetMessage(const char* format, ...) {
  va_list args;
  va_start(args, format);
  Format(format, args);
  va_end(args);
}

const char* TakeMessage() {
  if (thread_text.current[0] == '\0') return nullptr;
  memcpy(thread_text.taken, thread_text.current, sizeof(thread_text.taken));
  thread_text.current[0] = '\0';
  return thread_text.taken;
}

aclError Fail(aclError code, const char* format, ...) {
  va_list args;
  va_start(args, format);
  Format(format, args);
  va_end(args);
  return code;
}

aclError Refuse(Rule rule, aclError code, const char* format, ...) {
  va_list args;
  va_start(args, format);
  Format(format, args);
  va_end(args);
  Violated(rule);
  return code;
}

aclError Strict(Rule rule, aclError code, const char* format, ...) {
  va_list args;
  va_start(args, format);
  Format(format, args);
  va_end(args);
  Violated(rule);
  return Settings().on_violation == OnViolation::kLog ? ACL_SUCCESS : code;
}

std::vector<void*> CaptureStack() {
  if (!Settings().stack) return {};
  std::vector<void*> stack(32);
  stack.resize(static_cast<size_t>(backtrace(stack.data(), static_cast<int>(stack.size()))));
  return stack;
}

uint32_t ThreadNumber() {
  static std::atomic<uint32_t> next{1};
  thread_local uint32_t number = next.fetch_add(1);
  return number;
}

void Advise(Rule rule, bool log, const char* format, ...) {
  Bump(Stats().violations_by_rule[static_cast<size_t>(rule)]);
  if (!log) return;
  char text[300];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof(text), format, args);
  va_end(args);
  Log("advice %s in %s: %s", Name(rule), Name(CurrentApi()), text);
}

void SetCurrentApi(Api api) {
  thread_text.api = api;
}
Api CurrentApi() {
  return thread_text.api;
}

}  // namespace aclemu
