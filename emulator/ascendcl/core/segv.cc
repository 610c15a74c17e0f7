// Tells what a host access to device memory hit, and when the files behind it have no room.
#include "core/segv.h"

#include <dlfcn.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

#include "core/config.h"
#include "core/report.h"
#include "core/runtime.h"

namespace aclemu {
namespace {

// A place of the emulator's address map, as far as a signal handler can look. The lookup takes no lock that it would
// have to wait for and allocates nothing.
void Explain(const void* addr) {
  Place place;
  if (!Runtime::Get().ranges.TryFind(addr, &place)) return;
  if (place.cls == MemClass::kDevice) {
    Log("host access to device %d, block of %llu B at offset %llu (%p)", place.range->device,
        static_cast<unsigned long long>(place.range->bytes), static_cast<unsigned long long>(place.offset()), addr);
  } else if (place.cls == MemClass::kDeadDevice) {
    Log("host access to a device address where no live block is (%p)", addr);
  }
}

// Mappings of files in ACLEMU_DIR: state and memory of each device.
struct Mapping {
  std::atomic<const std::byte*> begin;
  std::atomic<uint64_t> bytes;
};
std::array<Mapping, 128> file_mappings;
std::atomic<size_t> file_mapping_count;

void OnBus(int number, siginfo_t* info, void*) {
  const auto* addr = static_cast<const std::byte*>(info->si_addr);
  size_t count = std::min(file_mapping_count.load(), file_mappings.size());
  for (size_t i = 0; i < count && info->si_code > 0; ++i) {
    const std::byte* begin = file_mappings[i].begin.load();
    if (begin == nullptr || addr < begin || addr >= begin + file_mappings[i].bytes.load()) continue;
    Log("ACLEMU_DIR: %s has no room for what the devices hold, or its files were cut", Settings().dir.c_str());
    break;
  }
  signal(SIGBUS, SIG_DFL);
  if (info->si_code <= 0) raise(number);
}

void OnSegv(int number, siginfo_t* info, void*) {
  if (info->si_code > 0) Explain(info->si_addr);
  // The access happens again after the return, or the signal that somebody sent does.
  signal(SIGSEGV, SIG_DFL);
  if (info->si_code <= 0) raise(number);
}

bool UnderSanitizer() {
  for (const char* name : {"__asan_init", "__tsan_init", "__msan_init"}) {
    if (dlsym(RTLD_DEFAULT, name) != nullptr) return true;
  }
  return false;
}

void Install(int number, void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction now{};
  bool taken = sigaction(number, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != SIG_DFL;
  if (taken || UnderSanitizer()) return;
  struct sigaction ours{};
  ours.sa_sigaction = handler;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(number, &ours, nullptr);
}

}  // namespace

void ExplainHostAccess() {
  static std::once_flag once;
  if (Settings().segv) std::call_once(once, [] { Install(SIGSEGV, OnSegv); });
}

void ExplainFullFile(const void* begin, uint64_t bytes) {
  if (!Settings().segv) return;
  size_t at = file_mapping_count.fetch_add(1);
  if (at >= file_mappings.size()) return;
  file_mappings[at].bytes = bytes;
  file_mappings[at].begin = static_cast<const std::byte*>(begin);
  static std::once_flag once;
  std::call_once(once, [] { Install(SIGBUS, OnBus); });
}

}  // namespace aclemu
