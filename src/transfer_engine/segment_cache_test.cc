// Names and ids of segments, and fetches that are shared but never too old for whoever asks.
#include "transfer_engine/segment_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <thread>

namespace mooncake {
namespace {

Deadline Soon() {
  return Deadline::After(std::chrono::seconds(20));
}

SegmentPtr Described(const std::string& name, uint64_t revision) {
  auto segment = std::make_shared<SegmentDescriptor>();
  segment->name = name;
  segment->revision = revision;
  return segment;
}

// Answers when told to, or by itself.
class ManualSource final : public SegmentSource {
 public:
  void Fetch(const std::string& name, SegmentPtr, SegmentCompletion done) override {
    std::unique_lock lock(mutex_);
    const auto number = static_cast<uint64_t>(++fetches_);
    if (by_itself_) {
      lock.unlock();
      return done(answer_ ? Result<SegmentPtr>(Described(name, number)) : Nobody());
    }
    waiting_.push_back({name, std::move(done)});
    arrived_.notify_all();
  }
  void AnswerNext(uint64_t revision) {
    Waiting next = Take();
    next.done(Described(next.name, revision));
  }
  void FailLast() { Take(true).done(Nobody()); }
  void AnswerByItself(bool yes, bool with_success = true) {
    by_itself_ = yes;
    answer_ = with_success;
  }
  int fetches() {
    std::lock_guard lock(mutex_);
    return fetches_;
  }

 private:
  struct Waiting {
    std::string name;
    SegmentCompletion done;
  };
  static Result<SegmentPtr> Nobody() { return Error(ErrorCode::SEGMENT_NOT_FOUND, "nobody"); }
  Waiting Take(bool last = false) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(arrived_.wait_until(lock, Soon().time(), [this] { return !waiting_.empty(); }));
    if (last) std::swap(waiting_.front(), waiting_.back());
    Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    return next;
  }
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Waiting> waiting_;
  bool by_itself_ = true;
  bool answer_ = true;
  int fetches_ = 0;
};

class SegmentCacheTest : public testing::Test {
 protected:
  ManualSource source_;
  SegmentCache cache_{source_};
};

TEST_F(SegmentCacheTest, SameNameIsTheSameSegment) {
  const auto a = cache_.Open("node-a", Soon());
  ASSERT_TRUE(a);
  EXPECT_EQ(cache_.Open("/node-a", Soon()), *a) << "leading slashes do not count";
  EXPECT_NE(*cache_.Open("node-b", Soon()), *a);
  EXPECT_EQ((*cache_.Get(*a))->name, "node-a");
  EXPECT_EQ(source_.fetches(), 2);
}

TEST_F(SegmentCacheTest, EmptyNamesAreInvalid) {
  for (const char* name : {"", "/", "///"}) {
    const auto refused = cache_.Open(name, Soon());
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::INVALID_PARAMS);
  }
}

TEST_F(SegmentCacheTest, NameThatNobodyAnswersToLeavesNothing) {
  source_.AnswerByItself(true, false);
  const auto missing = cache_.Open("node-a", Soon());
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), ErrorCode::SEGMENT_NOT_FOUND);
  for (SegmentId id = 0; id < 4; ++id) EXPECT_FALSE(cache_.Get(id));
  source_.AnswerByItself(true);
  EXPECT_TRUE(cache_.Open("node-a", Soon()));
}

TEST_F(SegmentCacheTest, LastCloseForgetsTheSegment) {
  const SegmentId id = *cache_.Open("node-a", Soon());
  ASSERT_TRUE(cache_.Open("node-a", Soon()));
  EXPECT_TRUE(cache_.Close(id));
  EXPECT_TRUE(cache_.Get(id));
  EXPECT_TRUE(cache_.Close(id));
  const auto gone = cache_.Get(id);
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_FALSE(cache_.Close(id));
  EXPECT_FALSE(cache_.Refresh(id, Soon()));
  EXPECT_NE(*cache_.Open("node-a", Soon()), id);
}

TEST_F(SegmentCacheTest, CallersWhoComeDuringAFetchShareTheNext) {
  const SegmentId id = *cache_.Open("node-a", Soon());
  source_.AnswerByItself(false);
  std::vector<uint64_t> seen;
  const auto note = [&](Result<SegmentPtr> segment) { seen.push_back(segment ? (*segment)->revision : 0); };
  cache_.RefreshAsync(id, note);
  for (int i = 0; i < 10; ++i) cache_.RefreshAsync(id, note);
  EXPECT_EQ(source_.fetches(), 2);
  // What is answered now may be older than what the ten know of: they must not get it.
  source_.AnswerNext(100);
  EXPECT_EQ(seen, std::vector<uint64_t>({100}));
  EXPECT_EQ(source_.fetches(), 3);
  source_.AnswerNext(101);
  EXPECT_EQ(seen.size(), 11u);
  EXPECT_EQ(std::ranges::count(seen, 101u), 10);
  EXPECT_EQ(source_.fetches(), 3);
  EXPECT_EQ((*cache_.Get(id))->revision, 101u);
}

TEST_F(SegmentCacheTest, FailedRefreshKeepsWhatIsKnown) {
  const SegmentId id = *cache_.Open("node-a", Soon());
  const uint64_t revision = (*cache_.Get(id))->revision;
  source_.AnswerByItself(true, false);
  EXPECT_FALSE(cache_.Refresh(id, Soon()));
  EXPECT_EQ((*cache_.Get(id))->revision, revision);
}

TEST_F(SegmentCacheTest, RefreshGivesUpAtTheDeadline) {
  const SegmentId id = *cache_.Open("node-a", Soon());
  source_.AnswerByItself(false);
  const auto late = cache_.Refresh(id, Deadline::After(std::chrono::milliseconds(1)));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), ErrorCode::TRANSFER_TIMEOUT);
  source_.AnswerNext(50);
  EXPECT_EQ((*cache_.Get(id))->revision, 50u);
}

TEST_F(SegmentCacheTest, StopWaitsForTheFetchUnderWayAndBeginsNoOther) {
  const SegmentId id = *cache_.Open("node-a", Soon());
  source_.AnswerByItself(false);
  std::vector<ErrorCode> ends;
  std::mutex mutex;
  const auto note = [&](Result<SegmentPtr> segment) {
    std::lock_guard lock(mutex);
    ends.push_back(segment ? ErrorCode::OK : segment.error().code());
  };
  cache_.RefreshAsync(id, note);
  cache_.RefreshAsync(id, note);
  std::thread stopper([&] { cache_.Stop(); });
  while (cache_.Open("node-b", Deadline::After({})).error().code() != ErrorCode::SHUTTING_DOWN) {
    source_.FailLast();  // of node-b
  }
  source_.AnswerNext(7);
  stopper.join();
  EXPECT_EQ(ends, std::vector<ErrorCode>({ErrorCode::OK, ErrorCode::SHUTTING_DOWN}));
  cache_.RefreshAsync(id, note);
  EXPECT_EQ(ends.back(), ErrorCode::SHUTTING_DOWN);
}

TEST_F(SegmentCacheTest, ManyThreadsOpenCloseAndRefresh) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const auto id = cache_.Open((i + t) % 3 == 0 ? "node-a" : "node-b", Soon());
        ASSERT_TRUE(id);
        EXPECT_TRUE(cache_.Refresh(*id, Soon()));
        EXPECT_TRUE(cache_.Get(*id));
        EXPECT_TRUE(cache_.Close(*id));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace mooncake
