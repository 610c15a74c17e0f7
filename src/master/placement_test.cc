// Shares of new, empty and full clients.
#include "master/placement.h"

#include <gtest/gtest.h>

#include <numeric>

namespace mooncake {
namespace {

constexpr uint64_t kMiB = 1 << 20;

class PlacementTest : public ::testing::Test {
 protected:
  void Add(uint64_t capacity, uint64_t usage) {
    loads_.push_back({.capacity = capacity, .largest_tier = capacity, .usage = usage});
  }
  // How many of `count` values each client gets, one request each.
  std::vector<int> Place(int count, uint64_t size = kMiB, std::vector<bool> newcomers = {}) {
    std::vector<int> placed(loads_.size());
    newcomers.resize(loads_.size());
    for (int i = 0; i < count; ++i) {
      std::vector<Placement::Candidate> candidates;
      for (size_t c = 0; c < loads_.size(); ++c) {
        candidates.push_back({.load = &loads_[c], .newcomer = newcomers[c]});
      }
      for (const uint32_t position : Placement(std::move(candidates)).Pick(size, 1)) ++placed[position];
    }
    return placed;
  }

  std::vector<ClientLoad> loads_;
};

TEST_F(PlacementTest, EmptyJoinerGetsTwiceItsShareAndNotEverything) {
  for (int i = 0; i < 9; ++i) Add(1000 * kMiB, 900 * kMiB);
  Add(1000 * kMiB, 0);
  const auto placed = Place(500, kMiB, {false, false, false, false, false, false, false, false, false, true});
  EXPECT_EQ(std::accumulate(placed.begin(), placed.end(), 0), 500);
  EXPECT_NEAR(placed[9], 100, 2);
  for (int i = 0; i < 9; ++i) EXPECT_GT(placed[i], 30);
}

TEST_F(PlacementTest, OldClientThatIsEmptierThanTheOthersIsCappedUntilItIsLevel) {
  for (int i = 0; i < 4; ++i) Add(100 * kMiB, 50 * kMiB);
  Add(100 * kMiB, 0);
  EXPECT_NEAR(Place(50)[4], 20, 1);
  loads_[4].usage = 60 * kMiB;
  loads_[4].routed_since_report = 0;
  EXPECT_LE(Place(10)[4], 1);
}

TEST_F(PlacementTest, CapNeverLeavesAValueWithoutAPlace) {
  Add(10 * kMiB, 0);
  Add(1000 * kMiB, 900 * kMiB);
  loads_[1].largest_tier = kMiB;
  EXPECT_EQ(Place(5, 2 * kMiB, {true, false}), (std::vector<int>{5, 0}));
}

TEST_F(PlacementTest, CopiesGoToDifferentClients) {
  for (int i = 0; i < 3; ++i) Add(100 * kMiB, static_cast<uint64_t>(i) * kMiB);
  std::vector<Placement::Candidate> candidates;
  for (ClientLoad& load : loads_) candidates.push_back({.load = &load});
  Placement placement(candidates);
  EXPECT_EQ(placement.Pick(kMiB, 2), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(placement.Pick(kMiB, 9).size(), 3u);
  EXPECT_TRUE(placement.Pick(101 * kMiB, 1).empty());
}

TEST_F(PlacementTest, PreferenceGoesBeforeLoadAndWeightTiltsIt) {
  Add(100 * kMiB, 99 * kMiB);
  Add(100 * kMiB, 0);
  EXPECT_EQ(Placement({{.load = &loads_[0], .preference = 0}, {.load = &loads_[1], .preference = 1}}).Pick(1, 1)[0],
            0u);
  loads_[0].usage = 40 * kMiB;
  EXPECT_EQ(Placement({{.load = &loads_[0], .weight = 0.8}, {.load = &loads_[1], .weight = 0.2}}).Pick(1, 1)[0], 0u);
}

}  // namespace
}  // namespace mooncake
