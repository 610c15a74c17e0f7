// Batching, order and release of waiters, with a gated stand-in for the master.
#include "client/announcer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <future>
#include <set>

namespace mooncake {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

Deadline Soon() {
  return Deadline::After(std::chrono::seconds(60));
}

// The master's place: every batch waits in Next() until the test answers it.
class AnnouncerTest : public ::testing::Test {
 protected:
  struct Batch {
    std::vector<protocol::KeyState> keys;
    std::promise<Result<protocol::AnnounceReply>> answer;
    void Accept(std::vector<uint32_t> rejected = {}) { answer.set_value(protocol::AnnounceReply{std::move(rejected)}); }
    void Fail(ErrorCode code = ErrorCode::RPC_FAIL) { answer.set_value(std::unexpected(Status(code, "gate says no"))); }
    std::vector<KeyDigest> Digests() const {
      std::vector<KeyDigest> digests;
      for (const auto& state : keys) digests.push_back(state.key);
      return digests;
    }
  };

  void SetUp() override { Make(100); }
  void TearDown() override {
    closing_.store(true);
    {
      std::lock_guard lock(mutex_);
      for (auto& batch : batches_) batch->Fail();
      batches_.clear();
    }
    announcer_.reset();
  }
  void Make(size_t max_batch) {
    Announcer::Hooks hooks;
    hooks.state_of = [this](const std::string& key) -> std::optional<protocol::KeyState> {
      std::lock_guard lock(mutex_);
      const auto found = sizes_.find(key);
      if (found == sizes_.end()) return std::nullopt;
      return protocol::KeyState{KeyDigest::Of(key), true, found->second, 0};
    };
    hooks.send = [this](std::vector<protocol::KeyState> keys) -> Result<protocol::AnnounceReply> {
      auto batch = std::make_shared<Batch>();
      batch->keys = std::move(keys);
      auto answer = batch->answer.get_future();
      {
        std::lock_guard lock(mutex_);
        if (closing_.load()) return protocol::AnnounceReply{};
        batches_.push_back(batch);
      }
      changed_.notify_all();
      return answer.get();
    };
    hooks.on_rejected = [this](const std::string& key) {
      std::lock_guard lock(mutex_);
      rejected_.push_back(key);
    };
    hooks.on_failed = [this](const Status& status) {
      std::lock_guard lock(mutex_);
      failures_.push_back(status);
      changed_.notify_all();
    };
    announcer_ = std::make_unique<Announcer>(std::move(hooks), max_batch);
    announcer_->Resume();
  }
  std::shared_ptr<Batch> Next() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(60), [this] { return !batches_.empty(); })) {
      ADD_FAILURE() << "no batch was sent";
      std::abort();
    }
    auto batch = batches_.front();
    batches_.pop_front();
    return batch;
  }
  void AwaitFailures(size_t count) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return failures_.size() >= count; }));
  }
  void Set(const std::string& key, uint64_t size) {
    {
      std::lock_guard lock(mutex_);
      sizes_[key] = size;
    }
    announcer_->Mark(key);
  }
  // Future of WhenDelivered.
  std::future<bool> Wait() {
    auto promise = std::make_shared<std::promise<bool>>();
    auto future = promise->get_future();
    announcer_->WhenDelivered([promise](bool delivered) { promise->set_value(delivered); });
    return future;
  }
  static bool Ready(const std::future<bool>& future) {
    return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Batch>> batches_;
  std::map<std::string, uint64_t> sizes_;
  std::vector<std::string> rejected_;
  std::vector<Status> failures_;
  std::atomic<bool> closing_{false};
  std::unique_ptr<Announcer> announcer_;
};

TEST_F(AnnouncerTest, NothingToWaitForCompletesAtOnce) {
  EXPECT_TRUE(Wait().get());
  EXPECT_TRUE(announcer_->WaitDelivered(Soon()));
}

TEST_F(AnnouncerTest, MarksMadeMeanwhileMergeIntoTheNextBatch) {
  Set("a", 1);
  const auto first = Next();
  Set("b", 1);
  Set("b", 2);
  Set("c", 3);
  Set("b", 4);
  first->Accept();
  const auto second = Next();
  ASSERT_EQ(second->keys.size(), 2u);
  EXPECT_THAT(second->Digests(), UnorderedElementsAre(KeyDigest::Of("b"), KeyDigest::Of("c")));
  second->Accept();
  EXPECT_TRUE(announcer_->WaitDelivered(Soon()));
}

TEST_F(AnnouncerTest, StateAtSendTimeCounts) {
  Set("gate", 1);
  const auto first = Next();
  Set("kept", 1);
  Set("gone", 1);
  {
    std::lock_guard lock(mutex_);
    sizes_["kept"] = 99;
    sizes_.erase("gone");
  }
  first->Accept();
  const auto second = Next();
  for (const auto& state : second->keys) {
    EXPECT_EQ(state.present, state.key == KeyDigest::Of("kept"));
    EXPECT_EQ(state.size, state.present ? 99u : 0u);
  }
  second->Accept();
}

TEST_F(AnnouncerTest, KeyMarkedWhileItsBatchIsUnderWayGoesAgain) {
  Set("a", 1);
  const auto first = Next();
  Set("a", 2);
  const auto waiter = Wait();
  first->Accept();
  const auto second = Next();
  EXPECT_FALSE(Ready(waiter));
  ASSERT_EQ(second->keys.size(), 1u);
  EXPECT_EQ(second->keys[0].size, 2u);
  second->Accept();
}

TEST_F(AnnouncerTest, WaiterIsReleasedAfterItsMarksAndNotBefore) {
  Make(1);
  Set("a", 1);
  Set("b", 1);
  auto waiter = Wait();
  const auto first = Next();
  first->Accept();
  const auto second = Next();
  EXPECT_FALSE(Ready(waiter));
  second->Accept();
  EXPECT_TRUE(waiter.get());
}

TEST_F(AnnouncerTest, MarksWithoutEndDoNotHoldAWaiterBack) {
  Make(2);
  Set("a", 1);
  const auto first = Next();
  Set("b", 1);
  auto waiter = Wait();
  for (int i = 0; i < 10; ++i) Set("later" + std::to_string(i), 1);
  first->Accept();
  const auto second = Next();  // b goes before everything that was marked after it
  EXPECT_THAT(second->Digests(), ElementsAre(KeyDigest::Of("b"), KeyDigest::Of("later0")));
  for (int i = 10; i < 20; ++i) Set("later" + std::to_string(i), 1);
  second->Accept();
  EXPECT_TRUE(waiter.get());
}

TEST_F(AnnouncerTest, RemarkingAWaitingKeyCannotStarveIt) {
  Make(1);
  Set("gate", 1);
  const auto first = Next();
  Set("a", 1);
  Set("b", 1);
  Set("a", 2);
  auto waiter = Wait();
  first->Accept();
  const auto second = Next();
  EXPECT_EQ(second->keys[0].key, KeyDigest::Of("a"));
  EXPECT_EQ(second->keys[0].size, 2u);
  second->Accept();
  Next()->Accept();
  EXPECT_TRUE(waiter.get());
}

TEST_F(AnnouncerTest, DeadlineEndsTheWaitOnly) {
  Set("a", 1);
  const auto first = Next();
  EXPECT_FALSE(announcer_->WaitDelivered(Deadline::After(std::chrono::milliseconds(20))));
  first->Accept();
  EXPECT_TRUE(announcer_->WaitDelivered(Soon()));
}

TEST_F(AnnouncerTest, PauseReleasesWaitersAndForgetsMarks) {
  Set("a", 1);
  const auto first = Next();
  Set("b", 1);
  auto waiter = Wait();
  announcer_->Pause();
  EXPECT_FALSE(waiter.get());
  announcer_->Mark("c");
  EXPECT_FALSE(Wait().get());
  first->Accept();
  announcer_->Resume();
  Set("d", 1);
  const auto next = Next();
  EXPECT_THAT(next->Digests(), ElementsAre(KeyDigest::Of("d")));
  next->Accept();
}

TEST_F(AnnouncerTest, FailureReportsOnceThenReleasesWaiters) {
  Set("a", 1);
  const auto first = Next();
  Set("b", 1);
  size_t failures_seen = 99;
  std::promise<bool> released;
  announcer_->WhenDelivered([&](bool delivered) {
    {
      std::lock_guard lock(mutex_);
      failures_seen = failures_.size();
    }
    released.set_value(delivered);
  });
  first->Fail(ErrorCode::CLIENT_NOT_FOUND);
  EXPECT_FALSE(released.get_future().get());
  EXPECT_EQ(failures_seen, 1u);
  Set("c", 1);  // paused: nobody to tell
  EXPECT_FALSE(Wait().get());
  std::lock_guard lock(mutex_);
  ASSERT_EQ(failures_.size(), 1u);
  EXPECT_EQ(failures_[0].code(), ErrorCode::CLIENT_NOT_FOUND);
  EXPECT_TRUE(batches_.empty());
}

TEST_F(AnnouncerTest, FailureOfABatchFromBeforeThePauseMeansNothingNow) {
  Set("a", 1);
  const auto old = Next();
  announcer_->Pause();
  announcer_->Resume();  // as after registering again
  Set("b", 1);
  auto waiter = Wait();
  old->Fail();
  const auto next = Next();
  EXPECT_FALSE(Ready(waiter));
  next->Accept();
  EXPECT_TRUE(waiter.get());
  std::lock_guard lock(mutex_);
  EXPECT_TRUE(failures_.empty());
}

TEST_F(AnnouncerTest, SuccessOfABatchFromBeforeThePauseReleasesNobody) {
  Set("a", 1);
  const auto old = Next();
  announcer_->Pause();
  announcer_->Resume();
  Set("b", 1);
  const auto waiter = Wait();
  old->Accept();
  const auto next = Next();
  EXPECT_FALSE(Ready(waiter));
  next->Accept();
}

TEST_F(AnnouncerTest, RejectedKeysGoToTheHookBeforeWaitersAreReleased) {
  Set("a", 1);
  Next()->Accept();
  ASSERT_TRUE(announcer_->WaitDelivered(Soon()));
  Set("b", 1);
  auto waiter = Wait();
  const auto batch = Next();
  batch->Accept({0, 1, 4'000'000'000});  // positions beyond the batch come from a broken master
  EXPECT_TRUE(waiter.get());
  std::lock_guard lock(mutex_);
  EXPECT_THAT(rejected_, ElementsAre("b"));
}

TEST_F(AnnouncerTest, StopReleasesWaitersAndLaterOnes) {
  Set("a", 1);
  const auto batch = Next();
  Set("b", 1);
  auto waiter = Wait();
  std::thread stopper([this] { announcer_->Stop(); });
  EXPECT_FALSE(waiter.get());  // although the batch is still under way
  batch->Accept();
  stopper.join();
  EXPECT_FALSE(Wait().get());
  announcer_->Resume();
  announcer_->Mark("c");
  EXPECT_FALSE(Wait().get());
}

TEST_F(AnnouncerTest, ManyThreadsAllLearnOfTheirMarks) {
  Make(7);
  std::atomic<bool> done{false};
  std::set<std::string> seen;
  std::thread master([&] {
    for (;;) {
      std::shared_ptr<Batch> batch;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !batches_.empty() || done.load(); });
        if (batches_.empty()) return;
        batch = batches_.front();
        batches_.pop_front();
        for (const auto& state : batch->keys) seen.insert(std::to_string(state.key.low));
      }
      batch->Accept();
    }
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const std::string key = std::to_string(t) + "/" + std::to_string(i);
        Set(key, 1);
        ASSERT_TRUE(Wait().get());
        std::lock_guard lock(mutex_);
        ASSERT_TRUE(seen.contains(std::to_string(KeyDigest::Of(key).low)));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  {
    std::lock_guard lock(mutex_);
    done.store(true);
  }
  changed_.notify_all();
  master.join();
}

TEST_F(AnnouncerTest, TicketIsForItsMarkAndThoseBeforeIt) {
  const uint64_t first = announcer_->Mark("a");
  const auto under_way = Next();
  const uint64_t second = announcer_->Mark("b");
  const auto state = [this](uint64_t ticket) {
    auto delivered = std::make_shared<std::promise<bool>>();
    auto future = delivered->get_future();
    announcer_->WhenDelivered(ticket, [delivered](bool told) { delivered->set_value(told); });
    return future;
  };
  auto of_first = state(first), of_second = state(second);
  under_way->Accept();
  EXPECT_TRUE(of_first.get());
  EXPECT_FALSE(Ready(of_second));
  EXPECT_TRUE(announcer_->WaitDelivered(first, Deadline::After({})));
  Next()->Accept();
  EXPECT_TRUE(of_second.get());
  announcer_->Pause();
  EXPECT_TRUE(announcer_->WaitDelivered(announcer_->Mark("c"), Deadline::After({})));
}

}  // namespace
}  // namespace mooncake
