// The RDMA transport between two processes on RDMA devices, as the guest of tests/rdma_vm has them: rxe0 and rxe2 here,
// rxe1 and rxe3 there, joined by two wires that the tests may pull.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

#include "transfer_engine/transport/rdma/test_child.h"
#include "transfer_engine/transport/rdma/test_rdma_node.h"

namespace mooncake::rdma {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kMemory = 32 << 20;

// ---- the other process

// serve DEVICES MEMORY-BYTES MR-BYTES; prints its descriptor, then obeys.
int Serve(const std::vector<std::string>& devices, size_t bytes, uint64_t max_mr_bytes) {
  RdmaOptions options;
  options.max_mr_bytes = max_mr_bytes;
  TestNode node({.devices = devices, .rdma = options});
  const TestMemory memory(bytes);
  if (const auto opened = node.Open(); !opened) {
    std::cout << opened.error().ToString() << std::endl;
    return 1;
  }
  if (const auto registered = node.Register(memory); !registered) {
    std::cout << registered.error().ToString() << std::endl;
    return 1;
  }
  std::cout << EncodeSegment(*node.Describe()) << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string verb;
    size_t offset = 0;
    size_t length = 0;
    uint32_t seed = 0;
    words >> verb;
    if (verb == "fill" && words >> offset >> length >> seed) {
      memory.Fill(offset, length, seed);
      std::cout << "ok" << std::endl;
    } else if (verb == "wrong" && words >> offset >> length >> seed) {
      std::cout << memory.Wrong(offset, length, seed) << std::endl;
    } else if (verb == "withdraw") {
      std::cout << (node.Unregister(memory, Deadline::After(seconds(60))) ? "ok" : "failed") << std::endl;
    } else if (Uuid id; verb == "fence" && words >> id.first >> id.second) {
      node.transport().Fence(id);
      std::cout << "ok" << std::endl;
    } else {
      std::cout << "what?" << std::endl;
    }
  }
  return 0;
}

class OtherProcess {
 public:
  explicit OtherProcess(const std::string& devices, uint64_t max_mr_bytes = 1ull << 40)
      : child_({"serve", devices, std::to_string(kMemory), std::to_string(max_mr_bytes)}) {
    const std::string line = child_.ReadLine();
    auto segment = DecodeSegment(line);
    if (!segment) {
      ADD_FAILURE() << line << ": " << segment.error().ToString();
      std::abort();
    }
    segment_ = std::make_shared<SegmentDescriptor>(std::move(*segment));
  }
  const SegmentPtr& segment() const { return segment_; }
  uint64_t address() const { return segment_->regions.front().address; }
  void Fill(size_t offset, size_t bytes, uint32_t seed) {
    EXPECT_EQ(child_.Ask(fmt::format("fill {} {} {}", offset, bytes, seed)), "ok");
  }
  std::string Wrong(size_t offset, size_t bytes, uint32_t seed) {
    return child_.Ask(fmt::format("wrong {} {} {}", offset, bytes, seed));
  }
  void Withdraw() { EXPECT_EQ(child_.Ask("withdraw"), "ok"); }
  void Fence(const Uuid& id) { EXPECT_EQ(child_.Ask(fmt::format("fence {} {}", id.first, id.second)), "ok"); }
  void Signal(int signal) { child_.Signal(signal); }
  void Kill() {
    child_.Signal(SIGKILL);
    child_.Wait();
  }

 private:
  ChildProcess child_;
  SegmentPtr segment_;
};

// Keeps `depth` operations of `bytes` under way for some seconds; MB/s.
double Throughput(TestNode& node, const TestMemory& local, const OtherProcess& other, TransferOpcode opcode,
                  size_t bytes, size_t depth, Duration duration) {
  std::mutex mutex;
  std::condition_variable changed;
  size_t under_way = 0;
  size_t moved = 0;
  const TimePoint begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex);
  for (size_t i = 0; std::chrono::steady_clock::now() - begin < duration; ++i) {
    changed.wait(lock, [&] { return under_way < depth; });
    ++under_way;
    lock.unlock();
    const size_t offset = i * bytes % (kMemory - bytes + 1);
    std::vector<TransferOperation> operations;
    operations.push_back(node.Operation(opcode, local.Range(offset, bytes), other.segment(), other.address() + offset,
                                        seconds(100), [&](Result<void> result) {
                                          std::lock_guard inner(mutex);
                                          if (result) moved += bytes;
                                          --under_way;
                                          changed.notify_one();
                                        }));
    node.transport().Submit(std::move(operations), Caller::kGoesOn);
    lock.lock();
  }
  changed.wait(lock, [&] { return under_way == 0; });
  return static_cast<double>(moved) / std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() /
         1e6;
}

// bench read|write BYTES DEPTH MILLISECONDS; prints one number.
int Bench(const std::string& opcode, size_t bytes, size_t depth, Duration duration) {
  TestNode node({.devices = {"rxe0"}, .rdma = RdmaOptions::FromEnvironment().value()});
  const TestMemory local(kMemory);
  if (!node.Open() || !node.Register(local)) return 1;
  OtherProcess other("rxe1");
  const auto move = opcode == "read" ? TransferOpcode::kRead : TransferOpcode::kWrite;
  (void)Throughput(node, local, other, move, bytes, depth, milliseconds(200));
  std::cout << fmt::format("{:.1f}\n", Throughput(node, local, other, move, bytes, depth, duration));
  return 0;
}

// ---- tests

void Link(const std::string& name, bool up) {
  const std::string command = fmt::format("ip link set {} {}", name, up ? "up" : "down");
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
}

class RdmaDeviceTest : public testing::Test {
 protected:
  void Open(std::vector<std::string> devices, const std::string& theirs, RdmaOptions options = {},
            uint64_t their_mr_bytes = 1ull << 40) {
    node_ = std::make_unique<TestNode>(TestNodeOptions{.devices = std::move(devices), .rdma = options});
    const auto opened = node_->Open();
    ASSERT_TRUE(opened.has_value()) << opened.error().ToString();
    const auto registered = node_->Register(local_);
    ASSERT_TRUE(registered.has_value()) << registered.error().ToString();
    other_ = std::make_unique<OtherProcess>(theirs, their_mr_bytes);
  }
  void OpenOneRail(RdmaOptions options = {}) { Open({"rxe0"}, "rxe1", options); }
  void OpenTwoRails(RdmaOptions options = {}) { Open({"rxe0", "rxe2"}, "rxe1,rxe3", options); }
  void TearDown() override {
    if (HasFailure() && node_ != nullptr) std::cout << node_->transport().DescribeState();
    other_.reset();
    node_.reset();
  }

  Result<void> Move(TransferOpcode opcode, size_t offset, size_t bytes, Duration limit = seconds(100)) {
    return node_->Transfer(opcode, local_.Range(offset, bytes), other_->segment(), other_->address() + offset, limit);
  }
  void Start(TransferGroup& group, TransferOpcode opcode, size_t offset, size_t bytes, Duration limit = seconds(100)) {
    node_->Start(group, opcode, local_.Range(offset, bytes), other_->segment(), other_->address() + offset, limit);
  }
  void Connect() {
    const auto moved = Move(TransferOpcode::kWrite, 0, 1);
    ASSERT_TRUE(moved.has_value()) << moved.error().ToString();
  }
  void ExpectMovedBothWays(size_t offset, size_t bytes, uint32_t seed) {
    local_.Fill(offset, bytes, seed);
    const auto written = Move(TransferOpcode::kWrite, offset, bytes);
    ASSERT_TRUE(written.has_value()) << written.error().ToString();
    EXPECT_EQ(other_->Wrong(offset, bytes, seed), "0");
    other_->Fill(offset, bytes, seed + 1);
    const auto read = Move(TransferOpcode::kRead, offset, bytes);
    ASSERT_TRUE(read.has_value()) << read.error().ToString();
    EXPECT_EQ(local_.Wrong(offset, bytes, seed + 1), 0u);
  }

  const TestMemory local_{kMemory};
  std::unique_ptr<TestNode> node_;
  std::unique_ptr<OtherProcess> other_;
};

TEST_F(RdmaDeviceTest, MovesBytesOfAllSizes) {
  OpenOneRail();
  uint32_t seed = 1;
  for (const size_t bytes : {1ul, 2ul, 63ul, 4096ul, 65537ul, 1ul << 20, (4ul << 20) + 3, 16ul << 20}) {
    SCOPED_TRACE(bytes);
    ExpectMovedBothWays(5, bytes, seed += 2);
  }
}

TEST_F(RdmaDeviceTest, ManySlicesOfManyOperations) {
  RdmaOptions options;
  options.slice_bytes = 8192;
  options.queue_depth = 16;
  OpenTwoRails(options);
  TransferGroup group;
  local_.Fill(0, 16 << 20, 3);
  for (size_t i = 0; i < 256; ++i) Start(group, TransferOpcode::kWrite, i * 65536, 65536);
  ASSERT_TRUE(group.Wait(seconds(200)));
  for (const auto& result : group.Results()) EXPECT_TRUE(result.has_value()) << result.error().ToString();
  EXPECT_EQ(other_->Wrong(0, 16 << 20, 3), "0");
}

TEST_F(RdmaDeviceTest, PiecesOfMemoryOnBothSides) {
  RdmaOptions options;
  options.max_mr_bytes = 1 << 20;
  Open({"rxe0", "rxe2"}, "rxe1,rxe3", options, 3 << 19);
  EXPECT_EQ(other_->segment()->regions.front().rkeys.size(), (kMemory + (3 << 19) - 1) / (3 << 19));
  ExpectMovedBothWays(12345, 9 << 20, 1);
}

TEST_F(RdmaDeviceTest, TwoRailsShareTheBytes) {
  OpenTwoRails();
  Connect();
  const auto sent = [](int veth) {
    std::ifstream file(fmt::format("/sys/class/net/veth{}/statistics/tx_bytes", veth));
    uint64_t bytes = 0;
    file >> bytes;
    return bytes;
  };
  const uint64_t before[] = {sent(0), sent(2)};
  ASSERT_TRUE(Move(TransferOpcode::kWrite, 0, 32 << 20).has_value());
  EXPECT_GE(sent(0) - before[0], 8u << 20);
  EXPECT_GE(sent(2) - before[1], 8u << 20);
}

TEST_F(RdmaDeviceTest, MemoryThatIsNoLongerRegisteredIsRefused) {
  OpenOneRail();
  Connect();
  other_->Withdraw();
  const auto written = Move(TransferOpcode::kWrite, 0, 4096);
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().code(), ErrorCode::ADDRESS_NOT_REGISTERED) << written.error().ToString();
  const auto read = Move(TransferOpcode::kRead, 0, 1 << 20);
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code(), ErrorCode::ADDRESS_NOT_REGISTERED) << read.error().ToString();
}

TEST_F(RdmaDeviceTest, AKilledPeerEndsItsTransfersSoon) {
  std::vector<Duration> took;
  for (int round = 0; round < 3; ++round) {
    OpenTwoRails();
    Connect();
    TransferGroup group;
    // More than can be moved until the killed process has let go of its devices.
    for (size_t i = 0; i < 1024; ++i) {
      Start(group, i % 2 == 0 ? TransferOpcode::kWrite : TransferOpcode::kRead, (i % 32) << 20, 1 << 20);
    }
    ASSERT_TRUE(group.WaitFor(2));
    const TimePoint killed = std::chrono::steady_clock::now();
    other_->Kill();
    ASSERT_TRUE(group.Wait());
    took.push_back(std::max(group.ended_at() - killed, Duration::zero()));
    size_t failed = 0;
    for (const auto& result : group.Results()) {
      if (result) continue;
      ++failed;
      EXPECT_EQ(result.error().code(), ErrorCode::TRANSFER_FAIL) << result.error().ToString();
      EXPECT_THAT(result.error().message(), testing::HasSubstr(other_->segment()->name));
    }
    EXPECT_GT(failed, 0u);
    other_.reset();
    node_.reset();
  }
  std::ranges::sort(took);
  std::cout << "all settled after (ms):";
  for (const Duration& each : took) std::cout << ' ' << std::chrono::duration<double, std::milli>(each).count();
  std::cout << std::endl;
  EXPECT_LT(took[1], seconds(1));
}

TEST_F(RdmaDeviceTest, AStoppedPeerIsServedByItsDeviceAndOneThatIsNotConnectedTimesOut) {
  OpenOneRail();
  Connect();
  OtherProcess stranger("rxe1");
  local_.Fill(0, 1 << 20, 4);
  other_->Signal(SIGSTOP);
  stranger.Signal(SIGSTOP);
  EXPECT_TRUE(Move(TransferOpcode::kWrite, 0, 1 << 20).has_value());
  const auto read = node_->Transfer(TransferOpcode::kRead, local_.Range(0, 1 << 20), stranger.segment(),
                                    stranger.address(), seconds(2));
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code(), ErrorCode::TRANSFER_TIMEOUT);
  local_.Fill(0, 1 << 20, 6);
  other_->Signal(SIGCONT);
  stranger.Signal(SIGCONT);
  EXPECT_EQ(other_->Wrong(0, 1 << 20, 4), "0");
  EXPECT_TRUE(node_->Transfer(TransferOpcode::kWrite, local_.Range(0, 1 << 20), stranger.segment(), stranger.address())
                  .has_value());
  EXPECT_EQ(local_.Wrong(0, 1 << 20, 6), 0u);
}

TEST_F(RdmaDeviceTest, ATransferIsOverAtItsDeadlineThoughTheWireIsCut) {
  OpenOneRail();
  Connect();
  Link("veth1", false);
  local_.Fill(0, 4 << 20, 1);
  TransferGroup group;
  Start(group, TransferOpcode::kRead, 0, 1 << 20, seconds(2));
  Start(group, TransferOpcode::kWrite, 1 << 20, 1 << 20, seconds(2));
  ASSERT_TRUE(group.Wait());
  for (const auto& result : group.Results()) {
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code(), ErrorCode::TRANSFER_TIMEOUT) << result.error().ToString();
  }
  local_.Fill(0, 4 << 20, 2);
  Link("veth1", true);
  ExpectMovedBothWays(8 << 20, 1 << 20, 3);
  EXPECT_EQ(local_.Wrong(0, 4 << 20, 2), 0u);
}

TEST_F(RdmaDeviceTest, ATransferOutlivesALinkThatGoesAndComesBack) {
  OpenOneRail();
  Connect();
  local_.Fill(0, kMemory, 1);
  TransferGroup group;
  for (size_t i = 0; i < 32; ++i) Start(group, TransferOpcode::kWrite, i << 20, 1 << 20);
  ASSERT_TRUE(group.WaitFor(2));
  Link("veth1", false);
  std::this_thread::sleep_for(milliseconds(500));  // what is on the wire is lost
  Link("veth1", true);
  ASSERT_TRUE(group.Wait());
  for (const auto& result : group.Results()) EXPECT_TRUE(result.has_value()) << result.error().ToString();
  EXPECT_EQ(other_->Wrong(0, kMemory, 1), "0");
}

TEST_F(RdmaDeviceTest, OneOfTwoRailsMayBeLost) {
  OpenTwoRails();
  Connect();
  for (const bool remote_end : {false, true}) {
    const uint32_t seed = remote_end ? 7 : 8;
    local_.Fill(0, kMemory, seed);
    TransferGroup group;
    for (size_t i = 0; i < 32; ++i) Start(group, TransferOpcode::kWrite, i << 20, 1 << 20);
    ASSERT_TRUE(group.WaitFor(2));
    Link(remote_end ? "veth3" : "veth0", false);
    ASSERT_TRUE(group.Wait());
    for (const auto& result : group.Results()) EXPECT_TRUE(result.has_value()) << result.error().ToString();
    EXPECT_EQ(other_->Wrong(0, kMemory, seed), "0");
    Link(remote_end ? "veth3" : "veth0", true);
  }
  ExpectMovedBothWays(0, kMemory, 3);
}

TEST_F(RdmaDeviceTest, ACancelledTransferLetsGoOfItsMemory) {
  OpenOneRail();
  Connect();
  other_->Fill(0, kMemory, 1);
  TransferGroup group;
  for (size_t i = 0; i < 32; ++i) Start(group, TransferOpcode::kRead, i << 20, 1 << 20);
  ASSERT_TRUE(group.WaitFor(1));
  node_->transport().Cancel(node_->tag);
  ASSERT_TRUE(group.Wait());
  local_.Fill(0, kMemory, 2);
  size_t cancelled = 0;
  for (const auto& result : group.Results())
    cancelled += !result && result.error().code() == ErrorCode::TRANSFER_CANCELED;
  EXPECT_GT(cancelled, 0u);
  ASSERT_TRUE(Move(TransferOpcode::kWrite, 0, 1 << 20).has_value());
  EXPECT_EQ(local_.Wrong(0, kMemory, 2), 0u);
}

TEST_F(RdmaDeviceTest, AFencedProcessChangesNothingAndMayComeAgain) {
  RdmaOptions options;
  options.ack_timeout = 14;  // it learns of its fence by a time-out
  options.retry_count = 3;
  OpenOneRail(options);
  Connect();
  local_.Fill(0, kMemory, 1);
  TransferGroup group;
  // More than can be moved until the fence stands: what begins after it, before it is known, fails as well.
  for (size_t i = 0; i < 1024; ++i) Start(group, TransferOpcode::kWrite, (i % 32) << 20, 1 << 20);
  ASSERT_TRUE(group.WaitFor(1));
  other_->Fence(node_->generation());
  other_->Fill(0, kMemory, 2);
  ASSERT_TRUE(group.Wait());
  EXPECT_EQ(other_->Wrong(0, kMemory, 2), "0");
  ExpectMovedBothWays(0, 4 << 20, 5);
}

TEST_F(RdmaDeviceTest, TwoHundredHandshakesAtOnceAllSucceed) {
  constexpr size_t kSources = 20;
  constexpr size_t kTargets = 10;
  TestMemory memory(1 << 20);
  std::vector<std::unique_ptr<TestNode>> targets;
  std::vector<std::unique_ptr<TestNode>> sources;
  std::vector<SegmentPtr> segments;
  for (size_t i = 0; i < kTargets + kSources; ++i) {
    const bool target = i < kTargets;
    auto node = std::make_unique<TestNode>(TestNodeOptions{.devices = {target ? "rxe1" : "rxe0"}, .worker_queue = 16});
    ASSERT_TRUE(node->Open().has_value());
    ASSERT_TRUE(node->Register(memory).has_value());
    if (target) segments.push_back(node->Describe());
    (target ? targets : sources).push_back(std::move(node));
  }
  TransferGroup group;
  memory.Fill(0, 4096, 5);
  for (size_t s = 0; s < kSources; ++s) {
    for (size_t t = 0; t < kTargets; ++t) {
      const size_t to = (1 + s * kTargets + t) * 4096;
      sources[s]->Start(group, TransferOpcode::kWrite, memory.Range(0, 4096), segments[t],
                        memory.address() + to % memory.size(), seconds(200));
    }
  }
  ASSERT_TRUE(group.Wait(seconds(240)));
  for (const auto& result : group.Results()) EXPECT_TRUE(result.has_value()) << result.error().ToString();
  for (size_t i = 1; i <= kSources * kTargets; ++i) EXPECT_EQ(memory.Wrong(i * 4096, 4096, 5), 0u) << i;
}

}  // namespace
}  // namespace mooncake::rdma

int main(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == "serve") {
    std::vector<std::string> devices;
    std::istringstream names(argv[2]);
    for (std::string name; std::getline(names, name, ',');) devices.push_back(name);
    return mooncake::rdma::Serve(devices, std::stoull(argv[3]), std::stoull(argv[4]));
  }
  if (argc == 6 && std::string(argv[1]) == "bench") {
    return mooncake::rdma::Bench(argv[2], std::stoull(argv[3]), std::stoull(argv[4]),
                                 std::chrono::milliseconds(std::stoull(argv[5])));
  }
  testing::InitGoogleTest(&argc, argv);
  if (getenv("RXE_VM") == nullptr) {
    std::cout << "skipped: these tests need the devices and wires of the guest of tests/rdma_vm\n";
    return 0;
  }
  return RUN_ALL_TESTS();
}
