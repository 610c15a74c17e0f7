// Two processes on the NPUs of one node: bytes both ways, and what a killed, stopped or restarted one means to the
// other. The second is this program with the argument --peer: it owns a block, and does as it is told on stdin.
//   target JSON | write SEED | loop | check SEED | withdraw | key | imports
#include <gmock/gmock.h>

#include <atomic>
#include <iostream>
#include <optional>
#include <sstream>
#include <thread>

#include "transfer_engine/transport/ascend/test_npu_node.h"
#include "transfer_engine/transport/rdma/test_child.h"

namespace mooncake {
namespace {

constexpr auto kRead = TransferOpcode::kRead;
constexpr auto kWrite = TransferOpcode::kWrite;

std::string Told(const Result<void>& result) {
  return result ? "OK" : std::string(ErrorCodeName(result.error().code()));
}

SegmentPtr Parse(const std::string& json) {
  auto segment = DecodeSegment(json);
  EXPECT_TRUE(segment) << json << ": " << segment.error().ToString();
  return segment ? std::make_shared<const SegmentDescriptor>(*std::move(segment)) : nullptr;
}

AscendDirectTransport::Limits SmallPieces() {
  AscendDirectTransport::Limits limits;
  limits.copies.npu_piece_bytes = 256 * kKiB;
  limits.revoke_timeout = std::chrono::seconds(30);
  return limits;
}

// --- the other process ---

class Peer {
 public:
  Peer(int32_t device, size_t bytes)
      : device_(device),
        block_(*runtime_, device, bytes, 1),
        node_(runtime_, SmallPieces()),
        region_(node_.Register(block_)) {
    std::cout << EncodeSegment(*node_.Describe()) << std::endl;
  }
  ~Peer() {
    if (loop_.joinable()) loop_.join();
  }
  std::string Obey(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    if (command == "target") {
      target_ = Parse(line.substr(command.size() + 1));
      return "OK";
    }
    if (command == "withdraw") {
      node_.context.Unregister(*node_.transport, region_);
      return std::to_string(node_.transport->unacknowledged());
    }
    if (command == "key") {
      auto& ipc = **runtime_->Ipc();
      const auto shared = ipc.Export(block_.range.at, block_.range.size);
      return shared && ipc.CloseExport(shared->key) ? shared->key : "";
    }
    if (command == "imports") return std::to_string(EmulatorProbe::Calls("aclrtIpcMemImportByKey"));
    unsigned seed = 0;
    words >> seed;
    if (command == "write") return Told(Write(seed));
    if (command == "check") return block_.Holds(Pattern(block_.range.size, seed)) ? "OK" : "DIFFERENT";
    if (command != "loop") return "?";
    const std::string first = Told(Write(1));
    loop_ = std::thread([this] {
      for (unsigned round = 0; Write(round); ++round) {
      }
    });
    return first;
  }

 private:
  Result<void> Write(unsigned seed) {
    NpuBlock local(*runtime_, device_, target_->regions[0].length, seed);
    return Do(*node_.transport, kWrite, local.range, target_, target_->regions[0].address);
  }

  const std::shared_ptr<NpuRuntime> runtime_ = RuntimeOfNode();
  const int32_t device_;
  NpuBlock block_;
  NpuNode node_;
  const std::shared_ptr<Region> region_;
  SegmentPtr target_;
  std::thread loop_;
};

int RunPeer(int32_t device, size_t bytes) {
  Peer peer(device, bytes);
  for (std::string line; std::getline(std::cin, line);) std::cout << peer.Obey(line) << std::endl;
  return 0;
}

// --- the tests ---

// A peer on a device.
class Child {
 public:
  Child(int32_t device, size_t bytes)
      : process_({"--peer", std::to_string(device), std::to_string(bytes)}), segment_(Parse(process_.ReadLine())) {}
  std::string Ask(const std::string& command) { return process_.Ask(command); }
  std::string Target(const SegmentDescriptor& segment) { return Ask("target " + EncodeSegment(segment)); }
  void Kill() {
    process_.Signal(SIGKILL);
    process_.Wait();
  }
  void Stop() { process_.Stop(); }
  void Continue() { process_.Signal(SIGCONT); }
  const SegmentPtr& segment() const { return segment_; }
  uint64_t address() const { return segment_->regions.at(0).address; }

 private:
  rdma::ChildProcess process_;
  const SegmentPtr segment_;
};

class AscendProcessTest : public ::testing::Test {
 protected:
  static constexpr size_t kSize = 8 * kMiB;
  void SetUp() override {
    if (const auto ipc = runtime_->Ipc(); !ipc) GTEST_SKIP() << ipc.error().message();
    EXPECT_TRUE(runtime_->OpenDevice(0));
    node_ = std::make_unique<NpuNode>(runtime_, SmallPieces());
    local_ = std::make_unique<NpuBlock>(*runtime_, 0, kSize, 7);
    shared_ = std::make_unique<NpuBlock>(*runtime_, 0, kSize, 8);
  }
  void TearDown() override {
    node_.reset();
    if (local_ == nullptr) return;
    ExpectNothingLeft();
    local_.reset();
    shared_.reset();
    EXPECT_EQ(EmulatorProbe::LiveBlocks(), 0);
  }
  // Exports and imports of this process.
  void ExpectNothingLeft() const {
    EXPECT_EQ(calls_.closes(), calls_.exports() + calls_.imports() - failed_);
    EXPECT_EQ(calls_.violations(), violations_);
  }
  Result<void> Transfer(TransferOpcode opcode, const Child& child) {
    return Do(*node_->transport, opcode, local_->range, child.segment(), child.address());
  }
  // Memory of this process, for the child to write to.
  void Offer(Child& child) {
    region_ = node_->Register(*shared_);
    EXPECT_EQ(child.Target(*node_->Describe()), "OK");
  }

  const std::shared_ptr<NpuRuntime> runtime_ = RuntimeOfNode();
  const IpcCalls calls_;
  uint64_t failed_ = 0;      // imports that failed
  uint64_t violations_ = 0;  // rules of the runtime that the test broke by intent
  std::unique_ptr<NpuNode> node_;
  std::unique_ptr<NpuBlock> local_;
  std::unique_ptr<NpuBlock> shared_;
  std::shared_ptr<Region> region_;
};

TEST_F(AscendProcessTest, BytesGoBothWaysWithinAndBetweenDevices) {
  for (const int32_t device : {0, 1}) {
    Child child(device, kSize);
    ASSERT_TRUE(Transfer(kRead, child));
    EXPECT_TRUE(local_->Holds(Pattern(kSize, 1)));
    local_->Fill(42);
    ASSERT_TRUE(Transfer(kWrite, child));
    EXPECT_EQ(child.Ask("check 42"), "OK");
    Offer(child);
    EXPECT_EQ(child.Ask("write 77"), "OK");
    EXPECT_TRUE(shared_->Holds(Pattern(kSize, 77)));
    node_->context.Unregister(*node_->transport, region_);
  }
  EXPECT_EQ(calls_.imports(), 2u) << "each region once";
}

TEST_F(AscendProcessTest, MovesExactlyTheRange) {
  // Where the runtime takes no other alignment for asynchronous copies, as no release with IPC memory does.
  const auto profile = reinterpret_cast<decltype(&aclemu_profile)>(dlsym(RTLD_DEFAULT, "aclemu_profile"));
  ASSERT_NE(profile, nullptr);
  const size_t step = std::string_view(profile()) == "strictest" ? 64 : 1;
  Child child(1, kSize);
  Bytes expected = Pattern(kSize, 1);
  for (const size_t size : {size_t{1}, size_t{63}, size_t{4097}, kMiB + 1, 7 * kMiB}) {
    const size_t from = 3 * step;
    const size_t to = 4099 * step;
    ASSERT_TRUE(Do(*node_->transport, kWrite, local_->Part(from, size), child.segment(), child.address() + to));
    const Bytes source = Pattern(kSize, 7);
    std::copy_n(source.begin() + static_cast<ptrdiff_t>(from), size, expected.begin() + static_cast<ptrdiff_t>(to));
    NpuBlock whole(*runtime_, 0, kSize, 0);
    ASSERT_TRUE(Do(*node_->transport, kRead, whole.range, child.segment(), child.address()));
    ASSERT_TRUE(whole.Holds(expected)) << size;
  }
}

TEST_F(AscendProcessTest, ManyThreadsOfBothDevicesShareOneImport) {
  constexpr size_t kThreads = 8;
  constexpr size_t kPart = kSize / kThreads;
  Child child(1, kSize);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      NpuBlock local(*runtime_, static_cast<int32_t>(t % 2), kPart, 0);
      const uint64_t address = child.address() + t * kPart;
      for (unsigned round = 0; round < 10; ++round) {
        const Caller caller = (t + round) % 3 == 0 ? Caller::kGoesOn : Caller::kWaits;
        local.Fill(round * 10 + static_cast<unsigned>(t));
        EXPECT_TRUE(Do(*node_->transport, kWrite, local.range, child.segment(), address, caller));
        local.Fill(255);
        EXPECT_TRUE(Do(*node_->transport, kRead, local.range, child.segment(), address, caller));
        EXPECT_TRUE(local.Holds(Pattern(kPart, round * 10 + static_cast<unsigned>(t))));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(calls_.imports(), 1u);
}

TEST_F(AscendProcessTest, KeyAloneOpensNothing) {
  Child child(0, kSize);
  const std::string key = child.Ask("key");
  ASSERT_EQ(key.size(), 64u);
  auto& ipc = **runtime_->Ipc();
  const auto refused = ipc.Import(key, 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().vendor_code(), 207006) << refused.error().ToString();
  EXPECT_FALSE(ipc.Import("no key", 0));
  failed_ = 2;
  violations_ = 1;
  EXPECT_TRUE(Transfer(kRead, child)) << "its owner lets us in when it is asked";
}

TEST_F(AscendProcessTest, FailedImportEndsWhatWaitsForItAndTheNextTriesAgain) {
  Child child(0, kSize);
  EmulatorProbe::Inject("aclrtIpcMemImportByKey@1=507899");
  const auto failed = Transfer(kRead, child);
  EmulatorProbe::Inject("");
  failed_ = 1;
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::TRANSFER_FAIL);
  EXPECT_EQ(failed.error().vendor_code(), 507899);
  EXPECT_NE(failed.error().message().find("aclrtIpcMemImportByKey"), std::string::npos) << failed.error().ToString();
  EXPECT_TRUE(Transfer(kRead, child));
}

TEST_F(AscendProcessTest, UnknownRegionAndRangeAreNotRegistered) {
  Child child(0, kSize);
  SegmentDescriptor wrong = *child.segment();
  wrong.regions[0].npu_id += 1;
  SegmentDescriptor longer = *child.segment();
  longer.regions[0].length += kSize;
  for (const auto& segment : {wrong, longer}) {
    const uint64_t address = child.address() + segment.regions[0].length - kSize;
    const auto refused =
        Do(*node_->transport, kWrite, local_->range, std::make_shared<const SegmentDescriptor>(segment), address);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
  }
  EXPECT_EQ(child.Ask("check 1"), "OK");
}

TEST_F(AscendProcessTest, KilledPeerEndsEveryOperationAndLaterOnesSayThatTheSegmentIsStale) {
  Child child(1, kSize);
  ASSERT_TRUE(Transfer(kRead, child));
  Gate begun;
  begun.Open();
  std::vector<std::thread> threads;
  std::atomic<size_t> stale{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      NpuBlock local(*runtime_, 0, kSize / 4, 0);
      const uint64_t address = child.address() + static_cast<uint64_t>(t) * local.range.size;  // its own part
      for (;;) {
        const auto result = Do(*node_->transport, t % 2 == 0 ? kRead : kWrite, local.range, child.segment(), address,
                               t < 2 ? Caller::kWaits : Caller::kGoesOn);
        begun.Pass();
        if (result || result.error().code() == ErrorCode::TRANSFER_FAIL) continue;
        EXPECT_EQ(result.error().code(), ErrorCode::STALE_SEGMENT) << result.error().ToString();
        ++stale;
        return;
      }
    });
  }
  begun.AwaitCame(8);
  child.Kill();
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(stale, 4u);
  EXPECT_FALSE(runtime_->DeviceLost(0));
}

TEST_F(AscendProcessTest, StoppedPeerServesWhatIsImportedAndTheRestTimesOut) {
  Child child(0, kSize);
  ASSERT_TRUE(Transfer(kRead, child));
  child.Stop();
  local_->Fill(5);
  EXPECT_TRUE(Transfer(kWrite, child));
  Ends ends;
  SegmentDescriptor unknown = *child.segment();  // of this one it would have to be asked
  unknown.regions[0].npu_id += 1;
  const auto target = std::make_shared<const SegmentDescriptor>(unknown);
  auto operation = MakeOperation(kRead, local_->range, target, child.address(), ends);
  operation.deadline = Deadline::After(std::chrono::milliseconds(100));
  node_->transport->Submit(One(std::move(operation)), Caller::kGoesOn);
  auto canceled = MakeOperation(kRead, local_->range, target, child.address(), ends);
  canceled.tag = 7;
  node_->transport->Submit(One(std::move(canceled)), Caller::kGoesOn);
  node_->transport->Cancel(7);
  const auto results = ends.Take(2);
  ASSERT_FALSE(results[0]);
  EXPECT_EQ(results[0].error().code(), ErrorCode::TRANSFER_TIMEOUT);
  EXPECT_EQ(results[1].error().code(), ErrorCode::TRANSFER_CANCELED);
  EXPECT_TRUE(local_->Holds(Pattern(kSize, 5)));
  child.Continue();
  EXPECT_EQ(child.Ask("check 5"), "OK");
  EXPECT_TRUE(Transfer(kRead, child));
}

TEST_F(AscendProcessTest, UnregisteringWaitsForAPeerThatWritesAllTheTime) {
  Child child(1, 4096);
  Offer(child);
  EXPECT_EQ(child.Ask("loop"), "OK");
  node_->context.Unregister(*node_->transport, region_);
  EXPECT_EQ(node_->transport->unacknowledged(), 0u);
  const Bytes after = shared_->Read();
  EXPECT_EQ(child.Ask("write 9"), "ADDRESS_NOT_REGISTERED");  // by now a write of the loop would have landed
  EXPECT_TRUE(shared_->Holds(after));
}

TEST_F(AscendProcessTest, MemoryThatAStoppedPeerHoldsIsNotSharedAgainBeforeItLetsGo) {
  Child child(0, 4096);
  auto limits = SmallPieces();
  limits.revoke_timeout = std::chrono::milliseconds(100);
  node_ = std::make_unique<NpuNode>(runtime_, limits);
  Offer(child);
  EXPECT_EQ(child.Ask("write 3"), "OK");
  child.Stop();
  node_->context.Unregister(*node_->transport, region_);
  EXPECT_EQ(node_->transport->unacknowledged(), 1u);
  EXPECT_EQ(calls_.closes(), 0u);
  region_ = node_->Register(*shared_);
  EXPECT_EQ(region_->published.npu_id, 0u) << "the key is with the other process still";
  node_->context.Unregister(*node_->transport, region_);
  failed_ -= calls_.closes();  // refused
  violations_ = calls_.closes();
  child.Continue();
  // It meets the withdrawal first; in between its write may still succeed or fail with the connection.
  while (child.Ask("write 4") != "ADDRESS_NOT_REGISTERED") {
  }
  const Bytes after = shared_->Read();
  EXPECT_EQ(child.Ask("write 5"), "ADDRESS_NOT_REGISTERED");
  EXPECT_TRUE(shared_->Holds(after));
  Offer(child);
  EXPECT_NE(region_->published.npu_id, 0u);
  EXPECT_EQ(child.Ask("write 6"), "OK");
  EXPECT_TRUE(shared_->Holds(Pattern(kSize, 6)));
}

TEST_F(AscendProcessTest, KilledPeerHoldsUpNoUnregisteringAndNoFence) {
  Child child(0, 4096);
  Offer(child);
  EXPECT_EQ(child.Ask("loop"), "OK");
  child.Kill();
  node_->transport->Fence(child.segment()->generation);
  node_->context.Unregister(*node_->transport, region_);
  EXPECT_EQ(node_->transport->unacknowledged(), 0u);
}

TEST_F(AscendProcessTest, FencedPeerClosesItsImportsAndMayComeAgain) {
  Child child(0, 4096);
  Offer(child);
  EXPECT_EQ(child.Ask("write 1"), "OK");
  EXPECT_EQ(child.Ask("imports"), "1");
  node_->transport->Fence(child.segment()->generation);
  EXPECT_EQ(node_->transport->unacknowledged(), 0u);
  EXPECT_EQ(child.Ask("write 6"), "OK");
  EXPECT_EQ(child.Ask("imports"), "2");
  EXPECT_TRUE(shared_->Holds(Pattern(kSize, 6)));
}

TEST_F(AscendProcessTest, OwnerThatGoesWaitsUntilItsMemoryIsClosed) {
  Child child(0, 4096);
  Offer(child);
  EXPECT_EQ(child.Ask("loop"), "OK");
  node_.reset();
  const Bytes after = shared_->Read();
  EXPECT_NE(child.Ask("write 9"), "OK");
  EXPECT_TRUE(shared_->Holds(after));
}

TEST_F(AscendProcessTest, RestartedPeerIsStaleUnderItsOldDescriptorAndServesUnderTheNew) {
  std::optional<Child> first(std::in_place, 0, kSize);
  ASSERT_TRUE(Transfer(kRead, *first));
  const SegmentPtr old = first->segment();
  const uint64_t address = first->address();
  first->Kill();
  Child second(0, kSize);
  for (;;) {
    const auto stale = Do(*node_->transport, kRead, local_->range, old, address);
    if (!stale && stale.error().code() == ErrorCode::STALE_SEGMENT) break;
    // The end of the connection may not have been seen yet: then the copy fails with the runtime.
    ASSERT_TRUE(stale || stale.error().code() == ErrorCode::TRANSFER_FAIL) << stale.error().ToString();
  }
  ASSERT_TRUE(Transfer(kRead, second));
  EXPECT_TRUE(local_->Holds(Pattern(kSize, 1)));
}

}  // namespace
}  // namespace mooncake

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == "--peer")
    return mooncake::RunPeer(std::stoi(argv[2]), std::stoull(argv[3]));
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
