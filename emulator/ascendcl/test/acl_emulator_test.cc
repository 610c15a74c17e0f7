// What only the emulator does: memory the host cannot touch, leak reports, scheduling, faults, side API.
// Most cases run in a process of their own, as the emulator reads its knobs once.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "test/emulator_session.h"

namespace {

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

// Bytes the system holds for the memory files of this process.
uint64_t ResidentDeviceBytes() {
  uint64_t bytes = 0;
  for (int fd = 3; fd < 64; ++fd) {
    char target[64] = "";
    std::string link = "/proc/self/fd/" + std::to_string(fd);
    if (readlink(link.c_str(), target, sizeof(target) - 1) < 0 || strstr(target, "aclemu-hbm") == nullptr) continue;
    struct stat info{};
    EXPECT_EQ(fstat(fd, &info), 0);
    bytes += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

TEST(DeviceMemory, FreedMemoryAboveTheLimitIsGivenBackToTheSystem) {
  InProcess({{"ACLEMU_HBM", "64M"}, {"ACLEMU_KEEP", "8M"}}, [] {
    Session acl;
    std::vector<void*> blocks(10);
    for (void*& ptr : blocks) ASSERT_EQ(aclrtMallocAlign32(&ptr, 4 * kMiB, ACL_MEM_MALLOC_HUGE_ONLY), ACL_SUCCESS);
    EXPECT_GE(ResidentDeviceBytes(), 40 * kMiB);
    for (void* ptr : blocks) EXPECT_EQ(aclrtFree(ptr), ACL_SUCCESS);
    EXPECT_LE(ResidentDeviceBytes(), 10 * kMiB);
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
    aclrtEvent never = nullptr;
    ASSERT_EQ(aclrtCreateEvent(&never), ACL_SUCCESS);
    std::atomic<bool> ended{false};
    aclError code = ACL_SUCCESS;
    std::thread waiter([&] {
      EXPECT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
      // An abort that comes before the wait leaves an empty stream, and the wait succeeds: then once more.
      while (code == ACL_SUCCESS) {
        EXPECT_EQ(aclrtStreamWaitEvent(acl.stream, never), ACL_SUCCESS);
        code = aclrtSynchronizeStream(acl.stream);
      }
      ended = true;
    });
    while (!ended) {
      EXPECT_EQ(aclrtStreamAbort(acl.stream), ACL_SUCCESS);
      std::this_thread::yield();
    }
    waiter.join();
    EXPECT_EQ(code, ACL_ERROR_RT_STREAM_ABORT);
    EXPECT_EQ(aclrtDestroyEvent(never), ACL_SUCCESS);
  });
}

// What is submitted in the middle of an abort waits until it is over, and does not keep it from ending.
TEST(Eager, AbortsEndWhileWorkArrives) {
  InProcess({}, [] {
    Session acl;
    aclrtEvent never = nullptr;
    ASSERT_EQ(aclrtCreateEvent(&never), ACL_SUCCESS);
    std::atomic<bool> over{false};
    std::thread submitter([&] {
      EXPECT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
      while (!over) EXPECT_EQ(aclrtStreamWaitEvent(acl.stream, never), ACL_SUCCESS);
    });
    for (int round = 0; round < 100000; ++round) ASSERT_EQ(aclrtStreamAbort(acl.stream), ACL_SUCCESS);
    over = true;
    submitter.join();
    EXPECT_EQ(aclrtStreamAbort(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtDestroyEvent(never), ACL_SUCCESS);
  });
}

TEST(Eager, EventOfAnAbortedRecordSaysSo) {
  for (const char* sched : {"eager", "lazy"}) {
    InProcess({{"ACLEMU_SCHED", sched}}, [] {
      Session acl;
      aclrtEvent never = nullptr, event = nullptr;
      ASSERT_EQ(aclrtCreateEvent(&never), ACL_SUCCESS);
      ASSERT_EQ(aclrtCreateEvent(&event), ACL_SUCCESS);
      ASSERT_EQ(aclrtStreamWaitEvent(acl.stream, never), ACL_SUCCESS);
      ASSERT_EQ(aclrtRecordEvent(event, acl.stream), ACL_SUCCESS);
      EXPECT_EQ(aclrtSynchronizeEventWithTimeout(event, 20), ACL_ERROR_RT_EVENT_SYNC_TIMEOUT);
      ASSERT_EQ(aclrtStreamAbort(acl.stream), ACL_SUCCESS);
      EXPECT_EQ(aclrtSynchronizeEvent(event), ACL_ERROR_RT_STREAM_ABORT);
      EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
      EXPECT_EQ(aclrtDestroyEvent(never), ACL_SUCCESS);
      EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
    });
  }
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
  // The variable carries the name into the fresh process, which runs this line again.
  constexpr const char* kPathVariable = "MC_TEST_REPORT_PATH";
  setenv(kPathVariable, (testing::TempDir() + "aclemu_report_" + std::to_string(getpid())).c_str(), 0);
  std::string path = getenv(kPathVariable);
  InProcess({{"ACLEMU_REPORT", path}}, [] {
    Session acl;
    void* lost = nullptr;
    ASSERT_EQ(aclrtMalloc(&lost, 12345, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    EXPECT_EQ(aclrtFree(acl.dev(64)), ACL_ERROR_RT_PARAM_INVALID);
  });
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  unlink(path.c_str());
  EXPECT_NE(text.str().find("\"device_allocs\":2"), std::string::npos) << text.str();
  EXPECT_NE(text.str().find("\"violations\":{\"M1\":1}"), std::string::npos) << text.str();
  EXPECT_NE(text.str().find("\"leaks\":[{\"kind\":\"device memory\",\"device\":0,"), std::string::npos) << text.str();
  EXPECT_NE(text.str().find("\"bytes\":12345}]}"), std::string::npos) << text.str();
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
  InProcess({{"ACLEMU_FAULT", "aclrtGetLastError@1=107000"}}, init, 24, "cannot fail");
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
