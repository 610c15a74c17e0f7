// Injected faults: triggers, filters, effects, stages, and a device that is lost.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "test/emulator_session.h"

namespace {

constexpr auto kH2D = ACL_MEMCPY_HOST_TO_DEVICE;
constexpr auto kD2H = ACL_MEMCPY_DEVICE_TO_HOST;

int Inject(const char* rules) {
  return SIDE(aclemu_inject)(rules);
}

uint64_t Calls(const char* name) {
  return SIDE(aclemu_calls)(name);
}

// The results of calls of aclrtMemset, which nothing else in these tests uses.
std::vector<aclError> Fill(const Session& acl, int calls, size_t bytes = 64) {
  std::vector<aclError> codes;
  for (int i = 0; i < calls; ++i) codes.push_back(aclrtMemset(acl.device, bytes, i, bytes));
  return codes;
}

TEST(FaultTriggers, NthEveryTimesAndTime) {
  InProcess({}, [] {
    Session acl;
    ASSERT_EQ(Inject("aclrtMemset@2:x2=507899"), 0);
    EXPECT_EQ(Fill(acl, 5), (std::vector<aclError>{0, 507899, 507899, 0, 0}));
    ASSERT_EQ(Inject(""), 0);
    ASSERT_EQ(Inject("aclrtMemset@every:2=507899"), 0);
    EXPECT_EQ(Fill(acl, 5), (std::vector<aclError>{0, 507899, 0, 507899, 0}));
    ASSERT_EQ(Inject(""), 0);
    ASSERT_EQ(Inject("aclrtMemset@every:2:x1=507899"), 0);
    EXPECT_EQ(Fill(acl, 5), (std::vector<aclError>{0, 507899, 0, 0, 0}));
    ASSERT_EQ(Inject(""), 0);
    ASSERT_EQ(Inject("aclrtMemset@t3600000=507899"), 0);
    EXPECT_EQ(Fill(acl, 2), (std::vector<aclError>{0, 0}));
    ASSERT_EQ(Inject("aclrtMemset@t1=507899"), 0);
    aclError code = ACL_SUCCESS;
    while (code == ACL_SUCCESS) code = Fill(acl, 1)[0];
    EXPECT_EQ(code, 507899);
    EXPECT_EQ(Fill(acl, 2), (std::vector<aclError>{507899, 507899}));
    ASSERT_EQ(Inject(""), 0);
  });
}

TEST(FaultTriggers, ProbabilityFollowsTheSeed) {
  InProcess({}, [] {
    Session acl;
    auto run = [&](const char* rule) {
      EXPECT_EQ(Inject(""), 0);
      EXPECT_EQ(Inject(rule), 0);
      return Fill(acl, 200);
    };
    auto first = run("aclrtMemset@%0.5:seed=1=507899");
    EXPECT_EQ(run("aclrtMemset@%0.5:seed=1=507899"), first);
    EXPECT_NE(run("aclrtMemset@%0.5:seed=2=507899"), first);
    auto failed = std::count(first.begin(), first.end(), 507899);
    EXPECT_GT(failed, 50);
    EXPECT_LT(failed, 150);
    EXPECT_EQ(Inject(""), 0);
  });
}

TEST(FaultTargets, PatternsAndClasses) {
  InProcess({}, [] {
    Session acl;
    ASSERT_EQ(Inject("aclrtMem[cs]*@1=507899"), 0);
    EXPECT_EQ(aclrtMemset(acl.device, 64, 0, 64), 507899);
    EXPECT_EQ(aclrtMemset(acl.device, 64, 0, 64), ACL_SUCCESS);
    ASSERT_EQ(Inject("sync@2=507046"), 0);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeDevice(), 507046);
    ASSERT_EQ(Inject("D2H@1=507899; any@4=507000"), 0);
    EXPECT_EQ(aclrtMemcpy(acl.device, 64, acl.pinned, 64, kH2D), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemcpy(acl.pinned, 64, acl.device, 64, kD2H), 507899);
    uint32_t count = 0;
    EXPECT_EQ(aclrtGetDeviceCount(&count), ACL_SUCCESS);
    EXPECT_EQ(aclrtGetDeviceCount(&count), 507000);
    EXPECT_EQ(aclrtGetDeviceCount(&count), ACL_SUCCESS);
  });
}

TEST(FaultTargets, FiltersByDeviceSizeStreamAndThread) {
  InProcess({}, [] {
    Session acl;
    ASSERT_EQ(Inject("aclrtMemset[min=1K,max=2K]@1=507899"), 0);
    EXPECT_EQ(Fill(acl, 1, 1023)[0], ACL_SUCCESS);
    EXPECT_EQ(Fill(acl, 1, 2049)[0], ACL_SUCCESS);
    EXPECT_EQ(Fill(acl, 1, 1024)[0], 507899);
    ASSERT_EQ(Inject("aclrtCreateEvent[dev=1]@1=207007"), 0);
    aclrtEvent event = nullptr;
    EXPECT_EQ(aclrtCreateEvent(&event), ACL_SUCCESS);
    EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
    ASSERT_EQ(aclrtSetDevice(1), ACL_SUCCESS);
    EXPECT_EQ(aclrtCreateEvent(&event), 207007);
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    // The session's stream is the first one.
    aclrtStream second = nullptr;
    ASSERT_EQ(aclrtCreateStream(&second), ACL_SUCCESS);
    ASSERT_EQ(Inject("H2D[stream=2]@1=507001"), 0);
    for (aclrtStream stream : {acl.stream, second}) {
      ASSERT_EQ(aclrtMemcpyAsync(acl.device, 64, acl.pinned, 64, kH2D, stream), ACL_SUCCESS);
      EXPECT_EQ(aclrtSynchronizeStream(stream), stream == second ? 507001 : ACL_SUCCESS);
    }
    ASSERT_EQ(aclrtDestroyStream(second), ACL_SUCCESS);
    ASSERT_EQ(Inject("aclrtMemset[thread=2]@1=507899"), 0);
    EXPECT_EQ(Fill(acl, 1)[0], ACL_SUCCESS);
    std::thread([&] {
      ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
      EXPECT_EQ(Fill(acl, 1)[0], 507899);
    }).join();
  });
}

TEST(FaultStages, AsynchronousCopiesFailAtTheCallOrWhenTheyRun) {
  InProcess({}, [] {
    Session acl;
    auto copy = [&] { return aclrtMemcpyAsync(acl.device, 64, acl.pinned, 64, kH2D, acl.stream); };
    ASSERT_EQ(Inject("aclrtMemcpyAsync@1=507899"), 0);
    EXPECT_EQ(copy(), 507899);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    ASSERT_EQ(Inject("aclrtMemcpyAsync@1:exec=507001"), 0);
    EXPECT_EQ(copy(), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), 507001);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    ASSERT_EQ(Inject("H2D@1:call=507899; H2D@1:exec=507001"), 0);
    EXPECT_EQ(copy(), 507899);
    EXPECT_EQ(copy(), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), 507001);
    EXPECT_EQ(copy(), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
  });
}

TEST(FaultEffects, PartialMovesAPrefixAndFails) {
  InProcess({}, [] {
    Session acl;
    memset(acl.pinned, 0x11, 256);
    ASSERT_EQ(Inject("H2D@1=partial; H2D@2=partial,507052"), 0);
    EXPECT_EQ(aclrtMemcpy(acl.device, 128, acl.pinned, 128, kH2D), 507899);
    EXPECT_EQ(acl.DeviceByte(63), 0x11);
    EXPECT_EQ(acl.DeviceByte(64), 0xA5);
    ASSERT_EQ(aclrtMemcpyAsync(acl.device, 256, acl.pinned, 256, kH2D, acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), 507052);
    EXPECT_EQ(acl.DeviceByte(127), 0x11);
    EXPECT_EQ(acl.DeviceByte(128), 0xA5);
    ASSERT_EQ(Inject("aclrtMemcpyAsync@1=partial"), 0);
    ASSERT_EQ(aclrtMemcpyAsync(acl.device, 256, acl.pinned, 256, kH2D, acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), 507001);
  });
}

TEST(FaultEffects, CorruptChangesBytesAndSucceeds) {
  InProcess({}, [] {
    Session acl;
    memset(acl.pinned, 0x0F, kBytes);
    ASSERT_EQ(Inject("H2D@1=corrupt; D2H@1=corrupt"), 0);
    ASSERT_EQ(aclrtMemcpy(acl.device, kBytes, acl.pinned, kBytes, kH2D), ACL_SUCCESS);
    EXPECT_EQ(acl.DeviceByte(0), 0xF0);
    EXPECT_EQ(acl.DeviceByte(1), 0x0F);
    EXPECT_EQ(acl.DeviceByte(kBytes / 2), 0xF0);
    EXPECT_EQ(acl.DeviceByte(kBytes - 1), 0xF0);
    std::vector<uint8_t> plain(kBytes);
    ASSERT_EQ(aclrtMemcpy(plain.data(), kBytes, acl.device, kBytes, kD2H), ACL_SUCCESS);
    EXPECT_EQ(plain[0], 0x0F);
  });
}

TEST(FaultEffects, DelayAndSlowTakeTheirTime) {
  InProcess({}, [] {
    Session acl;
    auto begin = std::chrono::steady_clock::now();
    auto passed = [&] { return std::chrono::steady_clock::now() - begin; };
    ASSERT_EQ(Inject("aclrtMemset@1=delay:30; aclrtMemset@2=delay:1,507899; H2D@1=delay:50"), 0);
    EXPECT_EQ(Fill(acl, 2), (std::vector<aclError>{0, 507899}));
    EXPECT_GE(passed(), std::chrono::milliseconds(31));
    begin = std::chrono::steady_clock::now();
    ASSERT_EQ(aclrtMemcpyAsync(acl.device, 64, acl.pinned, 64, kH2D, acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(acl.stream, 1), 507046);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_GE(passed(), std::chrono::milliseconds(50));
    EXPECT_EQ(acl.DeviceByte(0), *acl.host());
  });
  InProcess({{"ACLEMU_TIME", "virtual"}, {"ACLEMU_MODEL", "bench"}}, [] {
    Session acl;
    auto now = SIDE(aclemu_model_now_ns);
    auto took = [&] {
      uint64_t begin = now();
      EXPECT_EQ(aclrtMemcpy(acl.device, kBytes, acl.pinned, kBytes, kH2D), ACL_SUCCESS);
      return now() - begin;
    };
    uint64_t once = took();
    ASSERT_EQ(Inject("H2D@1=slow:10"), 0);
    EXPECT_EQ(took() - once, 9 * kBytes / 2);
    // A delayed task does not move the program's clock before the program waits for it.
    ASSERT_EQ(Inject("H2D@1=delay:50"), 0);
    uint64_t begin = now();
    ASSERT_EQ(aclrtMemcpyAsync(acl.device, 64, acl.pinned, 64, kH2D, acl.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(acl.stream, 1), 507046);
    EXPECT_LT(now() - begin, 2'000'000u);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_GE(now() - begin, 50'000'000u);
    EXPECT_LT(now() - begin, 51'000'000u);
  });
}

TEST(FaultEffects, HangEndsByAbortOrByRemovingTheRule) {
  InProcess({}, [] {
    Session acl;
    auto copy = [&] { return aclrtMemcpyAsync(acl.device, 64, acl.pinned, 64, kH2D, acl.stream); };
    ASSERT_EQ(Inject("H2D@1=hang"), 0);
    ASSERT_EQ(copy(), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(acl.stream, 10), 507046);
    EXPECT_EQ(aclrtStreamAbort(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(acl.DeviceByte(0), 0xA5);
    ASSERT_EQ(copy(), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    ASSERT_EQ(Inject("H2D@1=hang"), 0);
    memset(acl.pinned, 0x3E, 64);
    ASSERT_EQ(copy(), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(acl.stream, 10), 507046);
    ASSERT_EQ(Inject(""), 0);
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    EXPECT_EQ(acl.DeviceByte(0), 0x3E);
  });
}

TEST(FaultEffects, CapacityShrinksAndGrows) {
  InProcess({{"ACLEMU_HBM", "64M"}}, [] {
    Session acl;
    auto take = [](uint64_t mib) {
      void* ptr = nullptr;
      aclError code = aclrtMallocAlign32(&ptr, mib * kMiB, ACL_MEM_MALLOC_HUGE_ONLY);
      return code == ACL_SUCCESS ? ptr : nullptr;
    };
    void* large = take(40);
    ASSERT_NE(large, nullptr);
    ASSERT_EQ(Inject("dev0@t0=capacity:16M"), 0);
    EXPECT_EQ(take(2), nullptr);
    EXPECT_LT(FreeBytes(), 2 * kMiB);
    EXPECT_EQ(aclrtFree(large), ACL_SUCCESS);
    EXPECT_EQ(take(16), nullptr);
    void* small = take(14);
    ASSERT_NE(small, nullptr);
    EXPECT_EQ(take(2), nullptr);
    ASSERT_EQ(Inject("dev0@t0=capacity:64M"), 0);
    large = take(40);
    EXPECT_NE(large, nullptr);
    EXPECT_EQ(aclrtFree(large), ACL_SUCCESS);
    EXPECT_EQ(aclrtFree(small), ACL_SUCCESS);
    ASSERT_EQ(Inject("aclrtMemset@2=capacity:4M"), 0);
    EXPECT_EQ(Fill(acl, 2), (std::vector<aclError>{0, 0}));
    EXPECT_EQ(take(8), nullptr);
  });
}

TEST(FaultLost, EverythingOfTheDeviceFailsAndMemoryCanBeFreed) {
  InProcess({{"ACLEMU_LEAK_FATAL", "1"}}, [] {
    Session other;  // on device 0
    ASSERT_EQ(aclrtSetDevice(1), ACL_SUCCESS);
    void *device = nullptr, *pinned = nullptr;
    aclrtStream stream = nullptr;
    aclrtEvent never = nullptr, after = nullptr;
    ASSERT_EQ(aclrtMalloc(&device, kBytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    ASSERT_EQ(aclrtMallocHost(&pinned, kBytes), ACL_SUCCESS);
    ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtCreateEvent(&never), ACL_SUCCESS);
    ASSERT_EQ(aclrtCreateEvent(&after), ACL_SUCCESS);
    ASSERT_EQ(aclrtStreamWaitEvent(stream, never), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemcpyAsync(device, 64, pinned, 64, kH2D, stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtRecordEvent(after, stream), ACL_SUCCESS);
    // The waiting synchronize is let go, whether it began before or after.
    std::thread waiter([&] {
      EXPECT_EQ(aclrtSetDevice(1), ACL_SUCCESS);
      EXPECT_EQ(aclrtSynchronizeStream(stream), 507010);
    });
    ASSERT_EQ(Inject("dev1@t20=lost"), 0);
    waiter.join();
    EXPECT_EQ(aclrtSynchronizeEvent(after), 507010);
    EXPECT_EQ(aclrtMemcpyAsync(device, 64, pinned, 64, kH2D, stream), 507010);
    EXPECT_EQ(aclrtMemcpy(device, 64, pinned, 64, kH2D), 507010);
    EXPECT_EQ(aclrtSynchronizeStream(stream), 507010);
    EXPECT_EQ(aclrtDestroyStream(stream), 507010);
    void* more = nullptr;
    EXPECT_EQ(aclrtMalloc(&more, 64, ACL_MEM_MALLOC_HUGE_FIRST), 507010);
    aclrtDeviceStatus status = ACL_RT_DEVICE_STATUS_NORMAL;
    EXPECT_EQ(aclrtQueryDeviceStatus(1, &status), ACL_SUCCESS);
    EXPECT_EQ(status, ACL_RT_DEVICE_STATUS_ABNORMAL);
    EXPECT_EQ(aclrtSetDevice(1), 507033);
    EXPECT_EQ(aclrtFree(device), ACL_SUCCESS);
    EXPECT_EQ(aclrtFreeHost(pinned), ACL_SUCCESS);
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemcpyAsync(other.device, 64, other.pinned, 64, kH2D, other.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(other.stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtQueryDeviceStatus(0, &status), ACL_SUCCESS);
    EXPECT_EQ(status, ACL_RT_DEVICE_STATUS_NORMAL);
  });
}

TEST(FaultLost, HappensAtAChosenCopyWithAChosenCode) {
  InProcess({}, [] {
    ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    void *device = nullptr, *pinned = nullptr;
    ASSERT_EQ(aclrtMalloc(&device, kBytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    ASSERT_EQ(aclrtMallocHost(&pinned, kBytes), ACL_SUCCESS);
    ASSERT_EQ(Inject("H2D@2=lost,507900"), 0);
    EXPECT_EQ(aclrtMemcpyAsync(device, 64, pinned, 64, kH2D, nullptr), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemcpyAsync(device, 64, pinned, 64, kH2D, nullptr), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(nullptr), 507900);
    EXPECT_EQ(aclrtSynchronizeStream(nullptr), 507900);
    EXPECT_EQ(aclrtFree(device), ACL_SUCCESS);
    EXPECT_EQ(aclrtFreeHost(pinned), ACL_SUCCESS);
  });
}

// What a fault matrix does: run once and count, then fail the last call.
TEST(FaultMatrix, CountedCallsGiveTheNumberOfTheLastOne) {
  InProcess({}, [] {
    Session acl;
    auto work = [&] {
      for (aclError code : Fill(acl, 3)) {
        if (code != ACL_SUCCESS) return code;
      }
      return aclrtMemcpy(acl.pinned, 64, acl.device, 64, kD2H);
    };
    uint64_t before = Calls("aclrtMemset"), all = Calls("any");
    ASSERT_EQ(work(), ACL_SUCCESS);
    uint64_t last = Calls("aclrtMemset") - before;
    EXPECT_EQ(last, 3u);
    EXPECT_EQ(Calls("any") - all, 4u);
    ASSERT_EQ(Inject(("aclrtMemset@" + std::to_string(last) + "=507899").c_str()), 0);
    before = Calls("aclrtMemset");
    EXPECT_EQ(work(), 507899);
    EXPECT_EQ(Calls("aclrtMemset") - before, last);
    EXPECT_EQ(work(), ACL_SUCCESS);
    EXPECT_EQ(Calls("aclrtNothing"), UINT64_MAX);
  });
}

// A file whose name survives into the fresh process, which runs the test from its begin again.
std::string ConfigFile(const std::string& text) {
  constexpr const char* kPathVariable = "MC_TEST_CONFIG_PATH";
  setenv(kPathVariable, (testing::TempDir() + "aclemu_config_" + std::to_string(getpid())).c_str(), 0);
  std::ofstream(getenv(kPathVariable)) << text;
  return getenv(kPathVariable);
}

TEST(FaultFile, JsonRulesWork) {
  std::string path = ConfigFile(R"({
    "faults": [ {"api": "aclrtMemset", "nth": 2, "return": 507899},
                {"op": "H2D", "min_size": "1K", "stage": "exec", "every": 1, "times": 1, "return": 507001} ],
    "model": {"profile": "bench", "h2d_gbps": 3.5} })");
  InProcess({{"ACLEMU_CONFIG", path}}, [] {
    Session acl;
    EXPECT_EQ(Fill(acl, 3), (std::vector<aclError>{0, 507899, 0}));
    for (size_t bytes : {64, 1024, 1024}) {
      ASSERT_EQ(aclrtMemcpyAsync(acl.device, bytes, acl.pinned, bytes, kH2D, acl.stream), ACL_SUCCESS);
    }
    EXPECT_EQ(aclrtSynchronizeStream(acl.stream), 507001);
    EXPECT_EQ(GetStats().faults_fired, 2u);
    EXPECT_EQ(SIDE(aclemu_model_param)("h2d_gbps"), 3.5);
    EXPECT_EQ(SIDE(aclemu_model_param)("d2h_gbps"), 2);
    EXPECT_LT(SIDE(aclemu_model_param)("nothing"), 0);
    EXPECT_EQ(Inject(R"([{"api": "aclrtMemset", "effect": "delay:1", "return": 507899}])"), 0);
    EXPECT_EQ(Fill(acl, 1)[0], 507899);
    EXPECT_EQ(Inject(R"([{"api": "aclrtMemset", "return": 507899, "nht": 3}])"), -1);
    EXPECT_EQ(Inject(""), 0);
  });
  unlink(path.c_str());
}

TEST(FaultFileDeathTest, WrongFilesEndTheProcess) {
  auto init = [] { aclInit(nullptr); };
  auto expect = [&](const char* json, const char* message) {
    std::string path = ConfigFile(json);
    InProcess({{"ACLEMU_CONFIG", path}}, init, 24, message);
  };
  // Each runs in a process of its own that writes all files up to its own again.
  expect(R"({"fault": []})", "unknown key 'fault'");
  unlink(ConfigFile("").c_str());
}

TEST(FaultTextDeathTest, WrongRulesEndTheProcess) {
  auto init = [] { aclInit(nullptr); };
  auto expect = [&](const char* rule, const char* message) { InProcess({{"ACLEMU_FAULT", rule}}, init, 24, message); };
  expect("aclrtMalloc@every=1", "is not name@N=code");
  expect("aclrtMalloc@1:exec=507001", "only an asynchronous copy has a stage exec");
  expect("aclrtMalloc@1=partial", "only a copy can be partial");
  expect("aclrtMalloc@1=none", "neither a code nor an effect");
  expect("aclrtMaloc*@1=207001", "neither an ACL function");
  expect("H2D[size=3]@1=507001", "is not name@N=code");
  expect("dev7@t1=lost", "no such device");
  InProcess({{"ACLEMU_CONFIG", "/nonexistent"}}, init, 24, "cannot read");
  InProcess({{"ACLEMU_CONFIG", "/tmp"}}, init, 24, "cannot read /tmp");
}

TEST(FaultText, InjectRefusesWhatItCannotUnderstand) {
  InProcess({}, [] {
    for (const char* json : {"{\"api\": \"aclrtMemset\"", "[1]", "[{\"api\": \"aclrtMemset\", \"return\": 0}]",
                             "[{\"api\": \"aclrtMemset\", \"nth\": 1, \"every\": 2, \"return\": 1}]",
                             "[{\"effect\": \"sleep\"}]", "[{\"api\": [], \"return\": 1}]", "[] x"}) {
      EXPECT_EQ(Inject(json), -1) << json;
    }
  });
}

}  // namespace
