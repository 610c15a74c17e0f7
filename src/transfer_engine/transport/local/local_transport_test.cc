// Transfers within a process: every kind of memory, overlap, pieces, cancel, deadline, a full executor.
#include "transfer_engine/transport/local/local_transport.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <thread>

#include "device/test_pattern.h"
#include "transfer_engine/test_fake_npu.h"
#include "transfer_engine/transport/local/test_context.h"

namespace mooncake {
namespace {

constexpr auto kRead = TransferOpcode::kRead;
constexpr auto kWrite = TransferOpcode::kWrite;

uint64_t At(const Bytes& bytes, size_t offset = 0) {
  return reinterpret_cast<uint64_t>(bytes.data()) + offset;
}

class LocalTransportTest : public ::testing::Test {
 protected:
  void Open(PiecewiseCopier::Limits limits = {}) {
    auto opened = LocalTransport::Open(
        context_.Context(), [this] { return std::shared_ptr<NpuRuntime>(std::shared_ptr<void>(), &npu_); }, limits);
    ASSERT_TRUE(opened);
    transport_ = std::move(*opened);
  }
  void SetUp() override { Open(); }
  SegmentPtr Self() { return context_.Describe(*transport_); }
  std::shared_ptr<Region> Register(Bytes& bytes, RegionOptions options = {}) {
    return context_.Register(*transport_, bytes, std::move(options));
  }
  std::shared_ptr<Region> Register(const NpuRange& range) {
    RegionOptions options;
    options.device_id = range.at.device_id;
    return context_.Register(
        *transport_, HostRange(reinterpret_cast<std::byte*>(static_cast<uintptr_t>(range.at.device_ptr)), range.size),
        options);
  }
  static uint64_t At(const NpuRange& range) { return static_cast<uint64_t>(range.at.device_ptr); }
  static uint64_t At(const Bytes& bytes, size_t offset = 0) {
    return reinterpret_cast<uint64_t>(bytes.data()) + offset;
  }

  FakeNpu npu_;
  TestContext context_;
  std::unique_ptr<LocalTransport> transport_;
};

TEST_F(LocalTransportTest, ReachesOnlyItsOwnProcess) {
  Bytes bytes(1);
  EXPECT_TRUE(transport_->Reaches(HostRange(bytes), *Self(), {}));
  SegmentDescriptor other = *Self();
  other.generation = Uuid::Random();
  EXPECT_FALSE(transport_->Reaches(HostRange(bytes), other, {}));
}

TEST_F(LocalTransportTest, MovesExactlyTheRangeForEverySizeAndCaller) {
  for (const Caller caller : {Caller::kWaits, Caller::kGoesOn}) {
    for (const size_t size : {size_t{1}, 4 * kKiB, 64 * kKiB, 64 * kKiB + 1, 4 * kMiB, 9 * kMiB + 7}) {
      SCOPED_TRACE(size);
      Bytes remote = Pattern(size + 11, 3);
      const Bytes original = remote;
      const auto region = Register(remote);
      Bytes local = Pattern(size, 9);
      ASSERT_TRUE(Do(*transport_, kWrite, HostRange(local), Self(), At(remote, 5), caller));
      Bytes expected = original;
      std::ranges::copy(local, expected.begin() + 5);
      EXPECT_EQ(remote, expected);
      Bytes back(size);
      ASSERT_TRUE(Do(*transport_, kRead, HostRange(back), Self(), At(remote, 5), caller));
      EXPECT_EQ(back, local);
      context_.Unregister(*transport_, region);
    }
  }
}

TEST_F(LocalTransportTest, OverlapBehavesLikeMemmoveInBothDirections) {
  constexpr size_t kSize = 9 * kMiB;
  for (const size_t shift : {size_t{1}, size_t{4096}, 5 * kMiB}) {
    for (const bool up : {true, false}) {
      Bytes memory = Pattern(kSize + shift, 5);
      Bytes expected = memory;
      std::memmove(expected.data() + (up ? shift : 0), expected.data() + (up ? 0 : shift), kSize);
      const auto region = Register(memory);
      ASSERT_TRUE(Do(*transport_, kWrite, HostRange(memory).subspan(up ? 0 : shift, kSize), Self(),
                     At(memory, up ? shift : 0)));
      EXPECT_TRUE(memory == expected) << shift << " up " << up;
      context_.Unregister(*transport_, region);
    }
  }
}

TEST_F(LocalTransportTest, NpuMemoryOnEitherSide) {
  constexpr size_t kSize = 300 * kKiB;
  Open({.npu_piece_bytes = 64 * kKiB + 3});
  const NpuRange remote = npu_.Hold(Pattern(kSize, 1));
  Register(remote);
  Bytes local(kSize);
  ASSERT_TRUE(Do(*transport_, kRead, HostRange(local), Self(), At(remote)));
  EXPECT_EQ(local, Pattern(kSize, 1));
  local = Pattern(kSize, 2);
  ASSERT_TRUE(Do(*transport_, kWrite, HostRange(local), Self(), At(remote)));
  EXPECT_EQ(npu_.BytesOf(remote), local);
  const NpuRange near = npu_.Hold(Pattern(kSize, 3));
  ASSERT_TRUE(Do(*transport_, kWrite, near, Self(), At(remote), Caller::kGoesOn));
  EXPECT_EQ(npu_.BytesOf(remote), Pattern(kSize, 3));
  Bytes host = Pattern(kSize, 4);
  const auto region = Register(host);
  ASSERT_TRUE(Do(*transport_, kRead, near, Self(), At(host)));
  EXPECT_EQ(npu_.BytesOf(near), host);
}

TEST_F(LocalTransportTest, OverlapWithinNpuMemoryBehavesLikeMemmove) {
  constexpr size_t kSize = 300 * kKiB;
  Open({.piece_bytes = 64 * kKiB});
  for (const bool up : {true, false}) {
    const NpuRange memory = npu_.Hold(Pattern(kSize + 100, 1));
    const auto region = Register(memory);
    Bytes expected = Pattern(kSize + 100, 1);
    std::memmove(expected.data() + (up ? 100 : 0), expected.data() + (up ? 0 : 100), kSize);
    const auto local = SubRange(memory, up ? 0 : 100, kSize);
    ASSERT_TRUE(Do(*transport_, kWrite, local, Self(), At(memory) + (up ? 100 : 0)));
    EXPECT_TRUE(npu_.BytesOf(memory) == expected) << up;
    context_.Unregister(*transport_, region);
  }
}

TEST_F(LocalTransportTest, ManyShortNpuCopiesOfOneSubmissionAllArrive) {
  constexpr size_t kCount = 600;
  constexpr size_t kSize = 1000;
  const NpuRange remote = npu_.Hold(Pattern(kCount * kSize, 1));
  Register(remote);
  const SegmentPtr self = Self();
  for (const Caller caller : {Caller::kWaits, Caller::kGoesOn}) {
    Bytes local(kCount * kSize);
    Ends ends;
    std::vector<TransferOperation> operations;
    for (size_t i = 0; i < kCount; ++i) {
      operations.push_back(
          MakeOperation(kRead, HostRange(local).subspan(i * kSize, kSize), self, At(remote) + i * kSize, ends));
    }
    transport_->Submit(std::move(operations), caller);
    for (const auto& end : ends.Take(kCount)) EXPECT_TRUE(end);
    EXPECT_EQ(local, Pattern(kCount * kSize, 1));
  }
}

TEST_F(LocalTransportTest, FailedDeviceCopyFailsItsOperationOnly) {
  const NpuRange remote = npu_.Hold(Pattern(100, 1));
  Register(remote);
  npu_.before_copy = [] { return Error(ErrorCode::DATA_COPY_FAILED, "broken"); };
  Bytes local(100);
  const auto failed = Do(*transport_, kRead, HostRange(local), Self(), At(remote));
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::TRANSFER_FAIL);
  EXPECT_NE(failed.error().message().find(Self()->name), std::string::npos) << failed.error().message();
  npu_.before_copy = {};
  EXPECT_TRUE(Do(*transport_, kRead, HostRange(local), Self(), At(remote)));
}

TEST_F(LocalTransportTest, UnknownRangeAndForeignSegmentAreToldApart) {
  Bytes remote(100);
  Register(remote);
  Bytes local(101);
  const auto self = Self();
  auto beyond = Do(*transport_, kRead, HostRange(local), self, At(remote));
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
  SegmentDescriptor other = *self;
  other.generation = Uuid::Random();
  local.resize(100);
  auto stale = Do(*transport_, kRead, HostRange(local), std::make_shared<const SegmentDescriptor>(other), At(remote));
  ASSERT_FALSE(stale);
  EXPECT_EQ(stale.error().code(), ErrorCode::STALE_SEGMENT);
}

TEST_F(LocalTransportTest, GrantOpensItsRangeForWhatItAllows) {
  Bytes remote = Pattern(1000, 1);
  RegionOptions options;
  options.access = RegionAccess::kByGrant;
  Register(remote, options);
  const auto key = context_.regions.Grant(At(remote), 100, /*writable=*/false, nullptr);
  ASSERT_TRUE(key);
  const auto with_key = [&](TransferOpcode opcode, size_t size, uint64_t with) {
    Bytes local(size);
    Ends ends;
    auto operation = MakeOperation(opcode, HostRange(local), Self(), At(remote), ends);
    operation.region.key = with;
    transport_->Submit(One(std::move(operation)), Caller::kWaits);
    return ends.Take(1).front();
  };
  EXPECT_TRUE(with_key(kRead, 100, *key));
  EXPECT_FALSE(with_key(kRead, 101, *key));
  EXPECT_FALSE(with_key(kWrite, 100, *key));
  EXPECT_FALSE(with_key(kRead, 100, *key + 1));
  EXPECT_TRUE(with_key(kRead, 1000, 0));
  EXPECT_EQ(remote, Pattern(1000, 1));
}

TEST_F(LocalTransportTest, DeadlineEndsBetweenPieces) {
  Open({.npu_piece_bytes = 1000});
  const NpuRange remote = npu_.Hold(Pattern(10'000, 1));
  Register(remote);
  Bytes local(10'000);
  const Deadline deadline = Deadline::After(std::chrono::milliseconds(50));
  std::atomic<int> pieces{0};
  npu_.before_copy = [&]() -> Result<void> {
    ++pieces;
    std::mutex mutex;
    std::condition_variable never;
    std::unique_lock lock(mutex);
    never.wait_until(lock, deadline.time(), [] { return false; });
    return {};
  };
  Ends ends;
  auto operation = MakeOperation(kRead, HostRange(local), Self(), At(remote), ends);
  operation.deadline = deadline;
  transport_->Submit(One(std::move(operation)), Caller::kGoesOn);
  const auto end = ends.Take(1).front();
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().code(), ErrorCode::TRANSFER_TIMEOUT);
  EXPECT_LE(pieces, 1);
}

// A copy that a test can stop in the middle, and one that waits behind it.
class HeldCopyTest : public LocalTransportTest {
 protected:
  void SetUp() override {
    Open({.npu_piece_bytes = 100 * kKiB, .max_runners = 1});
    remote_ = npu_.Hold(Pattern(kSize, 1));
    region_ = Register(remote_);
    npu_.before_copy = [this]() -> Result<void> {
      ++pieces_;
      gate_.Pass();
      return {};
    };
  }
  void Submit(BatchId tag, Bytes& local, Deadline deadline = Deadline::After(std::chrono::seconds(60))) {
    auto operation = MakeOperation(kRead, HostRange(local), Self(), At(remote_), ends_);
    operation.tag = tag;
    operation.deadline = deadline;
    transport_->Submit(One(std::move(operation)), Caller::kGoesOn);
  }

  static constexpr size_t kSize = 1000 * kKiB;
  Gate gate_;
  std::atomic<int> pieces_{0};
  NpuRange remote_;
  std::shared_ptr<Region> region_;
  Ends ends_;
  Bytes running_ = Bytes(kSize);
  Bytes waiting_ = Bytes(kSize);
};

TEST_F(HeldCopyTest, CancelEndsWhatWaitsAtOnceAndWhatRunsAfterItsPiece) {
  Submit(1, running_);
  gate_.AwaitCame(1);
  Submit(2, waiting_);
  transport_->Cancel(2);
  EXPECT_EQ(ends_.ended(), 1u);
  transport_->Cancel(1);
  EXPECT_EQ(ends_.ended(), 1u);
  gate_.Open();
  for (const auto& end : ends_.Take(2)) {
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error().code(), ErrorCode::TRANSFER_CANCELED);
  }
  EXPECT_EQ(pieces_, 1);
  EXPECT_EQ(waiting_, Bytes(kSize));
}

TEST_F(HeldCopyTest, WaitingOperationEndsAtItsDeadlineWhileTheWorkersAreHeld) {
  Submit(1, running_);
  gate_.AwaitCame(1);
  Submit(2, waiting_, Deadline::After(std::chrono::milliseconds(20)));
  const auto first = ends_.Take(1).front();
  ASSERT_FALSE(first);
  EXPECT_EQ(first.error().code(), ErrorCode::TRANSFER_TIMEOUT);
  gate_.Open();
  ends_.Take(2);
  EXPECT_EQ(running_, Pattern(kSize, 1));
}

TEST_F(HeldCopyTest, UnregisteringEndsWhatWaitsAndWaitsForThePieceUnderWay) {
  Submit(1, running_);
  gate_.AwaitCame(1);
  Submit(2, waiting_);
  ASSERT_TRUE(context_.regions.Unpublish(region_->address));
  transport_->WithdrawRegion(*region_);
  EXPECT_EQ(ends_.ended(), 1u);
  const auto in_use = context_.regions.WaitUnused(region_, Deadline::After({}));
  ASSERT_FALSE(in_use);
  EXPECT_EQ(in_use.error().code(), ErrorCode::TRANSFER_TIMEOUT);
  gate_.Open();
  EXPECT_TRUE(context_.regions.WaitUnused(region_, Deadline::After(std::chrono::seconds(60))));
  for (const auto& end : ends_.Take(2)) {
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
  }
}

TEST_F(HeldCopyTest, DestructionEndsEverythingAndWaitsForThePieceUnderWay) {
  Submit(1, running_);
  gate_.AwaitCame(1);
  Submit(2, waiting_);
  std::thread closer([this] { transport_.reset(); });
  ASSERT_FALSE(ends_.Take(1).front());
  EXPECT_EQ(ends_.ended(), 1u);
  gate_.Open();
  closer.join();
  for (const auto& end : ends_.Take(2)) EXPECT_EQ(end.error().code(), ErrorCode::SHUTTING_DOWN);
  EXPECT_EQ(pieces_, 1);
}

TEST(LocalTransportExecutorTest, FullExecutorDelaysNothing) {
  Gate gate;
  TestContext context(1, 1);
  auto transport = LocalTransport::Open(context.Context());
  ASSERT_TRUE(transport);
  for (int i = 0; i < 2; ++i) {  // one runs, one fills the queue
    std::move_only_function<void()> blocker = [&gate] { gate.Pass(); };
    while (!context.executor.TrySubmit(blocker)) std::this_thread::yield();
    if (i == 0) gate.AwaitCame(1);
  }
  Bytes remote = Pattern(20 * kMiB, 1);
  context.Register(**transport, remote);
  const auto self = context.Describe(**transport);
  Bytes local(20 * kMiB);
  Ends ends;
  for (size_t i = 0; i < 10; ++i) {
    const size_t at = i * 2 * kMiB;
    (*transport)
        ->Submit(One(MakeOperation(kRead, HostRange(local).subspan(at, 2 * kMiB), self, At(remote, at), ends)),
                 Caller::kGoesOn);
  }
  for (const auto& end : ends.Take(10)) EXPECT_TRUE(end);
  EXPECT_EQ(local, remote);
  gate.Open();
}

TEST(LocalTransportExecutorTest, BeyondItsListTheSubmitterCopies) {
  Gate gate;
  TestContext context(1, 8);
  auto transport = LocalTransport::Open(context.Context(), UsedNpuRuntime, {.max_runners = 1, .max_waiting = 1});
  ASSERT_TRUE(transport);
  std::move_only_function<void()> blocker = [&gate] { gate.Pass(); };
  ASSERT_TRUE(context.executor.TrySubmit(blocker));
  Bytes remote = Pattern(kMiB, 1);
  context.Register(**transport, remote);
  const auto self = context.Describe(**transport);
  Bytes first(kMiB), second(kMiB);
  Ends ends;
  (*transport)->Submit(One(MakeOperation(kRead, HostRange(first), self, At(remote), ends)), Caller::kGoesOn);
  EXPECT_EQ(ends.ended(), 0u);
  (*transport)->Submit(One(MakeOperation(kRead, HostRange(second), self, At(remote), ends)), Caller::kGoesOn);
  EXPECT_EQ(ends.ended(), 1u);
  EXPECT_EQ(second, remote);
  gate.Open();
  ends.Take(2);
  EXPECT_EQ(first, remote);
}

TEST_F(LocalTransportTest, ManyThreadsMoveTheirOwnBytes) {
  constexpr size_t kThreads = 8;
  constexpr size_t kSize = 200 * kKiB;
  Bytes remote(kThreads * kSize);
  Register(remote);
  const auto self = Self();
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned round = 0; round < 20; ++round) {
        Bytes local = Pattern(kSize, static_cast<unsigned>(t * 100 + round));
        const Bytes expected = local;
        const Caller caller = round % 2 == 0 ? Caller::kWaits : Caller::kGoesOn;
        EXPECT_TRUE(Do(*transport_, kWrite, HostRange(local), self, At(remote, t * kSize), caller));
        local.assign(kSize, {});
        EXPECT_TRUE(Do(*transport_, kRead, HostRange(local), self, At(remote, t * kSize), caller));
        EXPECT_TRUE(local == expected);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace mooncake
