// Order of the eviction queue against a list that is kept in order the simple way.
#include "tiered_cache/scheduler/lru_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>
#include <thread>

namespace mooncake {
namespace {

// Plays the backend's part: gives accesses their stamps and says which tiers an entry is on.
class LruQueueTest : public ::testing::Test {
 protected:
  static constexpr size_t kTier = 3;

  EntryPtr NewEntry(const std::string& key) {
    auto entry = std::make_shared<MetadataEntry>(key);
    Touch(*entry);
    Place(*entry);
    queue_.Push(entry);
    return entry;
  }
  void Touch(MetadataEntry& entry) { entry.last_access.store(++tick_); }
  static void Place(MetadataEntry& entry) { entry.tier_mask.fetch_or(1u << kTier); }
  static void Take(MetadataEntry& entry) { entry.tier_mask.fetch_and(~(1u << kTier)); }

  LruQueue queue_{kTier};
  uint64_t tick_ = 0;
};

TEST_F(LruQueueTest, EmptyQueueHasNoOldest) {
  EXPECT_EQ(queue_.PopOldest(), nullptr);
  EXPECT_EQ(queue_.OldestAccess(), std::nullopt);
  EXPECT_EQ(queue_.size(), 0u);
}

TEST_F(LruQueueTest, ComesOutInOrderOfUse) {
  const EntryPtr a = NewEntry("a");
  const EntryPtr b = NewEntry("b");
  const EntryPtr c = NewEntry("c");
  Touch(*a);
  EXPECT_EQ(queue_.OldestAccess(), b->last_access.load());
  EXPECT_EQ(queue_.PopOldest(), b);
  Touch(*c);
  EXPECT_EQ(queue_.PopOldest(), a);
  EXPECT_EQ(queue_.PopOldest(), c);
  EXPECT_EQ(queue_.PopOldest(), nullptr);
}

TEST_F(LruQueueTest, SkipsEntriesThatLeftTheTier) {
  const EntryPtr a = NewEntry("a");
  const EntryPtr b = NewEntry("b");
  Take(*a);
  a->tier_mask.fetch_or(1u << (kTier + 1));  // on another tier only
  EXPECT_EQ(queue_.OldestAccess(), b->last_access.load());
  EXPECT_EQ(queue_.PopOldest(), b);
  EXPECT_EQ(queue_.PopOldest(), nullptr);
}

TEST_F(LruQueueTest, EntryThatCameBackIsFoundAgain) {
  const EntryPtr a = NewEntry("a");
  const EntryPtr b = NewEntry("b");
  Take(*a);
  EXPECT_EQ(queue_.PopOldest(), b);  // a's item is thrown away on the way
  Touch(*a);
  Place(*a);
  queue_.Push(a);
  EXPECT_EQ(queue_.PopOldest(), a);
}

TEST_F(LruQueueTest, EntryPushedTwiceComesOutOnce) {
  const EntryPtr a = NewEntry("a");
  Touch(*a);
  queue_.Push(a);
  queue_.Push(a);
  EXPECT_EQ(queue_.PopOldest(), a);
  EXPECT_EQ(queue_.PopOldest(), nullptr);
  queue_.Push(a);
  EXPECT_EQ(queue_.PopOldest(), a);
}

TEST_F(LruQueueTest, QueueOfEachTierRemembersTheEntryByItself) {
  LruQueue other(kTier + 1);
  const EntryPtr a = NewEntry("a");
  a->tier_mask.fetch_or(1u << (kTier + 1));
  other.Push(a);
  EXPECT_EQ(queue_.PopOldest(), a);
  EXPECT_EQ(other.PopOldest(), a);
}

TEST_F(LruQueueTest, OverwritingOneKeyForEverKeepsTheQueueSmall) {
  const EntryPtr a = NewEntry("a");
  for (int i = 0; i < 20'000; ++i) {
    Take(*a);
    Touch(*a);
    Place(*a);
    queue_.Push(a);
  }
  EXPECT_EQ(queue_.size(), 1u);
}

TEST_F(LruQueueTest, DeadItemsAreSweptOut) {
  constexpr size_t kLive = 100;
  std::vector<EntryPtr> live;
  for (size_t i = 0; i < kLive; ++i) live.push_back(NewEntry("live"));
  size_t largest = 0;
  for (int i = 0; i < 100'000; ++i) {
    Take(*NewEntry("dead"));
    largest = std::max(largest, queue_.size());
  }
  EXPECT_LE(largest, 4096u + kLive);
  for (const EntryPtr& entry : live) EXPECT_EQ(queue_.PopOldest(), entry);
  EXPECT_EQ(queue_.PopOldest(), nullptr);
}

TEST_F(LruQueueTest, EntryWhoseDeadItemWasSweptCanComeBack) {
  const EntryPtr a = NewEntry("a");
  Take(*a);
  for (int i = 0; i < 5000; ++i) Take(*NewEntry("dead"));
  Touch(*a);
  Place(*a);
  queue_.Push(a);
  EXPECT_EQ(queue_.PopOldest(), a);
}

TEST_F(LruQueueTest, AgreesWithAReferenceListUnderRandomUse) {
  for (const unsigned seed : {1u, 2u, 3u, 4u, 5u}) {
    std::mt19937 random(seed);
    std::list<EntryPtr> model;  // oldest first
    std::vector<EntryPtr> all;
    const auto pick = [&] { return all[random() % all.size()]; };
    for (int step = 0; step < 20'000; ++step) {
      const unsigned what = random() % 100;
      if (all.size() < 10 || what < 20) {
        all.push_back(NewEntry(std::to_string(step)));
        model.push_back(all.back());
      } else if (what < 70) {
        const EntryPtr entry = pick();
        Touch(*entry);
        if (const auto at = std::find(model.begin(), model.end(), entry); at != model.end()) {
          model.splice(model.end(), model, at);
        }
      } else if (what < 80) {
        const EntryPtr entry = pick();
        Take(*entry);
        model.remove(entry);
      } else if (what < 85) {
        const EntryPtr entry = pick();  // placed anew
        Touch(*entry);
        Place(*entry);
        queue_.Push(entry);
        model.remove(entry);
        model.push_back(entry);
      } else {
        const auto oldest = queue_.OldestAccess();
        ASSERT_EQ(oldest.has_value(), !model.empty()) << "seed " << seed << " step " << step;
        if (oldest) {
          ASSERT_EQ(*oldest, model.front()->last_access.load()) << "seed " << seed << " step " << step;
        }
        const EntryPtr popped = queue_.PopOldest();
        ASSERT_EQ(popped, model.empty() ? nullptr : model.front()) << "seed " << seed << " step " << step;
        if (popped != nullptr) {
          model.pop_front();
          Take(*popped);
        }
      }
    }
    while (!model.empty()) {
      ASSERT_EQ(queue_.PopOldest(), model.front()) << "seed " << seed;
      model.pop_front();
    }
    ASSERT_EQ(queue_.PopOldest(), nullptr);
  }
}

TEST_F(LruQueueTest, ThreadsThatPushTouchAndPopLoseNothing) {
  constexpr int kThreads = 4;
  constexpr int kEach = 2000;
  std::atomic<uint64_t> clock{0};
  std::atomic<int> popped{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        auto entry = std::make_shared<MetadataEntry>("k");
        entry->last_access.store(clock.fetch_add(1));
        Place(*entry);
        queue_.Push(entry);
        entry->last_access.store(clock.fetch_add(1));
        if (i % 2 == 0 && queue_.PopOldest() != nullptr) popped.fetch_add(1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  while (queue_.PopOldest() != nullptr) popped.fetch_add(1);
  EXPECT_EQ(popped.load(), kThreads * kEach);
}

}  // namespace
}  // namespace mooncake
