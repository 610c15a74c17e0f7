// The knobs of the emulator, read once from ACLEMU_* environment variables. A wrong or unknown knob ends the process
// with exit code kBadConfigExit: a test that runs with other settings than it asked for proves nothing.
#pragma once
#include <cstdint>
#include <string>

#include "core/json.h"
#include "core/profile.h"

namespace aclemu {

constexpr int kLeakExit = 23;
constexpr int kBadConfigExit = 24;

enum class Sched { kEager, kLazy, kRandom, kTimed, kManual };
enum class TimeMode { kOff, kModel, kVirtual };
enum class OnViolation { kReturn, kAbort, kLog };
enum class HostMem { kAuto, kPlain, kSecret };

struct Config {
  uint32_t devices = 2;
  uint64_t hbm_bytes = 1ULL << 30;   // per device, rounded down to 2 MiB
  uint64_t keep_bytes = 256u << 20;  // freed device memory that stays resident; more is given back to the system
  Sched sched = Sched::kEager;
  OnViolation on_violation = OnViolation::kReturn;
  HostMem host_mem = HostMem::kAuto;
  bool poison = true;
  bool pageable_sync = false;    // asynchronous copies of pageable memory as in 8.5 instead of refused
  bool pageable_chosen = false;  // by its own knob; else the release decides
  const ReleaseTraits* release = nullptr;
  const SocTraits* soc = nullptr;
  bool leak_fatal = false;
  std::string report;  // "", "stderr" or a path
  std::string fault;
  std::string dir;            // where processes share devices; "": this process alone
  uint64_t hbm_reserved = 0;  // of each device, kept by the system, rounded up to 2 MiB
  bool cache = false;         // small blocks come from a cache of the process, as from the real driver
  bool segv = true;           // explain a host access to device memory before dying of it
  uint64_t sched_seed = 0;    // of Sched::kRandom
  TimeMode time = TimeMode::kOff;
  std::string model;  // profile and parameters, as given
  JsonValue file;     // ACLEMU_CONFIG; "faults" is read by the fault plan
  uint64_t watchdog_ms = 30'000;
  bool race = false;
  bool stack = false;
  bool poison_out = false;
  std::string trace;
};

const Config& Settings();

// A wrong knob: says so and ends the process.
[[noreturn]] void RefuseConfig(const std::string& what);

// A size as the knobs write it: bytes, or with K, M, G, T. False when it is none.
bool TryParseBytes(const std::string& text, uint64_t* out);

}  // namespace aclemu
