// Windows read and written over RPC, between good peers and bad ones.
#include <gtest/gtest.h>

#include <deque>
#include <thread>

#include "protocol/methods.h"
#include "protocol/peer_messages.h"
#include "rpc/rpc_test_util.h"
#include "transfer_engine/test_fake_npu.h"
#include "transfer_engine/transport/rpc_transport.h"

namespace mooncake {
namespace {

using protocol::WindowRangeRequest;
using rpc::RandomBytes;
using rpc::RawListener;
using rpc::RawPeer;
using rpc::Soon;

constexpr size_t kMiB = 1 << 20;
constexpr size_t kSlots = 2;

// One process: serves its windows, and starts transfers to others.
struct Node {
  Node() {
    auto listening = rpc::RpcServer::Listen(io, {.listen = {"127.0.0.1", 0}, .self = rpc::MakeIdentity("client")});
    EXPECT_TRUE(listening);
    server = std::move(*listening);
    ServeWindows(*server, windows, serving, {executor, stagers});
    server->OnSessionClosed([this](rpc::SessionId session) {
      windows.CloseSession(session);
      closed_sessions.Put(session);
    });
    // Tells the caller which session it is.
    server->Handle(1, [](rpc::ServerCall call) {
      std::string id = std::to_string(call.session());
      std::move(call).Reply(std::move(id));
    });
    server->Start();
  }
  ~Node() { server->Stop(); }
  std::shared_ptr<rpc::RpcClient> ConnectTo(uint16_t port) {
    return rpc::RpcClient::Create(io, {.peer = {"127.0.0.1", port}, .self = rpc::MakeIdentity("client")});
  }
  static rpc::SessionId SessionOf(rpc::RpcClient& connection) {
    const auto id = connection.Call(1, std::string(), Soon());
    EXPECT_TRUE(id);
    return id ? std::stoull(*id) : 0;
  }
  bool AllSlotsFree(StagingPool& pool) {
    std::vector<std::shared_ptr<StagingPool::Slot>> slots;
    for (size_t i = 0; i < kSlots; ++i) slots.push_back(*pool.Acquire(Soon()));  // replies may just be leaving
    return pool.TryAcquire() == nullptr;
  }

  StagingPool own{kTransferChunkBytes, kSlots};
  StagingPool serving{kTransferChunkBytes, kSlots};
  rpc::IoPool io{2};
  WindowTable windows;
  rpc::Mailbox<rpc::SessionId> closed_sessions;
  Executor executor{"test-executor", 2, 4096};
  Executor stagers{"test-stager", 2, 4096};
  std::unique_ptr<rpc::RpcServer> server;
  RpcTransport transport{own};
};

class TransferTest : public ::testing::Test {
 protected:
  // A window on `remote`'s memory for `connection`.
  RemoteWindow Open(const std::shared_ptr<rpc::RpcClient>& connection, Node& node, MemoryRange memory, bool writable) {
    const uint64_t size = SizeOf(memory);
    const auto id = node.windows.Open(Node::SessionOf(*connection), {std::move(memory), keep_alive_, writable});
    EXPECT_TRUE(id);
    return {connection, id.value_or(0), size};
  }

  // Memory that a node serves; it lives until no thread of a node does.
  std::vector<std::byte>& Serve(std::vector<std::byte> bytes) { return served_.emplace_back(std::move(bytes)); }

  std::deque<std::vector<std::byte>> served_;
  std::shared_ptr<int> keep_alive_ = std::make_shared<int>();
  FakeNpu npu_;
  Node near_;
  Node far_;
  std::shared_ptr<rpc::RpcClient> connection_ = near_.ConnectTo(far_.server->port());
};

struct Shape {
  bool near_is_npu;
  bool far_is_npu;
};

class TransferShapesTest : public TransferTest, public ::testing::WithParamInterface<Shape> {
 protected:
  MemoryRange Place(std::vector<std::byte>& bytes, bool on_npu) {
    if (on_npu) return npu_.Hold(bytes);
    return HostRange(bytes);
  }
  std::vector<std::byte> Content(const MemoryRange& range) {
    if (const auto* host = std::get_if<HostRange>(&range)) return {host->begin(), host->end()};
    return npu_.BytesOf(std::get<NpuRange>(range));
  }
};

TEST_P(TransferShapesTest, ReadAndWriteMoveExactlyTheRange) {
  for (const size_t size : {size_t{1}, 4 * kMiB - 1, 4 * kMiB, 4 * kMiB + 1, 33 * kMiB}) {
    SCOPED_TRACE(size);
    constexpr size_t kBefore = 7, kAfter = 5;
    auto& far_bytes = Serve(RandomBytes(kBefore + size + kAfter, 1));
    const auto far_original = far_bytes;
    auto near_bytes = RandomBytes(size, 2);
    const auto near_original = near_bytes;
    const MemoryRange far_memory = Place(far_bytes, GetParam().far_is_npu);
    const MemoryRange near_memory = Place(near_bytes, GetParam().near_is_npu);
    const RemoteWindow window = Open(connection_, far_, far_memory, /*writable=*/true);

    const auto written = near_.transport.Write(window, kBefore, near_memory, Soon());
    ASSERT_TRUE(written) << written.error().ToString();
    auto expected = far_original;
    std::copy(near_original.begin(), near_original.end(), expected.begin() + kBefore);
    EXPECT_EQ(Content(far_memory), expected);

    std::vector<std::byte> back(size);
    const MemoryRange target = Place(back, GetParam().near_is_npu);
    const auto read = near_.transport.Read(window, kBefore, target, Soon());
    ASSERT_TRUE(read) << read.error().ToString();
    EXPECT_EQ(Content(target), near_original);
  }
  EXPECT_TRUE(near_.AllSlotsFree(near_.own));
  EXPECT_TRUE(far_.AllSlotsFree(far_.serving));
}

INSTANTIATE_TEST_SUITE_P(Kinds, TransferShapesTest,
                         ::testing::Values(Shape{false, false}, Shape{false, true}, Shape{true, false},
                                           Shape{true, true}),
                         [](const auto& shape) {
                           return std::string(shape.param.near_is_npu ? "Npu" : "Host") + "With" +
                                  (shape.param.far_is_npu ? "Npu" : "Host");
                         });

TEST_F(TransferTest, EmptyTransferSucceedsWithoutACall) {
  const RemoteWindow window = Open(connection_, far_, HostRange{}, true);
  EXPECT_TRUE(near_.transport.Read(window, 0, HostRange{}, Soon()));
  EXPECT_TRUE(near_.transport.Write(window, 0, HostRange{}, Soon()));
}

TEST_F(TransferTest, MoreReadersThanSlotsInBothDirectionsAllFinish) {
  const auto content = RandomBytes(9 * kMiB, 3);
  const MemoryRange near_block = npu_.Hold(content);
  const MemoryRange far_block = npu_.Hold(content);
  const auto backward = far_.ConnectTo(near_.server->port());
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    for (const bool forward : {true, false}) {
      threads.emplace_back([&, forward] {
        Node& reader = forward ? near_ : far_;
        Node& owner = forward ? far_ : near_;
        const RemoteWindow window =
            Open(forward ? connection_ : backward, owner, forward ? far_block : near_block, false);
        const NpuRange target = npu_.Hold(std::vector<std::byte>(content.size()));
        const auto read = reader.transport.Read(window, 0, target, Soon());
        EXPECT_TRUE(read) << read.error().ToString();
        EXPECT_TRUE(npu_.BytesOf(target) == content);
      });
    }
  }
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(near_.AllSlotsFree(near_.own) && near_.AllSlotsFree(near_.serving));
  EXPECT_TRUE(far_.AllSlotsFree(far_.own) && far_.AllSlotsFree(far_.serving));
}

// Requests that wait for a slot must not stand before the work that frees one.
TEST_F(TransferTest, MoreWritersThanSlotsAndThreadsAllFinish) {
  const auto content = RandomBytes(5 * kMiB, 4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 12; ++t) {
    threads.emplace_back([&] {
      const auto connection = near_.ConnectTo(far_.server->port());
      const NpuRange block = npu_.Hold(std::vector<std::byte>(content.size()));
      const RemoteWindow window = Open(connection, far_, block, true);
      auto source = content;
      const auto written =
          near_.transport.Write(window, 0, HostRange(source), Deadline::After(std::chrono::seconds(20)));
      EXPECT_TRUE(written) << written.error().ToString();
      EXPECT_TRUE(npu_.BytesOf(block) == content);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(far_.AllSlotsFree(far_.serving));
}

TEST_F(TransferTest, FailedDeviceCopyIsTheTransfersError) {
  const auto content = RandomBytes(9 * kMiB, 5);
  const NpuRange block = npu_.Hold(content);
  auto& host = Serve(std::vector<std::byte>(content.size()));
  std::atomic<int> copies{0};
  npu_.before_copy = [&]() -> Result<void> {
    if (copies.fetch_add(1) != 1) return {};
    return std::unexpected(Status(ErrorCode::DATA_COPY_FAILED, "injected", 507899));
  };
  const auto read = near_.transport.Read(Open(connection_, far_, block, false), 0, HostRange(host), Soon());
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::DATA_COPY_FAILED);
  EXPECT_EQ(read.error().vendor_code(), 507899);
  copies.store(0);
  const auto written = near_.transport.Write(Open(connection_, far_, HostRange(host), true), 0, block, Soon());
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().vendor_code(), 507899);
  EXPECT_TRUE(near_.AllSlotsFree(near_.own));
  EXPECT_TRUE(far_.AllSlotsFree(far_.serving));
}

// --- what a peer may not do ---

TEST_F(TransferTest, WindowsOfOthersAndRangesOutsideAreRefused) {
  auto& memory = Serve(RandomBytes(1000, 6));
  const auto original = memory;
  const auto other = near_.ConnectTo(far_.server->port());
  const RemoteWindow window = Open(connection_, far_, HostRange(memory), false);
  std::vector<std::byte> local(1000);
  const RemoteWindow stolen{other, window.id, window.size};
  EXPECT_EQ(near_.transport.Read(stolen, 0, HostRange(local), Soon()).error().code(), ErrorCode::INVALID_READ);
  EXPECT_EQ(near_.transport.Read(window, 1, HostRange(local), Soon()).error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_EQ(near_.transport.Write(window, 0, HostRange(local), Soon()).error().code(), ErrorCode::INVALID_WRITE);
  EXPECT_EQ(memory, original);
  EXPECT_TRUE(near_.transport.Read(window, 0, HostRange(local), Soon()));
}

TEST_F(TransferTest, LyingRequestsAreRefusedAndTheConnectionLives) {
  auto& memory = Serve(std::vector<std::byte>(16 * kMiB));
  const NpuRange block = npu_.Hold(memory);
  const RemoteWindow host = Open(connection_, far_, HostRange(memory), true);
  const RemoteWindow npu = Open(connection_, far_, block, true);
  const auto code = [&](uint16_t method, WindowRangeRequest range, std::span<const std::byte> payload = {}) {
    rpc::CallArguments arguments;
    if (!payload.empty()) arguments.payload = {payload};
    const auto reply = connection_->Call(method, rpc::Encode(range), Soon(), std::move(arguments));
    return reply ? ErrorCode::OK : reply.error().code();
  };
  const auto bytes = RandomBytes(100, 7);
  for (const uint64_t id : {host.id, npu.id}) {
    EXPECT_EQ(code(protocol::kWindowWrite, {id, 0, 99}, bytes), ErrorCode::INVALID_PARAMS);
    EXPECT_EQ(code(protocol::kWindowWrite, {id, 0, 101}, bytes), ErrorCode::INVALID_PARAMS);
    EXPECT_EQ(code(protocol::kWindowWrite, {id, 0, 8 * kMiB}), ErrorCode::INVALID_PARAMS);
    EXPECT_EQ(code(protocol::kWindowWrite, {id, UINT64_MAX, 100}, bytes), ErrorCode::INVALID_PARAMS);
    EXPECT_EQ(code(protocol::kWindowRead, {id, 0, UINT64_MAX}), ErrorCode::INVALID_PARAMS);
  }
  EXPECT_EQ(code(protocol::kWindowRead, {npu.id, 0, 4 * kMiB + 1}), ErrorCode::INVALID_PARAMS);
  EXPECT_EQ(code(protocol::kWindowWrite, {12345, 0, 100}, bytes), ErrorCode::INVALID_READ);
  const auto garbage = connection_->Call(protocol::kWindowRead, std::string("garbage"), Soon());
  EXPECT_EQ(garbage.error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_EQ(code(protocol::kWindowWrite, {host.id, 5, 100}, bytes), ErrorCode::OK);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), memory.begin() + 5));
}

TEST_F(TransferTest, EndOfTheConnectionDropsTheWindowsMemory) {
  auto& memory = Serve(std::vector<std::byte>(100));
  Open(connection_, far_, HostRange(memory), false);
  Open(connection_, far_, HostRange(memory), true);
  EXPECT_EQ(keep_alive_.use_count(), 3);
  connection_->Close();
  far_.closed_sessions.Take();
  EXPECT_EQ(keep_alive_.use_count(), 1);
  EXPECT_EQ(far_.windows.open_count(), 0u);
}

// --- peers that answer wrong, late or not at all ---

class BadPeerTest : public ::testing::Test {
 protected:
  static constexpr std::byte kCanary{0x5a};

  void Connect() {
    connection_ = node_.ConnectTo(listener_.port());
    std::thread shaking([this] {
      peer_.emplace(listener_.Accept());
      EXPECT_TRUE(peer_->ShakeHandsAsServer());
    });
    EXPECT_TRUE(connection_->Connect(Soon()));
    shaking.join();
  }
  void SetUp() override { Connect(); }
  RemoteWindow Window() { return {connection_, 1, 64 * kMiB}; }
  static std::string Header(uint64_t id, uint64_t payload_bytes) {
    const rpc::internal::FrameHeader header{
        .kind = rpc::internal::FrameKind::kResponse, .id = id, .payload_bytes = payload_bytes};
    return {reinterpret_cast<const char*>(&header), sizeof(header)};
  }
  void FillWithCanary() { std::fill(local_.begin(), local_.end(), kCanary); }
  bool CanaryIntact() {
    return std::all_of(local_.begin(), local_.end(), [](std::byte byte) { return byte == kCanary; });
  }

  Node node_;
  FakeNpu npu_;
  RawListener listener_;
  std::shared_ptr<rpc::RpcClient> connection_;
  std::optional<RawPeer> peer_;
  std::vector<std::byte> local_ = std::vector<std::byte>(9 * kMiB);
};

TEST_F(BadPeerTest, SilentPeerCostsOneDeadlineAndTouchesNothingLater) {
  const auto read =
      node_.transport.Read(Window(), 0, HostRange(local_), Deadline::After(std::chrono::milliseconds(100)));
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::RPC_FAIL);
  FillWithCanary();
  std::vector<uint64_t> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(peer_->ReceiveFrame()->header.id);
  std::thread late([&] {
    for (const uint64_t id : ids) {
      EXPECT_TRUE(peer_->Send(Header(id, kMiB) + std::string(kMiB, '\xee')));
    }
    EXPECT_TRUE(peer_->Send(Header(peer_->ReceiveFrame()->header.id, 0)));
  });
  EXPECT_TRUE(connection_->Call(1, std::string(), Soon()));  // answered after all that came late
  late.join();
  EXPECT_TRUE(CanaryIntact());
}

TEST_F(BadPeerTest, PeerThatStopsInTheMiddleTouchesNothingAfterTheDeadline) {
  std::thread half([this] {
    const uint64_t id = peer_->ReceiveFrame()->header.id;
    EXPECT_TRUE(peer_->Send(Header(id, 4 * kMiB) + std::string(kMiB, '\xee')));
  });
  const auto read =
      node_.transport.Read(Window(), 0, HostRange(local_), Deadline::After(std::chrono::milliseconds(300)));
  ASSERT_FALSE(read);
  FillWithCanary();
  half.join();
  (void)peer_->Send(std::string(3 * kMiB, '\xee'));  // if anybody still listens
  EXPECT_TRUE(peer_->AwaitClose());
  EXPECT_TRUE(CanaryIntact());
}

TEST_F(BadPeerTest, DeathInTheMiddleOfADeviceReadFreesEverySlot) {
  const NpuRange target = npu_.Hold(local_);
  std::thread dying([this] {
    const uint64_t id = peer_->ReceiveFrame()->header.id;
    EXPECT_TRUE(peer_->Send(Header(id, 4 * kMiB) + std::string(kMiB, '\xee')));
    peer_->Close();
  });
  const auto read = node_.transport.Read(Window(), 0, target, Soon());
  dying.join();
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::RPC_FAIL);
  EXPECT_EQ(npu_.BytesOf(target), local_);
  EXPECT_TRUE(node_.AllSlotsFree(node_.own));
}

TEST_F(BadPeerTest, DeathInTheMiddleOfADeviceWriteFreesEverySlot) {
  const NpuRange source = npu_.Hold(local_);
  std::thread dying([this] {
    EXPECT_TRUE(peer_->Receive(100));
    peer_->Close();
  });
  EXPECT_FALSE(node_.transport.Write(Window(), 0, source, Soon()));
  dying.join();
  EXPECT_TRUE(node_.AllSlotsFree(node_.own));
}

TEST_F(BadPeerTest, PayloadOfAnotherSizeIsAnErrorAndStaysInsideTheTarget) {
  for (const uint64_t sent : {uint64_t{0}, uint64_t{99}, uint64_t{101}}) {
    SCOPED_TRACE(sent);
    FillWithCanary();
    std::thread lying([&] {
      const uint64_t id = peer_->ReceiveFrame()->header.id;
      EXPECT_TRUE(peer_->Send(Header(id, sent) + std::string(sent, '\xee')));
    });
    const auto read = node_.transport.Read(Window(), 0, HostRange(local_).subspan(50, 100), Soon());
    lying.join();
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code(), ErrorCode::TRANSFER_FAIL);
    EXPECT_THAT(read.error().message(), ::testing::HasSubstr("100 B"));
    EXPECT_TRUE(CanaryIntact());
  }
}

TEST_F(BadPeerTest, SlotsHeldElsewhereCostTheDeadlineNotForEver) {
  const NpuRange target = npu_.Hold(local_);
  const auto first = node_.own.TryAcquire();
  const auto second = node_.own.TryAcquire();
  const auto read = node_.transport.Read(Window(), 0, target, Deadline::After(std::chrono::milliseconds(50)));
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::TRANSFER_FAIL);
}

}  // namespace
}  // namespace mooncake
