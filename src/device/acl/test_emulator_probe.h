// What tests ask the ACL emulator behind the store's back. Nothing here links it: it is found if it is loaded.
#pragma once

#include <aclemu.h>
#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>

#include "common/check.h"

namespace mooncake {

// Before the runtime is loaded: the emulated devices are those of all processes that this one starts, as on a real
// node.
inline void ShareEmulatedDevices() {
  struct Folder {
    Folder() {
      if (getenv("ACLEMU_DIR") != nullptr) return;  // of the process that started this one
      MC_CHECK(mkdtemp(path.data()) != nullptr, "no folder {}", path);
      setenv("ACLEMU_DIR", path.c_str(), 1);
      mine = true;
    }
    ~Folder() {
      if (mine) std::filesystem::remove_all(path);
    }
    std::string path = "/dev/shm/mc-emulated-node-XXXXXX";
    bool mine = false;
  };
  static const Folder folder;
}

struct EmulatorProbe {
  static constexpr const char* kMallocOutOfMemory = "aclrtMallocAlign32@1=207001;aclrtMalloc@1=207001";

  // True once the runtime is loaded and is the emulator.
  static bool Loaded() { return Find("aclemu_live_allocs") != nullptr; }
  // Blocks allocated and not freed on a device, or on all.
  static int64_t LiveBlocks(int32_t device_id = -1) {
    return reinterpret_cast<decltype(&aclemu_live_allocs)>(Required("aclemu_live_allocs"))(device_id);
  }
  // Makes calls fail, "name@nth=code;..."; "" ends it.
  static void Inject(const char* rules) { MC_CHECK(TryInject(rules), "fault rules '{}' were refused", rules); }
  // False when the emulator does not know such rules.
  static bool TryInject(const char* rules) {
    return reinterpret_cast<decltype(&aclemu_inject)>(Required("aclemu_inject"))(rules) == 0;
  }
  // Bytes of a device, behind the runtime's back.
  static void Peek(const void* device_address, std::span<std::byte> bytes) {
    const int rc =
        reinterpret_cast<decltype(&aclemu_peek)>(Required("aclemu_peek"))(device_address, bytes.data(), bytes.size());
    MC_CHECK(rc == 0, "{} B at {} are not in one block", bytes.size(), device_address);
  }
  static void Poke(void* device_address, std::span<const std::byte> bytes) {
    const int rc =
        reinterpret_cast<decltype(&aclemu_poke)>(Required("aclemu_poke"))(device_address, bytes.data(), bytes.size());
    MC_CHECK(rc == 0, "{} B at {} are not in one block", bytes.size(), device_address);
  }
  static bool IsDeviceMemory(const void* address) {
    return reinterpret_cast<decltype(&aclemu_ptr_class)>(Required("aclemu_ptr_class"))(address) == ACLEMU_CLASS_DEVICE;
  }
  // Calls of one ACL function so far, failed ones too.
  static uint64_t Calls(const char* function) {
    const uint64_t calls = reinterpret_cast<decltype(&aclemu_calls)>(Required("aclemu_calls"))(function);
    MC_CHECK(calls != UINT64_MAX, "the emulator has no function {}", function);
    return calls;
  }
  static aclemu_stats Stats() {
    aclemu_stats stats{};
    stats.version = ACLEMU_STATS_VERSION;
    stats.struct_bytes = sizeof(stats);
    const int rc = reinterpret_cast<decltype(&aclemu_get_stats)>(Required("aclemu_get_stats"))(&stats);
    MC_CHECK(rc == 0, "statistics of another version");
    return stats;
  }

 private:
  static void* Find(const char* symbol) { return dlsym(RTLD_DEFAULT, symbol); }
  static void* Required(const char* symbol) {
    void* found = Find(symbol);
    MC_CHECK(found != nullptr, "the emulator is not loaded: no {}", symbol);
    return found;
  }
};

}  // namespace mooncake
