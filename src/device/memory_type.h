// Kinds of memory that blocks live in, and addresses that the CPU must never dereference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mooncake {

// Values and names are part of the public contract.
enum class MemoryType : uint8_t { DRAM = 0, NVME = 1, ASCEND_NPU = 2, UNKNOWN = 3 };

std::string_view MemoryTypeName(MemoryType type);

// An address in some device's memory. A type of its own so that no host code can read through it by mistake;
// only device/acl turns it back into the pointer the runtime wants.
enum class DeviceAddress : uintptr_t { kNull = 0 };

// Where a block of NPU memory is: an address means nothing without its device.
struct AscendUnifiedPointer {
  int32_t device_id = -1;
  DeviceAddress device_ptr = DeviceAddress::kNull;

  // The place `bytes` further on, on the same device.
  AscendUnifiedPointer operator+(size_t bytes) const {
    return {device_id, static_cast<DeviceAddress>(static_cast<uintptr_t>(device_ptr) + bytes)};
  }
};

}  // namespace mooncake
