// Peers that ask for NPU memory by hand: what they are lent, what they have to wait for, and what becomes of slots that
// they do not return.
#include "transfer_engine/transport/ascend_rdma/slot_lender.h"

#include <atomic>
#include <cstdlib>
#include <future>
#include <thread>

#include "device/acl/test_emulator_fixture.h"
#include "protocol/methods.h"
#include "rpc/rpc_client.h"
#include "transfer_engine/transport/ascend_rdma/ascend_rdma_transport.h"
#include "transfer_engine/transport/local/test_context.h"

namespace mooncake::bridge {
namespace {

using staged::LeaseAnswer;
using staged::LeaseReply;
using staged::LeaseRequest;

constexpr size_t kKiB = 1 << 10;
constexpr size_t kSlot = 64 * kKiB;
constexpr size_t kSlots = 16;
constexpr size_t kPerPeer = kSlots / 4;
constexpr size_t kPerDirection = kSlots - kSlots / 4;

Deadline Soon() {
  return Deadline::After(std::chrono::seconds(100));
}

// Stands for a host transport: the "peers" of these tests reach the slots by themselves.
class FakeWire final : public Transport {
 public:
  explicit FakeWire(const char* name) : name_(name) {}
  const char* name() const override { return name_; }
  bool Reaches(const MemoryRange& local, const SegmentDescriptor&, const SegmentRegion&) const override {
    return IsHost(local);
  }
  Result<void> RegisterRegion(Region& region) override {
    if (region.options.access != RegionAccess::kLocal && name() == std::string_view("rdma")) {
      region.published.rkeys = {{11}, {12}};
      region.published.mr_piece_bytes = region.length / 2;
    }
    return {};
  }
  void Submit(std::vector<TransferOperation>, Caller) override { ADD_FAILURE() << "nothing goes out by itself"; }
  void Cancel(BatchId) override {}
  void Fence(const Uuid& node) override {
    ++fences_begun;
    if (gate != nullptr) gate->Pass();
    std::lock_guard lock(mutex_);
    fenced_.push_back(node);
  }
  std::vector<Uuid> fenced() {
    std::lock_guard lock(mutex_);
    return fenced_;
  }
  Gate* gate = nullptr;
  std::atomic<size_t> fences_begun = 0;

 private:
  const char* const name_;
  std::mutex mutex_;
  std::vector<Uuid> fenced_;
};

// One that speaks the protocol by hand.
class HandPeer {
 public:
  HandPeer(rpc::IoPool& io, uint16_t port, const Uuid& target) : target_(target) {
    client_ = rpc::RpcClient::Create(io, {.peer = {"127.0.0.1", port}, .self = {.role = "engine", .node = node}});
  }
  using Answer = std::future<Result<std::string>>;

  LeaseRequest Opening(uint64_t id, const SegmentRegion& region, uint64_t offset, uint64_t length, bool write) const {
    LeaseRequest request = Next(id);
    request.opens = true;
    request.write = write;
    request.key = region.key;
    request.address = region.address + offset;
    request.length = length;
    request.timeout_us = 100'000'000;
    return request;
  }
  LeaseRequest Next(uint64_t id, std::vector<uint64_t> returned = {}) const {
    LeaseRequest request;
    request.target = target_;
    request.id = id;
    request.returned = std::move(returned);
    return request;
  }
  Answer Send(const LeaseRequest& request) {
    auto promise = std::make_shared<std::promise<Result<std::string>>>();
    client_->CallAsync(protocol::kLease, rpc::Encode(request), {}, Soon(),
                       [promise](Result<std::string> body) { promise->set_value(std::move(body)); });
    return promise->get_future();
  }
  static Result<LeaseReply> Get(Answer answer) {
    const std::string body = MC_TRY(answer.get());
    return rpc::Decode<LeaseReply>(body);
  }
  Result<LeaseReply> Ask(const LeaseRequest& request) { return Get(Send(request)); }
  void Die() { client_->Close(); }

  const Uuid node = Uuid::Random();

 private:
  const Uuid target_;
  std::shared_ptr<rpc::RpcClient> client_;
};

bool IsPiece(const Result<LeaseReply>& reply) {
  return reply && reply->answer == static_cast<uint8_t>(LeaseAnswer::kPiece);
}
bool IsWait(const Result<LeaseReply>& reply) {
  return reply && reply->answer == static_cast<uint8_t>(LeaseAnswer::kWait);
}
// kEnded: with which code; else a failure.
ErrorCode EndOf(const Result<LeaseReply>& reply) {
  if (!reply) return reply.error().code();
  EXPECT_EQ(reply->answer, static_cast<uint8_t>(LeaseAnswer::kEnded));
  return static_cast<ErrorCode>(reply->code);
}
ErrorCode Refusal(const Result<LeaseReply>& reply) {
  return reply ? ErrorCode::OK : reply.error().code();
}
std::byte* SlotOf(const LeaseReply& reply) {
  return reinterpret_cast<std::byte*>(reply.address);
}

class SlotLenderTest : public EmulatorTest {
 protected:
  static constexpr size_t kSize = 2048 * kKiB;

  void SetUp() override {
    EmulatorTest::SetUp();
    setenv("MC_NPU_BRIDGE_SLOT", "64KB", 1);
    setenv("MC_NPU_BRIDGE_RING", "512KB", 1);
    setenv("MC_NPU_BRIDGE_TARGET_RING", "1MB", 1);
    auto opened = AscendRdmaTransport::Open(context_.Context(), {&rdma_, &tcp_}, false);
    for (const char* const name : {"MC_NPU_BRIDGE_SLOT", "MC_NPU_BRIDGE_RING", "MC_NPU_BRIDGE_TARGET_RING"}) {
      unsetenv(name);
    }
    ASSERT_TRUE(opened) << opened.error().ToString();
    bridge_ = std::move(*opened);
    context_.server->Start();
    ASSERT_TRUE(runtime_->OpenDevice(0));
    block_ = runtime_->Allocate(0, kSize).value();
    content_.resize(kSize);
    for (size_t i = 0; i < kSize; ++i) content_[i] = static_cast<std::byte>(i * 7 + i / 4096);
    Poke(content_);
    region_ = context_.Register(*bridge_, {Address(), kSize}, {.location = "npu:0", .device_id = 0});
  }
  void TearDown() override {
    EmulatorProbe::Inject("");
    if (region_ != nullptr) context_.Unregister(*bridge_, region_);
    context_.server->Stop();
    bridge_.reset();
    EXPECT_TRUE(runtime_->Free(block_));
    EXPECT_EQ(context_.regions.size(), 0u);
    EmulatorTest::TearDown();
  }

  std::byte* Address() const { return reinterpret_cast<std::byte*>(block_.device_ptr); }
  void Poke(std::span<const std::byte> bytes) const { EmulatorProbe::Poke(Address(), bytes); }
  std::vector<std::byte> Content(size_t offset, size_t length) const {
    std::vector<std::byte> bytes(length);
    EmulatorProbe::Peek(Address() + offset, bytes);
    return bytes;
  }
  std::unique_ptr<HandPeer> Peer() {
    return std::make_unique<HandPeer>(context_.io, context_.server->port(), context_.self.node);
  }
  const SegmentRegion& published() const { return region_->published; }
  // Reads all of it, as a peer should; the content of each piece is compared.
  void ExpectReads(HandPeer& peer, uint64_t id, size_t offset, size_t length) {
    Result<LeaseReply> reply = peer.Ask(peer.Opening(id, published(), offset, length, false));
    size_t moved = 0;
    while (IsPiece(reply)) {
      EXPECT_EQ(std::memcmp(SlotOf(*reply), &content_[offset + reply->offset], reply->length), 0);
      moved += reply->length;
      reply = peer.Ask(peer.Next(id, {reply->piece}));
    }
    EXPECT_EQ(ErrorCodeName(EndOf(reply)), "OK") << (reply ? reply->message : reply.error().ToString());
    EXPECT_EQ(moved, length);
  }
  // Takes as many pieces of a read or write as it is given, without returning any.
  std::vector<LeaseReply> Hoard(HandPeer& peer, uint64_t id, bool write, size_t pieces) {
    std::vector<HandPeer::Answer> answers;
    answers.push_back(peer.Send(peer.Opening(id, published(), 0, kSize, write)));
    while (answers.size() < pieces) answers.push_back(peer.Send(peer.Next(id)));
    std::vector<LeaseReply> lent;
    for (auto& answer : answers) {
      const auto reply = HandPeer::Get(std::move(answer));
      EXPECT_TRUE(IsPiece(reply)) << (reply ? reply->message : reply.error().ToString());
      if (IsPiece(reply)) lent.push_back(*reply);
    }
    return lent;
  }
  // Until nothing is lent and nobody has a transfer: at once, or when the lane has given up.
  void AwaitNothingLent() const {
    const Deadline deadline = Soon();
    while (bridge_->lender()->lent() + bridge_->lender()->leases() > 0 && !deadline.Passed()) {
      std::this_thread::yield();
    }
    EXPECT_EQ(bridge_->lender()->lent(), 0u);
    EXPECT_EQ(bridge_->lender()->leases(), 0u);
  }

  FakeWire rdma_{"rdma"};
  FakeWire tcp_{"tcp"};
  TestContext context_;
  std::unique_ptr<AscendRdmaTransport> bridge_;
  AscendUnifiedPointer block_;
  std::vector<std::byte> content_;
  std::shared_ptr<Region> region_;
};

TEST_F(SlotLenderTest, ReadsAndWritesArriveWhole) {
  const auto peer = Peer();
  ExpectReads(*peer, 1, 0, kSize);
  ExpectReads(*peer, 2, 4097, 1);
  ExpectReads(*peer, 3, 12345, 300 * kKiB + 77);
  Result<LeaseReply> reply = peer->Ask(peer->Opening(4, published(), 999, 200'000, true));
  std::vector<std::byte> expected = content_;
  while (IsPiece(reply)) {
    std::memset(SlotOf(*reply), 0x5A, reply->length);
    std::fill_n(&expected[999 + reply->offset], reply->length, std::byte{0x5A});
    reply = peer->Ask(peer->Next(4, {reply->piece}));
  }
  EXPECT_EQ(EndOf(reply), ErrorCode::OK);
  EXPECT_EQ(Content(0, kSize), expected) << "all bytes are on the NPU when the end is told, and no others";
  AwaitNothingLent();
  EXPECT_TRUE(rdma_.fenced().empty());
}

TEST_F(SlotLenderTest, DescriptorTellsThatMemoryIsStagedAndNothingOfTheRing) {
  const auto peer = Peer();
  ExpectReads(*peer, 1, 0, kSize);
  const SegmentPtr self = context_.Describe(*bridge_);
  ASSERT_EQ(self->regions.size(), 1u);
  EXPECT_TRUE(self->regions[0].staged);
  const std::string text = EncodeSegment(*self);
  EXPECT_FALSE(text.contains("ascend_rdma"));
  const auto decoded = DecodeSegment(text);
  ASSERT_TRUE(decoded) << decoded.error().ToString();
  EXPECT_TRUE(decoded->regions[0].staged);
}

TEST_F(SlotLenderTest, WhatMayNotBeReachedIsRefused) {
  const auto peer = Peer();
  std::vector<std::byte> host(4096);
  const auto host_region = context_.Register(*bridge_, host);
  SegmentRegion forged = published();
  ++forged.key;
  EXPECT_EQ(Refusal(peer->Ask(peer->Opening(1, forged, 0, 4096, false))), ErrorCode::ADDRESS_NOT_REGISTERED);
  EXPECT_EQ(Refusal(peer->Ask(peer->Opening(2, published(), 1, kSize, true))), ErrorCode::ADDRESS_NOT_REGISTERED);
  EXPECT_EQ(Refusal(peer->Ask(peer->Opening(3, published(), 0, UINT64_MAX, true))), ErrorCode::ADDRESS_NOT_REGISTERED);
  EXPECT_EQ(Refusal(peer->Ask(peer->Opening(4, published(), 0, 0, false))), ErrorCode::INVALID_PARAMS);
  EXPECT_EQ(Refusal(peer->Ask(peer->Opening(5, host_region->published, 0, 4096, false))),
            ErrorCode::NOT_SUPPORTED_TRANSPORT);
  EXPECT_EQ(Refusal(peer->Ask(peer->Next(6))), ErrorCode::INVALID_PARAMS);
  LeaseRequest stranger = peer->Opening(7, published(), 0, 4096, false);
  stranger.target = Uuid::Random();
  EXPECT_EQ(Refusal(peer->Ask(stranger)), ErrorCode::STALE_SEGMENT);
  EXPECT_EQ(bridge_->lender()->leases(), 0u);
  // A grant opens its part, and writing only if it says so.
  const auto key = context_.regions.Grant(published().address + 4096, 4096, false, nullptr);
  ASSERT_TRUE(key) << key.error().ToString();
  const SegmentRegion granted{.address = published().address + 4096, .length = 4096, .key = *key};
  EXPECT_EQ(Refusal(peer->Ask(peer->Opening(8, granted, 0, 4096, true))), ErrorCode::ADDRESS_NOT_REGISTERED);
  EXPECT_EQ(Refusal(peer->Ask(peer->Opening(9, granted, 1, 4096, false))), ErrorCode::ADDRESS_NOT_REGISTERED);
  EXPECT_TRUE(IsPiece(peer->Ask(peer->Opening(10, granted, 0, 4096, false))));
  EXPECT_FALSE(context_.regions.Revoke(*key)) << "the lease uses it";
  context_.Unregister(*bridge_, host_region);
  peer->Die();
  AwaitNothingLent();
}

// A peer that keeps what it gets costs the others a part of the ring, for as long as it lives.
TEST_F(SlotLenderTest, ShareOfOnePeerIsLimited) {
  const auto greedy = Peer();
  const auto lent = Hoard(*greedy, 1, false, kPerPeer);
  auto more = greedy->Send(greedy->Next(1));
  const auto modest = Peer();
  for (uint64_t id = 1; id < 4; ++id) ExpectReads(*modest, id, 0, kSize);
  EXPECT_EQ(more.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  EXPECT_EQ(bridge_->lender()->lent(), kPerPeer);
  auto even_more = greedy->Send(greedy->Next(1, {lent[0].piece}));
  EXPECT_TRUE(IsPiece(HandPeer::Get(std::move(more)))) << "what it returns it may have again";
  greedy->Die();
  AwaitNothingLent();
}

// All slots of a direction are out: a request waits, and its deadline is the only thing that ends it.
TEST_F(SlotLenderTest, ExhaustedRingIsWaitedForUntilTheDeadline) {
  std::vector<std::unique_ptr<HandPeer>> holders;
  std::vector<LeaseReply> first;
  for (size_t i = 0; i < kPerDirection / kPerPeer; ++i) {
    holders.push_back(Peer());
    const auto lent = Hoard(*holders.back(), 1, false, kPerPeer);
    if (i == 0) first = lent;
  }
  const auto late = Peer();
  LeaseRequest hurried = late->Opening(1, published(), 0, kSlot, false);
  hurried.timeout_us = 50'000;
  EXPECT_EQ(EndOf(late->Ask(hurried)), ErrorCode::TRANSFER_TIMEOUT);
  auto patient = late->Send(late->Opening(2, published(), 0, kSlot, false));
  LeaseRequest gives_up = holders[0]->Next(1);
  gives_up.closes = true;
  EXPECT_EQ(EndOf(holders[0]->Ask(gives_up)), ErrorCode::TRANSFER_CANCELED);
  EXPECT_TRUE(IsPiece(HandPeer::Get(std::move(patient))));
  EXPECT_TRUE(rdma_.fenced().empty()) << "reads that were given back leave nothing behind";
  for (const auto& holder : holders) holder->Die();
  late->Die();
  AwaitNothingLent();
}

// A late write of a dead peer must not land in another's bytes: its slots come back when it cannot write any more.
TEST_F(SlotLenderTest, SlotsOfADeadPeerComeBackOnlyWhenItIsFenced) {
  Gate gate;
  rdma_.gate = &gate;
  std::vector<std::unique_ptr<HandPeer>> holders;
  std::vector<LeaseReply> lent;
  for (size_t i = 0; i < kPerDirection / kPerPeer; ++i) {
    holders.push_back(Peer());
    lent = Hoard(*holders.back(), 1, true, kPerPeer);
  }
  const auto late = Peer();
  auto waiting = late->Send(late->Opening(1, published(), 0, kSlot, true));
  const Uuid dead = holders.back()->node;
  holders.back()->Die();
  // Its connection is gone, its queue pairs are not yet.
  const Deadline deadline = Deadline::After(std::chrono::seconds(20));
  while (rdma_.fences_begun == 0 && !deadline.Passed()) std::this_thread::yield();
  EXPECT_EQ(rdma_.fences_begun, 1u);
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  for (const LeaseReply& piece : lent) {
    EXPECT_FALSE(context_.regions.FindByKey(piece.key, piece.address, piece.length, true)) << "over tcp it is over";
  }
  gate.Open();
  EXPECT_TRUE(IsPiece(HandPeer::Get(std::move(waiting))));
  for (const Uuid& fenced : rdma_.fenced()) EXPECT_EQ(fenced, dead);
  EXPECT_EQ(Content(0, kSize), content_) << "nothing of what was not returned reaches the NPU";
  for (const auto& holder : holders) holder->Die();
  late->Die();
  AwaitNothingLent();
}

TEST_F(SlotLenderTest, WriteThatMayStillBeUnderWayIsFencedBeforeItsSlotIsUsedAgain) {
  const auto peer = Peer();
  (void)Hoard(*peer, 1, true, 2);
  LeaseRequest gives_up = peer->Next(1);
  gives_up.closes = true;
  gives_up.unsure = true;
  EXPECT_EQ(EndOf(peer->Ask(gives_up)), ErrorCode::TRANSFER_CANCELED);
  EXPECT_EQ(rdma_.fenced(), std::vector<Uuid>(2, peer->node));
  ExpectReads(*peer, 2, 0, kSize);
}

// Whoever does not return a piece in time loses it.
TEST_F(SlotLenderTest, PieceThatIsNotReturnedIsTakenBack) {
  const auto peer = Peer();
  LeaseRequest opening = peer->Opening(1, published(), 0, kSlot, true);
  opening.timeout_us = 1'000'000;
  const auto piece = peer->Ask(opening);
  ASSERT_TRUE(IsPiece(piece));
  // Asked again it is told to return it first, and in the end why.
  Result<LeaseReply> reply = peer->Ask(peer->Next(1));
  EXPECT_TRUE(IsWait(reply));
  const Deadline deadline = Soon();
  while (rdma_.fenced().empty() && !deadline.Passed()) std::this_thread::yield();
  EXPECT_EQ(bridge_->lender()->lent(), 0u);
  EXPECT_EQ(EndOf(peer->Ask(peer->Next(1, {piece->piece}))), ErrorCode::TRANSFER_TIMEOUT);
  EXPECT_EQ(rdma_.fenced(), std::vector<Uuid>{peer->node});
  EXPECT_EQ(Content(0, kSize), content_);
  AwaitNothingLent();
}

TEST_F(SlotLenderTest, UnregisteringWaitsForTheLeasesAndEndsThem) {
  const auto peer = Peer();
  const auto lent = Hoard(*peer, 1, true, 2);
  auto held = peer->Send(peer->Next(1));
  std::memset(SlotOf(lent[0]), 1, lent[0].length);
  std::thread unregistering([&] { context_.Unregister(*bridge_, std::exchange(region_, nullptr)); });
  // What is out has to come back.
  Result<LeaseReply> reply = HandPeer::Get(std::move(held));
  for (int i = 0; i < 100 && IsPiece(reply); ++i) reply = peer->Ask(peer->Next(1));
  EXPECT_TRUE(IsWait(reply));
  std::vector<uint64_t> pieces;
  for (const LeaseReply& piece : lent) pieces.push_back(piece.piece);
  LeaseRequest closing = peer->Next(1, pieces);
  closing.closes = true;
  EXPECT_EQ(EndOf(peer->Ask(closing)), ErrorCode::ADDRESS_NOT_REGISTERED);
  unregistering.join();
  EXPECT_EQ(Content(0, kSize), content_);
}

TEST_F(SlotLenderTest, ErrorsOfTheDeviceReachThePeer) {
  const auto peer = Peer();
  ExpectReads(*peer, 1, 0, kSlot);
  EmulatorProbe::Inject("H2D@1=507001");
  Result<LeaseReply> reply = peer->Ask(peer->Opening(2, published(), 0, kSlot, true));
  while (IsPiece(reply)) reply = peer->Ask(peer->Next(2, {reply->piece}));
  EXPECT_EQ(EndOf(reply), ErrorCode::DATA_COPY_FAILED);
  EmulatorProbe::Inject("D2H@1=507001");
  EXPECT_EQ(EndOf(peer->Ask(peer->Opening(3, published(), 0, kSlot, false))), ErrorCode::DATA_COPY_FAILED);
  EmulatorProbe::Inject("");
  ExpectReads(*peer, 4, kSlot, kSlot);
  AwaitNothingLent();
}

TEST_F(SlotLenderTest, LostDeviceEndsItsTransfers) {
  const auto peer = Peer();
  const auto lent = Hoard(*peer, 1, false, 2);
  auto held = peer->Send(peer->Opening(2, published(), 0, kSlot, true));
  EmulatorProbe::Inject("D2H@1:call=507010");
  Result<LeaseReply> reply = peer->Ask(peer->Next(1, {lent[0].piece, lent[1].piece}));
  for (int i = 0; i < 100 && IsPiece(reply); ++i) reply = peer->Ask(peer->Next(1, {reply->piece}));
  EmulatorProbe::Inject("");
  EXPECT_EQ(EndOf(reply), ErrorCode::DEVICE_NOT_FOUND);
  reply = HandPeer::Get(std::move(held));  // another transfer's piece, lent before
  if (IsPiece(reply)) reply = peer->Ask(peer->Next(2, {reply->piece}));
  EXPECT_EQ(EndOf(reply), ErrorCode::DEVICE_NOT_FOUND);
  EXPECT_EQ(EndOf(peer->Ask(peer->Opening(3, published(), 0, kSlot, false))), ErrorCode::DEVICE_NOT_FOUND);
  AwaitNothingLent();
}

TEST_F(SlotLenderTest, BridgeClosesWhilePeersHoldSlots) {
  const auto peer = Peer();
  (void)Hoard(*peer, 1, true, 2);
  auto held = peer->Send(peer->Next(1));
  context_.server->Stop();
  context_.Unregister(*bridge_, std::exchange(region_, nullptr));
  bridge_.reset();
  const std::vector<Uuid> fenced = rdma_.fenced();  // the call that was held may have got one more
  EXPECT_GE(fenced.size(), 2u);
  for (const Uuid& node : fenced) EXPECT_EQ(node, peer->node);
}

}  // namespace
}  // namespace mooncake::bridge
