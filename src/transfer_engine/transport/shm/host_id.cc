// Boot id of the kernel and inode of the network namespace.
#include "transfer_engine/transport/shm/host_id.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <fstream>

namespace mooncake {

std::string HostId() {
  std::string boot;
  struct stat network{};
  if (!std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot) || boot.empty() ||
      stat("/proc/self/ns/net", &network) != 0) {
    return "";
  }
  return fmt::format("{}/{:x}:{:x}", boot, network.st_dev, network.st_ino);
}

}  // namespace mooncake
