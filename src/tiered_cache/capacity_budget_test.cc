// The byte limit under one thread and under many.
#include "tiered_cache/capacity_budget.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <limits>
#include <random>
#include <thread>
#include <vector>

namespace mooncake {
namespace {

TEST(CapacityBudgetTest, TakesExactlyItsCapacity) {
  CapacityBudget budget(100);
  const auto most = budget.Reserve(60);
  ASSERT_TRUE(most);
  EXPECT_FALSE(budget.Reserve(41));
  EXPECT_EQ(budget.used(), 60u) << "a refusal takes nothing";
  const auto rest = budget.Reserve(40);
  ASSERT_TRUE(rest);
  EXPECT_EQ(budget.used(), budget.capacity());
  EXPECT_FALSE(budget.Reserve(1));
}

TEST(CapacityBudgetTest, HugeSizesDoNotWrap) {
  CapacityBudget budget(1000);
  const auto held = budget.Reserve(999);
  ASSERT_TRUE(held);
  constexpr size_t kMax = std::numeric_limits<size_t>::max();
  for (const size_t size : {kMax, kMax - 1, kMax - 998, kMax - 999, kMax / 2 + 1, size_t{1} << 63}) {
    EXPECT_FALSE(budget.Reserve(size)) << size;
  }
  EXPECT_EQ(budget.used(), 999u);
}

TEST(CapacityBudgetTest, HoldsCapacityOfAllAddressableBytes) {
  constexpr size_t kMax = std::numeric_limits<size_t>::max();
  CapacityBudget budget(kMax);
  const auto first = budget.Reserve(kMax - 1);
  ASSERT_TRUE(first);
  EXPECT_FALSE(budget.Reserve(2));
  EXPECT_TRUE(budget.Reserve(1));
}

TEST(CapacityBudgetTest, ReservationReturnsItsBytesOnceAfterMoves) {
  CapacityBudget budget(100);
  {
    auto first = budget.Reserve(70);
    ASSERT_TRUE(first);
    CapacityBudget::Reservation second(std::move(*first));
    EXPECT_EQ(budget.used(), 70u);
    first.reset();  // moved from: nothing to return
    EXPECT_EQ(budget.used(), 70u);
    {
      const CapacityBudget::Reservation third(std::move(second));
      EXPECT_EQ(budget.used(), 70u);
    }
    EXPECT_EQ(budget.used(), 0u);
  }
  EXPECT_EQ(budget.used(), 0u);
}

// The threads count what they hold themselves; their sum may never pass the limit that the budget promises.
TEST(CapacityBudgetTest, ManyThreadsNeverHoldMoreThanTheCapacity) {
  constexpr size_t kCapacity = 600;  // below what one thread alone asks for
  constexpr int kThreads = 8;
  constexpr int kRounds = 100'000;
  CapacityBudget budget(kCapacity);
  std::atomic<size_t> held{0};
  std::atomic<size_t> peak{0};
  std::atomic<uint64_t> granted{0};
  std::atomic<uint64_t> refused{0};
  std::latch start(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(static_cast<unsigned>(t + 1));
      std::vector<std::pair<size_t, CapacityBudget::Reservation>> mine;
      const auto drop_last = [&] {
        held.fetch_sub(mine.back().first);  // before its bytes return
        mine.pop_back();
      };
      start.arrive_and_wait();
      for (int i = 0; i < kRounds; ++i) {
        const size_t size = random() % 200 + 1;
        if (auto room = budget.Reserve(size)) {
          const size_t now = held.fetch_add(size) + size;
          for (size_t seen = peak.load(); seen < now && !peak.compare_exchange_weak(seen, now);) {
          }
          mine.emplace_back(size, std::move(*room));
          granted.fetch_add(1);
        } else {
          refused.fetch_add(1);
          if (!mine.empty()) drop_last();
        }
        if (mine.size() > 20) drop_last();  // one thread alone reaches the limit, however they are scheduled
      }
      while (!mine.empty()) drop_last();
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_LE(peak.load(), kCapacity);
  EXPECT_EQ(budget.used(), 0u);
  EXPECT_EQ(granted + refused, uint64_t{kThreads} * kRounds);
  EXPECT_GT(refused.load(), 0u) << "the limit was never reached: this run proved nothing";
}

TEST(CapacityBudgetDeathTest, DyingWithBytesReservedStopsTheProcess) {
  EXPECT_DEATH(
      {
        auto* budget = new CapacityBudget(10);
        auto room = budget->Reserve(4);
        delete budget;
      },
      "4 B still reserved");
}

}  // namespace
}  // namespace mooncake
