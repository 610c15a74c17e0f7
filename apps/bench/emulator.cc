// Environment variables and the emulator's side door.
#include "bench/emulator.h"

#include <dlfcn.h>

#include <cstdlib>
#include <utility>

namespace mooncake::bench {

void PrepareEmulator() {
  // malloc_small_us, free_small_us: a driver whose cache of small blocks is empty, as for tiers much larger than it.
  for (const auto& [name, value] :
       {std::pair("ACLEMU_MODEL", "bench,malloc_small_us=101,free_small_us=100"), std::pair("ACLEMU_TIME", "model"),
        std::pair("ACLEMU_SCHED", "timed"), std::pair("ACLEMU_HBM", "3G"), std::pair("ACLEMU_POISON", "0"),
        std::pair("ACLEMU_KEEP", "3G")}) {
    setenv(name, value, /*overwrite=*/0);
  }
}

std::optional<double> ModelParameter(const char* name) {
  const auto ask = reinterpret_cast<double (*)(const char*)>(dlsym(RTLD_DEFAULT, "aclemu_model_param"));
  if (ask == nullptr) return std::nullopt;
  const double value = ask(name);
  return value > 0 ? std::optional(value) : std::nullopt;
}

}  // namespace mooncake::bench
