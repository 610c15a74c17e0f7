// What only the emulator does: memory the host cannot touch, strict rules, leak reports, scheduling, faults, side API.
// Most cases run in a process of their own, as the emulator reads its knobs once.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>
#include <vector>

#include "acl/acl.h"
#include "aclemu.h"

namespace {

constexpr size_t kBytes = 64 << 10;
constexpr uint64_t kMiB = 1 << 20;

#define SIDE(name) reinterpret_cast<decltype(&name)>(FindSide(#name))
void* FindSide(const char* name) {
  void* symbol = dlsym(RTLD_DEFAULT, name);
  EXPECT_NE(symbol, nullptr) << name;
  return symbol;
}

aclemu_stats GetStats() {
  aclemu_stats stats{};
  stats.version = ACLEMU_STATS_VERSION;
  stats.struct_bytes = sizeof(stats);
  EXPECT_EQ(SIDE(aclemu_get_stats)(&stats), 0);
  return stats;
}

using Knobs = std::vector<std::pair<const char*, std::string>>;

// Runs the body in a fresh process with these knobs, and expects that it ends with the code (23: leaks).
void InProcess(const Knobs& knobs, const std::function<void()>& body, int exit_code = 0, const char* output = "") {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        for (const auto& [name, value] : knobs) setenv(name, value.c_str(), 1);
        body();
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

uint64_t FreeBytes() {
  size_t free_bytes = 0, total = 0;
  EXPECT_EQ(aclrtGetMemInfo(ACL_HBM_MEM, &free_bytes, &total), ACL_SUCCESS);
  return free_bytes;
}

// ---- device memory ----

TEST(DeviceMemoryDeathTest, HostAccessDies) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Session acl;
        *static_cast<volatile uint8_t*>(acl.device) = 1;
      },
      "");
  EXPECT_DEATH(
      {
        Session acl;
        printf("%d", *static_cast<volatile uint8_t*>(acl.device));
      },
      "");
}

TEST(DeviceMemory, KernelCannotReachItEither) {
  InProcess({}, [] {
    Session acl;
    int fds[2];
    ASSERT_EQ(pipe(fds), 0);
    EXPECT_EQ(write(fds[1], acl.device, 16), -1);
    EXPECT_EQ(errno, EFAULT);
  });
}

TEST(DeviceMemory, NewAndFreedBlocksHoldPoison) {
  InProcess({}, [] {
    Session acl;
    EXPECT_EQ(acl.DeviceByte(0), 0xA5);
    EXPECT_EQ(acl.DeviceByte(kBytes - 1), 0xA5);
    EXPECT_EQ(*acl.host(), 0xA5);
  });
}

TEST(DeviceMemory, AddressesAreNeverUsedAgain) {
  InProcess({}, [] {
    Session acl;
    void *first = nullptr, *second = nullptr;
    ASSERT_EQ(aclrtMalloc(&first, 4096, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
    ASSERT_EQ(aclrtFree(first), ACL_SUCCESS);
    ASSERT_EQ(aclrtMalloc(&second, 4096, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
    EXPECT_NE(first, second);
    EXPECT_EQ(SIDE(aclemu_ptr_class)(first), ACLEMU_CLASS_DEAD_DEVICE);
    EXPECT_EQ(aclrtMemcpy(first, 64, acl.pinned, 64, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID);
    ASSERT_EQ(aclrtFree(second), ACL_SUCCESS);
  });
}

TEST(DeviceMemory, CapacityCountsPagesAndPadding) {
  InProcess({{"ACLEMU_HBM", "16M"}}, [] {
    Session acl;
    uint64_t before = FreeBytes();
    void* ptr = nullptr;
    ASSERT_EQ(aclrtMalloc(&ptr, 2 * kMiB, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    EXPECT_EQ(before - FreeBytes(), 4 * kMiB);
    ASSERT_EQ(aclrtFree(ptr), ACL_SUCCESS);
    ASSERT_EQ(aclrtMallocAlign32(&ptr, 2 * kMiB, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    EXPECT_EQ(before - FreeBytes(), 2 * kMiB);
    ASSERT_EQ(aclrtFree(ptr), ACL_SUCCESS);
    ASSERT_EQ(aclrtMalloc(&ptr, 4096, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
    EXPECT_EQ(before - FreeBytes(), 8192u);
    ASSERT_EQ(aclrtFree(ptr), ACL_SUCCESS);
    EXPECT_EQ(FreeBytes(), before);
  });
}

TEST(DeviceMemory, FullDeviceRefusesAndCapacityReturns) {
  InProcess({{"ACLEMU_HBM", "16M"}, {"ACLEMU_KEEP", "2M"}}, [] {
    Session acl;
    uint64_t before = FreeBytes();
    for (int round = 0; round < 5; ++round) {
      std::vector<void*> blocks;
      void* ptr = nullptr;
      while (aclrtMallocAlign32(&ptr, 2 * kMiB, ACL_MEM_MALLOC_HUGE_ONLY) == ACL_SUCCESS) blocks.push_back(ptr);
      EXPECT_EQ(blocks.size(), 7u);
      EXPECT_EQ(aclrtMalloc(&ptr, 2 * kMiB, ACL_MEM_MALLOC_HUGE_ONLY), ACL_ERROR_RT_MEMORY_ALLOCATION);
      for (void* block : blocks) EXPECT_EQ(aclrtFree(block), ACL_SUCCESS);
      EXPECT_EQ(FreeBytes(), before);
    }
    EXPECT_EQ(GetStats().device_live_blocks, 1u);
    EXPECT_EQ(SIDE(aclemu_live_allocs)(0), 1);
    EXPECT_EQ(SIDE(aclemu_live_allocs)(1), 0);
  });
}

TEST(DeviceMemory, HugeFirstFallsBackToScatteredPages) {
  InProcess({{"ACLEMU_HBM", "8M"}}, [] {
    Session acl;  // splits one chunk
    std::vector<void*> small(511);
    void* keep = nullptr;
    ASSERT_EQ(aclrtMallocAlign32(&keep, 4 * kMiB, ACL_MEM_MALLOC_HUGE_ONLY), ACL_SUCCESS);
    for (void*& ptr : small) ASSERT_EQ(aclrtMallocAlign32(&ptr, 4096, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
    for (size_t i = 0; i < small.size(); i += 2) EXPECT_EQ(aclrtFree(small[i]), ACL_SUCCESS);
    // More than half of what is left, in holes of one page.
    void* holes = nullptr;
    size_t bytes = kMiB + 64;
    ASSERT_EQ(aclrtMallocAlign32(&holes, bytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    std::vector<uint8_t> in(bytes), out(bytes);
    for (size_t i = 0; i < bytes; ++i) in[i] = static_cast<uint8_t>(i / 4096 + i);
    ASSERT_EQ(aclrtMemcpy(holes, bytes, in.data(), bytes, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemcpy(out.data(), bytes, holes, bytes, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
    EXPECT_EQ(in, out);
    EXPECT_EQ(aclrtFree(holes), ACL_SUCCESS);
    EXPECT_EQ(aclrtFree(keep), ACL_SUCCESS);
    for (size_t i = 1; i < small.size(); i += 2) EXPECT_EQ(aclrtFree(small[i]), ACL_SUCCESS);
  });
}

TEST(DeviceMemory, MemoryOfAResetDeviceComesBack) {
  InProcess({{"ACLEMU_HBM", "16M"}}, [] {
    ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    void* ptr = nullptr;
    ASSERT_EQ(aclrtMalloc(&ptr, kMiB, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    ASSERT_EQ(aclrtResetDevice(0), ACL_SUCCESS);
    EXPECT_EQ(GetStats().violations, 1u);  // M3
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    EXPECT_EQ(FreeBytes(), 16 * kMiB);
    EXPECT_EQ(aclrtFree(ptr), ACL_ERROR_RT_PARAM_INVALID);
  });
}

// ---- rules ----

TEST(Rules, I1CallsBeforeInitAreRefused) {
  InProcess({}, [] {
    uint32_t count = 0;
    EXPECT_EQ(aclrtGetDeviceCount(&count), ACL_ERROR_UNINITIALIZE);
    EXPECT_EQ(aclrtSetDevice(0), ACL_ERROR_UNINITIALIZE);
    EXPECT_EQ(aclFinalize(), ACL_ERROR_REPEAT_FINALIZE);
    EXPECT_EQ(aclInit(nullptr), ACL_SUCCESS);
    EXPECT_EQ(aclInit(nullptr), ACL_ERROR_REPEAT_INITIALIZE);
    uint64_t left = 9;
    EXPECT_EQ(aclFinalizeReference(&left), ACL_SUCCESS);
    EXPECT_EQ(left, 1u);
    EXPECT_EQ(aclrtGetDeviceCount(&count), ACL_SUCCESS);
    EXPECT_EQ(count, 2u);
    EXPECT_EQ(aclFinalize(), ACL_SUCCESS);
    EXPECT_EQ(aclFinalize(), ACL_ERROR_REPEAT_FINALIZE);
    EXPECT_EQ(aclrtGetDeviceCount(&count), ACL_ERROR_UNINITIALIZE);
  });
}

TEST(Rules, C1AndC2KindMustMatchTheAddresses) {
  InProcess({}, [] {
    Session acl;
    EXPECT_EQ(aclrtMemcpy(acl.device, 64, acl.pinned, 64, ACL_MEMCPY_DEVICE_TO_HOST), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMemcpy(acl.host(64), 64, acl.pinned, 64, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMemcpy(acl.device, 64, acl.pinned, 64, ACL_MEMCPY_DEFAULT), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemcpyAsync(acl.device, 64, acl.pinned, 64, ACL_MEMCPY_DEVICE_TO_HOST, acl.stream),
              ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(GetStats().violations, 3u);
  });
}

TEST(Rules, C3AndC4Counts) {
  InProcess({}, [] {
    Session acl;
    EXPECT_EQ(aclrtMemcpy(acl.device, 64, acl.pinned, 0, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMemset(acl.device, 64, 0, 0), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMemcpy(acl.device, 63, acl.pinned, 64, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMemcpyAsync(acl.device, 63, acl.pinned, 64, ACL_MEMCPY_HOST_TO_DEVICE, acl.stream),
              ACL_ERROR_RT_PARAM_INVALID);
  });
}

TEST(Rules, C5AndC6RangesMustLieInTheirBlock) {
  InProcess({}, [] {
    Session acl;
    // The page goes on behind the block, so hardware would write there.
    void* odd = nullptr;
    ASSERT_EQ(aclrtMalloc(&odd, 1000, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemcpy(odd, 1024, acl.pinned, 1024, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMemcpy(odd, 1024, acl.pinned, 512, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMemset(odd, 1024, 0, 512), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMemcpy(acl.host(), kBytes, odd, 1001, ACL_MEMCPY_DEVICE_TO_HOST), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMemcpy(odd, 1000, acl.pinned, 1000, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
    EXPECT_EQ(aclrtFree(odd), ACL_SUCCESS);
  });
}

TEST(Rules, C7PageableMemoryIsRefusedAsynchronously) {
  InProcess({}, [] {
    Session acl;
    alignas(64) static uint8_t plain[64];
    EXPECT_EQ(aclrtMemcpyAsync(acl.device, 64, plain, 64, ACL_MEMCPY_HOST_TO_DEVICE, acl.stream),
              ACL_ERROR_RT_PARAM_INVALID);
    aclrtPtrAttributes attributes{};
    EXPECT_EQ(aclrtPointerGetAttributes(plain, &attributes), ACL_ERROR_RT_PARAM_INVALID);
  });
}

TEST(Rules, C7PageableMemoryIsCopiedAtOnceInTheNewerBehaviour) {
  InProcess({{"ACLEMU_PAGEABLE", "sync"}, {"ACLEMU_SCHED", "lazy"}}, [] {
    Session acl;
    alignas(64) static uint8_t plain[64];
    memset(plain, 0x3C, 64);
    ASSERT_EQ(aclrtMemsetAsync(acl.device, kBytes, 0x77, kBytes, acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemcpyAsync(acl.device, 64, plain, 64, ACL_MEMCPY_HOST_TO_DEVICE, acl.stream), ACL_SUCCESS);
    EXPECT_EQ(acl.DeviceByte(0), 0x3C);
    EXPECT_EQ(acl.DeviceByte(64), 0x77);
    EXPECT_EQ(GetStats().pageable_async_fallbacks, 1u);
    EXPECT_EQ(aclrtMemcpyAsync(acl.device, 64, plain, 64, ACL_MEMCPY_DEVICE_TO_HOST, acl.stream),
              ACL_ERROR_RT_PARAM_INVALID);
    ASSERT_EQ(aclrtMemcpyAsync(acl.device, 64, plain, 64, ACL_MEMCPY_DEVICE_TO_DEVICE, acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_ERROR_RT_SYS_DMA);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    aclrtPtrAttributes attributes{};
    ASSERT_EQ(aclrtPointerGetAttributes(plain, &attributes), ACL_SUCCESS);
    EXPECT_EQ(attributes.location.type, ACL_MEM_LOCATION_TYPE_UNREGISTERED);
  });
}

TEST(Rules, C8AsynchronousEndsMustBeAligned) {
  InProcess({}, [] {
    Session acl;
    EXPECT_EQ(aclrtMemcpyAsync(acl.dev(32), 64, acl.pinned, 64, ACL_MEMCPY_HOST_TO_DEVICE, acl.stream),
              ACL_ERROR_RT_ADDR_UNALIGNED);
    EXPECT_EQ(aclrtMemcpyAsync(acl.dev(64), 64, acl.host(8), 64, ACL_MEMCPY_HOST_TO_DEVICE, acl.stream),
              ACL_ERROR_RT_ADDR_UNALIGNED);
  });
}

TEST(Rules, C9AsynchronousHostToHost) {
  InProcess({}, [] {
    Session acl;
    static uint8_t plain[64];
    EXPECT_EQ(aclrtMemcpyAsync(acl.pinned, 64, plain, 64, ACL_MEMCPY_HOST_TO_HOST, acl.stream),
              ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
    EXPECT_EQ(aclrtMemcpyAsync(acl.pinned, 64, acl.host(64), 64, ACL_MEMCPY_DEFAULT, acl.stream),
              ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
  });
}

TEST(Rules, C10OverlapIsRefused) {
  InProcess({}, [] {
    Session acl;
    EXPECT_EQ(aclrtMemcpy(acl.dev(64), 128, acl.dev(), 128, ACL_MEMCPY_DEVICE_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMemcpy(acl.dev(128), 128, acl.dev(), 128, ACL_MEMCPY_DEVICE_TO_DEVICE), ACL_SUCCESS);
  });
}

TEST(Rules, C11PeerCopyNeedsAccessBothWays) {
  InProcess({}, [] {
    Session acl;
    ASSERT_EQ(aclrtSetDevice(1), ACL_SUCCESS);
    void* other = nullptr;
    ASSERT_EQ(aclrtMalloc(&other, kBytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    auto copy = [&] { return aclrtMemcpy(other, kBytes, acl.device, kBytes, ACL_MEMCPY_DEVICE_TO_DEVICE); };
    EXPECT_EQ(copy(), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtDeviceEnablePeerAccess(0, 0), ACL_SUCCESS);
    EXPECT_EQ(copy(), ACL_ERROR_RT_PARAM_INVALID);
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    EXPECT_EQ(aclrtDeviceEnablePeerAccess(1, 0), ACL_SUCCESS);
    EXPECT_EQ(copy(), ACL_SUCCESS);
    EXPECT_EQ(aclrtDeviceDisablePeerAccess(1), ACL_SUCCESS);
    EXPECT_EQ(copy(), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtFree(other), ACL_SUCCESS);
  });
}

TEST(Rules, M2FreeWhileATaskUsesTheBlock) {
  InProcess({{"ACLEMU_SCHED", "lazy"}}, [] {
    Session acl;
    ASSERT_EQ(aclrtMemcpyAsync(acl.device, 64, acl.pinned, 64, ACL_MEMCPY_HOST_TO_DEVICE, acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtFree(acl.device), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtFreeHost(acl.pinned), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
  });
}

TEST(Rules, BadHostPointerIsAnErrorNoCrash) {
  InProcess({}, [] {
    Session acl;
    auto* bad = reinterpret_cast<void*>(0x1000);
    EXPECT_EQ(aclrtMemcpy(acl.device, 64, bad, 64, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_COPY_DATA);
    EXPECT_EQ(aclrtMemcpy(bad, 64, acl.device, 64, ACL_MEMCPY_DEVICE_TO_HOST), ACL_ERROR_RT_COPY_DATA);
  });
}

TEST(Rules, StaleHandlesAreRecognised) {
  InProcess({}, [] {
    Session acl;
    aclrtStream stream = nullptr;
    aclrtEvent event = nullptr;
    ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtCreateEvent(&event), ACL_SUCCESS);
    ASSERT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtDestroyStream(stream), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtRecordEvent(event, acl.stream), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtSynchronizeEvent(event), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtSynchronizeStream(&stream), ACL_ERROR_RT_PARAM_INVALID);
  });
}

TEST(Rules, T3ForkedChildIsRefused) {
  InProcess({}, [] {
    Session acl;
    pid_t child = fork();
    if (child == 0) {
      int32_t id = 0;
      _exit(aclrtGetDevice(&id) == ACL_ERROR_RT_CONTEXT_NULL ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  });
}

TEST(Rules, LogModeBehavesLikeLenientHardware) {
  InProcess({{"ACLEMU_VIOLATION", "log"}}, [] {
    Session acl;
    EXPECT_EQ(aclrtMemcpy(acl.device, 64, acl.pinned, 64, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemcpy(acl.dev(64), 128, acl.dev(), 128, ACL_MEMCPY_DEVICE_TO_DEVICE), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemcpy(acl.device, 63, acl.pinned, 64, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(GetStats().violations, 3u);
  });
}

TEST(RulesDeathTest, AbortModeAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        setenv("ACLEMU_VIOLATION", "abort", 1);
        Session acl;
        aclrtMemcpy(acl.device, 63, acl.pinned, 64, ACL_MEMCPY_HOST_TO_DEVICE);
      },
      "violation C4 in aclrtMemcpy");
}

// ---- scheduling ----

TEST(Lazy, ShowsAMissingSynchronize) {
  InProcess({{"ACLEMU_SCHED", "lazy"}}, [] {
    Session acl;
    memset(acl.pinned, 0x01, kBytes);
    ASSERT_EQ(aclrtMemsetAsync(acl.device, kBytes, 0x42, kBytes, acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemcpyAsync(acl.pinned, kBytes, acl.device, kBytes, ACL_MEMCPY_DEVICE_TO_HOST, acl.stream),
              ACL_SUCCESS);
    EXPECT_EQ(*acl.host(), 0x01);
    ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(*acl.host(), 0x42);
  });
}

TEST(Lazy, QueriesMakeProgressOneTaskATime) {
  InProcess({{"ACLEMU_SCHED", "lazy"}}, [] {
    Session acl;
    aclrtEvent event = nullptr;
    ASSERT_EQ(aclrtCreateEvent(&event), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemsetAsync(acl.device, kBytes, 1, kBytes, acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtRecordEvent(event, acl.stream), ACL_SUCCESS);
    aclrtEventRecordedStatus status;
    int queries = 0;
    do {
      ASSERT_EQ(aclrtQueryEventStatus(event, &status), ACL_SUCCESS);
      ++queries;
    } while (status != ACL_EVENT_RECORDED_STATUS_COMPLETE);
    EXPECT_EQ(queries, 3);
    EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
  });
}

TEST(Lazy, EventWaitRunsTheOtherStream) {
  InProcess({{"ACLEMU_SCHED", "lazy"}}, [] {
    Session acl;
    aclrtStream other = nullptr;
    aclrtEvent event = nullptr;
    ASSERT_EQ(aclrtCreateStream(&other), ACL_SUCCESS);
    ASSERT_EQ(aclrtCreateEventExWithFlag(&event, ACL_EVENT_SYNC), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemsetAsync(acl.device, kBytes, 0x51, kBytes, other), ACL_SUCCESS);
    ASSERT_EQ(aclrtRecordEvent(event, other), ACL_SUCCESS);
    ASSERT_EQ(aclrtStreamWaitEvent(acl.stream, event), ACL_SUCCESS);
    EXPECT_EQ(acl.DeviceByte(0), 0xA5);
    ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(acl.DeviceByte(0), 0x51);
    EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
    EXPECT_EQ(aclrtDestroyStream(other), ACL_SUCCESS);
  });
}

TEST(Lazy, FullQueueRunsTheOldestTasks) {
  InProcess({{"ACLEMU_SCHED", "lazy"}}, [] {
    Session acl;
    for (int i = 0; i < 2013; ++i) ASSERT_EQ(aclrtMemsetAsync(acl.device, 64, 1, 64, acl.stream), ACL_SUCCESS);
    EXPECT_EQ(acl.DeviceByte(0), 0xA5);
    ASSERT_EQ(aclrtMemsetAsync(acl.device, 64, 2, 64, acl.stream), ACL_SUCCESS);
    EXPECT_EQ(acl.DeviceByte(0), 1);
    EXPECT_EQ(GetStats().submits_blocked, 1u);
    ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(acl.DeviceByte(0), 2);
  });
}

TEST(Eager, AbortWakesAWaitingSynchronize) {
  InProcess({}, [] {
    Session acl;
    aclrtEvent event = nullptr;
    ASSERT_EQ(aclrtCreateEvent(&event), ACL_SUCCESS);
    ASSERT_EQ(aclrtStreamWaitEvent(acl.stream, event), ACL_SUCCESS);
    uint64_t before = GetStats().synchronizes;
    aclError code = 0;
    std::thread waiter([&] {
      EXPECT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
      code = aclrtSynchronizeStream(acl.stream);
    });
    while (GetStats().synchronizes == before) std::this_thread::yield();
    // The waiter may not wait yet: an abort before it finds an empty stream, so there must be work until it ends.
    std::atomic<bool> ended{false};
    std::thread joiner([&] {
      waiter.join();
      ended = true;
    });
    aclError worst = 0;
    while (!ended) {
      worst = std::max(worst, aclrtStreamAbort(acl.stream));
      std::this_thread::yield();
    }
    joiner.join();
    EXPECT_EQ(worst, ACL_SUCCESS);
    EXPECT_TRUE(code == ACL_ERROR_RT_STREAM_ABORT || code == ACL_SUCCESS) << code;
    EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
  });
}

TEST(Eager, ManyThreadsCopyThroughTheirOwnStreams) {
  InProcess({{"ACLEMU_HBM", "64M"}}, [] {
    Session acl;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([t] {
        ASSERT_EQ(aclrtSetDevice(t % 2), ACL_SUCCESS);
        aclrtStream stream = nullptr;
        ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
        for (int round = 0; round < 20; ++round) {
          void *device = nullptr, *host = nullptr;
          ASSERT_EQ(aclrtMalloc(&device, kBytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
          ASSERT_EQ(aclrtMallocHost(&host, 2 * kBytes), ACL_SUCCESS);
          auto* in = static_cast<uint8_t*>(host);
          memset(in, t * 20 + round, kBytes);
          ASSERT_EQ(aclrtMemcpyAsync(device, kBytes, in, kBytes, ACL_MEMCPY_HOST_TO_DEVICE, stream), ACL_SUCCESS);
          ASSERT_EQ(aclrtMemcpyAsync(in + kBytes, kBytes, device, kBytes, ACL_MEMCPY_DEVICE_TO_HOST, stream),
                    ACL_SUCCESS);
          ASSERT_EQ(aclrtSynchronizeStreamWithTimeout(stream, 60000), ACL_SUCCESS);
          EXPECT_EQ(memcmp(in, in + kBytes, kBytes), 0);
          ASSERT_EQ(aclrtFree(device), ACL_SUCCESS);
          ASSERT_EQ(aclrtFreeHost(host), ACL_SUCCESS);
        }
        EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(SIDE(aclemu_live_allocs)(-1), 1);
  });
}

// ---- leaks, report, faults, knobs ----

TEST(Leaks, LiveObjectsAtExitGiveTheExitCode) {
  Knobs fatal = {{"ACLEMU_LEAK_FATAL", "1"}};
  auto with = [](std::function<void()> leak) {
    return [leak] {
      ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
      ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
      leak();
    };
  };
  void* ptr = nullptr;
  InProcess(fatal, with([] {}), 0);
  InProcess(fatal, with([&] { aclrtMalloc(&ptr, 4096, ACL_MEM_MALLOC_HUGE_FIRST); }), 23, "leak: device memory");
  InProcess(fatal, with([&] { aclrtMallocHost(&ptr, 4096); }), 23, "leak: pinned memory");
  InProcess(fatal, with([&] { aclrtCreateStream(&ptr); }), 23, "leak: stream");
  InProcess(fatal, with([&] { aclrtCreateEvent(&ptr); }), 23, "leak: event");
  InProcess({}, with([&] { aclrtMalloc(&ptr, 4096, ACL_MEM_MALLOC_HUGE_FIRST); }), 0);
}

TEST(Leaks, ReportListsThemWithCounters) {
  std::string path = testing::TempDir() + "aclemu_report_" + std::to_string(getpid()) + ".json";
  InProcess({{"ACLEMU_REPORT", "stderr"}}, [] {
    Session acl;
    void* lost = nullptr;
    ASSERT_EQ(aclrtMalloc(&lost, 12345, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    EXPECT_EQ(aclrtFree(acl.dev(64)), ACL_ERROR_RT_PARAM_INVALID);
  }, 0, "\"device_allocs\":2.*\"violations\":.\"M1\":1.*\"leaks\":..\"kind\":\"device memory\",\"device\":0,.*12345");
}

TEST(Faults, NthCallReturnsTheCode) {
  InProcess({{"ACLEMU_FAULT", "aclrtMalloc@2=207001; aclrtSetDevice@1=507033"}}, [] {
    ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
    EXPECT_EQ(aclrtSetDevice(0), ACL_ERROR_RT_DEV_SETUP_ERROR);
    EXPECT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    void *first = nullptr, *second = nullptr;
    EXPECT_EQ(aclrtMalloc(&first, 4096, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    EXPECT_EQ(aclrtMalloc(&second, 4096, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_MEMORY_ALLOCATION);
    EXPECT_EQ(aclrtMalloc(&second, 4096, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    EXPECT_EQ(GetStats().faults_fired, 2u);
    EXPECT_EQ(SIDE(aclemu_inject)("aclrtFree@1=507899"), 0);
    EXPECT_EQ(aclrtFree(first), ACL_ERROR_RT_DRV_INTERNAL_ERROR);
    EXPECT_EQ(aclrtFree(first), ACL_SUCCESS);
    EXPECT_EQ(SIDE(aclemu_inject)("aclrtFre@1=507899"), -1);
    EXPECT_EQ(SIDE(aclemu_inject)("aclrtFree@0=507899"), -1);
    EXPECT_EQ(aclrtFree(second), ACL_SUCCESS);
  });
}

TEST(Faults, FailedCopyTaskShowsAtTheNextSynchronizeOnce) {
  InProcess({}, [] {
    Session acl;
    ASSERT_EQ(SIDE(aclemu_inject)("H2D@1=507001"), 0);
    ASSERT_EQ(aclrtMemcpyAsync(acl.device, 64, acl.pinned, 64, ACL_MEMCPY_HOST_TO_DEVICE, acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemsetAsync(acl.dev(64), 64, 9, 64, acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_ERROR_RT_TS_ERROR);
    EXPECT_EQ(acl.DeviceByte(64), 9);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
  });
}

TEST(KnobsDeathTest, WrongKnobsEndTheProcess) {
  auto init = [] { aclInit(nullptr); };
  InProcess({{"ACLEMU_HBMM", "1G"}}, init, 24, "unknown knob ACLEMU_HBMM .nearest: ACLEMU_HBM.");
  InProcess({{"ACLEMU_HBM", "1X"}}, init, 24, "no size");
  InProcess({{"ACLEMU_SCHED", "late"}}, init, 24, "eager|lazy");
  InProcess({{"ACLEMU_FAULT", "aclrtMalloc=1"}}, init, 24, "name@N=code");
}

TEST(Knobs, DevicesAndVisibleDevices) {
  auto expect = [](uint32_t devices) {
    return [devices] {
      uint32_t count = 0;
      ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
      EXPECT_EQ(aclrtGetDeviceCount(&count), ACL_SUCCESS);
      EXPECT_EQ(count, devices);
    };
  };
  InProcess({{"ACLEMU_DEVICES", "5"}}, expect(5));
  InProcess({{"ACLEMU_DEVICES", "5"}, {"ASCEND_RT_VISIBLE_DEVICES", "1,4"}}, expect(2));
  InProcess({{"ACLEMU_DEVICES", "5"}, {"ASCEND_RT_VISIBLE_DEVICES", "3,1,4"}}, expect(1));
}

// ---- side API and libraries ----

TEST(SideApi, PeekPokeAndClasses) {
  InProcess({}, [] {
    Session acl;
    const char text[] = "key";
    EXPECT_EQ(SIDE(aclemu_poke)(acl.dev(100), text, 4), 0);
    char back[4] = "";
    ASSERT_EQ(aclrtMemcpy(back, 4, acl.dev(100), 4, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
    EXPECT_STREQ(back, "key");
    EXPECT_EQ(SIDE(aclemu_peek)(acl.dev(kBytes - 1), back, 2), -1);
    EXPECT_EQ(SIDE(aclemu_ptr_class)(acl.dev(5)), ACLEMU_CLASS_DEVICE);
    EXPECT_EQ(SIDE(aclemu_ptr_class)(acl.host(5)), ACLEMU_CLASS_PINNED);
    EXPECT_EQ(SIDE(aclemu_ptr_class)(back), ACLEMU_CLASS_PAGEABLE);
    void* pages = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_EQ(aclrtHostRegisterV2(pages, 4096, ACL_HOST_REG_PINNED | ACL_HOST_REG_MAPPED), ACL_SUCCESS);
    EXPECT_EQ(SIDE(aclemu_ptr_class)(pages), ACLEMU_CLASS_REGISTERED);
    EXPECT_EQ(aclrtHostUnregister(pages), ACL_SUCCESS);
    munmap(pages, 4096);
  });
}

TEST(SideApi, StatsCountAndReset) {
  InProcess({}, [] {
    Session acl;
    ASSERT_EQ(aclrtMemcpy(acl.device, 64, acl.pinned, 64, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemcpyAsync(acl.pinned, 128, acl.device, 128, ACL_MEMCPY_DEVICE_TO_HOST, acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    aclemu_stats stats = GetStats();
    EXPECT_EQ(stats.device_live_blocks, 1u);
    EXPECT_EQ(stats.device_live_bytes, kBytes);
    EXPECT_EQ(stats.device_paged_bytes, kBytes + 4096);
    EXPECT_EQ(stats.sync_copies[ACLEMU_H2D], 1u);
    EXPECT_EQ(stats.async_bytes[ACLEMU_D2H], 128u);
    EXPECT_EQ(stats.streams_live, 1u);
    SIDE(aclemu_reset_stats)();
    stats = GetStats();
    EXPECT_EQ(stats.sync_copies[ACLEMU_H2D], 0u);
    EXPECT_EQ(stats.device_live_blocks, 1u);
    EXPECT_EQ(stats.streams_live, 1u);
    stats.version = 99;
    EXPECT_EQ(SIDE(aclemu_get_stats)(&stats), -1);
  });
}

TEST(Facades, BothLibrariesShareOneState) {
  InProcess({}, [] {
    void* acl_rt = dlopen("libacl_rt.so", RTLD_NOW | RTLD_LOCAL);
    void* ascendcl = dlopen("libascendcl.so", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(acl_rt, nullptr) << dlerror();
    ASSERT_NE(ascendcl, nullptr) << dlerror();
    EXPECT_NE(dlsym(acl_rt, "aclrtMalloc"), dlsym(ascendcl, "aclrtMalloc"));
    EXPECT_EQ(dlsym(acl_rt, "aclemu_live_allocs"), dlsym(ascendcl, "aclemu_live_allocs"));
    auto init = reinterpret_cast<decltype(&aclInit)>(dlsym(acl_rt, "aclInit"));
    auto free_block = reinterpret_cast<decltype(&aclrtFree)>(dlsym(acl_rt, "aclrtFree"));
    EXPECT_EQ(init(nullptr), ACL_SUCCESS);
    EXPECT_EQ(aclInit(nullptr), ACL_ERROR_REPEAT_INITIALIZE);
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    void* block = nullptr;
    ASSERT_EQ(aclrtMalloc(&block, 4096, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    EXPECT_EQ(free_block(block), ACL_SUCCESS);
    dlclose(acl_rt);
    dlclose(ascendcl);
  });
}

TEST(Headers, StructSizesAreTheDocumentedOnes) {
  EXPECT_EQ(sizeof(aclrtMemLocation), 8u);
  EXPECT_EQ(sizeof(aclrtPtrAttributes), 28u);
  EXPECT_EQ(sizeof(aclrtPhysicalMemProp), 32u);
  EXPECT_EQ(sizeof(aclrtMemAccessDesc), 24u);
  EXPECT_EQ(sizeof(aclrtMemcpyBatchAttr), 32u);
  EXPECT_EQ(sizeof(aclrtMemcpyKind), 4u);
}

}  // namespace
