// Ranges of host memory, the staging pool, and builds without NPU support.
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <thread>
#include <vector>

#include "device/memory_range.h"
#include "device/npu_runtime.h"
#include "device/pinned_ranges.h"
#include "device/staging_pool.h"

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

// Not inlined: knowing the kind, GCC 12 warns of the other kind's fields where sanitizers are on.
[[gnu::noinline]] MemoryRange RangeOf(Bytes& bytes) {
  return HostRange(bytes);
}

// Ranges on an NPU are tested with the ACL adapter, which has one.
TEST(MemoryRangeTest, PartsOfHostMemory) {
  Bytes host(10);
  const MemoryRange whole = RangeOf(host);
  EXPECT_EQ(SizeOf(whole), 10u);
  EXPECT_TRUE(IsHost(whole));
  const MemoryRange part = SubRange(whole, 3, 7);
  EXPECT_EQ(std::get<HostRange>(part).data(), host.data() + 3);
  EXPECT_EQ(SizeOf(part), 7u);
  EXPECT_EQ(SizeOf(SubRange(whole, 10, 0)), 0u);
}

TEST(MemoryRangeTest, CopiesBothWays) {
  const Bytes written(50, std::byte{7});
  Bytes host(100);
  const MemoryRange middle = SubRange(RangeOf(host), 25, 50);
  ASSERT_TRUE(CopyFromHost(middle, written));
  Bytes read(50);
  ASSERT_TRUE(CopyToHost(HostRange(read), middle));
  EXPECT_EQ(read, written);
  EXPECT_EQ(host[24], std::byte{0});
  EXPECT_EQ(host[75], std::byte{0});
  EXPECT_TRUE(CopyFromHost(SubRange(middle, 50, 0), {}));
  EXPECT_TRUE(CopyToHost({}, SubRange(middle, 0, 0)));
}

TEST(MemoryRangeDeathTest, LeavingTheRangeStopsTheProcess) {
  Bytes host(10);
  const MemoryRange range = RangeOf(host);
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
  const auto runtime = OpenNpuRuntime();
  EXPECT_EQ(NpuSupportBuilt(), runtime.has_value()) << "tests run with the emulator, so only the build decides";
  if (NpuSupportBuilt()) return;
  EXPECT_EQ(runtime.error().code(), ErrorCode::NOT_IMPLEMENTED);
  EXPECT_NE(runtime.error().message().find(kNpuBuildOption), std::string::npos);
  EXPECT_EQ(UsedNpuRuntime(), nullptr);
}

// --- page-locked ranges ---

TEST(PinnedRangesTest, RunEndsWhereItsRegistrationEnds) {
  Bytes bytes(100);
  std::byte* const at = bytes.data();
  PinnedRanges ranges;
  EXPECT_EQ(ranges.Run(at, 10), 0u);
  ranges.Add({at + 20, 30});
  ranges.Add({at + 50, 10});
  EXPECT_EQ(ranges.Run(at + 19, 10), 0u);
  EXPECT_EQ(ranges.Run(at + 20, 10), 10u);
  EXPECT_EQ(ranges.Run(at + 20, 100), 30u) << "the next range is another registration";
  EXPECT_EQ(ranges.Run(at + 49, 100), 1u);
  EXPECT_EQ(ranges.Run(at + 50, 100), 10u);
  EXPECT_EQ(ranges.Run(at + 60, 1), 0u);
  ranges.Remove(at + 20);
  EXPECT_EQ(ranges.Run(at + 49, 100), 0u);
  EXPECT_EQ(ranges.Run(at + 59, 1), 1u);
}

TEST(PinnedRangesDeathTest, OverlapAndUnknownRangesAreBugs) {
  Bytes bytes(100);
  PinnedRanges ranges;
  ranges.Add({bytes.data() + 20, 30});
  EXPECT_DEATH(ranges.Add({bytes.data() + 10, 11}), "overlap");
  EXPECT_DEATH(ranges.Add({bytes.data() + 49, 10}), "overlap");
  EXPECT_DEATH(ranges.Remove(bytes.data() + 21), "not page-locked");
}

}  // namespace
}  // namespace mooncake
