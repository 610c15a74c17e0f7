// The report, the trace, and poisoned outputs.
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "test/emulator_session.h"

namespace {

constexpr auto kH2D = ACL_MEMCPY_HOST_TO_DEVICE;

// A path that survives into the fresh process, which runs the test from its begin again.
std::string PathOf(const char* what) {
  std::string variable = std::string("MC_TEST_PATH_") + what;
  setenv(variable.c_str(), (testing::TempDir() + "aclemu_" + what + std::to_string(getpid())).c_str(), 0);
  return getenv(variable.c_str());
}

std::string Slurp(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  unlink(path.c_str());
  return text.str();
}

TEST(Report, TellsCopiesFirstViolationsFaultsAndLeaks) {
  std::string path = PathOf("report");
  InProcess({{"ACLEMU_REPORT", path}, {"ACLEMU_STACK", "1"}, {"ACLEMU_FAULT", "D2H@7=507001; aclrtMemset@1=507899"}},
            [] {
              Session acl;
              static uint8_t plain[100];
              ASSERT_EQ(aclrtMemcpy(acl.device, 100, plain, 100, kH2D), ACL_SUCCESS);
              ASSERT_EQ(aclrtMemcpy(acl.device, 200, acl.pinned, 200, kH2D), ACL_SUCCESS);
              ASSERT_EQ(aclrtMemcpyAsync(acl.device, 64, acl.pinned, 64, kH2D, acl.stream), ACL_SUCCESS);
              ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
              EXPECT_EQ(aclrtMemset(acl.device, 64, 0, 64), 507899);
              EXPECT_EQ(aclrtFree(acl.dev(64)), ACL_ERROR_RT_PARAM_INVALID);
              void* lost = nullptr;
              ASSERT_EQ(aclrtMalloc(&lost, 12345, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
              EXPECT_GT(GetStats().waited_ns, 0u);
            });
  std::string text = Slurp(path);
  for (const char* part :
       {R"({"kind":"h2d","mode":"sync","host":"pageable","count":1,"bytes":100})",
        R"({"kind":"h2d","mode":"sync","host":"pinned","count":1,"bytes":200})",
        R"({"kind":"h2d","mode":"async","host":"pinned","count":1,"bytes":64})",
        R"("first_violations":[{"rule":"M1","call":"aclrtFree","message":")", R"("stack":[")",
        R"({"rule":"D2H@7=507001","seen":0,"fired":0},{"rule":"aclrtMemset@1=507899","seen":1,"fired":1})",
        R"("policy":2,)", R"("bytes":12345}])", R"("submit_blocked_ns":0)"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(Report, BlockedSubmitsAreTimed) {
  InProcess({}, [] {
    Session acl;
    ASSERT_EQ(SIDE(aclemu_inject)("H2D@1=hang"), 0);
    std::thread release([] {
      while (GetStats().submits_blocked == 0) std::this_thread::yield();
      EXPECT_EQ(SIDE(aclemu_inject)(""), 0);
    });
    ASSERT_EQ(aclrtMemcpyAsync(acl.device, 64, acl.pinned, 64, kH2D, acl.stream), ACL_SUCCESS);
    for (int i = 0; i < 2015; ++i) ASSERT_EQ(aclrtMemsetAsync(acl.device, 64, 1, 64, acl.stream), ACL_SUCCESS);
    release.join();
    ASSERT_EQ(aclrtSynchronizeStream(acl.stream), ACL_SUCCESS);
    aclemu_stats stats = GetStats();
    EXPECT_GE(stats.submits_blocked, 1u);
    EXPECT_GT(stats.submit_blocked_ns, 0u);
  });
}

TEST(SideApi, OlderVersionOfTheCountersIsStillAnswered) {
  InProcess({}, [] {
    Session acl;
    aclemu_stats stats;
    memset(&stats, 0x7F, sizeof(stats));
    stats.version = 1;
    stats.struct_bytes = offsetof(aclemu_stats, submit_blocked_ns);
    ASSERT_EQ(SIDE(aclemu_get_stats)(&stats), 0);
    EXPECT_EQ(stats.device_allocs, 1u);
    EXPECT_EQ(stats.waited_ns, 0x7F7F7F7F7F7F7F7Fu);
    stats.struct_bytes = sizeof(stats);
    EXPECT_EQ(SIDE(aclemu_get_stats)(&stats), -1);
  });
}

TEST(Trace, FullDiskIsTold) {
  InProcess({{"ACLEMU_TRACE", "/dev/full"}}, [] { Session acl; }, 0, "the trace /dev/full is incomplete");
}

TEST(Trace, OneLinePerCall) {
  std::string path = PathOf("trace");
  InProcess({{"ACLEMU_TRACE", path}}, [] {
    Session acl;
    EXPECT_EQ(aclrtMemcpy(acl.device, 63, acl.pinned, 64, kH2D), ACL_ERROR_RT_PARAM_INVALID);
    aclrtSetDevice(1);
    aclrtSetDevice(0);
  });
  std::istringstream text(Slurp(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 11u);
  EXPECT_NE(lines[0].find(" t1 aclInit = 0"), std::string::npos) << lines[0];
  EXPECT_NE(lines[2].find(" aclrtMalloc bytes=65536 = 0"), std::string::npos) << lines[2];
  EXPECT_NE(lines[5].find(" bytes=64 = 107000"), std::string::npos) << lines[5];
  EXPECT_NE(lines[6].find(" aclrtSetDevice device=1 = 0"), std::string::npos) << lines[6];
}

TEST(PoisonOut, OutputsOfFailedCallsHoldAPattern) {
  auto failed = [](void* expected) {
    return [expected] {
      Session acl;
      ASSERT_EQ(SIDE(aclemu_inject)("aclrtMalloc@1=207001; aclrtCreateStream@1=207008"), 0);
      void *block = nullptr, *stream = nullptr;
      EXPECT_EQ(aclrtMalloc(&block, 64, ACL_MEM_MALLOC_HUGE_FIRST), 207001);
      EXPECT_EQ(aclrtCreateStream(&stream), 207008);
      EXPECT_EQ(block, expected);
      EXPECT_EQ(stream, expected);
      EXPECT_EQ(aclrtMalloc(nullptr, 64, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_INVALID_PARAM);
    };
  };
  InProcess({{"ACLEMU_POISON_OUT", "1"}}, failed(reinterpret_cast<void*>(0xEEEEEEEEEEEEEEEE)));
  InProcess({}, failed(nullptr));
}

}  // namespace
