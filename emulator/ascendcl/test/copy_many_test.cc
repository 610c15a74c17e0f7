// Batched and two-dimensional copies.
#include <cstdint>
#include <cstring>
#include <vector>

#include "test/emulator_session.h"

namespace {

// Pieces of 256 bytes, each described by where it is.
struct Batch {
  std::vector<void*> dsts, srcs;
  std::vector<size_t> rooms, sizes, indexes{0};
  std::vector<aclrtMemcpyBatchAttr> attrs{1};
  size_t fail = 77;

  Batch(const Session& acl, size_t count, bool to_device) {
    for (size_t i = 0; i < count; ++i) {
      void *device = acl.dev(i * 256), *host = acl.host(i * 256);
      dsts.push_back(to_device ? device : host);
      srcs.push_back(to_device ? host : device);
      rooms.push_back(256);
      sizes.push_back(256);
    }
    attrs[0].dstLoc.type = to_device ? ACL_MEM_LOCATION_TYPE_DEVICE : ACL_MEM_LOCATION_TYPE_HOST;
    attrs[0].srcLoc.type = to_device ? ACL_MEM_LOCATION_TYPE_HOST : ACL_MEM_LOCATION_TYPE_DEVICE;
  }
  aclError Now() {
    return aclrtMemcpyBatch(dsts.data(), rooms.data(), srcs.data(), sizes.data(), dsts.size(), attrs.data(),
                            indexes.data(), attrs.size(), &fail);
  }
  aclError Async(aclrtStream stream) {
    return aclrtMemcpyBatchAsync(dsts.data(), rooms.data(), srcs.data(), sizes.data(), dsts.size(), attrs.data(),
                                 indexes.data(), attrs.size(), &fail, stream);
  }
};

TEST(Batch, MovesEveryEntryBothWays) {
  InProcess({}, [] {
    Session acl;
    for (size_t i = 0; i < kBytes; ++i) *acl.host(i) = static_cast<uint8_t>(i / 256);
    Batch up(acl, 200, true), down(acl, 200, false);
    ASSERT_EQ(up.Now(), ACL_SUCCESS);
    EXPECT_EQ(up.fail, 77u);
    EXPECT_EQ(acl.DeviceByte(199 * 256 + 255), 199);
    memset(acl.pinned, 0, kBytes);
    ASSERT_EQ(down.Async(acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    for (size_t i = 0; i < 200 * 256; ++i) ASSERT_EQ(*acl.host(i), i / 256);
    EXPECT_EQ(GetStats().sync_copies[ACLEMU_H2D], 200u);
    EXPECT_EQ(GetStats().async_copies[ACLEMU_D2H], 200u);
    ASSERT_EQ(aclrtMemcpyBatchV2(up.dsts.data(), up.rooms.data(), up.srcs.data(), up.sizes.data(), 200, up.attrs.data(),
                                 up.indexes.data(), 1),
              ACL_SUCCESS);
  });
}

TEST(Batch, AsyncFailureShowsAtTheNextSynchronize) {
  InProcess({{"ACLEMU_FAULT", "H2D@3=507001"}}, [] {
    Session acl;
    Batch up(acl, 8, true);
    ASSERT_EQ(up.Async(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_ERROR_RT_TS_ERROR);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
  });
}

TEST(Batch, SynchronousFailureNamesTheEntry) {
  InProcess({{"ACLEMU_FAULT", "H2D@3=507001"}}, [] {
    Session acl;
    Batch up(acl, 8, true);
    EXPECT_EQ(up.Now(), ACL_ERROR_RT_TS_ERROR);
    EXPECT_LT(up.fail, 8u);
  });
}

TEST(Batch, NothingIsCopiedWhenOneEntryIsBad) {
  InProcess({}, [] {
    Session acl;
    memset(acl.pinned, 1, kBytes);
    Batch up(acl, 8, true);
    up.sizes[5] = 257;
    EXPECT_EQ(up.Now(), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(up.fail, 5u);
    up.sizes[5] = 0;
    EXPECT_EQ(up.Async(acl.stream), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(up.fail, 5u);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(acl.DeviceByte(0), 0xA5);
  });
}

TEST(Batch, OneDirectionBetweenHostAndDeviceOnly) {
  InProcess({}, [] {
    Session acl;
    Batch mixed(acl, 4, true);
    std::swap(mixed.dsts[2], mixed.srcs[2]);
    mixed.attrs.push_back(mixed.attrs[0]);
    std::swap(mixed.attrs[1].dstLoc, mixed.attrs[1].srcLoc);
    mixed.indexes.push_back(2);
    EXPECT_EQ(mixed.Now(), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(mixed.fail, 2u);
    Batch inside(acl, 2, true);
    inside.srcs[1] = acl.dev(4096);
    EXPECT_EQ(inside.Async(acl.stream), ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
    EXPECT_EQ(inside.fail, 1u);
  });
}

TEST(Batch, AttributesMustFitTheAddressesAndAscend) {
  InProcess({}, [] {
    Session acl;
    Batch wrong(acl, 4, true);
    wrong.attrs[0].dstLoc.id = 1;
    EXPECT_EQ(wrong.Now(), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(wrong.fail, 0u);
    Batch order(acl, 4, true);
    order.attrs.push_back(order.attrs[0]);
    order.indexes.push_back(0);
    EXPECT_EQ(order.Now(), ACL_ERROR_INVALID_PARAM);
    EXPECT_EQ(order.fail, SIZE_MAX);
    order.indexes[1] = 4;
    EXPECT_EQ(order.Now(), ACL_ERROR_INVALID_PARAM);
    order.indexes[1] = 3;
    EXPECT_EQ(order.Now(), ACL_SUCCESS);
  });
}

TEST(Batch, AtMost4096EntriesAndNoTwoWriteTheSameBytes) {
  InProcess({}, [] {
    Session acl;
    Batch many(acl, 1, true);
    many.dsts.resize(4097, many.dsts[0]);
    many.srcs.resize(4097, many.srcs[0]);
    many.sizes.resize(4097, 1);
    many.rooms.resize(4097, 1);
    EXPECT_EQ(many.Async(acl.stream), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(many.fail, SIZE_MAX);
    Batch twice(acl, 4, true);
    twice.dsts[3] = acl.dev(64);
    EXPECT_EQ(twice.Async(acl.stream), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(twice.fail, 3u);
  });
}

TEST(Batch, FourThousandEntriesPassALazyStream) {
  InProcess({{"ACLEMU_SCHED", "lazy"}}, [] {
    Session acl;
    Batch many(acl, 1, true);
    for (size_t i = 1; i < 1024; ++i) {
      many.dsts.push_back(acl.dev(i * 64));
      many.srcs.push_back(acl.host(i * 64));
    }
    many.sizes.assign(1024, 64);
    many.rooms.assign(1024, 64);
    memset(acl.pinned, 0x5A, kBytes);
    for (int round = 0; round < 4; ++round) ASSERT_EQ(many.Async(acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(acl.DeviceByte(kBytes - 1), 0x5A);
    EXPECT_GT(GetStats().submits_blocked, 0u);
  });
}

TEST(Batch, PageableMemoryOnlySynchronously) {
  InProcess({}, [] {
    Session acl;
    alignas(64) static uint8_t plain[256];
    Batch up(acl, 2, true);
    up.srcs[1] = plain;
    EXPECT_EQ(up.Async(acl.stream), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(up.fail, 1u);
    EXPECT_EQ(up.Now(), ACL_SUCCESS);
  });
}

TEST(Plane, RowsLandWhereThePitchesSay) {
  InProcess({}, [] {
    Session acl;
    memset(acl.pinned, 0, kBytes);
    for (size_t row = 0; row < 16; ++row) memset(acl.host(row * 64), static_cast<int>(row + 1), 64);
    ASSERT_EQ(aclrtMemcpy2d(acl.device, 128, acl.pinned, 64, 48, 16, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
    for (size_t row = 0; row < 16; ++row) {
      EXPECT_EQ(acl.DeviceByte(row * 128), row + 1);
      EXPECT_EQ(acl.DeviceByte(row * 128 + 47), row + 1);
      EXPECT_EQ(acl.DeviceByte(row * 128 + 48), 0xA5);
    }
    memset(acl.pinned, 0, kBytes);
    ASSERT_EQ(aclrtMemcpy2dAsync(acl.pinned, 256, acl.device, 128, 48, 16, ACL_MEMCPY_DEVICE_TO_HOST, acl.stream),
              ACL_SUCCESS);
    ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(*acl.host(15 * 256 + 47), 16);
    EXPECT_EQ(*acl.host(15 * 256 + 48), 0);
  });
}

TEST(Plane, BadShapesAreRefused) {
  InProcess({}, [] {
    Session acl;
    auto copy = [&](size_t dst_pitch, size_t src_pitch, size_t width, size_t height, aclrtMemcpyKind kind) {
      return aclrtMemcpy2d(acl.device, dst_pitch, acl.pinned, src_pitch, width, height, kind);
    };
    EXPECT_EQ(copy(64, 63, 64, 2, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_INVALID_PARAM);
    EXPECT_EQ(copy(63, 64, 64, 2, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_INVALID_PARAM);
    EXPECT_EQ(copy(64, 64, 0, 2, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_INVALID_PARAM);
    EXPECT_EQ(copy(6'000'000, 6'000'000, 5'000'001, 1, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_INVALID_PARAM);
    EXPECT_EQ(copy(64, 64, 64, 5'242'881, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_INVALID_PARAM);
    EXPECT_EQ(copy(64, 64, 64, 2, ACL_MEMCPY_HOST_TO_HOST), ACL_ERROR_INVALID_PARAM);
    EXPECT_EQ(copy(64, 64, 64, 2, ACL_MEMCPY_DEVICE_TO_HOST), ACL_ERROR_RT_PARAM_INVALID);
    // The last row ends at the end of the block, its pitch need not fit.
    EXPECT_EQ(copy(kBytes / 2, 64, 64, 2, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
    EXPECT_EQ(copy(kBytes / 2, 64, 64, 3, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID);
  });
}

TEST(Peer, AccessStatusFollowsEnableAndDisable) {
  InProcess({}, [] {
    Session acl;
    int32_t status = 9;
    EXPECT_EQ(aclrtDevicePeerAccessStatus(0, 1, &status), ACL_SUCCESS);
    EXPECT_EQ(status, 0);
    ASSERT_EQ(aclrtDeviceEnablePeerAccess(1, 0), ACL_SUCCESS);
    EXPECT_EQ(aclrtDevicePeerAccessStatus(0, 1, &status), ACL_SUCCESS);
    EXPECT_EQ(status, 1);
    EXPECT_EQ(aclrtDevicePeerAccessStatus(1, 0, &status), ACL_SUCCESS);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(aclrtDevicePeerAccessStatus(1, 1, &status), ACL_ERROR_INVALID_PARAM);
    EXPECT_EQ(aclrtDevicePeerAccessStatus(0, 2, &status), ACL_ERROR_RT_INVALID_DEVICEID);
    EXPECT_EQ(aclrtDeviceDisablePeerAccess(1), ACL_SUCCESS);
  });
}

}  // namespace
