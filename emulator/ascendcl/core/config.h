// The knobs of the emulator, read once from ACLEMU_* environment variables. A wrong or unknown knob ends the process
// with exit code kBadConfigExit: a test that runs with other settings than it asked for proves nothing.
#pragma once
#include <cstdint>
#include <string>

#include "core/profile.h"

namespace aclemu {

constexpr int kLeakExit = 23;
constexpr int kBadConfigExit = 24;

enum class Sched { kEager, kLazy };
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
};

const Config& Settings();

// A wrong knob: says so and ends the process.
[[noreturn]] void RefuseConfig(const std::string& what);

}  // namespace aclemu
