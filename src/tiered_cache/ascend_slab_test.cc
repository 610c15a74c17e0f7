// The NPU tier on slabs: what is taken at start, how it is cut up, and what happens when the device refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "common/byte_size.h"
#include "tiered_cache/data_copier.h"
#include "tiered_cache/fake_npu_runtime.h"
#include "tiered_cache/test_ascend_tiers.h"

namespace mooncake {
namespace {

using Call = FakeNpuRuntime::Call;

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

}  // namespace
}  // namespace mooncake
