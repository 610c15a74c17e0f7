// The byte limit under every order of the atomic operations of two and three threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <vector>

#include "tiered_cache/capacity_budget.h"
#include "tiered_cache/test_interleavings.h"

namespace mooncake {
namespace {

// What the threads did in one schedule, and what was wrong in all of them.
struct Watch {
  size_t capacity = 0;
  size_t value = 0;                // of the budget's atomic
  std::vector<size_t> most;        // per thread: the largest value since its call began
  std::vector<int> spurious_left;  // per thread: weak exchanges that may still fail for no reason
  size_t held = 0;                 // by the threads' own account
  uint64_t granted = 0;
  uint64_t refused = 0;
  uint64_t above_capacity = 0;
  uint64_t wrong_refusals = 0;

  void Changed(size_t now) {
    value = now;
    if (now > capacity) ++above_capacity;
    for (size_t& seen : most) seen = std::max(seen, now);
  }
};
Watch* watch = nullptr;

// The part of std::atomic<size_t> that the budget uses; each operation waits for its turn.
class ModelAtomic {
 public:
  ModelAtomic(size_t value) : value_(value) {}
  size_t load(std::memory_order = std::memory_order_seq_cst) const {
    Interleavings::Point();
    return value_;
  }
  void store(size_t value, std::memory_order = std::memory_order_seq_cst) {
    Interleavings::Point();
    Set(value);
  }
  size_t fetch_sub(size_t size, std::memory_order) {
    Interleavings::Point();
    watch->held -= size;  // at this moment, not before
    const size_t before = value_;
    Set(before - size);
    return before;
  }
  bool compare_exchange_weak(size_t& expected, size_t desired, std::memory_order, std::memory_order) {
    Interleavings::Point();
    if (value_ != expected) {
      expected = value_;
      return false;
    }
    if (int& left = watch->spurious_left[Interleavings::self()]; left > 0 && Interleavings::Decide(2) == 1) {
      --left;
      return false;
    }
    Set(desired);
    return true;
  }

 protected:
  void Set(size_t value) {
    value_ = value;
    if (Interleavings::Exploring()) watch->Changed(value);
  }

 private:
  size_t value_;
};

// Loses updates: what a check and a plain store would do.
class LosingAtomic : public ModelAtomic {
 public:
  using ModelAtomic::ModelAtomic;
  bool compare_exchange_weak(size_t&, size_t desired, std::memory_order, std::memory_order) {
    store(desired);
    return true;
  }
  size_t fetch_sub(size_t size, std::memory_order) {
    Interleavings::Point();
    watch->held -= size;
    return size;  // as the budget expects; the account is wrong by now
  }
  size_t load(std::memory_order order = std::memory_order_seq_cst) const {
    return Interleavings::Exploring() ? ModelAtomic::load(order) : 0;
  }
};

struct Step {
  size_t size;
  bool keep = false;  // until the thread ends; else given back at once
};

struct Scenario {
  const char* name;
  size_t capacity;
  std::vector<std::vector<Step>> threads;
  int spurious = 0;  // failures of a weak exchange per thread
};

template <typename Budget>
void RunThread(Budget& budget, const std::vector<Step>& steps, size_t thread) {
  std::vector<typename Budget::Reservation> kept;
  for (const Step& step : steps) {
    watch->most[thread] = watch->value;
    std::optional<typename Budget::Reservation> room = budget.Reserve(step.size);
    if (!room) {
      ++watch->refused;
      // Right only if at some moment of the call there was no room.
      if (step.size <= watch->capacity && watch->most[thread] <= watch->capacity - step.size) ++watch->wrong_refusals;
      continue;
    }
    ++watch->granted;
    watch->held += step.size;
    if (watch->held > watch->capacity) ++watch->above_capacity;
    if (step.keep) kept.push_back(std::move(*room));
  }
}

template <typename Atomic>
Watch ExploreAll(const Scenario& scenario, uint64_t& schedules) {
  using Budget = BasicCapacityBudget<Atomic>;
  const size_t threads = scenario.threads.size();
  Watch seen;
  seen.capacity = scenario.capacity;
  watch = &seen;
  std::optional<Budget> budget;
  schedules = Interleavings(threads).Explore(
      [&] {
        budget.emplace(scenario.capacity);
        seen.value = seen.held = 0;
        seen.most.assign(threads, 0);
        seen.spurious_left.assign(threads, scenario.spurious);
      },
      [&](size_t thread) { RunThread(*budget, scenario.threads[thread], thread); },
      [&] {
        EXPECT_EQ(budget->used(), 0u);
        EXPECT_EQ(seen.held, 0u);
        budget.reset();
      });
  watch = nullptr;
  return seen;
}

const std::vector<Scenario>& Scenarios() {
  constexpr size_t kHuge = ~size_t{0};
  static const std::vector<Scenario> kAll = {
      {"two threads, two blocks each that exclude one another", 10, {{{6}, {5}}, {{6}, {5}}}},
      {"two threads that keep what they get", 10, {{{3, true}, {4, true}}, {{4, true}, {3, true}}}},
      {"three threads, any two of them fit", 10, {{{4}}, {{5}}, {{5}}}},
      {"three threads, one takes all", 10, {{{10}}, {{1}}, {{9}}}},
      {"three threads, one byte too many", 10, {{{5, true}}, {{5, true}}, {{1, true}}}},
      {"sizes whose sum wraps", 10, {{{kHuge}}, {{8}, {kHuge - 7}}, {{3}}}},
      {"exchanges that fail for no reason", 10, {{{6}, {4, true}}, {{6, true}}}, 1},
  };
  return kAll;
}

TEST(CapacityBudgetOrdersTest, NoOrderExceedsTheCapacityOrRefusesWithoutReason) {
  uint64_t total = 0;
  for (const Scenario& scenario : Scenarios()) {
    SCOPED_TRACE(scenario.name);
    uint64_t schedules = 0;
    const Watch seen = ExploreAll<ModelAtomic>(scenario, schedules);
    EXPECT_EQ(seen.above_capacity, 0u);
    EXPECT_EQ(seen.wrong_refusals, 0u);
    EXPECT_GT(seen.granted, 0u);
    EXPECT_GT(seen.refused, 0u) << "the limit was never reached";
    EXPECT_GT(schedules, 100u);
    std::printf("%8lu orders of %s: %lu granted, %lu refused\n", static_cast<unsigned long>(schedules), scenario.name,
                static_cast<unsigned long>(seen.granted), static_cast<unsigned long>(seen.refused));
    total += schedules;
  }
  EXPECT_GT(total, 10'000u);
}

// Without this the test above would prove little.
TEST(CapacityBudgetOrdersTest, ALostUpdateIsFound) {
  uint64_t schedules = 0;
  const Watch seen = ExploreAll<LosingAtomic>({"", 10, {{{6, true}}, {{6, true}}}}, schedules);
  EXPECT_EQ(schedules, 16u) << "20 orders of three operations on either side, fewer where one is refused";
  EXPECT_GT(seen.above_capacity, 0u);
  EXPECT_LT(seen.above_capacity, schedules) << "one after the other it works";
}

// Three threads with n operations each that do not depend on one another have (3n)!/(n!)^3 orders.
TEST(CapacityBudgetOrdersTest, EveryOrderIsVisitedOnce) {
  const auto orders = [](size_t threads, int operations) {
    return Interleavings(threads).Explore([] {},
                                          [&](size_t) {
                                            for (int i = 0; i < operations; ++i) Interleavings::Point();
                                          },
                                          [] {});
  };
  EXPECT_EQ(orders(2, 3), 20u);
  EXPECT_EQ(orders(3, 2), 90u);
  EXPECT_EQ(orders(3, 3), 1680u);
}

}  // namespace
}  // namespace mooncake
