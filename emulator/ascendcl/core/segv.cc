// Tells what a host access to device memory hit.
#include "core/segv.h"

#include <dlfcn.h>
#include <signal.h>

#include <mutex>

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

void Install() {
  struct sigaction now{};
  bool taken = sigaction(SIGSEGV, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != SIG_DFL;
  if (taken || UnderSanitizer()) return;
  struct sigaction ours{};
  ours.sa_sigaction = OnSegv;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &ours, nullptr);
}

}  // namespace

void ExplainHostAccess() {
  static std::once_flag once;
  if (Settings().segv) std::call_once(once, Install);
}

}  // namespace aclemu
