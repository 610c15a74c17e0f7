// Host functions and callbacks inside streams.
#include <pthread.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>

#include "test/emulator_session.h"

namespace {

uint64_t Self() {
  return static_cast<uint64_t>(pthread_self());
}
void Count(void* counter) {
  ++*static_cast<std::atomic<int>*>(counter);
}

// Runs the body under both ways to schedule streams.
void Both(const std::function<void()>& body) {
  for (const char* sched : {"eager", "lazy"}) {
    SCOPED_TRACE(sched);
    InProcess({{"ACLEMU_SCHED", sched}}, body);
  }
}

TEST(HostFunction, RunsInItsPlaceInTheStreamAndWithoutADevice) {
  Both([] {
    Session acl;
    struct Seen {
      uint8_t byte = 0;
      aclError device = ACL_SUCCESS;
      const uint8_t* host;
    } seen{.host = acl.host()};
    memset(acl.pinned, 0x21, kBytes);
    ASSERT_EQ(aclrtMemcpyAsync(acl.device, 64, acl.pinned, 64, ACL_MEMCPY_HOST_TO_DEVICE, acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemsetAsync(acl.device, kBytes, 0x22, 64, acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemcpyAsync(acl.pinned, 64, acl.device, 64, ACL_MEMCPY_DEVICE_TO_HOST, acl.stream), ACL_SUCCESS);
    auto look = [](void* arg) {
      auto* s = static_cast<Seen*>(arg);
      s->byte = *s->host;
      int32_t id = 0;
      s->device = aclrtGetDevice(&id);
    };
    ASSERT_EQ(aclrtLaunchHostFunc(acl.stream, look, &seen), ACL_SUCCESS);
    ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(seen.byte, 0x22);
    EXPECT_EQ(seen.device, ACL_ERROR_RT_CONTEXT_NULL);
    int32_t id = -1;
    EXPECT_EQ(aclrtGetDevice(&id), ACL_SUCCESS);
  });
}

TEST(Rules, S1CallbacksMustNotWaitAllocateOrLaunch) {
  Both([] {
    static Session* acl = new Session;
    static aclError codes[6];
    auto misbehave = [](void*) {
      codes[0] = aclrtSetDevice(0);
      codes[1] = aclrtSynchronizeStream(acl->stream);
      void* block = nullptr;
      codes[2] = aclrtMalloc(&block, 64, ACL_MEM_MALLOC_HUGE_FIRST);
      codes[3] = aclrtMemcpyAsync(acl->device, 64, acl->pinned, 64, ACL_MEMCPY_HOST_TO_DEVICE, acl->stream);
      codes[4] = aclrtMemcpy(acl->device, 64, acl->pinned, 64, ACL_MEMCPY_HOST_TO_DEVICE);
      codes[5] = aclrtStreamAbort(acl->stream);
    };
    ASSERT_EQ(aclrtLaunchHostFunc(acl->stream, misbehave, nullptr), ACL_SUCCESS);
    ASSERT_EQ(aclrtSynchronizeStream(acl->stream), ACL_SUCCESS);
    EXPECT_EQ(codes[0], ACL_SUCCESS);
    for (int i = 1; i < 6; ++i) EXPECT_EQ(codes[i], ACL_ERROR_RT_PARAM_INVALID) << i;
    EXPECT_EQ(GetStats().violations, 5u);
    EXPECT_EQ(aclrtMemcpy(acl->device, 64, acl->pinned, 64, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
    delete acl;
  });
}

TEST(HostFunction, AbortedOnesNeverRun) {
  InProcess({}, [] {
    Session acl;
    std::atomic<int> calls{0};
    aclrtEvent never = nullptr;
    ASSERT_EQ(aclrtCreateEvent(&never), ACL_SUCCESS);
    ASSERT_EQ(aclrtStreamWaitEvent(acl.stream, never), ACL_SUCCESS);
    ASSERT_EQ(aclrtLaunchHostFunc(acl.stream, Count, &calls), ACL_SUCCESS);
    ASSERT_EQ(aclrtStreamAbort(acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(calls.load(), 0);
    EXPECT_EQ(aclrtDestroyEvent(never), ACL_SUCCESS);
  });
}

TEST(Callback, ItsThreadFetchesIt) {
  Both([] {
    Session acl;
    std::atomic<int> calls{0};
    ASSERT_EQ(aclrtSubscribeReport(Self(), acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtLaunchCallback(Count, &calls, ACL_CALLBACK_NO_BLOCK, acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtProcessReport(5000), ACL_SUCCESS);
    EXPECT_EQ(calls.load(), 1);
    ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtProcessReport(1), ACL_ERROR_RT_REPORT_TIMEOUT);
    EXPECT_EQ(aclrtUnSubscribeReport(Self(), acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtProcessReport(1), ACL_ERROR_RT_THREAD_SUBSCRIBE);
  });
}

TEST(Callback, BlockingOnesHoldTheStream) {
  Both([] {
    Session acl;
    std::atomic<int> calls{0};
    std::atomic<bool> end{false};
    std::atomic<uint64_t> id{0};
    std::thread fetcher([&] {
      id = Self();
      id.notify_all();
      while (!end) aclrtProcessReport(20);
    });
    id.wait(0);
    ASSERT_EQ(aclrtSubscribeReport(id, acl.stream), ACL_SUCCESS);
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(aclrtLaunchCallback(Count, &calls, ACL_CALLBACK_BLOCK, acl.stream), ACL_SUCCESS);
    }
    ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(calls.load(), 20);
    end = true;
    fetcher.join();
    EXPECT_EQ(aclrtUnSubscribeReport(id, acl.stream), ACL_SUCCESS);
  });
}

TEST(Callback, BlockedStreamTimesOutAndCanBeAborted) {
  Both([] {
    Session acl;
    std::atomic<int> calls{0};
    ASSERT_EQ(aclrtSubscribeReport(Self(), acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtLaunchCallback(Count, &calls, ACL_CALLBACK_BLOCK, acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(acl.stream, 20), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
    EXPECT_EQ(aclrtStreamAbort(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtUnSubscribeReport(Self(), acl.stream), ACL_SUCCESS);
  });
}

TEST(Callback, CodesOfMisuse) {
  InProcess({}, [] {
    Session acl;
    std::atomic<int> calls{0};
    auto launch = [&] { return aclrtLaunchCallback(Count, &calls, ACL_CALLBACK_NO_BLOCK, acl.stream); };
    EXPECT_EQ(launch(), ACL_ERROR_RT_STREAM_NO_CB_REG);
    EXPECT_EQ(aclrtProcessReport(0), ACL_ERROR_INVALID_PARAM);
    EXPECT_EQ(aclrtProcessReport(-2), ACL_ERROR_INVALID_PARAM);
    EXPECT_EQ(aclrtUnSubscribeReport(Self(), acl.stream), ACL_ERROR_RT_STREAM_NO_CB_REG);
    ASSERT_EQ(aclrtSubscribeReport(Self(), acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtSubscribeReport(Self(), acl.stream), ACL_ERROR_RT_STREAM_SUBSCRIBE);
    EXPECT_EQ(aclrtUnSubscribeReport(Self() + 1, acl.stream), ACL_ERROR_RT_THREAD_SUBSCRIBE);
    EXPECT_EQ(aclrtLaunchHostFunc(acl.stream, Count, &calls), ACL_ERROR_RT_STREAM_SUBSCRIBE);
    EXPECT_EQ(aclrtLaunchCallback(nullptr, &calls, ACL_CALLBACK_BLOCK, acl.stream), ACL_ERROR_INVALID_PARAM);
    EXPECT_EQ(aclrtUnSubscribeReport(Self(), acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtLaunchHostFunc(acl.stream, Count, &calls), ACL_SUCCESS);
    EXPECT_EQ(aclrtSubscribeReport(Self(), acl.stream), ACL_ERROR_RT_STREAM_SUBSCRIBE);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
  });
}

}  // namespace
