// What every transport does with bytes: sizes, offsets, batches, threads, notifies. One suite for all wires.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <sstream>
#include <thread>

#include "transfer/ends.h"
#include "transfer/pattern.h"

namespace mooncake::transfer_test {
namespace {

class TransferContract : public EndsTest {
 protected:
  size_t Uniform(size_t from, size_t to) { return std::uniform_int_distribution<size_t>(from, to)(random_); }
  // As many small ones as large ones.
  size_t RandomSize(size_t most) {
    size_t bits = 0;
    while ((size_t{1} << bits) < most) ++bits;
    return std::min(most, Uniform(0, (size_t{1} << Uniform(0, bits))));
  }
  // 0 for a transport that the engine does not have.
  static uint64_t BytesMoved(const std::string& metrics, const std::string& transport, const std::string& opcode) {
    std::istringstream lines(metrics);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("mooncake_transfer_bytes_total{") && line.contains("transport=\"" + transport + "\"") &&
          line.contains("opcode=\"" + opcode + "\"")) {
        return static_cast<uint64_t>(std::stod(line.substr(line.rfind(' ') + 1)));
      }
    }
    return 0;
  }
  bool in_guest() const { return wire() == "rdma"; }  // where everything takes ten times as long
};

// Both buffers hold other bytes before, and around the range after.
TEST_P(TransferContract, BytesOfAnySizeAndOffsetArriveWhole) {
  constexpr size_t kMost = 64 * kMiB;
  const FarMemory far = MakeFarMemory(kMost + 4096);
  NearMemory near = MakeNearMemory(kMost + 4096);
  std::vector<size_t> sizes = {0, 1, 4095, 4096, 4097, 64 * kKiB, kMiB + 1, kMost};
  for (int i = 0; i < (in_guest() || on_npu() || far_on_npu() ? 6 : 16); ++i) sizes.push_back(RandomSize(kMost));
  far.Fill(1);
  uint64_t seed = 2;
  for (const size_t size : sizes) {
    const size_t near_at = Uniform(0, near.bytes().size() - size);
    const size_t far_at = Uniform(0, far.length() - size);
    SCOPED_TRACE(fmt::format("{} B from {} to {}", size, near_at, far_at));
    // There with one pattern, back over another.
    Fill(near.bytes().subspan(near_at, size), seed, far_at);
    const TransferRequest write = Write(near, near_at, far, far_at, size);
    const auto written = Run({&write, 1});
    EXPECT_COMPLETED(written);
    if (written) {
      EXPECT_EQ(written->transferred_bytes, size);
    }
    far.Expect(seed, far_at, size);
    far.Expect(1, 0, far_at);
    far.Expect(1, far_at + size, far.length() - far_at - size);

    Fill(near.bytes(), seed + 1);
    const TransferRequest read = Read(near, near_at, far, far_at, size);
    EXPECT_COMPLETED(Run({&read, 1}));
    EXPECT_OK(Check(near.bytes().subspan(near_at, size), seed, far_at));
    EXPECT_OK(Check(near.bytes().first(near_at), seed + 1));
    EXPECT_OK(Check(near.bytes().subspan(near_at + size), seed + 1, near_at + size));
    far.Fill(1, far_at, size);
    seed += 2;
    if (HasFailure()) return;
  }
}

// Nothing else in this file would notice if another transport did the work.
TEST_P(TransferContract, BytesTakeTheWireUnderTest) {
  const FarMemory far = MakeFarMemory(kMiB);
  ExpectRoundTrip(far, 1);
  const std::string metrics = near_->MetricsText();
  for (const std::string wire_name : {"local", "shm", "tcp", "rdma", "staged", "ascend_rdma"}) {
    for (const std::string opcode : {"read", "write"}) {
      const uint64_t expected = wire_name == carrier() ? kMiB : 0;
      EXPECT_EQ(BytesMoved(metrics, wire_name, opcode), expected) << opcode << " over " << wire_name << "\n" << metrics;
    }
  }
}

// Pieces of random sizes with gaps between them, written in random order; what ends up there is what ends up here.
TEST_P(TransferContract, ScatterListsFillTheirPiecesAndNothingElse) {
  constexpr size_t kLength = 8 * kMiB;
  const FarMemory far = MakeFarMemory(kLength);
  NearMemory near = MakeNearMemory(kLength);
  std::vector<std::byte> mirror(kLength);
  Fill(mirror, 1);
  far.Fill(1);
  Fill(near.bytes(), 2);
  const std::vector<std::byte> source = near.bytes().Copy();
  std::vector<TransferRequest> writes;
  std::vector<TransferRequest> reads;
  for (size_t at = 0; at < kLength;) {
    const size_t length = std::min(RandomSize(256 * kKiB), kLength - at);
    const size_t from = Uniform(0, kLength - length);
    writes.push_back(Write(near, from, far, at, length));
    reads.push_back(Read(near, at, far, at, length));
    std::copy_n(&source[from], length, &mirror[at]);
    at += length + Uniform(1, 16 * kKiB);
  }
  std::ranges::shuffle(writes, random_);
  const auto written = Run(writes);
  EXPECT_COMPLETED(written);
  EXPECT_EQ(far.Hash(), HashOf(mirror)) << writes.size() << " pieces";

  std::ranges::shuffle(reads, random_);
  Fill(near.bytes(), 3);
  std::vector<std::byte> expected = near.bytes().Copy();
  for (const TransferRequest& read : reads) {
    const size_t at = static_cast<size_t>(static_cast<std::byte*>(read.local) - near.at(0));
    std::copy_n(&mirror[at], read.length, &expected[at]);
  }
  EXPECT_COMPLETED(Run(reads));
  EXPECT_EQ(HashOf(near.bytes()), HashOf(expected)) << reads.size() << " pieces";
}

TEST_P(TransferContract, ThreadsDoNotDisturbEachOther) {
  constexpr size_t kMostThreads = 16;
  // Copies of an NPU read whole units of 64 B around a source, so neighbours that share one do disturb each other
  // there.
  const size_t each = kMiB + (on_npu() ? 12352 : 12345);
  const FarMemory far = MakeFarMemory(kMostThreads * each);
  NearMemory near = MakeNearMemory(kMostThreads * each);
  const int rounds = in_guest() ? 2 : 6;
  for (const size_t count : {size_t{1}, size_t{2}, size_t{4}, kMostThreads}) {
    SCOPED_TRACE(fmt::format("{} threads", count));
    std::vector<std::thread> threads;
    for (size_t thread = 0; thread < count; ++thread) {
      threads.emplace_back([&, thread] {
        const size_t at = thread * each;
        const auto mine = near.bytes().subspan(at, each);
        for (int round = 0; round < rounds; ++round) {
          const uint64_t seed = 1 + thread * 100 + static_cast<uint64_t>(round);
          Fill(mine, seed);
          const size_t half = each / 2;
          const std::vector<TransferRequest> writes = {Write(near, at, far, at, half),
                                                       Write(near, at + half, far, at + half, each - half)};
          EXPECT_COMPLETED(Run(writes));
          Fill(mine, ~seed);
          const TransferRequest read = Read(near, at, far, at, each);
          EXPECT_COMPLETED(Run({&read, 1}));
          EXPECT_OK(Check(mine, seed));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_P(TransferContract, ReadersAndWritersInOneBatchAllComplete) {
  constexpr size_t kPiece = 128 * kKiB;
  constexpr size_t kPieces = 32;
  const FarMemory far = MakeFarMemory(2 * kPieces * kPiece);
  NearMemory near = MakeNearMemory(2 * kPieces * kPiece);
  constexpr size_t kHalf = kPieces * kPiece;
  far.Fill(1, 0, kHalf);                        // read from here
  Fill(near.bytes().subspan(kHalf), 2, kHalf);  // written from here
  std::vector<TransferRequest> requests;
  for (size_t i = 0; i < kPieces; ++i) {
    requests.push_back(Read(near, i * kPiece, far, i * kPiece, kPiece));
    requests.push_back(Write(near, kHalf + i * kPiece, far, kHalf + i * kPiece, kPiece));
  }
  const auto status = Run(requests);
  EXPECT_COMPLETED(status);
  if (status) {
    EXPECT_EQ(status->transferred_bytes, requests.size() * kPiece);
  }
  EXPECT_OK(Check(near.bytes().first(kHalf), 1));
  far.Expect(2, kHalf, kHalf);
}

TEST_P(TransferContract, DuplicateRequestsAreRequestsOfTheirOwn) {
  const FarMemory far = MakeFarMemory(kMiB);
  NearMemory near = MakeNearMemory(kMiB);
  Fill(near.bytes(), 7);
  const std::vector<TransferRequest> writes(8, Write(near, 0, far, 0, kMiB));
  const BatchId batch = Begin(writes);
  for (const TransferStatus& end : EndEach(batch, writes.size())) {
    EXPECT_EQ(TransferStateName(end.state), "COMPLETED") << end.error.ToString();
    EXPECT_EQ(end.transferred_bytes, kMiB);
  }
  far.Expect(7);
}

// The caller may do with its array what it wants once Submit has returned.
TEST_P(TransferContract, RequestsAreCopiedAtSubmission) {
  const FarMemory far = MakeFarMemory(16 * kMiB);
  NearMemory near = MakeNearMemory(16 * kMiB);
  Fill(near.bytes(), 8);
  std::vector<TransferRequest> requests;
  for (size_t at = 0; at < 16 * kMiB; at += kMiB) requests.push_back(Write(near, at, far, at, kMiB));
  const BatchId batch = Begin(requests);
  std::ranges::fill(requests, TransferRequest{});
  EXPECT_EQ(TransferStateName(End(batch).state), "COMPLETED");
  far.Expect(8);
}

TEST_P(TransferContract, EmptyRequestsCompleteAndMoveNothing) {
  const FarMemory far = MakeFarMemory(4096);
  NearMemory near = MakeNearMemory(4096);
  far.Fill(1);
  Fill(near.bytes(), 2);
  const std::vector<TransferRequest> requests = {Write(near, 0, far, 0, 0), Read(near, 0, far, 4096, 0),
                                                 Write(near, 4096, far, 4095, 0)};
  const auto status = Run(requests);
  EXPECT_COMPLETED(status);
  if (status) {
    EXPECT_EQ(status->transferred_bytes, 0u);
  }
  far.Expect(1);
  EXPECT_OK(Check(near.bytes(), 2));
}

TEST_P(TransferContract, EmptyBatchIsComplete) {
  const auto batch = near_->AllocateBatch(0);
  ASSERT_OK(batch);
  EXPECT_COMPLETED(near_->BatchStatus(*batch));
  EXPECT_OK(near_->Submit(*batch, {}));
  EXPECT_COMPLETED(near_->Wait(*batch, Soon()));
  EXPECT_OK(near_->FreeBatch(*batch));
}

TEST_P(TransferContract, BatchTakesItsTasksInSeveralSubmissionsAndNotOneMore) {
  const FarMemory far = MakeFarMemory(4 * kMiB);
  NearMemory near = MakeNearMemory(4 * kMiB);
  far.Fill(1);
  Fill(near.bytes(), 9);
  const auto batch = near_->AllocateBatch(3);
  ASSERT_OK(batch);
  const std::vector<TransferRequest> two = {Write(near, 0, far, 0, kMiB), Write(near, kMiB, far, kMiB, kMiB)};
  const TransferRequest third = Write(near, 2 * kMiB, far, 2 * kMiB, kMiB);
  EXPECT_OK(near_->Submit(*batch, two));
  const std::vector<TransferRequest> too_many = {third, Write(near, 3 * kMiB, far, 3 * kMiB, kMiB)};
  const auto refused = near_->Submit(*batch, too_many);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::TOO_MANY_REQUESTS);
  EXPECT_OK(near_->Submit(*batch, {&third, 1}));
  EXPECT_EQ(End(*batch).transferred_bytes, 3 * kMiB);
  far.Expect(9, 0, 3 * kMiB);
  far.Expect(1, 3 * kMiB, kMiB);
}

TEST_P(TransferContract, BatchesBeyondTheLimitAreRefusedUntilOneIsFreed) {
  TransferEngineOptions options = NearOptions(GetParam(), OneNearDevice());
  options.max_batches = 3;
  const auto engine = TransferEngine::Open(std::move(options));
  ASSERT_OK(engine);
  std::vector<BatchId> batches;
  for (int i = 0; i < 3; ++i) {
    const auto batch = (*engine)->AllocateBatch(1);
    ASSERT_OK(batch);
    batches.push_back(*batch);
  }
  const auto refused = (*engine)->AllocateBatch(1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::TOO_MANY_REQUESTS);
  EXPECT_OK((*engine)->FreeBatch(batches[1]));
  const auto again = (*engine)->AllocateBatch(1);
  ASSERT_OK(again);
  EXPECT_NE(*again, batches[1]) << "a batch that is gone must not come back under its old name";
  EXPECT_FALSE((*engine)->BatchStatus(batches[1]));
  for (const BatchId batch : {batches[0], batches[2], *again}) EXPECT_OK((*engine)->FreeBatch(batch));
}

TEST_P(TransferContract, EndIsToldToAllWhoAsked) {
  const FarMemory far = MakeFarMemory(16 * kMiB);
  NearMemory near = MakeNearMemory(16 * kMiB);
  const TransferRequest write = Write(near, 0, far, 0, 16 * kMiB);
  const BatchId batch = Begin({&write, 1});
  std::mutex mutex;
  std::condition_variable called;
  std::vector<TransferState> told;
  for (int i = 0; i < 4; ++i) {
    EXPECT_OK(near_->OnEnd(batch, [&](const TransferStatus& status) {
      std::lock_guard lock(mutex);
      told.push_back(status.state);
      called.notify_all();
    }));
  }
  {
    std::unique_lock lock(mutex);
    EXPECT_TRUE(called.wait_until(lock, Soon().time(), [&] { return told.size() == 4; }));
  }
  EXPECT_EQ(TransferStateName(End(batch).state), "COMPLETED");
  std::lock_guard lock(mutex);
  EXPECT_EQ(told, std::vector<TransferState>(4, TransferState::kCompleted));  // each exactly once
}

TEST_P(TransferContract, CallerThatWaitsGetsTheSame) {
  const FarMemory far = MakeFarMemory(3 * kMiB);
  NearMemory near = MakeNearMemory(3 * kMiB);
  Fill(near.bytes(), 10);
  const TransferRequest write = Write(near, 0, far, 0, 3 * kMiB);
  EXPECT_COMPLETED(Run({&write, 1}, {.caller = Caller::kWaits}));
  far.Expect(10);
  Fill(near.bytes(), 11);
  const TransferRequest read = Read(near, 0, far, 0, 3 * kMiB);
  EXPECT_OK(near_->Transfer({&read, 1}, Soon()));
  EXPECT_OK(Check(near.bytes(), 10));
}

// Who sees the notify sees the bytes.
TEST_P(TransferContract, NotifyComesAfterTheData) {
  constexpr size_t kLength = 16 * kMiB;
  const FarMemory far = MakeFarMemory(kLength);
  NearMemory near = MakeNearMemory(kLength);
  for (uint64_t round = 1; round <= 5; ++round) {
    Fill(near.bytes(), round);
    std::vector<TransferRequest> writes;
    for (size_t at = 0; at < kLength; at += kMiB) writes.push_back(Write(near, at, far, at, kMiB));
    const std::string message = fmt::format("message-{}", round);
    SubmitOptions options;
    options.notify = TransferNotify{"sender", message};
    const BatchId batch = Begin(writes, std::move(options));
    const auto name =
        far_->Ask(fmt::format("await_notify {} 100000 {} {} {} 0", message, far.address(), kLength, round));
    EXPECT_OK(name);
    if (name) {
      EXPECT_EQ(*name, "sender");
    }
    EXPECT_EQ(TransferStateName(End(batch).state), "COMPLETED");
  }
}

TEST_P(TransferContract, NotifyWithoutATransferArrives) {
  const FarMemory far = MakeFarMemory(4096);
  far.Fill(1);
  EXPECT_OK(near_->SendNotify(target_, {"sender", "alone"}, Soon()));
  EXPECT_OK(far_->Ask(fmt::format("await_notify alone 100000 {} 4096 1 0", far.address())));
}

// Memory of the application, memory of the engine, a memfd of the application: all are reached, by this wire or by one
// that both ends have instead.
TEST_P(TransferContract, EveryKindOfHostMemoryIsReached) {
  const auto allocated = far_->AskNumber(fmt::format("allocate {}", 2 * kMiB));
  ASSERT_OK(allocated);
  ExpectRoundTrip({*far_, *allocated, 2 * kMiB}, 12);
  for (const int memfd : {0, 1}) {
    SCOPED_TRACE(memfd);
    const auto mapped = far_->AskNumber(fmt::format("map {} 0 {}", 4 * kMiB, memfd));
    ASSERT_OK(mapped);
    // Not from its first page on.
    ASSERT_OK(far_->Do(fmt::format("register {} {}", *mapped + 12288 + 64, 2 * kMiB)));
    ExpectRoundTrip({*far_, *mapped + 12288 + 64, 2 * kMiB}, 13);
  }
  EXPECT_OK(far_->Do(fmt::format("free {}", *allocated)));
}

// The segment that a name leads to may be this process's own.
TEST_P(TransferContract, OwnSegmentIsATargetToo) {
  NearMemory memory(*near_, 2 * kMiB);  // the target's
  const auto self = near_->OpenSegment(near_->local_name(), Soon());
  ASSERT_OK(self);
  Fill(memory.bytes().first(kMiB), 14);
  const TransferRequest write{.opcode = TransferOpcode::kWrite,
                              .local = memory.at(0),
                              .target = *self,
                              .target_address = reinterpret_cast<uint64_t>(memory.at(kMiB)),
                              .length = kMiB};
  EXPECT_COMPLETED(Run({&write, 1}));
  EXPECT_OK(Check(memory.bytes().subspan(kMiB), 14));
}

// Both directions at once, each end the initiator of one.
TEST_P(TransferContract, FarEndIsAnInitiatorToo) {
  if (wire() == "local") return;  // there is only one engine
  const FarMemory far = MakeFarMemory(8 * kMiB);
  NearMemory near(*near_, 16 * kMiB);  // a target, too
  far.Fill(15);
  Fill(near.bytes(), 16);
  const uint64_t near_address = reinterpret_cast<uint64_t>(near.at(0));
  ASSERT_OK(far_->process().Send(
      fmt::format("transfer write {} {} {} {} 100000", near_->local_name(), far.address(), near_address, 8 * kMiB)));
  const FarMemory other = {*far_, far.address(), far.length()};
  const TransferRequest read = Read(near, 8 * kMiB, other, 0, 8 * kMiB);
  EXPECT_COMPLETED(Run({&read, 1}));
  EXPECT_OK(far_->process().Answer(Soon()));
  EXPECT_OK(Check(near.bytes().first(8 * kMiB), 15));
  EXPECT_OK(Check(near.bytes().subspan(8 * kMiB), 15));
}

INSTANTIATE_TEST_SUITE_P(Wires, TransferContract, ::testing::ValuesIn(WiresUnderTest()),
                         [](const auto& wire) { return wire.param; });

}  // namespace
}  // namespace mooncake::transfer_test
