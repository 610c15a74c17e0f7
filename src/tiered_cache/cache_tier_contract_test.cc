// What every tier promises, whatever memory it is made of.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tiered_cache/cache_tier.h"
#include "tiered_cache/fake_npu_runtime.h"
#include "tiered_cache/tiers/ascend_tier.h"
#include "tiered_cache/tiers/dram_tier.h"

namespace mooncake {
namespace {

constexpr size_t kCapacity = size_t{4} << 20;

struct Kind {
  const char* name;
  std::function<std::shared_ptr<CacheTier>()> open;
};

std::shared_ptr<CacheTier> OpenDram() {
  DramTier::Options options;
  options.capacity = kCapacity;
  options.prefault = false;
  return *DramTier::Open(options);
}

std::shared_ptr<CacheTier> OpenAscend(AscendCacheTier::Allocation allocation, size_t slab_size) {
  const auto runtime = std::make_shared<FakeNpuRuntime>();
  runtime->device_bytes = FakeNpuRuntime::Paged;
  AscendCacheTier::Options options;
  options.capacity = kCapacity;
  options.allocation = allocation;
  options.slab_size = slab_size;
  return *AscendCacheTier::Open(options, runtime);
}

const Kind kKinds[] = {
    {"Dram", OpenDram},
    {"AscendOneSlab", [] { return OpenAscend(AscendCacheTier::Allocation::kSlab, 0); }},
    {"AscendSlabs", [] { return OpenAscend(AscendCacheTier::Allocation::kSlab, size_t{2} << 20); }},
    {"AscendDirect", [] { return OpenAscend(AscendCacheTier::Allocation::kDirect, 0); }},
};

class CacheTierContractTest : public ::testing::TestWithParam<Kind> {
 protected:
  const std::shared_ptr<CacheTier> tier_ = GetParam().open();
};

TEST_P(CacheTierContractTest, EmptyTierIsEmpty) {
  EXPECT_EQ(tier_->usage(), 0u);
  EXPECT_EQ(tier_->info().capacity, kCapacity);
  EXPECT_EQ(tier_->largest_hole(), tier_->largest_block());
  EXPECT_LE(tier_->largest_block(), kCapacity);
  EXPECT_EQ(tier_->device_refusals(), 0u);
}

TEST_P(CacheTierContractTest, BlockHasItsSizeAndCountsUntilItDies) {
  for (const size_t size : {size_t{1}, size_t{511}, size_t{4096}, size_t{100'000}, tier_->largest_block()}) {
    const auto block = tier_->Allocate(size);
    ASSERT_TRUE(block) << block.error().ToString();
    EXPECT_EQ(block->size(), size);
    EXPECT_EQ(block->type, tier_->info().type);
    EXPECT_GE(tier_->usage(), size);
    EXPECT_LE(tier_->usage(), kCapacity);
  }
  EXPECT_EQ(tier_->usage(), 0u);
}

TEST_P(CacheTierContractTest, NothingOfZeroBytesIsGivenAndNothingTakenBack) {
  const auto block = tier_->Allocate(0);
  ASSERT_FALSE(block);
  EXPECT_EQ(block.error().code(), ErrorCode::INVALID_PARAMS);
  tier_->Free(DataSource{nullptr, tier_->info().type});
  tier_->Free({});
  EXPECT_EQ(tier_->usage(), 0u);
}

TEST_P(CacheTierContractTest, LargestHoleFitsAndOneByteMoreDoesNot) {
  std::vector<DataSource> held;
  std::minstd_rand random(7);
  for (int i = 0; i < 60; ++i) {
    if (auto block = tier_->Allocate(random() % 150'000 + 1)) held.push_back(std::move(*block));
    if (!held.empty() && random() % 3 == 0) {
      std::swap(held[random() % held.size()], held.back());
      held.pop_back();
    }
    const size_t hole = tier_->largest_hole();
    EXPECT_FALSE(tier_->Allocate(hole + 1));
    if (hole != 0) {
      EXPECT_TRUE(tier_->Allocate(hole));
    }
  }
}

TEST_P(CacheTierContractTest, FullTierRefusesWithTheNumbersAndKeepsItsUsage) {
  std::vector<DataSource> held;
  while (auto block = tier_->Allocate(100'000)) held.push_back(std::move(*block));
  const size_t used = tier_->usage();
  for (const size_t size : {size_t{100'000}, kCapacity, kCapacity + 1, ~size_t{0} - 31, ~size_t{0}}) {
    const auto refused = tier_->Allocate(size);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::NO_AVAILABLE_HANDLE);
    EXPECT_EQ(refused.error().vendor_code(), 0);
    for (const std::string& part :
         {tier_->info().name, fmt::format("{} B", size),
          fmt::format("used {} of {} B, largest hole {} B", used, kCapacity, tier_->largest_hole())}) {
      EXPECT_NE(refused.error().message().find(part), std::string::npos) << part << ": " << refused.error().message();
    }
    EXPECT_EQ(tier_->usage(), used);
  }
  held.clear();
  EXPECT_EQ(tier_->usage(), 0u);
  EXPECT_TRUE(tier_->Allocate(tier_->largest_block()));
}

TEST_P(CacheTierContractTest, BlocksDieOnOtherThreadsAndNothingIsLeft) {
  std::atomic<uint64_t> over{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(t + 1);
      std::vector<DataSource> mine;
      for (int i = 0; i < 500; ++i) {
        auto block = tier_->Allocate(random() % 200'000 + 1);
        if (tier_->usage() > kCapacity || tier_->largest_hole() > kCapacity) over.fetch_add(1);
        if (block) mine.push_back(std::move(*block));
        if (mine.size() > 6) std::thread([victims = std::move(mine)] {}).join();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(over.load(), 0u);
  EXPECT_EQ(tier_->usage(), 0u);
  EXPECT_EQ(tier_->largest_hole(), tier_->largest_block());
}

INSTANTIATE_TEST_SUITE_P(Tiers, CacheTierContractTest, ::testing::ValuesIn(kKinds),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace mooncake
