// Contract: processes, devices, memory, streams, events and callbacks. See acl_contract_test.cc.
#include <pthread.h>

#include <atomic>
#include <thread>
#include <vector>

#include "test/contract.h"

namespace {

// ---- the binary interface ----

static_assert(sizeof(aclError) == 4 && sizeof(aclrtMemcpyKind) == 4 && sizeof(aclrtMemMallocPolicy) == 4);
static_assert(sizeof(aclrtMemLocation) == 8 && sizeof(aclrtPtrAttributes) == 28 && sizeof(aclrtMemcpyBatchAttr) == 32);
static_assert(sizeof(aclrtPhysicalMemProp) == 32 && sizeof(aclrtMemAccessDesc) == 24 &&
              sizeof(aclrtMallocConfig) == 16);
static_assert(ACL_MEMCPY_HOST_TO_HOST == 0 && ACL_MEMCPY_HOST_TO_DEVICE == 1 && ACL_MEMCPY_DEVICE_TO_HOST == 2);
static_assert(ACL_MEMCPY_DEVICE_TO_DEVICE == 3 && ACL_MEMCPY_DEFAULT == 4);
static_assert(ACL_MEM_MALLOC_HUGE_FIRST == 0 && ACL_MEM_MALLOC_HUGE_ONLY == 1 && ACL_MEM_MALLOC_NORMAL_ONLY == 2);
static_assert(ACL_DDR_MEM == 0 && ACL_HBM_MEM == 1 && ACL_HBM_MEM_HUGE == 4 && ACL_HBM_MEM_NORMAL == 5);
static_assert(ACL_MEM_LOCATION_TYPE_HOST == 0 && ACL_MEM_LOCATION_TYPE_DEVICE == 1);
static_assert(ACL_EVENT_SYNC == 1 && ACL_EVENT_CAPTURE_STREAM_PROGRESS == 2 && ACL_EVENT_TIME_LINE == 8);
static_assert(ACL_EVENT_RECORDED_STATUS_NOT_READY == 0 && ACL_EVENT_RECORDED_STATUS_COMPLETE == 1);
static_assert(ACL_EVENT_STATUS_COMPLETE == 0 && ACL_EVENT_STATUS_NOT_READY == 1);
static_assert(ACL_EVENT_WAIT_STATUS_COMPLETE == 0 && ACL_EVENT_WAIT_STATUS_NOT_READY == 1);
static_assert(ACL_STREAM_STATUS_COMPLETE == 0 && ACL_STREAM_STATUS_NOT_READY == 1);
static_assert(ACL_STREAM_FAST_LAUNCH == 1 && ACL_STREAM_FAST_SYNC == 2);
static_assert(ACL_CALLBACK_NO_BLOCK == 0 && ACL_CALLBACK_BLOCK == 1);

// ---- process ----

// A fresh process: what it does must not end this one.
void InProcess(const std::function<void()>& body) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        body();
        _exit(testing::Test::HasFailure() ? 99 : 0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(AclProcess, FinalizeEndsAllReferencesAtOnce) {
  InProcess([] {
    EXPECT_EQ(aclInit(nullptr), ACL_SUCCESS);
    EXPECT_EQ(aclInit(nullptr), ACL_ERROR_REPEAT_INITIALIZE);
    EXPECT_EQ(aclInit(nullptr), ACL_ERROR_REPEAT_INITIALIZE);
    EXPECT_EQ(aclFinalize(), ACL_SUCCESS);
    EXPECT_EQ(aclFinalize(), ACL_ERROR_REPEAT_FINALIZE);
  });
}

// Since 8.5.
TEST(AclProcess, ReferencesOfRepeatedInitsGoOneByOne) {
  NEEDS(aclFinalizeReference);
  InProcess([] {
    uint64_t left = 9;
    EXPECT_EQ(aclInit(nullptr), ACL_SUCCESS);
    EXPECT_EQ(aclInit(nullptr), ACL_ERROR_REPEAT_INITIALIZE);
    EXPECT_EQ(aclFinalizeReference(&left), ACL_SUCCESS);
    EXPECT_EQ(left, 1u);
    EXPECT_EQ(aclFinalizeReference(&left), ACL_SUCCESS);
    EXPECT_EQ(left, 0u);
    EXPECT_EQ(aclFinalizeReference(&left), ACL_ERROR_REPEAT_FINALIZE);
    // Again after the end works in the sources that are known; older documents do not allow it.
    EXPECT_EQ(aclInit(nullptr), ACL_SUCCESS);
  });
}

TEST_F(Acl, PackageVersionIsKnown) {
  aclCANNPackageVersion version{};
  ASSERT_EQ(aclsysGetCANNVersion(ACL_PKG_NAME_CANN, &version), ACL_SUCCESS);
  EXPECT_GE(atoi(version.majorVersion), 6);
  NEEDS(aclsysGetVersionNum);
  char package[] = "runtime", text[ACL_PKG_VERSION_MAX_SIZE] = "";
  int32_t number = 0;
  EXPECT_EQ(aclsysGetVersionStr(package, text), ACL_SUCCESS);
  EXPECT_GE(atoi(text), 8);
  EXPECT_EQ(aclsysGetVersionNum(package, &number), ACL_SUCCESS);
  EXPECT_EQ(number / 10'000'000, atoi(text));  // assumption: the weight of the major number
}

// ---- device and context ----

TEST_F(Acl, DeviceStaysSetUntilItsLastReset) {
  int32_t id = -1;
  ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
  ASSERT_EQ(aclrtResetDevice(0), ACL_SUCCESS);  // one of two
  EXPECT_EQ(aclrtGetDevice(&id), ACL_SUCCESS);
  EXPECT_EQ(id, 0);
  EXPECT_EQ(aclrtGetDevice(nullptr), ACL_ERROR_INVALID_PARAM);
}

TEST_F(Acl, PrimaryContextIsActiveWhileTheDeviceIsSet) {
  NEEDS(aclrtGetPrimaryCtxState);
  uint32_t flags = 9;
  int32_t active = -1;
  EXPECT_EQ(aclrtGetPrimaryCtxState(0, &flags, &active), ACL_SUCCESS);
  EXPECT_EQ(active, 1);
}

// Since 8.5; what the numbers are depends on the chip.
TEST_F(Acl, DeviceHasMemoryAndCores) {
  NEEDS(aclrtGetDeviceInfo);
  int64_t value = 0;
  EXPECT_EQ(aclrtGetDeviceInfo(0, ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE, &value), ACL_SUCCESS);
  EXPECT_GT(value, 64 << 20);
  EXPECT_EQ(aclrtGetDeviceInfo(0, ACL_DEV_ATTR_AICORE_CORE_NUM, &value), ACL_SUCCESS);
  EXPECT_GT(value, 0);
}

TEST_F(Acl, DriverKnowsThisProcess) {
  NEEDS(aclrtDeviceGetBareTgid);
  int32_t pid = 0;
  EXPECT_EQ(aclrtDeviceGetBareTgid(&pid), ACL_SUCCESS);
  EXPECT_GT(pid, 0);
}

TEST_F(Acl, PeerAccessIsOneWayAndPerProcess) {
  NEEDS(aclrtDevicePeerAccessStatus);
  if (!HasTwoDevices()) GTEST_SKIP() << "one device";
  int32_t status = -1;
  ASSERT_EQ(aclrtDeviceEnablePeerAccess(1, 0), ACL_SUCCESS);
  EXPECT_EQ(aclrtDevicePeerAccessStatus(0, 1, &status), ACL_SUCCESS);
  EXPECT_EQ(status, 1);
  EXPECT_EQ(aclrtDeviceDisablePeerAccess(1), ACL_SUCCESS);
}

// ---- memory ----

TEST_F(Acl, BlocksAreAligned) {
  EXPECT_EQ(reinterpret_cast<uintptr_t>(device_) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(pinned_) % 64, 0u);
  void* odd = nullptr;
  ASSERT_EQ(aclrtMalloc(&odd, 33, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(odd) % 64, 0u);
  EXPECT_EQ(aclrtFree(odd), ACL_SUCCESS);
}

TEST_F(Acl, FreeNeedsNoContextAndMayComeFromAnyThread) {
  void *block = nullptr, *host = nullptr;
  ASSERT_EQ(aclrtMalloc(&block, 4096, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
  ASSERT_EQ(aclrtMallocHost(&host, 4096), ACL_SUCCESS);
  std::thread([&] {
    EXPECT_EQ(aclrtFree(block), ACL_SUCCESS);
    EXPECT_EQ(aclrtFreeHost(host), ACL_SUCCESS);
  }).join();
}

// Small changes are hidden by a cache of the driver, so a large block is measured.
TEST_F(Acl, FreeMemoryFollowsLargeBlocks) {
  size_t before = 0, during = 0, total = 0;
  const size_t bytes = size_t{256} << 20;
  ASSERT_EQ(aclrtGetMemInfo(ACL_HBM_MEM, &before, &total), ACL_SUCCESS);
  if (total == 0) GTEST_SKIP() << "this chip has no HBM";
  EXPECT_LE(before, total);
  void* block = nullptr;
  ASSERT_EQ(aclrtMallocAlign32(&block, bytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
  ASSERT_EQ(aclrtGetMemInfo(ACL_HBM_MEM, &during, &total), ACL_SUCCESS);
  EXPECT_LE(during, before - bytes + (size_t{64} << 20));
  EXPECT_EQ(aclrtFree(block), ACL_SUCCESS);
}

TEST_F(Acl, MemInfoOfWhatTheChipLacksIsZeroNotAnError) {
  size_t free_bytes = 1, total = 1;
  EXPECT_EQ(aclrtGetMemInfo(ACL_HBM_MEM_P2P_NORMAL, &free_bytes, &total), ACL_SUCCESS);
  EXPECT_LE(free_bytes, total);
}

// 8.1: mapping only.
TEST_F(Acl, MappedRegistrationMakesHostMemoryKnown) {
  NEEDS(aclrtHostRegister);
  Pages pages(8192);
  void* view = nullptr;
  aclrtPtrAttributes attributes{};
  EXPECT_NE(aclrtHostRegister(pages.data() + 8, 4096, ACL_HOST_REGISTER_MAPPED, &view), ACL_SUCCESS);
  ASSERT_EQ(aclrtHostRegister(pages.data(), 8192, ACL_HOST_REGISTER_MAPPED, &view), ACL_SUCCESS);
  EXPECT_EQ(aclrtPointerGetAttributes(pages.data() + 5000, &attributes), ACL_SUCCESS);
  EXPECT_EQ(attributes.location.type, ACL_MEM_LOCATION_TYPE_HOST);
  EXPECT_EQ(aclrtHostUnregister(pages.data()), ACL_SUCCESS);
  EXPECT_EQ(aclrtHostUnregister(pages.data()), ACL_ERROR_RT_HOST_MEMORY_NOT_REGISTERED);
}

TEST_F(Acl, OrdinaryMemoryIsUnknownOrUnregistered) {
  NEEDS(aclrtPointerGetAttributes);
  std::vector<uint8_t> plain(64);
  aclrtPtrAttributes attributes{};
  aclError code = aclrtPointerGetAttributes(plain.data(), &attributes);
  // Since 8.5 it depends on the driver as well.
  bool may_know = Version() >= 805;
  if (code == ACL_SUCCESS) {
    EXPECT_TRUE(may_know);
    EXPECT_EQ(attributes.location.type, ACL_MEM_LOCATION_TYPE_UNREGISTERED);
  }
}

TEST_F(Acl, FreeThatWaitsFirst) {
  NEEDS(aclrtFreeWithDevSync);
  void* block = nullptr;
  ASSERT_EQ(aclrtMalloc(&block, kBytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
  ASSERT_EQ(aclrtMemsetAsync(block, kBytes, 1, kBytes, stream_), ACL_SUCCESS);
  EXPECT_EQ(aclrtFreeWithDevSync(block), ACL_SUCCESS);
}

// ---- streams ----

TEST_F(Acl, StreamPropertiesAreWhatWasAskedFor) {
  NEEDS(aclrtStreamGetFlags);
  aclrtStream stream = nullptr;
  int32_t id = -1, other = -1;
  uint32_t flags = 0, left = 0;
  ASSERT_EQ(aclrtCreateStreamWithConfig(&stream, 0, ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC), ACL_SUCCESS);
  EXPECT_EQ(aclrtStreamGetFlags(stream, &flags), ACL_SUCCESS);
  EXPECT_EQ(flags, ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC);
  EXPECT_EQ(aclrtStreamGetId(stream, &id), ACL_SUCCESS);
  EXPECT_EQ(aclrtStreamGetId(stream_, &other), ACL_SUCCESS);
  EXPECT_NE(id, other);
  EXPECT_EQ(aclrtGetStreamAvailableNum(&left), ACL_SUCCESS);
  EXPECT_GT(left, 0u);
  EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
}

TEST_F(Acl, NullIsTheDefaultStreamOfTheContext) {
  NEEDS(aclrtCtxGetCurrentDefaultStream);
  aclrtStream stream = nullptr;
  ASSERT_EQ(aclrtCtxGetCurrentDefaultStream(&stream), ACL_SUCCESS);
  EXPECT_NE(stream, nullptr);
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
}

TEST_F(Acl, FailureModesAreZeroAndOne) {
  EXPECT_EQ(aclrtSetStreamFailureMode(stream_, ACL_CONTINUE_ON_FAILURE), ACL_SUCCESS);
  EXPECT_NE(aclrtSetStreamFailureMode(stream_, 2), ACL_SUCCESS);
}

TEST_F(Acl, DeviceSynchronizeTakesATimeout) {
  NEEDS(aclrtSynchronizeDeviceWithTimeout);
  EXPECT_EQ(aclrtSynchronizeDeviceWithTimeout(1000), ACL_SUCCESS);
  ExpectAnyOf(aclrtSynchronizeDeviceWithTimeout(-2), {ACL_ERROR_RT_PARAM_INVALID, ACL_ERROR_INVALID_PARAM});
}

// ---- events ----

TEST_F(Acl, OlderEventQueriesHaveInvertedStatuses) {
  aclrtEvent event = nullptr;
  ASSERT_EQ(aclrtCreateEvent(&event), ACL_SUCCESS);
  aclrtEventStatus status = ACL_EVENT_STATUS_RESERVED;
  aclrtEventWaitStatus waits = ACL_EVENT_WAIT_STATUS_RESERVED;
  ASSERT_EQ(aclrtRecordEvent(event, stream_), ACL_SUCCESS);
  ASSERT_EQ(aclrtStreamWaitEvent(stream_, event), ACL_SUCCESS);
  ASSERT_EQ(aclrtSynchronizeStream(stream_), ACL_SUCCESS);
  EXPECT_EQ(aclrtQueryEvent(event, &status), ACL_SUCCESS);
  EXPECT_EQ(status, ACL_EVENT_STATUS_COMPLETE);
  EXPECT_EQ(aclrtQueryEventWaitStatus(event, &waits), ACL_SUCCESS);
  EXPECT_EQ(waits, ACL_EVENT_WAIT_STATUS_COMPLETE);
  EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
}

TEST_F(Acl, NewerEventsRefuseTheOlderCalls) {
  aclrtEvent event = nullptr;
  ASSERT_EQ(aclrtCreateEventExWithFlag(&event, ACL_EVENT_SYNC), ACL_SUCCESS);
  aclrtEventStatus status{};
  aclrtEventWaitStatus waits{};
  EXPECT_EQ(aclrtQueryEvent(event, &status), ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
  EXPECT_EQ(aclrtQueryEventWaitStatus(event, &waits), ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
  EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
}

TEST_F(Acl, EventTimeoutsAndTimestamps) {
  NEEDS(aclrtEventGetTimestamp);
  aclrtEvent event = nullptr, never = nullptr;
  ASSERT_EQ(aclrtCreateEventWithFlag(&event, ACL_EVENT_TIME_LINE), ACL_SUCCESS);
  ASSERT_EQ(aclrtCreateEvent(&never), ACL_SUCCESS);
  uint64_t us = 0;
  EXPECT_NE(aclrtEventGetTimestamp(event, &us), ACL_SUCCESS);
  ASSERT_EQ(aclrtRecordEvent(event, stream_), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeEventWithTimeout(event, 1000), ACL_SUCCESS);
  EXPECT_EQ(aclrtEventGetTimestamp(event, &us), ACL_SUCCESS);
  EXPECT_GT(us, 0u);
  // Held back by an event that nobody records.
  ASSERT_EQ(aclrtStreamWaitEvent(stream_, never), ACL_SUCCESS);
  ASSERT_EQ(aclrtRecordEvent(event, stream_), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeEventWithTimeout(event, 20), ACL_ERROR_RT_EVENT_SYNC_TIMEOUT);
  EXPECT_EQ(aclrtStreamAbort(stream_), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyEvent(never), ACL_SUCCESS);
}

// ---- callbacks ----

void Count(void* counter) {
  ++*static_cast<std::atomic<int>*>(counter);
}
uint64_t Self() {
  return static_cast<uint64_t>(pthread_self());
}

TEST_F(Acl, CallbacksAreFetchedByTheirThread) {
  std::atomic<int> calls{0};
  EXPECT_EQ(aclrtLaunchCallback(Count, &calls, ACL_CALLBACK_NO_BLOCK, stream_), ACL_ERROR_RT_STREAM_NO_CB_REG);
  ASSERT_EQ(aclrtSubscribeReport(Self(), stream_), ACL_SUCCESS);
  ASSERT_EQ(aclrtLaunchCallback(Count, &calls, ACL_CALLBACK_NO_BLOCK, stream_), ACL_SUCCESS);
  EXPECT_EQ(aclrtProcessReport(5000), ACL_SUCCESS);
  EXPECT_EQ(calls.load(), 1);
  EXPECT_EQ(aclrtProcessReport(10), ACL_ERROR_RT_REPORT_TIMEOUT);
  ExpectAnyOf(aclrtProcessReport(0), {ACL_ERROR_INVALID_PARAM, ACL_ERROR_RT_PARAM_INVALID});
  EXPECT_EQ(aclrtSynchronizeStream(stream_), ACL_SUCCESS);
  EXPECT_EQ(aclrtUnSubscribeReport(Self(), stream_), ACL_SUCCESS);
  ExpectAnyOf(aclrtProcessReport(10), {ACL_ERROR_RT_THREAD_SUBSCRIBE, ACL_ERROR_RT_REPORT_TIMEOUT});
}

// Since 8.5.
TEST_F(Acl, HostFunctionsRunBetweenTheTasksOfTheStream) {
  NEEDS(aclrtLaunchHostFunc);
  std::atomic<int> calls{0};
  ASSERT_EQ(aclrtMemsetAsync(device_, kBytes, 1, kBytes, stream_), ACL_SUCCESS);
  ASSERT_EQ(aclrtLaunchHostFunc(stream_, Count, &calls), ACL_SUCCESS);
  ASSERT_EQ(aclrtSynchronizeStream(stream_), ACL_SUCCESS);
  EXPECT_EQ(calls.load(), 1);
  EXPECT_EQ(aclrtSubscribeReport(Self(), stream_), ACL_ERROR_RT_STREAM_SUBSCRIBE);
}

}  // namespace
