// Scheduling modes, the time model and the watchdog.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "test/emulator_session.h"

namespace {

using std::chrono::steady_clock;

constexpr auto kH2D = ACL_MEMCPY_HOST_TO_DEVICE;
constexpr auto kD2H = ACL_MEMCPY_DEVICE_TO_HOST;

uint64_t NowNs() {
  return SIDE(aclemu_model_now_ns)();
}

// Nanoseconds of model time that the work takes.
template <typename Work>
uint64_t Took(Work&& work) {
  uint64_t begin = NowNs();
  work();
  return NowNs() - begin;
}

struct Blocks {
  void *device = nullptr, *pinned = nullptr;
  aclrtStream stream = nullptr;
  explicit Blocks(int id, size_t bytes) {
    EXPECT_EQ(aclrtSetDevice(id), ACL_SUCCESS);
    EXPECT_EQ(aclrtMallocAlign32(&device, bytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    EXPECT_EQ(aclrtMallocHost(&pinned, bytes), ACL_SUCCESS);
    EXPECT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
  }
  aclError In(size_t bytes) const { return aclrtMemcpyAsync(device, bytes, pinned, bytes, kH2D, stream); }
  aclError Out(size_t bytes) const { return aclrtMemcpyAsync(pinned, bytes, device, bytes, kD2H, stream); }
};

// ---- manual ----

TEST(Manual, TasksRunOnlyWhenStepped) {
  InProcess({{"ACLEMU_SCHED", "manual"}}, [] {
    Session acl;
    auto step = SIDE(aclemu_step);
    aclrtStream other = nullptr;
    aclrtEvent event = nullptr;
    ASSERT_EQ(aclrtCreateStream(&other), ACL_SUCCESS);
    ASSERT_EQ(aclrtCreateEvent(&event), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemsetAsync(acl.device, 64, 1, 64, other), ACL_SUCCESS);
    ASSERT_EQ(aclrtRecordEvent(event, other), ACL_SUCCESS);
    ASSERT_EQ(aclrtStreamWaitEvent(acl.stream, event), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemsetAsync(acl.device, 64, 2, 64, acl.stream), ACL_SUCCESS);
    aclrtStreamStatus status;
    ASSERT_EQ(aclrtStreamQuery(other, &status), ACL_SUCCESS);
    EXPECT_EQ(status, ACL_STREAM_STATUS_NOT_READY);
    EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(other, 5), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
    EXPECT_EQ(acl.DeviceByte(0), 0xA5);
    EXPECT_EQ(step(acl.stream), 0);  // waits for the event
    EXPECT_EQ(step(other), 1);
    EXPECT_EQ(acl.DeviceByte(0), 1);
    EXPECT_EQ(step(nullptr), 1);  // the record; the first stream cannot run
    EXPECT_EQ(step(acl.stream), 1);
    EXPECT_EQ(acl.DeviceByte(0), 1);
    EXPECT_EQ(step(nullptr), 1);
    EXPECT_EQ(acl.DeviceByte(0), 2);
    EXPECT_EQ(step(nullptr), 0);
    EXPECT_EQ(step(&status), -1);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
    EXPECT_EQ(aclrtDestroyStream(other), ACL_SUCCESS);
  });
  InProcess({}, [] {
    Session acl;
    EXPECT_EQ(SIDE(aclemu_step)(nullptr), -1);
  });
}

TEST(Manual, AnotherThreadMayStepForAWaitingOne) {
  InProcess({{"ACLEMU_SCHED", "manual"}}, [] {
    Session acl;
    ASSERT_EQ(aclrtMemsetAsync(acl.device, 64, 7, 64, acl.stream), ACL_SUCCESS);
    std::thread waiter([&] {
      ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
      EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
      EXPECT_EQ(acl.DeviceByte(0), 7);
    });
    EXPECT_EQ(SIDE(aclemu_step)(acl.stream), 1);
    waiter.join();
  });
}

// ---- random ----

TEST(Random, OrderBetweenStreamsVariesAndResultsDoNot) {
  for (const char* sched : {"random:1", "random:7", "random:12345"}) {
    InProcess({{"ACLEMU_SCHED", sched}}, [] {
      Session acl;
      aclrtStream other = nullptr;
      ASSERT_EQ(aclrtCreateStream(&other), ACL_SUCCESS);
      aclrtEvent first = nullptr, second = nullptr;
      ASSERT_EQ(aclrtCreateEvent(&first), ACL_SUCCESS);
      ASSERT_EQ(aclrtCreateEvent(&second), ACL_SUCCESS);
      int first_won = 0, second_won = 0;
      for (int round = 0; round < 100; ++round) {
        ASSERT_EQ(aclrtRecordEvent(first, acl.stream), ACL_SUCCESS);
        ASSERT_EQ(aclrtRecordEvent(second, other), ACL_SUCCESS);
        ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
        ASSERT_EQ(aclrtSynchronizeStream(other), ACL_SUCCESS);
        float ms = 0;
        aclError code = aclrtEventElapsedTime(&ms, first, second);
        ASSERT_TRUE(code == ACL_SUCCESS || code == ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL);
        (code == ACL_SUCCESS ? first_won : second_won)++;
      }
      for (aclrtEvent event : {first, second}) EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
      EXPECT_GT(first_won, 0);
      EXPECT_GT(second_won, 0);
      // Ordered by an event, the result is certain.
      aclrtEvent event = nullptr;
      ASSERT_EQ(aclrtCreateEventExWithFlag(&event, ACL_EVENT_SYNC), ACL_SUCCESS);
      for (int round = 0; round < 50; ++round) {
        ASSERT_EQ(aclrtMemsetAsync(acl.device, 64, round, 64, acl.stream), ACL_SUCCESS);
        ASSERT_EQ(aclrtRecordEvent(event, acl.stream), ACL_SUCCESS);
        ASSERT_EQ(aclrtStreamWaitEvent(other, event), ACL_SUCCESS);
        ASSERT_EQ(aclrtMemcpyAsync(acl.pinned, 64, acl.device, 64, kD2H, other), ACL_SUCCESS);
        ASSERT_EQ(aclrtSynchronizeStream(other), ACL_SUCCESS);
        ASSERT_EQ(*acl.host(), round);
      }
      EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
      EXPECT_EQ(aclrtDestroyStream(other), ACL_SUCCESS);
    });
  }
}

TEST(Random, PollingEnds) {
  InProcess({{"ACLEMU_SCHED", "random:3"}}, [] {
    Session acl;
    for (int round = 0; round < 50; ++round) {
      ASSERT_EQ(aclrtMemsetAsync(acl.device, 64, round, 64, acl.stream), ACL_SUCCESS);
      aclrtStreamStatus status = ACL_STREAM_STATUS_NOT_READY;
      while (status != ACL_STREAM_STATUS_COMPLETE) ASSERT_EQ(aclrtStreamQuery(acl.stream, &status), ACL_SUCCESS);
      EXPECT_EQ(acl.DeviceByte(0), round);
    }
  });
}

// ---- the model, in virtual time: exact ----

const Knobs kVirtual = {{"ACLEMU_TIME", "virtual"},
                        {"ACLEMU_MODEL", "bench,submit_us=3,latency_us=8,sync_us=5,sync_copy_us=15"}};

TEST(Virtual, CostsOfCallsAreThoseOfTheModel) {
  InProcess(kVirtual, [] {
    Session acl;
    auto param = SIDE(aclemu_model_param);
    void* ptr = nullptr;
    EXPECT_EQ(Took([&] { aclrtMalloc(&ptr, 4096, ACL_MEM_MALLOC_HUGE_FIRST); }), 1000 * param("malloc_small_us"));
    EXPECT_EQ(Took([&] { aclrtFree(ptr); }), 1000 * param("free_small_us"));
    EXPECT_EQ(Took([&] { aclrtMallocAlign32(&ptr, 40 * kMiB, ACL_MEM_MALLOC_HUGE_FIRST); }),
              1000 * (param("malloc_large_us") + 20 * param("malloc_page_us")));
    EXPECT_EQ(Took([&] { aclrtFree(ptr); }), 1000 * param("free_large_us"));
    EXPECT_EQ(Took([&] { aclrtMallocHost(&ptr, 2 * kMiB); }), 1000 * param("pin_2m_us"));
    EXPECT_EQ(aclrtFreeHost(ptr), ACL_SUCCESS);
    EXPECT_EQ(Took([&] { aclrtSetDevice(0); }), 1000 * param("set_repeat_us"));
    EXPECT_EQ(Took([&] { aclrtMemcpy(acl.device, 40000, acl.pinned, 40000, kH2D); }), 15'000 + 20'000);
    static uint8_t plain[40000];
    EXPECT_EQ(Took([&] { aclrtMemcpy(acl.device, 12000, plain, 12000, kH2D); }), 15'000 + 10'000);
    EXPECT_EQ(Took([&] { aclrtMemcpyAsync(acl.device, 64, acl.pinned, 64, kH2D, acl.stream); }), 3'000);
    EXPECT_EQ(Took([&] { aclrtSynchronizeStream(acl.stream); }), 8'000 + 32 + 5'000);
    EXPECT_LT(param("no_such"), 0);
  });
}

TEST(Virtual, LinksAreIndependentAndCopiesOfOneLinkFollowEachOther) {
  InProcess(kVirtual, [] {
    ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
    constexpr size_t kSize = 2 * kMiB;
    constexpr uint64_t kCopy = kSize / 2;  // ns at 2 GB/s
    Blocks zero(0, kSize), more(0, kSize), one(1, kSize);
    auto sync = [](const Blocks& b) { EXPECT_EQ(aclrtSynchronizeStream(b.stream), ACL_SUCCESS); };
    auto both_ways = [&] {
      ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
      ASSERT_EQ(zero.In(kSize), ACL_SUCCESS);
      ASSERT_EQ(more.Out(kSize), ACL_SUCCESS);
      sync(zero);
      sync(more);
    };
    EXPECT_LT(Took(both_ways), kCopy * 11 / 10);
    auto two_devices = [&] {
      ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
      ASSERT_EQ(zero.In(kSize), ACL_SUCCESS);
      ASSERT_EQ(aclrtSetDevice(1), ACL_SUCCESS);
      ASSERT_EQ(one.In(kSize), ACL_SUCCESS);
      sync(zero);
      sync(one);
    };
    EXPECT_LT(Took(two_devices), kCopy * 11 / 10);
    auto one_way = [&] {
      ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
      ASSERT_EQ(zero.In(kSize), ACL_SUCCESS);
      ASSERT_EQ(more.In(kSize), ACL_SUCCESS);
      sync(more);
      sync(zero);
    };
    uint64_t took = Took(one_way);
    EXPECT_GE(took, 2 * kCopy);
    EXPECT_LT(took, kCopy * 22 / 10);
    // What was submitted while the link was idle does not queue behind what comes later, whoever is waited for first.
    ASSERT_EQ(zero.In(kSize), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemset(more.device, 64, 1, 64), ACL_SUCCESS);
    ASSERT_EQ(more.In(kSize), ACL_SUCCESS);
    sync(more);
    EXPECT_LT(Took([&] { sync(zero); }), 10'000u);
  });
}

TEST(Virtual, EventsCarryModelTimes) {
  InProcess(kVirtual, [] {
    Session acl;
    aclrtStream other = nullptr;
    aclrtEvent begin = nullptr, end = nullptr;
    ASSERT_EQ(aclrtCreateStream(&other), ACL_SUCCESS);
    ASSERT_EQ(aclrtCreateEvent(&begin), ACL_SUCCESS);
    ASSERT_EQ(aclrtCreateEvent(&end), ACL_SUCCESS);
    ASSERT_EQ(aclrtRecordEvent(begin, acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemcpyAsync(acl.device, kBytes, acl.pinned, kBytes, kH2D, acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtRecordEvent(end, acl.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtStreamWaitEvent(other, end), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemcpyAsync(acl.pinned, kBytes, acl.device, kBytes, kD2H, other), ACL_SUCCESS);
    aclrtEventRecordedStatus status;
    ASSERT_EQ(aclrtQueryEventStatus(end, &status), ACL_SUCCESS);
    EXPECT_EQ(status, ACL_EVENT_RECORDED_STATUS_NOT_READY);
    EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(other, 1000), ACL_SUCCESS);
    ASSERT_EQ(aclrtQueryEventStatus(end, &status), ACL_SUCCESS);
    EXPECT_EQ(status, ACL_EVENT_RECORDED_STATUS_COMPLETE);
    float ms = 0;
    ASSERT_EQ(aclrtEventElapsedTime(&ms, begin, end), ACL_SUCCESS);
    // Submit after the first record, latency, 32768 ns of copy, the second record.
    EXPECT_NEAR(ms, 0.0448, 0.0015);
    for (aclrtEvent event : {begin, end}) EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
    EXPECT_EQ(aclrtDestroyStream(other), ACL_SUCCESS);
  });
}

TEST(Virtual, TimeoutsAndPollingUseTheModelClock) {
  InProcess(kVirtual, [] {
    ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
    constexpr size_t kSize = 8 * kMiB;  // 4.2 ms
    Blocks blocks(0, kSize);
    ASSERT_EQ(blocks.In(kSize), ACL_SUCCESS);
    EXPECT_EQ(Took([&] { EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(blocks.stream, 2), 507046); }), 2'000'000u);
    EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(blocks.stream, 3), ACL_SUCCESS);
    ASSERT_EQ(blocks.In(64 << 10), ACL_SUCCESS);
    int polls = 0;
    aclrtStreamStatus status = ACL_STREAM_STATUS_NOT_READY;
    for (; status != ACL_STREAM_STATUS_COMPLETE; ++polls) {
      ASSERT_EQ(aclrtStreamQuery(blocks.stream, &status), ACL_SUCCESS);
    }
    EXPECT_GT(polls, 30);
    // A stream that waits for nobody times out at once.
    aclrtEvent never = nullptr;
    ASSERT_EQ(aclrtCreateEvent(&never), ACL_SUCCESS);
    ASSERT_EQ(aclrtStreamWaitEvent(blocks.stream, never), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(blocks.stream, 3'600'000), 507046);
    EXPECT_EQ(aclrtStreamAbort(blocks.stream), ACL_SUCCESS);
  });
}

TEST(Virtual, HostBusIsSharedInTheProfileA2) {
  auto copies = [](uint64_t least_of_alone, uint64_t most_of_alone) {
    return [=] {
      ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
      constexpr size_t kSize = 2 * kMiB;
      Blocks zero(0, kSize), one(1, kSize);
      auto both = [&] {
        ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
        ASSERT_EQ(zero.In(kSize), ACL_SUCCESS);
        ASSERT_EQ(aclrtSetDevice(1), ACL_SUCCESS);
        ASSERT_EQ(one.In(kSize), ACL_SUCCESS);
        ASSERT_EQ(aclrtSynchronizeStream(zero.stream), ACL_SUCCESS);
        ASSERT_EQ(aclrtSynchronizeStream(one.stream), ACL_SUCCESS);
      };
      double alone = kSize / SIDE(aclemu_model_param)("h2d_gbps");
      uint64_t took = Took(both);
      EXPECT_GE(static_cast<double>(took) * 100, alone * static_cast<double>(least_of_alone));
      EXPECT_LE(static_cast<double>(took) * 100, alone * static_cast<double>(most_of_alone));
    };
  };
  Knobs a2 = {{"ACLEMU_TIME", "virtual"}, {"ACLEMU_MODEL", "a2,set_first_us=0,set_other_us=0"}};
  Knobs free = {{"ACLEMU_TIME", "virtual"}, {"ACLEMU_MODEL", "a2,set_first_us=0,set_other_us=0,host_bus_gbps=0"}};
  InProcess(a2, copies(115, 150));
  InProcess(free, copies(100, 130));
}

// ---- the model in real time ----

TEST(Timed, DataIsThereWhenSynchronizeReturnsAndNotSooner) {
  InProcess({{"ACLEMU_SCHED", "timed"}, {"ACLEMU_MODEL", "bench,h2d_gbps=0.05,d2h_gbps=0.05"}}, [] {
    ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
    constexpr size_t kSize = kMiB;  // 21 ms
    Blocks blocks(0, kSize);
    auto begin = steady_clock::now();
    memset(blocks.pinned, 0x5A, kSize);
    ASSERT_EQ(blocks.In(kSize), ACL_SUCCESS);
    ASSERT_EQ(aclrtSynchronizeStream(blocks.stream), ACL_SUCCESS);
    EXPECT_GE(steady_clock::now() - begin, std::chrono::milliseconds(20));
    uint8_t last = 0;
    ASSERT_EQ(SIDE(aclemu_peek)(static_cast<uint8_t*>(blocks.device) + kSize - 1, &last, 1), 0);
    EXPECT_EQ(last, 0x5A);
    memset(blocks.pinned, 0, kSize);
    begin = steady_clock::now();
    ASSERT_EQ(aclrtMemcpy(blocks.pinned, kSize, blocks.device, kSize, kD2H), ACL_SUCCESS);
    EXPECT_GE(steady_clock::now() - begin, std::chrono::milliseconds(20));
    EXPECT_EQ(static_cast<uint8_t*>(blocks.pinned)[kSize - 1], 0x5A);
  });
}

// The emulator's own work hides in the modelled time: the model's clock says how long it took, not the wall.
TEST(Timed, ChunksOfOneStreamFollowEachOtherWithoutGaps) {
  InProcess({{"ACLEMU_SCHED", "timed"}, {"ACLEMU_MODEL", "bench,h2d_gbps=0.5"}}, [] {
    ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
    constexpr size_t kSize = kMiB;
    constexpr int kChunks = 16;
    Blocks blocks(0, kSize);
    aclrtEvent gate = nullptr, begin = nullptr, end = nullptr;
    for (aclrtEvent* event : {&gate, &begin, &end}) ASSERT_EQ(aclrtCreateEvent(event), ACL_SUCCESS);
    // All is queued before the first chunk may run, so that a slow submit is no gap.
    ASSERT_EQ(aclrtStreamWaitEvent(blocks.stream, gate), ACL_SUCCESS);
    ASSERT_EQ(aclrtRecordEvent(begin, blocks.stream), ACL_SUCCESS);
    for (int i = 0; i < kChunks; ++i) ASSERT_EQ(blocks.In(kSize), ACL_SUCCESS);
    ASSERT_EQ(aclrtRecordEvent(end, blocks.stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtRecordEvent(gate, nullptr), ACL_SUCCESS);
    ASSERT_EQ(aclrtSynchronizeStream(blocks.stream), ACL_SUCCESS);
    float ms = 0;
    ASSERT_EQ(aclrtEventElapsedTime(&ms, begin, end), ACL_SUCCESS);
    double model_ms = kChunks * kSize / 0.5e6;
    EXPECT_GE(ms, model_ms);
    EXPECT_LE(ms, model_ms * 1.05);
  });
}

TEST(Timed, AbortInterruptsALongCopy) {
  InProcess({{"ACLEMU_SCHED", "timed"}, {"ACLEMU_MODEL", "bench,h2d_gbps=0.0001"}}, [] {
    ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
    Blocks blocks(0, kMiB);  // 10 s
    ASSERT_EQ(blocks.In(kMiB), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(blocks.stream, 20), 507046);
    auto begin = steady_clock::now();
    EXPECT_EQ(aclrtStreamAbort(blocks.stream), ACL_SUCCESS);
    EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(5));
    EXPECT_EQ(aclrtSynchronizeStream(blocks.stream), ACL_SUCCESS);
  });
}

// ---- knobs and watchdog ----

TEST(ModeKnobsDeathTest, WrongOnesEndTheProcess) {
  auto init = [] { aclInit(nullptr); };
  InProcess({{"ACLEMU_SCHED", "random"}}, init, 24, "random:SEED");
  InProcess({{"ACLEMU_SCHED", "random:x"}}, init, 24, "no seed");
  InProcess({{"ACLEMU_TIME", "virtual"}, {"ACLEMU_SCHED", "lazy"}}, init, 24, "must be eager or timed");
  InProcess({{"ACLEMU_MODEL", "a4"}}, init, 24, "a2|a3|bench");
  InProcess({{"ACLEMU_MODEL", "a2,h2d=3"}}, init, 24, "unknown model parameter 'h2d'");
  InProcess({{"ACLEMU_MODEL", "h2d_gbps=0"}}, init, 24, "bad value");
  InProcess({{"ACLEMU_WATCHDOG", "30"}}, init, 24, "no time");
}

TEST(WatchdogDeathTest, AWaitThatCannotEndIsReportedAndAborted) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto hang = [](const char* sched, const char* rule, auto&& wait) {
    setenv("ACLEMU_WATCHDOG", "200ms", 1);
    setenv("ACLEMU_SCHED", sched, 1);
    setenv("ACLEMU_FAULT", rule, 1);
    Session acl;
    aclrtMemcpyAsync(acl.device, 64, acl.pinned, 64, kH2D, acl.stream);
    aclrtMemsetAsync(acl.device, 64, 1, 64, acl.stream);
    wait(acl);
  };
  auto synchronize = [](Session& acl) { aclrtSynchronizeStream(acl.stream); };
  auto destroy = [](Session& acl) { aclrtDestroyStream(acl.stream); };
  constexpr const char* kDump = "stream 1 of device 0: 0 of 2 tasks done, running: copy, next: set by aclrtMemsetAsync";
  EXPECT_DEATH(hang("eager", "H2D@1=hang", synchronize), kDump);
  EXPECT_DEATH(hang("lazy", "H2D@1=hang", destroy), "watchdog");
  EXPECT_DEATH(hang("eager", "aclrtMemcpyAsync@1=hang", synchronize), "watchdog");
  EXPECT_DEATH(hang("manual", "", synchronize), "stream 1 of device 0: 0 of 2 tasks done, next: copy");
}

TEST(Watchdog, WaitsThatMakeProgressOrHaveATimeoutAreLeftAlone) {
  InProcess({{"ACLEMU_WATCHDOG", "300ms"}}, [] {
    Session acl;
    ASSERT_EQ(SIDE(aclemu_inject)("H2D@every:1=delay:50"), 0);
    for (int i = 0; i < 10; ++i) {
      ASSERT_EQ(aclrtMemcpyAsync(acl.device, 64, acl.pinned, 64, kH2D, acl.stream), ACL_SUCCESS);
    }
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    aclrtEvent never = nullptr;
    ASSERT_EQ(aclrtCreateEvent(&never), ACL_SUCCESS);
    ASSERT_EQ(aclrtStreamWaitEvent(acl.stream, never), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(acl.stream, 400), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
    EXPECT_EQ(aclrtStreamAbort(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtDestroyEvent(never), ACL_SUCCESS);
  });
  InProcess({{"ACLEMU_WATCHDOG", "0"}}, [] { Session acl; });
}

}  // namespace
