// Rarer functions: stream properties and failure modes, event queries, ways to allocate, functions that do nothing.
#include <cstring>
#include <thread>

#include "test/emulator_session.h"

namespace {

TEST(StreamExtras, PropertiesAreWhatWasAskedFor) {
  InProcess({}, [] {
    Session acl;
    aclrtStream stream = nullptr;
    ASSERT_EQ(aclrtCreateStreamWithConfig(&stream, 3, ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC), ACL_SUCCESS);
    int32_t id = -1, other = -1;
    uint32_t value = 0, free_streams = 0;
    EXPECT_EQ(aclrtStreamGetId(stream, &id), ACL_SUCCESS);
    EXPECT_EQ(aclrtStreamGetId(acl.stream, &other), ACL_SUCCESS);
    EXPECT_NE(id, other);
    EXPECT_EQ(aclrtStreamGetPriority(stream, &value), ACL_SUCCESS);
    EXPECT_EQ(value, 3u);
    EXPECT_EQ(aclrtStreamGetFlags(stream, &value), ACL_SUCCESS);
    EXPECT_EQ(value, ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC);
    EXPECT_EQ(aclrtGetStreamAvailableNum(&free_streams), ACL_SUCCESS);
    EXPECT_EQ(free_streams, 1982u);
    EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
  });
}

TEST(StreamExtras, DefaultStreamHasAHandleToo) {
  InProcess({{"ACLEMU_SCHED", "lazy"}}, [] {
    Session acl;
    aclrtStream stream = nullptr, again = nullptr;
    ASSERT_EQ(aclrtCtxGetCurrentDefaultStream(&stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtCtxGetCurrentDefaultStream(&again), ACL_SUCCESS);
    EXPECT_NE(stream, nullptr);
    EXPECT_EQ(stream, again);
    ASSERT_EQ(aclrtMemsetAsync(acl.device, kBytes, 7, 64, nullptr), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
    EXPECT_EQ(acl.DeviceByte(0), 7);
    EXPECT_EQ(aclrtDestroyStream(stream), ACL_ERROR_RT_PARAM_INVALID);
  });
}

TEST(StreamExtras, ContinueModeGoesOnAfterAFailure) {
  InProcess({{"ACLEMU_FAULT", "H2D@1=507001"}}, [] {
    Session acl;
    ASSERT_EQ(aclrtMemcpyAsync(acl.device, 64, acl.pinned, 64, ACL_MEMCPY_HOST_TO_DEVICE, acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemsetAsync(acl.device, kBytes, 9, 64, acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_ERROR_RT_TS_ERROR);
    EXPECT_EQ(acl.DeviceByte(0), 9);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
  });
}

TEST(StreamExtras, StopModeEndsAllStreamsOfTheContext) {
  InProcess({{"ACLEMU_FAULT", "H2D@1=507001"}}, [] {
    Session acl;
    aclrtStream other = nullptr;
    aclrtEvent event = nullptr;
    ASSERT_EQ(aclrtCreateStream(&other), ACL_SUCCESS);
    ASSERT_EQ(aclrtCreateEvent(&event), ACL_SUCCESS);
    EXPECT_EQ(aclrtSetStreamFailureMode(acl.stream, 2), ACL_ERROR_RT_PARAM_INVALID);
    ASSERT_EQ(aclrtSetStreamFailureMode(acl.stream, ACL_STOP_ON_FAILURE), ACL_SUCCESS);
    EXPECT_EQ(aclrtSetStreamFailureMode(other, ACL_CONTINUE_ON_FAILURE), ACL_ERROR_RT_PARAM_INVALID);
    ASSERT_EQ(aclrtMemcpyAsync(acl.device, 64, acl.pinned, 64, ACL_MEMCPY_HOST_TO_DEVICE, acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_ERROR_RT_TS_ERROR);
    ASSERT_EQ(aclrtMemsetAsync(acl.device, kBytes, 9, 64, acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemsetAsync(acl.dev(64), kBytes - 64, 9, 64, other), ACL_SUCCESS);
    ASSERT_EQ(aclrtRecordEvent(event, other), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeEvent(event), ACL_ERROR_RT_TS_ERROR);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_ERROR_RT_TS_ERROR);
    EXPECT_EQ(aclrtSynchronizeStream(other), ACL_ERROR_RT_TS_ERROR);
    EXPECT_EQ(acl.DeviceByte(0), 0xA5);
    EXPECT_EQ(acl.DeviceByte(64), 0xA5);
    EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
    EXPECT_EQ(aclrtDestroyStream(other), ACL_SUCCESS);
  });
}

TEST(StreamExtras, StopDropsWhatIsPending) {
  InProcess({{"ACLEMU_SCHED", "lazy"}}, [] {
    Session acl;
    ASSERT_EQ(aclrtMemsetAsync(acl.device, kBytes, 9, 64, acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtStreamStop(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(acl.DeviceByte(0), 0xA5);
  });
}

TEST(StreamExtras, PersistentStreamsAreNotWaitedFor) {
  InProcess({{"ACLEMU_SCHED", "lazy"}}, [] {
    Session acl;
    aclrtStream stream = nullptr;
    ASSERT_EQ(aclrtCreateStreamWithConfig(&stream, 0, ACL_STREAM_PERSISTENT), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemsetAsync(acl.device, kBytes, 9, 64, stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
    EXPECT_EQ(acl.DeviceByte(0), 0xA5);
    EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
  });
}

TEST(EventExtras, OlderQueriesHaveInvertedStatuses) {
  InProcess({{"ACLEMU_SCHED", "lazy"}}, [] {
    Session acl;
    aclrtEvent event = nullptr, ex = nullptr;
    ASSERT_EQ(aclrtCreateEvent(&event), ACL_SUCCESS);
    aclrtEventStatus status = ACL_EVENT_STATUS_RESERVED;
    aclrtEventWaitStatus waits = ACL_EVENT_WAIT_STATUS_RESERVED;
    aclrtEventRecordedStatus recorded = ACL_EVENT_RECORDED_STATUS_COMPLETE;
    EXPECT_EQ(aclrtQueryEvent(event, &status), ACL_SUCCESS);
    EXPECT_EQ(status, ACL_EVENT_STATUS_NOT_READY);
    EXPECT_EQ(aclrtQueryEventWaitStatus(event, &waits), ACL_SUCCESS);
    EXPECT_EQ(waits, ACL_EVENT_WAIT_STATUS_COMPLETE);
    ASSERT_EQ(aclrtRecordEvent(event, acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtStreamWaitEvent(acl.stream, event), ACL_SUCCESS);
    EXPECT_EQ(aclrtQueryEventWaitStatus(event, &waits), ACL_SUCCESS);
    EXPECT_EQ(waits, ACL_EVENT_WAIT_STATUS_NOT_READY);
    ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtQueryEvent(event, &status), ACL_SUCCESS);
    EXPECT_EQ(status, ACL_EVENT_STATUS_COMPLETE);
    EXPECT_EQ(aclrtQueryEventWaitStatus(event, &waits), ACL_SUCCESS);
    EXPECT_EQ(waits, ACL_EVENT_WAIT_STATUS_COMPLETE);
    EXPECT_EQ(aclrtQueryEventStatus(event, &recorded), ACL_SUCCESS);
    EXPECT_EQ(recorded, ACL_EVENT_RECORDED_STATUS_COMPLETE);
    ASSERT_EQ(aclrtCreateEventExWithFlag(&ex, ACL_EVENT_SYNC), ACL_SUCCESS);
    EXPECT_EQ(aclrtQueryEvent(ex, &status), ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
    EXPECT_EQ(aclrtQueryEventWaitStatus(ex, &waits), ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
    EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
    EXPECT_EQ(aclrtDestroyEvent(ex), ACL_SUCCESS);
  });
}

TEST(EventExtras, TimestampsNeedTimeLineAndGrow) {
  InProcess({}, [] {
    Session acl;
    aclrtEvent timed = nullptr, untimed = nullptr;
    ASSERT_EQ(aclrtCreateEventWithFlag(&timed, ACL_EVENT_TIME_LINE), ACL_SUCCESS);
    ASSERT_EQ(aclrtCreateEventWithFlag(&untimed, ACL_EVENT_SYNC), ACL_SUCCESS);
    uint64_t first = 0, second = 0;
    EXPECT_EQ(aclrtEventGetTimestamp(timed, &first), ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID);
    for (uint64_t* when : {&first, &second}) {
      ASSERT_EQ(aclrtRecordEvent(timed, acl.stream), ACL_SUCCESS);
      ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
      ASSERT_EQ(aclrtEventGetTimestamp(timed, when), ACL_SUCCESS);
    }
    EXPECT_GT(first, 0u);
    EXPECT_GE(second, first);
    EXPECT_EQ(aclrtEventGetTimestamp(untimed, &first), ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID);
    EXPECT_EQ(aclrtDestroyEvent(timed), ACL_SUCCESS);
    EXPECT_EQ(aclrtDestroyEvent(untimed), ACL_SUCCESS);
  });
}

TEST(EventExtras, WaitsWithALimitFailAndTheStreamGoesOn) {
  for (const char* sched : {"eager", "lazy"}) {
    InProcess({{"ACLEMU_SCHED", sched}}, [] {
      Session acl;
      aclrtEvent never = nullptr;
      ASSERT_EQ(aclrtCreateEvent(&never), ACL_SUCCESS);
      EXPECT_EQ(aclrtStreamWaitEventWithTimeout(acl.stream, never, -2), ACL_ERROR_RT_PARAM_INVALID);
      ASSERT_EQ(aclrtStreamWaitEventWithTimeout(acl.stream, never, 1), ACL_SUCCESS);
      ASSERT_EQ(aclrtMemsetAsync(acl.device, kBytes, 9, 64, acl.stream), ACL_SUCCESS);
      EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(acl.stream, 5), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
      EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_ERROR_RT_WAIT_TIMEOUT);
      EXPECT_EQ(acl.DeviceByte(0), 9);
      ASSERT_EQ(aclrtSetOpWaitTimeout(1), ACL_SUCCESS);
      ASSERT_EQ(aclrtStreamWaitEvent(acl.stream, never), ACL_SUCCESS);
      EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_ERROR_RT_WAIT_TIMEOUT);
      EXPECT_EQ(aclrtDestroyEvent(never), ACL_SUCCESS);
    });
  }
}

TEST(MemoryExtras, OtherWaysToAllocateAndFree) {
  InProcess({{"ACLEMU_SCHED", "lazy"}}, [] {
    Session acl;
    void *cached = nullptr, *configured = nullptr, *host = nullptr;
    ASSERT_EQ(aclrtMallocCached(&cached, 4096, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemFlush(cached, 4096), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemInvalidate(cached, 4097), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMemFlush(acl.pinned, 64), ACL_ERROR_RT_PARAM_INVALID);
    aclrtMallocAttribute attribute{ACL_RT_MEM_ATTR_MODULE_ID, {}};
    aclrtMallocConfig config{&attribute, 1};
    ASSERT_EQ(aclrtMallocWithCfg(&configured, 4096, ACL_MEM_MALLOC_HUGE_FIRST, &config), ACL_SUCCESS);
    ASSERT_EQ(aclrtMallocHostWithCfg(&host, 4096, nullptr), ACL_SUCCESS);
    attribute.attr = static_cast<aclrtMallocAttrType>(3);
    EXPECT_EQ(aclrtMallocHostWithCfg(&host, 4096, &config), ACL_ERROR_INVALID_PARAM);
    // Frees that wait first may come while tasks use the block.
    ASSERT_EQ(aclrtMemcpyAsync(cached, 64, host, 64, ACL_MEMCPY_HOST_TO_DEVICE, acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtFreeWithDevSync(cached), ACL_SUCCESS);
    EXPECT_EQ(aclrtFreeHostWithDevSync(host), ACL_SUCCESS);
    EXPECT_EQ(aclrtFreeWithDevSync(configured), ACL_SUCCESS);
    EXPECT_EQ(aclrtFreeWithDevSync(nullptr), ACL_ERROR_INVALID_PARAM);
    EXPECT_EQ(GetStats().violations, 1u);
  });
}

TEST(MemoryExtras, RegisteredMemoryHasOneViewForKernels) {
  InProcess({}, [] {
    Session acl;
    alignas(4096) static uint8_t pages[8192];
    void *view = nullptr, *again = nullptr;
    EXPECT_EQ(aclrtHostGetDevicePointer(pages, &view, 0), ACL_ERROR_RT_HOST_MEMORY_NOT_REGISTERED);
    ASSERT_EQ(aclrtHostRegister(pages, 8192, ACL_HOST_REGISTER_MAPPED, &view), ACL_SUCCESS);
    ASSERT_EQ(aclrtHostGetDevicePointer(pages + 100, &again, 0), ACL_SUCCESS);
    EXPECT_EQ(static_cast<uint8_t*>(view) + 100, again);
    EXPECT_EQ(aclrtMemcpy(view, 64, acl.pinned, 64, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtHostUnregister(pages), ACL_SUCCESS);
  });
}

TEST(NotEmulated, AnswersItOnceInTheLogAndAlwaysInTheCode) {
  InProcess(
      {{"ACLEMU_REPORT", "stderr"}},
      [] {
        auto* stub = reinterpret_cast<aclError (*)(void*, size_t)>(FindSide("aclrtReduceAsync"));
        auto* null = reinterpret_cast<void* (*)(void*, size_t)>(FindSide("aclCreateDataBuffer"));
        EXPECT_EQ(stub(&stub, 1), ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
        EXPECT_EQ(stub(nullptr, 2), ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
        EXPECT_EQ(null(&stub, 1), nullptr);
      },
      0, "aclrtReduceAsync is not emulated\naclemu: aclCreateDataBuffer is not emulated\n.*\"aclrtReduceAsync\":2");
}

}  // namespace
