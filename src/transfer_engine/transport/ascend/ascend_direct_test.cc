// Two engines of one process: which bytes move, what is refused, and what waits for whom.
#include <atomic>
#include <deque>
#include <set>
#include <thread>

#include "transfer_engine/test_fake_npu.h"
#include "transfer_engine/transport/ascend/test_npu_node.h"

namespace mooncake {
namespace {

constexpr auto kRead = TransferOpcode::kRead;
constexpr auto kWrite = TransferOpcode::kWrite;

class AscendDirectTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto ipc = runtime_->Ipc(); !ipc) GTEST_SKIP() << ipc.error().message();
    owner_ = std::make_unique<NpuNode>(runtime_);
    asker_ = std::make_unique<NpuNode>(runtime_);
  }
  void TearDown() override {
    if (owner_ == nullptr) return;
    owner_.reset();
    asker_.reset();
    blocks_.clear();
    EXPECT_EQ(EmulatorProbe::LiveBlocks(), 0);
    EXPECT_EQ(calls_.closes(), calls_.exports() - failed_);
    EXPECT_EQ(calls_.imports(), 0u) << "the runtime imports in other processes only";
    EXPECT_EQ(calls_.violations(), 0u);
  }
  // Lives longer than its registration.
  NpuBlock& Block(int32_t device, size_t bytes, unsigned seed) {
    return blocks_.emplace_back(*runtime_, device, bytes, seed);
  }
  std::string WhyNot(const MemoryRange& local, const SegmentDescriptor& target, const SegmentRegion& region) {
    const std::string why = asker_->transport->WhyNot(local, target, region);
    EXPECT_EQ(asker_->transport->Reaches(local, target, region), why.empty());
    return why;
  }

  std::shared_ptr<NpuRuntime> runtime_ = RuntimeOfNode();
  const IpcCalls calls_;
  uint64_t failed_ = 0;  // exports that failed
  std::deque<NpuBlock> blocks_;
  std::unique_ptr<NpuNode> owner_;
  std::unique_ptr<NpuNode> asker_;
};

TEST_F(AscendDirectTest, MovesExactlyTheRangeForEverySizeAndOffsetWithinAndBetweenDevices) {
  constexpr size_t kSize = 2 * kMiB + 8192;
  for (const int32_t far : {0, 1}) {
    NpuBlock& remote = Block(far, kSize, 1);
    NpuBlock& local = Block(0, kSize, 2);
    const auto region = owner_->Register(remote);
    const SegmentPtr target = owner_->Describe();
    Bytes expected = Pattern(kSize, 1);
    const Bytes source = Pattern(kSize, 2);
    for (const size_t size : {size_t{1}, size_t{63}, 4 * kKiB, 2 * kMiB + 1}) {
      for (const size_t offset : {size_t{0}, size_t{64}, size_t{4099}}) {
        const Caller caller = offset == 0 ? Caller::kWaits : Caller::kGoesOn;
        ASSERT_TRUE(Do(*asker_->transport, kWrite, local.Part(offset, size), target, remote.address() + 128, caller));
        std::copy_n(source.begin() + static_cast<ptrdiff_t>(offset), size, expected.begin() + 128);
        ASSERT_TRUE(remote.Holds(expected)) << size << " B from " << offset << " to device " << far;
      }
    }
    ASSERT_TRUE(Do(*asker_->transport, kRead, local.Part(7, kMiB), target, remote.address() + 100));
    Bytes read = source;
    std::copy_n(expected.begin() + 100, kMiB, read.begin() + 7);
    EXPECT_TRUE(local.Holds(read));
    owner_->context.Unregister(*owner_->transport, region);
  }
}

TEST_F(AscendDirectTest, MovesSixtyFourMebibytesInPieces) {
  NpuBlock& remote = Block(1, 64 * kMiB, 1);
  NpuBlock& local = Block(0, 64 * kMiB, 2);
  owner_->Register(remote);
  ASSERT_TRUE(Do(*asker_->transport, kWrite, local.range, owner_->Describe(), remote.address(), Caller::kGoesOn));
  EXPECT_TRUE(remote.Holds(Pattern(64 * kMiB, 2)));
}

TEST_F(AscendDirectTest, SaysWhyItDoesNotReach) {
  NpuBlock& remote = Block(0, 4096, 1);
  owner_->Register(remote);
  const SegmentPtr target = owner_->Describe();
  const SegmentRegion& region = target->regions[0];
  EXPECT_EQ(WhyNot(remote.range, *target, region), "");
  EXPECT_NE(owner_->transport->WhyNot(remote.range, *target, region), "") << "its own";
  Bytes host(1);
  EXPECT_NE(WhyNot(HostRange(host), *target, region), "");
  SegmentDescriptor other = *target;
  other.host_id += "x";
  EXPECT_NE(WhyNot(remote.range, other, region).find("cross-node engine (HIXL) is not built"), std::string::npos);
  other.host_id = "";
  EXPECT_NE(WhyNot(remote.range, other, region), "") << "a host that does not tell";
  other = *target;
  other.npu_socket = "mooncake-shm-1-x";
  EXPECT_NE(WhyNot(remote.range, other, region), "") << "a version of the messages that we do not speak";
  SegmentRegion not_shared = region;
  not_shared.npu_id = 0;
  EXPECT_NE(WhyNot(remote.range, *target, not_shared).find("aclrtIpcMemGetExportKey"), std::string::npos);
}

TEST_F(AscendDirectTest, OnlyPublishedNpuMemoryIsShared) {
  NpuBlock& first = Block(0, 4096, 1);
  NpuBlock& second = Block(0, 4096, 1);
  NpuBlock& third = Block(0, 4096, 1);
  EXPECT_EQ(owner_->Register(first.range, RegionAccess::kLocal)->published.npu_id, 0u);
  EXPECT_NE(owner_->Register(second.range, RegionAccess::kByGrant)->published.npu_id, 0u);
  EXPECT_NE(owner_->Register(third)->published.npu_id, 0u);
  Bytes host(4096);
  EXPECT_EQ(owner_->context.Register(*owner_->transport, HostRange(host))->published.npu_id, 0u);
}

TEST_F(AscendDirectTest, WhatCannotBeExportedIsRegisteredAllTheSame) {
  NpuBlock& block = Block(0, 4096, 1);
  EmulatorProbe::Inject("aclrtIpcMemGetExportKey@1=507899");
  EXPECT_EQ(owner_->Register(block)->published.npu_id, 0u);
  EmulatorProbe::Inject("");
  NpuBlock& again = Block(0, 4096, 1);
  const auto region = owner_->Register(again);
  EXPECT_NE(region->published.npu_id, 0u);
  failed_ = 1;
}

TEST_F(AscendDirectTest, PartsOfOneBlockAreFoundAtTheirOffsets) {
  NpuBlock& block = Block(0, 4 * kMiB, 1);
  NpuBlock& local = Block(1, 1000, 2);
  const Bytes expected = Pattern(4 * kMiB, 1);
  // The second exports the pages that the third is in as well.
  for (const size_t offset : {size_t{0}, 2 * kMiB + 5000, 3 * kMiB}) {
    const size_t length = offset == 0 ? size_t{5000} : size_t{1000};
    const auto region = owner_->Register(std::get<NpuRange>(block.Part(offset, length)));
    EXPECT_NE(region->published.npu_id, 0u);
    ASSERT_TRUE(Do(*asker_->transport, kRead, local.Part(0, 990), owner_->Describe(), block.address() + offset + 10));
    Bytes read = local.Read();
    EXPECT_TRUE(std::equal(read.begin(), read.begin() + 990, expected.begin() + static_cast<ptrdiff_t>(offset) + 10));
  }
}

TEST_F(AscendDirectTest, OwnersWordOnTheRangeCountsNotTheDescriptors) {
  NpuBlock& remote = Block(0, 8192, 1);
  NpuBlock& local = Block(0, 8192, 2);
  owner_->Register(std::get<NpuRange>(remote.Part(0, 4096)));
  SegmentDescriptor lie = *owner_->Describe();
  lie.regions[0].length = 8192;
  const auto refused =
      Do(*asker_->transport, kWrite, local.range, std::make_shared<const SegmentDescriptor>(lie), remote.address());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
  EXPECT_TRUE(remote.Holds(Pattern(8192, 1)));
}

TEST_F(AscendDirectTest, UnknownRegionsAndOtherGenerationsAreTold) {
  NpuBlock& block = Block(0, 4096, 1);
  NpuBlock& local = Block(0, 4096, 2);
  owner_->Register(block);
  for (const bool other_process : {false, true}) {
    SegmentDescriptor wrong = *owner_->Describe();
    if (other_process) {
      wrong.generation = Uuid::Random();
    } else {
      wrong.regions[0].npu_id += 1;
    }
    const auto target = std::make_shared<const SegmentDescriptor>(wrong);
    for (int i = 0; i < 2; ++i) {
      const auto refused = Do(*asker_->transport, kRead, local.range, target, block.address());
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().code(), other_process ? ErrorCode::STALE_SEGMENT : ErrorCode::ADDRESS_NOT_REGISTERED);
    }
  }
  EXPECT_TRUE(Do(*asker_->transport, kRead, local.range, owner_->Describe(), block.address()));
}

TEST_F(AscendDirectTest, WithdrawnRegionIsRefusedAndServesAgainOnceRegisteredAgain) {
  NpuBlock& block = Block(1, 4096, 1);
  NpuBlock& local = Block(0, 4096, 2);
  const auto region = owner_->Register(block);
  const SegmentPtr before = owner_->Describe();
  ASSERT_TRUE(Do(*asker_->transport, kRead, local.range, before, block.address()));
  owner_->context.Unregister(*owner_->transport, region);
  EXPECT_EQ(owner_->transport->unacknowledged(), 0u);
  const auto refused = Do(*asker_->transport, kWrite, local.range, before, block.address());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
  owner_->Register(block);
  EXPECT_FALSE(Do(*asker_->transport, kWrite, local.range, before, block.address()));
  EXPECT_TRUE(Do(*asker_->transport, kWrite, local.range, owner_->Describe(), block.address()));
}

TEST_F(AscendDirectTest, FailedCopySaysWhatTheRuntimeSaid) {
  NpuBlock& block = Block(0, kMiB, 1);
  NpuBlock& local = Block(0, kMiB, 2);
  owner_->Register(block);
  EmulatorProbe::Inject("D2D@every:1=507013");
  const auto failed = Do(*asker_->transport, kWrite, local.range, owner_->Describe(), block.address());
  EmulatorProbe::Inject("");
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::TRANSFER_FAIL);
  EXPECT_EQ(failed.error().vendor_code(), 507013);
  EXPECT_TRUE(Do(*asker_->transport, kWrite, local.range, owner_->Describe(), block.address()));
}

TEST_F(AscendDirectTest, ManyThreadsBothDirectionsWhileRegionsComeAndGo) {
  constexpr size_t kThreads = 4;
  constexpr size_t kSize = 100 * kKiB;
  NpuBlock& left = Block(0, kThreads * kSize, 1);
  NpuBlock& right = Block(1, kThreads * kSize, 1);
  NpuBlock& spare = Block(0, 4096, 1);
  owner_->Register(left);
  asker_->Register(right);
  const SegmentPtr owner = owner_->Describe();
  const SegmentPtr asker = asker_->Describe();
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      NpuBlock local(*runtime_, static_cast<int32_t>(t / 2), kSize, 0);
      for (unsigned round = 0; round < 10; ++round) {
        const Caller caller = round % 2 == 0 ? Caller::kWaits : Caller::kGoesOn;
        const bool forth = t % 2 == 0;
        Transport& transport = forth ? *asker_->transport : *owner_->transport;
        const SegmentPtr& target = forth ? owner : asker;
        const uint64_t address = (forth ? left : right).address() + t * kSize;
        local.Fill(static_cast<unsigned>(t * 100 + round));
        EXPECT_TRUE(Do(transport, kWrite, local.range, target, address, caller));
        local.Fill(255);
        EXPECT_TRUE(Do(transport, kRead, local.range, target, address, caller));
        EXPECT_TRUE(local.Holds(Pattern(kSize, static_cast<unsigned>(t * 100 + round))));
      }
    });
  }
  NpuBlock& local = Block(1, 4096, 1);
  for (int i = 0; i < 20; ++i) {
    const auto region = owner_->Register(spare);
    Ends ends;
    asker_->transport->Submit(One(MakeOperation(kRead, local.range, owner_->Describe(), spare.address(), ends)),
                              Caller::kGoesOn);
    owner_->context.Unregister(*owner_->transport, region);
    const auto end = ends.Take(1).front();
    EXPECT_TRUE(end || end.error().code() == ErrorCode::ADDRESS_NOT_REGISTERED) << end.error().ToString();
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(owner_->transport->unacknowledged() + asker_->transport->unacknowledged(), 0u);
}

TEST(AscendDirectOfOldRuntimesTest, NamesWhatTheRuntimeLacksAndSharesNothing) {
  const auto npu = std::make_shared<FakeNpu>();  // has no IPC memory
  NpuNode owner(npu);
  NpuNode asker(npu);
  const NpuRange block = npu->Hold(Bytes(4096));
  const auto region = owner.Register(block);
  EXPECT_EQ(region->published.npu_id, 0u);
  const std::string why = asker.transport->WhyNot(block, *owner.Describe(), region->published);
  EXPECT_EQ(why, npu->Ipc().error().message());
  EXPECT_FALSE(asker.transport->Reaches(block, *owner.Describe(), region->published));
}

// A runtime whose copies a test holds, and whose exports it counts.
class HeldNpu final : public FakeNpu, public NpuIpc {
 public:
  Result<NpuIpc*> Ipc() override { return this; }
  std::optional<int32_t> DeviceOf(const void*) const override { return 0; }
  Result<int32_t> OwnPid() override { return 1; }
  Result<Exported> Export(AscendUnifiedPointer, size_t) override {
    std::lock_guard lock(mutex_);
    return Exported{*exported_.insert(std::to_string(++keys_)).first, 0};
  }
  Result<void> Allow(const std::string& key, int32_t) override {
    std::lock_guard lock(mutex_);
    EXPECT_TRUE(exported_.contains(key));
    return {};
  }
  Result<void> CloseExport(const std::string& key) override {
    std::lock_guard lock(mutex_);
    EXPECT_EQ(exported_.erase(key), 1u);
    return {};
  }
  void AbandonExport(const std::string& key) override {
    std::lock_guard lock(mutex_);
    EXPECT_EQ(exported_.erase(key), 1u);
    ++abandoned_;
  }
  Result<AscendUnifiedPointer> Import(const std::string&, int32_t) override {
    return Error(ErrorCode::INTERNAL_ERROR, "import in the exporting process");
  }
  Result<void> CloseImport(const std::string&) override { return {}; }

  size_t exported() {
    std::lock_guard lock(mutex_);
    return exported_.size();
  }
  size_t abandoned() {
    std::lock_guard lock(mutex_);
    return abandoned_;
  }

 private:
  std::mutex mutex_;
  int keys_ = 0;
  size_t abandoned_ = 0;
  std::set<std::string> exported_;
};

class HeldAscendWriteTest : public ::testing::Test {
 protected:
  static constexpr size_t kSize = 1000 * kKiB;
  static AscendDirectTransport::Limits OnePieceAtATime() {
    AscendDirectTransport::Limits limits;
    limits.copies.npu_piece_bytes = 100 * kKiB;
    limits.copies.max_runners = 1;
    limits.revoke_timeout = std::chrono::seconds(60);
    return limits;
  }
  HeldAscendWriteTest() {
    EXPECT_TRUE(Do(*asker_.transport, kRead, spare_, target_, address_));
    npu_->before_copy = [this]() -> Result<void> {
      ++pieces_;
      gate_.Pass();
      return {};
    };
  }
  TransferOperation Operation() { return MakeOperation(kWrite, source_, target_, address_, ends_); }
  void Submit() { asker_.transport->Submit(One(Operation()), Caller::kGoesOn); }
  // A question to the owner, and its answer: there is no such region.
  Result<void> AskForNothing() {
    SegmentDescriptor segment = *target_;
    segment.regions[0].npu_id = 1'000'000;
    return Do(*asker_.transport, kRead, spare_, std::make_shared<const SegmentDescriptor>(segment), address_);
  }

  Gate gate_;
  std::atomic<int> pieces_{0};
  const std::shared_ptr<HeldNpu> npu_ = std::make_shared<HeldNpu>();
  const NpuRange block_ = npu_->Hold(Bytes(kSize));
  const NpuRange source_ = npu_->Hold(Bytes(kSize, std::byte{0xEE}));
  const NpuRange spare_ = npu_->Hold(Bytes(1));
  const uint64_t address_ = static_cast<uint64_t>(block_.at.device_ptr);
  Ends ends_;
  NpuNode owner_{npu_, OnePieceAtATime()};
  NpuNode asker_{npu_, OnePieceAtATime()};
  std::shared_ptr<Region> region_ = owner_.Register(block_);
  SegmentPtr target_ = owner_.Describe();
};

TEST_F(HeldAscendWriteTest, WithdrawalWaitsForThePieceUnderWayAndEndsTheRest) {
  Submit();
  gate_.AwaitCame(1);
  Submit();
  std::atomic<bool> withdrawn{false};
  Bytes at_return;
  std::thread withdrawal([&] {
    EXPECT_TRUE(owner_.context.regions.Unpublish(region_->address));
    owner_.transport->WithdrawRegion(*region_);
    at_return = npu_->BytesOf(block_);
    withdrawn = true;
  });
  const auto waiting = ends_.Take(1).front();  // what had not begun ends without waiting for the other
  ASSERT_FALSE(waiting);
  EXPECT_EQ(waiting.error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
  // Questions that come behind an answer given too early, and time for what that would set off.
  for (int i = 0; i < 200; ++i) EXPECT_FALSE(AskForNothing());
  EXPECT_FALSE(withdrawn);
  EXPECT_EQ(npu_->exported(), 1u);
  gate_.Open();
  withdrawal.join();
  for (const auto& end : ends_.Take(2)) {
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
  }
  EXPECT_EQ(pieces_, 1);
  EXPECT_EQ(npu_->exported(), 0u);
  EXPECT_EQ(npu_->abandoned(), 0u);
  EXPECT_TRUE(npu_->BytesOf(block_) == at_return);
}

TEST_F(HeldAscendWriteTest, ExportOfAPeerThatDoesNotLetGoIsAbandonedNotClosed) {
  auto limits = OnePieceAtATime();
  limits.revoke_timeout = std::chrono::milliseconds(50);
  NpuNode impatient(npu_, limits);
  const NpuRange block = npu_->Hold(Bytes(kSize));
  const auto region = impatient.Register(block);
  asker_.transport->Submit(
      One(MakeOperation(kWrite, source_, impatient.Describe(), static_cast<uint64_t>(block.at.device_ptr), ends_)),
      Caller::kGoesOn);
  gate_.AwaitCame(1);
  impatient.context.Unregister(*impatient.transport, region);
  EXPECT_EQ(impatient.transport->unacknowledged(), 1u);
  EXPECT_EQ(npu_->abandoned(), 1u);
  gate_.Open();
  EXPECT_FALSE(ends_.Take(1).front());
  EXPECT_EQ(pieces_, 1);
}

TEST_F(HeldAscendWriteTest, DeadlineEndsAfterThePieceUnderWay) {
  auto operation = Operation();
  const Deadline deadline = Deadline::After(std::chrono::milliseconds(500));
  operation.deadline = deadline;
  asker_.transport->Submit(One(std::move(operation)), Caller::kGoesOn);
  gate_.AwaitCame(1);
  Ends others;
  auto behind = MakeOperation(kWrite, source_, target_, address_, others);
  behind.deadline = deadline;
  asker_.transport->Submit(One(std::move(behind)), Caller::kGoesOn);
  EXPECT_EQ(others.Take(1).front().error().code(), ErrorCode::TRANSFER_TIMEOUT);
  EXPECT_EQ(ends_.ended(), 0u) << "its memory is in use";
  gate_.Open();
  EXPECT_EQ(ends_.Take(1).front().error().code(), ErrorCode::TRANSFER_TIMEOUT);
  EXPECT_EQ(pieces_, 1);
}

TEST_F(HeldAscendWriteTest, CancelEndsAfterThePieceUnderWay) {
  Submit();
  gate_.AwaitCame(1);
  asker_.transport->Cancel(kInvalidBatch);
  EXPECT_EQ(ends_.ended(), 0u);
  gate_.Open();
  EXPECT_EQ(ends_.Take(1).front().error().code(), ErrorCode::TRANSFER_CANCELED);
  EXPECT_EQ(pieces_, 1);
}

TEST_F(HeldAscendWriteTest, DestructionOfTheOwnerWaitsForThePieceUnderWay) {
  Submit();
  gate_.AwaitCame(1);
  Submit();
  std::atomic<bool> gone{false};
  std::thread closer([&] {
    owner_.transport.reset();
    gone = true;
  });
  EXPECT_FALSE(ends_.Take(1).front());  // what had not begun, as the memory is asked back
  EXPECT_FALSE(gone);
  gate_.Open();
  closer.join();
  for (const auto& end : ends_.Take(2)) EXPECT_FALSE(end);
  EXPECT_EQ(pieces_, 1);
  EXPECT_EQ(npu_->exported(), 0u);
}

}  // namespace
}  // namespace mooncake
