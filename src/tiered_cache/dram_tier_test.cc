// The DRAM tier: its limit, its blocks, and what it refuses to start with.
#include "tiered_cache/tiers/dram_tier.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "common/byte_size.h"

namespace mooncake {
namespace {

std::shared_ptr<DramTier> OpenTier(size_t capacity) {
  auto tier =
      DramTier::Open({.capacity = capacity, .priority = 7, .tags = {"a", "b"}, .numa_node = {}, .prefault = false});
  EXPECT_TRUE(tier) << tier.error().ToString();
  return tier ? *tier : nullptr;
}

const HostBuffer& HostOf(const DataSource& data) {
  return dynamic_cast<const HostBuffer&>(*data.buffer);
}

TEST(DramTierTest, SaysWhatItIs) {
  const auto tier = OpenTier(1 << 20);
  ASSERT_TRUE(tier);
  EXPECT_EQ(tier->info().name, "DRAM");
  EXPECT_EQ(tier->info().type, MemoryType::DRAM);
  EXPECT_EQ(tier->info().capacity, size_t{1} << 20);
  EXPECT_EQ(tier->info().priority, 7);
  EXPECT_EQ(tier->info().tags, (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(tier->info().id.IsNil());
  EXPECT_EQ(tier->usage(), 0u);
}

TEST(DramTierTest, BuffersHaveTheSizeAskedFor) {
  const auto tier = OpenTier(1 << 20);
  ASSERT_TRUE(tier);
  for (const size_t size : {1u, 63u, 64u, 65u, 4096u, 100'000u}) {
    const auto block = tier->Allocate(size);
    ASSERT_TRUE(block) << size;
    EXPECT_EQ(block->size(), size);
    EXPECT_EQ(block->type, MemoryType::DRAM);
    EXPECT_GE(tier->usage(), size);
  }
  EXPECT_EQ(tier->usage(), 0u);
}

TEST(DramTierTest, RefusesBlockOfZeroBytes) {
  const auto tier = OpenTier(1 << 20);
  ASSERT_TRUE(tier);
  const auto block = tier->Allocate(0);
  ASSERT_FALSE(block);
  EXPECT_EQ(block.error().code(), ErrorCode::INVALID_PARAMS);
}

TEST(DramTierTest, FullTierRefusesAndKeepsUsage) {
  const auto tier = OpenTier(4096);
  ASSERT_TRUE(tier);
  auto held = tier->Allocate(4096);
  ASSERT_TRUE(held);
  EXPECT_EQ(tier->usage(), 4096u);
  for (const size_t size : {size_t{1}, size_t{4096}, size_t{4097}, ~size_t{0}}) {
    const auto more = tier->Allocate(size);
    ASSERT_FALSE(more) << size;
    EXPECT_EQ(more.error().code(), ErrorCode::NO_AVAILABLE_HANDLE);
    EXPECT_EQ(more.error().vendor_code(), 0);
    EXPECT_NE(more.error().message().find(fmt::format("{} B", size)), std::string::npos) << more.error().message();
    EXPECT_NE(more.error().message().find("used 4096 of 4096"), std::string::npos) << more.error().message();
  }
  EXPECT_EQ(tier->usage(), 4096u);
  tier->Free(std::move(*held));
  EXPECT_EQ(tier->usage(), 0u);
  EXPECT_TRUE(tier->Allocate(4096)) << "the freed space is whole again";
}

TEST(DramTierTest, FreeingANullBufferIsFine) {
  const auto tier = OpenTier(4096);
  ASSERT_TRUE(tier);
  tier->Free(DataSource{nullptr, MemoryType::DRAM});
  EXPECT_EQ(tier->usage(), 0u);
}

// Every block is filled with its own number and checked when it goes: an overlap would show as a foreign number.
TEST(DramTierTest, BlocksOfManyThreadsDoNotOverlap) {
  constexpr int kThreads = 4;
  constexpr size_t kCapacity = 256 << 10;
  const auto tier = OpenTier(kCapacity);
  ASSERT_TRUE(tier);
  std::atomic<uint64_t> wrong{0};
  std::atomic<uint64_t> over{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(static_cast<unsigned>(t + 1));
      std::vector<std::pair<DataSource, int>> mine;
      const auto give_back = [&](size_t i) {
        std::swap(mine[i], mine.back());
        const auto& [block, number] = mine.back();
        for (size_t at = 0; at < block.size(); ++at) {
          if (HostOf(block).data()[at] != static_cast<std::byte>(number)) wrong.fetch_add(1);
        }
        tier->Free(std::move(mine.back().first));
        mine.pop_back();
      };
      for (int i = 0; i < 3000; ++i) {
        auto block = tier->Allocate(random() % 3000 + 1);
        if (block) {
          const int number = (t * 61 + i) & 0xFF;
          std::memset(HostOf(*block).data(), number, block->size());
          mine.emplace_back(std::move(*block), number);
        }
        if (tier->usage() > kCapacity) over.fetch_add(1);
        if (mine.size() > 20 || (!block && !mine.empty())) give_back(random() % mine.size());
      }
      while (!mine.empty()) give_back(mine.size() - 1);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_EQ(over.load(), 0u);
  EXPECT_EQ(tier->usage(), 0u);
}

TEST(DramTierTest, BlocksLieInsideOneMapping) {
  constexpr size_t kCapacity = 64 << 10;
  const auto tier = OpenTier(kCapacity);
  ASSERT_TRUE(tier);
  std::vector<DataSource> blocks;
  std::byte* lowest = nullptr;
  std::byte* highest = nullptr;
  while (auto block = tier->Allocate(1024)) {
    std::byte* data = HostOf(*block).data();
    if (lowest == nullptr || data < lowest) lowest = data;
    if (data + 1024 > highest) highest = data + 1024;
    blocks.push_back(std::move(*block));
  }
  EXPECT_EQ(blocks.size(), kCapacity / 1024);
  EXPECT_EQ(static_cast<size_t>(highest - lowest), kCapacity);
}

TEST(DramTierTest, RefusesCapacityAboveHostMemoryWithBothNumbers) {
  struct sysinfo host{};
  ASSERT_EQ(sysinfo(&host), 0);
  const size_t total = host.totalram * host.mem_unit;
  const auto tier =
      DramTier::Open({.capacity = total + 1, .priority = 0, .tags = {}, .numa_node = {}, .prefault = true});
  ASSERT_FALSE(tier);
  EXPECT_EQ(tier.error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_NE(tier.error().message().find(fmt::format("{} B", total + 1)), std::string::npos) << tier.error().message();
  EXPECT_NE(tier.error().message().find(FormatBytes(total)), std::string::npos) << tier.error().message();
}

TEST(DramTierTest, RefusesMissingNumaNode) {
  for (const int node : {4095, 1 << 20, -1}) {
    const auto tier =
        DramTier::Open({.capacity = 1 << 20, .priority = 0, .tags = {}, .numa_node = node, .prefault = false});
    ASSERT_FALSE(tier) << node;
    EXPECT_EQ(tier.error().code(), ErrorCode::INVALID_PARAMS);
    EXPECT_NE(tier.error().message().find(fmt::format("numa_node {}", node)), std::string::npos);
  }
}

TEST(DramTierTest, BindsToNodeZeroWhereThereIsOne) {
  const bool has_nodes = access("/sys/devices/system/node/node0", F_OK) == 0;
  const auto tier = DramTier::Open({.capacity = 1 << 20, .priority = 0, .tags = {}, .numa_node = 0, .prefault = true});
  ASSERT_EQ(tier.has_value(), has_nodes) << tier.error().ToString();
  if (!has_nodes) return;
  const auto block = (*tier)->Allocate(1 << 20);
  ASSERT_TRUE(block);
  std::memset(HostOf(*block).data(), 1, block->size());
}

long MinorFaults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// Prefaulting touches every page once, which the kernel counts; a tier destroyed at once must have touched only some.
TEST(DramTierTest, PrefaultStopsWhenTheTierDiesEarly) {
  struct sysinfo host{};
  ASSERT_EQ(sysinfo(&host), 0);
  const size_t capacity = std::min(size_t{2} << 30, host.totalram * host.mem_unit / 4);
  const long before = MinorFaults();
  {
    ASSERT_TRUE(DramTier::Open({.capacity = capacity, .priority = 0, .tags = {}, .numa_node = {}, .prefault = true}));
  }
  const long pages = static_cast<long>(capacity) / sysconf(_SC_PAGESIZE);
  EXPECT_LT(MinorFaults() - before, pages / 2);
}

TEST(DramTierDeathTest, DyingWithBlocksOutStopsTheProcess) {
  EXPECT_DEATH(
      {
        auto tier = DramTier::Open({.capacity = 4096, .priority = 0, .tags = {}, .numa_node = {}, .prefault = false});
        auto* leaked = new DataSource(std::move(*(*tier)->Allocate(64)));
        (*tier).reset();
        (void)leaked;
      },
      "64 B handed out");
}

}  // namespace
}  // namespace mooncake
