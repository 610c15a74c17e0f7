// Random identities from the kernel's generator.
#include "common/uuid.h"

#include <fmt/format.h>
#include <sys/random.h>

#include "common/check.h"

namespace mooncake {

Uuid Uuid::Random() {
  Uuid id;
  do {
    const ssize_t got = getrandom(&id, sizeof(id), 0);
    MC_CHECK(got == static_cast<ssize_t>(sizeof(id)), "getrandom returned {}", got);
  } while (id.IsNil());
  return id;
}

std::string Uuid::ToString() const {
  return fmt::format("{:016x}-{:016x}", first, second);
}

}  // namespace mooncake
