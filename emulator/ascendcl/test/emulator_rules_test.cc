// The rules of use: each is broken once, and the code is checked.
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "test/emulator_session.h"

namespace {

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

TEST(Rules, T1IsCountedButAskingForTheDeviceIsNot) {
  InProcess({}, [] {
    Session acl;
    std::thread([] {
      int32_t id = 0;
      aclrtContext context = nullptr;
      EXPECT_EQ(aclrtGetDevice(&id), ACL_ERROR_RT_CONTEXT_NULL);
      EXPECT_EQ(aclrtGetCurrentContext(&context), ACL_ERROR_RT_CONTEXT_NULL);
      EXPECT_EQ(GetStats().violations, 0u);
      EXPECT_EQ(aclrtSynchronizeDevice(), ACL_ERROR_RT_CONTEXT_NULL);
      EXPECT_EQ(GetStats().violations, 1u);
    }).join();
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

}  // namespace
