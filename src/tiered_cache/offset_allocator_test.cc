// The offset allocator against a reference model, its fragmentation against best fit, and its refusals.
#include "tiered_cache/offset_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

namespace mooncake {
namespace {

using Range = OffsetAllocator::Range;
constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;

// Free extents by offset and by size; obvious rather than fast.
class ModelSpace {
 public:
  explicit ModelSpace(uint64_t capacity) { Insert(0, capacity); }

  uint64_t free_bytes() const { return free_bytes_; }
  uint64_t largest() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
  size_t holes() const { return by_offset_.size(); }

  // Size of the smallest hole that fits, 0 when none does.
  uint64_t BestFit(uint64_t size) const {
    const auto hole = by_size_.lower_bound({size, 0});
    return hole == by_size_.end() ? 0 : hole->first;
  }

  // Takes [offset, offset + size) and returns the size of the hole it came from, 0 when it was not free.
  uint64_t Take(uint64_t offset, uint64_t size) {
    auto hole = by_offset_.upper_bound(offset);
    if (hole == by_offset_.begin()) return 0;
    --hole;
    const auto [start, length] = *hole;
    if (offset + size > start + length) return 0;
    Erase(hole);
    if (offset > start) Insert(start, offset - start);
    if (offset + size < start + length) Insert(offset + size, start + length - offset - size);
    return length;
  }

  std::optional<Range> Allocate(uint64_t size) {
    const auto hole = by_size_.lower_bound({size, 0});
    if (hole == by_size_.end()) return std::nullopt;
    const uint64_t offset = hole->second;
    Take(offset, size);
    return Range{offset, size, 0};
  }

  void Free(const Range& range) {
    uint64_t offset = range.offset, size = range.size;
    auto next = by_offset_.lower_bound(offset);
    if (next != by_offset_.end() && offset + size == next->first) {
      size += next->second;
      next = Erase(next);
    }
    if (next != by_offset_.begin()) {
      const auto previous = std::prev(next);
      if (previous->first + previous->second == offset) {
        offset = previous->first;
        size += previous->second;
        Erase(previous);
      }
    }
    Insert(offset, size);
  }

 private:
  using Extents = std::map<uint64_t, uint64_t>;

  void Insert(uint64_t offset, uint64_t size) {
    by_offset_.emplace(offset, size);
    by_size_.emplace(size, offset);
    free_bytes_ += size;
  }
  Extents::iterator Erase(Extents::iterator hole) {
    by_size_.erase({hole->second, hole->first});
    free_bytes_ -= hole->second;
    return by_offset_.erase(hole);
  }

  Extents by_offset_;
  std::set<std::pair<uint64_t, uint64_t>> by_size_;
  uint64_t free_bytes_ = 0;
};

uint64_t LogUniform(std::mt19937_64& random, uint64_t low, uint64_t high) {
  std::uniform_real_distribution<double> exponent(std::log2(static_cast<double>(low)),
                                                  std::log2(static_cast<double>(high)));
  return std::clamp(static_cast<uint64_t>(std::exp2(exponent(random))), low, high);
}

struct Workload {
  uint64_t seed;
  uint64_t capacity;
  uint64_t alignment;
  uint64_t smallest;
  uint64_t largest;
};

class OffsetAllocatorModelTest : public testing::TestWithParam<Workload> {};

TEST_P(OffsetAllocatorModelTest, EveryStepMatchesTheModelAndTheEndIsOneHole) {
  const Workload& load = GetParam();
  std::mt19937_64 random(load.seed);
  OffsetAllocator allocator(load.capacity, load.alignment);
  ModelSpace model(allocator.capacity());
  std::vector<Range> live;
  uint64_t refusals = 0;
  for (int step = 0; step < 100000; ++step) {
    // Phases that mostly fill and mostly drain, so that both crowded and sparse states occur.
    const bool fill = random() % 100 < ((step / 5000) % 2 == 0 ? 60u : 42u);
    if (fill || live.empty()) {
      const uint64_t size = LogUniform(random, load.smallest, load.largest);
      const uint64_t taken = allocator.RoundUp(size);
      const uint64_t best = model.BestFit(taken);
      const auto range = allocator.Allocate(size);
      ASSERT_EQ(range.has_value(), best != 0) << "seed " << load.seed << " step " << step << " size " << size;
      if (!range) {
        ++refusals;
        continue;
      }
      ASSERT_EQ(range->size, size);
      ASSERT_EQ(range->offset % load.alignment, 0u);
      ASSERT_EQ(model.Take(range->offset, taken), best) << "not free, or not the best hole; step " << step;
      live.push_back(*range);
    } else {
      std::swap(live[random() % live.size()], live.back());
      Range gone = live.back();
      live.pop_back();
      allocator.Free(gone);
      gone.size = allocator.RoundUp(gone.size);
      model.Free(gone);
    }
    ASSERT_EQ(allocator.free_bytes(), model.free_bytes());
    ASSERT_EQ(allocator.allocated_bytes() + allocator.free_bytes(), allocator.capacity());
    ASSERT_EQ(allocator.largest_free(), model.largest()) << "step " << step;
    ASSERT_EQ(allocator.allocation_count(), live.size());
  }
  EXPECT_GT(refusals, 0u) << "the workload should reach a full space";
  std::ranges::shuffle(live, random);
  for (const Range& range : live) allocator.Free(range);
  EXPECT_EQ(allocator.largest_free(), allocator.capacity());
  EXPECT_EQ(allocator.allocated_bytes(), 0u);
  EXPECT_TRUE(allocator.Allocate(allocator.capacity()));
}

INSTANTIATE_TEST_SUITE_P(Seeds, OffsetAllocatorModelTest,
                         testing::Values(Workload{1, 16 * kMiB, 64, 1, 256 * kKiB},
                                         Workload{2, kGiB, 64, 4 * kKiB, 4 * kMiB}, Workload{3, 1000003, 1, 1, 5000},
                                         Workload{4, 3 * kMiB + 77, 4096, 100, 200 * kKiB},
                                         Workload{5, uint64_t{1} << 62, 64, 1 * kMiB, uint64_t{1} << 60},
                                         Workload{6, 16 * kMiB, 64, 65 * kKiB, 66 * kKiB}));

TEST(OffsetAllocator, EqualBlocksFillEveryByteAndRefillAfterRandomFrees) {
  std::mt19937_64 random(7);
  for (const uint64_t block : {256 * kKiB, 2 * kMiB, 12345 * uint64_t{64}}) {
    const uint64_t count = 512;
    OffsetAllocator allocator(block * count);
    std::vector<Range> live;
    for (uint64_t i = 0; i < count; ++i) live.push_back(allocator.Allocate(block).value());
    EXPECT_EQ(allocator.free_bytes(), 0u);
    EXPECT_FALSE(allocator.Allocate(1));
    for (int round = 0; round < 2000; ++round) {
      std::ranges::shuffle(live, random);
      const uint64_t freed = 1 + random() % 8;
      for (uint64_t i = 0; i < freed; ++i, live.pop_back()) allocator.Free(live.back());
      for (uint64_t i = 0; i < freed; ++i) live.push_back(allocator.Allocate(block).value());
      ASSERT_EQ(allocator.free_bytes(), 0u);
    }
  }
}

TEST(OffsetAllocator, AnExactHoleIsReusedAmongManyOfSimilarSize) {
  // Holes of 1000..1999 units fall into few bins; separators keep them apart.
  OffsetAllocator allocator(kGiB);
  std::vector<Range> blocks;
  for (uint64_t units = 1000; units < 2000; ++units) {
    blocks.push_back(allocator.Allocate(units * 64).value());
    ASSERT_TRUE(allocator.Allocate(64));
  }
  for (const Range& block : blocks) allocator.Free(block);
  std::mt19937_64 random(11);
  std::ranges::shuffle(blocks, random);
  for (const Range& block : blocks) EXPECT_EQ(allocator.Allocate(block.size).value().offset, block.offset);
}

// Churns at 90 % load, then fills without freeing; the share in use when the first request fails.
template <typename Space>
double UtilisationAtFirstFailure(Space& space, uint64_t capacity, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Range> live;
  uint64_t used = 0;
  for (int step = 0; step < 60000; ++step) {
    const uint64_t size = LogUniform(random, 4 * kKiB, 4 * kMiB) / 64 * 64;
    while (used + size > capacity / 10 * 9) {
      std::swap(live[random() % live.size()], live.back());
      used -= live.back().size;
      space.Free(live.back());
      live.pop_back();
    }
    const auto range = space.Allocate(size);
    if (!range) return static_cast<double>(used) / static_cast<double>(capacity);
    used += size;
    live.push_back(*range);
  }
  for (;;) {
    const uint64_t size = LogUniform(random, 4 * kKiB, 4 * kMiB) / 64 * 64;
    const auto range = space.Allocate(size);
    if (!range) return static_cast<double>(used) / static_cast<double>(capacity);
    used += size;
  }
}

TEST(OffsetAllocator, FragmentationIsThatOfBestFit) {
  double total = 0, model_total = 0;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    constexpr uint64_t kCapacity = kGiB;
    OffsetAllocator allocator(kCapacity);
    ModelSpace model(kCapacity);
    total += UtilisationAtFirstFailure(allocator, kCapacity, seed);
    model_total += UtilisationAtFirstFailure(model, kCapacity, seed);
  }
  RecordProperty("utilisation", std::to_string(total / 5));
  RecordProperty("best_fit_utilisation", std::to_string(model_total / 5));
  std::printf("utilisation at first failure %.4f, best fit %.4f\n", total / 5, model_total / 5);
  EXPECT_GT(total / 5, model_total / 5 - 0.03);
  EXPECT_GT(total / 5, 0.85);
}

TEST(OffsetAllocator, SizesAreRoundedToTheAlignmentAndReportedAsAsked) {
  OffsetAllocator allocator(1000, 64);
  EXPECT_EQ(allocator.capacity(), 960u);
  const Range range = allocator.Allocate(65).value();
  EXPECT_EQ(range.size, 65u);
  EXPECT_EQ(allocator.allocated_bytes(), 128u);
  EXPECT_EQ(allocator.RoundUp(65), 128u);
  EXPECT_EQ(allocator.Allocate(1).value().offset, 128u);
  allocator.Free(range);
  EXPECT_EQ(allocator.allocated_bytes(), 64u);
}

TEST(OffsetAllocator, RefusesZeroTooLargeAndEmptySpaces) {
  OffsetAllocator allocator(4096);
  EXPECT_FALSE(allocator.Allocate(0));
  EXPECT_FALSE(allocator.Allocate(4097));
  EXPECT_FALSE(allocator.Allocate(UINT64_MAX));
  EXPECT_EQ(allocator.RoundUp(UINT64_MAX), UINT64_MAX);
  EXPECT_TRUE(allocator.Allocate(4096));
  OffsetAllocator empty(63);
  EXPECT_EQ(empty.capacity(), 0u);
  EXPECT_EQ(empty.largest_free(), 0u);
  EXPECT_FALSE(empty.Allocate(1));
  OffsetAllocator huge(UINT64_MAX, 1);
  EXPECT_EQ(huge.largest_free(), UINT64_MAX);
  EXPECT_EQ(huge.Allocate(UINT64_MAX).value().offset, 0u);
  EXPECT_FALSE(huge.Allocate(1));
}

using OffsetAllocatorDeathTest = testing::Test;

TEST(OffsetAllocatorDeathTest, FreeingWhatIsNotAllocatedStopsTheProcessWithTheValues) {
  OffsetAllocator allocator(kMiB);
  const Range range = allocator.Allocate(4096).value();
  EXPECT_DEATH(allocator.Free({range.offset, range.size, 77}), "unknown node 77 .offset 0, size 4096");
  EXPECT_DEATH(allocator.Free({64, range.size, range.node}), "offset 64 size 4096, allocated was offset 0 size 4096");
  EXPECT_DEATH(allocator.Free({range.offset, 4032, range.node}), "size 4032, allocated was offset 0 size 4096");
  EXPECT_DEATH(
      {
        allocator.Free(range);
        allocator.Free(range);
      },
      "node 0 .offset 0, size 4096. that is not allocated");
  EXPECT_DEATH(OffsetAllocator(kMiB, 48), "alignment 48");
}

}  // namespace
}  // namespace mooncake
