// No lock of the backend is held while a listener, a tier or a copy runs.
#include <gtest/gtest.h>

#include "tiered_cache/test_backend_fixture.h"

namespace mooncake {
namespace {

// Two tiers of one block each and one shard: every call shares the lock, the third put drops a block.
class TieredBackendLockTest : public ::testing::Test {
 protected:
  void Open(std::function<void(std::string_view)> on_change) {
    backend_ = *TieredBackend::Open({top_, low_}, {.shard_count = 1, .on_change = std::move(on_change)});
  }
  void Put(const char* key) {
    auto handle = backend_->Allocate(100);
    ASSERT_TRUE(handle);
    ASSERT_TRUE(backend_->Commit(key, std::move(*handle)));
  }
  void UseEveryCall() {
    Put("a");
    Put("b");  // a moves down
    Put("c");  // a is dropped, b moves down
    ASSERT_TRUE(backend_->Delete("c"));
    Put("b");  // replaced
    ASSERT_TRUE(backend_->Transfer("b", top_->info().id, low_->info().id));
    ASSERT_TRUE(backend_->Delete("b", low_->info().id));
    EXPECT_EQ(backend_->RemoveAll(), 1u);
  }
  void Check(const char* when) {
    ++calls_;
    if (!locked_ && !ReachableByAnotherThread(backend_)) {
      ADD_FAILURE() << "a lock is held " << when;
      locked_ = true;
    }
  }

  std::shared_ptr<HeapTier> top_ = std::make_shared<HeapTier>("top", 100, 2);
  std::shared_ptr<HeapTier> low_ = std::make_shared<HeapTier>("low", 100, 1);
  std::shared_ptr<TieredBackend> backend_;
  bool locked_ = false;
  int calls_ = 0;
};

TEST_F(TieredBackendLockTest, ListenerIsCalledWithoutLocks) {
  Open([&](std::string_view key) {
    Check("while the listener runs");
    if (locked_) return;
    (void)backend_->Exist(key);
    (void)backend_->Get(key, std::nullopt, false);
    (void)backend_->KeyCount();
  });
  UseEveryCall();
  EXPECT_EQ(calls_, 11);
}

TEST_F(TieredBackendLockTest, MemoryIsTakenAndGivenBackWithoutLocks) {
  Open({});
  for (const auto& tier : {top_, low_}) {
    tier->before_allocate = [&] { Check("while a tier allocates"); };
    tier->on_free = [&](auto) { Check("while a block is freed"); };
  }
  UseEveryCall();
  EXPECT_GE(calls_, 14);
  for (const auto& tier : {top_, low_}) tier->on_free = nullptr;
}

TEST_F(TieredBackendLockTest, BytesAreCopiedWithoutLocks) {
  Open({});
  for (const auto& tier : {top_, low_}) {
    tier->on_access = [&] { Check("while bytes are copied"); };
  }
  const Bytes bytes(100);
  ASSERT_TRUE(backend_->Write(DataSource::Host(bytes.data(), bytes.size()), *backend_->Allocate(100)));
  EXPECT_GE(calls_, 1);
  UseEveryCall();
  EXPECT_GE(calls_, 7) << "two moves and a transfer, two ends each";
}

}  // namespace
}  // namespace mooncake
