// Two real processes: bytes both ways, and what a killed, stopped or restarted one means to the other.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <sstream>
#include <thread>

#include "transfer_engine/test_fake_npu.h"
#include "transfer_engine/transport/shm/test_shm_pair.h"

namespace mooncake {
namespace {

constexpr auto kRead = TransferOpcode::kRead;
constexpr auto kWrite = TransferOpcode::kWrite;

// A running shm_peer; killed at the end.
class Child {
 public:
  explicit Child(size_t bytes) {
    int to[2];
    int from[2];
    EXPECT_EQ(pipe2(to, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(from, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
    std::string path = MC_SHM_PEER;
    std::string size = std::to_string(bytes);
    char* arguments[] = {path.data(), size.data(), nullptr};
    EXPECT_EQ(posix_spawn(&pid_, path.c_str(), &actions, nullptr, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]);
    close(from[1]);
    in_ = Fd(to[1]);
    out_ = Fd(from[0]);
    std::istringstream words(Line());  // it is ready
    auto segment = std::make_shared<SegmentDescriptor>();
    SegmentRegion region;
    words >> segment->shm_socket >> segment->host_id >> segment->generation.first >> segment->generation.second >>
        region.shm_id >> region.address >> region.length;
    EXPECT_TRUE(words) << "the child did not come up";
    segment->name = "child";
    segment->regions = {region};
    segment_ = segment;
  }
  ~Child() { Kill(); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  // Returns once no thread of it runs.
  void Stop() {
    kill(pid_, SIGSTOP);
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  void Continue() { kill(pid_, SIGCONT); }
  std::string Ask(const std::string& command) {
    const std::string line = command + "\n";
    EXPECT_EQ(write(in_.get(), line.data(), line.size()), static_cast<ssize_t>(line.size()));
    return Line();
  }
  std::string Target(const SegmentDescriptor& segment) {
    const SegmentRegion& region = segment.regions[0];
    return Ask(fmt::format("target {} {} {} {} {} {} {}", segment.shm_socket, segment.host_id, segment.generation.first,
                           segment.generation.second, region.shm_id, region.address, region.length));
  }
  const SegmentPtr& segment() const { return segment_; }
  uint64_t address() const { return segment_->regions[0].address; }

 private:
  std::string Line() {
    std::string line;
    for (char c = 0;;) {
      pollfd readable{out_.get(), POLLIN, 0};
      if (poll(&readable, 1, 120'000) != 1 || read(out_.get(), &c, 1) != 1) return line + " (no more)";
      if (c == '\n') return line;
      line += c;
    }
  }

  pid_t pid_ = -1;
  Fd in_;
  Fd out_;
  SegmentPtr segment_;
};

class ShmProcessTest : public ::testing::Test {
 protected:
  static constexpr size_t kSize = 8 * kMiB;
  ShmTransport::Limits limits_ = [] {
    ShmTransport::Limits limits;
    limits.copies.npu_piece_bytes = kMiB;
    limits.copies.max_runners = 1;
    limits.revoke_timeout = std::chrono::seconds(30);
    return limits;
  }();
  // Of this process, for the child to write to.
  void Offer(ShmNode& node, Child& child) {
    region_ = node.Register(*buffer_);
    EXPECT_EQ(child.Target(*node.Describe()), "OK");
  }

  std::unique_ptr<SharedBuffer> buffer_ = MakeShared(kSize);
  std::shared_ptr<Region> region_;
  Bytes local_ = Bytes(kSize);
};

TEST_F(ShmProcessTest, BytesGoBothWays) {
  Child child(kSize);
  ShmNode node(limits_);
  ASSERT_TRUE(Do(*node.transport, kRead, HostRange(local_), child.segment(), child.address()));
  EXPECT_TRUE(local_ == Pattern(kSize, 1));
  local_ = Pattern(kSize, 42);
  ASSERT_TRUE(Do(*node.transport, kWrite, HostRange(local_), child.segment(), child.address(), Caller::kGoesOn));
  EXPECT_EQ(child.Ask("check 42"), "OK");
  Offer(node, child);
  EXPECT_EQ(child.Ask("write 77"), "OK");
  EXPECT_TRUE(Copied(buffer_->memory()) == Pattern(kSize, 77));
}

TEST_F(ShmProcessTest, KilledPeerEndsEveryOperationAndLaterOnesSayThatTheSegmentIsStale) {
  Child child(kSize);
  ShmNode node(limits_);
  ASSERT_TRUE(Do(*node.transport, kRead, HostRange(local_), child.segment(), child.address()));
  Gate begun;
  begun.Open();
  std::vector<std::thread> threads;
  std::atomic<size_t> stale{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Bytes local(kSize / 4);
      const uint64_t address = child.address() + static_cast<uint64_t>(t) * local.size();  // its own part
      for (;;) {
        const auto result = Do(*node.transport, t % 2 == 0 ? kRead : kWrite, HostRange(local), child.segment(), address,
                               t < 2 ? Caller::kWaits : Caller::kGoesOn);
        begun.Pass();
        if (result || result.error().code() == ErrorCode::TRANSFER_FAIL) continue;
        if (result.error().code() == ErrorCode::STALE_SEGMENT) ++stale;
        return;
      }
    });
  }
  begun.AwaitCame(8);
  child.Kill();
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(stale, 4u);
}

TEST_F(ShmProcessTest, CopyWhosePeerDiesInTheMiddleFails) {
  FakeNpu npu;
  Gate gate;
  Ends ends;
  Child child(kSize);
  ShmNode node(limits_);
  ASSERT_TRUE(Do(*node.transport, kRead, HostRange(local_), child.segment(), child.address()));
  const NpuRange target = npu.Hold(local_);
  npu.before_copy = [&]() -> Result<void> { return gate.Pass(), Result<void>{}; };
  for (int i = 0; i < 2; ++i) {
    node.transport->Submit(One(MakeOperation(kRead, target, child.segment(), child.address(), ends)), Caller::kGoesOn);
    gate.AwaitCame(1);
  }
  child.Kill();
  EXPECT_EQ(ends.Take(1).front().error().code(), ErrorCode::TRANSFER_FAIL);  // the one that waited
  gate.Open();
  for (const auto& end : ends.Take(2)) {
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error().code(), ErrorCode::TRANSFER_FAIL);
  }
}

TEST_F(ShmProcessTest, StoppedPeerServesWhatIsMappedAndTheRestTimesOut) {
  Child child(kSize);
  ShmNode node(limits_);
  ASSERT_TRUE(Do(*node.transport, kRead, HostRange(local_), child.segment(), child.address()));
  ShmNode late(limits_);
  child.Stop();
  local_ = Pattern(kSize, 5);
  EXPECT_TRUE(Do(*node.transport, kWrite, HostRange(local_), child.segment(), child.address()));
  Ends ends;
  auto operation = MakeOperation(kRead, HostRange(local_), child.segment(), child.address(), ends);
  operation.deadline = Deadline::After(std::chrono::milliseconds(100));
  late.transport->Submit(One(std::move(operation)), Caller::kGoesOn);
  auto canceled = MakeOperation(kRead, HostRange(local_), child.segment(), child.address(), ends);
  canceled.tag = 7;
  late.transport->Submit(One(std::move(canceled)), Caller::kGoesOn);
  late.transport->Cancel(7);
  const auto results = ends.Take(2);
  ASSERT_FALSE(results[0]);
  EXPECT_EQ(results[0].error().code(), ErrorCode::TRANSFER_TIMEOUT);
  EXPECT_EQ(results[1].error().code(), ErrorCode::TRANSFER_CANCELED);
  child.Continue();
  EXPECT_EQ(child.Ask("check 5"), "OK");
  EXPECT_TRUE(Do(*late.transport, kRead, HostRange(local_), child.segment(), child.address()));
}

TEST_F(ShmProcessTest, UnregisteringWaitsForAPeerThatWritesAllTheTime) {
  Child child(4096);
  ShmNode node(limits_);
  Offer(node, child);
  EXPECT_EQ(child.Ask("loop"), "OK");
  node.context.Unregister(*node.transport, region_);
  EXPECT_EQ(node.transport->unacknowledged(), 0u);
  const Bytes after = Copied(buffer_->memory());
  EXPECT_EQ(child.Ask("write 9"), "ADDRESS_NOT_REGISTERED");  // by now a write of the loop would have landed
  EXPECT_TRUE(Copied(buffer_->memory()) == after);
}

TEST_F(ShmProcessTest, StoppedPeerIsDisconnectedAndWritesNoMoreWhenItGoesOn) {
  Child child(4096);
  limits_.revoke_timeout = std::chrono::milliseconds(100);
  ShmNode node(limits_);
  Offer(node, child);
  EXPECT_EQ(child.Ask("write 3"), "OK");
  child.Stop();
  node.context.Unregister(*node.transport, region_);
  EXPECT_EQ(node.transport->unacknowledged(), 1u);
  child.Continue();
  // It meets the withdrawal first; in between its write may still succeed or fail with the connection.
  while (child.Ask("write 4") != "ADDRESS_NOT_REGISTERED") {
  }
  const Bytes after = Copied(buffer_->memory());
  EXPECT_EQ(child.Ask("write 5"), "ADDRESS_NOT_REGISTERED");
  EXPECT_TRUE(Copied(buffer_->memory()) == after);
}

TEST_F(ShmProcessTest, KilledPeerHoldsUpNoUnregisteringAndNoFence) {
  Child child(4096);
  ShmNode node(limits_);
  Offer(node, child);
  EXPECT_EQ(child.Ask("loop"), "OK");
  child.Kill();
  node.transport->Fence(child.segment()->generation);
  node.context.Unregister(*node.transport, region_);
  EXPECT_EQ(node.transport->unacknowledged(), 0u);
}

TEST_F(ShmProcessTest, FenceReturnsWhenTheWriterHasStoppedAndItMayComeAgain) {
  Child child(4096);
  ShmNode node(limits_);
  Offer(node, child);
  EXPECT_EQ(child.Ask("write 1"), "OK");
  node.transport->Fence(child.segment()->generation);
  EXPECT_EQ(node.transport->unacknowledged(), 0u);
  EXPECT_EQ(child.Ask("write 6"), "OK");
  EXPECT_TRUE(Copied(buffer_->memory()) == Pattern(kSize, 6));
}

TEST_F(ShmProcessTest, RestartedPeerIsStaleUnderItsOldDescriptorAndServesUnderTheNew) {
  ShmNode node(limits_);
  SegmentPtr old;
  uint64_t address = 0;
  {
    Child first(kSize);
    old = first.segment();
    address = first.address();
  }
  Child second(kSize);
  const auto stale = Do(*node.transport, kRead, HostRange(local_), old, address);
  ASSERT_FALSE(stale);
  EXPECT_EQ(stale.error().code(), ErrorCode::STALE_SEGMENT);
  EXPECT_TRUE(Do(*node.transport, kRead, HostRange(local_), second.segment(), second.address()));
}

}  // namespace
}  // namespace mooncake
