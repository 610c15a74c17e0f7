// The NPU tier on a runtime that fails when told to, and on the ACL runtime of the build (the emulator).
#include "tiered_cache/tiers/ascend_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "common/byte_size.h"
#include "device/acl/test_emulator_probe.h"
#include "tiered_cache/data_copier.h"
#include "tiered_cache/fake_npu_runtime.h"

namespace mooncake {
namespace {

using Call = FakeNpuRuntime::Call;

constexpr size_t kMiB = size_t{1} << 20;

// Driver allocations per block unless told otherwise.
Result<std::shared_ptr<AscendCacheTier>> OpenTier(
    const std::shared_ptr<NpuRuntime>& runtime, size_t capacity, int32_t device_id = 0,
    AscendCacheTier::Allocation allocation = AscendCacheTier::Allocation::kDirect, size_t slab_size = 0) {
  return AscendCacheTier::Open({.capacity = capacity,
                                .priority = 100,
                                .tags = {"npu"},
                                .device_id = device_id,
                                .allocation = allocation,
                                .slab_size = slab_size},
                               runtime);
}
Result<std::shared_ptr<AscendCacheTier>> OpenSlabTier(const std::shared_ptr<NpuRuntime>& runtime, size_t capacity,
                                                      size_t slab_size = 0, int32_t device_id = 0) {
  return OpenTier(runtime, capacity, device_id, AscendCacheTier::Allocation::kSlab, slab_size);
}

void ExpectSays(const Status& status, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos) << part << " in: " << status.message();
  }
}

const AscendBufferBase& NpuOf(const DataSource& data) {
  return dynamic_cast<const AscendBufferBase&>(*data.buffer);
}

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

// --- slabs, on the fake ---

class AscendSlabTierTest : public ::testing::Test {
 protected:
  AscendSlabTierTest() { runtime_->device_bytes = FakeNpuRuntime::Paged; }
  std::shared_ptr<FakeNpuRuntime> runtime_ = std::make_shared<FakeNpuRuntime>(2, 64 * kMiB);
};

TEST_F(AscendSlabTierTest, AfterTheStartNoBlockCallsTheDriver) {
  const auto tier = OpenSlabTier(runtime_, 16 * kMiB);
  ASSERT_TRUE(tier);
  EXPECT_EQ(runtime_->calls(Call::kAllocate), 1u) << "one slab by default";
  EXPECT_EQ(runtime_->used_bytes(0), 16 * kMiB);
  for (int round = 0; round < 3; ++round) {
    std::vector<DataSource> blocks;
    while (auto block = (*tier)->Allocate(100'000)) blocks.push_back(std::move(*block));
    EXPECT_EQ(blocks.size(), 16 * kMiB / 100'352);
  }
  EXPECT_EQ(runtime_->calls(Call::kAllocate), 1u);
  EXPECT_EQ(runtime_->calls(Call::kFree), 0u);
  EXPECT_EQ((*tier)->usage(), 0u);
  EXPECT_EQ((*tier)->largest_hole(), 16 * kMiB) << "holes join again";
}

TEST_F(AscendSlabTierTest, BlocksAreAlignedAndCountAsTheyAreRounded) {
  const auto tier = OpenSlabTier(runtime_, 4 * kMiB);
  ASSERT_TRUE(tier);
  std::vector<DataSource> blocks;
  size_t wanted = 0;
  for (const size_t size : {1u, 511u, 512u, 513u, 100'000u}) {
    blocks.push_back(std::move(*(*tier)->Allocate(size)));
    EXPECT_EQ(blocks.back().size(), size);
    EXPECT_EQ(static_cast<uintptr_t>(NpuOf(blocks.back()).pointer().device_ptr) % 512, 0u);
    wanted += (size + 511) / 512 * 512;
    EXPECT_EQ((*tier)->usage(), wanted);
  }
}

TEST_F(AscendSlabTierTest, PartOfAPageIsLeftToTheDeviceAndTold) {
  ::testing::internal::CaptureStderr();
  const auto tier = OpenSlabTier(runtime_, 5 * kMiB);
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_TRUE(tier);
  EXPECT_EQ((*tier)->info().capacity, 4 * kMiB);
  EXPECT_EQ(runtime_->used_bytes(0), 4 * kMiB);
  EXPECT_NE(log.find("4194304 B of the 5242880 B"), std::string::npos) << log;

  ::testing::internal::CaptureStderr();
  const auto small = OpenSlabTier(runtime_, kMiB + 4097);
  EXPECT_FALSE(::testing::internal::GetCapturedStderr().empty());
  ASSERT_TRUE(small);
  EXPECT_EQ((*small)->info().capacity, kMiB) << "no large page fits, so it is small ones";

  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(OpenSlabTier(runtime_, 6 * kMiB));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << "nothing lost, nothing said";
}

// A device that pads each block: the pad must not push the slab over the capacity.
TEST_F(AscendSlabTierTest, PaddingOfTheDeviceStaysWithinTheCapacity) {
  runtime_->device_bytes = [](size_t size) { return size == 0 ? 0 : FakeNpuRuntime::Paged(size + 32); };
  for (const size_t slab_size : {size_t{0}, 2 * kMiB}) {
    const auto tier = OpenSlabTier(runtime_, 8 * kMiB, slab_size);
    ASSERT_TRUE(tier);
    EXPECT_EQ(runtime_->used_bytes(0), 8 * kMiB);
    EXPECT_EQ((*tier)->info().capacity, 8 * kMiB - (slab_size == 0 ? 1 : 4) * 512);
  }
}

TEST_F(AscendSlabTierTest, FullTierSaysWhatItHas) {
  const auto tier = OpenSlabTier(runtime_, 4 * kMiB);
  ASSERT_TRUE(tier);
  auto first = (*tier)->Allocate(kMiB);
  const auto second = (*tier)->Allocate(kMiB);
  ASSERT_TRUE(first && second);
  (*tier)->Free(std::move(*first));
  EXPECT_EQ((*tier)->largest_hole(), 2 * kMiB);
  for (const size_t size : {2 * kMiB + 1, 5 * kMiB, ~size_t{0}}) {
    const auto refused = (*tier)->Allocate(size);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::NO_AVAILABLE_HANDLE);
    EXPECT_EQ(refused.error().vendor_code(), 0);
    ExpectSays(refused.error(), {fmt::format("{} B (used 1048576 of 4194304 B, largest hole 2097152 B)", size)});
  }
  EXPECT_EQ((*tier)->device_refusals(), 0u);
}

TEST_F(AscendSlabTierTest, SeveralSlabsAreFilledToTheLastByteAndNothingSpansTwo) {
  const auto tier = OpenSlabTier(runtime_, 14 * kMiB, 4 * kMiB);
  ASSERT_TRUE(tier);
  EXPECT_EQ(runtime_->calls(Call::kAllocate), 4u) << "three of 4 MiB and one of 2";
  EXPECT_EQ((*tier)->info().capacity, 14 * kMiB);
  EXPECT_EQ((*tier)->largest_block(), 4 * kMiB);
  const DataCopier copier = *DataCopierBuilder().Build();
  std::vector<DataSource> blocks;
  while (auto block = (*tier)->Allocate(kMiB)) blocks.push_back(std::move(*block));
  EXPECT_EQ(blocks.size(), 14u);
  EXPECT_EQ((*tier)->usage(), 14 * kMiB);
  // The fake refuses a copy that leaves its block, so these bytes prove that each piece lies in one slab.
  std::vector<std::byte> bytes(kMiB);
  for (size_t i = 0; i < blocks.size(); ++i) {
    std::fill(bytes.begin(), bytes.end(), static_cast<std::byte>(i + 1));
    ASSERT_TRUE(copier.Copy(DataSource::Host(bytes.data(), bytes.size()), blocks[i]));
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    ASSERT_TRUE(copier.Copy(blocks[i], DataSource::Host(bytes.data(), bytes.size())));
    EXPECT_EQ(bytes.front(), static_cast<std::byte>(i + 1));
    EXPECT_EQ(bytes.back(), static_cast<std::byte>(i + 1));
  }
  blocks.clear();
  EXPECT_EQ((*tier)->largest_hole(), 4 * kMiB) << "slabs do not join";
}

TEST_F(AscendSlabTierTest, BlockAboveTheSlabSizeIsRefusedByItsName) {
  const auto tier = OpenSlabTier(runtime_, 16 * kMiB, 4 * kMiB);
  ASSERT_TRUE(tier);
  EXPECT_TRUE((*tier)->Allocate(4 * kMiB));
  const auto refused = (*tier)->Allocate(4 * kMiB + 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::NO_AVAILABLE_HANDLE);
  ExpectSays(refused.error(), {"4194305 B", "slab_size", "4194304 B each", "used 0 of 16777216 B"});
}

TEST_F(AscendSlabTierTest, AnyRefusedSlabGivesAllBackWithTheNumbers) {
  for (int nth = 1; nth <= 4; ++nth) {
    runtime_->Fail(Call::kAllocate, nth, FakeNpuRuntime::OutOfMemory());
    const auto tier = OpenSlabTier(runtime_, 16 * kMiB, 4 * kMiB);
    ASSERT_FALSE(tier);
    EXPECT_EQ(tier.error().code(), ErrorCode::NO_AVAILABLE_HANDLE);
    EXPECT_EQ(tier.error().vendor_code(), FakeNpuRuntime::kOutOfMemory);
    const size_t before = static_cast<size_t>(nth - 1) * 4 * kMiB;
    ExpectSays(tier.error(), {"16777216 B", fmt::format("slab {} of 4 (4194304 B)", nth),
                              fmt::format("{} free of 64 MiB", FormatBytes(64 * kMiB - before)),
                              fmt::format("{} B were taken before", before)});
    EXPECT_EQ(runtime_->live_blocks(), 0u);
    EXPECT_EQ(runtime_->used_bytes(0), 0u);
  }
}

TEST_F(AscendSlabTierTest, EveryOtherFailureAtTheStartLeavesNothingEither) {
  for (const Call call : {Call::kOpenDevice, Call::kMemoryInfo, Call::kAllocate}) {
    runtime_->Fail(call, 1, Status(ErrorCode::INTERNAL_ERROR, "broken", 507899));
    const auto tier = OpenSlabTier(runtime_, 4 * kMiB);
    ASSERT_FALSE(tier);
    EXPECT_EQ(tier.error().vendor_code(), 507899);
    EXPECT_EQ(runtime_->live_blocks(), 0u);
  }
  EXPECT_FALSE(OpenSlabTier(runtime_, 100)) << "less than a page";
  const auto large = OpenSlabTier(runtime_, 66 * kMiB);
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().code(), ErrorCode::INVALID_PARAMS);
  ExpectSays(large.error(), {"69206016 B", "64 MiB free of 64 MiB"});
  EXPECT_EQ(runtime_->live_blocks(), 0u);
}

TEST_F(AscendSlabTierTest, TiersOnOneDeviceAndOnSeveralDoNotSeeEachOther) {
  const auto first = OpenSlabTier(runtime_, 8 * kMiB);
  const auto same = OpenSlabTier(runtime_, 8 * kMiB, 2 * kMiB);
  const auto other = OpenSlabTier(runtime_, 32 * kMiB, 0, 1);
  ASSERT_TRUE(first && same && other);
  EXPECT_EQ(runtime_->used_bytes(0), 16 * kMiB);
  EXPECT_EQ(runtime_->used_bytes(1), 32 * kMiB);
  const auto here = (*same)->Allocate(kMiB);
  const auto there = (*other)->Allocate(3 * kMiB);
  ASSERT_TRUE(here && there);
  EXPECT_EQ(NpuOf(*there).pointer().device_id, 1);
  EXPECT_EQ((*first)->usage(), 0u);
  EXPECT_EQ((*same)->usage(), kMiB);
  EXPECT_EQ((*other)->usage(), 3 * kMiB);
}

TEST_F(AscendSlabTierTest, SlabTheDeviceDoesNotTakeBackIsTold) {
  auto tier = OpenSlabTier(runtime_, 8 * kMiB, 2 * kMiB);
  ASSERT_TRUE(tier);
  runtime_->Lose(0);
  ::testing::internal::CaptureStderr();
  tier->reset();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("4 of 4 slabs on NPU device 0"), std::string::npos) << log;
}

// Each block is filled with its number and read back before it goes: an overlap would show as a foreign number.
TEST_F(AscendSlabTierTest, BlocksOfManyThreadsDoNotOverlapAndUsageStaysWithinTheCapacity) {
  constexpr size_t kCapacity = 4 * kMiB;
  const auto tier = OpenSlabTier(runtime_, kCapacity, 2 * kMiB);
  ASSERT_TRUE(tier);
  const DataCopier copier = *DataCopierBuilder().Build();
  std::atomic<uint64_t> wrong{0};
  std::atomic<uint64_t> refused{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::pair<DataSource, std::byte>> mine;
      std::vector<std::byte> bytes;
      const auto give_back = [&] {
        auto& [block, number] = mine.front();
        bytes.assign(block.size(), std::byte{0});
        if (!copier.Copy(block, DataSource::Host(bytes.data(), bytes.size()))) wrong.fetch_add(1);
        if (!std::ranges::all_of(bytes, [&](std::byte b) { return b == number; })) wrong.fetch_add(1);
        (*tier)->Free(std::move(block));
        mine.erase(mine.begin());
      };
      for (int i = 0; i < 500; ++i) {
        auto block = (*tier)->Allocate(static_cast<size_t>(1000 + (i * 7919 + t * 104729) % 150'000));
        if (block) {
          const auto number = static_cast<std::byte>(t * 64 + i % 64);
          bytes.assign(block->size(), number);
          if (!copier.Copy(DataSource::Host(bytes.data(), bytes.size()), *block)) wrong.fetch_add(1);
          mine.emplace_back(std::move(*block), number);
        } else {
          refused.fetch_add(1);
        }
        if ((*tier)->usage() > kCapacity) wrong.fetch_add(1);
        if (!mine.empty() && (mine.size() > 70 || !block)) give_back();
      }
      while (!mine.empty()) give_back();
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_GT(refused.load(), 0u) << "the tier was never full: this run proved nothing";
  EXPECT_EQ((*tier)->usage(), 0u);
  EXPECT_EQ((*tier)->largest_hole(), 2 * kMiB);
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

class AscendTierOnAclTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto runtime = OpenNpuRuntime();
    ASSERT_TRUE(runtime) << runtime.error().ToString();
    runtime_ = *runtime;
    ASSERT_TRUE(EmulatorProbe::Loaded()) << "these tests look into the emulator";
    ASSERT_EQ(EmulatorProbe::LiveBlocks(), 0);
  }
  void TearDown() override {
    if (!EmulatorProbe::Loaded()) return;
    EmulatorProbe::Inject("");
    EXPECT_EQ(EmulatorProbe::LiveBlocks(), 0) << "device memory leaked";
  }
  std::shared_ptr<NpuRuntime> runtime_;
};

TEST_F(AscendTierOnAclTest, BlocksAreRealDeviceMemoryAndReallyFreed) {
  const auto tier = OpenTier(runtime_, 4 * kMiB);
  ASSERT_TRUE(tier) << tier.error().ToString();
  {
    const auto block = (*tier)->Allocate(3 * kMiB);
    ASSERT_TRUE(block) << block.error().ToString();
    EXPECT_EQ(EmulatorProbe::LiveBlocks(), 1);
    const auto* address = reinterpret_cast<const void*>(static_cast<uintptr_t>(NpuOf(*block).pointer().device_ptr));
    EXPECT_EQ(runtime_->DeviceOf(address), 0);
  }
  EXPECT_EQ(EmulatorProbe::LiveBlocks(), 0);
  EXPECT_EQ((*tier)->usage(), 0u);
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
