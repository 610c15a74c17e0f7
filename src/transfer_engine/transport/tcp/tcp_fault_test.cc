// Peers that stop, die, come back or are given up: operations end as promised, and memory is safe then.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "transfer_engine/transport/tcp/tcp_raw_peer.h"
#include "transfer_engine/transport/tcp/tcp_test_util.h"

namespace mooncake::tcp {
namespace {

using Bytes = std::vector<std::byte>;
constexpr auto kRead = TransferOpcode::kRead;
constexpr auto kWrite = TransferOpcode::kWrite;
constexpr std::byte kPoison{0xa5};

ErrorCode CodeOf(const Result<void>& result) {
  return result ? ErrorCode::OK : result.error().code();
}

TEST(TcpCancelTest, AReadThatIsJustArrivingLetsGoOfItsMemory) {
  RawTarget target;
  Node initiator;
  Bytes local(1 << 20);
  Bytes other(4096);
  Results results(2);
  Submit(initiator.transport(), target.Serve(kRead, local).With(results.At(0)));
  auto connection = target.AcceptAndWelcome();
  Request request;
  ASSERT_TRUE(connection.Receive(request));
  const Bytes payload(request.length, std::byte{1});
  ASSERT_TRUE(connection.Send(Reply{.id = request.id, .length = request.length}));
  ASSERT_TRUE(connection.Send(payload.data(), 300'000));
  initiator.transport().Cancel(1);
  Job next = target.Serve(kRead, other);
  next.tag = 2;
  Submit(initiator.transport(), next.With(results.At(1)));
  ASSERT_TRUE(connection.Receive(request)) << "the connection goes on";
  while (results.ended() < 1) std::this_thread::yield();
  std::fill(local.begin(), local.end(), kPoison);
  ASSERT_TRUE(connection.Send(payload.data() + 300'000, payload.size() - 300'000));
  ASSERT_TRUE(connection.Send(Reply{.id = request.id, .length = request.length}));
  ASSERT_TRUE(connection.Send(Bytes(4096, std::byte{2}).data(), 4096));
  const auto& ends = results.Wait();
  EXPECT_EQ(CodeOf(*ends[0]), ErrorCode::TRANSFER_CANCELED);
  EXPECT_TRUE(*ends[1]);
  EXPECT_EQ(local, Bytes(local.size(), kPoison));
  EXPECT_EQ(other, Bytes(4096, std::byte{2}));
}

TEST(TcpCancelTest, AWriteInItsMiddleCostsTheConnectionButNotItsNeighbours) {
  RawTarget target(4096);
  // One request of more than the kernel takes in advance, and room for its neighbour behind it.
  Node initiator({.lanes_per_peer = 1, .chunk_bytes = 16 << 20, .window_bytes = 17 << 20});
  Bytes local(16 << 20, std::byte{1});
  Bytes other(128 << 10);  // too long to ask for a connection of its own
  Results written(1);
  Results read(1);
  Submit(initiator.transport(), target.Serve(kWrite, local).With(written.At(0)));
  auto connection = target.Accept();
  const Hello first = connection.Welcome(target.generation());
  Request request;
  ASSERT_TRUE(connection.Receive(request));
  Job neighbour = target.Serve(kRead, other);
  neighbour.tag = 2;
  Submit(initiator.transport(), neighbour.With(read.At(0)));
  initiator.transport().Cancel(1);
  EXPECT_EQ(CodeOf(*written.Wait()[0]), ErrorCode::TRANSFER_CANCELED);
  ASSERT_TRUE(connection.IsClosedByPeer());
  connection = target.Accept();
  const Hello second = connection.Welcome(target.generation());
  EXPECT_EQ(second.instance, first.instance);
  EXPECT_EQ(second.slot, first.slot);
  ASSERT_TRUE(connection.Receive(request));
  EXPECT_EQ(request.operation, Operation::kRead);
  ASSERT_TRUE(connection.Send(Reply{.id = request.id, .length = request.length}));
  ASSERT_TRUE(connection.Send(Bytes(other.size(), std::byte{2}).data(), other.size()));
  EXPECT_TRUE(*read.Wait()[0]);
  EXPECT_EQ(other, Bytes(other.size(), std::byte{2}));
}

TEST(TcpCancelTest, OnlyTheNamedBatchIsCanceled) {
  RawTarget target;
  Node initiator;
  Bytes local(64);
  Results results(3);
  for (size_t i = 0; i < 3; ++i) {
    Job job = target.Serve(kRead, local);
    job.tag = i == 1 ? 9 : 5;
    Submit(initiator.transport(), job.With(results.At(i)));
  }
  initiator.transport().Cancel(5);
  EXPECT_EQ(results.ended(), 2u);
  initiator.transport().Cancel(9);
  for (const auto& result : results.Wait()) EXPECT_EQ(CodeOf(*result), ErrorCode::TRANSFER_CANCELED);
}

TEST(TcpCancelTest, CancelingWhileBytesFlowLeavesEveryBufferAlone) {
  Bytes memory(32 << 20, std::byte{1});
  Node target;
  Node initiator;
  const auto region = target.Register(memory);
  const SegmentPtr segment = target.Describe();
  for (int round = 0; round < 30; ++round) {
    Bytes local(memory.size(), kPoison);
    Results results(4);
    std::vector<TransferOperation> operations;
    const size_t part = local.size() / 4;
    for (size_t i = 0; i < 4; ++i) {
      const Job job{.opcode = i == 3 ? kWrite : kRead,
                    .local = std::span(local).subspan(i * part, part),
                    .target = segment,
                    .region = region->published,
                    .address = region->address + i * part};
      operations.push_back(job.With([&, i, end = results.At(i)](Result<void> result) mutable {
        // It is this callback's memory again: TSan sees who still writes.
        std::fill_n(local.begin() + static_cast<ptrdiff_t>(i * part), part, kPoison);
        end(std::move(result));
      }));
    }
    initiator.transport().Submit(std::move(operations), Caller::kGoesOn);
    Bytes little(100);
    const Job paced{
        .local = little, .target = segment, .region = region->published, .address = region->address, .tag = 2};
    for (int i = 0; i < round % 5; ++i) ASSERT_TRUE(RunJob(initiator.transport(), paced));
    initiator.transport().Cancel(1);
    for (const auto& result : results.Wait()) {
      EXPECT_TRUE(*result || result->error().code() == ErrorCode::TRANSFER_CANCELED) << result->error().ToString();
    }
    ASSERT_TRUE(RunJob(initiator.transport(), paced)) << "behind whatever was still to come";
    EXPECT_EQ(local, Bytes(local.size(), kPoison));
  }
}

// Memory that traps when it is touched in the wrong way.
class Trap {
 public:
  Trap(size_t bytes, int protection)
      : bytes_(static_cast<std::byte*>(mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)), bytes) {}
  ~Trap() { munmap(bytes_.data(), bytes_.size()); }
  Trap(const Trap&) = delete;
  Trap& operator=(const Trap&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

TEST(TcpTrapTest, LocalMemoryThatIsNotThereFailsItsOperationOnly) {
  Bytes memory(8 << 20, std::byte{1});
  Bytes good(memory.size());
  const Trap trap(memory.size(), PROT_NONE);
  Node target;
  Node initiator({.lanes_per_peer = 1});
  const auto region = target.Register(memory);
  const SegmentPtr segment = target.Describe();
  for (const auto opcode : {kRead, kWrite}) {
    for (const size_t bytes : {size_t{64}, size_t{100'000}, memory.size()}) {
      Job job{.opcode = opcode, .target = segment, .region = region->published, .address = region->address};
      Results results(9);
      std::vector<TransferOperation> operations;
      for (size_t i = 0; i < 9; ++i) {
        job.local = i % 2 == 0 ? std::span(good).first(bytes) : trap.bytes().first(bytes);
        operations.push_back(job.With(results.At(i)));
      }
      initiator.transport().Submit(std::move(operations), Caller::kGoesOn);
      const auto& ends = results.Wait();
      for (size_t i = 0; i < 9; ++i) {
        EXPECT_EQ(CodeOf(*ends[i]), i % 2 == 0 ? ErrorCode::OK : ErrorCode::INVALID_PARAMS) << i << ", " << bytes;
      }
    }
  }
  EXPECT_TRUE(target.Unregister(region, Soon()));
}

TEST(TcpTrapTest, AWriteToReadOnlyMemoryIsRefusedAndItsOwnerLives) {
  const Trap trap(8 << 20, PROT_READ);
  Bytes local(trap.bytes().size());
  Node target;
  Node initiator;
  const auto region = target.Register(trap.bytes());
  const SegmentPtr segment = target.Describe();
  for (const size_t bytes : {size_t{64}, size_t{100'000}, local.size()}) {
    Job job{.opcode = kWrite, .target = segment, .region = region->published, .address = region->address};
    job.local = std::span(local).first(bytes);
    EXPECT_EQ(CodeOf(RunJob(initiator.transport(), job)), ErrorCode::ADDRESS_NOT_REGISTERED);
    job.opcode = kRead;
    EXPECT_TRUE(RunJob(initiator.transport(), job));
  }
  EXPECT_TRUE(target.Unregister(region, Soon()));
}

TEST(TcpDeadlineTest, SilenceEndsAtTheDeadlineWhereverItBegins) {
  Node initiator;
  Bytes local(32 << 20, std::byte{1});
  const auto soon = [] { return Soon(std::chrono::milliseconds(80)); };
  for (const auto opcode : {kRead, kWrite}) {
    RawTarget silent;  // accepts in the kernel, answers no hello
    Job job = silent.Serve(opcode, local);
    job.deadline = soon();
    EXPECT_EQ(CodeOf(RunJob(initiator.transport(), job)), ErrorCode::TRANSFER_TIMEOUT);
    RawTarget deaf(4096);  // answers the hello, then neither reads nor answers
    job = deaf.Serve(opcode, local);
    job.deadline = soon();
    Results results(1);
    Submit(initiator.transport(), job.With(results.At(0)));
    auto connection = deaf.AcceptAndWelcome();
    EXPECT_EQ(CodeOf(*results.Wait()[0]), ErrorCode::TRANSFER_TIMEOUT);
  }
  RawTarget anyone;
  Job late = anyone.Serve(kRead, local);
  late.deadline = Deadline::After({});
  EXPECT_EQ(CodeOf(RunJob(initiator.transport(), late)), ErrorCode::TRANSFER_TIMEOUT);
}

TEST(TcpDeadlineTest, APayloadThatStallsEndsAtTheDeadlineAndStaysOut) {
  RawTarget target;
  Node initiator;
  Bytes local(1 << 20);
  Job job = target.Serve(kRead, local);
  job.deadline = Soon(std::chrono::milliseconds(100));
  Results results(1);
  Submit(initiator.transport(), job.With(results.At(0)));
  auto connection = target.AcceptAndWelcome();
  Request request;
  ASSERT_TRUE(connection.Receive(request));
  const Bytes payload(request.length, std::byte{1});
  ASSERT_TRUE(connection.Send(Reply{.id = request.id, .length = request.length}));
  ASSERT_TRUE(connection.Send(payload.data(), 200'000));
  EXPECT_EQ(CodeOf(*results.Wait()[0]), ErrorCode::TRANSFER_TIMEOUT);
  std::fill(local.begin(), local.end(), kPoison);
  ASSERT_TRUE(connection.Send(payload.data() + 200'000, payload.size() - 200'000));
  // The next reply is read behind the rest of that one.
  Bytes other(16);
  Results next(1);
  Submit(initiator.transport(), target.Serve(kRead, other).With(next.At(0)));
  ASSERT_TRUE(connection.Receive(request));
  ASSERT_TRUE(connection.Send(Reply{.id = request.id, .length = request.length}));
  ASSERT_TRUE(connection.Send(payload.data(), 16));
  EXPECT_TRUE(*next.Wait()[0]);
  EXPECT_EQ(local, Bytes(local.size(), kPoison));
}

TEST(TcpLossTest, WhatIsUnansweredIsAskedOnceMoreInOrder) {
  RawTarget target;
  Node initiator({.lanes_per_peer = 1});
  Bytes local(3000);
  Results results(3);
  for (size_t i = 0; i < 3; ++i) {
    Submit(initiator.transport(), target.Serve(kRead, std::span(local).subspan(i * 1000, 1000)).With(results.At(i)));
  }
  Request request;
  {
    auto connection = target.AcceptAndWelcome();
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(connection.Receive(request));
    ASSERT_TRUE(connection.Send(Reply{.id = 0, .length = 1000}));
    ASSERT_TRUE(connection.Send(Bytes(1000, std::byte{1}).data(), 1000));
    while (results.ended() < 1) std::this_thread::yield();
  }
  auto connection = target.AcceptAndWelcome();
  for (uint64_t id = 0; id < 2; ++id) {
    ASSERT_TRUE(connection.Receive(request));
    EXPECT_EQ(request.id, id);
    ASSERT_TRUE(connection.Send(Reply{.id = id, .length = 1000}));
    ASSERT_TRUE(connection.Send(Bytes(1000, std::byte{2}).data(), 1000));
  }
  for (const auto& result : results.Wait()) EXPECT_TRUE(*result);
  EXPECT_EQ(std::ranges::count(local, std::byte{2}), 2000);
}

TEST(TcpLossTest, NobodyListeningIsToldAtOnce) {
  RawTarget target;
  Node initiator;
  Bytes local(100);
  const Job job = target.Serve(kRead, local);
  target.Close();
  const auto result = RunJob(initiator.transport(), job);
  ASSERT_EQ(CodeOf(result), ErrorCode::TRANSFER_FAIL);
  EXPECT_NE(result.error().message().find(std::to_string(target.port())), std::string::npos);
}

TEST(TcpLossTest, ARestartedTargetOnTheSamePortIsStaleThenServed) {
  Bytes memory(4096, std::byte{4});
  Bytes local(4096);
  Node initiator;
  auto before = std::make_unique<Node>();
  auto region = before->Register(memory);
  Job job{.local = local, .target = before->Describe(), .region = region->published, .address = region->address};
  ASSERT_TRUE(RunJob(initiator.transport(), job));
  const uint16_t port = before->transport().port();
  before.reset();
  Node after({.port = port});
  region = after.Register(memory);
  EXPECT_EQ(CodeOf(RunJob(initiator.transport(), job)), ErrorCode::STALE_SEGMENT);
  job.target = after.Describe();
  job.region = region->published;
  EXPECT_TRUE(RunJob(initiator.transport(), job));
}

// Long transfers that the target does not answer fill every connection; a brief one is over before them.
TEST(TcpExpressTest, ABriefOperationPassesLongOnes) {
  RawTarget target;
  Node initiator({.lanes_per_peer = 1, .window_bytes = 2 << 20});
  Bytes bulk(8 << 20);
  Results long_ones(2);
  for (size_t i = 0; i < 2; ++i) {
    Submit(initiator.transport(), target.Serve(kRead, std::span(bulk).subspan(i << 22, 4 << 20)).With(long_ones.At(i)));
  }
  auto bulk_connection = target.AcceptAndWelcome();
  Request request;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(bulk_connection.Receive(request));  // all that is under way at a time
  Bytes local(4096);
  Results brief(1);
  Submit(initiator.transport(), target.Serve(kRead, local).With(brief.At(0)));
  auto express = target.Accept();
  EXPECT_EQ(express.Welcome(target.generation()).slot, 1u);
  ASSERT_TRUE(express.Receive(request));
  EXPECT_EQ(request.length, local.size());
  const Bytes payload(local.size(), std::byte{5});
  ASSERT_TRUE(express.Send(Reply{.id = request.id, .length = request.length}));
  ASSERT_TRUE(express.Send(payload.data(), payload.size()));
  EXPECT_TRUE(*brief.Wait()[0]);
  EXPECT_EQ(local, payload);
  EXPECT_EQ(long_ones.ended(), 0u);
  initiator.transport().Cancel(1);
  long_ones.Wait();
}

// A target that has no room for one more connection serves brief operations over those it has.
TEST(TcpExpressTest, WithoutItABriefOperationTakesItsTurn) {
  RawTarget target;
  Node initiator({.lanes_per_peer = 1, .window_bytes = 2 << 20});
  Bytes bulk(8 << 20);
  Results all(2);
  Submit(initiator.transport(), target.Serve(kRead, bulk).With(all.At(0)));
  auto connection = target.AcceptAndWelcome();
  Bytes local(4096);
  Submit(initiator.transport(), target.Serve(kRead, local).With(all.At(1)));
  {
    auto refused = target.Accept();
  }
  const Bytes payload(1 << 20, std::byte{6});
  size_t before = 0;
  for (size_t chunk = 0; chunk < 9; ++chunk) {
    Request request;
    ASSERT_TRUE(connection.Receive(request));
    if (request.length == local.size()) before = chunk;
    ASSERT_TRUE(connection.Send(Reply{.id = request.id, .length = request.length}));
    ASSERT_TRUE(connection.Send(payload.data(), request.length));
  }
  for (const auto& result : all.Wait()) EXPECT_TRUE(*result);
  EXPECT_LE(before, 4u) << "behind what was under way and one chunk";
  EXPECT_EQ(std::ranges::count(local, std::byte{6}), 4096);
}

// A target in a process of its own.
class TcpProcessTest : public ::testing::Test {
 protected:
  struct Offer {
    Uuid generation;
    uint16_t port;
    uint64_t address;
    uint64_t key;
  };
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    child_ = fork();  // before this process has threads
    if (child_ == 0) Serve(ends[1]);
    close(ends[1]);
    Offer offer;
    ASSERT_EQ(read(ends[0], &offer, sizeof(offer)), static_cast<ssize_t>(sizeof(offer)));
    close(ends[0]);
    auto segment = std::make_shared<SegmentDescriptor>();
    segment->generation = offer.generation;
    segment->tcp_data = {"127.0.0.1", offer.port};
    job_.target = segment;
    job_.region = {.address = offer.address, .length = kMemory, .key = offer.key};
    job_.address = offer.address;
    initiator_.emplace();
  }
  void TearDown() override {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  [[noreturn]] static void Serve(int pipe_end) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Bytes memory(kMemory, std::byte{1});
    Node node;
    const auto region = node.Register(memory);
    const Offer offer{node.generation(), node.transport().port(), region->address, region->published.key};
    if (write(pipe_end, &offer, sizeof(offer)) != sizeof(offer)) _exit(1);
    for (;;) pause();
  }
  Job At(TransferOpcode opcode, std::span<std::byte> local) {
    Job job = job_;
    job.opcode = opcode;
    job.local = local;
    return job;
  }

  static constexpr size_t kMemory = 32 << 20;
  pid_t child_ = -1;
  Job job_;
  std::optional<Node> initiator_;
};

TEST_F(TcpProcessTest, AKilledTargetFailsWhatIsUnderWay) {
  Bytes local(32 * kMemory / 8);
  Results results(32);
  for (size_t i = 0; i < 32; ++i) {
    Submit(initiator_->transport(),
           At(i % 2 ? kRead : kWrite, std::span(local).subspan(i * (kMemory / 8), kMemory / 8)).With(results.At(i)));
  }
  kill(child_, SIGKILL);
  for (const auto& result : results.Wait()) {
    EXPECT_TRUE(*result || result->error().code() == ErrorCode::TRANSFER_FAIL) << result->error().ToString();
  }
  EXPECT_EQ(CodeOf(RunJob(initiator_->transport(), At(kRead, std::span(local).first(9)))), ErrorCode::TRANSFER_FAIL);
}

TEST_F(TcpProcessTest, AStoppedTargetEndsOperationsAtTheirDeadlineAndServesWhenItGoesOn) {
  Bytes local(8 << 20, kPoison);
  ASSERT_TRUE(RunJob(initiator_->transport(), At(kRead, std::span(local).first(100))));
  kill(child_, SIGSTOP);
  int status = 0;
  ASSERT_EQ(waitpid(child_, &status, WUNTRACED), child_);
  Results results(8);
  for (size_t i = 0; i < 8; ++i) {
    Job job = At(i % 2 ? kRead : kWrite, std::span(local).subspan(i << 20, 1 << 20));
    job.address += i << 20;
    job.deadline = Soon(std::chrono::milliseconds(200));
    Submit(initiator_->transport(), job.With(results.At(i)));
  }
  for (const auto& result : results.Wait()) EXPECT_EQ(CodeOf(*result), ErrorCode::TRANSFER_TIMEOUT);
  std::fill(local.begin(), local.end(), kPoison);
  kill(child_, SIGCONT);
  Bytes other(100);
  for (int i = 0; i < 20; ++i) {
    const auto result = RunJob(initiator_->transport(), At(kRead, other));
    EXPECT_TRUE(result) << result.error().ToString();
  }
  EXPECT_EQ(local, Bytes(local.size(), kPoison));
}

}  // namespace
}  // namespace mooncake::tcp
