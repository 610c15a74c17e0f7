// Several processes under device loss, race detection and random schedules.
#include <array>
#include <cstring>

#include "test/process_peer.h"

namespace {

using Key = std::array<char, 65>;
constexpr size_t kUnit = 2 * kMiB;
constexpr auto kH2D = ACL_MEMCPY_HOST_TO_DEVICE;

int Inject(const char* rules) {
  return SIDE(aclemu_inject)(rules);
}

class Interplay : public testing::Test {
 protected:
  SharedDir dir_;
  Knobs knobs_{{"ACLEMU_DIR", dir_.path()}, {"ACLEMU_HBM", "32M"}};
};

TEST_F(Interplay, ADeviceLostByOneProcessIsLostForAll) {
  Peer loser(knobs_, [](Link& link) {
    Start();
    link.Get<char>();
    ASSERT_EQ(Inject("dev0@t0=lost,507899"), 0);
    EXPECT_EQ(aclrtSynchronizeDevice(), 507899);
    link.Tell('d');
    link.Get<char>();
  });
  Peer victim(knobs_, [](Link& link) {
    auto* acl = new Session;  // its stream cannot be destroyed any more
    ASSERT_EQ(aclrtSetDevice(1), ACL_SUCCESS);
    void* elsewhere = nullptr;
    ASSERT_EQ(aclrtMalloc(&elsewhere, kBytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    // Nothing but the loss ends this wait.
    ASSERT_EQ(Inject("H2D@1=hang"), 0);
    ASSERT_EQ(aclrtMemcpyAsync(acl->device, 64, acl->pinned, 64, kH2D, acl->stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemcpyAsync(acl->device, 64, acl->pinned, 64, kH2D, acl->stream), ACL_SUCCESS);
    link.Tell('r');
    EXPECT_EQ(aclrtSynchronizeStream(acl->stream), 507899);
    aclrtDeviceStatus status = ACL_RT_DEVICE_STATUS_NORMAL;
    EXPECT_EQ(aclrtQueryDeviceStatus(0, &status), ACL_SUCCESS);
    EXPECT_EQ(status, ACL_RT_DEVICE_STATUS_ABNORMAL);
    EXPECT_EQ(aclrtMemset(acl->device, 64, 1, 64), 507899);
    EXPECT_EQ(aclrtFree(acl->device), ACL_SUCCESS);
    EXPECT_EQ(aclrtFreeHost(acl->pinned), ACL_SUCCESS);
    EXPECT_EQ(aclrtSetDevice(1), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemset(elsewhere, 64, 1, 64), ACL_SUCCESS);
    EXPECT_EQ(aclrtFree(elsewhere), ACL_SUCCESS);
    EXPECT_EQ(aclrtResetDevice(1), ACL_SUCCESS);
  });
  EXPECT_EQ(victim.link().Get<char>(), 'r');
  loser.link().Tell('g');
  EXPECT_EQ(loser.link().Get<char>(), 'd');
  EXPECT_EQ(victim.Join(), 0);
  loser.link().Tell('e');
  EXPECT_EQ(loser.Join(), 0);
  // And for those who come later.
  Peer late(knobs_, [](Link&) {
    ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
    EXPECT_EQ(aclrtSetDevice(0), ACL_ERROR_RT_DEV_SETUP_ERROR);
    EXPECT_EQ(aclrtSetDevice(1), ACL_SUCCESS);
  });
  EXPECT_EQ(late.Join(), 0);
}

TEST_F(Interplay, TheFirstCodeOfALossStays) {
  Peer both(knobs_, [](Link&) {
    Start();
    ASSERT_EQ(Inject("dev0@t0=lost,507899"), 0);
    ASSERT_EQ(Inject("dev0@t0=lost"), 0);
    EXPECT_EQ(aclrtSynchronizeDevice(), 507899);
  });
  EXPECT_EQ(both.Join(), 0);
}

TEST_F(Interplay, ImportedMemoryInCopiesWithRacesAndRandomSchedules) {
  Knobs knobs = knobs_;
  knobs.push_back({"ACLEMU_RACE", "1"});
  knobs.push_back({"ACLEMU_SCHED", "random:11"});
  Peer exporter(knobs, [](Link& link) {
    Start();
    void* block = nullptr;
    Key key{};
    ASSERT_EQ(aclrtMallocAlign32(&block, kUnit, ACL_MEM_MALLOC_HUGE_ONLY), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemset(block, kUnit, 0x42, kUnit), ACL_SUCCESS);
    ASSERT_EQ(aclrtIpcMemGetExportKey(block, kUnit, key.data(), key.size(),
                                      ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION),
              ACL_SUCCESS);
    link.Tell(key);
    link.Get<char>();
    uint8_t byte = 0;
    EXPECT_EQ(aclrtMemcpy(&byte, 1, block, 1, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
    EXPECT_EQ(byte, 0x17);
    EXPECT_EQ(aclrtIpcMemClose(key.data()), ACL_SUCCESS);
    EXPECT_EQ(aclrtFree(block), ACL_SUCCESS);
  });
  auto key = exporter.link().Get<Key>();
  Peer importer(knobs, [&](Link&) {
    Start();
    void *far = nullptr, *own = nullptr;
    aclrtStream stream = nullptr;
    ASSERT_EQ(aclrtIpcMemImportByKey(&far, key.data(), 0), ACL_SUCCESS);
    ASSERT_EQ(aclrtMallocAlign32(&own, 2 * kUnit, ACL_MEM_MALLOC_HUGE_ONLY), ACL_SUCCESS);
    ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
    auto copy = [&](void* dst, void* src, size_t bytes) {
      return aclrtMemcpyAsync(dst, bytes, src, bytes, ACL_MEMCPY_DEVICE_TO_DEVICE, stream);
    };
    // Batches and planes go by the same rule.
    aclrtMemcpyBatchAttr attr{};
    attr.dstLoc = {0, ACL_MEM_LOCATION_TYPE_DEVICE};
    attr.srcLoc.type = ACL_MEM_LOCATION_TYPE_HOST;
    void* host = nullptr;
    ASSERT_EQ(aclrtMallocHost(&host, kBytes), ACL_SUCCESS);
    size_t bytes = kBytes, index = 0, fail = 0;
    EXPECT_EQ(aclrtMemcpyBatchAsync(&far, &bytes, &host, &bytes, 1, &attr, &index, 1, &fail, stream),
              ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMemcpy2dAsync(far, 128, host, 128, 64, 4, kH2D, stream), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(GetStats().violations, 2u);
    ASSERT_EQ(copy(own, far, kUnit), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemsetAsync(static_cast<uint8_t*>(own) + kUnit, kUnit, 0x17, kUnit, stream), ACL_SUCCESS);
    ASSERT_EQ(copy(far, static_cast<uint8_t*>(own) + kUnit, kUnit), ACL_SUCCESS);
    ASSERT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
    uint8_t byte = 0;
    EXPECT_EQ(aclrtMemcpy(&byte, 1, own, 1, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
    EXPECT_EQ(byte, 0x42);
    EXPECT_EQ(GetStats().violations, 2u);
    // A task that a fault holds keeps the import open; losing the device lets it go.
    ASSERT_EQ(Inject("D2D@1=hang"), 0);
    ASSERT_EQ(copy(own, far, kUnit), ACL_SUCCESS);
    EXPECT_EQ(aclrtIpcMemClose(key.data()), ACL_ERROR_RT_PARAM_INVALID);
    ASSERT_EQ(Inject(""), 0);
    ASSERT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtIpcMemClose(key.data()), ACL_SUCCESS);
  });
  EXPECT_EQ(importer.Join(), 0);
  exporter.link().Tell('c');
  EXPECT_EQ(exporter.Join(), 0);
}

TEST_F(Interplay, CapacityTakenByAFaultIsMissedByAllAndComesBackWithTheProcess) {
  Peer shrinker(knobs_, [](Link& link) {
    Start();
    ASSERT_EQ(Inject("dev0@t0=capacity:8M"), 0);
    link.Tell('s');
    link.Get<char>();
  });
  EXPECT_EQ(shrinker.link().Get<char>(), 's');
  Observer observer(knobs_);
  EXPECT_EQ(observer.Free(), 8 * kMiB);
  shrinker.Kill();
  EXPECT_EQ(observer.Free(), 32 * kMiB);
}

}  // namespace
