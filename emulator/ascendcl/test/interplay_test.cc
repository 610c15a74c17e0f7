// What the parts of the emulator do to each other: batched and two-dimensional copies, host code and virtual memory
// under faults, scheduling modes, race detection and the time model.
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "test/emulator_session.h"

namespace {

constexpr auto kH2D = ACL_MEMCPY_HOST_TO_DEVICE;
constexpr auto kD2H = ACL_MEMCPY_DEVICE_TO_HOST;
constexpr size_t kPiece = 4096;
constexpr size_t kUnit = 2 * kMiB;

int Inject(const char* rules) {
  return SIDE(aclemu_inject)(rules);
}
uint64_t NowNs() {
  return SIDE(aclemu_model_now_ns)();
}

// Pieces of 4 KiB from the host to the device.
struct Batch {
  std::vector<void*> dsts, srcs;
  std::vector<size_t> sizes;
  size_t index = 0, fail = 77;
  aclrtMemcpyBatchAttr attr{};

  Batch(const Session& acl, size_t count) : sizes(count, kPiece) {
    for (size_t i = 0; i < count; ++i) {
      dsts.push_back(acl.dev(i * kPiece));
      srcs.push_back(acl.host(i * kPiece));
    }
    attr.dstLoc.type = ACL_MEM_LOCATION_TYPE_DEVICE;
    attr.srcLoc.type = ACL_MEM_LOCATION_TYPE_HOST;
  }
  aclError Async(aclrtStream stream) {
    return aclrtMemcpyBatchAsync(dsts.data(), sizes.data(), srcs.data(), sizes.data(), sizes.size(), &attr, &index, 1,
                                 &fail, stream);
  }
  aclError Now() {
    return aclrtMemcpyBatch(dsts.data(), sizes.data(), srcs.data(), sizes.data(), sizes.size(), &attr, &index, 1,
                            &fail);
  }
};

// ---- faults ----

TEST(BatchFaults, AnEntryRefusedAtTheCallNamesItself) {
  InProcess({}, [] {
    Session acl;
    memset(acl.pinned, 0x11, kBytes);
    Batch batch(acl, 8);
    ASSERT_EQ(Inject("H2D[min=4K,max=4K]@3:call=507899"), 0);
    EXPECT_EQ(batch.Async(acl.stream), 507899);
    EXPECT_EQ(batch.fail, 5u);  // entries run from the last to the first
    ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(acl.DeviceByte(6 * kPiece), 0x11);
    EXPECT_EQ(acl.DeviceByte(5 * kPiece), 0xA5);
  });
}

TEST(BatchFaults, EntriesFailSplitAndFlipOneByOneWhenTheyRun) {
  for (const char* sched : {"eager", "lazy", "random:3"}) {
    SCOPED_TRACE(sched);
    InProcess({{"ACLEMU_SCHED", sched}}, [] {
      Session acl;
      memset(acl.pinned, 0x11, kBytes);
      Batch batch(acl, 4);
      ASSERT_EQ(Inject("H2D@2:exec=507001;H2D@3:exec=corrupt;H2D@4:exec=partial,507002"), 0);
      ASSERT_EQ(batch.Async(acl.stream), ACL_SUCCESS);
      EXPECT_EQ(aclrtSynchronizeStream(acl.stream), 507002);
      EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
      EXPECT_EQ(acl.DeviceByte(3 * kPiece), 0x11);
      EXPECT_EQ(acl.DeviceByte(2 * kPiece), 0xA5);
      EXPECT_EQ(acl.DeviceByte(1 * kPiece), 0xEE);
      EXPECT_EQ(acl.DeviceByte(1 * kPiece + 1), 0x11);
      EXPECT_EQ(acl.DeviceByte(kPiece / 2 - 1), 0x11);
      EXPECT_EQ(acl.DeviceByte(kPiece / 2), 0xA5);
      EXPECT_EQ(aclrtFree(acl.device), ACL_SUCCESS);  // no entry is left in flight
      ASSERT_EQ(aclrtMalloc(&acl.device, kBytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    });
  }
}

TEST(BatchFaults, FiltersSeeTheWholeBatchAtTheCallAndEachEntryWhenItMoves) {
  InProcess({}, [] {
    Session acl;
    Batch batch(acl, 4);
    ASSERT_EQ(Inject("aclrtMemcpyBatch[min=16K]@1=507899"), 0);
    EXPECT_EQ(batch.Now(), 507899);
    EXPECT_EQ(batch.Now(), ACL_SUCCESS);
    ASSERT_EQ(Inject("H2D[min=16K]@1=507899"), 0);
    EXPECT_EQ(batch.Now(), ACL_SUCCESS);
    ASSERT_EQ(Inject("aclrtMemcpyBatch@2=corrupt"), 0);
    batch.fail = 77;
    memset(acl.pinned, 0x11, kBytes);
    EXPECT_EQ(batch.Now(), ACL_SUCCESS);
    EXPECT_EQ(acl.DeviceByte(2 * kPiece), 0xEE);
    EXPECT_EQ(acl.DeviceByte(3 * kPiece), 0x11);
  });
}

TEST(StreamFilter, TheDefaultStreamIsNumber0ByEitherName) {
  InProcess({}, [] {
    Session acl;
    aclrtStream by_name = nullptr;
    ASSERT_EQ(aclrtCtxGetCurrentDefaultStream(&by_name), ACL_SUCCESS);
    ASSERT_EQ(Inject("aclrtMemsetAsync[stream=0]@every:1=507899"), 0);
    EXPECT_EQ(aclrtMemsetAsync(acl.device, 64, 1, 64, acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemsetAsync(acl.device, 64, 1, 64, nullptr), 507899);
    EXPECT_EQ(aclrtMemsetAsync(acl.device, 64, 1, 64, by_name), 507899);
  });
}

TEST(PlaneFaults, RowsFailOneByOne) {
  InProcess({}, [] {
    Session acl;
    memset(acl.pinned, 0x11, kBytes);
    ASSERT_EQ(Inject("H2D@2:exec=507001"), 0);
    ASSERT_EQ(aclrtMemcpy2dAsync(acl.device, 256, acl.pinned, 256, 128, 3, kH2D, acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), 507001);
    EXPECT_EQ(acl.DeviceByte(0), 0x11);
    EXPECT_EQ(acl.DeviceByte(256), 0xA5);
    EXPECT_EQ(acl.DeviceByte(512), 0x11);
  });
}

TEST(StopMode, AFaultEndsAllStreamsOfTheContext) {
  for (const char* sched : {"eager", "lazy", "random:5"}) {
    SCOPED_TRACE(sched);
    InProcess({{"ACLEMU_SCHED", sched}}, [] {
      Session acl;
      memset(acl.pinned, 0x11, kBytes);
      aclrtEvent event = nullptr;
      ASSERT_EQ(aclrtCreateEvent(&event), ACL_SUCCESS);
      ASSERT_EQ(aclrtSetStreamFailureMode(acl.stream, ACL_STOP_ON_FAILURE), ACL_SUCCESS);
      ASSERT_EQ(Inject("H2D@1:exec=507001"), 0);
      ASSERT_EQ(Batch(acl, 3).Async(acl.stream), ACL_SUCCESS);
      ASSERT_EQ(aclrtRecordEvent(event, acl.stream), ACL_SUCCESS);
      EXPECT_EQ(aclrtSynchronizeEvent(event), 507001);
      EXPECT_EQ(aclrtSynchronizeStream(acl.stream), 507001);
      EXPECT_EQ(aclrtSynchronizeStream(acl.stream), 507001);
      for (size_t i = 0; i < 3; ++i) EXPECT_EQ(acl.DeviceByte(i * kPiece), 0xA5);
      ASSERT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
    });
  }
}

TEST(CapacityFault, ReachesPhysicalMemory) {
  InProcess({{"ACLEMU_HBM", "16M"}}, [] {
    ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    aclrtPhysicalMemProp prop{};
    prop.allocationType = ACL_MEM_ALLOCATION_TYPE_PINNED;
    prop.memAttr = ACL_HBM_MEM_HUGE;
    prop.location = {0, ACL_MEM_LOCATION_TYPE_DEVICE};
    aclrtDrvMemHandle handle = nullptr;
    ASSERT_EQ(Inject("dev0@t0=capacity:4M"), 0);
    EXPECT_EQ(FreeBytes(), 4 * kMiB);
    EXPECT_EQ(aclrtMallocPhysical(&handle, 3 * kUnit, &prop, 0), ACL_ERROR_RT_MEMORY_ALLOCATION);
    ASSERT_EQ(Inject("dev0@t0=capacity:16M"), 0);
    ASSERT_EQ(aclrtMallocPhysical(&handle, 3 * kUnit, &prop, 0), ACL_SUCCESS);
    ASSERT_EQ(Inject("dev0@t0=capacity:8M"), 0);
    EXPECT_EQ(FreeBytes(), 2 * kMiB);
    EXPECT_EQ(aclrtFreePhysical(handle), ACL_SUCCESS);
    EXPECT_EQ(FreeBytes(), 8 * kMiB);
  });
}

TEST(CapacityFault, PassesTheCacheOfTheProcess) {
  InProcess({{"ACLEMU_HBM", "128M"}, {"ACLEMU_CACHE", "1"}}, [] {
    ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    for (uint64_t left : {120, 100, 128, 4}) {
      ASSERT_EQ(Inject(("dev0@t0=capacity:" + std::to_string(left) + "M").c_str()), 0);
      EXPECT_EQ(FreeBytes(), left * kMiB);
    }
    void* block = nullptr;
    EXPECT_EQ(aclrtMallocAlign32(&block, 6 * kMiB, ACL_MEM_MALLOC_HUGE_ONLY), ACL_ERROR_RT_MEMORY_ALLOCATION);
    EXPECT_EQ(aclrtMallocAlign32(&block, 4 * kMiB, ACL_MEM_MALLOC_HUGE_ONLY), ACL_SUCCESS);
    EXPECT_EQ(aclrtFree(block), ACL_SUCCESS);
  });
}

// ---- races ----

const Knobs kRace = {{"ACLEMU_RACE", "1"}, {"ACLEMU_SCHED", "lazy"}};

TEST(Race, R1OfOneEntryOfABatch) {
  InProcess(kRace, [] {
    Session acl;
    ASSERT_EQ(Batch(acl, 8).Async(acl.stream), ACL_SUCCESS);
    *acl.host(5 * kPiece + 17) ^= 1;
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_ERROR_RT_TS_ERROR);
    EXPECT_EQ(GetStats().violations, 1u);
  });
}

TEST(Race, GapsBetweenRowsAreNotPartOfThePlane) {
  InProcess(kRace, [] {
    Session acl;
    auto copy = [&] {
      ASSERT_EQ(aclrtMemcpy2dAsync(acl.device, 256, acl.pinned, 256, 128, 3, kH2D, acl.stream), ACL_SUCCESS);
    };
    copy();
    *acl.host(256 + 128) ^= 1;
    EXPECT_EQ(aclrtMemset(acl.dev(128), 64, 1, 64), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    copy();
    EXPECT_EQ(aclrtMemset(acl.dev(256), 64, 1, 64), ACL_ERROR_RT_PARAM_INVALID);
    *acl.host(256) ^= 1;
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_ERROR_RT_TS_ERROR);
    EXPECT_EQ(GetStats().violations, 2u);
  });
}

TEST(Race, C12OfASynchronousBatchNamesTheEntry) {
  InProcess(kRace, [] {
    Session acl;
    ASSERT_EQ(aclrtMemcpyAsync(acl.host(2 * kPiece), 64, acl.dev(2 * kPiece), 64, kD2H, acl.stream), ACL_SUCCESS);
    Batch batch(acl, 4);
    EXPECT_EQ(batch.Now(), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(batch.fail, 2u);
    ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(batch.Now(), ACL_SUCCESS);
  });
}

TEST(Race, ReachesMappedMemoryAndMappingsInUseStay) {
  InProcess(kRace, [] {
    Session acl;
    aclrtPhysicalMemProp prop{};
    prop.allocationType = ACL_MEM_ALLOCATION_TYPE_PINNED;
    prop.memAttr = ACL_HBM_MEM_HUGE;
    prop.location = {0, ACL_MEM_LOCATION_TYPE_DEVICE};
    aclrtDrvMemHandle handle = nullptr;
    void* mapped = nullptr;
    ASSERT_EQ(aclrtMallocPhysical(&handle, kUnit, &prop, 0), ACL_SUCCESS);
    ASSERT_EQ(aclrtReserveMemAddress(&mapped, kUnit, 0, nullptr, 1), ACL_SUCCESS);
    ASSERT_EQ(aclrtMapMem(mapped, kUnit, 0, handle, 0), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemcpyAsync(mapped, kPiece, acl.pinned, kPiece, kH2D, acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemset(mapped, 64, 1, 64), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtUnmapMem(mapped), ACL_ERROR_RT_PARAM_INVALID);
    ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemset(mapped, 64, 1, 64), ACL_SUCCESS);
    EXPECT_EQ(aclrtUnmapMem(mapped), ACL_SUCCESS);
    EXPECT_EQ(aclrtFreePhysical(handle), ACL_SUCCESS);
    EXPECT_EQ(aclrtReleaseMemAddress(mapped), ACL_SUCCESS);
    EXPECT_EQ(GetStats().violations, 2u);
  });
}

TEST(Race, HostCodeInAStreamMayTouchWhatQueuedCopiesUse) {
  InProcess(kRace, [] {
    Session acl;
    auto write = [](void* at) { memset(at, 0x77, 64); };
    ASSERT_EQ(aclrtLaunchHostFunc(acl.stream, write, acl.pinned), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemcpyAsync(acl.device, 64, acl.pinned, 64, kH2D, acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(acl.DeviceByte(63), 0x77);
    EXPECT_EQ(GetStats().violations, 0u);
  });
}

// ---- time ----

constexpr auto kLink = "a2,h2d_gbps=1,d2h_gbps=1,host_bus_gbps=0,latency_us=8,submit_us=3,sync_us=5,sync_copy_us=15";
const Knobs kVirtual = {{"ACLEMU_TIME", "virtual"}, {"ACLEMU_MODEL", kLink}};

uint64_t Took(const std::function<void()>& work) {
  uint64_t begin = NowNs();
  work();
  return NowNs() - begin;
}

TEST(Time, ABatchPaysOnceAndItsEntriesFollowEachOther) {
  InProcess(kVirtual, [] {
    Session acl;
    uint64_t took = Took([&] {
      ASSERT_EQ(Batch(acl, 8).Async(acl.stream), ACL_SUCCESS);
      ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    });
    // Each entry is ready when it was submitted; only its first byte pays the latency of the link.
    EXPECT_GE(took, 8 * kPiece + 3000 + 8000);
    EXPECT_LE(took, 8 * (kPiece + 8000) + 3000 + 5000);
    took = Took([&] { ASSERT_EQ(Batch(acl, 8).Now(), ACL_SUCCESS); });
    EXPECT_EQ(took, 15000 + 8 * kPiece);
  });
}

TEST(Time, SlowAndDelayedEntriesTakeTheirTime) {
  InProcess(kVirtual, [] {
    Session acl;
    auto run = [&] {
      return Took([&] {
        ASSERT_EQ(Batch(acl, 4).Async(acl.stream), ACL_SUCCESS);
        ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
      });
    };
    uint64_t usual = run();
    ASSERT_EQ(Inject("H2D@2:exec=slow:11"), 0);
    EXPECT_EQ(run(), usual + 10 * kPiece);
    ASSERT_EQ(Inject(""), 0);
    ASSERT_EQ(Inject("H2D@2:exec=delay:5"), 0);
    EXPECT_GE(run(), usual + 5'000'000 - 20'000);
    ASSERT_EQ(Inject(""), 0);
  });
}

TEST(Time, HostCodeSeesTheEndOfWhatCameBefore) {
  InProcess(kVirtual, [] {
    Session acl;
    struct Seen {
      aclrtStream stream;
      uint64_t at = 0;
      aclrtStreamStatus status = ACL_STREAM_STATUS_RESERVED;
      aclError code = -1;
    } seen{acl.stream};
    auto look = [](void* arg) {
      auto* s = static_cast<Seen*>(arg);
      s->at = NowNs();
      EXPECT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
      s->code = aclrtStreamQuery(s->stream, &s->status);
    };
    uint64_t begin = NowNs();
    ASSERT_EQ(aclrtMemcpyAsync(acl.device, kBytes, acl.pinned, kBytes, kH2D, acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtLaunchHostFunc(acl.stream, look, &seen), ACL_SUCCESS);
    ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_GE(seen.at, begin + kBytes);
    EXPECT_EQ(seen.code, ACL_SUCCESS);
    EXPECT_EQ(seen.status, ACL_STREAM_STATUS_NOT_READY);
  });
}

TEST(Time, AWaitWithALimitEndsByTheModel) {
  InProcess(kVirtual, [] {
    Session acl;
    aclrtEvent never = nullptr;
    ASSERT_EQ(aclrtCreateEvent(&never), ACL_SUCCESS);
    uint64_t took = Took([&] {
      ASSERT_EQ(aclrtStreamWaitEventWithTimeout(acl.stream, never, 100), ACL_SUCCESS);
      ASSERT_EQ(aclrtMemsetAsync(acl.device, 64, 7, 64, acl.stream), ACL_SUCCESS);
      EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_ERROR_RT_WAIT_TIMEOUT);
    });
    EXPECT_GE(took, 100'000'000'000u);
    EXPECT_LT(took, 101'000'000'000u);
    EXPECT_EQ(acl.DeviceByte(0), 7);
    // One that is recorded in time.
    aclrtStream other = nullptr;
    ASSERT_EQ(aclrtCreateStream(&other), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemcpyAsync(acl.device, kBytes, acl.pinned, kBytes, kH2D, other), ACL_SUCCESS);
    ASSERT_EQ(aclrtRecordEvent(never, other), ACL_SUCCESS);
    took = Took([&] {
      ASSERT_EQ(aclrtStreamWaitEventWithTimeout(acl.stream, never, 100), ACL_SUCCESS);
      EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    });
    EXPECT_LT(took, 1'000'000u);
    ASSERT_EQ(aclrtDestroyStream(other), ACL_SUCCESS);
    ASSERT_EQ(aclrtDestroyEvent(never), ACL_SUCCESS);
  });
}

// ---- host code in streams ----

void Count(void* counter) {
  ++*static_cast<std::atomic<int>*>(counter);
}
uint64_t Self() {
  return static_cast<uint64_t>(pthread_self());
}

TEST(HostFunction, KeepsItsPlaceWhateverTheSchedule) {
  for (const char* sched : {"random:1", "random:2", "random:3", "lazy", "timed"}) {
    SCOPED_TRACE(sched);
    InProcess({{"ACLEMU_SCHED", sched}, {"ACLEMU_MODEL", "bench"}, {"ACLEMU_RACE", "1"}}, [] {
      Session acl;
      static uint8_t seen[20];
      static uint8_t* at;
      at = acl.host();
      for (int i = 0; i < 20; ++i) {
        ASSERT_EQ(aclrtMemsetAsync(acl.device, 64, i + 1, 64, acl.stream), ACL_SUCCESS);
        ASSERT_EQ(aclrtMemcpyAsync(acl.pinned, 64, acl.device, 64, kD2H, acl.stream), ACL_SUCCESS);
        ASSERT_EQ(
            aclrtLaunchHostFunc(acl.stream, [](void* to) { *static_cast<uint8_t*>(to) = *at; }, seen + i), ACL_SUCCESS);
      }
      ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
      for (int i = 0; i < 20; ++i) EXPECT_EQ(seen[i], i + 1);
      EXPECT_EQ(GetStats().violations, 0u);
    });
  }
}

// Without a thread of their own, streams run for who waits for their callbacks, and for what these wait for.
TEST(Callback, ComesThroughAnEventOfAnotherStream) {
  for (const Knobs& knobs : {Knobs{{"ACLEMU_SCHED", "lazy"}}, kVirtual, Knobs{{"ACLEMU_SCHED", "random:4"}}}) {
    SCOPED_TRACE(knobs[0].second);
    InProcess(knobs, [] {
      Session acl;
      std::atomic<int> calls{0};
      aclrtStream other = nullptr;
      aclrtEvent event = nullptr;
      ASSERT_EQ(aclrtCreateStream(&other), ACL_SUCCESS);
      ASSERT_EQ(aclrtCreateEvent(&event), ACL_SUCCESS);
      ASSERT_EQ(aclrtSubscribeReport(Self(), acl.stream), ACL_SUCCESS);
      ASSERT_EQ(aclrtMemcpyAsync(acl.device, kBytes, acl.pinned, kBytes, kH2D, other), ACL_SUCCESS);
      ASSERT_EQ(aclrtRecordEvent(event, other), ACL_SUCCESS);
      ASSERT_EQ(aclrtStreamWaitEvent(acl.stream, event), ACL_SUCCESS);
      ASSERT_EQ(aclrtLaunchCallback(Count, &calls, ACL_CALLBACK_BLOCK, acl.stream), ACL_SUCCESS);
      ASSERT_EQ(aclrtProcessReport(20'000), ACL_SUCCESS);
      EXPECT_EQ(calls.load(), 1);
      ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
      ASSERT_EQ(aclrtUnSubscribeReport(Self(), acl.stream), ACL_SUCCESS);
      ASSERT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
      ASSERT_EQ(aclrtDestroyStream(other), ACL_SUCCESS);
    });
  }
}

TEST(Callback, AThreadThatAlwaysListensServesVirtualAndLazyStreams) {
  for (const Knobs& knobs : {Knobs{{"ACLEMU_SCHED", "lazy"}}, kVirtual}) {
    SCOPED_TRACE(knobs[0].second);
    InProcess(knobs, [] {
      Session acl;
      std::atomic<int> calls{0};
      std::atomic<uint64_t> id{0};
      std::atomic<int> go{0};
      std::thread fetcher([&] {
        id = Self();
        id.notify_all();
        go.wait(0);
        while (calls < 10) EXPECT_EQ(aclrtProcessReport(-1), ACL_SUCCESS);
      });
      id.wait(0);
      ASSERT_EQ(aclrtSubscribeReport(id, acl.stream), ACL_SUCCESS);
      go = 1;
      go.notify_all();
      for (int i = 0; i < 10; ++i) {
        ASSERT_EQ(aclrtMemcpyAsync(acl.device, kBytes, acl.pinned, kBytes, kH2D, acl.stream), ACL_SUCCESS);
        ASSERT_EQ(
            aclrtLaunchCallback(Count, &calls, i % 2 == 0 ? ACL_CALLBACK_BLOCK : ACL_CALLBACK_NO_BLOCK, acl.stream),
            ACL_SUCCESS);
        if (i == 4) {
          ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
        }
      }
      // Nobody but the listening thread makes the last ones come.
      fetcher.join();
      EXPECT_EQ(calls.load(), 10);
      ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
      ASSERT_EQ(aclrtUnSubscribeReport(id, acl.stream), ACL_SUCCESS);
    });
  }
}

TEST(LostDevice, EndsABlockedCallbackAndLetsMemoryGo) {
  InProcess({}, [] {
    static Session* const acl = new Session;  // its streams cannot be destroyed any more
    std::atomic<int> calls{0};
    ASSERT_EQ(aclrtSubscribeReport(Self(), acl->stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtLaunchCallback(Count, &calls, ACL_CALLBACK_BLOCK, acl->stream), ACL_SUCCESS);
    ASSERT_EQ(Batch(*acl, 4).Async(acl->stream), ACL_SUCCESS);
    ASSERT_EQ(Inject("dev0@t0=lost"), 0);
    EXPECT_EQ(aclrtSynchronizeStream(acl->stream), ACL_ERROR_RT_LOST_HEARTBEAT);
    EXPECT_EQ(Batch(*acl, 4).Async(acl->stream), ACL_ERROR_RT_LOST_HEARTBEAT);
    EXPECT_EQ(aclrtFree(acl->device), ACL_SUCCESS);
    EXPECT_EQ(aclrtFreeHost(acl->pinned), ACL_SUCCESS);
    EXPECT_EQ(calls.load(), 0);
  });
}

TEST(Trace, NamesTheBytesAndStreamOfABatch) {
  // A name that survives into the fresh process, which runs the test from its begin again.
  setenv("MC_TEST_TRACE_PATH", (testing::TempDir() + "aclemu_trace_" + std::to_string(getpid())).c_str(), 0);
  std::string path = getenv("MC_TEST_TRACE_PATH");
  InProcess({{"ACLEMU_TRACE", path}}, [] {
    Session acl;
    ASSERT_EQ(Batch(acl, 4).Async(acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
  });
  std::string text;
  FILE* file = fopen(path.c_str(), "re");
  ASSERT_NE(file, nullptr);
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), file)) > 0;) text.append(buffer, n);
  fclose(file);
  remove(path.c_str());
  size_t line = text.find("aclrtMemcpyBatchAsync");
  ASSERT_NE(line, std::string::npos);
  EXPECT_NE(text.substr(line, text.find('\n', line) - line).find("16384"), std::string::npos) << text;
}

}  // namespace
