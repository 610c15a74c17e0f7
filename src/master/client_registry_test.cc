// Liveness of clients and choice of write targets.
#include "master/client_registry.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mooncake {
namespace {

using protocol::TierState;
using std::chrono::seconds;

constexpr uint64_t kMiB = 1 << 20;

Uuid Id(uint64_t i) {
  return {i, i};
}

protocol::RegisterRequest Registration(uint64_t id, uint64_t capacity, uint64_t usage = 0, uint64_t sequence = 0) {
  protocol::RegisterRequest request{Id(id), sequence, "10.0.0.1:" + std::to_string(id), {}};
  if (capacity > 0)
    request.tiers.push_back(TierState{.id = Id(id), .name = "DRAM", .capacity = capacity, .usage = usage});
  return request;
}

class ClientRegistryTest : public ::testing::Test {
 protected:
  uint32_t NumberOf(uint64_t id) {
    for (const auto& entry : registry_.List()) {
      if (entry.id == Id(id)) return entry.number;
    }
    return 0;
  }
  // How often each client is picked for `count` values of `size`, one request each.
  std::map<Uuid, int> PickMany(int count, uint64_t size) {
    std::map<Uuid, int> picked;
    for (int i = 0; i < count; ++i) {
      const auto picks = registry_.PickForWrite(std::span(&size, 1), {});
      if (picks.targets.at(0) >= 0) ++picked[picks.clients.at(picks.targets[0]).id];
    }
    return picked;
  }
  bool Heartbeat(uint64_t id, uint64_t capacity, uint64_t usage) {
    return registry_.Heartbeat({Id(id), Registration(id, capacity, usage).tiers});
  }

  ManualClock clock_;
  ClientRegistry registry_{{.ttl = seconds(10), .crashed_ttl = seconds(30)}, clock_};
};

TEST_F(ClientRegistryTest, SilentClientBecomesSuspectThenExpires) {
  registry_.Register(Registration(1, kMiB));
  const uint32_t number = NumberOf(1);
  clock_.Advance(seconds(10) - Duration(1));
  EXPECT_TRUE(registry_.FindHealthy(number));
  clock_.Advance(Duration(1));
  EXPECT_FALSE(registry_.FindHealthy(number));
  EXPECT_TRUE(registry_.List().at(0).suspect);
  EXPECT_TRUE(registry_.TakeExpired().empty());
  clock_.Advance(seconds(20));
  EXPECT_EQ(registry_.TakeExpired(), std::vector<uint32_t>{number});
  EXPECT_TRUE(registry_.List().empty());
  EXPECT_TRUE(registry_.TakeExpired().empty());
  EXPECT_FALSE(Heartbeat(1, kMiB, 0));
}

TEST_F(ClientRegistryTest, HeartbeatOfASuspectClientBringsItBack) {
  registry_.Register(Registration(1, kMiB));
  clock_.Advance(seconds(29));
  EXPECT_TRUE(Heartbeat(1, kMiB, 5));
  EXPECT_TRUE(registry_.FindHealthy(NumberOf(1)));
  EXPECT_EQ(registry_.List().at(0).tiers.at(0).usage, 5u);
}

TEST_F(ClientRegistryTest, AnnouncementCountsAsASignOfLife) {
  registry_.Register(Registration(1, kMiB));
  clock_.Advance(seconds(9));
  bool stale = true;
  EXPECT_EQ(registry_.AcceptAnnounce(Id(1), 1, stale).value().number, NumberOf(1));
  EXPECT_FALSE(stale);
  clock_.Advance(seconds(9));
  EXPECT_TRUE(registry_.FindHealthy(NumberOf(1)));
}

TEST_F(ClientRegistryTest, RegisteringAgainGivesANewNumberAndReturnsTheOld) {
  EXPECT_TRUE(registry_.Register(Registration(1, kMiB)).empty());
  const uint32_t first = NumberOf(1);
  EXPECT_EQ(registry_.Register(Registration(1, kMiB)), std::vector<uint32_t>{first});
  EXPECT_NE(NumberOf(1), first);
  EXPECT_FALSE(registry_.FindHealthy(first));
  EXPECT_EQ(registry_.List().size(), 1u);
}

TEST_F(ClientRegistryTest, AnotherClientAtTheSameEndpointReplacesTheOneBefore) {
  registry_.Register(Registration(1, kMiB));
  registry_.Register(Registration(2, kMiB));
  const uint32_t first = NumberOf(1);
  auto restarted = Registration(3, kMiB);
  restarted.endpoint = Registration(1, kMiB).endpoint;
  EXPECT_EQ(registry_.Register(restarted), std::vector<uint32_t>{first});
  EXPECT_FALSE(registry_.FindHealthy(first));
  EXPECT_TRUE(registry_.FindHealthy(NumberOf(2)));
  EXPECT_TRUE(registry_.FindHealthy(NumberOf(3)));
}

TEST_F(ClientRegistryTest, LateRegistrationChangesNothing) {
  registry_.Register(Registration(1, kMiB, 0, /*sequence=*/5));
  const uint32_t number = NumberOf(1);
  bool stale = false;
  ASSERT_TRUE(registry_.AcceptAnnounce(Id(1), 6, stale));
  EXPECT_TRUE(registry_.Register(Registration(1, kMiB, 0, 4)).empty());
  EXPECT_TRUE(registry_.Register(Registration(1, kMiB, 0, 5)).empty());
  EXPECT_EQ(NumberOf(1), number);
  EXPECT_EQ(registry_.Register(Registration(1, kMiB, 0, 7)), std::vector<uint32_t>{number});
}

TEST_F(ClientRegistryTest, AnnouncementsOutOfOrderOrTwiceAreStale) {
  registry_.Register(Registration(1, kMiB));
  bool stale = false;
  ASSERT_TRUE(registry_.AcceptAnnounce(Id(1), 2, stale));
  EXPECT_FALSE(stale);
  ASSERT_TRUE(registry_.AcceptAnnounce(Id(1), 2, stale));
  EXPECT_TRUE(stale);
  ASSERT_TRUE(registry_.AcceptAnnounce(Id(1), 1, stale));
  EXPECT_TRUE(stale);
  ASSERT_TRUE(registry_.AcceptAnnounce(Id(1), 3, stale));
  EXPECT_FALSE(stale);
  EXPECT_FALSE(registry_.AcceptAnnounce(Id(9), 1, stale));
}

TEST_F(ClientRegistryTest, AnnouncementFromBeforeTheRegistrationIsStale) {
  registry_.Register(Registration(1, kMiB, 0, 8));
  bool stale = false;
  ASSERT_TRUE(registry_.AcceptAnnounce(Id(1), 7, stale));
  EXPECT_TRUE(stale);
}

TEST_F(ClientRegistryTest, UnregisterForgetsAndReturnsTheNumber) {
  registry_.Register(Registration(1, kMiB));
  const uint32_t number = NumberOf(1);
  EXPECT_EQ(registry_.Unregister(Id(1)), number);
  EXPECT_FALSE(registry_.Unregister(Id(1)));
  EXPECT_FALSE(registry_.FindHealthy(number));
}

TEST_F(ClientRegistryTest, EmptyClientsFillByShareOfCapacity) {
  registry_.Register(Registration(1, 100 * kMiB));
  registry_.Register(Registration(2, 300 * kMiB));
  const auto picked = PickMany(200, kMiB);
  EXPECT_NEAR(picked.at(Id(1)), 50, 2);
  EXPECT_NEAR(picked.at(Id(2)), 150, 2);
}

TEST_F(ClientRegistryTest, UsageReportedByHeartbeatsLeadsTheChoice) {
  registry_.Register(Registration(1, 100 * kMiB, 90 * kMiB));
  registry_.Register(Registration(2, 100 * kMiB, 10 * kMiB));
  EXPECT_EQ(PickMany(70, kMiB)[Id(2)], 70);
  ASSERT_TRUE(Heartbeat(2, 100 * kMiB, 99 * kMiB));
  EXPECT_GT(PickMany(8, kMiB)[Id(1)], 6);
}

TEST_F(ClientRegistryTest, FullClientsTurnOverInProportionToCapacity) {
  registry_.Register(Registration(1, 100 * kMiB, 100 * kMiB));
  registry_.Register(Registration(2, 200 * kMiB, 200 * kMiB));
  registry_.Register(Registration(3, 700 * kMiB, 700 * kMiB));
  std::map<Uuid, int> picked;
  for (int round = 0; round < 10; ++round) {
    for (const auto& [id, count] : PickMany(300, kMiB)) picked[id] += count;
    for (uint64_t id = 1; id <= 3; ++id) {
      const uint64_t capacity = (id == 1 ? 100 : id == 2 ? 200 : 700) * kMiB;
      ASSERT_TRUE(Heartbeat(id, capacity, capacity));
    }
  }
  EXPECT_NEAR(picked[Id(1)], 300, 9);
  EXPECT_NEAR(picked[Id(2)], 600, 18);
  EXPECT_NEAR(picked[Id(3)], 2100, 63);
}

TEST_F(ClientRegistryTest, NewFullClientDoesNotDrawEverything) {
  registry_.Register(Registration(1, 100 * kMiB, 100 * kMiB));
  PickMany(1000, kMiB);
  registry_.Register(Registration(2, 100 * kMiB, 100 * kMiB));
  const auto picked = PickMany(100, kMiB);
  EXPECT_NEAR(picked.at(Id(1)), 50, 2);
}

TEST_F(ClientRegistryTest, PicksOfOneRequestSpreadToo) {
  registry_.Register(Registration(1, 100 * kMiB));
  registry_.Register(Registration(2, 100 * kMiB));
  const std::vector<uint64_t> sizes(40, kMiB);
  const auto picks = registry_.PickForWrite(sizes, {});
  ASSERT_EQ(picks.targets.size(), 40u);
  EXPECT_EQ(std::count(picks.targets.begin(), picks.targets.end(), 0), 20);
}

TEST_F(ClientRegistryTest, ExcludedSuspectAndTierlessClientsAreNeverPicked) {
  registry_.Register(Registration(1, 100 * kMiB));
  clock_.Advance(seconds(10));  // suspect
  registry_.Register(Registration(2, 100 * kMiB));
  registry_.Register(Registration(3, 0));
  registry_.Register(Registration(4, 100 * kMiB));
  const Uuid excluded = Id(2);
  const std::vector<uint64_t> sizes(20, 1);
  const auto picks = registry_.PickForWrite(sizes, std::span(&excluded, 1));
  for (const int32_t target : picks.targets) {
    ASSERT_GE(target, 0);
    EXPECT_EQ(picks.clients[target].id, Id(4));
  }
  const std::vector<Uuid> both{Id(2), Id(4)};
  EXPECT_EQ(registry_.PickForWrite(std::span(sizes).first(1), both).targets, std::vector{protocol::kTargetNone});
}

TEST_F(ClientRegistryTest, ValueLargerThanAnyTierFitsNowhere) {
  auto request = Registration(1, 10 * kMiB);
  request.tiers.push_back(request.tiers[0]);  // 20 MiB in all, but no block spans two tiers
  registry_.Register(request);
  registry_.Register(Registration(2, 5 * kMiB));
  for (const auto& [size, fits] : std::vector<std::pair<uint64_t, bool>>{
           {10 * kMiB, true}, {10 * kMiB + 1, false}, {UINT64_MAX, false}, {0, true}}) {
    EXPECT_EQ(registry_.PickForWrite(std::span(&size, 1), {}).targets.at(0) >= 0, fits) << size;
  }
}

}  // namespace
}  // namespace mooncake
