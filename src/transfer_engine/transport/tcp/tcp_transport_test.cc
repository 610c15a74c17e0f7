// What the tcp transport moves, refuses, and lets go of, between two nodes of one process.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "transfer_engine/transport/tcp/tcp_raw_peer.h"
#include "transfer_engine/transport/tcp/tcp_test_util.h"

namespace mooncake::tcp {
namespace {

using Bytes = std::vector<std::byte>;
constexpr auto kRead = TransferOpcode::kRead;
constexpr auto kWrite = TransferOpcode::kWrite;

// A random block over and over; its length fits no size of anything else here, so that bytes out of place show.
Bytes Pattern(size_t size, uint32_t seed) {
  Bytes block(65'521);
  std::minstd_rand random(seed + 1);
  for (std::byte& byte : block) byte = static_cast<std::byte>(random() >> 7);
  Bytes bytes(size);
  for (size_t at = 0; at < size; at += block.size()) {
    std::memcpy(bytes.data() + at, block.data(), std::min(block.size(), size - at));
  }
  return bytes;
}

ErrorCode CodeOf(const Result<void>& result) {
  return result ? ErrorCode::OK : result.error().code();
}

class TcpTransportTest : public ::testing::Test {
 protected:
  // A request for [offset, offset + local.size()) of the target's memory.
  Job At(TransferOpcode opcode, std::span<std::byte> local, size_t offset) {
    const SegmentPtr segment = target_.Describe();
    return {.opcode = opcode,
            .local = local,
            .target = segment,
            .region = segment->regions.at(0),
            .address = reinterpret_cast<uint64_t>(memory_.data()) + offset};
  }
  Result<void> Move(TransferOpcode opcode, std::span<std::byte> local, size_t offset) {
    return RunJob(initiator_.transport(), At(opcode, local, offset));
  }

  Bytes memory_ = Bytes(80 << 20);
  Node target_;
  Node initiator_;
  std::shared_ptr<Region> region_ = target_.Register(memory_);
};

TEST_F(TcpTransportTest, EverySizeArrivesAtItsOffsetAndNowhereElse) {
  for (const size_t size : {size_t{1}, size_t{7}, size_t{4095}, size_t{4096}, size_t{8191}, size_t{8192}, size_t{65537},
                            size_t{1} << 20, (size_t{1} << 20) + 1, size_t{5'000'003}, size_t{64} << 20}) {
    const size_t offset = size % 4099 + 3;
    memory_[offset - 1] = memory_[offset + size] = std::byte{0xee};
    Bytes sent = Pattern(size, static_cast<uint32_t>(size));
    const auto written = Move(kWrite, sent, offset);
    ASSERT_TRUE(written) << size << ": " << written.error().ToString();
    EXPECT_EQ(std::memcmp(memory_.data() + offset, sent.data(), size), 0) << size;
    EXPECT_EQ(memory_[offset - 1], std::byte{0xee});
    EXPECT_EQ(memory_[offset + size], std::byte{0xee});
    Bytes read(size + 2, std::byte{0xdd});
    const auto result = Move(kRead, std::span(read).subspan(1, size), offset);
    ASSERT_TRUE(result) << size << ": " << result.error().ToString();
    EXPECT_EQ(std::memcmp(read.data() + 1, sent.data(), size), 0) << size;
    EXPECT_EQ(read.front(), std::byte{0xdd});
    EXPECT_EQ(read.back(), std::byte{0xdd});
  }
}

TEST_F(TcpTransportTest, NothingIsMovedForLengthZeroButItIsChecked) {
  EXPECT_TRUE(Move(kRead, {}, 17));
  EXPECT_TRUE(Move(kWrite, {}, 17));
  Job bad = At(kRead, {}, 0);
  bad.region.key ^= 1;
  EXPECT_EQ(CodeOf(RunJob(initiator_.transport(), bad)), ErrorCode::ADDRESS_NOT_REGISTERED);
}

TEST_F(TcpTransportTest, ManyThreadsMoveTheirOwnRanges) {
  constexpr size_t kThreads = 8, kRange = 3 << 20;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(static_cast<uint32_t>(t) + 1);
      for (int round = 0; round < 12; ++round) {
        const size_t size = random() % 5 == 0 ? random() % kRange : random() % 20'000;
        const size_t offset = t * kRange + random() % (kRange - size);
        Bytes sent = Pattern(size, static_cast<uint32_t>(t * 100 + static_cast<size_t>(round)));
        Bytes read(size);
        if (!Move(kWrite, sent, offset) || !Move(kRead, read, offset) || read != sent) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(TcpTransportTest, AScatterOfSmallAndLargeOnesArrivesWhole) {
  constexpr size_t kCount = 2000;
  Bytes local = Pattern(memory_.size(), 5);
  std::vector<TransferOperation> operations;
  Results results(kCount + 3);
  size_t at = 0;
  for (size_t i = 0; i < kCount + 3; ++i) {
    const size_t size = i % 667 == 0 ? 9 << 20 : 100 + i;
    operations.push_back(At(kWrite, std::span(local).subspan(at, size), at).With(results.At(i)));
    at += size + 11;
  }
  ASSERT_LT(at, memory_.size());
  initiator_.transport().Submit(std::move(operations), Caller::kGoesOn);
  for (const auto& result : results.Wait()) ASSERT_TRUE(*result) << result->error().ToString();
  at = 0;
  for (size_t i = 0; i < kCount + 3; ++i) {
    const size_t size = i % 667 == 0 ? 9 << 20 : 100 + i;
    ASSERT_EQ(std::memcmp(memory_.data() + at, local.data() + at, size), 0) << i;
    EXPECT_EQ(memory_[at + size], std::byte{0}) << i;
    at += size + 11;
  }
}

TEST_F(TcpTransportTest, AWrongKeyOrRangeIsRefusedAndTouchesNothing) {
  Bytes local = Pattern(3 << 20, 1);
  for (const auto opcode : {kRead, kWrite}) {
    Job job = At(opcode, local, 0);
    job.region.key ^= 0x10;
    EXPECT_EQ(CodeOf(RunJob(initiator_.transport(), job)), ErrorCode::ADDRESS_NOT_REGISTERED);
    // What the initiator believes to be the region reaches further than the target's.
    job = At(opcode, local, 0);
    job.region.address -= 4096;
    job.region.length += 8192;
    job.address = region_->address - 1;
    EXPECT_EQ(CodeOf(RunJob(initiator_.transport(), job)), ErrorCode::ADDRESS_NOT_REGISTERED);
    job.address = region_->address + region_->length - local.size() + 1;
    EXPECT_EQ(CodeOf(RunJob(initiator_.transport(), job)), ErrorCode::ADDRESS_NOT_REGISTERED);
    job.address = UINT64_MAX - 5;
    EXPECT_EQ(CodeOf(RunJob(initiator_.transport(), job)), ErrorCode::ADDRESS_NOT_REGISTERED);
  }
  EXPECT_EQ(memory_, Bytes(memory_.size()));
  EXPECT_EQ(local, Pattern(3 << 20, 1));
  EXPECT_TRUE(Move(kWrite, std::span(local).first(100), 0)) << "the connection goes on";
}

TEST_F(TcpTransportTest, AGrantOpensItsRangeForWhatItSays) {
  Bytes local = Pattern(8192, 3);
  Job job = At(kRead, local, 4096);
  const auto reading = target_.regions().Grant(job.address, 8192, false, nullptr);
  ASSERT_TRUE(reading);
  job.region = {.address = job.address, .length = 8192, .key = *reading};
  EXPECT_TRUE(RunJob(initiator_.transport(), job));
  job.opcode = kWrite;
  EXPECT_EQ(CodeOf(RunJob(initiator_.transport(), job)), ErrorCode::ADDRESS_NOT_REGISTERED);
  job.region.key = *target_.regions().Grant(job.address, 8192, true, nullptr);
  EXPECT_TRUE(RunJob(initiator_.transport(), job));
  EXPECT_TRUE(target_.regions().Revoke(job.region.key));
  EXPECT_EQ(CodeOf(RunJob(initiator_.transport(), job)), ErrorCode::ADDRESS_NOT_REGISTERED);
}

TEST_F(TcpTransportTest, NpuMemoryIsNeitherReachedNorServed) {
  Bytes other(4096);
  const auto npu = target_.Register(other, {.location = "npu:0", .device_id = 0});
  const SegmentPtr segment = target_.Describe();
  const MemoryRange local = HostRange(other);
  EXPECT_FALSE(initiator_.transport().Reaches(local, *segment, npu->published));
  EXPECT_TRUE(initiator_.transport().Reaches(local, *segment, region_->published));
  EXPECT_FALSE(initiator_.transport().Reaches(local, *segment, SegmentRegion{.length = 1}));
  EXPECT_FALSE(initiator_.transport().Reaches(local, SegmentDescriptor{}, region_->published));
  const Job job{.local = other, .target = segment, .region = npu->published, .address = npu->address};
  EXPECT_EQ(CodeOf(RunJob(initiator_.transport(), job)), ErrorCode::TRANSFER_FAIL);
}

TEST_F(TcpTransportTest, UnregisteringWhileTransfersRunEndsThemOneWayOrTheOther) {
  constexpr size_t kPart = 4 << 20;
  Bytes local = Pattern(16 * kPart, 4);
  Results results(16);
  std::vector<TransferOperation> operations;
  for (size_t i = 0; i < 16; ++i) {
    const auto part = std::span(local).subspan(i * kPart, kPart);
    operations.push_back(At(i % 2 ? kRead : kWrite, part, i * kPart).With(results.At(i)));
  }
  initiator_.transport().Submit(std::move(operations), Caller::kGoesOn);
  EXPECT_TRUE(target_.Unregister(region_, Soon()));
  for (const auto& result : results.Wait()) {
    EXPECT_TRUE(*result || result->error().code() == ErrorCode::ADDRESS_NOT_REGISTERED) << result->error().ToString();
  }
}

TEST_F(TcpTransportTest, AStalledWriterDoesNotHoldARegionThatGoes) {
  auto stalled = RawConnection::To(target_.transport().port());
  ASSERT_EQ(stalled.Greet({.target = target_.generation()}), ErrorCode::OK);
  ASSERT_TRUE(stalled.Send(Request{
      .operation = Operation::kWrite, .length = 1 << 20, .key = region_->published.key, .address = region_->address}));
  ASSERT_TRUE(stalled.Send(Bytes(1000, std::byte{1}).data(), 1000));
  // Its connection is served, so its use may have begun; in either case it does not stay.
  EXPECT_TRUE(target_.Unregister(region_, Soon()));
  Bytes rest((1 << 20) - 1000, std::byte{2});
  ASSERT_TRUE(stalled.Send(rest.data(), rest.size()));
  Reply reply;
  ASSERT_TRUE(stalled.Receive(reply));
  EXPECT_EQ(reply.status, ToInt(ErrorCode::ADDRESS_NOT_REGISTERED));
  EXPECT_EQ(std::ranges::count(memory_, std::byte{2}), 0);
}

TEST_F(TcpTransportTest, AStalledReaderDoesNotHoldAGrantThatIsRevoked) {
  std::mutex mutex;
  std::condition_variable changed;
  bool let_go = false;
  const uint64_t key = *target_.regions().Grant(region_->address, 64 << 20, false, nullptr);
  auto stalled = RawConnection::To(target_.transport().port(), 4096);
  ASSERT_EQ(stalled.Greet({.target = target_.generation()}), ErrorCode::OK);
  for (uint64_t id = 0; id < 4; ++id) {
    ASSERT_TRUE(stalled.Send(Request{.length = 16 << 20, .id = id, .key = key, .address = region_->address}));
  }
  Reply reply;
  ASSERT_TRUE(stalled.Receive(reply));  // so it has begun, and cannot end: it takes no more
  ASSERT_FALSE(target_.regions().Revoke(key, [&] {
    std::lock_guard lock(mutex);
    let_go = true;
    changed.notify_all();
  }));
  std::unique_lock lock(mutex);
  EXPECT_TRUE(changed.wait_until(lock, Soon().time(), [&] { return let_go; }));
  EXPECT_TRUE(stalled.IsClosedByPeer());
}

TEST_F(TcpTransportTest, AFencedProcessChangesNothingAnyMore) {
  const Uuid zombie = Uuid::Random();
  auto writer = RawConnection::To(target_.transport().port());
  ASSERT_EQ(writer.Greet({.initiator = zombie, .target = target_.generation()}), ErrorCode::OK);
  ASSERT_TRUE(writer.Send(Request{
      .operation = Operation::kWrite, .length = 8192, .key = region_->published.key, .address = region_->address}));
  auto other = RawConnection::To(target_.transport().port());
  ASSERT_EQ(other.Greet({.initiator = Uuid::Random(), .target = target_.generation()}), ErrorCode::OK);
  target_.transport().Fence(zombie);
  (void)writer.Send(Bytes(8192, std::byte{9}).data(), 8192);
  EXPECT_TRUE(writer.IsClosedByPeer());
  EXPECT_EQ(memory_, Bytes(memory_.size()));
  ASSERT_TRUE(other.Send(Request{.length = 0, .key = region_->published.key, .address = region_->address}));
  Reply reply;
  EXPECT_TRUE(other.Receive(reply)) << "others are not concerned";
  auto again = RawConnection::To(target_.transport().port());
  EXPECT_EQ(again.Greet({.initiator = zombie, .target = target_.generation()}), ErrorCode::OK);
}

TEST_F(TcpTransportTest, AConnectionIsLetGoOfBeforeItsSuccessorIsAnswered) {
  const Hello hello{.slot = 3, .initiator = Uuid::Random(), .target = target_.generation(), .instance = 77};
  auto first = RawConnection::To(target_.transport().port());
  ASSERT_EQ(first.Greet(hello), ErrorCode::OK);
  ASSERT_TRUE(first.Send(Request{
      .operation = Operation::kWrite, .length = 4096, .key = region_->published.key, .address = region_->address}));
  auto second = RawConnection::To(target_.transport().port());
  ASSERT_EQ(second.Greet(hello), ErrorCode::OK);
  (void)first.Send(Bytes(4096, std::byte{5}).data(), 4096);
  EXPECT_TRUE(first.IsClosedByPeer());
  EXPECT_EQ(memory_[0], std::byte{0});
  Hello neighbour = hello;
  neighbour.slot = 4;
  auto third = RawConnection::To(target_.transport().port());
  ASSERT_EQ(third.Greet(neighbour), ErrorCode::OK);
  EXPECT_EQ(target_.transport().open_sessions(), 2u);
}

TEST_F(TcpTransportTest, TheEndOfATransportEndsItsOperations) {
  RawTarget hung;
  Bytes local(4096);
  Results results(2);
  Submit(initiator_.transport(), hung.Serve(kRead, local).With(results.At(0)));
  Submit(initiator_.transport(), hung.Serve(kWrite, local).With(results.At(1)));
  initiator_.CloseTransport();
  EXPECT_EQ(results.ended(), 2u);
  for (const auto& result : results.Wait()) EXPECT_EQ(CodeOf(*result), ErrorCode::SHUTTING_DOWN);
}

TEST_F(TcpTransportTest, FewConnectionsServeManyRequests) {
  constexpr size_t kPart = 8 << 20;
  Bytes local(8 * kPart);
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(Move(kRead, std::span(local).first(100), 0));
  EXPECT_EQ(target_.transport().open_sessions(), 1u) << "one after the other needs one";
  Results results(8);
  std::vector<TransferOperation> operations;
  for (size_t i = 0; i < 8; ++i) {
    operations.push_back(At(kWrite, std::span(local).subspan(i * kPart, kPart), i * kPart).With(results.At(i)));
  }
  initiator_.transport().Submit(std::move(operations), Caller::kGoesOn);
  for (const auto& result : results.Wait()) EXPECT_TRUE(*result);
  EXPECT_LE(target_.transport().open_sessions(), TcpOptions().lanes_per_peer);
}

TEST_F(TcpTransportTest, SegmentsSayWhereTheDataPortIs) {
  const SegmentPtr segment = target_.Describe();
  EXPECT_EQ(segment->tcp_data, (Endpoint{"127.0.0.1", target_.transport().port()}));
  EXPECT_EQ(segment->protocols, std::vector<std::string>{"tcp"});
}

TEST(TcpOptionsTest, ImpossibleOptionsAreRefusedByName) {
  EXPECT_FALSE(TcpOptions{.lanes_per_peer = 0}.Check());
  EXPECT_FALSE(TcpOptions{.lanes_per_peer = 17}.Check());
  EXPECT_FALSE(TcpOptions{.chunk_bytes = kMaxRequestBytes + 1}.Check());
  const auto unknown = TcpOptions{.congestion = "no-such-control"}.Check();
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message().find("no-such-control"), std::string::npos);
  Node node;
  const auto taken = node.OpenTransport({.port = node.transport().port()});
  ASSERT_FALSE(taken);
  EXPECT_NE(taken.error().message().find(std::to_string(node.transport().port())), std::string::npos);
}

TEST(TcpAddressTest, Ipv6WorksWhereThereIsAny) {
  if (!Listen("::1", {})) GTEST_SKIP() << "no address ::1 on this host";
  Bytes memory = Pattern(2 << 20, 1);
  Node target({}, 1, "::1");
  Node initiator({}, 1, "");
  const auto region = target.Register(memory);
  Bytes local(memory.size());
  const Job job{.local = local, .target = target.Describe(), .region = region->published, .address = region->address};
  const auto result = RunJob(initiator.transport(), job);
  ASSERT_TRUE(result) << result.error().ToString();
  EXPECT_EQ(local, memory);
}

TEST(TcpAddressTest, NamesAreLookedUp) {
  Bytes memory = Pattern(4096, 1);
  Node target({}, 1, "localhost");
  Node initiator({}, 1, "127.0.0.1");
  const auto region = target.Register(memory);
  Bytes local(memory.size());
  Job job{.local = local, .target = target.Describe(), .region = region->published, .address = region->address};
  const auto result = RunJob(initiator.transport(), job);
  ASSERT_TRUE(result) << result.error().ToString();
  EXPECT_EQ(local, memory);
}

}  // namespace
}  // namespace mooncake::tcp
