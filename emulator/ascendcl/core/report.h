// What the emulator noticed: counters, rule violations, leaks, and the report at exit. Thread safe.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "acl/acl.h"

namespace aclemu {

enum class Api : uint16_t {
#define ACL_API(ret, name, params, args) name,
#include "rules/api_list.inc"
#undef ACL_API
  kCount
};
const char* Name(Api api);

// The rules of use, by the names the documentation gives them.
enum class Rule : uint8_t {
  kI1,
  kI2,
  kT1,
  kT2,
  kT3,
  kM1,
  kM2,
  kM3,
  kC1,
  kC2,
  kC3,
  kC4,
  kC5,
  kC6,
  kC7,
  kC8,
  kC9,
  kC10,
  kC11,
  kC13,
  kR2,
  kS1,
  kS2,
  kC12,
  kR1,
  kV1,
  kV2,
  kG1,
  kM4,
  kCount
};
const char* Name(Rule rule);

using Counter = std::atomic<uint64_t>;
inline void Bump(Counter& counter, uint64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

// Every plain counter, once: X(name).
// clang-format off: it indents such lists further with each run
#define ACLEMU_COUNTERS(X) \
  X(device_allocs) X(device_allocs_failed) X(device_frees) X(device_paged_bytes) \
  X(device_peak_paged_bytes) X(host_allocs) X(host_frees) X(host_registers) \
  X(host_unregisters) X(memsets) X(pageable_copies) X(pageable_async_fallbacks) \
  X(set_device_calls) X(set_device_switches) X(streams_created) X(streams_live) \
  X(events_created) X(events_live) X(submits_blocked) X(synchronizes) \
  X(violations) X(submit_blocked_ns) X(waited_ns)
// clang-format on

struct Counters {
#define ACLEMU_MEMBER(name) Counter name;
  ACLEMU_COUNTERS(ACLEMU_MEMBER)
#undef ACLEMU_MEMBER
  Counter sync_copies[4], sync_bytes[4], async_copies[4], async_bytes[4];  // by direction
  Counter copies_by_class[2][4][4], bytes_by_class[2][4][4];  // async, direction, class of the host end or of D2D
  Counter violations_by_rule[static_cast<size_t>(Rule::kCount)];
  Counter calls[static_cast<size_t>(Api::kCount)];
  Counter failed_calls[static_cast<size_t>(Api::kCount)];
};
Counters& Stats();
void AddPagedBytes(uint64_t bytes);  // keeps the peak
void ResetStats();                   // keeps what describes the present

// One line on stderr.
void Log(const char* format, ...) __attribute__((format(printf, 1, 2)));
// The emulator cannot go on (the system refused something it needs).
[[noreturn]] void Broken(const char* what);

// The calling thread's last error text, see aclGetRecentErrMsg.
void SetMessage(const char* format, ...) __attribute__((format(printf, 1, 2)));
const char* TakeMessage();

// A call failed for a reason that is not the caller's mistake. Returns code.
aclError Fail(aclError code, const char* format, ...) __attribute__((format(printf, 2, 3)));
// The caller broke a rule that the hardware enforces too. Returns code in every mode.
aclError Refuse(Rule rule, aclError code, const char* format, ...) __attribute__((format(printf, 3, 4)));
// The caller broke a rule that the hardware would let pass, or lets pass sometimes. Returns code, but 0 in log mode.
aclError Strict(Rule rule, aclError code, const char* format, ...) __attribute__((format(printf, 3, 4)));

// Nothing wrong, but not what the caller will want. Counted apart from the violations, never fatal.
void Advise(Rule rule, bool log, const char* format, ...) __attribute__((format(printf, 3, 4)));

// The call stack, with ACLEMU_STACK=1; empty else.
std::vector<void*> CaptureStack();

// The calling thread's number, in the order of their first calls: 1, 2, ...
uint32_t ThreadNumber();

void SetCurrentApi(Api api);
Api CurrentApi();

}  // namespace aclemu
