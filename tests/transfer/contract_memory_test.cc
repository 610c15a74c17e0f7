// What every transport does about memory that comes and goes, and with requests that name what is not there.
#include <atomic>
#include <thread>

#include "transfer/ends.h"
#include "transfer/pattern.h"

namespace mooncake::transfer_test {
namespace {

class TransferMemoryContract : public EndsTest {
 protected:
  // Refused as a whole with this code: nothing of `requests` is done.
  void ExpectRefused(std::vector<TransferRequest> requests, ErrorCode code) {
    const auto batch = near_->AllocateBatch(requests.size());
    ASSERT_OK(batch);
    const auto submitted = near_->Submit(*batch, requests);
    EXPECT_FALSE(submitted);
    if (!submitted) {
      EXPECT_EQ(ErrorCodeName(submitted.error().code()), ErrorCodeName(code)) << submitted.error().message();
    }
    const auto status = near_->Wait(*batch, Soon());
    EXPECT_COMPLETED(status);  // there is no task in it
    if (status) {
      EXPECT_EQ(status->transferred_bytes, 0u);
    }
    EXPECT_OK(near_->FreeBatch(*batch));
  }
};

// The peer's descriptor is known by then, without this region.
TEST_P(TransferMemoryContract, MemoryRegisteredLaterIsReachedAtOnce) {
  const FarMemory first = MakeFarMemory(kMiB);
  ExpectRoundTrip(first, 1);
  for (uint64_t seed = 2; seed < 6; ++seed) {
    const FarMemory later = MakeFarMemory(kMiB + seed * 4096);
    ExpectRoundTrip(later, seed);
  }
  ExpectRoundTrip(first, 7);
}

// Same place, other keys: what was known of the first registration must not be used for the second.
TEST_P(TransferMemoryContract, MemoryRegisteredAgainIsReachedAtOnce) {
  const auto address = far_->AskNumber(fmt::format("map {} 0 1", 4 * kMiB));
  ASSERT_OK(address);
  for (uint64_t seed = 1; seed < 5; ++seed) {
    const size_t length = seed % 2 == 0 ? 2 * kMiB : 4 * kMiB;
    ASSERT_OK(far_->Do(fmt::format("register {} {}", *address, length)));
    ExpectRoundTrip({*far_, *address, length}, seed);
    ASSERT_OK(far_->Do(fmt::format("unregister {}", *address)));
  }
}

TEST_P(TransferMemoryContract, MemoryThatIsNoLongerRegisteredIsNotTouched) {
  const auto address = far_->AskNumber(fmt::format("map {} 0 1", kMiB));
  ASSERT_OK(address);
  const FarMemory far{*far_, *address, kMiB};
  ASSERT_OK(far_->Do(fmt::format("register {} {}", *address, kMiB)));
  ExpectRoundTrip(far, 1);
  ASSERT_OK(far_->Do(fmt::format("unregister {}", *address)));
  far.Fill(2);
  NearMemory near = MakeNearMemory(kMiB);
  Fill(near.bytes(), 3);
  for (const TransferRequest& request : {Write(near, 0, far, 0, kMiB), Read(near, 0, far, 0, kMiB)}) {
    const auto status = Run({&request, 1});
    const Status error = status ? status->error : status.error();
    EXPECT_EQ(ErrorCodeName(error.code()), "ADDRESS_NOT_REGISTERED") << error.message();
  }
  far.Expect(2);
  EXPECT_OK(Check(near.bytes(), 3));
}

// From the moment that unregistering has returned, the memory belongs to the far application again.
TEST_P(TransferMemoryContract, UnregisteringEndsTransfersOfPeersFirst) {
  constexpr size_t kLength = 16 * kMiB;
  const auto address = far_->AskNumber(fmt::format("map {} 0 1", kLength));
  ASSERT_OK(address);
  const FarMemory far{*far_, *address, kLength};
  ASSERT_OK(far_->Do(fmt::format("register {} {}", *address, kLength)));
  NearMemory near = MakeNearMemory(kLength);
  Fill(near.bytes(), 1);
  constexpr size_t kThreads = 4;
  std::atomic<size_t> completed{0};
  std::vector<std::thread> writers;
  for (size_t thread = 0; thread < kThreads; ++thread) {
    writers.emplace_back([&, thread] {
      const size_t each = kLength / kThreads;
      const TransferRequest write = Write(near, thread * each, far, thread * each, each);
      for (;;) {
        const auto status = Run({&write, 1});
        const bool done = status && status->state == TransferState::kCompleted;
        completed += done ? 1 : 0;
        completed.notify_all();
        if (done) continue;
        // In flight it may fail for any reason, afterwards it is refused for the right one.
        const auto again = Run({&write, 1});
        const Status error = again ? again->error : again.error();
        EXPECT_EQ(ErrorCodeName(error.code()), "ADDRESS_NOT_REGISTERED") << error.message();
        completed += kThreads;  // in case all failed before the first unregistration
        completed.notify_all();
        return;
      }
    });
  }
  for (size_t seen = completed; seen < 2 * kThreads; seen = completed) completed.wait(seen);
  EXPECT_OK(far_->Do(fmt::format("unregister {}", *address)));
  far.Fill(2);
  for (std::thread& writer : writers) writer.join();
  far.Expect(2);
}

// The same for memory of this process that its own requests use.
TEST_P(TransferMemoryContract, UnregisteringEndsOwnTransfersFirst) {
  constexpr size_t kLength = 32 * kMiB;
  const FarMemory far = MakeFarMemory(kLength);
  far.Fill(1);
  NearMemory near = MakeNearMemory(kLength);
  std::vector<TransferRequest> reads;
  for (size_t at = 0; at < kLength; at += kMiB) reads.push_back(Read(near, at, far, at, kMiB));
  const BatchId batch = Begin(reads);
  EXPECT_OK(near_->UnregisterMemory(near.at(0)));
  near.Forget();
  Fill(near.bytes(), 2);
  End(batch);
  EXPECT_OK(Check(near.bytes(), 2));
}

TEST_P(TransferMemoryContract, AddressesNobodyRegisteredAreRefused) {
  const FarMemory far = MakeFarMemory(kMiB);
  NearMemory near = MakeNearMemory(2 * kMiB);
  far.Fill(1);
  Fill(near.bytes(), 2);
  const TransferRequest good = Write(near, 0, far, 0, kMiB);
  const uint64_t end = far.address() + kMiB;
  for (const uint64_t address : {end, end - 1, far.address() - 1, uint64_t{4096}}) {
    SCOPED_TRACE(address);
    for (const TransferOpcode opcode : {TransferOpcode::kWrite, TransferOpcode::kRead}) {
      ExpectRefused({good, Request(opcode, near.at(0), address, 4096)}, ErrorCode::ADDRESS_NOT_REGISTERED);
    }
  }
  far.Expect(1);
  EXPECT_OK(Check(near.bytes(), 2));
}

TEST_P(TransferMemoryContract, EmptyRequestsAreCheckedLikeAnyOther) {
  const FarMemory far = MakeFarMemory(kMiB);
  NearMemory near = MakeNearMemory(kMiB);
  far.Fill(1);
  const TransferRequest good = Write(near, 0, far, 0, kMiB);
  ExpectRefused({good, Request(TransferOpcode::kWrite, near.at(0), 4096, 0)}, ErrorCode::ADDRESS_NOT_REGISTERED);
  far.Expect(1);
}

TEST_P(TransferMemoryContract, RangesThatWrapAreRefused) {
  const FarMemory far = MakeFarMemory(kMiB);
  NearMemory near = MakeNearMemory(kMiB);
  far.Fill(1);
  const TransferRequest good = Write(near, 0, far, 0, kMiB);
  const auto local = reinterpret_cast<uint64_t>(near.at(0));
  const std::vector<TransferRequest> wrapping = {
      Request(TransferOpcode::kWrite, near.at(0), UINT64_MAX - 10, 100),
      Request(TransferOpcode::kWrite, near.at(0), far.address(), UINT64_MAX - far.address() + 2),
      Request(TransferOpcode::kRead, near.at(0), 4096, UINT64_MAX - local + 2),
      Request(TransferOpcode::kRead, near.at(0), far.address(), UINT64_MAX),
  };
  for (const TransferRequest& request : wrapping) {
    SCOPED_TRACE(fmt::format("{:#x} +{:#x}", request.target_address, request.length));
    ExpectRefused({good, request}, ErrorCode::INVALID_PARAMS);
  }
  far.Expect(1);
}

TEST_P(TransferMemoryContract, UnknownTargetsAndBatchesAreRefused) {
  const FarMemory far = MakeFarMemory(kMiB);
  NearMemory near = MakeNearMemory(kMiB);
  TransferRequest request = Write(near, 0, far, 0, kMiB);
  request.target = target_ + 12345;
  ExpectRefused({request}, ErrorCode::INVALID_PARAMS);
  request.target = kInvalidSegment;
  ExpectRefused({request}, ErrorCode::INVALID_PARAMS);

  request.target = target_;
  const auto batch = near_->AllocateBatch(1);
  ASSERT_OK(batch);
  EXPECT_OK(near_->FreeBatch(*batch));
  for (const BatchId gone : {*batch, kInvalidBatch, BatchId{0}}) {
    const auto submitted = near_->Submit(gone, {&request, 1});
    ASSERT_FALSE(submitted) << gone;
    EXPECT_EQ(submitted.error().code(), ErrorCode::INVALID_PARAMS);
    EXPECT_FALSE(near_->BatchStatus(gone));
    EXPECT_FALSE(near_->FreeBatch(gone));
    EXPECT_FALSE(near_->Cancel(gone));
  }
}

TEST_P(TransferMemoryContract, ClosedSegmentIsNoTargetUntilOpenedAgain) {
  const FarMemory far = MakeFarMemory(kMiB);
  NearMemory near = MakeNearMemory(kMiB);
  const TransferRequest request = Write(near, 0, far, 0, kMiB);
  ASSERT_OK(near_->CloseSegment(target_));
  ExpectRefused({request}, ErrorCode::INVALID_PARAMS);
  const auto target = near_->OpenSegment(far_->ports().name, Soon());
  ASSERT_OK(target);
  target_ = *target;
  ExpectRoundTrip(far, 1);
  const auto same = near_->OpenSegment(far_->ports().name, Soon());
  ASSERT_OK(same);
  EXPECT_EQ(*same, target_);
}

TEST_P(TransferMemoryContract, NameThatNobodyAnswersToIsNotFound) {
  const auto opened = near_->OpenSegment("127.0.0.1:1", Soon());
  ASSERT_FALSE(opened);
  EXPECT_EQ(ErrorCodeName(opened.error().code()), "SEGMENT_NOT_FOUND") << opened.error().message();
}

TEST_P(TransferMemoryContract, GrantReachesItsRangeOnly) {
  const FarMemory far = MakeFarMemory(kMiB);
  far.Fill(1);
  constexpr size_t kAt = 64 * kKiB;
  constexpr size_t kLength = 128 * kKiB;
  const auto key = far_->AskNumber(fmt::format("grant {} {} 1", far.address() + kAt, kLength));
  ASSERT_OK(key);
  const GrantedRange granted{.address = far.address() + kAt, .length = kLength, .key = *key};
  NearMemory near = MakeNearMemory(kMiB);
  Fill(near.bytes(), 2);
  const auto piece = [&](size_t length) { return near.bytes().first(length).range(); };

  EXPECT_OK(near_->TransferGranted(TransferOpcode::kWrite, piece(4096), target_, granted, 8192, Soon()));
  const std::vector<std::byte> expected = near.bytes().first(4096).Copy();
  EXPECT_OK(near_->TransferGranted(TransferOpcode::kRead, piece(4096), target_, granted, 8192, Soon()));
  EXPECT_EQ(HashOf(near.bytes().first(4096)), HashOf(expected));
  // Not a byte beyond, although the region goes on.
  EXPECT_FALSE(near_->TransferGranted(TransferOpcode::kWrite, piece(4096), target_, granted, kLength - 4095, Soon()));
  EXPECT_FALSE(
      near_->TransferGranted(TransferOpcode::kWrite, piece(4096), target_, granted, UINT64_MAX - 4000, Soon()));
  far.Expect(1, 0, kAt + 8192);
  far.Expect(1, kAt + 8192 + 4096, kMiB - kAt - 8192 - 4096);
}

INSTANTIATE_TEST_SUITE_P(Wires, TransferMemoryContract, ::testing::ValuesIn(WiresUnderTest()),
                         [](const auto& wire) { return wire.param; });

// Over tcp the target checks each request; other wires give a peer the whole region or nothing.
class TransferKeys : public EndsTest {};

TEST_P(TransferKeys, WrongKeyReachesNothing) {
  const FarMemory far = MakeFarMemory(kMiB);
  far.Fill(1);
  const auto key = far_->AskNumber(fmt::format("grant {} {} 1", far.address(), kMiB));
  ASSERT_OK(key);
  NearMemory near = MakeNearMemory(kMiB);
  Fill(near.bytes(), 2);
  const MemoryRange local = near.bytes().range();
  for (const uint64_t wrong : {*key ^ 1, *key + 1, uint64_t{0x1234}}) {
    const GrantedRange granted{.address = far.address(), .length = kMiB, .key = wrong};
    for (const TransferOpcode opcode : {TransferOpcode::kWrite, TransferOpcode::kRead}) {
      const auto result = near_->TransferGranted(opcode, local, target_, granted, 0, Soon());
      ASSERT_FALSE(result);
      EXPECT_EQ(ErrorCodeName(result.error().code()), "ADDRESS_NOT_REGISTERED") << result.error().message();
    }
  }
  far.Expect(1);
  EXPECT_OK(Check(near.bytes(), 2));
  const GrantedRange granted{.address = far.address(), .length = kMiB, .key = *key};
  EXPECT_OK(near_->TransferGranted(TransferOpcode::kWrite, local, target_, granted, 0, Soon()));
  far.Expect(2);
}

TEST_P(TransferKeys, GrantToReadDoesNotAllowWriting) {
  const FarMemory far = MakeFarMemory(kMiB);
  far.Fill(1);
  const auto key = far_->AskNumber(fmt::format("grant {} {} 0", far.address(), kMiB));
  ASSERT_OK(key);
  NearMemory near = MakeNearMemory(kMiB);
  Fill(near.bytes(), 2);
  const GrantedRange granted{.address = far.address(), .length = kMiB, .key = *key};
  const MemoryRange local = near.bytes().range();
  EXPECT_FALSE(near_->TransferGranted(TransferOpcode::kWrite, local, target_, granted, 0, Soon()));
  far.Expect(1);
  EXPECT_OK(near_->TransferGranted(TransferOpcode::kRead, local, target_, granted, 0, Soon()));
  EXPECT_OK(Check(near.bytes(), 1));
}

std::vector<std::string> WiresWithKeys() {
  std::vector<std::string> wires = WiresUnderTest();
  std::erase_if(wires, [](const std::string& wire) { return WireOf(wire) != "tcp"; });
  return wires;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransferKeys);
INSTANTIATE_TEST_SUITE_P(Wires, TransferKeys, ::testing::ValuesIn(WiresWithKeys()),
                         [](const auto& wire) { return wire.param; });

}  // namespace
}  // namespace mooncake::transfer_test
