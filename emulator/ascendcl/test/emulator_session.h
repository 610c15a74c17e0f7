// What the emulator tests share: a fresh process with chosen knobs, a session with one of each object, the side API.
#pragma once
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "acl/acl.h"
#include "aclemu.h"

constexpr size_t kBytes = 64 << 10;
constexpr uint64_t kMiB = 1 << 20;

#define SIDE(name) reinterpret_cast<decltype(&name)>(FindSide(#name))
inline void* FindSide(const char* name) {
  void* symbol = dlsym(RTLD_DEFAULT, name);
  EXPECT_NE(symbol, nullptr) << name;
  return symbol;
}

inline aclemu_stats GetStats() {
  aclemu_stats stats{};
  stats.version = ACLEMU_STATS_VERSION;
  stats.struct_bytes = sizeof(stats);
  EXPECT_EQ(SIDE(aclemu_get_stats)(&stats), 0);
  return stats;
}

// gtest keeps the failures of a fresh process to itself; with them on stderr they are part of its message.
inline void PrintFailures() {
  const testing::TestResult& result = *testing::UnitTest::GetInstance()->current_test_info()->result();
  for (int i = 0; i < result.total_part_count(); ++i) {
    const testing::TestPartResult& part = result.GetTestPartResult(i);
    if (part.failed()) fprintf(stderr, "%s:%d: %s\n", part.file_name(), part.line_number(), part.message());
  }
}

using Knobs = std::vector<std::pair<const char*, std::string>>;

// Runs the body in a fresh process with these knobs, and expects that it ends with the code (23: leaks).
inline void InProcess(const Knobs& knobs, const std::function<void()>& body, int exit_code = 0,
                      const char* output = "") {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        for (const auto& [name, value] : knobs) setenv(name, value.c_str(), 1);
        body();
        PrintFailures();
        exit(testing::Test::HasFailure() ? 99 : 0);
      },
      testing::ExitedWithCode(exit_code), output);
}

struct Session {
  void* device = nullptr;
  void* pinned = nullptr;
  aclrtStream stream = nullptr;
  Session() {
    EXPECT_EQ(aclInit(nullptr), ACL_SUCCESS);
    EXPECT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    EXPECT_EQ(aclrtMalloc(&device, kBytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    EXPECT_EQ(aclrtMallocHost(&pinned, kBytes), ACL_SUCCESS);
    EXPECT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
  }
  ~Session() {
    EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtFreeHost(pinned), ACL_SUCCESS);
    EXPECT_EQ(aclrtFree(device), ACL_SUCCESS);
  }
  uint8_t* host(size_t at = 0) const { return static_cast<uint8_t*>(pinned) + at; }
  uint8_t* dev(size_t at = 0) const { return static_cast<uint8_t*>(device) + at; }
  uint8_t DeviceByte(size_t at) const {
    uint8_t byte = 0;
    EXPECT_EQ(SIDE(aclemu_peek)(dev(at), &byte, 1), 0);
    return byte;
  }
};

inline uint64_t FreeBytes() {
  size_t free_bytes = 0, total = 0;
  EXPECT_EQ(aclrtGetMemInfo(ACL_HBM_MEM, &free_bytes, &total), ACL_SUCCESS);
  return free_bytes;
}
