// Race detection: each proof once, and the legal uses that look alike.
#include <atomic>
#include <cstring>
#include <thread>

#include "test/emulator_session.h"

namespace {

constexpr auto kH2D = ACL_MEMCPY_HOST_TO_DEVICE;
constexpr auto kD2H = ACL_MEMCPY_DEVICE_TO_HOST;
constexpr auto kD2D = ACL_MEMCPY_DEVICE_TO_DEVICE;
const Knobs kLazy = {{"ACLEMU_RACE", "1"}, {"ACLEMU_SCHED", "lazy"}};

aclError In(const Session& acl, size_t to, size_t from, size_t bytes, aclrtStream stream = nullptr) {
  return aclrtMemcpyAsync(acl.dev(to), bytes, acl.host(from), bytes, kH2D, stream == nullptr ? acl.stream : stream);
}
aclError Out(const Session& acl, size_t to, size_t from, size_t bytes, aclrtStream stream = nullptr) {
  return aclrtMemcpyAsync(acl.host(to), bytes, acl.dev(from), bytes, kD2H, stream == nullptr ? acl.stream : stream);
}

TEST(Race, R1SourceChangedBeforeTheCopyRan) {
  InProcess(kLazy, [] {
    Session acl;
    ASSERT_EQ(In(acl, 0, 0, 4096), ACL_SUCCESS);
    *acl.host(4095) = 1;
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_ERROR_RT_TS_ERROR);
    EXPECT_EQ(GetStats().violations, 1u);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
  });
#ifndef __SANITIZE_THREAD__  // which sees this race by itself
  // The same while the device copies.
  InProcess({{"ACLEMU_RACE", "1"}}, [] {
    Session acl;
    ASSERT_EQ(SIDE(aclemu_inject)("H2D@1=hang"), 0);
    ASSERT_EQ(In(acl, 0, 0, 4096), ACL_SUCCESS);
    *acl.host(0) = 1;
    ASSERT_EQ(SIDE(aclemu_inject)(""), 0);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_ERROR_RT_TS_ERROR);
  });
#endif
  Knobs lenient = kLazy;
  lenient.push_back({"ACLEMU_VIOLATION", "log"});
  auto body = [] {
    Session acl;
    ASSERT_EQ(In(acl, 0, 0, 4096), ACL_SUCCESS);
    *acl.host(0) = 1;
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(acl.DeviceByte(0), 1);
    EXPECT_EQ(GetStats().violations, 1u);
    exit(7);
  };
  InProcess(lenient, body, 7, "violation R1 in aclrtMemcpyAsync");
}

TEST(Race, DestinationReadTooEarlyHoldsAPattern) {
  InProcess(kLazy, [] {
    Session acl;
    memset(acl.pinned, 0x11, kBytes);
    ASSERT_EQ(aclrtMemcpy(acl.device, kBytes, acl.pinned, kBytes, kH2D), ACL_SUCCESS);
    ASSERT_EQ(Out(acl, 64, 64, 4096), ACL_SUCCESS);
    EXPECT_EQ(*acl.host(63), 0x11);
    EXPECT_EQ(*acl.host(64), 0xEB);
    EXPECT_EQ(*acl.host(64 + 4095), 0xEB);
    EXPECT_EQ(*acl.host(64 + 4096), 0x11);
    ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(*acl.host(64), 0x11);
    EXPECT_EQ(GetStats().violations, 0u);
  });
}

TEST(Race, C12SynchronousCallsMeetQueuedTasks) {
  InProcess(kLazy, [] {
    Session acl;
    static uint8_t plain[4096];
    ASSERT_EQ(In(acl, 0, 0, 4096), ACL_SUCCESS);
    // Reads what the task writes.
    EXPECT_EQ(aclrtMemcpy(plain, 64, acl.dev(4032), 64, kD2H), ACL_ERROR_RT_PARAM_INVALID);
    // Writes what the task writes, and what it reads.
    EXPECT_EQ(aclrtMemset(acl.dev(64), 64, 1, 64), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMemcpy(acl.host(64), 64, acl.dev(8192), 64, kD2H), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtMemset(acl.host(64), 64, 1, 64), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(GetStats().violations, 4u);
    // Elsewhere in the same blocks, and reading what the task reads.
    EXPECT_EQ(aclrtMemcpy(plain, 64, acl.dev(4096), 64, kD2H), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemset(acl.dev(4096), 64, 1, 64), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemcpy(acl.dev(8192), 64, acl.host(64), 64, kH2D), ACL_SUCCESS);
    EXPECT_EQ(GetStats().violations, 4u);
    ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemset(acl.dev(64), 64, 1, 64), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemcpy(plain, 64, acl.dev(0), 64, kD2H), ACL_SUCCESS);
    EXPECT_EQ(GetStats().violations, 4u);
  });
}

TEST(Race, WithoutTheKnobNothingIsChecked) {
  InProcess({{"ACLEMU_SCHED", "lazy"}}, [] {
    Session acl;
    memset(acl.pinned, 0x11, kBytes);
    ASSERT_EQ(In(acl, 0, 0, 64), ACL_SUCCESS);
    ASSERT_EQ(Out(acl, 4096, 0, 64), ACL_SUCCESS);
    *acl.host(0) = 2;
    EXPECT_EQ(*acl.host(4096), 0x11);
    EXPECT_EQ(aclrtMemset(acl.dev(0), 64, 1, 64), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(GetStats().violations, 0u);
  });
}

// Whatever the mode, what is legal is not flagged and the data are right.
void LegalChains() {
  Session acl;
  aclrtStream other = nullptr;
  aclrtEvent event = nullptr;
  ASSERT_EQ(aclrtCreateStream(&other), ACL_SUCCESS);
  ASSERT_EQ(aclrtCreateEventExWithFlag(&event, ACL_EVENT_SYNC), ACL_SUCCESS);
  for (int round = 0; round < 20; ++round) {
    memset(acl.host(0), round, 4096);
    // One source read by two streams, into disjoint parts of one block.
    ASSERT_EQ(In(acl, 0, 0, 4096), ACL_SUCCESS);
    ASSERT_EQ(In(acl, 4096, 0, 4096, other), ACL_SUCCESS);
    ASSERT_EQ(aclrtSynchronizeStream(other), ACL_SUCCESS);
    // A chain in one stream: device to host, and from there to the device again, and over the source.
    ASSERT_EQ(Out(acl, 8192, 0, 4096), ACL_SUCCESS);
    ASSERT_EQ(In(acl, 8192, 8192, 4096), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemcpyAsync(acl.dev(16384), 4096, acl.dev(8192), 4096, kD2D, acl.stream), ACL_SUCCESS);
    ASSERT_EQ(Out(acl, 8192, 16384, 4096), ACL_SUCCESS);
    // Another stream takes over, ordered by an event.
    ASSERT_EQ(aclrtRecordEvent(event, acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtStreamWaitEvent(other, event), ACL_SUCCESS);
    ASSERT_EQ(In(acl, 20480, 8192, 4096, other), ACL_SUCCESS);
    ASSERT_EQ(Out(acl, 8192, 20480, 4096, other), ACL_SUCCESS);
    ASSERT_EQ(aclrtSynchronizeEvent(event), ACL_SUCCESS);
    // The first stream is done by now, its source may change; the second may still run.
    memset(acl.host(0), 0xFF, 4096);
    ASSERT_EQ(aclrtMemset(acl.dev(0), 4096, 0, 4096), ACL_SUCCESS);
    ASSERT_EQ(aclrtSynchronizeStream(other), ACL_SUCCESS);
    ASSERT_EQ(*acl.host(8192), round);
    ASSERT_EQ(*acl.host(8192 + 4095), round);
    // An aborted copy uses nothing any more.
    ASSERT_EQ(In(acl, 0, 0, 4096), ACL_SUCCESS);
    ASSERT_EQ(aclrtStreamAbort(acl.stream), ACL_SUCCESS);
    memset(acl.host(0), round, 4096);
    ASSERT_EQ(aclrtMemset(acl.dev(0), 64, 0, 64), ACL_SUCCESS);
  }
  EXPECT_EQ(GetStats().violations, 0u);
  EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyStream(other), ACL_SUCCESS);
}

TEST(Race, LegalChainsAreNotFlagged) {
  for (const char* sched : {"eager", "lazy", "random:5", "timed"}) {
    InProcess({{"ACLEMU_RACE", "1"}, {"ACLEMU_SCHED", sched}, {"ACLEMU_MODEL", "bench"}}, LegalChains);
  }
  InProcess({{"ACLEMU_RACE", "1"}, {"ACLEMU_TIME", "virtual"}, {"ACLEMU_MODEL", "bench"}}, LegalChains);
}

// The program itself orders its writes by an event that it records later: legal, and invisible in the queues.
TEST(Race, AWaitForALaterRecordSilencesTheCheck) {
  InProcess({{"ACLEMU_RACE", "1"}}, [] {
    Session acl;
    aclrtStream other = nullptr;
    aclrtEvent event = nullptr;
    ASSERT_EQ(aclrtCreateStream(&other), ACL_SUCCESS);
    ASSERT_EQ(aclrtCreateEvent(&event), ACL_SUCCESS);
    ASSERT_EQ(aclrtStreamWaitEvent(acl.stream, event), ACL_SUCCESS);
    ASSERT_EQ(In(acl, 0, 0, 4096), ACL_SUCCESS);
    memset(acl.host(0), 0x77, 4096);
    EXPECT_EQ(aclrtMemset(acl.dev(0), 64, 0, 64), ACL_SUCCESS);
    ASSERT_EQ(aclrtRecordEvent(event, other), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(acl.DeviceByte(0), 0x77);
    EXPECT_EQ(GetStats().violations, 0u);
    EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
    EXPECT_EQ(aclrtDestroyStream(other), ACL_SUCCESS);
  });
}

TEST(Race, ManyThreadsOnDisjointPartsOfSharedBlocks) {
  InProcess({{"ACLEMU_RACE", "1"}, {"ACLEMU_SCHED", "random:9"}}, [] {
    Session acl;
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
        aclrtStream stream = nullptr;
        ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
        size_t at = t * 8192;
        for (int round = 0; round < 30; ++round) {
          memset(acl.host(at), round, 4096);
          ASSERT_EQ(In(acl, at, at, 4096, stream), ACL_SUCCESS);
          ASSERT_EQ(Out(acl, at + 4096, at, 4096, stream), ACL_SUCCESS);
          ASSERT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
          ASSERT_EQ(*acl.host(at + 8191), round);
          ASSERT_EQ(aclrtMemset(acl.dev(at), 4096, 0, 4096), ACL_SUCCESS);
        }
        EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(GetStats().violations, 0u);
  });
}

}  // namespace
