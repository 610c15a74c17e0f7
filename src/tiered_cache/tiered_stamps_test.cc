// Stamps decide which content of a key stays.
#include <gmock/gmock.h>

#include <atomic>
#include <cstring>
#include <map>
#include <thread>

#include "tiered_cache/test_backend_fixture.h"

namespace mooncake {
namespace {

using ::testing::ElementsAre;

constexpr ContentStamp PutAt(uint64_t hlc, uint32_t writer = 1) {
  return {.hlc = hlc, .writer = writer};
}
constexpr ContentStamp UpsertAt(uint64_t hlc, uint32_t writer = 1) {
  return {.hlc = hlc, .writer = writer, .upserted = true};
}

class StampTest : public BackendFixture {
 protected:
  void SetUp() override {
    OpenBackend(1000, 1000, {.on_change = [this](std::string_view key) { changed_.emplace_back(key); }});
  }
  Result<uint64_t> PutStamped(const ContentStamp& stamp, unsigned version) {
    return Put("k", ContentOf("k", 100, version), {}, {.only_if_absent = true, .stamp = stamp});
  }
  Result<uint64_t> Upsert(const ContentStamp& stamp, unsigned version) {
    return Put("k", ContentOf("k", 100, version), {}, {.stamp = stamp, .replace_if_newer = true});
  }
  std::vector<std::string> changed_;
};

TEST_F(StampTest, NewerContentReplacesAndOlderOrEqualIsRefused) {
  ASSERT_TRUE(Upsert(UpsertAt(5), 1));
  EXPECT_EQ(CodeOf(Upsert(UpsertAt(5), 2)), ErrorCode::CAS_FAILED);
  EXPECT_EQ(CodeOf(Upsert(UpsertAt(4, 9), 2)), ErrorCode::CAS_FAILED);
  EXPECT_EQ(GetBytes("k"), ContentOf("k", 100, 1));
  EXPECT_EQ(top_->usage(), 100u) << "what was refused gave its room back";
  ASSERT_TRUE(Upsert(UpsertAt(5, 2), 3)) << "of two at once the greater writer's stays";
  EXPECT_EQ(GetBytes("k"), ContentOf("k", 100, 3));
  EXPECT_EQ(backend_->Get("k")->stamp, UpsertAt(5, 2));
  EXPECT_THAT(changed_, ElementsAre("k", "k"));
}

TEST_F(StampTest, UpsertReplacesAPutWhateverItsTimeAndAPutNothing) {
  ASSERT_TRUE(PutStamped(PutAt(100), 1));
  ASSERT_TRUE(Upsert(UpsertAt(1), 2));
  EXPECT_EQ(CodeOf(PutStamped(PutAt(200), 3)), ErrorCode::OBJECT_ALREADY_EXISTS);
  EXPECT_EQ(CodeOf(Upsert(PutAt(200), 3)), ErrorCode::CAS_FAILED);
  EXPECT_EQ(GetBytes("k"), ContentOf("k", 100, 2));
}

TEST_F(StampTest, ContentWithoutStampRanksLowestAndNewerNeedsOne) {
  ASSERT_TRUE(Put("k", ContentOf("k", 100)));
  EXPECT_TRUE(backend_->Get("k")->stamp.none());
  EXPECT_EQ(CodeOf(Upsert({}, 1)), ErrorCode::INVALID_PARAMS);
  ASSERT_TRUE(Upsert(PutAt(1), 1));
  EXPECT_EQ(GetBytes("k"), ContentOf("k", 100, 1));
}

TEST_F(StampTest, StampBelongsToTheContentNotToAReplica) {
  ASSERT_TRUE(PutStamped(PutAt(7), 1));
  ASSERT_TRUE(backend_->Transfer("k", top(), low()));
  EXPECT_EQ(backend_->Get("k", low())->stamp, PutAt(7));
  ASSERT_TRUE(backend_->Delete("k", top()));
  EXPECT_EQ(backend_->Get("k")->stamp, PutAt(7));
  ASSERT_TRUE(Put("k", ContentOf("k", 100, 2)));
  EXPECT_TRUE(backend_->Get("k")->stamp.none()) << "another content, another stamp";
}

TEST_F(StampTest, ReplacementTakesTheOldContentFromEveryTier) {
  ASSERT_TRUE(PutStamped(PutAt(7), 1));
  ASSERT_TRUE(backend_->Transfer("k", top(), low()));
  const auto held = backend_->Get("k");
  ASSERT_TRUE(Upsert(UpsertAt(8), 2));
  EXPECT_FALSE(backend_->Exist("k", low()));
  EXPECT_EQ(Read(held->handle), ContentOf("k", 100, 1)) << "whoever holds the old one reads the old one";
}

TEST_F(StampTest, DeleteOlderLeavesWhatIsAsNew) {
  ASSERT_TRUE(PutStamped(PutAt(7), 1));
  EXPECT_EQ(CodeOf(backend_->DeleteOlder("k", PutAt(7))), ErrorCode::CAS_FAILED);
  EXPECT_EQ(CodeOf(backend_->DeleteOlder("k", PutAt(6, 9))), ErrorCode::CAS_FAILED);
  EXPECT_TRUE(backend_->Exist("k"));
  changed_.clear();
  EXPECT_TRUE(backend_->DeleteOlder("k", UpsertAt(1)));
  EXPECT_FALSE(backend_->Exist("k"));
  EXPECT_EQ(top_->usage(), 0u);
  EXPECT_THAT(changed_, ElementsAre("k"));
  EXPECT_EQ(CodeOf(backend_->DeleteOlder("k", UpsertAt(1))), ErrorCode::OBJECT_NOT_FOUND);
  ASSERT_TRUE(Put("k", ContentOf("k", 100)));
  EXPECT_TRUE(backend_->DeleteOlder("k", PutAt(1))) << "without a stamp it is older than all";
}

TEST_F(StampTest, QuietCommitTellsNobodyUnlessItFails) {
  ASSERT_TRUE(Put("k", ContentOf("k", 100), {}, {.stamp = PutAt(1), .quiet = true}));
  EXPECT_THAT(changed_, ElementsAre());
  EXPECT_EQ(GetBytes("k"), ContentOf("k", 100));
}

TEST_F(StampTest, ClosedBackendDeletesNothing) {
  ASSERT_TRUE(PutStamped(PutAt(1), 1));
  backend_->Stop();
  EXPECT_EQ(CodeOf(backend_->DeleteOlder("k", UpsertAt(1))), ErrorCode::SHUTTING_DOWN);
}

// --- many writers ---

Bytes ContentOfStamp(const ContentStamp& stamp) {
  Bytes bytes = ContentOf("content", 64, static_cast<unsigned>(stamp.hlc * 8 + stamp.writer));
  std::memcpy(bytes.data(), &stamp.hlc, sizeof(stamp.hlc));
  return bytes;
}

// Every reader sees, for each key, stamps that only grow, each with its own bytes.
void ReadUntil(TieredBackend& backend, const std::vector<std::string>& keys, const std::atomic<bool>& done,
               std::atomic<int>& wrong) {
  std::map<std::string, ContentStamp> seen;
  while (!done) {
    for (const std::string& key : keys) {
      const auto view = backend.Get(key);
      if (!view) continue;
      Bytes bytes(view->handle->data.size());
      const bool read =
          backend.copier().Copy(view->handle->data, DataSource::Host(bytes.data(), bytes.size())).has_value();
      if (!read || bytes != ContentOfStamp(view->stamp) || view->stamp < seen[key]) ++wrong;
      seen[key] = view->stamp;
    }
  }
}

TEST_F(StampTest, ConcurrentUpsertsEndWithTheHighestStampAndReadersNeverGoBack) {
  constexpr uint64_t kRounds = 400;
  OpenBackend(100'000, 1000);
  const std::vector<std::string> keys{"a", "b", "c"};
  std::atomic<bool> done = false;
  std::atomic<int> wrong = 0;
  std::thread reader([&] { ReadUntil(*backend_, keys, done, wrong); });
  {
    std::vector<std::jthread> writers;
    for (uint32_t writer = 1; writer <= 4; ++writer) {
      writers.emplace_back([&, writer] {
        for (uint64_t turn = 1; turn <= kRounds; ++turn) {
          // Half of the writers come with old stamps last.
          const ContentStamp stamp = UpsertAt(writer % 2 == 0 ? turn : kRounds + 1 - turn, writer);
          const auto put =
              Put(keys[turn % keys.size()], ContentOfStamp(stamp), {}, {.stamp = stamp, .replace_if_newer = true});
          if (!put && put.error().code() != ErrorCode::CAS_FAILED) ++wrong;
        }
      });
    }
  }
  done = true;
  reader.join();
  EXPECT_EQ(wrong, 0);
  for (size_t i = 0; i < keys.size(); ++i) {
    ContentStamp highest;
    for (uint64_t turn = 1; turn <= kRounds; ++turn) {
      if (turn % keys.size() != i) continue;
      for (uint32_t writer = 1; writer <= 4; ++writer) {
        highest = std::max(highest, UpsertAt(writer % 2 == 0 ? turn : kRounds + 1 - turn, writer));
      }
    }
    EXPECT_EQ(backend_->Get(keys[i])->stamp, highest) << keys[i];
    EXPECT_EQ(GetBytes(keys[i]), ContentOfStamp(highest));
  }
  EXPECT_EQ(top_->usage(), keys.size() * 64);
}

}  // namespace
}  // namespace mooncake
