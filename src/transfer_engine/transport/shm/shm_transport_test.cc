// Transfers between two transports of different generations: bytes, ranges, withdrawal, fences, ends.
#include "transfer_engine/transport/shm/shm_transport.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "transfer_engine/test_fake_npu.h"
#include "transfer_engine/transport/shm/test_shm_pair.h"

namespace mooncake {
namespace {

constexpr auto kRead = TransferOpcode::kRead;
constexpr auto kWrite = TransferOpcode::kWrite;

size_t OpenDescriptors() {
  size_t count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

class ShmTransportTest : public ::testing::Test {
 protected:
  ShmNode owner_;
  ShmNode asker_;
};

TEST_F(ShmTransportTest, MovesExactlyTheRangeForEverySizeAndCaller) {
  const auto buffer = MakeShared(20 * kMiB);
  owner_.Register(*buffer);
  const SegmentPtr target = owner_.Describe();
  for (const Caller caller : {Caller::kWaits, Caller::kGoesOn}) {
    for (const size_t size : {size_t{1}, 4 * kKiB, 64 * kKiB + 1, 4 * kMiB, 9 * kMiB + 7}) {
      for (const size_t offset : {size_t{0}, size_t{4095}, kMiB + 3}) {
        SCOPED_TRACE(fmt::format("{} B at {}", size, offset));
        Bytes expected = Copied(buffer->memory());
        const Bytes local = Pattern(size, static_cast<unsigned>(size + offset));
        Bytes source = local;
        ASSERT_TRUE(Do(*asker_.transport, kWrite, HostRange(source), target, AddressOf(*buffer, offset), caller));
        std::ranges::copy(local, expected.begin() + static_cast<std::ptrdiff_t>(offset));
        EXPECT_TRUE(Copied(buffer->memory()) == expected);
        Bytes back(size);
        ASSERT_TRUE(Do(*asker_.transport, kRead, HostRange(back), target, AddressOf(*buffer, offset), caller));
        EXPECT_TRUE(back == local);
      }
    }
  }
}

TEST_F(ShmTransportTest, ReachesSharedMemoryOfOtherProcessesOfThisHostOnly) {
  const auto buffer = MakeShared(4096);
  owner_.Register(*buffer);
  const SegmentPtr target = owner_.Describe();
  ASSERT_EQ(target->regions.size(), 1u);
  const SegmentRegion& region = target->regions[0];
  Bytes local(1);
  const MemoryRange range = HostRange(local);
  EXPECT_TRUE(asker_.transport->Reaches(range, *target, region));
  EXPECT_FALSE(owner_.transport->Reaches(range, *target, region)) << "its own";
  SegmentRegion other_region = region;
  other_region.shm_id = 0;
  EXPECT_FALSE(asker_.transport->Reaches(range, *target, other_region)) << "not shared";
  SegmentDescriptor other = *target;
  other.host_id += "x";
  EXPECT_FALSE(asker_.transport->Reaches(range, other, region)) << "another host";
  other.host_id = "";
  EXPECT_FALSE(asker_.transport->Reaches(range, other, region)) << "a host that does not tell";
  other = *target;
  other.shm_socket = "mooncake-shm-1-x";
  EXPECT_FALSE(asker_.transport->Reaches(range, other, region)) << "a version of the messages that we do not speak";
}

TEST_F(ShmTransportTest, OnlyPublishedSharedHostMemoryIsHandedOut) {
  const auto buffer = MakeShared(4 * 4096);
  RegionOptions local = SharedOptions(buffer->memfd());
  local.access = RegionAccess::kLocal;
  RegionOptions granted = SharedOptions(buffer->memfd(), 4096);
  granted.access = RegionAccess::kByGrant;
  RegionOptions npu = SharedOptions(buffer->memfd(), 8192);
  npu.device_id = 0;
  const auto memory = buffer->memory();
  auto& transport = *owner_.transport;
  EXPECT_EQ(owner_.context.Register(transport, memory.subspan(0, 4096), local)->published.shm_id, 0u);
  EXPECT_NE(owner_.context.Register(transport, memory.subspan(4096, 4096), granted)->published.shm_id, 0u);
  EXPECT_EQ(owner_.context.Register(transport, memory.subspan(8192, 4096), npu)->published.shm_id, 0u);
  EXPECT_EQ(owner_.context.Register(transport, memory.subspan(12'288, 4096), {})->published.shm_id, 0u);
}

TEST_F(ShmTransportTest, RegionThatLeavesItsFileIsRefused) {
  const auto buffer = MakeShared(4096);
  for (const auto& [offset, length] : {std::pair<uint64_t, uint64_t>{1, 4096}, {4097, 1}, {UINT64_MAX, 4096}}) {
    Region region{.address = AddressOf(*buffer), .length = length, .options = SharedOptions(buffer->memfd(), offset)};
    const auto refused = owner_.transport->RegisterRegion(region);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::INVALID_PARAMS);
  }
  Region region{.address = AddressOf(*buffer), .length = 1, .options = SharedOptions(-1)};
  EXPECT_FALSE(owner_.transport->RegisterRegion(region));
}

TEST_F(ShmTransportTest, RegistrationSealsTheFileAndWhatCannotBeSealedIsNotShared) {
  const int open = memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const int closed = memfd_create("closed", MFD_CLOEXEC);
  for (const int fd : {open, closed}) ASSERT_EQ(ftruncate(fd, 4096), 0);
  Region sealable{.address = 4096, .length = 4096, .options = SharedOptions(open)};
  EXPECT_TRUE(owner_.transport->RegisterRegion(sealable));
  EXPECT_NE(sealable.published.shm_id, 0u);
  EXPECT_NE(ftruncate(open, 0), 0);
  Region unsealable{.address = 8192, .length = 4096, .options = SharedOptions(closed)};
  EXPECT_TRUE(owner_.transport->RegisterRegion(unsealable));
  EXPECT_EQ(unsealable.published.shm_id, 0u);
  close(open);
  close(closed);
}

TEST_F(ShmTransportTest, RegionsOfOneFileAreFoundAtTheirOffsets) {
  const auto buffer = MakeShared(16 * 4096);
  std::vector<size_t> offsets = {0, 5000, 3 * 4096, 10 * 4096 + 1};
  for (const size_t offset : offsets) owner_.Register(*buffer, offset, 1000);
  const SegmentPtr target = owner_.Describe();
  for (const size_t offset : offsets) {
    Bytes local(990);
    ASSERT_TRUE(Do(*asker_.transport, kRead, HostRange(local), target, AddressOf(*buffer, offset + 10)));
    EXPECT_EQ(local, Copied(buffer->memory().subspan(offset + 10, 990)));
  }
}

TEST_F(ShmTransportTest, OwnersWordOnTheRangeCountsNotTheDescriptors) {
  const auto buffer = MakeShared(8192);
  owner_.Register(*buffer, 0, 4096);
  SegmentDescriptor lie = *owner_.Describe();
  lie.regions[0].length = 8192;
  Bytes local(8192);
  const auto refused = Do(*asker_.transport, kWrite, HostRange(local), std::make_shared<const SegmentDescriptor>(lie),
                          AddressOf(*buffer));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
  EXPECT_EQ(Copied(buffer->memory()), Pattern(8192));
}

TEST_F(ShmTransportTest, UnknownRegionIsNotRegistered) {
  const auto buffer = MakeShared(4096);
  owner_.Register(*buffer);
  SegmentDescriptor wrong = *owner_.Describe();
  wrong.regions[0].shm_id += 1;
  const auto target = std::make_shared<const SegmentDescriptor>(wrong);
  Bytes local(1);
  for (int i = 0; i < 2; ++i) {
    const auto refused = Do(*asker_.transport, kRead, HostRange(local), target, AddressOf(*buffer));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
  }
}

TEST_F(ShmTransportTest, AnotherGenerationBehindTheSocketIsStale) {
  const auto buffer = MakeShared(4096);
  owner_.Register(*buffer);
  SegmentDescriptor old = *owner_.Describe();
  old.generation = Uuid::Random();
  Bytes local(1);
  const auto stale = Do(*asker_.transport, kRead, HostRange(local), std::make_shared<const SegmentDescriptor>(old),
                        AddressOf(*buffer));
  ASSERT_FALSE(stale);
  EXPECT_EQ(stale.error().code(), ErrorCode::STALE_SEGMENT);
  EXPECT_TRUE(Do(*asker_.transport, kRead, HostRange(local), owner_.Describe(), AddressOf(*buffer)));
}

TEST_F(ShmTransportTest, ThreadsThatKeepAskingAStaleOwnerAreAllTold) {
  const auto buffer = MakeShared(4096);
  owner_.Register(*buffer);
  SegmentDescriptor old = *owner_.Describe();
  old.generation = Uuid::Random();
  const auto target = std::make_shared<const SegmentDescriptor>(old);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Bytes local(1);
      for (int i = 0; i < 500; ++i) {
        const auto stale = Do(*asker_.transport, kRead, HostRange(local), target, AddressOf(*buffer));
        ASSERT_FALSE(stale);
        // The connection that was told may end before the question of another thread is sent.
        EXPECT_TRUE(stale.error().code() == ErrorCode::STALE_SEGMENT ||
                    stale.error().code() == ErrorCode::TRANSFER_FAIL);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_F(ShmTransportTest, ClosedOwnerIsStaleAlsoAfterItWasMapped) {
  const auto buffer = MakeShared(4096);
  Bytes local(1);
  SegmentPtr old;
  {
    ShmNode owner;
    owner.Register(*buffer);
    old = owner.Describe();
    ASSERT_TRUE(Do(*asker_.transport, kRead, HostRange(local), old, AddressOf(*buffer)));
  }
  // The end of the connection may not have been seen yet: then the mapping still serves.
  for (;;) {
    const auto result = Do(*asker_.transport, kRead, HostRange(local), old, AddressOf(*buffer));
    if (result) {
      std::this_thread::yield();
      continue;
    }
    if (result.error().code() == ErrorCode::TRANSFER_FAIL) continue;  // it came while this one was under way
    EXPECT_EQ(result.error().code(), ErrorCode::STALE_SEGMENT);
    break;
  }
}

TEST_F(ShmTransportTest, WithdrawnRegionIsRefusedAndServesAgainOnceRegisteredAgain) {
  const auto buffer = MakeShared(4096);
  Bytes local(4096);
  const auto region = owner_.Register(*buffer);
  const SegmentPtr before = owner_.Describe();
  ASSERT_TRUE(Do(*asker_.transport, kRead, HostRange(local), before, AddressOf(*buffer)));
  owner_.context.Unregister(*owner_.transport, region);
  EXPECT_EQ(owner_.transport->unacknowledged(), 0u);
  const auto refused = Do(*asker_.transport, kWrite, HostRange(local), before, AddressOf(*buffer));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
  owner_.Register(*buffer);
  EXPECT_FALSE(Do(*asker_.transport, kWrite, HostRange(local), before, AddressOf(*buffer)));
  EXPECT_TRUE(Do(*asker_.transport, kWrite, HostRange(local), owner_.Describe(), AddressOf(*buffer)));
}

// A write that a test can hold in the middle: its source is NPU memory.
class HeldWriteTest : public ::testing::Test {
 protected:
  HeldWriteTest() : owner_({.copies = {}, .revoke_timeout = std::chrono::seconds(60)}), asker_(OnePieceAtATime()) {
    region_ = owner_.Register(*buffer_);
    target_ = owner_.Describe();
    Bytes warm(1);
    EXPECT_TRUE(Do(*asker_.transport, kRead, HostRange(warm), target_, AddressOf(*buffer_)));
    npu_.before_copy = [this]() -> Result<void> {
      ++pieces_;
      gate_.Pass();
      return {};
    };
  }
  static ShmTransport::Limits OnePieceAtATime() {
    ShmTransport::Limits limits;
    limits.copies.npu_piece_bytes = 100 * kKiB;
    limits.copies.max_runners = 1;
    return limits;
  }
  void Submit() {
    asker_.transport->Submit(One(MakeOperation(kWrite, source_, target_, AddressOf(*buffer_), ends_)), Caller::kGoesOn);
  }

  // A question to the owner, and its answer: there is no such region.
  Result<void> AskForNothing() {
    SegmentDescriptor segment = *target_;
    segment.regions[0].shm_id = 1'000'000;
    Bytes local(1);
    return Do(*asker_.transport, kRead, HostRange(local), std::make_shared<const SegmentDescriptor>(segment),
              AddressOf(*buffer_));
  }

  static constexpr size_t kSize = 1000 * kKiB;
  Gate gate_;
  std::atomic<int> pieces_{0};
  FakeNpu npu_;
  NpuRange source_ = npu_.Hold(Bytes(kSize, std::byte{0xEE}));
  std::unique_ptr<SharedBuffer> buffer_ = MakeShared(kSize);
  Ends ends_;
  ShmNode owner_;
  ShmNode asker_;
  std::shared_ptr<Region> region_;
  SegmentPtr target_;
};

TEST_F(HeldWriteTest, WithdrawalWaitsForThePieceUnderWayAndEndsTheRest) {
  Submit();
  gate_.AwaitCame(1);
  Submit();
  std::atomic<bool> withdrawn{false};
  Bytes at_return;
  std::thread withdrawal([&] {
    EXPECT_TRUE(owner_.context.regions.Unpublish(region_->address));
    owner_.transport->WithdrawRegion(*region_);
    at_return = Copied(buffer_->memory());
    withdrawn = true;
  });
  const auto waiting = ends_.Take(1).front();  // what had not begun ends without waiting for the other
  ASSERT_FALSE(waiting);
  EXPECT_EQ(waiting.error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
  // Questions that come behind an answer given too early, and time for what that would set off.
  for (int i = 0; i < 200; ++i) EXPECT_FALSE(AskForNothing());
  EXPECT_FALSE(withdrawn);
  gate_.Open();
  withdrawal.join();
  for (const auto& end : ends_.Take(2)) {
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
  }
  EXPECT_EQ(pieces_, 1);
  EXPECT_TRUE(Copied(buffer_->memory()) == at_return);
  EXPECT_EQ(owner_.transport->unacknowledged(), 0u);
}

TEST_F(HeldWriteTest, FenceWaitsForTheNodesCopiesAndItMayComeAgain) {
  Submit();
  gate_.AwaitCame(1);
  Submit();
  owner_.transport->Fence(Uuid::Random());  // of somebody else: nothing to wait for
  std::atomic<bool> fenced{false};
  std::thread fence([&] {
    owner_.transport->Fence(asker_.context.self.node);
    fenced = true;
  });
  EXPECT_FALSE(ends_.Take(1).front());  // what had not begun
  for (int i = 0; i < 200; ++i) EXPECT_FALSE(AskForNothing());
  EXPECT_FALSE(fenced);
  gate_.Open();
  fence.join();
  for (const auto& end : ends_.Take(2)) {
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
  }
  EXPECT_EQ(pieces_, 1);
  Submit();
  EXPECT_TRUE(ends_.Take(3).back());
  EXPECT_EQ(Copied(buffer_->memory()), Bytes(buffer_->size(), std::byte{0xEE}));
}

TEST_F(HeldWriteTest, PeerThatDoesNotLetGoIsDisconnectedAndCounted) {
  ShmNode impatient({.copies = {}, .revoke_timeout = std::chrono::milliseconds(50)});
  const auto region = impatient.Register(*buffer_);
  const SegmentPtr target = impatient.Describe();
  Bytes warm(1);
  ASSERT_TRUE(Do(*asker_.transport, kRead, HostRange(warm), target, AddressOf(*buffer_)));
  asker_.transport->Submit(One(MakeOperation(kWrite, source_, target, AddressOf(*buffer_), ends_)), Caller::kGoesOn);
  gate_.AwaitCame(1);
  impatient.context.Unregister(*impatient.transport, region);
  EXPECT_EQ(impatient.transport->unacknowledged(), 1u);
  gate_.Open();
  EXPECT_FALSE(ends_.Take(1).front());
  EXPECT_EQ(pieces_, 1);
}

TEST_F(HeldWriteTest, DestructionWaitsForThePieceUnderWayAndThenTheOwnerSeesTheEnd) {
  Submit();
  gate_.AwaitCame(1);
  Submit();
  std::thread closer([this] { asker_.transport.reset(); });
  EXPECT_EQ(ends_.Take(1).front().error().code(), ErrorCode::SHUTTING_DOWN);
  std::atomic<bool> withdrawn{false};
  std::thread withdrawal([&] {
    owner_.context.Unregister(*owner_.transport, region_);
    withdrawn = true;
  });
  EXPECT_FALSE(withdrawn);
  gate_.Open();
  closer.join();
  withdrawal.join();
  EXPECT_EQ(pieces_, 1);
  EXPECT_EQ(ends_.Take(2).size(), 2u);
}

TEST_F(HeldWriteTest, CancelEndsAfterThePieceUnderWay) {
  Submit();
  gate_.AwaitCame(1);
  asker_.transport->Cancel(kInvalidBatch);
  EXPECT_EQ(ends_.ended(), 0u);
  gate_.Open();
  EXPECT_EQ(ends_.Take(1).front().error().code(), ErrorCode::TRANSFER_CANCELED);
  EXPECT_EQ(pieces_, 1);
}

TEST_F(ShmTransportTest, ManyThreadsBothDirectionsWhileRegionsComeAndGo) {
  constexpr size_t kThreads = 4;
  constexpr size_t kSize = 100 * kKiB;
  const auto left = MakeShared(kThreads * kSize);
  const auto right = MakeShared(kThreads * kSize);
  owner_.Register(*left);
  asker_.Register(*right);
  const auto spare = MakeShared(4096);
  const SegmentPtr owner = owner_.Describe();
  const SegmentPtr asker = asker_.Describe();
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned round = 0; round < 30; ++round) {
        const Caller caller = round % 2 == 0 ? Caller::kWaits : Caller::kGoesOn;
        const bool forth = t % 2 == 0;
        Transport& transport = forth ? *asker_.transport : *owner_.transport;
        const SegmentPtr& target = forth ? owner : asker;
        const uint64_t address = AddressOf(forth ? *left : *right, t * kSize);
        Bytes local = Pattern(kSize, static_cast<unsigned>(t * 100 + round));
        const Bytes expected = local;
        EXPECT_TRUE(Do(transport, kWrite, HostRange(local), target, address, caller));
        local.assign(kSize, {});
        EXPECT_TRUE(Do(transport, kRead, HostRange(local), target, address, caller));
        EXPECT_TRUE(local == expected);
      }
    });
  }
  Bytes local(4096);
  for (int i = 0; i < 50; ++i) {
    const auto region = owner_.Register(*spare);
    const SegmentPtr target = owner_.Describe();
    Ends ends;
    asker_.transport->Submit(One(MakeOperation(kRead, HostRange(local), target, AddressOf(*spare), ends)),
                             Caller::kGoesOn);
    owner_.context.Unregister(*owner_.transport, region);
    const auto end = ends.Take(1).front();
    EXPECT_TRUE(end || end.error().code() == ErrorCode::ADDRESS_NOT_REGISTERED) << end.error().ToString();
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(owner_.transport->unacknowledged() + asker_.transport->unacknowledged(), 0u);
}

TEST_F(ShmTransportTest, ManyRegionsAskedForAtOnceAreAllMapped) {
  constexpr size_t kCount = 500;
  const auto buffer = MakeShared(kCount * 4096);
  for (size_t i = 0; i < kCount; ++i) owner_.Register(*buffer, i * 4096, 4000);
  const SegmentPtr target = owner_.Describe();
  Bytes local(kCount * 4000);
  Ends ends;
  std::vector<TransferOperation> operations;
  for (size_t i = 0; i < kCount; ++i) {
    operations.push_back(
        MakeOperation(kRead, HostRange(local).subspan(i * 4000, 4000), target, AddressOf(*buffer, i * 4096), ends));
  }
  asker_.transport->Submit(std::move(operations), Caller::kGoesOn);
  for (const auto& end : ends.Take(kCount)) EXPECT_TRUE(end) << end.error().ToString();
  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(std::memcmp(local.data() + i * 4000, buffer->data() + i * 4096, 4000), 0) << i;
  }
}

TEST(ShmTransportDescriptorsTest, NoneIsLeftAfterUse) {
  const size_t before = OpenDescriptors();
  for (int round = 0; round < 3; ++round) {
    const auto buffer = MakeShared(64 * kKiB);
    ShmNode owner;
    ShmNode asker;
    const auto region = owner.Register(*buffer);
    Bytes local(10);
    EXPECT_TRUE(Do(*asker.transport, kRead, HostRange(local), owner.Describe(), AddressOf(*buffer)));
    owner.context.Unregister(*owner.transport, region);
    owner.Register(*buffer);
    EXPECT_TRUE(Do(*asker.transport, kRead, HostRange(local), owner.Describe(), AddressOf(*buffer)));
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(ShmTransportTest, MappingDoesNotTakePagesThatTheOwnerHasNotTouched) {
  auto buffer = SharedBuffer::Create({.bytes = 64 * kMiB});
  ASSERT_TRUE(buffer);
  std::memset((*buffer)->data() + 5 * 4096, 1, 4096);
  owner_.Register(**buffer);
  Bytes local(4096);
  ASSERT_TRUE(Do(*asker_.transport, kRead, HostRange(local), owner_.Describe(), AddressOf(**buffer, 5 * 4096)));
  asker_.context.executor.Stop();  // what was to be populated is
  std::vector<unsigned char> resident(64 * kMiB / 4096);
  ASSERT_EQ(mincore((*buffer)->data(), 64 * kMiB, resident.data()), 0);
  EXPECT_EQ(std::ranges::count_if(resident, [](unsigned char page) { return (page & 1) != 0; }), 1);
}

}  // namespace
}  // namespace mooncake
