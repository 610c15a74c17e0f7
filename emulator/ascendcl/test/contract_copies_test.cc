// Contract: copies, and how their rules differ between releases. See acl_contract_test.cc.
#include <thread>
#include <vector>

#include "test/contract.h"

namespace {

// All releases up to 9.1 refuse it; what comes after takes it before it looks at anything.
TEST_F(Acl, EmptyCopies) {
  aclError code = ByRelease({{kFirst, 901, ACL_ERROR_RT_PARAM_INVALID}, {902, kLast, ACL_SUCCESS}});
  EXPECT_EQ(aclrtMemcpy(device_, 64, pinned_, 0, ACL_MEMCPY_HOST_TO_DEVICE), code);
  EXPECT_EQ(aclrtMemcpyAsync(device_, 64, pinned_, 0, ACL_MEMCPY_HOST_TO_DEVICE, stream_), code);
  EXPECT_EQ(aclrtMemset(device_, 64, 0, 0), code);
}

TEST_F(Acl, KindsBeyondTheOrdinaryAreInvalid) {
  for (int kind : {6, 7}) {
    auto value = static_cast<aclrtMemcpyKind>(kind);
    EXPECT_EQ(aclrtMemcpy(device_, 64, pinned_, 64, value), ACL_ERROR_INVALID_PARAM) << kind;
    EXPECT_EQ(Async(device_, pinned_, 64, value), ACL_ERROR_INVALID_PARAM) << kind;
  }
}

TEST_F(Acl, CopyOfABlockToItselfIsNothing) {
  EXPECT_EQ(Async(device_, device_, 64, ACL_MEMCPY_DEVICE_TO_DEVICE), ACL_SUCCESS);
  EXPECT_EQ(aclrtMemcpy(pinned_, 64, pinned_, 64, ACL_MEMCPY_HOST_TO_HOST), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(stream_), ACL_SUCCESS);
}

TEST_F(Acl, AsynchronousArguments) {
  EXPECT_EQ(aclrtMemcpyAsync(nullptr, 64, pinned_, 64, ACL_MEMCPY_HOST_TO_DEVICE, stream_), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtMemcpyAsync(device_, 64, nullptr, 64, ACL_MEMCPY_HOST_TO_DEVICE, stream_), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtMemcpyAsync(device_, 63, pinned_, 64, ACL_MEMCPY_HOST_TO_DEVICE, stream_), ACL_ERROR_RT_PARAM_INVALID);
  EXPECT_EQ(aclrtMemsetAsync(device_, 63, 0, 64, stream_), ACL_ERROR_RT_PARAM_INVALID);
  std::thread([&] {
    EXPECT_EQ(Async(device_, pinned_, 64, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_CONTEXT_NULL);
  }).join();
}

// Since 8.5 the addresses decide; before, a wrong kind is undefined and must not be tried on hardware.
TEST_F(Acl, WrongKindBetweenKnownPlaces) {
  aclError code = ByRelease({{kStrictest, kStrictest, ACL_ERROR_RT_PARAM_INVALID}, {805, kLast, ACL_SUCCESS}});
  if (code == kUndefined) GTEST_SKIP() << "undefined in this release";
  *host() = 0x66;
  EXPECT_EQ(Async(device_, pinned_, 64, ACL_MEMCPY_DEVICE_TO_HOST), code);
  EXPECT_EQ(aclrtSynchronizeStream(stream_), ACL_SUCCESS);
  if (code != ACL_SUCCESS) return;
  *host() = 0;
  ASSERT_EQ(aclrtMemcpy(pinned_, 64, device_, 64, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
  EXPECT_EQ(*host(), 0x66);
}

// Since 8.5 the call itself waits and copies; before, undefined.
TEST_F(Acl, PageableMemoryIsCopiedByTheCallItself) {
  aclError code = ByRelease({{kStrictest, kStrictest, ACL_ERROR_RT_PARAM_INVALID}, {805, kLast, ACL_SUCCESS}});
  if (code == kUndefined) GTEST_SKIP() << "undefined in this release";
  alignas(64) static uint8_t plain[64];
  memset(plain, 0x3D, 64);
  ASSERT_EQ(aclrtMemsetAsync(device_, kBytes, 0x11, kBytes, stream_), ACL_SUCCESS);
  EXPECT_EQ(Async(device_, plain, 64, ACL_MEMCPY_HOST_TO_DEVICE), code);
  EXPECT_EQ(aclrtSynchronizeStream(stream_), ACL_SUCCESS);
  if (code != ACL_SUCCESS) return;
  memset(plain, 0, 64);  // was read already
  ASSERT_EQ(aclrtMemcpy(pinned_, 128, device_, 128, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
  EXPECT_EQ(*host(63), 0x3D);
  EXPECT_EQ(*host(64), 0x11);
  EXPECT_EQ(Async(device_, plain, 64, ACL_MEMCPY_DEVICE_TO_HOST), ACL_ERROR_RT_PARAM_INVALID);
}

// Documented as needed up to 8.0, and between device blocks in 8.1.
TEST_F(Acl, UnalignedAsynchronousCopies) {
  aclError host_code = ByRelease({{kStrictest, kStrictest, ACL_ERROR_RT_ADDR_UNALIGNED}, {801, kLast, ACL_SUCCESS}});
  aclError device_code = ByRelease({{kStrictest, kStrictest, ACL_ERROR_RT_ADDR_UNALIGNED}, {805, kLast, ACL_SUCCESS}});
  if (host_code != kUndefined) {
    EXPECT_EQ(Async(dev(8), host(24), 64, ACL_MEMCPY_HOST_TO_DEVICE), host_code);
  }
  if (device_code != kUndefined) {
    EXPECT_EQ(Async(dev(1032), dev(24), 64, ACL_MEMCPY_DEVICE_TO_DEVICE), device_code);
  }
  EXPECT_EQ(aclrtSynchronizeStream(stream_), ACL_SUCCESS);
}

TEST_F(Acl, TwoDimensionalCopies) {
  for (size_t i = 0; i < 1024; ++i) *host(i) = static_cast<uint8_t>(i / 64);
  ASSERT_EQ(aclrtMemcpy2d(device_, 256, pinned_, 64, 64, 16, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
  memset(pinned_, 0, kBytes);
  ASSERT_EQ(aclrtMemcpy2dAsync(pinned_, 64, device_, 256, 64, 16, ACL_MEMCPY_DEVICE_TO_HOST, stream_), ACL_SUCCESS);
  ASSERT_EQ(aclrtSynchronizeStream(stream_), ACL_SUCCESS);
  for (size_t i = 0; i < 1024; ++i) ASSERT_EQ(*host(i), i / 64) << i;
  EXPECT_EQ(aclrtMemcpy2d(device_, 32, pinned_, 64, 64, 2, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtMemcpy2d(pinned_, 64, host(1024), 64, 64, 2, ACL_MEMCPY_HOST_TO_HOST), ACL_ERROR_INVALID_PARAM);
  // The documents give the limits of width and height; the code is an assumption.
  ExpectAnyOf(aclrtMemcpy2d(device_, 6'000'000, pinned_, 6'000'000, 5'000'001, 1, ACL_MEMCPY_HOST_TO_DEVICE),
              {ACL_ERROR_INVALID_PARAM, ACL_ERROR_RT_PARAM_INVALID});
}

TEST_F(Acl, BatchesMoveAllEntries) {
  NEEDS(aclrtMemcpyBatchAsync);
  constexpr size_t kCount = 16;
  std::vector<void*> blocks, hosts;
  std::vector<size_t> sizes(kCount, 512), rooms(kCount, 512);
  for (size_t i = 0; i < kCount; ++i) {
    blocks.push_back(dev(i * 1024));
    hosts.push_back(host(i * 512));
    memset(hosts.back(), static_cast<int>(i + 1), 512);
  }
  aclrtMemcpyBatchAttr up{}, down{};
  up.dstLoc = down.srcLoc = {0, ACL_MEM_LOCATION_TYPE_DEVICE};
  up.srcLoc = down.dstLoc = {0, ACL_MEM_LOCATION_TYPE_HOST};
  size_t index = 0, fail = 0;
  aclError code =
      aclrtMemcpyBatch(blocks.data(), rooms.data(), hosts.data(), sizes.data(), kCount, &up, &index, 1, &fail);
  if (code == ACL_ERROR_RT_FEATURE_NOT_SUPPORT) GTEST_SKIP() << "the driver has no batches";
  ASSERT_EQ(code, ACL_SUCCESS);
  memset(pinned_, 0, kBytes);
  ASSERT_EQ(aclrtMemcpyBatchAsync(hosts.data(), rooms.data(), blocks.data(), sizes.data(), kCount, &down, &index, 1,
                                  &fail, stream_),
            ACL_SUCCESS);
  ASSERT_EQ(aclrtSynchronizeStream(stream_), ACL_SUCCESS);
  for (size_t i = 0; i < kCount; ++i) EXPECT_EQ(*host(i * 512 + 511), i + 1);
  EXPECT_NE(aclrtMemcpyBatch(blocks.data(), rooms.data(), hosts.data(), sizes.data(), 0, &up, &index, 1, &fail),
            ACL_SUCCESS);
}

}  // namespace
