// Sessions of two engines in this process, over tcp: what a transfer call returns, what batches say, how calls end.
#include "capi/engine_session.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>

namespace mooncake {
namespace {

using testing::HasSubstr;
using Pieces = std::vector<TransferPiece>;

constexpr size_t kMiB = 1 << 20;

TransferEngineOptions Options(Duration timeout = std::chrono::seconds(30)) {
  TransferEngineOptions options;
  options.local_name = "127.0.0.1";
  options.protocols = {"tcp"};
  options.force_tcp = true;
  options.default_timeout = timeout;
  return options;
}

std::shared_ptr<EngineSession> OpenSession(Duration timeout = std::chrono::seconds(30)) {
  auto session = EngineSession::Open(Options(timeout));
  EXPECT_TRUE(session) << session.error().ToString();
  return session ? *session : nullptr;
}

uint64_t AddressOf(const std::vector<char>& memory, size_t offset = 0) {
  return reinterpret_cast<uint64_t>(memory.data()) + offset;
}

Deadline Soon() {
  return Deadline::After(std::chrono::seconds(30));
}

// A port that takes connections and never says a word.
class SilentPeer {
 public:
  SilentPeer() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(fd_, generic, size), 0);
    EXPECT_EQ(listen(fd_, 16), 0);
    EXPECT_EQ(getsockname(fd_, generic, &size), 0);
    name_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  ~SilentPeer() { close(fd_); }
  const std::string& name() const { return name_; }

 private:
  int fd_;
  std::string name_;
};

class EngineSessionTest : public testing::Test {
 protected:
  void SetUp() override {
    target_ = OpenSession();
    source_ = OpenSession();
    ASSERT_TRUE(target_ && source_);
    ASSERT_TRUE(target_->Register(AddressOf(remote_), remote_.size()));
  }
  std::string target_name() const { return target_->engine().local_name(); }
  TransferCall Call(TransferOpcode opcode, Pieces pieces) const { return {target_name(), opcode, std::move(pieces)}; }
  TransferCall WholeWrite() const {
    return Call(TransferOpcode::kWrite, {{AddressOf(local_), AddressOf(remote_), local_.size()}});
  }
  TransferCall Unregistered() const {
    return Call(TransferOpcode::kWrite, {{AddressOf(local_), AddressOf(elsewhere_), 64}});
  }

  std::vector<char> local_ = std::vector<char>(4 * kMiB, 'l');
  std::vector<char> remote_ = std::vector<char>(4 * kMiB, 'r');
  std::vector<char> elsewhere_ = std::vector<char>(4096, 'e');
  std::shared_ptr<EngineSession> target_;
  std::shared_ptr<EngineSession> source_;
};

TEST_F(EngineSessionTest, TransfersMoveBytesBothWays) {
  ASSERT_TRUE(source_->Transfer(WholeWrite()));
  EXPECT_EQ(remote_, local_);
  std::fill(remote_.begin(), remote_.end(), 'x');
  ASSERT_TRUE(source_->Transfer(Call(TransferOpcode::kRead, {{AddressOf(local_), AddressOf(remote_, 5), 10},
                                                             {AddressOf(local_, 100), AddressOf(remote_), kMiB}})));
  EXPECT_EQ(std::string(local_.begin(), local_.begin() + 11), "xxxxxxxxxxl");
  EXPECT_EQ(local_[100], 'x');
  EXPECT_EQ(local_[100 + kMiB], 'l');
}

TEST_F(EngineSessionTest, EmptyCallsSucceedWhateverTheAddresses) {
  EXPECT_TRUE(source_->Transfer(Call(TransferOpcode::kWrite, {})));
  EXPECT_TRUE(source_->Transfer(Call(TransferOpcode::kRead, {{0, 0, 0}, {1, UINT64_MAX, 0}})));
  EXPECT_FALSE(source_->Transfer({"127.0.0.1:1", TransferOpcode::kRead, {}})) << "nobody is there";
}

TEST_F(EngineSessionTest, NotifyArrivesWithAndWithoutData) {
  TransferCall call = WholeWrite();
  call.notify = TransferNotify{"me", "with data"};
  ASSERT_TRUE(source_->Transfer(call));
  call = Call(TransferOpcode::kWrite, {{0, 0, 0}});
  call.notify = TransferNotify{"me", std::string("with\0out", 8)};
  ASSERT_TRUE(source_->Transfer(call));
  const auto notifies = target_->engine().GetNotifies();
  ASSERT_EQ(notifies.size(), 2U);
  EXPECT_EQ(notifies[0].message, "with data");
  EXPECT_EQ(notifies[1].message, std::string("with\0out", 8));
  EXPECT_EQ(remote_, local_);
}

TEST_F(EngineSessionTest, BadRangesFailAndMoveNothing) {
  const auto unregistered = source_->Transfer(Unregistered());
  ASSERT_FALSE(unregistered);
  EXPECT_EQ(unregistered.error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
  EXPECT_FALSE(source_->Transfer(Call(TransferOpcode::kRead, {{0, AddressOf(remote_), 8}})));
  EXPECT_FALSE(source_->Transfer(Call(TransferOpcode::kRead, {{UINT64_MAX - 4, AddressOf(remote_), 8}})));
  EXPECT_FALSE(
      source_->Transfer(Call(TransferOpcode::kWrite, {{AddressOf(local_), AddressOf(remote_, 4 * kMiB - 4), 8}})));
  EXPECT_EQ(elsewhere_, std::vector<char>(4096, 'e'));
  EXPECT_EQ(remote_, std::vector<char>(4 * kMiB, 'r'));
}

TEST_F(EngineSessionTest, BegunBatchIsDoneOnceAndThenUnknown) {
  const auto number = source_->Begin(WholeWrite());
  ASSERT_TRUE(number) << number.error().ToString();
  EXPECT_GT(*number, 0U);
  Result<bool> done = false;
  while (done && !*done) done = source_->Check(*number);
  ASSERT_TRUE(done) << done.error().ToString();
  EXPECT_EQ(remote_, local_);
  EXPECT_EQ(source_->Check(*number).error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_EQ(source_->Check(0).error().code(), ErrorCode::INVALID_PARAMS);
}

TEST_F(EngineSessionTest, WaitAllFreesEveryBatch) {
  std::vector<uint64_t> numbers;
  const size_t part = local_.size() / 8;
  for (size_t at = 0; at < 8 * part; at += part) {
    numbers.push_back(*source_->Begin(
        {target_name(), TransferOpcode::kWrite, {{AddressOf(local_) + at, AddressOf(remote_) + at, part}}}));
  }
  numbers.push_back(numbers[0]);
  ASSERT_TRUE(source_->WaitAll(numbers));
  EXPECT_EQ(remote_, local_);
  for (const uint64_t number : numbers) EXPECT_EQ(source_->Check(number).error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_TRUE(source_->WaitAll({}));
}

TEST_F(EngineSessionTest, OneUnknownBatchFailsAllAndFreesThem) {
  const uint64_t number = *source_->Begin(WholeWrite());
  const auto result = source_->WaitAll(std::vector<uint64_t>{number, 12345});
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message(), HasSubstr("12345"));
  EXPECT_EQ(source_->Check(number).error().code(), ErrorCode::INVALID_PARAMS);
}

TEST_F(EngineSessionTest, SilentPeerCostsOneTimeout) {
  const SilentPeer peer;
  const auto session = OpenSession(std::chrono::milliseconds(300));
  const auto result =
      session->Transfer({peer.name(), TransferOpcode::kWrite, {{AddressOf(local_), AddressOf(remote_), 64}}});
  EXPECT_FALSE(result);
  EXPECT_FALSE(session->Probe(peer.name()));
}

TEST_F(EngineSessionTest, ProbeTellsLivePeersFromDeadOnes) {
  EXPECT_TRUE(source_->Probe(target_name()));
  const std::string name = target_name();
  target_.reset();
  EXPECT_FALSE(source_->Probe(name));
}

TEST_F(EngineSessionTest, CloseRefusesLaterCallsAndWaitsForEarlierOnes) {
  std::atomic<bool> stop{false};
  std::vector<std::future<void>> callers;
  for (int i = 0; i < 4; ++i) {
    callers.push_back(std::async(std::launch::async, [&] {
      while (!stop) {
        const auto result = source_->Transfer(WholeWrite());
        if (!result) {
          EXPECT_THAT((std::array{ErrorCode::SHUTTING_DOWN, ErrorCode::TRANSFER_CANCELED}),
                      testing::Contains(result.error().code()));
          return;
        }
      }
    }));
  }
  EXPECT_TRUE(source_->Close(Soon()));
  for (auto& caller : callers) caller.get();
  EXPECT_EQ(source_->Transfer(WholeWrite()).error().code(), ErrorCode::SHUTTING_DOWN);
  EXPECT_EQ(source_->Begin(WholeWrite()).error().code(), ErrorCode::SHUTTING_DOWN);
}

TEST_F(EngineSessionTest, SharedEngineOutlivesTheSession) {
  const auto engine = target_->Share();
  const std::string name = target_name();
  target_.reset();
  EXPECT_TRUE(source_->Probe(name));
  EXPECT_TRUE(source_->Transfer({name, TransferOpcode::kWrite, {{AddressOf(local_), AddressOf(remote_), 64}}}));
  EXPECT_EQ(remote_[63], 'l');
}

TEST_F(EngineSessionTest, ManagedBuffersAreRegisteredMemory) {
  const auto buffer = target_->buffers().Allocate(64 << 10);
  ASSERT_TRUE(buffer) << buffer.error().ToString();
  ASSERT_TRUE(source_->Transfer(
      Call(TransferOpcode::kWrite, {{AddressOf(local_), reinterpret_cast<uint64_t>(*buffer), 64 << 10}})));
  EXPECT_EQ(static_cast<char*>(*buffer)[(64 << 10) - 1], 'l');
  EXPECT_TRUE(target_->buffers().Free(*buffer, 64 << 10));
}

TEST_F(EngineSessionTest, OnlyTheTargetsUsedLastStayOpen) {
  OpenTargets targets(source_->engine(), 1);
  const auto other = OpenSession();
  SegmentId first = kInvalidSegment;
  {
    const auto use = targets.Open(target_name(), Soon());
    ASSERT_TRUE(use);
    first = use->id();
    ASSERT_TRUE(targets.Open(other->engine().local_name(), Soon()));
    EXPECT_EQ(targets.size(), 1U);
    EXPECT_TRUE(source_->engine().GetSegment(first)) << "it is in use";
  }
  EXPECT_FALSE(source_->engine().GetSegment(first));
  EXPECT_FALSE(targets.Open("127.0.0.1:1", Soon()));
  EXPECT_EQ(targets.size(), 1U);
}

TEST_F(EngineSessionTest, FirstBufferIsTheLowestRegion) {
  EXPECT_EQ(source_->FirstBufferAddress(target_name()).value_or(0), AddressOf(remote_));
  ASSERT_TRUE(target_->Unregister(AddressOf(remote_)));
  EXPECT_EQ(source_->FirstBufferAddress(target_name()).error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
}

TEST_F(EngineSessionTest, RegistrationIsAllOrNothing) {
  const std::vector<uint64_t> addresses = {AddressOf(elsewhere_), AddressOf(remote_, 8)};
  const auto overlapping = source_->RegisterAll(addresses, std::vector<uint64_t>{64, 64});
  EXPECT_TRUE(overlapping);
  const auto partly = target_->RegisterAll(addresses, std::vector<uint64_t>{64, 64});
  ASSERT_FALSE(partly);
  EXPECT_EQ(partly.error().code(), ErrorCode::ADDRESS_OVERLAPPED);
  EXPECT_FALSE(source_->Transfer(Unregistered()));
  EXPECT_FALSE(target_->RegisterAll(addresses, std::vector<uint64_t>{64}));
}

TEST(EngineSessionOpenTest, FailedOpenCanBeRepeated) {
  const SilentPeer taken;
  TransferEngineOptions options = Options();
  options.local_name = taken.name();
  EXPECT_FALSE(EngineSession::Open(options));
  EXPECT_TRUE(EngineSession::Open(Options()));
}

}  // namespace
}  // namespace mooncake
