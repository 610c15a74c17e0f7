// Batches: states end once, handles are checked, waiters and callbacks are released when all has ended.
#include "transfer_engine/batch_table.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

namespace mooncake {
namespace {

Deadline Soon() {
  return Deadline::After(std::chrono::seconds(20));
}
Deadline Now() {
  return Deadline::After({});
}
std::vector<TransferRequest> Requests(size_t count, size_t length = 10) {
  return std::vector<TransferRequest>(count, TransferRequest{.length = length});
}
Result<void> Failed(ErrorCode code) {
  return Error(code, "as told");
}

TEST(BatchTest, TasksEndOneByOneAndTheBatchWithTheLast) {
  Batch batch(3);
  ASSERT_EQ(batch.Add(Requests(3)), 0u);
  batch.End(1, {});
  EXPECT_EQ(batch.Task(0)->state, TransferState::kWaiting);
  EXPECT_EQ(batch.Task(1)->state, TransferState::kCompleted);
  EXPECT_EQ(batch.Task(1)->transferred_bytes, 10u);
  EXPECT_EQ(batch.Summary().state, TransferState::kWaiting);
  EXPECT_EQ(batch.Summary().transferred_bytes, 10u);
  batch.End(0, {});
  batch.End(2, {});
  EXPECT_EQ(batch.Summary().state, TransferState::kCompleted);
  EXPECT_EQ(batch.Summary().transferred_bytes, 30u);
}

TEST(BatchTest, FailureShowsOnlyWhenNothingMovesAnyMore) {
  Batch batch(2);
  ASSERT_TRUE(batch.Add(Requests(2)));
  batch.End(0, Failed(ErrorCode::TRANSFER_FAIL));
  EXPECT_EQ(batch.Summary().state, TransferState::kWaiting);
  EXPECT_EQ(batch.Task(0)->state, TransferState::kFailed);
  EXPECT_EQ(batch.Task(0)->error.message(), "as told");
  batch.End(1, {});
  const TransferStatus summary = batch.Summary();
  EXPECT_EQ(summary.state, TransferState::kFailed);
  EXPECT_EQ(summary.error.code(), ErrorCode::TRANSFER_FAIL);
  EXPECT_EQ(summary.transferred_bytes, 10u);
}

TEST(BatchTest, WorstEndOfTheTasksIsTheBatchs) {
  Batch batch(4);
  ASSERT_TRUE(batch.Add(Requests(4)));
  batch.End(0, {});
  batch.End(1, Failed(ErrorCode::TRANSFER_CANCELED));
  batch.End(2, Failed(ErrorCode::TRANSFER_TIMEOUT));
  batch.End(3, Failed(ErrorCode::TRANSFER_CANCELED));
  EXPECT_EQ(batch.Task(1)->state, TransferState::kCanceled);
  EXPECT_EQ(batch.Summary().state, TransferState::kTimeout);
}

TEST(BatchTest, EmptyBatchIsCompleted) {
  const Batch batch(0);
  EXPECT_EQ(batch.Summary().state, TransferState::kCompleted);
  EXPECT_EQ(batch.Wait(Now()).state, TransferState::kCompleted);
}

TEST(BatchTest, TakesNoMoreTasksThanItWasMadeFor) {
  Batch batch(3);
  ASSERT_TRUE(batch.Add(Requests(2)));
  const auto refused = batch.Add(Requests(2));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::TOO_MANY_REQUESTS);
  EXPECT_FALSE(batch.Task(2)) << "none of them was added";
  EXPECT_EQ(batch.Add(Requests(1)), 2u);
}

TEST(BatchTest, ExtraItemsHoldTheBatchAndAreNoTasks) {
  Batch batch(3);
  ASSERT_EQ(batch.Add(Requests(1), true), 0u);
  ASSERT_EQ(batch.Add(Requests(2), true), 2u);
  for (const size_t item : {0, 2, 3, 4}) batch.End(item, {});
  EXPECT_EQ(batch.Summary().state, TransferState::kWaiting);
  EXPECT_EQ(batch.Task(0)->state, TransferState::kCompleted);
  EXPECT_EQ(batch.Task(1)->state, TransferState::kCompleted);
  EXPECT_EQ(batch.Task(2)->state, TransferState::kCompleted);
  EXPECT_FALSE(batch.Task(3));
  batch.End(1, Failed(ErrorCode::RPC_FAIL));
  EXPECT_EQ(batch.Summary().state, TransferState::kFailed);
  EXPECT_EQ(batch.Summary().transferred_bytes, 30u);
}

TEST(BatchTest, SecondEndStopsTheProcess) {
  Batch batch(1);
  ASSERT_TRUE(batch.Add(Requests(1)));
  batch.End(0, {});
  EXPECT_DEATH(batch.End(0, {}), "ended twice");
}

TEST(BatchTest, WaitEndsWithTheBatchOrTheDeadline) {
  Batch batch(1);
  ASSERT_TRUE(batch.Add(Requests(1)));
  EXPECT_EQ(batch.Wait(Now()).state, TransferState::kWaiting);
  std::thread other([&] { batch.End(0, {}); });
  EXPECT_EQ(batch.Wait(Soon()).state, TransferState::kCompleted);
  other.join();
}

TEST(BatchTest, WaitThatLooksFirstEndsWithTheBatchOrTheDeadlineToo) {
  Batch batch(1, std::chrono::hours(1));
  ASSERT_TRUE(batch.Add(Requests(1)));
  EXPECT_EQ(batch.Wait(Now()).state, TransferState::kWaiting);
  EXPECT_EQ(batch.Wait(Deadline::After(std::chrono::milliseconds(1))).state, TransferState::kWaiting);
  std::thread other([&] { batch.End(0, {}); });
  EXPECT_EQ(batch.WaitForEnd().state, TransferState::kCompleted);
  other.join();
}

TEST(BatchTest, CallbackRunsOnceForWhatWasSubmittedBeforeIt) {
  Batch batch(3);
  ASSERT_TRUE(batch.Add(Requests(2)));
  std::vector<TransferStatus> early;
  std::vector<TransferStatus> late;
  batch.OnEnd([&](const TransferStatus& status) { early.push_back(status); });
  ASSERT_TRUE(batch.Add(Requests(1)));
  batch.OnEnd([&](const TransferStatus& status) { late.push_back(status); });
  batch.End(0, {});
  EXPECT_TRUE(early.empty());
  batch.End(1, Failed(ErrorCode::TRANSFER_TIMEOUT));
  ASSERT_EQ(early.size(), 1u);
  EXPECT_EQ(early[0].state, TransferState::kTimeout);
  EXPECT_EQ(early[0].transferred_bytes, 10u);
  EXPECT_TRUE(late.empty());
  batch.End(2, {});
  EXPECT_EQ(early.size(), 1u);
  ASSERT_EQ(late.size(), 1u);
  EXPECT_EQ(late[0].transferred_bytes, 20u);
}

TEST(BatchTest, CallbackOfAnEndedBatchRunsAtOnce) {
  Batch batch(1);
  bool ran = false;
  batch.OnEnd([&](const TransferStatus& status) { ran = status.state == TransferState::kCompleted; });
  EXPECT_TRUE(ran);
}

TEST(BatchTest, CallbackMayUseTheBatch) {
  const auto batch = std::make_shared<Batch>(1);
  ASSERT_TRUE(batch->Add(Requests(1)));
  bool closed = false;
  batch->OnEnd([&](const TransferStatus&) { closed = batch->Close().has_value(); });
  batch->End(0, {});
  EXPECT_TRUE(closed);
}

TEST(BatchTableTest, HandlesOfOthersAndOfThePastAreRefused) {
  BatchTable table(8);
  const BatchId id = *table.Allocate(1);
  EXPECT_TRUE(table.Find(id));
  ASSERT_TRUE(table.Free(id));
  for (const BatchId wrong :
       {id, kInvalidBatch, BatchId{0}, BatchId{1}, id + 1, id + (BatchId{1} << 40), BatchId{0x7fffffffffff}}) {
    const auto found = table.Find(wrong);
    ASSERT_FALSE(found) << wrong;
    EXPECT_EQ(found.error().code(), ErrorCode::INVALID_PARAMS);
    EXPECT_FALSE(table.Free(wrong));
  }
}

TEST(BatchTableTest, HandleIsNotUsedAgainForTheNextBatchOfItsPlace) {
  BatchTable table(1);
  std::set<BatchId> seen;
  for (int i = 0; i < 100; ++i) {
    const auto id = table.Allocate(1);
    ASSERT_TRUE(id);
    EXPECT_TRUE(seen.insert(*id).second);
    EXPECT_GT(static_cast<int64_t>(*id), 0) << "bindings hand it out as a signed number";
    ASSERT_TRUE(table.Free(*id));
  }
  EXPECT_EQ(table.open(), 0u);
}

TEST(BatchTableTest, OpenBatchesAreLimited) {
  BatchTable table(3);
  std::vector<BatchId> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(*table.Allocate(1));
  const auto refused = table.Allocate(1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::TOO_MANY_REQUESTS);
  ASSERT_TRUE(table.Free(ids[1]));
  EXPECT_TRUE(table.Allocate(1));
}

TEST(BatchTableTest, BusyBatchIsNotFreed) {
  BatchTable table(1);
  const BatchId id = *table.Allocate(1);
  const auto batch = *table.Find(id);
  ASSERT_TRUE(batch->Add(Requests(1)));
  const auto busy = table.Free(id);
  ASSERT_FALSE(busy);
  EXPECT_EQ(busy.error().code(), ErrorCode::BATCH_BUSY);
  batch->End(0, {});
  EXPECT_TRUE(table.Free(id));
  EXPECT_FALSE(batch->Add({})) << "whoever still holds it cannot bring it back";
}

TEST(BatchTableTest, BatchMayBeFreedFromItsOwnCallback) {
  BatchTable table(1);
  const BatchId id = *table.Allocate(1);
  const auto batch = *table.Find(id);
  ASSERT_TRUE(batch->Add(Requests(1)));
  bool freed = false;
  batch->OnEnd([&](const TransferStatus&) { freed = table.Free(id).has_value(); });
  batch->End(0, {});
  EXPECT_TRUE(freed);
  EXPECT_EQ(table.open(), 0u);
}

TEST(BatchTableTest, ThreadsEndPollWaitAndFree) {
  constexpr size_t kTasks = 200;
  BatchTable table(16);
  for (int round = 0; round < 20; ++round) {
    const BatchId id = *table.Allocate(kTasks);
    const auto batch = *table.Find(id);
    ASSERT_TRUE(batch->Add(Requests(kTasks)));
    std::atomic<int> called{0};
    batch->OnEnd([&](const TransferStatus& status) {
      EXPECT_EQ(status.transferred_bytes, kTasks * 10);
      ++called;
    });
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 2; ++t) {
      threads.emplace_back([&, t] {
        for (size_t i = t; i < kTasks; i += 2) batch->End(i, {});
      });
    }
    threads.emplace_back([&] {
      while (batch->Summary().state == TransferState::kWaiting) EXPECT_TRUE(batch->Task(kTasks - 1));
    });
    EXPECT_EQ(batch->Wait(Soon()).state, TransferState::kCompleted);
    EXPECT_TRUE(table.Free(id));
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(called, 1);
  }
}

}  // namespace
}  // namespace mooncake
