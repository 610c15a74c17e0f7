// What the soaks have in common: their options, and what a process uses that must not grow.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "transfer/far_end.h"

namespace mooncake::transfer_test {

struct SoakOptions {
  std::chrono::seconds length{600};
  uint64_t seed = 0;
};

// --seconds N and --seed N (default: random, printed). --help and what is not understood end the process.
inline SoakOptions ParseSoakOptions(int argc, char** argv, const char* name, const char* usage) {
  uint64_t length_s = 600;
  uint64_t seed = std::random_device{}();
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--help" || option == "-h") std::exit(std::fputs(usage, stdout) < 0 ? 1 : 0);
    char* rest = nullptr;
    const uint64_t value = i + 1 < argc ? std::strtoull(argv[i + 1], &rest, 10) : 0;
    if ((option != "--seconds" && option != "--seed") || rest == nullptr || *rest != '\0') {
      std::fprintf(stderr, "%s%s: '%s' is not understood\n", usage, name, option.c_str());
      std::exit(2);
    }
    (option == "--seconds" ? length_s : seed) = value;
  }
  std::printf("soak: %llu s, seed %llu\n", static_cast<unsigned long long>(length_s),
              static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  return {.length = std::chrono::seconds(length_s), .seed = seed};
}

struct Use {
  size_t memory_bytes = 0;
  size_t descriptors = 0;
};

inline Use UseOfThisProcess() {
  Use use;
  size_t total = 0;
  size_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  use.memory_bytes = resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    use.descriptors += entry.exists() ? 1 : 0;
  return use;
}

// Says what has grown by more than the margins.
inline bool Flat(const Use& first, const Use& last, size_t memory_margin, size_t descriptor_margin) {
  const bool memory = last.memory_bytes <= first.memory_bytes + memory_margin;
  const bool descriptors = last.descriptors <= first.descriptors + descriptor_margin;
  if (!memory) {
    std::printf("soak: memory grew from %zu to %zu MiB\n", first.memory_bytes / kMiB, last.memory_bytes / kMiB);
  }
  if (!descriptors) std::printf("soak: descriptors grew from %zu to %zu\n", first.descriptors, last.descriptors);
  return memory && descriptors;
}

}  // namespace mooncake::transfer_test
