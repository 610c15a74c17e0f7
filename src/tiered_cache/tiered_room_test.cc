// Room that is only missing for a moment, and what a refusal says.
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "tiered_cache/test_backend_fixture.h"

namespace mooncake {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kLong = std::chrono::minutes(2);
constexpr size_t kBlock = 100;

class RoomTest : public BackendFixture {
 protected:
  Result<AllocationHandle> AllocateWaiting(size_t size) {
    return backend_->Allocate(size, std::nullopt, /*strict=*/false, Deadline::After(kLong));
  }
  // Returns when somebody has asked the top tier that many times more.
  void AwaitAttempts(uint64_t attempts) {
    const uint64_t goal = top_->allocate_calls() + attempts;
    while (top_->allocate_calls() < goal) std::this_thread::yield();
  }
};

TEST_F(RoomTest, WaitsUntilAReaderLetsGo) {
  OpenBackend(kBlock, 1);
  ASSERT_TRUE(Put("a", ContentOf("a", kBlock)));
  auto reader = backend_->Get("a")->handle;
  Result<AllocationHandle> got;
  std::thread putter([&] { got = AllocateWaiting(kBlock); });
  AwaitAttempts(3);
  EXPECT_TRUE(backend_->Exist("a")) << "nobody takes a block from under its reader";
  reader.reset();
  putter.join();
  ASSERT_TRUE(got) << got.error().ToString();
  EXPECT_FALSE(backend_->Exist("a"));
}

TEST_F(RoomTest, WaitsUntilAWriterGivesUp) {
  OpenBackend(kBlock, 1);
  auto unfinished = *backend_->Allocate(kBlock);
  Result<AllocationHandle> got;
  std::thread putter([&] { got = AllocateWaiting(kBlock); });
  AwaitAttempts(3);
  unfinished.reset();
  putter.join();
  EXPECT_TRUE(got);
}

TEST_F(RoomTest, WaitEndsAtItsDeadlineWithTheNumbersOfEachTier) {
  OpenBackend(3 * kBlock, 2 * kBlock);
  ASSERT_TRUE(Put("a", ContentOf("a", kBlock), top()));
  const auto reader = backend_->Get("a")->handle;
  const auto unfinished = *backend_->Allocate(2 * kBlock, top());
  ASSERT_TRUE(Put("b", ContentOf("b", kBlock), low()));
  const auto other_reader = backend_->Get("b")->handle;
  const auto got =
      backend_->Allocate(2 * kBlock, std::nullopt, /*strict=*/false, Deadline::After(std::chrono::milliseconds(20)));
  ASSERT_EQ(CodeOf(got), ErrorCode::NO_AVAILABLE_HANDLE);
  EXPECT_THAT(got.error().message(),
              AllOf(HasSubstr("no room for 200 B"),
                    HasSubstr("top: 0 B free, 0 B could be evicted, 100 B are being read, 300 B in all are used"),
                    HasSubstr("low: 100 B free, 0 B could be evicted, 100 B are being read, 100 B in all are used")));
}

TEST_F(RoomTest, NothingIsWaitedForWhereItCannotHelp) {
  OpenBackend(kBlock, kBlock);
  const auto too_large = AllocateWaiting(kBlock + 1);
  EXPECT_EQ(CodeOf(too_large), ErrorCode::NO_AVAILABLE_HANDLE);
  for (const auto& tier : {top_, low_}) {
    tier->Refuse(Status(ErrorCode::NO_AVAILABLE_HANDLE, "the device has no memory", 207001));
  }
  const auto refused = AllocateWaiting(kBlock);
  EXPECT_EQ(CodeOf(refused), ErrorCode::NO_AVAILABLE_HANDLE);
}

TEST_F(RoomTest, StoppingEndsTheWait) {
  OpenBackend(kBlock, 1);
  const auto unfinished = *backend_->Allocate(kBlock);
  Result<AllocationHandle> got;
  std::thread putter([&] { got = AllocateWaiting(kBlock); });
  AwaitAttempts(2);
  backend_->Stop();
  putter.join();
  EXPECT_EQ(CodeOf(got), ErrorCode::SHUTTING_DOWN);
}

TEST_F(RoomTest, MoreWritersThanBlocksAllSucceed) {
  OpenBackend(2 * kBlock, kBlock);
  std::atomic<int> failures = 0;
  std::vector<std::thread> writers;
  for (int t = 0; t < 8; ++t) {
    writers.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const std::string key = std::to_string(t) + "/" + std::to_string(i);
        const Bytes bytes = ContentOf(key, kBlock);
        auto handle = AllocateWaiting(kBlock);
        if (!handle || !backend_->Write(DataSource::Host(bytes.data(), kBlock), *handle) ||
            !backend_->Commit(key, std::move(*handle))) {
          failures.fetch_add(1);
        }
      }
    });
  }
  for (auto& writer : writers) writer.join();
  EXPECT_EQ(failures, 0);
  backend_->RemoveAll();
  EXPECT_EQ(top_->usage() + low_->usage(), 0u);
}

TEST(ThreeTiersTest, BlockSinksPastATierThatCannotHoldIt) {
  const auto top = std::make_shared<HeapTier>("top", kBlock, 3);
  const auto middle = std::make_shared<HeapTier>("middle", kBlock / 2, 2);
  const auto bottom = std::make_shared<HeapTier>("bottom", 4 * kBlock, 1);
  auto backend = *TieredBackend::Open({top, middle, bottom}, {});
  for (const char* key : {"a", "b"}) {
    const Bytes bytes = ContentOf(key, kBlock);
    auto handle = *backend->Allocate(kBlock);
    ASSERT_TRUE(backend->Write(DataSource::Host(bytes.data(), kBlock), handle));
    ASSERT_TRUE(backend->Commit(key, std::move(handle)));
  }
  ASSERT_TRUE(backend->Exist("a", bottom->info().id)) << "a sole copy with room below is not dropped";
  Bytes read(kBlock);
  ASSERT_TRUE(backend->copier().Copy(backend->Get("a")->handle->data, DataSource::Host(read.data(), kBlock)));
  EXPECT_EQ(read, ContentOf("a", kBlock));
  EXPECT_EQ(backend->GetTierViews()[0].dropped, 0u);
}

TEST(ThreeTiersTest, CopyOnAnyLowerTierSavesTheSecondOne) {
  const auto top = std::make_shared<HeapTier>("top", kBlock, 3);
  const auto middle = std::make_shared<HeapTier>("middle", kBlock, 2);
  const auto bottom = std::make_shared<HeapTier>("bottom", kBlock, 1);
  auto backend = *TieredBackend::Open({top, middle, bottom}, {});
  const auto put = [&](const char* key) {
    const Bytes bytes = ContentOf(key, kBlock);
    auto handle = *backend->Allocate(kBlock);
    return backend->Write(DataSource::Host(bytes.data(), kBlock), handle).has_value() &&
           backend->Commit(key, std::move(handle)).has_value();
  };
  ASSERT_TRUE(put("a"));
  ASSERT_TRUE(backend->Transfer("a", top->info().id, bottom->info().id));
  ASSERT_TRUE(put("b"));
  EXPECT_THAT(backend->GetReplicaTierIds("a"), ::testing::ElementsAre(bottom->info().id));
  EXPECT_EQ(middle->usage(), 0u) << "no second copy was made on the way";
}

}  // namespace
}  // namespace mooncake
