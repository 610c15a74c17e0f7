// Names of the memory kinds.
#include "device/memory_type.h"

namespace mooncake {

std::string_view MemoryTypeName(MemoryType type) {
  switch (type) {
    case MemoryType::DRAM:
      return "DRAM";
    case MemoryType::NVME:
      return "NVME";
    case MemoryType::ASCEND_NPU:
      return "ASCEND_NPU";
    case MemoryType::UNKNOWN:
      break;
  }
  return "UNKNOWN";
}

}  // namespace mooncake
