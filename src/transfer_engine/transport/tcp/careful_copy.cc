// The kernel copies, and reports what a processor would trap on.
#include "transfer_engine/transport/tcp/careful_copy.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace mooncake::tcp {

bool CarefulCopy(std::byte* to, const std::byte* from, size_t bytes) {
  const iovec source{const_cast<std::byte*>(from), bytes};
  const iovec target{to, bytes};
  const ssize_t copied = process_vm_writev(getpid(), &source, 1, &target, 1, 0);
  if (copied >= 0 || errno == EFAULT) return copied == static_cast<ssize_t>(bytes);
  std::memcpy(to, from, bytes);  // a sandbox without this call
  return true;
}

}  // namespace mooncake::tcp
