// The rules of use about process, objects, memory and limits: each is broken once, and the code is checked.
#include <sys/mman.h>

#include <cstring>
#include <thread>

#include "test/emulator_session.h"

namespace {

TEST(Rules, I2FinalizeWithLiveObjectsIsNoted) {
  InProcess({}, [] {
    Session* acl = new Session;
    EXPECT_EQ(aclFinalize(), ACL_SUCCESS);
    EXPECT_EQ(GetStats().violations, 3u);  // device memory, pinned memory, stream
    EXPECT_EQ(aclInit(nullptr), ACL_SUCCESS);
    delete acl;
  });
}

TEST(Rules, I2FinalizeBelongsToWhoInitialisedFirst) {
  InProcess({}, [] {
    ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
    std::thread([] {
      ASSERT_EQ(aclInit(nullptr), ACL_ERROR_REPEAT_INITIALIZE);
      EXPECT_EQ(aclFinalize(), ACL_SUCCESS);
      EXPECT_EQ(GetStats().violations, 1u);
    }).join();
    ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
    EXPECT_EQ(aclFinalize(), ACL_SUCCESS);
    EXPECT_EQ(GetStats().violations, 1u);
  });
}

TEST(Rules, T1AndT2ThreadsAndContexts) {
  InProcess({}, [] {
    Session acl;
    std::thread([&] {
      void* block = nullptr;
      EXPECT_EQ(aclrtMalloc(&block, 64, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_CONTEXT_NULL);
      EXPECT_EQ(aclrtMallocHost(&block, 64), ACL_ERROR_RT_CONTEXT_NULL);
      EXPECT_EQ(aclrtStreamWaitEvent(acl.stream, &block), ACL_ERROR_RT_PARAM_INVALID);
      EXPECT_EQ(GetStats().violations, 2u);
      ASSERT_EQ(aclrtSetDevice(1), ACL_SUCCESS);
      EXPECT_EQ(aclrtMemsetAsync(acl.device, 64, 0, 64, acl.stream), ACL_ERROR_RT_STREAM_CONTEXT);
      EXPECT_EQ(aclrtLaunchHostFunc(acl.stream, [](void*) {}, nullptr), ACL_ERROR_RT_STREAM_CONTEXT);
      EXPECT_EQ(GetStats().violations, 4u);
      EXPECT_EQ(aclrtResetDevice(1), ACL_SUCCESS);
    }).join();
  });
}

TEST(Rules, M1OnlyLiveBlocksOfTheRightKindCanBeFreed) {
  InProcess({}, [] {
    Session acl;
    static uint8_t plain[64];
    EXPECT_EQ(aclrtFree(plain), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtFree(acl.dev(64)), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtFree(acl.pinned), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtFreeHost(acl.device), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtFreeHost(acl.host(64)), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtFreeHost(plain), ACL_ERROR_RT_PARAM_INVALID);
    ASSERT_EQ(aclrtSetDevice(1), ACL_SUCCESS);
    void* other = nullptr;
    ASSERT_EQ(aclrtMalloc(&other, 64, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    ASSERT_EQ(aclrtResetDevice(1), ACL_SUCCESS);
    EXPECT_EQ(aclrtFree(other), ACL_ERROR_RT_PARAM_INVALID);
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    EXPECT_EQ(GetStats().violations, 8u);  // with M3 for what the reset took away
  });
}

TEST(Rules, M3WhatLivesAtAResetIsNotedAndGone) {
  InProcess({}, [] {
    ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    void* block = nullptr;
    aclrtStream stream = nullptr;
    aclrtEvent event = nullptr;
    aclrtContext context = nullptr;
    ASSERT_EQ(aclrtMalloc(&block, 64, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtCreateEvent(&event), ACL_SUCCESS);
    ASSERT_EQ(aclrtCreateContext(&context, 0), ACL_SUCCESS);
    ASSERT_EQ(aclrtResetDevice(0), ACL_SUCCESS);
    EXPECT_EQ(GetStats().violations, 4u);
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtDestroyEvent(event), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtSetCurrentContext(context), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(SIDE(aclemu_live_allocs)(0), 0);
  });
}

TEST(Rules, M4WastefulSizesAreAdvisedAgainstOncePerPlace) {
  auto waste = [] {
    Session acl;
    for (int i = 0; i < 3; ++i) {
      void* block = nullptr;
      ASSERT_EQ(aclrtMalloc(&block, 4 * kMiB, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
      EXPECT_EQ(aclrtFree(block), ACL_SUCCESS);
    }
    void* fitting = nullptr;
    ASSERT_EQ(aclrtMallocAlign32(&fitting, 4 * kMiB, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    EXPECT_EQ(aclrtFree(fitting), ACL_SUCCESS);
    EXPECT_EQ(GetStats().violations, 0u);
  };
  // One line, though it happened three times; never fatal.
  InProcess({{"ACLEMU_VIOLATION", "abort"}, {"ACLEMU_REPORT", "stderr"}}, waste, 0,
            "^aclemu: advice M4 in aclrtMalloc: 4194304[^\n]*\n\\{[^\n]*\"advice\":\\{\"M4\":3\\}");
}

TEST(Rules, C13OneDeviceCopyMovesAtMost4GiB) {
  InProcess({{"ACLEMU_HBM", "12G"}, {"ACLEMU_POISON", "0"}}, [] {
    Session acl;
    const size_t bytes = (4ULL << 30) + 64;
    void *from = nullptr, *to = nullptr;
    ASSERT_EQ(aclrtMalloc(&from, bytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    ASSERT_EQ(aclrtMalloc(&to, bytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemcpy(to, bytes, from, bytes, ACL_MEMCPY_DEVICE_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMemcpyAsync(to, bytes, from, bytes, ACL_MEMCPY_DEVICE_TO_DEVICE, acl.stream),
              ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(GetStats().violations, 2u);
    EXPECT_EQ(aclrtFree(from), ACL_SUCCESS);
    EXPECT_EQ(aclrtFree(to), ACL_SUCCESS);
  });
}

TEST(Rules, R2UnregisterWhileATaskUsesTheMemory) {
  InProcess({{"ACLEMU_SCHED", "lazy"}}, [] {
    Session acl;
    alignas(4096) static uint8_t pages[4096];
    ASSERT_EQ(aclrtHostRegisterV2(pages, 4096, ACL_HOST_REG_PINNED), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemcpyAsync(acl.device, 64, pages, 64, ACL_MEMCPY_HOST_TO_DEVICE, acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtHostUnregister(pages), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(GetStats().violations, 1u);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtHostUnregister(pages), ACL_SUCCESS);
  });
}

TEST(Rules, S2EventsNeedTheFlagOfTheirUse) {
  InProcess({}, [] {
    Session acl;
    aclrtEvent timed = nullptr, ordering = nullptr;
    float ms = 0;
    ASSERT_EQ(aclrtCreateEventWithFlag(&timed, ACL_EVENT_TIME_LINE), ACL_SUCCESS);
    ASSERT_EQ(aclrtCreateEventWithFlag(&ordering, ACL_EVENT_SYNC), ACL_SUCCESS);
    EXPECT_EQ(aclrtStreamWaitEvent(acl.stream, timed), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtEventElapsedTime(&ms, timed, ordering), ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID);
    EXPECT_EQ(GetStats().violations, 2u);
    EXPECT_EQ(aclrtDestroyEvent(timed), ACL_SUCCESS);
    EXPECT_EQ(aclrtDestroyEvent(ordering), ACL_SUCCESS);
  });
}

TEST(Rules, G1NothingSynchronousDuringACapture) {
  InProcess({{"ACLEMU_PAGEABLE", "sync"}}, [] {
    Session acl;
    alignas(64) static uint8_t plain[64];
    SIDE(aclemu_set_capture)(1);
    EXPECT_EQ(aclrtMemcpy(acl.device, 64, plain, 64, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT);
    EXPECT_EQ(aclrtMemset(acl.device, 64, 0, 64), ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT);
    EXPECT_EQ(aclrtMemcpy2d(acl.device, 64, plain, 8, 8, 8, ACL_MEMCPY_HOST_TO_DEVICE),
              ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT);
    EXPECT_EQ(aclrtMemcpyAsync(acl.device, 64, plain, 64, ACL_MEMCPY_HOST_TO_DEVICE, acl.stream),
              ACL_ERROR_RT_CAPTURE_MODE_BLOCK_ASYNC);
    EXPECT_EQ(aclrtMemcpyAsync(acl.device, 64, acl.pinned, 64, ACL_MEMCPY_HOST_TO_DEVICE, acl.stream), ACL_SUCCESS);
    EXPECT_EQ(GetStats().violations, 4u);
    SIDE(aclemu_set_capture)(0);
    ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);  // its copy has the same destination
    EXPECT_EQ(aclrtMemcpy(acl.device, 64, plain, 64, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
  });
}

TEST(Limits, EventsOfADeviceRunOut) {
  InProcess({}, [] {
    Session acl;
    std::vector<aclrtEvent> events(65536);
    for (aclrtEvent& event : events) ASSERT_EQ(aclrtCreateEvent(&event), ACL_SUCCESS);
    aclrtEvent more = nullptr, ex = nullptr;
    EXPECT_EQ(aclrtCreateEvent(&more), ACL_ERROR_RT_NO_EVENT_RESOURCE);
    // The newer kind takes an id only when it is recorded.
    ASSERT_EQ(aclrtCreateEventExWithFlag(&ex, ACL_EVENT_SYNC), ACL_SUCCESS);
    EXPECT_EQ(aclrtRecordEvent(ex, acl.stream), ACL_ERROR_RT_NO_EVENT_RESOURCE);
    EXPECT_EQ(aclrtDestroyEvent(events.back()), ACL_SUCCESS);
    events.pop_back();
    EXPECT_EQ(aclrtRecordEvent(ex, acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtRecordEvent(ex, acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtCreateEvent(&more), ACL_ERROR_RT_NO_EVENT_RESOURCE);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtDestroyEvent(ex), ACL_SUCCESS);
    EXPECT_EQ(aclrtCreateEvent(&more), ACL_SUCCESS);
    EXPECT_EQ(aclrtDestroyEvent(more), ACL_SUCCESS);
    for (aclrtEvent event : events) EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
  });
}

TEST(Limits, StreamsOfADeviceRunOut) {
  InProcess({}, [] {
    Session acl;
    std::vector<aclrtStream> streams(1983);
    for (aclrtStream& stream : streams) ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
    aclrtStream more = nullptr;
    EXPECT_EQ(aclrtCreateStream(&more), ACL_ERROR_RT_NO_STREAM_RESOURCE);
    ASSERT_EQ(aclrtSetDevice(1), ACL_SUCCESS);
    ASSERT_EQ(aclrtCreateStream(&more), ACL_SUCCESS);
    EXPECT_EQ(aclrtDestroyStream(more), ACL_SUCCESS);
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    for (aclrtStream stream : streams) EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
  });
}

}  // namespace
