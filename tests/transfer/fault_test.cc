// Peers that die, stand still, come back, all arrive at once or talk nonsense: what becomes of the transfers.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "transfer/ends.h"
#include "transfer/pattern.h"

namespace mooncake::transfer_test {
namespace {

using std::chrono::seconds;

class TransferFaults : public EndsTest {
 protected:
  static constexpr size_t kLength = 32 * kMiB;

  // Half of them reads into the first half of `near`, half writes from the second, several times over.
  std::vector<TransferRequest> Traffic(const NearMemory& near, const FarMemory& far) {
    std::vector<TransferRequest> requests;
    for (int round = 0; round < 4; ++round) {
      for (size_t at = 0; at < kLength; at += kMiB) {
        requests.push_back(Read(near, at, far, at, kMiB));
        requests.push_back(Write(near, kLength + at, far, kLength + at, kMiB));
      }
    }
    return requests;
  }

  // Returns when the first of them is through; the others are under way.
  BatchId BeginAndAwaitFirst(const std::vector<TransferRequest>& requests, Deadline deadline) {
    const std::vector<TransferRequest> first(requests.begin(), requests.begin() + 1);
    const BatchId begun = Begin(first, {.deadline = deadline});
    const BatchId others = Begin({requests.begin() + 1, requests.end()}, {.deadline = deadline});
    End(begun);
    return others;
  }

  // One request to the far end that cannot be there any more: fails, and long before its deadline.
  void ExpectUnreachable(const FarMemory& far) {
    NearMemory near = MakeNearMemory(4096);
    const TransferRequest write = Write(near, 0, far, 0, 4096);
    const auto status = Run({&write, 1}, {.deadline = Far()});
    if (status) {
      EXPECT_EQ(TransferStateName(status->state), "FAILED");
    }
  }

  FarMemory MakeFarMemoryAt(uint64_t address, size_t length) {
    EXPECT_OK(far_->Do(fmt::format("map {} {} 1", length, address)));
    EXPECT_OK(far_->Do(fmt::format("register {} {}", address, length)));
    return {*far_, address, length};
  }

  // Another process with the same name as the one that was killed.
  void RestartFarEnd() {
    const uint16_t port = far_->ports().control;
    far_->process().Kill();
    auto far = FarEnd::Start(wire(), port, OneFarDevice());
    ASSERT_OK(far);
    ASSERT_EQ((*far)->ports().name, far_->ports().name);
    far_ = std::move(*far);
  }
};

TEST_P(TransferFaults, KilledPeerSettlesEveryRequest) {
  const FarMemory far = MakeFarMemory(2 * kLength);
  NearMemory near = MakeNearMemory(2 * kLength);
  const std::vector<TransferRequest> requests = Traffic(near, far);
  const BatchId batch = BeginAndAwaitFirst(requests, Far());
  far_->process().Kill();
  for (const TransferStatus& end : EndEach(batch, requests.size() - 1)) {
    // Not by its deadline, which is an hour away.
    EXPECT_TRUE(end.state == TransferState::kCompleted || end.state == TransferState::kFailed)
        << TransferStateName(end.state) << " " << end.error.ToString();
  }
  ExpectUnreachable(far);
}

// Stopped first: over tcp the requests cannot have been served when the process dies.
TEST_P(TransferFaults, PeerKilledWhileItStandsStillSettlesEveryRequest) {
  const FarMemory far = MakeFarMemory(2 * kLength);
  NearMemory near = MakeNearMemory(2 * kLength);
  ExpectRoundTrip(far, 1);
  far_->process().Stop();
  const std::vector<TransferRequest> requests = Traffic(near, far);
  const BatchId batch = Begin(requests, {.deadline = Far()});
  if (!one_sided()) {
    const auto waiting = near_->Wait(batch, Deadline::After(seconds(0)));
    ASSERT_OK(waiting);
    EXPECT_EQ(TransferStateName(waiting->state), "WAITING");
    const auto freed = near_->FreeBatch(batch);
    ASSERT_FALSE(freed);
    EXPECT_EQ(freed.error().code(), ErrorCode::BATCH_BUSY);
  }
  far_->process().Kill();
  const TransferStatus end = End(batch);
  if (!one_sided()) {
    EXPECT_EQ(TransferStateName(end.state), "FAILED");
  }
  ExpectUnreachable(far);
}

// A report means that the memory is the application's again, whatever the peer does when it wakes up.
TEST_P(TransferFaults, StoppedPeerIsReportedAtTheDeadlineAndTouchesNothingAfterwards) {
  const FarMemory far = MakeFarMemory(2 * kLength);
  far.Fill(1);
  NearMemory near = MakeNearMemory(2 * kLength);
  const std::vector<TransferRequest> requests = Traffic(near, far);
  const BatchId batch = BeginAndAwaitFirst(requests, Deadline::After(seconds(wire() == "rdma" ? 20 : 3)));
  far_->process().Stop();
  size_t timed_out = 0;
  for (const TransferStatus& end : EndEach(batch, requests.size() - 1)) {
    EXPECT_TRUE(end.state == TransferState::kCompleted || end.state == TransferState::kTimeout)
        << TransferStateName(end.state) << " " << end.error.ToString();
    timed_out += end.state == TransferState::kTimeout ? 1 : 0;
  }
  Fill(near.bytes(), 2);
  if (!one_sided()) {
    // Surely one that nobody answers to.
    const auto late = Run({&requests[0], 1}, {.deadline = Deadline::After(seconds(1))});
    ASSERT_OK(late);
    EXPECT_EQ(TransferStateName(late->state), "TIMEOUT");
  }
  far_->process().Continue();
  EXPECT_OK(far_->Do("ping"));
  for (uint64_t seed = 3; seed < 6; ++seed) ExpectRoundTrip(far, seed);
  EXPECT_OK(Check(near.bytes(), 2)) << timed_out << " requests had timed out";
}

TEST_P(TransferFaults, CanceledRequestsEndAtOnceAndTouchNothingAfterwards) {
  const FarMemory far = MakeFarMemory(2 * kLength);
  far.Fill(1);
  NearMemory near = MakeNearMemory(2 * kLength);
  ExpectRoundTrip(far, 1);
  if (!one_sided()) far_->process().Stop();
  const std::vector<TransferRequest> requests = Traffic(near, far);
  const BatchId batch = Begin(requests, {.deadline = Far()});
  EXPECT_OK(near_->Cancel(batch));
  EXPECT_OK(near_->Cancel(batch));  // says it again
  size_t canceled = 0;
  for (const TransferStatus& end : EndEach(batch, requests.size())) {
    EXPECT_TRUE(end.state == TransferState::kCompleted || end.state == TransferState::kCanceled)
        << TransferStateName(end.state) << " " << end.error.ToString();
    canceled += end.state == TransferState::kCanceled ? 1 : 0;
  }
  if (!one_sided()) {
    EXPECT_GT(canceled, 0u);
  }
  Fill(near.bytes(), 2);
  if (!one_sided()) far_->process().Continue();
  for (uint64_t seed = 3; seed < 6; ++seed) ExpectRoundTrip(far, seed);
  EXPECT_OK(Check(near.bytes(), 2)) << canceled << " requests were canceled";
}

// The peer writes into memory of this process and stands still. Unregistering either ends its transfers or says that it
// could not; in the first case the peer must not write when it goes on.
TEST_P(TransferFaults, StoppedWriterDoesNotWriteAfterUnregistration) {
  near_timeout_ = seconds(3);
  ASSERT_NO_FATAL_FAILURE(OpenBoth(OneNearDevice(), OneFarDevice()));
  const FarMemory far = MakeFarMemory(kLength);
  far.Fill(1);
  NearMemory near(*near_, kLength);  // a target
  const std::string command =
      fmt::format("transfer write {} {} {} {} {}", near_->local_name(), far.address(),
                  reinterpret_cast<uint64_t>(near.at(0)), kLength, wire() == "rdma" ? 60000 : 5000);
  ASSERT_OK(far_->Do(command));  // everything is connected
  Fill(near.bytes(), 2);
  for (int i = 0; i < 20; ++i) ASSERT_OK(far_->process().Send(command));
  ASSERT_OK(far_->process().Answer(Soon()));
  far_->process().Stop();
  const auto unregistered = near_->UnregisterMemory(near.at(0));
  near.Forget();
  Fill(near.bytes(), 3);
  far_->process().Continue();
  for (int i = 1; i < 20; ++i) (void)far_->process().Answer(Soon());
  EXPECT_OK(far_->Do("ping"));
  if (unregistered) {
    EXPECT_OK(Check(near.bytes(), 3));
  } else {
    EXPECT_EQ(ErrorCodeName(unregistered.error().code()), "TRANSFER_TIMEOUT") << unregistered.error().message();
  }
}

TEST_P(TransferFaults, RestartedPeerIsReachedAtTheFirstAttempt) {
  ExpectRoundTrip(MakeFarMemory(kMiB), 1);
  for (uint64_t seed = 2; seed < 5; ++seed) {
    ASSERT_NO_FATAL_FAILURE(RestartFarEnd());
    ExpectRoundTrip(MakeFarMemory(kMiB + seed * 4096), seed);
  }
}

// Nothing but the generation tells that it is another process.
TEST_P(TransferFaults, RestartedPeerWithTheSameAddressesIsReachedAtTheFirstAttempt) {
  constexpr uint64_t kAddress = 0x7e9000000000;  // free also under the sanitizers
  ExpectRoundTrip(MakeFarMemoryAt(kAddress, kMiB), 1);
  for (uint64_t seed = 2; seed < 5; ++seed) {
    ASSERT_NO_FATAL_FAILURE(RestartFarEnd());
    ExpectRoundTrip(MakeFarMemoryAt(kAddress, kMiB), seed);
  }
}

// Of engines that open meanwhile: hundreds of them share this host's memory.
class SmallRings {
 public:
  SmallRings() {
    setenv("MC_NPU_BRIDGE_RING", "1MB", 1);
    setenv("MC_NPU_BRIDGE_SLOT", "256KB", 1);
  }
  ~SmallRings() {
    unsetenv("MC_NPU_BRIDGE_RING");
    unsetenv("MC_NPU_BRIDGE_SLOT");
  }
};

TEST_P(TransferFaults, ManyFirstContactsAtOnceAllSucceed) {
  constexpr size_t kContacts = 200;
  constexpr size_t kEach = 8192;
  const FarMemory far = MakeFarMemory(kContacts * kEach);
  const SmallRings small;
  std::vector<std::unique_ptr<TransferEngine>> engines;
  for (size_t i = 0; i < kContacts; ++i) {
    TransferEngineOptions options = NearOptions(GetParam(), OneNearDevice());
    options.io_threads = 1;
    options.worker_threads = 1;
    auto engine = TransferEngine::Open(std::move(options));
    ASSERT_OK(engine);
    engines.push_back(std::move(*engine));
  }
  std::barrier together(static_cast<ptrdiff_t>(kContacts));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kContacts; ++i) {
    threads.emplace_back([&, i] {
      TransferEngine& engine = *engines[i];
      NearMemory near = MakeNearMemory(engine, kEach);
      together.arrive_and_wait();
      const auto target = engine.OpenSegment(far_->ports().name, Soon());
      ASSERT_OK(target);
      Fill(near.bytes(), i, i * kEach);
      TransferRequest request{.opcode = TransferOpcode::kWrite,
                              .local = near.at(0),
                              .target = *target,
                              .target_address = far.address() + i * kEach,
                              .length = kEach};
      EXPECT_OK(engine.Transfer({&request, 1}, Soon()));
      Fill(near.bytes(), ~i);
      request.opcode = TransferOpcode::kRead;
      EXPECT_OK(engine.Transfer({&request, 1}, Soon()));
      EXPECT_OK(Check(near.bytes(), i, i * kEach));
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_FALSE(HasFailure());
  for (size_t i = 0; i < kContacts; ++i) far.Expect(i, i * kEach, kEach);
}

// Strangers at the doors of both engines, some of whom stay.
class Strangers {
 public:
  explicit Strangers(std::mt19937_64& random) : random_(random) {}
  ~Strangers() {
    for (const int fd : open_) close(fd);
  }

  void VisitTcp(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    Visit(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address), "port " + std::to_string(port));
  }

  void VisitAbstract(const std::string& name) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    ASSERT_LT(name.size() + 1, sizeof(address.sun_path));
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    for (const int type : {SOCK_SEQPACKET, SOCK_STREAM}) {
      const int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
      if (connect(fd, reinterpret_cast<const sockaddr*>(&address), length) == 0) return Talk(fd);
      close(fd);
    }
    FAIL() << "nobody listens at '" << name << "'";
  }

 private:
  void Visit(int fd, const sockaddr* address, socklen_t length, const std::string& where) {
    ASSERT_EQ(connect(fd, address, length), 0) << where << ": " << std::strerror(errno);
    Talk(fd);
  }

  void Talk(int fd) {
    std::string words;
    const uint64_t kind = random_() % 5;
    if (kind == 0) words = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    if (kind == 1) words = std::string(1 + random_() % 4096, '\0');
    if (kind == 2) words = std::string(1 + random_() % 4096, '\xff');
    if (kind == 3) {
      words.resize(1 + random_() % 65536);
      for (char& letter : words) letter = static_cast<char>(random_());
    }
    // The peer may hang up at any byte.
    (void)send(fd, words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (random_() % 2 == 0) {
      open_.push_back(fd);
    } else {
      close(fd);
    }
  }

  std::mt19937_64& random_;
  std::vector<int> open_;
};

TEST_P(TransferFaults, GarbageOnEveryPortDisturbsNoTransfer) {
  const FarMemory far = MakeFarMemory(4 * kMiB);
  std::atomic<bool> enough{false};
  std::atomic<size_t> transfers{0};
  std::thread traffic([&] {
    NearMemory near = MakeNearMemory(4 * kMiB);
    for (uint64_t seed = 1; !enough; seed += 2) {
      Fill(near.bytes(), seed);
      const TransferRequest write = Write(near, 0, far, 0, 4 * kMiB);
      EXPECT_COMPLETED(Run({&write, 1}));
      Fill(near.bytes(), seed + 1);
      const TransferRequest read = Read(near, 0, far, 0, 4 * kMiB);
      EXPECT_COMPLETED(Run({&read, 1}));
      EXPECT_OK(Check(near.bytes(), seed));
      ++transfers;
      transfers.notify_all();
    }
  });
  {
    Strangers strangers(random_);
    const SegmentDescriptor self = near_->Describe();
    const FarEnd::Ports& ports = far_->ports();
    for (int i = 0; i < 40; ++i) {
      for (const uint16_t port : {ports.control, ports.tcp_data, near_->control_port(), self.tcp_data.port}) {
        if (port != 0) strangers.VisitTcp(port);
      }
      for (const std::string& name : {ports.shm_socket, self.shm_socket}) {
        if (!name.empty() && name != "-") strangers.VisitAbstract(name);
      }
    }
    // While those who stay are still there.
    for (size_t seen = transfers, first = seen; seen < first + 3; seen = transfers) transfers.wait(seen);
    enough = true;
    traffic.join();
  }
  EXPECT_OK(far_->Do("ping"));
  // Both still open to others.
  auto other = TransferEngine::Open(NearOptions(GetParam(), OneNearDevice()));
  ASSERT_OK(other);
  EXPECT_OK((*other)->OpenSegment(far_->ports().name, Soon()));
  EXPECT_OK((*other)->OpenSegment(near_->local_name(), Soon()));
}

INSTANTIATE_TEST_SUITE_P(Wires, TransferFaults, ::testing::ValuesIn(WiresToPeers()),
                         [](const auto& wire) { return wire.param; });

}  // namespace
}  // namespace mooncake::transfer_test
