// What we believe of the ACL runtime, as assertions. Linked with -lascendcl only, so that the same program can run on a
// host with an NPU and tell which belief is wrong. Only rules that hold on hardware belong here.
#include <thread>
#include <vector>

#include "test/contract.h"

namespace {

TEST_F(Acl, SecondInitAnswersRepeat) {
  EXPECT_EQ(aclInit(nullptr), ACL_ERROR_REPEAT_INITIALIZE);
}

TEST_F(Acl, MissingConfigFileIsInvalidFile) {
  EXPECT_EQ(aclInit("/nonexistent/acl.json"), ACL_ERROR_INVALID_FILE);
}

TEST_F(Acl, VersionAndRunModeAreKnown) {
  int32_t major = 0, minor = 0, patch = -1;
  EXPECT_EQ(aclrtGetVersion(&major, &minor, &patch), ACL_SUCCESS);
  EXPECT_EQ(major, 1);
  aclrtRunMode mode = ACL_DEVICE;
  EXPECT_EQ(aclrtGetRunMode(&mode), ACL_SUCCESS);
  EXPECT_EQ(mode, ACL_HOST);
  ASSERT_NE(aclrtGetSocName(), nullptr);
  EXPECT_EQ(strncmp(aclrtGetSocName(), "Ascend", 6), 0);
}

TEST_F(Acl, ThreadWithoutDeviceIsRefused) {
  void* block = nullptr;
  ASSERT_EQ(aclrtMallocAlign32(&block, 4096, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
  std::thread([&] {
    int32_t id = 7;
    EXPECT_EQ(aclrtGetDevice(&id), ACL_ERROR_RT_CONTEXT_NULL);
    EXPECT_EQ(id, 7);
    void* ptr = nullptr;
    size_t free_bytes = 0, total = 0;
    aclrtStream stream = nullptr;
    aclrtEvent event = nullptr;
    EXPECT_EQ(aclrtMalloc(&ptr, 4096, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_CONTEXT_NULL);
    EXPECT_EQ(aclrtMallocHost(&ptr, 4096), ACL_ERROR_RT_CONTEXT_NULL);
    EXPECT_EQ(aclrtMemcpy(block, 4096, pinned_, 4096, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_CONTEXT_NULL);
    EXPECT_EQ(aclrtMemset(block, 4096, 0, 4096), ACL_ERROR_RT_CONTEXT_NULL);
    EXPECT_EQ(aclrtGetMemInfo(ACL_HBM_MEM, &free_bytes, &total), ACL_ERROR_RT_CONTEXT_NULL);
    EXPECT_EQ(aclrtCreateStream(&stream), ACL_ERROR_RT_CONTEXT_NULL);
    EXPECT_EQ(aclrtCreateEvent(&event), ACL_ERROR_RT_CONTEXT_NULL);
    EXPECT_EQ(aclrtSynchronizeDevice(), ACL_ERROR_RT_CONTEXT_NULL);
    EXPECT_EQ(aclrtSynchronizeStream(stream_), ACL_ERROR_RT_CONTEXT_NULL);
    EXPECT_EQ(ptr, nullptr);
    uint32_t count = 0;
    EXPECT_EQ(aclrtGetDeviceCount(&count), ACL_SUCCESS);
    EXPECT_GE(count, 1u);
    EXPECT_EQ(aclrtFree(block), ACL_SUCCESS);
  }).join();
}

TEST_F(Acl, DeviceIdBeyondCountIsInvalid) {
  uint32_t count = 0;
  ASSERT_EQ(aclrtGetDeviceCount(&count), ACL_SUCCESS);
  EXPECT_EQ(aclrtSetDevice(static_cast<int32_t>(count)), ACL_ERROR_RT_INVALID_DEVICEID);
  EXPECT_EQ(aclrtSetDevice(-1), ACL_ERROR_RT_INVALID_DEVICEID);
}

TEST_F(Acl, ExplicitContextWinsUntilSetDevice) {
  aclrtContext primary = nullptr, own = nullptr, now = nullptr;
  ASSERT_EQ(aclrtGetCurrentContext(&primary), ACL_SUCCESS);
  ASSERT_EQ(aclrtCreateContext(&own, 0), ACL_SUCCESS);
  EXPECT_EQ(aclrtGetCurrentContext(&now), ACL_SUCCESS);
  EXPECT_EQ(now, own);
  EXPECT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
  EXPECT_EQ(aclrtGetCurrentContext(&now), ACL_SUCCESS);
  EXPECT_EQ(now, primary);
  EXPECT_EQ(aclrtDestroyContext(own), ACL_SUCCESS);
  EXPECT_EQ(aclrtSetCurrentContext(own), ACL_ERROR_RT_PARAM_INVALID);
  EXPECT_EQ(aclrtSetCurrentContext(nullptr), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtDestroyContext(primary), ACL_ERROR_RT_CONTEXT_NULL);
  EXPECT_EQ(aclrtResetDevice(0), ACL_SUCCESS);
}

TEST_F(Acl, ContextDestroyedElsewhereIsNull) {
  aclrtContext own = nullptr;
  ASSERT_EQ(aclrtCreateContext(&own, 0), ACL_SUCCESS);
  std::thread([&] { EXPECT_EQ(aclrtDestroyContext(own), ACL_SUCCESS); }).join();
  int32_t id = 0;
  EXPECT_EQ(aclrtGetDevice(&id), ACL_ERROR_RT_CONTEXT_NULL);
}

TEST_F(Acl, StreamOfAnotherContextIsRefused) {
  aclrtContext own = nullptr;
  ASSERT_EQ(aclrtCreateContext(&own, 0), ACL_SUCCESS);
  aclrtEvent event = nullptr;
  ASSERT_EQ(aclrtCreateEvent(&event), ACL_SUCCESS);
  EXPECT_EQ(aclrtMemcpyAsync(device_, kBytes, pinned_, kBytes, ACL_MEMCPY_HOST_TO_DEVICE, stream_),
            ACL_ERROR_RT_STREAM_CONTEXT);
  EXPECT_EQ(aclrtRecordEvent(event, stream_), ACL_ERROR_RT_STREAM_CONTEXT);
  EXPECT_EQ(aclrtStreamWaitEvent(stream_, event), ACL_ERROR_RT_STREAM_CONTEXT);
  EXPECT_EQ(aclrtDestroyStream(stream_), ACL_ERROR_RT_STREAM_CONTEXT);
  EXPECT_EQ(aclrtSynchronizeStream(stream_), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyContext(own), ACL_SUCCESS);
}

TEST_F(Acl, MallocRefusesBadArguments) {
  void* ptr = nullptr;
  EXPECT_EQ(aclrtMalloc(nullptr, 4096, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtMalloc(&ptr, 0, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtMallocHost(&ptr, 0), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtMalloc(&ptr, 1ULL << 45, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_MEMORY_ALLOCATION);
  EXPECT_EQ(ptr, nullptr);
}

TEST_F(Acl, FreeRefusesWhatIsNoBlock) {
  void* ptr = nullptr;
  ASSERT_EQ(aclrtMalloc(&ptr, 4096, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
  EXPECT_EQ(aclrtFree(nullptr), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtFree(Offset(ptr, 64)), ACL_ERROR_RT_PARAM_INVALID);
  EXPECT_EQ(aclrtFreeHost(ptr), ACL_ERROR_RT_PARAM_INVALID);
  EXPECT_EQ(aclrtFree(ptr), ACL_SUCCESS);
  EXPECT_EQ(aclrtFree(ptr), ACL_ERROR_RT_PARAM_INVALID);
}

TEST_F(Acl, CopyRefusesBadArguments) {
  EXPECT_EQ(aclrtMemcpy(nullptr, 64, pinned_, 64, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtMemcpy(device_, 64, nullptr, 64, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtMemcpy(device_, 63, pinned_, 64, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID);
  EXPECT_EQ(aclrtMemcpy(device_, 0, pinned_, 64, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID);
  EXPECT_EQ(aclrtMemcpy(device_, 64, pinned_, 64, ACL_MEMCPY_INNER_DEVICE_TO_DEVICE), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtMemcpy(device_, 64, device_, 64, ACL_MEMCPY_DEVICE_TO_DEVICE), ACL_SUCCESS);
  EXPECT_EQ(aclrtMemset(device_, 63, 0, 64), ACL_ERROR_RT_PARAM_INVALID);
  EXPECT_EQ(aclrtMemset(nullptr, 64, 0, 64), ACL_ERROR_INVALID_PARAM);
}

TEST_F(Acl, SynchronousCopiesMoveBytesOfEveryHostClass) {
  std::vector<uint8_t> out(kBytes), in(kBytes);
  for (size_t i = 0; i < kBytes; ++i) in[i] = static_cast<uint8_t>(i * 7 + 1);
  ASSERT_EQ(aclrtMemcpy(device_, kBytes, in.data(), kBytes, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
  ASSERT_EQ(aclrtMemcpy(pinned_, kBytes, device_, kBytes, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
  EXPECT_EQ(memcmp(pinned_, in.data(), kBytes), 0);
  void* second = nullptr;
  ASSERT_EQ(aclrtMalloc(&second, kBytes, ACL_MEM_MALLOC_HUGE_ONLY), ACL_SUCCESS);
  ASSERT_EQ(aclrtMemcpy(second, kBytes, device_, kBytes, ACL_MEMCPY_DEVICE_TO_DEVICE), ACL_SUCCESS);
  ASSERT_EQ(aclrtMemset(Offset(second, 100), kBytes - 100, 0x5C, 50), ACL_SUCCESS);
  ASSERT_EQ(aclrtMemcpy(out.data(), kBytes, second, kBytes, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
  memset(in.data() + 100, 0x5C, 50);
  EXPECT_EQ(out, in);
  EXPECT_EQ(aclrtFree(second), ACL_SUCCESS);
}

TEST_F(Acl, AsynchronousCopiesArriveInOrder) {
  memset(pinned_, 0x11, kBytes);
  ASSERT_EQ(aclrtMemcpyAsync(device_, kBytes, pinned_, kBytes / 2, ACL_MEMCPY_HOST_TO_DEVICE, stream_), ACL_SUCCESS);
  ASSERT_EQ(aclrtMemsetAsync(device_, kBytes, 0x22, 64, stream_), ACL_SUCCESS);
  ASSERT_EQ(aclrtMemcpyAsync(Offset(pinned_, kBytes / 2), kBytes / 2, device_, kBytes / 2, ACL_MEMCPY_DEVICE_TO_HOST,
                             stream_),
            ACL_SUCCESS);
  ASSERT_EQ(aclrtSynchronizeStream(stream_), ACL_SUCCESS);
  auto* result = static_cast<uint8_t*>(Offset(pinned_, kBytes / 2));
  EXPECT_EQ(result[0], 0x22);
  EXPECT_EQ(result[63], 0x22);
  EXPECT_EQ(result[64], 0x11);
}

TEST_F(Acl, AsynchronousHostToHostIsNotSupported) {
  EXPECT_EQ(aclrtMemcpyAsync(pinned_, 64, Offset(pinned_, 64), 64, ACL_MEMCPY_HOST_TO_HOST, stream_),
            ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
}

TEST_F(Acl, DefaultStreamIsAnOrdinaryStream) {
  ASSERT_EQ(aclrtMemsetAsync(device_, kBytes, 0x31, kBytes, nullptr), ACL_SUCCESS);
  ASSERT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
  ASSERT_EQ(aclrtMemcpy(pinned_, kBytes, device_, kBytes, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
  EXPECT_EQ(*static_cast<uint8_t*>(pinned_), 0x31);
}

TEST_F(Acl, BadTimeoutsAndFinishedStreams) {
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(stream_, 0), ACL_ERROR_RT_PARAM_INVALID);
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(stream_, -2), ACL_ERROR_RT_PARAM_INVALID);
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(stream_, -1), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(stream_, 1000), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeDevice(), ACL_SUCCESS);
  aclrtStreamStatus status = ACL_STREAM_STATUS_NOT_READY;
  EXPECT_EQ(aclrtStreamQuery(stream_, &status), ACL_SUCCESS);
  EXPECT_EQ(status, ACL_STREAM_STATUS_COMPLETE);
}

TEST_F(Acl, WaitForEventNotRecordedTimesOutAndAbortFreesTheStream) {
  NEEDS(aclrtStreamAbort);
  aclrtEvent event = nullptr;
  ASSERT_EQ(aclrtCreateEvent(&event), ACL_SUCCESS);
  ASSERT_EQ(aclrtStreamWaitEvent(stream_, event), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(stream_, 20), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
  EXPECT_EQ(aclrtStreamAbort(stream_), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(stream_), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
}

TEST_F(Acl, EventsOrderStreams) {
  aclrtStream other = nullptr;
  aclrtEvent event = nullptr;
  ASSERT_EQ(aclrtCreateStreamWithConfig(&other, 0, ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC), ACL_SUCCESS);
  ASSERT_EQ(aclrtCreateEventExWithFlag(&event, ACL_EVENT_SYNC), ACL_SUCCESS);
  ASSERT_EQ(aclrtMemsetAsync(device_, kBytes, 0x44, kBytes, stream_), ACL_SUCCESS);
  ASSERT_EQ(aclrtRecordEvent(event, stream_), ACL_SUCCESS);
  ASSERT_EQ(aclrtStreamWaitEvent(other, event), ACL_SUCCESS);
  ASSERT_EQ(aclrtMemcpyAsync(pinned_, kBytes, device_, kBytes, ACL_MEMCPY_DEVICE_TO_HOST, other), ACL_SUCCESS);
  ASSERT_EQ(aclrtSynchronizeStream(other), ACL_SUCCESS);
  EXPECT_EQ(*static_cast<uint8_t*>(pinned_), 0x44);
  aclrtEventRecordedStatus status = ACL_EVENT_RECORDED_STATUS_NOT_READY;
  EXPECT_EQ(aclrtSynchronizeEvent(event), ACL_SUCCESS);
  EXPECT_EQ(aclrtQueryEventStatus(event, &status), ACL_SUCCESS);
  EXPECT_EQ(status, ACL_EVENT_RECORDED_STATUS_COMPLETE);
  EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyStream(other), ACL_SUCCESS);
}

TEST_F(Acl, EventKindsDifferBeforeTheFirstRecord) {
  aclrtEvent legacy = nullptr, ex = nullptr;
  ASSERT_EQ(aclrtCreateEvent(&legacy), ACL_SUCCESS);
  ASSERT_EQ(aclrtCreateEventExWithFlag(&ex, ACL_EVENT_SYNC), ACL_SUCCESS);
  aclrtEventRecordedStatus status = ACL_EVENT_RECORDED_STATUS_COMPLETE;
  EXPECT_EQ(aclrtQueryEventStatus(legacy, &status), ACL_SUCCESS);
  EXPECT_EQ(status, ACL_EVENT_RECORDED_STATUS_NOT_READY);
  EXPECT_EQ(aclrtQueryEventStatus(ex, &status), ACL_SUCCESS);
  EXPECT_EQ(status, ACL_EVENT_RECORDED_STATUS_COMPLETE);
  EXPECT_EQ(aclrtResetEvent(ex, stream_), ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
  ASSERT_EQ(aclrtRecordEvent(legacy, stream_), ACL_SUCCESS);
  ASSERT_EQ(aclrtResetEvent(legacy, stream_), ACL_SUCCESS);
  ASSERT_EQ(aclrtSynchronizeStream(stream_), ACL_SUCCESS);
  EXPECT_EQ(aclrtQueryEventStatus(legacy, &status), ACL_SUCCESS);
  EXPECT_EQ(status, ACL_EVENT_RECORDED_STATUS_NOT_READY);
  EXPECT_EQ(aclrtDestroyEvent(legacy), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyEvent(ex), ACL_SUCCESS);
}

TEST_F(Acl, ElapsedTimeNeedsTimeLineAndRecords) {
  aclrtEvent start = nullptr, end = nullptr, untimed = nullptr;
  ASSERT_EQ(aclrtCreateEventWithFlag(&start, ACL_EVENT_TIME_LINE), ACL_SUCCESS);
  ASSERT_EQ(aclrtCreateEventWithFlag(&end, ACL_EVENT_TIME_LINE), ACL_SUCCESS);
  ASSERT_EQ(aclrtCreateEventWithFlag(&untimed, ACL_EVENT_SYNC), ACL_SUCCESS);
  float ms = -1;
  EXPECT_EQ(aclrtEventElapsedTime(&ms, start, end), ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID);
  ASSERT_EQ(aclrtRecordEvent(start, stream_), ACL_SUCCESS);
  ASSERT_EQ(aclrtRecordEvent(end, stream_), ACL_SUCCESS);
  ASSERT_EQ(aclrtSynchronizeStream(stream_), ACL_SUCCESS);
  EXPECT_EQ(aclrtEventElapsedTime(&ms, start, end), ACL_SUCCESS);
  EXPECT_GE(ms, 0);
  EXPECT_NE(aclrtEventElapsedTime(&ms, start, untimed), ACL_SUCCESS);
  EXPECT_EQ(aclrtStreamWaitEvent(stream_, start), ACL_ERROR_RT_PARAM_INVALID);
  EXPECT_EQ(aclrtCreateEventWithFlag(&untimed, 0), ACL_ERROR_RT_PARAM_INVALID);
  EXPECT_EQ(aclrtCreateEventWithFlag(&untimed, 0x8000), ACL_ERROR_RT_PARAM_INVALID);
  for (aclrtEvent event : {start, end, untimed}) EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
}

TEST_F(Acl, PointerAttributesTellHostFromDevice) {
  NEEDS(aclrtPointerGetAttributes);
  aclrtPtrAttributes attributes{};
  ASSERT_EQ(aclrtPointerGetAttributes(Offset(device_, 100), &attributes), ACL_SUCCESS);
  EXPECT_EQ(attributes.location.type, ACL_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(attributes.location.id, 0u);
  ASSERT_EQ(aclrtPointerGetAttributes(pinned_, &attributes), ACL_SUCCESS);
  EXPECT_EQ(attributes.location.type, ACL_MEM_LOCATION_TYPE_HOST);
  // Ordinary memory: an error before 8.5, "unregistered" since.
  std::vector<uint8_t> plain(64);
  if (aclrtPointerGetAttributes(plain.data(), &attributes) == ACL_SUCCESS) {
    EXPECT_EQ(attributes.location.type, ACL_MEM_LOCATION_TYPE_UNREGISTERED);
  }
}

TEST_F(Acl, HostRegisterRules) {
  NEEDS(aclrtHostRegisterV2);
  Pages pages(4 * 4096);
  EXPECT_EQ(aclrtHostRegisterV2(pages.data(), 8192, 0), ACL_ERROR_RT_PARAM_INVALID);
  EXPECT_NE(aclrtHostRegisterV2(pages.data() + 8, 4096, ACL_HOST_REG_PINNED), ACL_SUCCESS);
  ASSERT_EQ(aclrtHostRegisterV2(pages.data(), 8192, ACL_HOST_REG_PINNED), ACL_SUCCESS);
  EXPECT_EQ(aclrtHostRegisterV2(pages.data() + 4096, 8192, ACL_HOST_REG_PINNED),
            ACL_ERROR_RT_HOST_MEMORY_ALREADY_REGISTERED);
  aclrtPtrAttributes attributes{};
  ASSERT_EQ(aclrtPointerGetAttributes(pages.data() + 5000, &attributes), ACL_SUCCESS);
  EXPECT_EQ(attributes.location.type, ACL_MEM_LOCATION_TYPE_HOST);
  ASSERT_EQ(aclrtMemcpyAsync(device_, kBytes, pages.data(), 8192, ACL_MEMCPY_HOST_TO_DEVICE, stream_), ACL_SUCCESS);
  ASSERT_EQ(aclrtSynchronizeStream(stream_), ACL_SUCCESS);
  EXPECT_EQ(aclrtHostUnregister(pages.data() + 4096), ACL_ERROR_RT_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(aclrtHostUnregister(pages.data()), ACL_SUCCESS);
  EXPECT_EQ(aclrtHostUnregister(pages.data()), ACL_ERROR_RT_HOST_MEMORY_NOT_REGISTERED);
  void* device_view = nullptr;
  ASSERT_EQ(aclrtHostRegister(pages.data(), 8192, ACL_HOST_REGISTER_MAPPED, &device_view), ACL_SUCCESS);
  EXPECT_NE(device_view, nullptr);
  EXPECT_EQ(aclrtHostUnregister(pages.data()), ACL_SUCCESS);
}

TEST_F(Acl, PeerCallsCheckTheirArguments) {
  int32_t can = 0;
  EXPECT_EQ(aclrtDeviceCanAccessPeer(&can, 0, 0), ACL_ERROR_INVALID_PARAM);
  if (!HasTwoDevices()) GTEST_SKIP() << "one device";
  EXPECT_EQ(aclrtDeviceCanAccessPeer(&can, 0, 1), ACL_SUCCESS);
  EXPECT_EQ(aclrtDeviceEnablePeerAccess(1, 1), ACL_ERROR_FEATURE_UNSUPPORTED);
  aclrtDeviceStatus status = ACL_RT_DEVICE_STATUS_ABNORMAL;
  EXPECT_EQ(aclrtQueryDeviceStatus(0, &status), ACL_SUCCESS);
  EXPECT_EQ(status, ACL_RT_DEVICE_STATUS_NORMAL);
}

TEST_F(Acl, LastErrorAndMessageAreClearedByReading) {
  aclrtGetLastError(ACL_RT_THREAD_LEVEL);
  EXPECT_EQ(aclrtFree(nullptr), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtGetLastError(ACL_RT_THREAD_LEVEL), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtGetLastError(ACL_RT_THREAD_LEVEL), ACL_SUCCESS);
  EXPECT_NE(aclGetRecentErrMsg(), nullptr);
  EXPECT_EQ(aclGetRecentErrMsg(), nullptr);
}

TEST(AclWithoutFixture, ResetOnceTooOftenIsAReleaseError) {
  aclInit(nullptr);
  ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
  ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
  EXPECT_EQ(aclrtResetDevice(0), ACL_SUCCESS);
  int32_t id = -1;
  EXPECT_EQ(aclrtGetDevice(&id), ACL_SUCCESS);
  EXPECT_EQ(aclrtResetDevice(0), ACL_SUCCESS);
  EXPECT_EQ(aclrtGetDevice(&id), ACL_ERROR_RT_CONTEXT_NULL);
  EXPECT_EQ(aclrtResetDevice(0), ACL_ERROR_RT_CONTEXT_RELEASE_ERROR);
}

}  // namespace
