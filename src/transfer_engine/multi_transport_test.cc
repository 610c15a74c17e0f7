// Choice of a transport for each request, second attempts, notifications, and that every request ends exactly once.
#include "transfer_engine/multi_transport.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <thread>

#include "transfer_engine/test_engines.h"
#include "transfer_engine/test_fake_npu.h"

namespace mooncake {
namespace {

constexpr size_t kSize = 4096;

// Two engines; `far_` has registered `remote_`, `near_` has it open as `target_`.
class MultiTransportTest : public testing::Test {
 protected:
  void Open(FakeEngineSetup near = {}, FakeEngineSetup far = {}) {
    near_ = OpenFake(network_, std::move(near));
    far_ = OpenFake(network_, std::move(far));
    ASSERT_TRUE(Register(far_, remote_));
    const auto target = near_->segments().Open(far_->name(), Soon());
    ASSERT_TRUE(target) << target.error().ToString();
    target_ = *target;
  }
  // Another process in the place of far_; the memory is registered again, so that its key is another.
  void RestartFar() {
    FakeEngineSetup setup;
    setup.options.control_port = far_->control_port();
    far_ = {};
    far_ = OpenFake(network_, std::move(setup));
    ASSERT_TRUE(Register(far_, remote_));
  }
  TransferRequest WriteAll() { return Write(local_, target_, remote_.data()); }
  Result<BatchId> Begin(std::span<const TransferRequest> requests, SubmitOptions options = {}) {
    const BatchId batch = MC_TRY(near_->batches().Allocate(requests.size()));
    MC_TRY(near_->Submit(batch, requests, std::move(options)));
    return batch;
  }
  Result<BatchId> Begin(const TransferRequest& request, SubmitOptions options = {}) {
    return Begin(std::span(&request, 1), std::move(options));
  }
  TransferStatus WaitFor(BatchId batch) { return (*near_->batches().Find(batch))->Wait(Soon()); }
  ErrorCode Refused(const TransferRequest& request) {
    const auto result = Begin(request);
    EXPECT_FALSE(result);
    text_ = result ? "" : result.error().message();
    return result ? ErrorCode::OK : result.error().code();
  }
  uint64_t Count(const std::string& metric) {
    const std::string text = near_->MetricsText();
    const size_t at = text.find("\n" + metric);
    return at == std::string::npos ? 0 : std::stoull(text.substr(text.find(' ', at + 1) + 1));
  }

  FakeNetwork network_;
  std::vector<std::byte> local_ = Pattern(kSize);
  std::vector<std::byte> remote_ = std::vector<std::byte>(kSize);
  FakeEngine near_;
  FakeEngine far_;
  SegmentId target_ = kInvalidSegment;
  std::string text_;  // of the last refusal
};

TEST_F(MultiTransportTest, FirstTransportThatReachesCarriesTheRequest) {
  Open({.wires = {{.name = "fast"}, {.name = "slow"}}}, {.wires = {{.name = "fast"}, {.name = "slow"}}});
  near_.wires[0]->reaches = [](const MemoryRange& range, auto&, auto&) { return SizeOf(range) <= 1024; };
  std::vector<TransferRequest> requests;
  const auto piece = [&](size_t at, size_t size) {
    requests.push_back(Write(std::span(local_).subspan(at, size), target_, remote_.data() + at));
  };
  piece(0, 1024);
  piece(1024, 2048);
  piece(3072, 1024);
  const auto batch = Begin(requests, {.caller = Caller::kWaits});
  ASSERT_TRUE(batch);
  EXPECT_EQ(WaitFor(*batch).state, TransferState::kCompleted);
  EXPECT_EQ(remote_, local_);
  EXPECT_EQ(near_.wires[0]->submits, 1) << "requests of a transport go together";
  EXPECT_EQ(near_.wires[0]->carried, 2);
  EXPECT_EQ(near_.wires[1]->carried, 1);
  EXPECT_EQ(near_.wires[0]->waiting_submits + near_.wires[1]->waiting_submits, 1)
      << "only the last may keep the caller's thread";
  EXPECT_EQ(Count(R"(mooncake_transfer_requests_total{opcode="write",transport="fast"})"), 2u);
  EXPECT_EQ(Count(R"(mooncake_transfer_bytes_total{opcode="write",transport="slow"})"), 2048u);
}

TEST_F(MultiTransportTest, RequestsOfATransportKeepTheirOrder) {
  Open();
  near_.wire().hold = true;
  std::vector<TransferRequest> requests;
  for (size_t i = 0; i < 16; ++i) requests.push_back(Write(std::span(local_).subspan(i, 1), target_, &remote_[i]));
  const auto batch = Begin(requests);
  auto held = near_.wire().TakeHeld();
  ASSERT_EQ(held.size(), 16u);
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(held[i].target_address, requests[i].target_address);
    FakeTransport::End(held[i], {});
  }
  EXPECT_EQ(WaitFor(*batch).transferred_bytes, 16u);
}

TEST_F(MultiTransportTest, TransportThatTheTargetDoesNotOfferIsLeftOut) {
  Open({.wires = {{.name = "other"}, {.name = "fake"}}});
  const auto batch = Begin(WriteAll());
  ASSERT_TRUE(batch);
  EXPECT_EQ(near_.wires[0]->carried, 0);
  EXPECT_EQ(near_.wires[1]->carried, 1);
}

TEST_F(MultiTransportTest, RefusalSaysWhyNoTransportDoes) {
  Open({.wires = {{.name = "other"}, {.name = "fake"}}});
  near_.wires[1]->reaches = [](auto&, auto&, auto&) { return false; };
  EXPECT_EQ(Refused(WriteAll()), ErrorCode::NOT_SUPPORTED_TRANSPORT);
  EXPECT_NE(text_.find("other: the target does not offer it"), std::string::npos) << text_;
  EXPECT_NE(text_.find("fake: it has no way"), std::string::npos) << text_;
}

TEST_F(MultiTransportTest, InvalidRequestsAreRefusedAndNothingOfTheirCallIsDone) {
  Open();
  TransferRequest request = WriteAll();
  const auto expect_invalid = [&](auto&& change) {
    TransferRequest wrong = request;
    change(wrong);
    const std::vector<TransferRequest> requests = {request, wrong};
    const auto refused = Begin(requests);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::INVALID_PARAMS) << refused.error().message();
  };
  expect_invalid([](TransferRequest& r) { r.opcode = static_cast<TransferOpcode>(7); });
  expect_invalid([](TransferRequest& r) { r.local = nullptr; });
  expect_invalid([](TransferRequest& r) { r.length = SIZE_MAX; });
  expect_invalid([](TransferRequest& r) { r.target_address = UINT64_MAX - 5; });
  expect_invalid([](TransferRequest& r) { r.target = 12345; });
  expect_invalid([](TransferRequest& r) { r.target = kInvalidSegment; });
  expect_invalid([](TransferRequest& r) {
    r.target = 12345;
    r.length = 0;
  });
  EXPECT_EQ(near_.wire().carried, 0);
}

TEST_F(MultiTransportTest, BatchWithoutRoomTakesNoneOfTheRequests) {
  Open();
  const BatchId batch = *near_->batches().Allocate(1);
  const std::vector<TransferRequest> requests(2, WriteAll());
  const auto refused = near_->Submit(batch, requests, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::TOO_MANY_REQUESTS);
  EXPECT_EQ(near_.wire().carried, 0);
  EXPECT_TRUE(near_->batches().Free(batch));
}

TEST_F(MultiTransportTest, UnknownRangeIsRefusedWithTheNearestRegion) {
  Open();
  std::vector<std::byte> elsewhere(64);
  EXPECT_EQ(Refused(Write(elsewhere, target_, remote_.data() + kSize - 32)), ErrorCode::ADDRESS_NOT_REGISTERED);
  EXPECT_NE(text_.find(far_->name()), std::string::npos);
  EXPECT_NE(text_.find(fmt::format("[{:#x}, +{})", reinterpret_cast<uintptr_t>(remote_.data()), kSize)),
            std::string::npos)
      << text_;
}

TEST_F(MultiTransportTest, RangeRegisteredAfterTheLookUpIsFound) {
  Open();
  std::vector<std::byte> late(kSize);
  ASSERT_TRUE(Register(far_, late));
  const auto batch = Begin(Write(local_, target_, late.data()));
  ASSERT_TRUE(batch) << batch.error().ToString();
  EXPECT_EQ(WaitFor(*batch).state, TransferState::kCompleted);
  EXPECT_EQ(late, local_);
}

TEST_F(MultiTransportTest, NothingToMoveCompletesAtOnce) {
  Open();
  near_.wire().hold = true;
  TransferRequest nothing = WriteAll();
  nothing.target_address += kSize;  // the end is part of the region for who moves nothing
  nothing.length = 0;
  const auto batch = Begin(nothing, {.notify = TransferNotify{.name = "me", .message = "empty"}});
  ASSERT_TRUE(batch) << batch.error().ToString();
  EXPECT_EQ(WaitFor(*batch).state, TransferState::kCompleted);
  EXPECT_EQ(near_.wire().carried, 0);
  EXPECT_EQ(far_->GetNotifies().size(), 1u);
  ++nothing.target_address;
  EXPECT_EQ(Refused(nothing), ErrorCode::ADDRESS_NOT_REGISTERED);
}

TEST_F(MultiTransportTest, RestartedTargetIsFoundAgainWithinTheRequest) {
  Open();
  ASSERT_TRUE(Begin(WriteAll()));
  RestartFar();
  std::ranges::fill(remote_, std::byte{0});
  const auto batch = Begin(WriteAll());
  ASSERT_TRUE(batch);
  const TransferStatus status = WaitFor(*batch);
  EXPECT_EQ(status.state, TransferState::kCompleted) << status.error.ToString();
  EXPECT_EQ(remote_, local_);
  EXPECT_EQ(near_.wire().carried, 3) << "once refused, once done";
  EXPECT_EQ(Count("mooncake_transfer_rerouted_total"), 1u);
  EXPECT_EQ((*near_->segments().Get(target_))->generation, far_->generation());
}

TEST_F(MultiTransportTest, ReRegisteredRangeIsFoundAgainWithinTheRequest) {
  Open();
  void* const address = remote_.data();
  ASSERT_TRUE(far_->keeper().Unregister({&address, 1}));
  ASSERT_TRUE(Register(far_, remote_));
  const auto batch = Begin(WriteAll());
  EXPECT_EQ(WaitFor(*batch).state, TransferState::kCompleted);
  EXPECT_EQ(near_.wire().carried, 2);
}

TEST_F(MultiTransportTest, OwnSegmentIsLookedUpAgainLikeAnyOther) {
  Open();
  std::vector<std::byte> own(kSize);
  ASSERT_TRUE(Register(near_, own));
  const SegmentId self = *near_->segments().Open(near_->name(), Soon());
  void* const address = own.data();
  ASSERT_TRUE(near_->keeper().Unregister({&address, 1}));
  ASSERT_TRUE(Register(near_, own));
  const auto batch = Begin(Write(local_, self, own.data()));
  EXPECT_EQ(WaitFor(*batch).state, TransferState::kCompleted);
  EXPECT_EQ(own, local_);
}

TEST_F(MultiTransportTest, RangeThatIsGoneFailsAfterOneLook) {
  Open();
  void* const address = remote_.data();
  ASSERT_TRUE(far_->keeper().Unregister({&address, 1}));
  const auto batch = Begin(WriteAll());
  const TransferStatus status = WaitFor(*batch);
  EXPECT_EQ(status.state, TransferState::kFailed);
  EXPECT_EQ(status.error.code(), ErrorCode::ADDRESS_NOT_REGISTERED);
  EXPECT_EQ(near_.wire().carried, 1);
}

TEST_F(MultiTransportTest, RequestIsTriedAgainOnlyOnce) {
  Open();
  std::atomic<int> calls{0};
  near_.wire().on_operation = [&](const TransferOperation&) -> Result<void> {
    // Each attempt meets a new revision.
    void* const address = remote_.data();
    EXPECT_TRUE(far_->keeper().Unregister({&address, 1}));
    EXPECT_TRUE(Register(far_, remote_));
    return Error(ErrorCode::ADDRESS_NOT_REGISTERED, "attempt {}", ++calls);
  };
  const auto batch = Begin(WriteAll());
  const TransferStatus status = WaitFor(*batch);
  EXPECT_EQ(status.state, TransferState::kFailed);
  EXPECT_EQ(status.error.message(), "attempt 2");
  EXPECT_EQ(calls, 2);
}

TEST_F(MultiTransportTest, PlainFailureIsTriedAgainOnlyAtAnotherProcess) {
  Open();
  near_.wire().on_operation = [&](const TransferOperation&) -> Result<void> {
    return Error(ErrorCode::TRANSFER_FAIL, "the wire is down");
  };
  auto batch = Begin(WriteAll());
  EXPECT_EQ(WaitFor(*batch).error.message(), "the wire is down");
  EXPECT_EQ(near_.wire().carried, 1);
  // The old process's data port is closed: the wire cannot tell that there is a new one.
  const Uuid old = far_->generation();
  near_.wire().on_operation = [&, old](const TransferOperation& operation) -> Result<void> {
    if (operation.target->generation == old) return Error(ErrorCode::TRANSFER_FAIL, "connection refused");
    return near_.wire().Carry(operation);
  };
  RestartFar();
  batch = Begin(WriteAll());
  EXPECT_EQ(WaitFor(*batch).state, TransferState::kCompleted);
}

TEST_F(MultiTransportTest, SecondAttemptHasTheDeadlineAndTheMemoryOfTheFirst) {
  Open();
  ASSERT_TRUE(Register(near_, local_));
  RestartFar();
  std::vector<TimePoint> deadlines;
  near_.wire().on_operation = [&](const TransferOperation& operation) {
    deadlines.push_back(operation.deadline.time());
    EXPECT_TRUE(operation.local_use);
    return near_.wire().Carry(operation);
  };
  const Deadline deadline = Soon();
  const auto batch = Begin(WriteAll(), {.deadline = deadline});
  EXPECT_EQ(WaitFor(*batch).state, TransferState::kCompleted);
  EXPECT_EQ(deadlines, std::vector<TimePoint>({deadline.time(), deadline.time()}));
  void* const address = local_.data();
  EXPECT_TRUE(near_->keeper().Unregister({&address, 1})) << "nobody uses it any more";
}

// A metadata server whose answers wait, so that a request stays between its two attempts.
class BetweenAttemptsTest : public MultiTransportTest {
 protected:
  void SetUp() override {
    Open({.metadata = metadata_, .wires = {{}}}, {.options = {.local_name = "far"}, .metadata = metadata_});
    near_.wire().on_operation = [](const TransferOperation&) -> Result<void> {
      return Error(ErrorCode::STALE_SEGMENT, "another process is there");
    };
    metadata_->before = [this](std::string_view call, const std::string& key) -> Result<void> {
      if (call == "get" && key == SegmentKey("far")) {
        asked_.count_down();
        answer_.wait();
      }
      return {};
    };
  }
  void TearDown() override {
    Release();
    near_ = {};
    far_ = {};
  }
  void Release() {
    if (!answer_.try_wait()) answer_.count_down();
  }
  std::shared_ptr<FakeMetadata::Shared> metadata_ = std::make_shared<FakeMetadata::Shared>();
  std::latch asked_{1};
  std::latch answer_{1};
};

TEST_F(BetweenAttemptsTest, CancelEndsTheRequest) {
  const auto batch = Begin(WriteAll());
  ASSERT_TRUE(batch) << batch.error().ToString();
  asked_.wait();
  EXPECT_EQ((*near_->batches().Find(*batch))->Summary().state, TransferState::kWaiting);
  ASSERT_TRUE(near_->Cancel(*batch));
  EXPECT_EQ(WaitFor(*batch).state, TransferState::kCanceled);
  EXPECT_TRUE(near_->batches().Free(*batch));
}

TEST_F(BetweenAttemptsTest, DeadlineEndsTheRequest) {
  const auto batch = Begin(WriteAll(), {.deadline = Deadline::After(std::chrono::milliseconds(20))});
  const TransferStatus status = WaitFor(*batch);
  EXPECT_EQ(status.state, TransferState::kTimeout);
  EXPECT_NE(status.error.message().find("another process is there"), std::string::npos);
}

TEST_F(BetweenAttemptsTest, MemoryStaysRegistered) {
  ASSERT_TRUE(Register(near_, local_, {.access = RegionAccess::kLocal}));
  const auto batch = Begin(WriteAll());
  asked_.wait();
  const auto region = near_->regions().Unpublish(reinterpret_cast<uintptr_t>(local_.data()));
  ASSERT_TRUE(region && *region);
  EXPECT_FALSE(near_->regions().WaitUnused(**region, Deadline::After({})));
  ASSERT_TRUE(near_->Cancel(*batch));
  EXPECT_TRUE(near_->regions().WaitUnused(**region, Soon()));
}

TEST_F(MultiTransportTest, CancelReachesTheTransportUnderTheBatchsName) {
  Open();
  near_.wire().hold = true;
  const auto first = Begin(WriteAll());
  const auto second = Begin(WriteAll());
  ASSERT_TRUE(near_->Cancel(*first));
  EXPECT_EQ(WaitFor(*first).state, TransferState::kCanceled);
  EXPECT_EQ((*near_->batches().Find(*second))->Summary().state, TransferState::kWaiting);
  auto held = near_.wire().TakeHeld();
  ASSERT_EQ(held.size(), 1u);
  FakeTransport::End(held[0], {});
  EXPECT_EQ(WaitFor(*second).state, TransferState::kCompleted);
  EXPECT_FALSE(near_->Cancel(12345));
}

TEST_F(MultiTransportTest, CancelThatComesDuringTheHandOverIsNotLost) {
  Open({.wires = {{.name = "first"}, {.name = "fake"}}});
  const BatchId batch = *near_->batches().Allocate(1);
  near_.wires[1]->hold = true;
  near_.wires[1]->reaches = [&](auto&, auto&, auto&) {
    EXPECT_TRUE(near_->Cancel(batch));  // before the transport has the request
    return true;
  };
  const TransferRequest request = WriteAll();
  ASSERT_TRUE(near_->Submit(batch, {&request, 1}, {}));
  EXPECT_EQ(WaitFor(batch).state, TransferState::kCanceled);
}

TEST_F(MultiTransportTest, EndsThatComeFromManyThreadsAndWithinSubmitCountOnce) {
  Open();
  constexpr size_t kRequests = 64;
  near_.wire().hold = true;
  std::vector<TransferRequest> requests;
  for (size_t i = 0; i < kRequests; ++i) {
    requests.push_back(Write(std::span(local_).subspan(i * 64, 64), target_, remote_.data() + i * 64));
  }
  for (int round = 0; round < 10; ++round) {
    std::ranges::fill(remote_, std::byte{0});
    const BatchId batch = *near_->batches().Allocate(2 * kRequests);
    ASSERT_TRUE(near_->Submit(batch, requests, {}));
    near_.wire().hold = false;
    ASSERT_TRUE(near_->Submit(batch, requests, {}));
    near_.wire().hold = true;
    auto held = near_.wire().TakeHeld();
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (size_t i = t; i < held.size(); i += 4) FakeTransport::End(held[i], near_.wire().Carry(held[i]));
      });
    }
    const TransferStatus status = WaitFor(batch);
    EXPECT_EQ(status.state, TransferState::kCompleted);
    EXPECT_EQ(status.transferred_bytes, 2 * kSize);
    for (auto& thread : threads) thread.join();
    EXPECT_TRUE(near_->batches().Free(batch));
    EXPECT_EQ(remote_, local_);
  }
}

TEST_F(MultiTransportTest, RequestsAreCopiedAtSubmission) {
  Open();
  near_.wire().hold = true;
  auto request = std::make_unique<TransferRequest>(WriteAll());
  const auto batch = Begin(*request);
  *request = {};
  request.reset();
  auto held = near_.wire().TakeHeld();
  FakeTransport::End(held.at(0), near_.wire().Carry(held.at(0)));
  EXPECT_EQ(WaitFor(*batch).state, TransferState::kCompleted);
  EXPECT_EQ(remote_, local_);
}

TEST_F(MultiTransportTest, NotificationComesAfterAllDataAndHoldsTheBatch) {
  Open();
  near_.wire().hold = true;
  const std::vector<TransferRequest> requests(2, WriteAll());
  const auto batch = Begin(requests, {.notify = TransferNotify{.name = "me", .message = "ready"}});
  auto held = near_.wire().TakeHeld();
  FakeTransport::End(held.at(0), {});
  EXPECT_TRUE(far_->GetNotifies().empty());
  EXPECT_EQ((*near_->batches().Find(*batch))->Summary().state, TransferState::kWaiting);
  FakeTransport::End(held.at(1), {});
  EXPECT_EQ(WaitFor(*batch).state, TransferState::kCompleted);
  const auto notifies = far_->GetNotifies();
  ASSERT_EQ(notifies.size(), 1u) << "one for each target, not for each request";
  EXPECT_EQ(notifies[0].name, "me");
  EXPECT_EQ(notifies[0].message, "ready");
  EXPECT_FALSE((*near_->batches().Find(*batch))->Task(2)) << "it is no task";
}

TEST_F(MultiTransportTest, FailedDataIsNotAnnounced) {
  Open();
  near_.wire().hold = true;
  const std::vector<TransferRequest> requests(2, WriteAll());
  const auto batch = Begin(requests, {.notify = TransferNotify{.message = "ready"}});
  auto held = near_.wire().TakeHeld();
  FakeTransport::End(held.at(0), Error(ErrorCode::TRANSFER_TIMEOUT, "too slow"));
  FakeTransport::End(held.at(1), {});
  EXPECT_EQ(WaitFor(*batch).state, TransferState::kTimeout);
  ASSERT_TRUE(near_->SendNotify(target_, {.message = "last"}, Soon()));
  const auto notifies = far_->GetNotifies();
  ASSERT_EQ(notifies.size(), 1u);
  EXPECT_EQ(notifies[0].message, "last");
}

TEST_F(MultiTransportTest, NotificationThatIsNotTakenFailsTheBatchAndNotItsTasks) {
  FakeEngineSetup far;
  far.options.max_notifies = 0;
  Open({}, std::move(far));
  const auto batch = Begin(WriteAll(), {.notify = TransferNotify{.message = "ready"}});
  const TransferStatus status = WaitFor(*batch);
  EXPECT_EQ(status.state, TransferState::kFailed);
  EXPECT_EQ(status.error.code(), ErrorCode::TOO_MANY_REQUESTS);
  EXPECT_EQ((*near_->batches().Find(*batch))->Task(0)->state, TransferState::kCompleted);
}

TEST_F(MultiTransportTest, DataSplitOverARestartIsNotAnnounced) {
  Open();
  near_.wire().hold = true;
  const std::vector<TransferRequest> requests(2, WriteAll());
  const auto batch = Begin(requests, {.notify = TransferNotify{.message = "ready"}});
  auto held = near_.wire().TakeHeld();
  FakeTransport::End(held.at(0), near_.wire().Carry(held.at(0)));
  near_.wire().hold = false;
  RestartFar();
  FakeTransport::End(held.at(1), near_.wire().Carry(held.at(1)));
  const TransferStatus status = WaitFor(*batch);
  EXPECT_EQ(status.state, TransferState::kFailed);
  EXPECT_EQ(status.error.code(), ErrorCode::STALE_SEGMENT);
  EXPECT_EQ((*near_->batches().Find(*batch))->Task(1)->state, TransferState::kCompleted);
  EXPECT_TRUE(far_->GetNotifies().empty());
}

TEST_F(MultiTransportTest, GrantIsUsedWithItsOwnKey) {
  Open();
  std::vector<std::byte> lent(kSize);
  ASSERT_TRUE(Register(far_, lent, {.access = RegionAccess::kByGrant}));
  EXPECT_EQ(Refused(Write(local_, target_, lent.data())), ErrorCode::NOT_SUPPORTED_TRANSPORT) << "no key, no way";
  const auto address = reinterpret_cast<uintptr_t>(lent.data());
  const uint64_t key = *far_->regions().Grant(address, kSize, true, nullptr);
  const GrantedRange grant{.address = address, .length = kSize, .key = key};
  const auto piece = std::span(local_).subspan(100, 200);
  ASSERT_TRUE(near_->TransferGranted(TransferOpcode::kWrite, piece, target_, grant, 100, Soon()));
  EXPECT_TRUE(std::ranges::equal(piece, std::span(lent).subspan(100, 200)));
  const auto beyond = near_->TransferGranted(TransferOpcode::kWrite, piece, target_, grant, kSize - 199, Soon());
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_TRUE(near_->TransferGranted(TransferOpcode::kWrite, piece.first(0), target_, grant, kSize, Soon()));
  EXPECT_TRUE(far_->regions().Revoke(key));
  const auto revoked = near_->TransferGranted(TransferOpcode::kWrite, piece, target_, grant, 0, Soon());
  ASSERT_FALSE(revoked);
  EXPECT_EQ(revoked.error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
}

// Says of every address from `base` on that it is the device's.
class NpuOfAddresses : public MultiTransportTest {
 protected:
  class Runtime final : public NpuRuntime {
   public:
    explicit Runtime(const void* base) : base_(base) {}
    int32_t DeviceCount() const override { return 1; }
    Result<void> OpenDevice(int32_t) override { return {}; }
    Result<MemoryInfo> GetMemoryInfo(int32_t) override { return MemoryInfo{}; }
    Result<AscendUnifiedPointer> Allocate(int32_t, size_t) override { return Nothing(); }
    Result<void> Free(AscendUnifiedPointer) override { return Nothing(); }
    Result<void> CopyHostToDevice(AscendUnifiedPointer, size_t, const std::byte*, size_t) override { return Nothing(); }
    Result<void> CopyDeviceToHost(std::byte*, size_t, AscendUnifiedPointer, size_t) override { return Nothing(); }
    Result<void> CopyDeviceToDevice(AscendUnifiedPointer, size_t, AscendUnifiedPointer, size_t) override {
      return Nothing();
    }
    std::optional<int32_t> DeviceOf(const void* address) const override {
      if (address == base_) return 0;
      return std::nullopt;
    }

   private:
    static std::unexpected<Status> Nothing() { return Error(ErrorCode::NOT_IMPLEMENTED, "no device"); }
    const void* const base_;
  };
  void SetUp() override {
    Open({.npu = [this]() -> std::shared_ptr<NpuRuntime> { return runtime_; }});
  }
  std::shared_ptr<Runtime> runtime_ = std::make_shared<Runtime>(local_.data());
};

TEST_F(NpuOfAddresses, UnregisteredNpuMemoryIsRefused) {
  EXPECT_EQ(Refused(WriteAll()), ErrorCode::ADDRESS_NOT_REGISTERED);
  EXPECT_NE(text_.find("NPU 0"), std::string::npos) << text_;
}

TEST_F(NpuOfAddresses, RegisteredNpuMemoryIsHandedOnAsSuch) {
  ASSERT_TRUE(Register(near_, local_));
  EXPECT_EQ(Refused(WriteAll()), ErrorCode::NOT_SUPPORTED_TRANSPORT);
  EXPECT_NE(text_.find("NPU memory"), std::string::npos) << text_;
  std::optional<NpuRange> seen;
  near_.wire().reaches = [](auto&, auto&, auto&) { return true; };
  near_.wire().on_operation = [&](const TransferOperation& operation) -> Result<void> {
    seen = std::get<NpuRange>(operation.local);
    return {};
  };
  TransferRequest inside = WriteAll();
  inside.local = local_.data() + 64;
  inside.length = 128;
  const auto batch = Begin(inside);
  ASSERT_TRUE(batch) << batch.error().ToString();
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->at.device_id, 0);
  EXPECT_EQ(static_cast<uintptr_t>(seen->at.device_ptr), reinterpret_cast<uintptr_t>(inside.local));
  EXPECT_EQ(seen->size, 128u);
  EXPECT_EQ(seen->runtime, runtime_.get());
  EXPECT_EQ(near_->Describe()->regions.at(0).location, "npu:0");
}

TEST_F(MultiTransportTest, ClosingTheEngineEndsWhatIsUnderWay) {
  Open();
  near_.wire().hold = true;
  const auto id = Begin(WriteAll());
  const auto batch = *near_->batches().Find(*id);
  near_ = {};
  const TransferStatus status = batch->Summary();
  EXPECT_EQ(status.state, TransferState::kFailed);
  EXPECT_EQ(status.error.code(), ErrorCode::SHUTTING_DOWN);
}

TEST_F(BetweenAttemptsTest, ClosingTheEngineEndsTheRequest) {
  const auto id = Begin(WriteAll());
  const auto batch = *near_->batches().Find(*id);
  asked_.wait();
  std::thread closing([&] { near_ = {}; });
  EXPECT_EQ(batch->Wait(Soon()).error.code(), ErrorCode::SHUTTING_DOWN);
  Release();
  closing.join();
}

}  // namespace
}  // namespace mooncake
