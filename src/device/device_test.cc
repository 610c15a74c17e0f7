// Ranges of host and NPU memory, and the staging pool.
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <thread>
#include <vector>

#include "device/memory_range.h"
#include "device/staging_pool.h"
#include "tiered_cache/fake_npu_runtime.h"

namespace mooncake {
namespace {

using Bytes = std::vector<std::byte>;

TEST(MemoryTypeTest, NamesAndValuesAreTheContract) {
  EXPECT_EQ(MemoryTypeName(MemoryType::DRAM), "DRAM");
  EXPECT_EQ(MemoryTypeName(MemoryType::NVME), "NVME");
  EXPECT_EQ(MemoryTypeName(MemoryType::ASCEND_NPU), "ASCEND_NPU");
  EXPECT_EQ(MemoryTypeName(MemoryType::UNKNOWN), "UNKNOWN");
  EXPECT_EQ(MemoryTypeName(static_cast<MemoryType>(200)), "UNKNOWN");
  EXPECT_EQ(static_cast<int>(MemoryType::DRAM), 0);
  EXPECT_EQ(static_cast<int>(MemoryType::NVME), 1);
  EXPECT_EQ(static_cast<int>(MemoryType::ASCEND_NPU), 2);
  EXPECT_EQ(static_cast<int>(MemoryType::UNKNOWN), 3);
}

TEST(AscendUnifiedPointerTest, SteppingForwardStaysOnTheDevice) {
  const AscendUnifiedPointer at{3, static_cast<DeviceAddress>(0x1000)};
  const AscendUnifiedPointer further = at + 0x234;
  EXPECT_EQ(further.device_id, 3);
  EXPECT_EQ(static_cast<uintptr_t>(further.device_ptr), 0x1234u);
  EXPECT_EQ(AscendUnifiedPointer{}.device_ptr, DeviceAddress::kNull);
}

class MemoryRangeTest : public ::testing::Test {
 protected:
  NpuRange OnDevice(size_t size) { return NpuRange{*runtime_.Allocate(0, size), size, &runtime_}; }
  FakeNpuRuntime runtime_;
};

TEST_F(MemoryRangeTest, KnowsSizeAndKind) {
  Bytes host(10);
  EXPECT_EQ(SizeOf(HostRange(host)), 10u);
  EXPECT_TRUE(IsHost(HostRange(host)));
  EXPECT_EQ(SizeOf(OnDevice(20)), 20u);
  EXPECT_FALSE(IsHost(OnDevice(20)));
}

TEST_F(MemoryRangeTest, PartsOfHostMemory) {
  Bytes host(10);
  const MemoryRange part = SubRange(HostRange(host), 3, 7);
  EXPECT_EQ(std::get<HostRange>(part).data(), host.data() + 3);
  EXPECT_EQ(SizeOf(part), 7u);
  EXPECT_EQ(SizeOf(SubRange(HostRange(host), 10, 0)), 0u);
}

TEST_F(MemoryRangeTest, PartsOfNpuMemory) {
  const NpuRange whole = OnDevice(100);
  const MemoryRange part = SubRange(whole, 40, 60);
  const auto& npu = std::get<NpuRange>(part);
  EXPECT_EQ(npu.at.device_id, 0);
  EXPECT_EQ(static_cast<uintptr_t>(npu.at.device_ptr), static_cast<uintptr_t>(whole.at.device_ptr) + 40);
  EXPECT_EQ(npu.size, 60u);
  EXPECT_EQ(npu.runtime, &runtime_);
}

TEST_F(MemoryRangeTest, CopiesBothWaysOnEitherKind) {
  Bytes written(50);
  for (size_t i = 0; i < written.size(); ++i) written[i] = static_cast<std::byte>(i + 1);
  Bytes host(100);
  for (const MemoryRange& memory : {MemoryRange(HostRange(host)), MemoryRange(OnDevice(100))}) {
    const MemoryRange middle = SubRange(memory, 25, 50);
    ASSERT_TRUE(CopyFromHost(middle, written));
    Bytes read(50);
    ASSERT_TRUE(CopyToHost(HostRange(read), middle));
    EXPECT_EQ(read, written);
  }
}

TEST_F(MemoryRangeTest, ZeroBytesDoNotReachTheDevice) {
  ASSERT_TRUE(CopyFromHost(SubRange(OnDevice(10), 5, 0), {}));
  ASSERT_TRUE(CopyToHost({}, SubRange(OnDevice(10), 5, 0)));
  EXPECT_EQ(runtime_.calls(FakeNpuRuntime::Call::kToDevice), 0u);
  EXPECT_EQ(runtime_.calls(FakeNpuRuntime::Call::kToHost), 0u);
}

TEST_F(MemoryRangeTest, DeviceFailureIsTheResult) {
  Bytes host(10);
  const NpuRange npu = OnDevice(10);
  runtime_.Fail(FakeNpuRuntime::Call::kToDevice, 1, FakeNpuRuntime::CopyFailed());
  const auto written = CopyFromHost(npu, host);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().vendor_code(), FakeNpuRuntime::kCopyFailed);
  runtime_.Fail(FakeNpuRuntime::Call::kToHost, 1, FakeNpuRuntime::CopyFailed());
  const auto read = CopyToHost(HostRange(host), npu);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::DATA_COPY_FAILED);
}

TEST(MemoryRangeDeathTest, LeavingTheRangeStopsTheProcess) {
  Bytes host(10);
  const MemoryRange range = HostRange(host);
  EXPECT_DEATH((void)SubRange(range, 4, 7), R"(\[4, \+7\) of 10 B)");
  EXPECT_DEATH((void)SubRange(range, 11, 0), "of 10 B");
  EXPECT_DEATH((void)SubRange(range, 5, std::numeric_limits<size_t>::max() - 2), "of 10 B");
  EXPECT_DEATH((void)CopyToHost(HostRange(host).first(9), range), "10 B into 9 B");
  EXPECT_DEATH((void)CopyFromHost(range, HostRange(host).first(9)), "9 B into 10 B");
}

// --- staging pool ---

constexpr auto kSoon = std::chrono::milliseconds(1);
constexpr auto kLong = std::chrono::seconds(60);

TEST(StagingPoolTest, HandsOutAsManySlotsAsItHas) {
  StagingPool pool(4096, 2);
  EXPECT_EQ(pool.slot_bytes(), 4096u);
  auto first = pool.TryAcquire();
  auto second = pool.Acquire(Deadline::After(kLong));
  ASSERT_TRUE(first != nullptr && second);
  EXPECT_EQ(first->bytes().size(), 4096u);
  EXPECT_NE(first->bytes().data(), (*second)->bytes().data());
  EXPECT_EQ(pool.TryAcquire(), nullptr);
  first.reset();
  EXPECT_NE(pool.TryAcquire(), nullptr);
}

TEST(StagingPoolTest, WaitingPastTheDeadlineFailsWithTheNumbers) {
  StagingPool pool(4096, 1);
  const auto held = pool.TryAcquire();
  const auto late = pool.Acquire(Deadline::After(kSoon));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), ErrorCode::TRANSFER_FAIL);
  EXPECT_NE(late.error().message().find("1 staging buffers of 4096 B"), std::string::npos) << late.error().message();
}

TEST(StagingPoolTest, PassedDeadlineStillGetsAFreeSlot) {
  StagingPool pool(4096, 1);
  EXPECT_TRUE(pool.Acquire(Deadline::After(Duration::zero())));
}

TEST(StagingPoolTest, SlotIsFreeOnlyWhenItsLastHolderLetGo) {
  StagingPool pool(64, 1);
  auto slot = pool.TryAcquire();
  auto other_holder = slot;
  slot.reset();
  EXPECT_EQ(pool.TryAcquire(), nullptr);
  other_holder.reset();
  EXPECT_NE(pool.TryAcquire(), nullptr);
}

TEST(StagingPoolTest, MemoryIsKeptForTheNextUser) {
  StagingPool pool(64, 2);
  auto slot = pool.TryAcquire();
  const std::byte* memory = slot->bytes().data();
  slot.reset();
  EXPECT_EQ(pool.TryAcquire()->bytes().data(), memory);
}

TEST(StagingPoolTest, WaiterWakesWhenASlotReturns) {
  StagingPool pool(64, 1);
  auto held = pool.TryAcquire();
  std::thread waiter([&] { EXPECT_TRUE(pool.Acquire(Deadline::After(kLong))); });
  held.reset();
  waiter.join();
}

TEST(StagingPoolTest, ManyThreadsNeverShareASlot) {
  constexpr size_t kSlots = 3;
  StagingPool pool(64, kSlots);
  std::atomic<size_t> in_use{0};
  std::atomic<int> broken{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        const auto slot = pool.Acquire(Deadline::After(kLong));
        if (!slot) {
          broken.fetch_add(1);
          continue;
        }
        if (in_use.fetch_add(1) >= kSlots) broken.fetch_add(1);
        for (std::byte& byte : (*slot)->bytes()) byte = static_cast<std::byte>(t);
        for (const std::byte byte : (*slot)->bytes()) {
          if (byte != static_cast<std::byte>(t)) broken.fetch_add(1);
        }
        in_use.fetch_sub(1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(broken.load(), 0);
}

TEST(StagingPoolDeathTest, DyingWithSlotsInUseStopsTheProcess) {
  EXPECT_DEATH(
      {
        auto pool = std::make_unique<StagingPool>(64, 1);
        const auto slot = pool->TryAcquire();
        pool.reset();
      },
      "1 staging slots still in use");
}

TEST(NpuSupportTest, BuildWithoutItSaysWhichOptionBringsIt) {
  if (NpuSupportBuilt()) GTEST_SKIP() << "built with " << kNpuBuildOption;
  const auto runtime = OpenNpuRuntime();
  ASSERT_FALSE(runtime);
  EXPECT_EQ(runtime.error().code(), ErrorCode::NOT_IMPLEMENTED);
  EXPECT_NE(runtime.error().message().find(kNpuBuildOption), std::string::npos);
  EXPECT_EQ(OpenedNpuRuntime(), nullptr);
}

}  // namespace
}  // namespace mooncake
