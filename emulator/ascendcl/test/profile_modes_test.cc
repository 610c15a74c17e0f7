// Single releases under schedules, faults and the time model. Each case opens the library of a profile at run time.
#include <cstring>

#include "test/emulator_session.h"

namespace {

#define ACL(name) reinterpret_cast<decltype(&name)>(FindSide(#name))

void Open(const std::string& profile) {
  std::string path = std::string(ACLEMU_LIB64) + "-" + profile + "/libascendcl.so";
  ASSERT_NE(dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
}

// Aligned copies on four streams, over all of which one event decides.
void CopyAround() {
  constexpr size_t kStreams = 4, kPart = kBytes / kStreams;
  void *device = nullptr, *pinned = nullptr;
  aclrtStream streams[kStreams];
  aclrtEvent event = nullptr;
  ASSERT_EQ(ACL(aclInit)(nullptr), ACL_SUCCESS);
  ASSERT_EQ(ACL(aclrtSetDevice)(0), ACL_SUCCESS);
  ASSERT_EQ(ACL(aclrtMalloc)(&device, kBytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
  ASSERT_EQ(ACL(aclrtMallocHost)(&pinned, kBytes), ACL_SUCCESS);
  ASSERT_EQ(ACL(aclrtCreateEvent)(&event), ACL_SUCCESS);
  for (aclrtStream& stream : streams) ASSERT_EQ(ACL(aclrtCreateStream)(&stream), ACL_SUCCESS);
  for (int round = 1; round <= 3; ++round) {
    memset(pinned, round, kBytes);
    ASSERT_EQ(ACL(aclrtMemcpyAsync)(device, kBytes, pinned, kBytes, ACL_MEMCPY_HOST_TO_DEVICE, streams[0]), 0);
    ASSERT_EQ(ACL(aclrtRecordEvent)(event, streams[0]), ACL_SUCCESS);
    for (size_t i = 1; i < kStreams; ++i) {
      ASSERT_EQ(ACL(aclrtStreamWaitEvent)(streams[i], event), ACL_SUCCESS);
      void* to = static_cast<uint8_t*>(pinned) + i * kPart;
      void* from = static_cast<uint8_t*>(device) + i * kPart;
      ASSERT_EQ(ACL(aclrtMemcpyAsync)(to, kPart, from, kPart, ACL_MEMCPY_DEVICE_TO_HOST, streams[i]), ACL_SUCCESS);
    }
    for (aclrtStream stream : streams) ASSERT_EQ(ACL(aclrtSynchronizeStream)(stream), ACL_SUCCESS);
    for (size_t i = 0; i < kBytes; ++i) ASSERT_EQ(static_cast<uint8_t*>(pinned)[i], round) << i;
  }
  EXPECT_EQ(GetStats().violations, 0u);
  for (aclrtStream stream : streams) ASSERT_EQ(ACL(aclrtDestroyStream)(stream), ACL_SUCCESS);
  ASSERT_EQ(ACL(aclrtDestroyEvent)(event), ACL_SUCCESS);
  ASSERT_EQ(ACL(aclrtFreeHost)(pinned), ACL_SUCCESS);
  ASSERT_EQ(ACL(aclrtFree)(device), ACL_SUCCESS);
}

TEST(ProfileModes, OldReleasesUnderEverySchedule) {
  for (const char* profile : {"8.0", "8.5", "master"}) {
    for (const Knobs& knobs : {Knobs{{"ACLEMU_SCHED", "random:1"}}, Knobs{{"ACLEMU_SCHED", "random:99"}},
                               Knobs{{"ACLEMU_SCHED", "lazy"}}, Knobs{{"ACLEMU_TIME", "virtual"}}}) {
      SCOPED_TRACE(std::string(profile) + " " + knobs[0].second);
      Knobs with = knobs;
      with.push_back({"ACLEMU_LEAK_FATAL", "1"});
      InProcess(with, [&] {
        Open(profile);
        CopyAround();
      });
    }
  }
}

TEST(ProfileModes, FaultsAreNamedByFunctionsTheReleaseMayNotEvenHave) {
  InProcess({{"ACLEMU_FAULT", "aclrtMemcpyBatchAsync@1=507899;aclrtMemcpyAsync@1=507899"}}, [] {
    Open("8.0");
    EXPECT_EQ(dlsym(RTLD_DEFAULT, "aclrtMemcpyBatchAsync"), nullptr);
    ASSERT_EQ(ACL(aclInit)(nullptr), ACL_SUCCESS);
    ASSERT_EQ(ACL(aclrtSetDevice)(0), ACL_SUCCESS);
    EXPECT_EQ(ACL(aclrtMemcpyAsync)(nullptr, 0, nullptr, 0, ACL_MEMCPY_DEFAULT, nullptr), 507899);
  });
}

TEST(ProfileModes, PageableCopiesOfNewReleasesPayTheirTimeOnce) {
  InProcess({{"ACLEMU_TIME", "virtual"}, {"ACLEMU_MODEL", "a2,h2d_gbps=1,pageable_factor=0.5,sync_copy_us=15"}}, [] {
    Open("8.5");
    static uint8_t plain[kBytes];
    void* device = nullptr;
    ASSERT_EQ(ACL(aclInit)(nullptr), ACL_SUCCESS);
    ASSERT_EQ(ACL(aclrtSetDevice)(0), ACL_SUCCESS);
    ASSERT_EQ(ACL(aclrtMalloc)(&device, kBytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    auto now = SIDE(aclemu_model_now_ns);
    uint64_t begin = now();
    ASSERT_EQ(ACL(aclrtMemcpyAsync)(device, kBytes, plain, kBytes, ACL_MEMCPY_HOST_TO_DEVICE, nullptr), ACL_SUCCESS);
    EXPECT_GE(now() - begin, 2 * kBytes + 15000);
    EXPECT_LE(now() - begin, 2 * kBytes + 15000 + 10000);
    ASSERT_EQ(ACL(aclrtFree)(device), ACL_SUCCESS);
  });
}

TEST(ProfileModes, ChipsBringTheirOwnModel) {
  for (const auto& [soc, gbps] : {std::pair("a2", 23.0), std::pair("a3", 60.0), std::pair("310p", 23.0)}) {
    SCOPED_TRACE(soc);
    InProcess({{"ACLEMU_SOC", soc}}, [gbps = gbps] {
      Open("master");
      EXPECT_EQ(SIDE(aclemu_model_param)("h2d_gbps"), gbps);
    });
  }
  InProcess({{"ACLEMU_SOC", "a3"}, {"ACLEMU_MODEL", "bench"}}, [] {
    Open("master");
    EXPECT_EQ(SIDE(aclemu_model_param)("h2d_gbps"), 2.0);
  });
}

}  // namespace
