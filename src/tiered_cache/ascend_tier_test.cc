// The NPU tier on a runtime that fails when told to, and on the ACL runtime of the build (the emulator).
#include "tiered_cache/tiers/ascend_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "common/byte_size.h"
#include "device/acl/test_emulator_fixture.h"
#include "tiered_cache/data_copier.h"
#include "tiered_cache/fake_npu_runtime.h"
#include "tiered_cache/test_ascend_tiers.h"

namespace mooncake {
namespace {

using Call = FakeNpuRuntime::Call;

// --- on the fake ---

class AscendTierTest : public ::testing::Test {
 protected:
  static constexpr size_t kCapacity = 1000;
  std::shared_ptr<FakeNpuRuntime> runtime_ = std::make_shared<FakeNpuRuntime>(2, 4096);
  std::shared_ptr<AscendCacheTier> tier_ = *OpenTier(runtime_, kCapacity);
};

TEST_F(AscendTierTest, SaysWhatItIs) {
  const auto second = OpenTier(runtime_, 10, 1);
  ASSERT_TRUE(second);
  EXPECT_EQ(tier_->info().name, "ASCEND_NPU:0");
  EXPECT_EQ((*second)->info().name, "ASCEND_NPU:1");
  EXPECT_NE((*second)->info().id, tier_->info().id);
  EXPECT_EQ((*second)->device_id(), 1);
  EXPECT_EQ(tier_->info().type, MemoryType::ASCEND_NPU);
  EXPECT_EQ(tier_->info().capacity, kCapacity);
  EXPECT_EQ(tier_->info().priority, 100);
  EXPECT_EQ(tier_->info().tags, std::vector<std::string>{"npu"});
}

TEST_F(AscendTierTest, BlocksCountWithTheirSizeUntilTheyDie) {
  {
    const auto first = tier_->Allocate(600);
    ASSERT_TRUE(first);
    EXPECT_EQ(first->size(), 600u);
    EXPECT_EQ(first->type, MemoryType::ASCEND_NPU);
    EXPECT_EQ(NpuOf(*first).pointer().device_id, 0);
    auto second = tier_->Allocate(400);
    ASSERT_TRUE(second);
    EXPECT_EQ(tier_->usage(), kCapacity);
    EXPECT_EQ(runtime_->live_blocks(), 2u);
    tier_->Free(std::move(*second));
    EXPECT_EQ(tier_->usage(), 600u);
    EXPECT_EQ(runtime_->live_blocks(), 1u);
  }
  EXPECT_EQ(tier_->usage(), 0u);
  EXPECT_EQ(runtime_->live_blocks(), 0u);
}

TEST_F(AscendTierTest, RefusesBlockOfZeroBytes) {
  const auto block = tier_->Allocate(0);
  ASSERT_FALSE(block);
  EXPECT_EQ(block.error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_EQ(runtime_->calls(Call::kAllocate), 0u);
}

TEST_F(AscendTierTest, FullTierRefusesWithoutAskingTheDevice) {
  const auto held = tier_->Allocate(900);
  ASSERT_TRUE(held);
  const uint64_t asked = runtime_->calls(Call::kAllocate);
  for (const size_t size : {size_t{101}, size_t{1001}, ~size_t{0}}) {
    const auto more = tier_->Allocate(size);
    ASSERT_FALSE(more);
    EXPECT_EQ(more.error().code(), ErrorCode::NO_AVAILABLE_HANDLE);
    EXPECT_EQ(more.error().vendor_code(), 0) << "the tier refuses, not the device";
    ExpectSays(more.error(), {fmt::format("{} B (used 900 of 1000 B, largest hole 100 B)", size)});
  }
  EXPECT_EQ(tier_->usage(), 900u);
  EXPECT_EQ(runtime_->calls(Call::kAllocate), asked);
}

TEST_F(AscendTierTest, DeviceOutOfMemoryGivesTheReservationBack) {
  runtime_->Fail(Call::kAllocate, 1, FakeNpuRuntime::OutOfMemory());
  const auto refused = tier_->Allocate(800);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::NO_AVAILABLE_HANDLE);
  EXPECT_EQ(refused.error().vendor_code(), 207001);
  EXPECT_EQ(tier_->usage(), 0u);
  EXPECT_TRUE(tier_->Allocate(kCapacity)) << "all room is there again";
}

TEST_F(AscendTierTest, AnyDeviceErrorGivesTheReservationBack) {
  runtime_->Fail(Call::kAllocate, 0, Status(ErrorCode::INTERNAL_ERROR, "device lost", 507010));
  for (int i = 0; i < 10; ++i) {
    const auto refused = tier_->Allocate(300);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::INTERNAL_ERROR);
    EXPECT_EQ(refused.error().vendor_code(), 507010);
    EXPECT_EQ(tier_->usage(), 0u);
  }
}

TEST_F(AscendTierTest, RoomIsReservedBeforeTheDeviceIsAsked) {
  size_t during = 0;
  runtime_->on_call = [&](Call call) {
    if (call == Call::kAllocate) during = tier_->usage();
  };
  ASSERT_TRUE(tier_->Allocate(700));
  EXPECT_EQ(during, 700u);
}

TEST_F(AscendTierTest, UsageFallsOnlyAfterTheDeviceFreedTheBlock) {
  std::vector<size_t> during;
  runtime_->on_call = [&](Call call) {
    if (call == Call::kFree) during.push_back(tier_->usage());
  };
  {
    const auto by_destruction = tier_->Allocate(700);
    ASSERT_TRUE(by_destruction);
    auto by_free = tier_->Allocate(200);
    ASSERT_TRUE(by_free);
    tier_->Free(std::move(*by_free));
    EXPECT_EQ(tier_->usage(), 700u);
  }
  EXPECT_EQ(during, (std::vector<size_t>{900, 700}));
  EXPECT_EQ(tier_->usage(), 0u);
}

// The device still spends a block that it did not take back, so nothing else may get its bytes.
TEST_F(AscendTierTest, BlockThatTheDeviceDoesNotTakeBackStaysInTheUsage) {
  runtime_->Fail(Call::kFree, 2, Status(ErrorCode::INTERNAL_ERROR, "busy device", 507013));
  ::testing::internal::CaptureStderr();
  {
    const auto first = tier_->Allocate(300);
    auto second = tier_->Allocate(500);
    ASSERT_TRUE(first && second);
    tier_->Free(std::move(*tier_->Allocate(200)));
    tier_->Free(std::move(*second));
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("500 B was not taken back"), std::string::npos) << log;
  EXPECT_NE(log.find("busy device"), std::string::npos) << log;
  EXPECT_EQ(tier_->usage(), 500u);
  EXPECT_EQ(tier_->quarantined_bytes(), 500u);
  EXPECT_EQ(runtime_->used_bytes(0), tier_->usage());
  EXPECT_FALSE(tier_->Allocate(501));
  EXPECT_TRUE(tier_->Allocate(500)) << "the rest is as good as before";
  ::testing::internal::CaptureStderr();
  tier_.reset();
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("1 blocks with 500 B"), std::string::npos);
}

TEST_F(AscendTierTest, RefusalsOfTheDeviceAreCountedAndTellWhatItSaid) {
  EXPECT_EQ(tier_->device_refusals(), 0u);
  runtime_->Fail(Call::kAllocate, 0, FakeNpuRuntime::OutOfMemory());
  for (uint64_t i = 1; i <= 3; ++i) {
    const auto refused = tier_->Allocate(100);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::NO_AVAILABLE_HANDLE);
    EXPECT_EQ(tier_->device_refusals(), i);
    EXPECT_EQ(tier_->usage(), 0u);
  }
  runtime_->Heal(Call::kAllocate);
  EXPECT_FALSE(tier_->Allocate(kCapacity + 1));
  EXPECT_EQ(tier_->device_refusals(), 3u) << "a full tier is not the device's refusal";
}

TEST_F(AscendTierTest, FreeingANullBufferIsFine) {
  tier_->Free(DataSource{nullptr, MemoryType::ASCEND_NPU});
  EXPECT_EQ(tier_->usage(), 0u);
  EXPECT_EQ(runtime_->calls(Call::kFree), 0u);
}

TEST_F(AscendTierTest, LostDeviceRefusesEveryBlockWithItsNumber) {
  for (const auto allocation : {AscendCacheTier::Allocation::kSlab, AscendCacheTier::Allocation::kDirect}) {
    const auto runtime = std::make_shared<FakeNpuRuntime>(1, kMiB);
    const auto tier = OpenTier(runtime, kMiB / 2, 0, allocation);
    ASSERT_TRUE(tier);
    ASSERT_TRUE((*tier)->Allocate(1000));
    const uint64_t asked = runtime->calls(Call::kAllocate);
    runtime->Lose(0);
    const auto refused = (*tier)->Allocate(1000);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::NO_AVAILABLE_HANDLE);
    EXPECT_EQ(refused.error().vendor_code(), FakeNpuRuntime::kLost);
    ExpectSays(refused.error(), {"ASCEND_NPU:0", "1000 B", "device 0 is lost"});
    EXPECT_EQ((*tier)->device_refusals(), 1u);
    EXPECT_EQ((*tier)->usage(), 0u);
    EXPECT_EQ(runtime->calls(Call::kAllocate), asked);
  }
}

TEST_F(AscendTierTest, DeviceLostByTheVeryCallIsARefusalToo) {
  runtime_->on_call = [&](Call call) {
    if (call == Call::kAllocate) runtime_->Lose(0);
  };
  const auto refused = tier_->Allocate(100);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::NO_AVAILABLE_HANDLE);
  EXPECT_EQ(refused.error().vendor_code(), FakeNpuRuntime::kLost);
  EXPECT_EQ(tier_->usage(), 0u);
  EXPECT_EQ(tier_->device_refusals(), 1u);
}

TEST_F(AscendTierTest, LostDeviceOpensNoTier) {
  runtime_->Lose(1);
  const auto tier = OpenTier(runtime_, 100, 1);
  ASSERT_FALSE(tier);
  EXPECT_EQ(tier.error().vendor_code(), FakeNpuRuntime::kLost);
  ExpectSays(tier.error(), {"100 B", "device 1 is lost"});
  EXPECT_TRUE(OpenTier(runtime_, 100, 0)) << "the other device is fine";
}

// Pages as on a device: a block of 2 MiB and one byte takes 4 MiB, and so it counts.
TEST(AscendDirectTierTest, UsageIsWhatTheDeviceSpends) {
  const auto runtime = std::make_shared<FakeNpuRuntime>(1, 64 * kMiB);
  runtime->device_bytes = FakeNpuRuntime::Paged;
  const auto tier = OpenTier(runtime, 8 * kMiB);
  ASSERT_TRUE(tier);
  {
    const auto small = (*tier)->Allocate(1);
    ASSERT_TRUE(small);
    EXPECT_EQ(small->size(), 1u);
    EXPECT_EQ((*tier)->usage(), 4096u);
    const auto large = (*tier)->Allocate(2 * kMiB + 1);
    ASSERT_TRUE(large);
    EXPECT_EQ((*tier)->usage(), 4 * kMiB + 4096);
    EXPECT_EQ((*tier)->usage(), runtime->used_bytes(0));
    EXPECT_EQ((*tier)->largest_hole(), 2 * kMiB);
    const auto refused = (*tier)->Allocate(2 * kMiB + 1);
    ASSERT_FALSE(refused);
    ExpectSays(refused.error(), {"largest hole 2097152 B"});
    EXPECT_TRUE((*tier)->Allocate((*tier)->largest_hole()));
  }
  EXPECT_EQ((*tier)->usage(), 0u);
  EXPECT_EQ((*tier)->largest_block(), 8 * kMiB);
  const auto tiny = OpenTier(runtime, 4095);
  ASSERT_FALSE(tiny);
  ExpectSays(tiny.error(), {"4095 B", "the smallest takes 4096 B"});
}

TEST_F(AscendTierTest, MissingDeviceIsRefusedWithTheVisibleCount) {
  for (const int32_t device_id : {2, 100, -1}) {
    const auto tier = OpenTier(runtime_, 10, device_id);
    ASSERT_FALSE(tier);
    EXPECT_EQ(tier.error().code(), ErrorCode::INVALID_PARAMS);
    EXPECT_NE(tier.error().message().find(fmt::format("device_id {}", device_id)), std::string::npos);
    EXPECT_NE(tier.error().message().find("sees 2 NPU device"), std::string::npos) << tier.error().message();
  }
}

TEST_F(AscendTierTest, CapacityAboveFreeMemoryIsRefusedWithBothNumbers) {
  const auto taken = tier_->Allocate(1000);
  ASSERT_TRUE(taken);
  EXPECT_TRUE(OpenTier(runtime_, 3096)) << "exactly what is free";
  const auto tier = OpenTier(runtime_, 3097);
  ASSERT_FALSE(tier);
  EXPECT_EQ(tier.error().code(), ErrorCode::INVALID_PARAMS);
  for (const std::string& number : {std::string("3097 B"), FormatBytes(3096), FormatBytes(4096)}) {
    EXPECT_NE(tier.error().message().find(number), std::string::npos) << tier.error().message();
  }
}

TEST_F(AscendTierTest, DeviceThatCannotBeOpenedIsAnError) {
  for (const Call call : {Call::kOpenDevice, Call::kMemoryInfo}) {
    runtime_->Fail(call, 1, Status(ErrorCode::INTERNAL_ERROR, "held by another process", 507033));
    const auto tier = OpenTier(runtime_, 10);
    ASSERT_FALSE(tier);
    EXPECT_EQ(tier.error().vendor_code(), 507033);
  }
}

TEST_F(AscendTierTest, DevicesAreCountedApart) {
  const auto second = OpenTier(runtime_, 2000, 1);
  ASSERT_TRUE(second);
  const auto here = tier_->Allocate(300);
  const auto there = (*second)->Allocate(1500);
  ASSERT_TRUE(here && there);
  EXPECT_EQ(runtime_->used_bytes(0), 300u);
  EXPECT_EQ(runtime_->used_bytes(1), 1500u);
  EXPECT_EQ(tier_->usage(), 300u);
  EXPECT_EQ((*second)->usage(), 1500u);
}

TEST_F(AscendTierTest, TierKeepsTheRuntimeAlive) {
  const std::weak_ptr<NpuRuntime> watch = runtime_;
  runtime_.reset();
  EXPECT_FALSE(watch.expired());
  EXPECT_TRUE(tier_->Allocate(10));
  tier_.reset();
  EXPECT_TRUE(watch.expired());
}

// Threads allocate and free while the device refuses now and then; the peak is what the device really held.
TEST_F(AscendTierTest, DeviceNeverHoldsMoreThanTheCapacityUnderThreads) {
  std::atomic<uint64_t> over{0};
  std::atomic<uint64_t> refused{0};
  runtime_->on_call = [&](Call call) {
    if (call == Call::kAllocate && runtime_->used_bytes(0) > kCapacity) over.fetch_add(1);
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        if (t == 0 && i % 50 == 0) runtime_->Fail(Call::kAllocate, 1, FakeNpuRuntime::OutOfMemory());
        const auto block = tier_->Allocate(static_cast<size_t>(100 + (i * 37 + t * 11) % 300));
        if (!block) refused.fetch_add(1);
        if (runtime_->used_bytes(0) > kCapacity || tier_->usage() > kCapacity) over.fetch_add(1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(over.load(), 0u);
  EXPECT_GT(refused.load(), 0u);
  EXPECT_EQ(tier_->usage(), 0u);
  EXPECT_EQ(runtime_->live_blocks(), 0u);
}

// --- on the emulator ---

class AscendTierOnAclTest : public EmulatorTest {};

TEST_F(AscendTierOnAclTest, BlocksAreRealDeviceMemoryAndReallyFreed) {
  const auto tier = OpenTier(runtime_, 4 * kMiB);
  ASSERT_TRUE(tier) << tier.error().ToString();
  {
    const auto block = (*tier)->Allocate(3 * kMiB);
    ASSERT_TRUE(block) << block.error().ToString();
    EXPECT_EQ(EmulatorProbe::LiveBlocks(), 1);
    const auto* address = reinterpret_cast<const void*>(static_cast<uintptr_t>(NpuOf(*block).pointer().device_ptr));
    EXPECT_TRUE(EmulatorProbe::IsDeviceMemory(address));
  }
  EXPECT_EQ(EmulatorProbe::LiveBlocks(), 0);
  EXPECT_EQ((*tier)->usage(), 0u);
}

// In blocks of the size that KV caches have.
TEST_F(AscendTierOnAclTest, SlabTierIsFilledWithBlocksWithoutOneCallOfTheRuntime) {
  constexpr size_t kTier = 512 * kMiB;
  constexpr size_t kBlock = 2 * kMiB;
  const auto tier = OpenSlabTier(runtime_, kTier, 0);
  ASSERT_TRUE(tier) << tier.error().ToString();
  const uint64_t calls = EmulatorProbe::Calls("any");
  for (int round = 0; round < 2; ++round) {
    std::vector<DataSource> blocks;
    while (auto block = (*tier)->Allocate(kBlock)) blocks.push_back(std::move(*block));
    EXPECT_EQ(blocks.size(), kTier / kBlock) << "nothing of the capacity is lost";
    EXPECT_EQ((*tier)->usage(), kTier);
  }
  EXPECT_EQ((*tier)->usage(), 0u);
  EXPECT_EQ(EmulatorProbe::Calls("any"), calls);
  EXPECT_LE(EmulatorProbe::Stats().device_paged_bytes, kTier);
}

TEST_F(AscendTierOnAclTest, SlabsAreTakenAtTheStartAndGivenBackAtTheEnd) {
  {
    const auto tier = OpenSlabTier(runtime_, 12 * kMiB, 4 * kMiB);
    ASSERT_TRUE(tier) << tier.error().ToString();
    EXPECT_EQ(EmulatorProbe::LiveBlocks(0), 3);
    EXPECT_LE(EmulatorProbe::Stats().device_paged_bytes, 12 * kMiB);
    std::vector<DataSource> blocks;
    while (auto block = (*tier)->Allocate(1'000'000)) blocks.push_back(std::move(*block));
    EXPECT_EQ(blocks.size(), 12u);
    EXPECT_EQ(EmulatorProbe::LiveBlocks(0), 3);
    std::vector<std::byte> written(1'000'000);
    for (size_t i = 0; i < written.size(); ++i) written[i] = static_cast<std::byte>(i * 13);
    std::vector<std::byte> read(written.size());
    const DataCopier copier = *DataCopierBuilder().Build();
    ASSERT_TRUE(copier.Copy(DataSource::Host(written.data(), written.size()), blocks.back()));
    ASSERT_TRUE(copier.Copy(blocks.back(), blocks.front()));
    ASSERT_TRUE(copier.Copy(blocks.front(), DataSource::Host(read.data(), read.size())));
    EXPECT_EQ(read, written);
  }
  EXPECT_EQ(EmulatorProbe::LiveBlocks(), 0);
}

TEST_F(AscendTierOnAclTest, RefusedSlabLeavesNothingOnTheDevice) {
  for (const char* rules :
       {"aclrtMallocAlign32@1=207001;aclrtMalloc@1=207001", "aclrtMallocAlign32@3=207001;aclrtMalloc@3=207001"}) {
    EmulatorProbe::Inject(rules);
    const auto tier = OpenSlabTier(runtime_, 16 * kMiB, 4 * kMiB);
    EmulatorProbe::Inject("");
    ASSERT_FALSE(tier);
    EXPECT_EQ(tier.error().code(), ErrorCode::NO_AVAILABLE_HANDLE);
    EXPECT_EQ(tier.error().vendor_code(), 207001);
    ExpectSays(tier.error(), {"16777216 B", "of 4 (4194304 B)", "free of"});
    EXPECT_EQ(EmulatorProbe::LiveBlocks(), 0);
  }
}

TEST_F(AscendTierOnAclTest, BytesComeBackAsWritten) {
  const auto tier = OpenTier(runtime_, 4 * kMiB);
  ASSERT_TRUE(tier);
  const DataCopier copier = *DataCopierBuilder().Build();
  std::vector<std::byte> written(100'001);
  for (size_t i = 0; i < written.size(); ++i) written[i] = static_cast<std::byte>(i * 7);
  std::vector<std::byte> read(written.size());
  const auto first = (*tier)->Allocate(written.size());
  const auto second = (*tier)->Allocate(written.size());
  ASSERT_TRUE(first && second);
  ASSERT_TRUE(copier.Copy(DataSource::Host(written.data(), written.size()), *first));
  ASSERT_TRUE(copier.Copy(*first, *second)) << "NPU to NPU";
  ASSERT_TRUE(copier.Copy(*second, DataSource::Host(read.data(), read.size())));
  EXPECT_EQ(read, written);
}

TEST_F(AscendTierOnAclTest, BlockMayDieOnAThreadThatNeverSawTheDevice) {
  const auto tier = OpenTier(runtime_, kMiB);
  ASSERT_TRUE(tier);
  auto block = (*tier)->Allocate(1000);
  ASSERT_TRUE(block);
  std::thread([data = std::move(*block)]() mutable { data.buffer.reset(); }).join();
  EXPECT_EQ((*tier)->usage(), 0u);
  EXPECT_EQ(EmulatorProbe::LiveBlocks(), 0);
}

TEST_F(AscendTierOnAclTest, TwoDevicesInOneProcess) {
  ASSERT_GE(runtime_->DeviceCount(), 2);
  const auto first = OpenTier(runtime_, kMiB, 0);
  const auto second = OpenTier(runtime_, kMiB, 1);
  ASSERT_TRUE(first && second);
  const auto here = (*first)->Allocate(1000);
  const auto there = (*second)->Allocate(1000);
  ASSERT_TRUE(here && there);
  EXPECT_EQ(EmulatorProbe::LiveBlocks(0), 1);
  EXPECT_EQ(EmulatorProbe::LiveBlocks(1), 1);
  std::vector<std::byte> written(1000, std::byte{42});
  std::vector<std::byte> read(1000);
  const DataCopier copier = *DataCopierBuilder().Build();
  ASSERT_TRUE(copier.Copy(DataSource::Host(written.data(), 1000), *here));
  ASSERT_TRUE(copier.Copy(*here, *there));
  ASSERT_TRUE(copier.Copy(*there, DataSource::Host(read.data(), 1000)));
  EXPECT_EQ(read, written);
}

TEST_F(AscendTierOnAclTest, MissingDeviceIsRefusedWithTheVisibleCount) {
  const auto tier = OpenTier(runtime_, kMiB, runtime_->DeviceCount());
  ASSERT_FALSE(tier);
  EXPECT_EQ(tier.error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_NE(tier.error().message().find(fmt::format("sees {} NPU device", runtime_->DeviceCount())), std::string::npos)
      << tier.error().message();
}

TEST_F(AscendTierOnAclTest, CapacityAboveFreeMemoryIsRefusedWithBothNumbers) {
  ASSERT_TRUE(runtime_->OpenDevice(0));
  const auto memory = runtime_->GetMemoryInfo(0);
  ASSERT_TRUE(memory);
  EXPECT_GT(memory->free_bytes, 0u);
  EXPECT_GE(memory->total_bytes, memory->free_bytes);
  const auto tier = OpenTier(runtime_, memory->free_bytes + 1);
  ASSERT_FALSE(tier);
  EXPECT_EQ(tier.error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_NE(tier.error().message().find(std::to_string(memory->free_bytes + 1)), std::string::npos);
  EXPECT_NE(tier.error().message().find(FormatBytes(memory->free_bytes)), std::string::npos);
}

TEST_F(AscendTierOnAclTest, DeviceOutOfMemoryIsSeenWithItsNumberAndRolledBack) {
  const auto tier = OpenTier(runtime_, 4 * kMiB);
  ASSERT_TRUE(tier);
  EmulatorProbe::Inject(EmulatorProbe::kMallocOutOfMemory);
  const auto refused = (*tier)->Allocate(kMiB);
  EmulatorProbe::Inject("");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::NO_AVAILABLE_HANDLE);
  EXPECT_EQ(refused.error().vendor_code(), 207001);
  EXPECT_NE(refused.error().message().find("1048576 B on NPU device 0"), std::string::npos)
      << refused.error().message();
  EXPECT_NE(refused.error().message().find("207001"), std::string::npos);
  EXPECT_EQ((*tier)->usage(), 0u);
  EXPECT_TRUE((*tier)->Allocate(4 * kMiB));
}

}  // namespace
}  // namespace mooncake
