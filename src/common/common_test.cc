// Sizes, endpoints, identities, the executor and the try macro.
#include <gtest/gtest.h>

#include <atomic>
#include <limits>

#include "common/byte_size.h"
#include "common/endpoint.h"
#include "common/executor.h"
#include "common/idle_spin.h"
#include "common/metrics.h"
#include "common/status.h"
#include "common/uuid.h"

namespace mooncake {
namespace {

TEST(ByteSize, AcceptsIntegersUnitsFractionsAndSpaces) {
  EXPECT_EQ(*ParseByteSize("536870912"), 536870912u);
  EXPECT_EQ(*ParseByteSize("512MB"), 536870912u);
  EXPECT_EQ(*ParseByteSize("512 mb"), 536870912u);
  EXPECT_EQ(*ParseByteSize("1.5GB"), 1610612736u);
  EXPECT_EQ(*ParseByteSize("4k"), 4096u);
  EXPECT_EQ(*ParseByteSize("2TiB"), 2199023255552u);
  EXPECT_EQ(*ParseByteSize("infinite"), std::numeric_limits<uint64_t>::max());
}

TEST(ByteSize, RefusesWhatIsNotASize) {
  for (const char* text :
       {"", "MB", "-5", "12XB", "1.2.3MB", "99999999999999999999", "20000000 TB", "0x10", "inf", "1e9"}) {
    const auto result = ParseByteSize(text);
    ASSERT_FALSE(result) << text;
    EXPECT_EQ(result.error().code(), ErrorCode::INVALID_PARAMS);
    EXPECT_NE(result.error().message().find(fmt::format("'{}'", text)), std::string::npos);
  }
}

TEST(ByteSize, PrintsTheLargestFittingUnit) {
  EXPECT_EQ(FormatBytes(37), "37 B");
  EXPECT_EQ(FormatBytes(536870912), "512 MiB");
  EXPECT_EQ(FormatBytes(1610612736), "1.5 GiB");
}

TEST(EndpointParse, AcceptsEveryForm) {
  EXPECT_EQ(*Endpoint::Parse("10.0.0.1:50051"), (Endpoint{"10.0.0.1", 50051}));
  EXPECT_EQ(*Endpoint::Parse("[::1]:80"), (Endpoint{"::1", 80}));
  EXPECT_EQ(*Endpoint::Parse("::1", 7), (Endpoint{"::1", 7}));
  EXPECT_EQ(*Endpoint::Parse("fe80::1%eth0"), (Endpoint{"fe80::1%eth0", 0}));
  EXPECT_EQ(*Endpoint::Parse("node-7", 12345), (Endpoint{"node-7", 12345}));
  EXPECT_EQ((Endpoint{"::1", 80}).ToString(), "[::1]:80");
}

TEST(EndpointParse, RefusesBadPortsAndMissingHosts) {
  for (const char* text : {"host:", "host:70000", "host:12x", ":50051", "[::1", "[::1]50", ""}) {
    EXPECT_FALSE(Endpoint::Parse(text)) << text;
  }
}

TEST(StatusText, NamesTheCode) {
  const Status status(ErrorCode::OBJECT_NOT_FOUND, "key 'a'");
  EXPECT_EQ(status.ToString(), "OBJECT_NOT_FOUND (-704): key 'a'");
  EXPECT_EQ(ErrorCodeName(static_cast<ErrorCode>(-99999)), "UNKNOWN_ERROR");
}

Result<int> Half(int n) {
  if (n % 2 != 0) return Error(ErrorCode::INVALID_PARAMS, "{} is odd", n);
  return n / 2;
}
Result<int> Quarter(int n) {
  const int half = MC_TRY(Half(n));
  return MC_TRY(Half(half));
}

TEST(TryMacro, PassesValuesAndReturnsErrors) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).error().message(), "3 is odd");
}

TEST(UuidTest, IsRandomAndPrintable) {
  const Uuid a = Uuid::Random();
  EXPECT_NE(a, Uuid::Random());
  EXPECT_EQ(a.ToString().size(), 33u);
}

TEST(ExecutorTest, RunsEverythingBeforeItDies) {
  std::atomic<int> ran = 0;
  {
    Executor executor("test", 2, 100);
    for (int i = 0; i < 50; ++i) {
      std::move_only_function<void()> task = [&] { ran.fetch_add(1); };
      ASSERT_TRUE(executor.TrySubmit(task));
    }
  }
  EXPECT_EQ(ran, 50);
}

TEST(ExecutorTest, StoppedRunsWhatWasQueuedAndRefusesMore) {
  std::atomic<int> ran = 0;
  Executor executor("test", 1, 100);
  for (int i = 0; i < 20; ++i) {
    std::move_only_function<void()> task = [&] { ran.fetch_add(1); };
    ASSERT_TRUE(executor.TrySubmit(task));
  }
  executor.Stop();
  EXPECT_EQ(ran, 20);
  std::move_only_function<void()> late = [&] { ran.fetch_add(1); };
  EXPECT_FALSE(executor.TrySubmit(late));
  EXPECT_TRUE(static_cast<bool>(late));
  executor.Stop();
}

TEST(ExecutorTest, FullQueueLeavesTheTaskWithTheCaller) {
  std::mutex gate;
  std::unique_lock hold(gate);
  Executor executor("test", 1, 1);
  std::move_only_function<void()> blocker = [&] { std::lock_guard wait(gate); };
  ASSERT_TRUE(executor.TrySubmit(blocker));
  bool full = false;
  for (int i = 0; i < 3 && !full; ++i) {
    std::move_only_function<void()> task = [] {};
    full = !executor.TrySubmit(task);
    EXPECT_EQ(full, static_cast<bool>(task));
  }
  EXPECT_TRUE(full);
  hold.unlock();
}

TEST(Metrics, SameNameAndLabelsIsTheSameCounter) {
  MetricRegistry registry;
  registry.GetCounter("x_total", "x", {{"tier", "a"}}).Add(2);
  registry.GetCounter("x_total", "x", {{"tier", "a"}}).Add();
  EXPECT_EQ(registry.GetCounter("x_total", "x", {{"tier", "a"}}).Value(), 3u);
  EXPECT_NE(registry.Serialize().find("x_total{tier=\"a\"} 3"), std::string::npos);
}

// Whether a wait, which never ends by itself, begins with looking.
bool Looks(IdleSpin& spin) {
  bool looked = false;
  EXPECT_FALSE(spin.Until(std::chrono::nanoseconds(1), [&] {
    looked = true;
    return false;
  }));
  return looked;
}

TEST(IdleSpinTest, LongWaitsEndTheLookingAndAShortOneBringsItBack) {
  const Duration limit = std::chrono::microseconds(50);
  IdleSpin spin;
  int looks = 0;
  while (looks < 1000 && Looks(spin)) ++looks;
  EXPECT_GT(looks, 1);
  EXPECT_LT(looks, 1000);
  spin.Slept(limit, 2 * limit);
  EXPECT_FALSE(Looks(spin));
  spin.Slept(limit, 2 * limit - Duration(1));
  EXPECT_TRUE(Looks(spin));
}

TEST(IdleSpinTest, WhatIsSeenCountsAsAShortWait) {
  IdleSpin spin;
  for (int round = 0; round < 100; ++round) {
    ASSERT_TRUE(Looks(spin)) << round;
    ASSERT_TRUE(spin.Until(std::chrono::hours(1), [] { return true; }));
  }
}

TEST(IdleSpinTest, WithoutALimitNobodyLooks) {
  IdleSpin spin;
  EXPECT_FALSE(spin.Until(Duration::zero(), [] { return true; }));
}

}  // namespace
}  // namespace mooncake
