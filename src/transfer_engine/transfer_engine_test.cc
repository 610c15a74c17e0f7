// Engines with each other: opening and closing, registration, segments, notifications, restarts.
#include "transfer_engine/transfer_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <latch>
#include <thread>

#include "protocol/methods.h"
#include "rpc/rpc_test_util.h"
#include "transfer_engine/peer_links.h"
#include "transfer_engine/test_engines.h"

namespace mooncake {
namespace {

constexpr size_t kSize = 4096;

void* AddressOf(std::vector<std::byte>& memory) {
  return memory.data();
}

class TransferEngineTest : public testing::Test {
 protected:
  static Result<void> Unregister(FakeEngine& engine, void* address) {
    return engine->keeper().Unregister({&address, 1});
  }
  static Result<void> Send(FakeEngine& from, SegmentId to, std::span<std::byte> data, const void* address) {
    const TransferRequest request = Write(data, to, address);
    return from->Transfer({&request, 1}, Soon(), std::nullopt);
  }
  static FakeEngineSetup On(uint16_t port) {
    FakeEngineSetup setup;
    setup.options.control_port = port;
    return setup;
  }
  FakeNetwork network_;
};

TEST_F(TransferEngineTest, BytesGoBothWaysAndTheirNotificationFollows) {
  FakeEngine a = OpenFake(network_);
  FakeEngine b = OpenFake(network_);
  std::vector<std::byte> remote(kSize);
  ASSERT_TRUE(Register(b, remote));
  const auto segment = a->segments().Open(b->name(), Soon());
  ASSERT_TRUE(segment) << segment.error().ToString();
  std::vector<std::byte> data = Pattern(kSize);
  ASSERT_TRUE(Send(a, *segment, data, remote.data()));
  EXPECT_EQ(remote, data);
  std::vector<std::byte> back(kSize);
  const TransferRequest read = Read(back, *segment, remote.data());
  ASSERT_TRUE(a->Transfer({&read, 1}, Soon(), TransferNotify{.message = "done"}));
  EXPECT_EQ(back, data);
  const auto notifies = b->GetNotifies();
  ASSERT_EQ(notifies.size(), 1u);
  EXPECT_EQ(notifies[0].name, a->name()) << "the sender, unless the application says otherwise";
  EXPECT_EQ(notifies[0].message, "done");
  EXPECT_TRUE(b->GetNotifies().empty());
}

TEST_F(TransferEngineTest, FacadeServesTheWholeLifeOfATransfer) {
  TransferEngineOptions options;
  const auto a = TransferEngine::Open(options);
  const auto b = TransferEngine::Open(options);
  ASSERT_TRUE(a && b);
  EXPECT_EQ((*a)->local_name(), fmt::format("127.0.0.1:{}", (*a)->control_port()));
  EXPECT_GE((*a)->control_port(), options.min_control_port);
  EXPECT_LE((*a)->control_port(), options.max_control_port);
  EXPECT_NE((*a)->generation(), (*b)->generation());
  std::vector<std::byte> memory(kSize);
  ASSERT_TRUE((*b)->RegisterMemory(memory.data(), kSize));
  const auto segment = (*a)->OpenSegment((*b)->local_name());
  ASSERT_TRUE(segment);
  const auto described = (*a)->GetSegment(*segment, true);
  ASSERT_TRUE(described);
  EXPECT_EQ((*described)->generation, (*b)->generation());
  EXPECT_EQ((*described)->control.port, (*b)->control_port());
  ASSERT_EQ((*described)->regions.size(), 1u);
  EXPECT_EQ((*described)->regions[0].address, reinterpret_cast<uintptr_t>(memory.data()));
  EXPECT_TRUE((*a)->Probe((*b)->local_name(), Soon()));
  const auto batch = (*a)->AllocateBatch(1);
  const TransferRequest nothing{.target = *segment, .target_address = reinterpret_cast<uintptr_t>(memory.data())};
  ASSERT_TRUE((*a)->Submit(*batch, {&nothing, 1}));
  EXPECT_EQ((*a)->Wait(*batch, Soon())->state, TransferState::kCompleted);
  EXPECT_EQ((*a)->TaskStatus(*batch, 0)->state, TransferState::kCompleted);
  bool ended = false;
  EXPECT_TRUE((*a)->OnEnd(*batch, [&](const TransferStatus&) { ended = true; }));
  EXPECT_TRUE(ended);
  EXPECT_NE((*a)->MetricsText().find("mooncake_transfer_batches_open 1"), std::string::npos);
  EXPECT_TRUE((*a)->FreeBatch(*batch));
  EXPECT_FALSE((*a)->BatchStatus(*batch));
  EXPECT_TRUE((*b)->UnregisterMemory(memory.data()));
  EXPECT_TRUE((*b)->Describe().regions.empty());
}

// --- opening and closing ---

TEST_F(TransferEngineTest, TakenPortIsNamedAndTheEngineOpensOnceItIsFree) {
  FakeEngine first = OpenFake(network_);
  const uint16_t port = first->control_port();
  const auto refused = TryOpenFake(network_, On(port));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find(std::to_string(port)), std::string::npos) << refused.error().message();
  first = {};
  const auto again = TryOpenFake(network_, On(port));
  ASSERT_TRUE(again) << again.error().ToString();
  EXPECT_EQ((*again)->control_port(), port);
}

TEST_F(TransferEngineTest, PortInTheNameIsUsed) {
  uint16_t port = 0;
  {
    const FakeEngine engine = OpenFake(network_);
    port = engine->control_port();
  }
  FakeEngineSetup setup;
  setup.options.local_name = fmt::format("localhost:{}", port);
  const auto engine = TryOpenFake(network_, setup);
  ASSERT_TRUE(engine) << engine.error().ToString();
  EXPECT_EQ((*engine)->name(), setup.options.local_name);
  FakeEngine asker = OpenFake(network_);
  EXPECT_TRUE(asker->segments().Open((*engine)->name(), Soon()));
}

TEST_F(TransferEngineTest, RangeOfPortsThatAreAllTakenIsAnError) {
  const FakeEngine first = OpenFake(network_);
  FakeEngineSetup setup;
  setup.options.min_control_port = setup.options.max_control_port = first->control_port();
  const auto refused = TryOpenFake(network_, setup);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("is free"), std::string::npos) << refused.error().message();
}

TEST_F(TransferEngineTest, AnyAddressIsNeverAdvertised) {
  for (const char* any : {"0.0.0.0", "::"}) {
    TransferEngineOptions options;
    options.local_name = any;
    const auto address = ChooseControlAddress(options);
    ASSERT_TRUE(address) << address.error().ToString();
    EXPECT_EQ(address->bind, any);
    EXPECT_NE(address->advertised.host, "0.0.0.0");
    EXPECT_NE(address->advertised.host, "::");
    EXPECT_FALSE(address->advertised.host.empty());
  }
}

TEST_F(TransferEngineTest, BindAddressGoesBeforeTheName) {
  TransferEngineOptions options;
  options.local_name = "localhost:15555";
  options.bind_address = "127.0.0.1";
  auto address = ChooseControlAddress(options);
  ASSERT_TRUE(address);
  EXPECT_EQ(address->bind, "127.0.0.1");
  EXPECT_EQ(address->advertised, (Endpoint{"localhost", 15555}));
  options.local_name = "0.0.0.0";
  address = ChooseControlAddress(options);
  ASSERT_TRUE(address);
  EXPECT_EQ(address->advertised.host, "127.0.0.1") << "what is not bound cannot be advertised";
  options.bind_address = "no.such.host.invalid";
  EXPECT_EQ(ChooseControlAddress(options).error().code(), ErrorCode::INVALID_PARAMS);
}

TEST_F(TransferEngineTest, IPv6IsServed) {
  FakeEngineSetup setup;
  setup.options.local_name = "::1";
  const auto engine = TryOpenFake(network_, setup);
  if (!engine && engine.error().vendor_code() == EADDRNOTAVAIL) GTEST_SKIP() << "no IPv6 loopback here";
  ASSERT_TRUE(engine) << engine.error().ToString();
  EXPECT_EQ((*engine)->name(), fmt::format("[::1]:{}", (*engine)->control_port()));
  FakeEngine asker = OpenFake(network_);
  EXPECT_TRUE(asker->segments().Open((*engine)->name(), Soon()));
}

TEST_F(TransferEngineTest, OpensOnAServerOfSomebodyElse) {
  rpc::IoPool io(1);
  const rpc::Identity self{.role = protocol::kRoleClient, .node = Uuid::Random()};
  auto server = rpc::RpcServer::Listen(io, {.listen = {"127.0.0.1", 0}, .self = self});
  ASSERT_TRUE(server);
  auto engine = TransferEngine::OpenOn(
      {}, {.io = io, .server = **server, .self = self, .advertised = {"127.0.0.1", (*server)->port()}});
  ASSERT_TRUE(engine) << engine.error().ToString();
  (*server)->Start();
  EXPECT_EQ((*engine)->generation(), self.node);
  EXPECT_EQ((*engine)->control_port(), (*server)->port());
  FakeEngine asker = OpenFake(network_);
  const auto segment = asker->segments().Open((*engine)->local_name(), Soon());
  ASSERT_TRUE(segment) << segment.error().ToString();
  EXPECT_EQ((*asker->segments().Get(*segment))->generation, self.node);
  (*server)->Stop();
}

TEST_F(TransferEngineTest, OpensAndClosesManyTimes) {
  for (int i = 0; i < 20; ++i) {
    FakeEngine a = OpenFake(network_);
    FakeEngine b = OpenFake(network_);
    ASSERT_TRUE(a->segments().Open(b->name(), Soon()));
  }
}

// --- registration ---

TEST_F(TransferEngineTest, FailureOfOneTransportLeavesNothingRegistered) {
  FakeEngineSetup setup;
  setup.wires = {{.name = "first"}, {.name = "second"}};
  FakeEngine engine = OpenFake(network_, setup);
  std::vector<std::byte> memory(3 * kSize);
  const std::span all(memory);
  engine.wires[1]->refuse_region = [&](const Region& region) {
    return region.address == reinterpret_cast<uintptr_t>(memory.data() + 2 * kSize);
  };
  ASSERT_TRUE(Register(engine, all.first(kSize)));
  const std::vector<HostRange> ranges = {all.first(kSize), all.subspan(kSize, kSize), all.subspan(2 * kSize, kSize)};
  const auto refused = engine->keeper().Register(ranges, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::TRANSFER_FAIL);
  EXPECT_EQ(engine->regions().size(), 1u);
  EXPECT_EQ(engine.wires[0]->registered, 1);
  EXPECT_EQ(engine.wires[1]->registered, 1);
  EXPECT_EQ(engine->Describe()->regions.size(), 1u);
  EXPECT_TRUE(Unregister(engine, memory.data())) << "it was counted back to one";
  EXPECT_EQ(engine->regions().size(), 0u);
  engine.wires[1]->refuse_region = nullptr;
  EXPECT_TRUE(engine->keeper().Register(ranges, {}));
  EXPECT_EQ(engine.wires[1]->registered, 3);
}

TEST_F(TransferEngineTest, OverlapAndBadRangesAreRefused) {
  FakeEngine engine = OpenFake(network_);
  std::vector<std::byte> memory(kSize);
  ASSERT_TRUE(Register(engine, memory));
  EXPECT_EQ(Register(engine, std::span(memory).subspan(1)).error().code(), ErrorCode::ADDRESS_OVERLAPPED);
  EXPECT_EQ(Register(engine, std::span(memory).first(0)).error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_EQ(Register(engine, {}).error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_EQ(Unregister(engine, memory.data() + 1).error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
}

TEST_F(TransferEngineTest, IdenticalRangeIsCounted) {
  FakeEngine engine = OpenFake(network_);
  std::vector<std::byte> memory(kSize);
  ASSERT_TRUE(Register(engine, memory));
  ASSERT_TRUE(Register(engine, memory));
  EXPECT_EQ(engine.wire().registered, 1);
  EXPECT_TRUE(Unregister(engine, memory.data()));
  EXPECT_EQ(engine->regions().size(), 1u);
  EXPECT_TRUE(Unregister(engine, memory.data()));
  EXPECT_EQ(engine.wire().registered, 0);
  EXPECT_FALSE(Unregister(engine, memory.data()));
}

TEST_F(TransferEngineTest, UnregistrationWaitsForTransfersAndTellsWhenTheyDoNotEnd) {
  FakeEngineSetup setup;
  setup.options.default_timeout = std::chrono::milliseconds(20);
  FakeEngine a = OpenFake(network_, setup);
  FakeEngine b = OpenFake(network_);
  std::vector<std::byte> remote(kSize);
  std::vector<std::byte> local(kSize);
  ASSERT_TRUE(Register(b, remote));
  ASSERT_TRUE(Register(a, local));
  const SegmentId segment = *a->segments().Open(b->name(), Soon());
  a.wire().hold = true;
  const BatchId batch = *a->batches().Allocate(1);
  const TransferRequest request = Write(local, segment, remote.data());
  ASSERT_TRUE(a->Submit(batch, {&request, 1}, {}));
  const auto busy = Unregister(a, local.data());
  ASSERT_FALSE(busy);
  EXPECT_EQ(busy.error().code(), ErrorCode::TRANSFER_TIMEOUT);
  EXPECT_EQ(a.wire().registered, 0) << "the wire has let go all the same";
  auto held = a.wire().TakeHeld();
  FakeTransport::End(held.at(0), {});
}

TEST_F(TransferEngineTest, AllocatedMemoryIsRegisteredSharedAndZero) {
  FakeEngine engine = OpenFake(network_);
  const auto memory = engine->keeper().Allocate(kSize + 1, "*");
  ASSERT_TRUE(memory) << memory.error().ToString();
  const std::span bytes(static_cast<std::byte*>(*memory), kSize + 1);
  EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; }));
  bytes.back() = std::byte{1};
  {
    const auto use = engine->regions().Find(reinterpret_cast<uintptr_t>(*memory), bytes.size());
    ASSERT_TRUE(use);
    ASSERT_TRUE(use->region().options.shared);
    EXPECT_GE(use->region().options.shared->memfd, 0);
  }
  EXPECT_FALSE(engine->keeper().Free(bytes.data() + 1));
  EXPECT_TRUE(engine->keeper().Free(*memory));
  EXPECT_EQ(engine->keeper().Free(*memory).error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_EQ(engine->regions().size(), 0u);
  EXPECT_EQ(engine->keeper().Allocate(0, "*").error().code(), ErrorCode::INVALID_PARAMS);
}

TEST_F(TransferEngineTest, MemoryInUseIsNotUnmappedAndCanBeFreedLater) {
  FakeEngineSetup setup;
  setup.options.default_timeout = std::chrono::milliseconds(20);
  FakeEngine engine = OpenFake(network_, setup);
  auto* const memory = static_cast<std::byte*>(*engine->keeper().Allocate(kSize, "*"));
  auto use = engine->regions().Find(reinterpret_cast<uintptr_t>(memory), kSize);
  ASSERT_TRUE(use);
  EXPECT_EQ(engine->keeper().Free(memory).error().code(), ErrorCode::TRANSFER_TIMEOUT);
  memory[kSize - 1] = std::byte{7};  // is still there
  use->Release();
  EXPECT_TRUE(engine->keeper().Free(memory));
}

// --- peers ---

TEST_F(TransferEngineTest, NamesThatNobodyAnswersToAreNotFound) {
  FakeEngine engine = OpenFake(network_);
  const auto missing = engine->segments().Open("127.0.0.1:1", Soon());
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), ErrorCode::SEGMENT_NOT_FOUND);
  EXPECT_NE(missing.error().message().find("127.0.0.1:1"), std::string::npos);
  EXPECT_FALSE(engine->Probe("127.0.0.1:1", Soon()));
  for (const char* name : {"", "/", "127.0.0.1", "127.0.0.1:0", "a:b:c:d"}) {
    EXPECT_EQ(engine->segments().Open(name, Soon()).error().code(), ErrorCode::INVALID_PARAMS) << name;
  }
}

TEST_F(TransferEngineTest, PeerThatOpensAMomentAfterARefusalIsFound) {
  FakeEngine engine = OpenFake(network_);
  uint16_t port = 0;
  {
    const FakeEngine other = OpenFake(network_);
    port = other->control_port();
  }
  const std::string name = fmt::format("127.0.0.1:{}", port);
  EXPECT_FALSE(engine->segments().Open(name, Soon()));
  EXPECT_FALSE(engine->Probe(name, Soon()));
  const FakeEngine other = OpenFake(network_, On(port));
  EXPECT_TRUE(engine->Probe(name, Soon())) << "what a connection remembers is not the last word";
  EXPECT_TRUE(engine->segments().Open(name, Soon()));
}

TEST_F(TransferEngineTest, RestartOnTheSamePortWorksTheFirstTime) {
  FakeEngine a = OpenFake(network_);
  FakeEngine b = OpenFake(network_);
  const uint16_t port = b->control_port();
  std::vector<std::byte> remote(kSize);
  std::vector<std::byte> data = Pattern(kSize);
  ASSERT_TRUE(Register(b, remote));
  const SegmentId segment = *a->segments().Open(b->name(), Soon());
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(Send(a, segment, data, remote.data()));
    const Uuid before = b->generation();
    b = {};
    EXPECT_FALSE(Send(a, segment, data, remote.data())) << "nobody is there";
    b = OpenFake(network_, On(port));
    ASSERT_NE(b->generation(), before);
    ASSERT_TRUE(Register(b, remote));
    std::ranges::fill(remote, std::byte{0});
    const auto sent = Send(a, segment, data, remote.data());
    ASSERT_TRUE(sent) << sent.error().ToString();
    EXPECT_EQ(remote, data);
    ASSERT_TRUE(a->SendNotify(segment, {.message = "you again"}, Soon()));
    EXPECT_EQ(b->GetNotifies().size(), 1u);
  }
}

TEST_F(TransferEngineTest, NotificationReachesARestartedPeer) {
  FakeEngine a = OpenFake(network_);
  FakeEngine b = OpenFake(network_);
  const SegmentId segment = *a->segments().Open(b->name(), Soon());
  ASSERT_TRUE(a->SendNotify(segment, {.name = "x", .message = "1"}, Soon()));
  const uint16_t port = b->control_port();
  b = {};
  b = OpenFake(network_, On(port));
  const auto sent = a->SendNotify(segment, {.name = "x", .message = "2"}, Soon());
  ASSERT_TRUE(sent) << sent.error().ToString();
  const auto notifies = b->GetNotifies();
  ASSERT_EQ(notifies.size(), 1u);
  EXPECT_EQ(notifies[0].message, "2");
}

TEST_F(TransferEngineTest, NotificationsKeepTheirOrderAndTheirLimit) {
  FakeEngineSetup setup;
  setup.options.max_notifies = 3;
  FakeEngine a = OpenFake(network_);
  FakeEngine b = OpenFake(network_, setup);
  const SegmentId segment = *a->segments().Open(b->name(), Soon());
  for (int round = 0; round < 2; ++round) {
    for (const char* text : {"1", "2", "3"}) ASSERT_TRUE(a->SendNotify(segment, {.message = text}, Soon()));
    EXPECT_EQ(a->SendNotify(segment, {.message = "4"}, Soon()).error().code(), ErrorCode::TOO_MANY_REQUESTS);
    const auto notifies = b->GetNotifies();
    ASSERT_EQ(notifies.size(), 3u);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(notifies[i].message, std::to_string(i + 1));
  }
  const std::string huge((1 << 20) + 1, 'x');
  EXPECT_EQ(a->SendNotify(segment, {.message = huge}, Soon()).error().code(), ErrorCode::INVALID_PARAMS);
  const std::string binary("\0\xff\x80", 3);
  ASSERT_TRUE(a->SendNotify(segment, {.message = binary}, Soon()));
  EXPECT_EQ(b->GetNotifies().at(0).message, binary);
}

TEST_F(TransferEngineTest, WatchEndsWithTheProcess) {
  FakeEngine engine = OpenFake(network_);
  rpc::IoPool io(1);
  const auto link = rpc::RpcClient::Create(io, {.peer = {"127.0.0.1", engine->control_port()}});
  std::promise<ErrorCode> ended;
  link->CallAsync(protocol::kEngineWatch, {}, {}, Soon(),
                  [&](Result<std::string> reply) { ended.set_value(reply ? ErrorCode::OK : reply.error().code()); });
  ASSERT_TRUE(link->Call(protocol::kEngineProbe, std::string(), Soon())) << "the watch is there";
  auto future = ended.get_future();
  EXPECT_EQ(future.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  engine = {};
  EXPECT_EQ(future.get(), ErrorCode::RPC_FAIL);
}

TEST_F(TransferEngineTest, WatchesOfOneConnectionAreBounded) {
  FakeEngine engine = OpenFake(network_);
  rpc::IoPool io(1);
  const auto link = rpc::RpcClient::Create(io, {.peer = {"127.0.0.1", engine->control_port()}});
  std::latch ended(17);
  std::atomic<int> refused{0};
  std::promise<void> first_refusal;
  for (int i = 0; i < 17; ++i) {
    link->CallAsync(protocol::kEngineWatch, {}, {}, Soon(), [&](Result<std::string> reply) {
      if (reply.error().code() == ErrorCode::TOO_MANY_REQUESTS && ++refused == 1) first_refusal.set_value();
      ended.count_down();
    });
  }
  first_refusal.get_future().wait();
  link->Close();
  ended.wait();
  EXPECT_EQ(refused, 1);
}

// --- with a metadata server ---

class PublishedEngineTest : public TransferEngineTest {
 protected:
  FakeEngineSetup Named(const std::string& name) {
    FakeEngineSetup setup;
    setup.options.local_name = name;
    setup.options.bind_address = "127.0.0.1";
    setup.metadata = metadata_;
    return setup;
  }
  size_t Entries() {
    std::lock_guard lock(metadata_->mutex);
    return metadata_->entries.size();
  }
  std::shared_ptr<FakeMetadata::Shared> metadata_ = std::make_shared<FakeMetadata::Shared>();
};

TEST_F(PublishedEngineTest, PeersFindEachOtherByName) {
  FakeEngine a = OpenFake(network_, Named("prefill-0"));
  FakeEngine b = OpenFake(network_, Named("decode/0"));
  EXPECT_EQ(b->name(), "decode/0");
  EXPECT_NE(b->control_port(), 0);
  std::vector<std::byte> remote(kSize);
  std::vector<std::byte> data = Pattern(kSize);
  const SegmentId segment = *a->segments().Open("decode/0", Soon());
  ASSERT_TRUE(Register(b, remote));
  const auto sent = Send(a, segment, data, remote.data());
  ASSERT_TRUE(sent) << sent.error().ToString();
  EXPECT_EQ(remote, data);
  EXPECT_TRUE(a->Probe("decode/0", Soon()));
  ASSERT_TRUE(a->SendNotify(segment, {.message = "hello"}, Soon()));
  EXPECT_EQ(b->GetNotifies().at(0).name, "prefill-0");
  EXPECT_EQ(a->segments().Open("decode/1", Soon()).error().code(), ErrorCode::SEGMENT_NOT_FOUND);
}

TEST_F(PublishedEngineTest, RestartUnderTheSameNameOnAnotherPortWorksTheFirstTime) {
  FakeEngine a = OpenFake(network_, Named("a"));
  FakeEngine b = OpenFake(network_, Named("b"));
  std::vector<std::byte> remote(kSize);
  std::vector<std::byte> data = Pattern(kSize);
  ASSERT_TRUE(Register(b, remote));
  const SegmentId segment = *a->segments().Open("b", Soon());
  ASSERT_TRUE(Send(a, segment, data, remote.data()));
  b = {};
  b = OpenFake(network_, Named("b"));
  ASSERT_TRUE(Register(b, remote));
  const auto sent = Send(a, segment, data, remote.data());
  EXPECT_TRUE(sent) << sent.error().ToString();
}

TEST_F(PublishedEngineTest, EntriesGoWithTheEngineButNotThoseOfItsSuccessor) {
  {
    const FakeEngine engine = OpenFake(network_, Named("a"));
    EXPECT_EQ(Entries(), 2u);
  }
  EXPECT_EQ(Entries(), 0u);
  FakeEngine old = OpenFake(network_, Named("a"));
  const FakeEngine successor = OpenFake(network_, Named("a"));
  old = {};
  EXPECT_EQ(Entries(), 2u);
  FakeEngine asker = OpenFake(network_, Named("b"));
  const SegmentId segment = *asker->segments().Open("a", Soon());
  EXPECT_EQ((*asker->segments().Get(segment))->generation, successor->generation());
}

TEST_F(PublishedEngineTest, FailedOpenLeavesNothingAndCanBeRepeated) {
  metadata_->before = [](std::string_view call, const std::string& key) -> Result<void> {
    if (call != "put" || key != SegmentKey("a")) return {};
    return Error(ErrorCode::METADATA_ERROR, "the server is full");
  };
  for (int i = 0; i < 3; ++i) {
    const auto refused = TryOpenFake(network_, Named("a"));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message(), "the server is full");
    EXPECT_EQ(Entries(), 0u);
  }
  metadata_->before = nullptr;
  EXPECT_TRUE(TryOpenFake(network_, Named("a")));
}

TEST_F(PublishedEngineTest, BatchIsPublishedOnceAndUnpublishedWhenTheServerRefuses) {
  FakeEngine engine = OpenFake(network_, Named("a"));
  std::vector<std::byte> memory(4 * kSize);
  std::vector<HostRange> ranges;
  for (size_t i = 0; i < 4; ++i) ranges.push_back(std::span(memory).subspan(i * kSize, kSize));
  int puts = metadata_->puts;
  ASSERT_TRUE(engine->keeper().Register(ranges, {}));
  EXPECT_EQ(metadata_->puts, puts + 1);
  std::vector<void*> addresses;
  for (const HostRange& range : ranges) addresses.push_back(range.data());
  ASSERT_TRUE(engine->keeper().Unregister(addresses));
  EXPECT_EQ(metadata_->puts, puts + 2);
  puts = metadata_->puts;
  ASSERT_TRUE(Register(engine, memory, {.access = RegionAccess::kLocal}));
  EXPECT_EQ(metadata_->puts, puts) << "nobody else is to know of it";
  ASSERT_TRUE(Unregister(engine, AddressOf(memory)));

  metadata_->before = [](std::string_view call, const std::string&) -> Result<void> {
    if (call != "put") return {};
    return Error(ErrorCode::METADATA_ERROR, "the server is full");
  };
  EXPECT_EQ(engine->keeper().Register(ranges, {}).error().code(), ErrorCode::METADATA_ERROR);
  EXPECT_EQ(engine->regions().size(), 0u);
  EXPECT_EQ(engine.wire().registered, 0);
  metadata_->before = nullptr;
  EXPECT_TRUE(engine->keeper().Register(ranges, {}));
}

TEST_F(PublishedEngineTest, RegistrationsOfManyThreadsAreAllPublished) {
  constexpr size_t kThreads = 8;
  FakeEngine engine = OpenFake(network_, Named("a"));
  std::vector<std::byte> memory(kThreads * kSize);
  std::latch writing(1);
  std::latch go(1);
  std::atomic<bool> first{true};
  metadata_->before = [&](std::string_view call, const std::string&) -> Result<void> {
    if (call == "put" && first.exchange(false)) {
      writing.count_down();
      go.wait();
    }
    return {};
  };
  const int puts = metadata_->puts;
  std::vector<std::thread> threads;
  threads.emplace_back([&] { EXPECT_TRUE(Register(engine, std::span(memory).first(kSize))); });
  writing.wait();
  std::latch started(kThreads - 1);
  for (size_t i = 1; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      started.count_down();
      EXPECT_TRUE(Register(engine, std::span(memory).subspan(i * kSize, kSize)));
    });
  }
  started.wait();
  while (engine->regions().Published().size() < kThreads) std::this_thread::yield();
  go.count_down();
  for (auto& thread : threads) thread.join();
  EXPECT_LE(metadata_->puts, puts + static_cast<int>(kThreads));
  const auto published = DecodeSegment(metadata_->entries.at(SegmentKey("a")));
  ASSERT_TRUE(published);
  EXPECT_EQ(published->regions.size(), kThreads);
}

TEST(PeerLinksTest, SilentPeerCostsTheConnectTimeoutThatWasAskedFor) {
  rpc::RawListener listener;  // accepts in the backlog, never shakes hands
  rpc::IoPool io(1);
  PeerLinks links(io, {.role = protocol::kRoleEngine, .node = Uuid::Random()}, "", std::chrono::milliseconds(70));
  const auto reply = links.AskAnyone({"127.0.0.1", listener.port()}, 1, "", Soon());
  ASSERT_FALSE(reply);
  EXPECT_NE(reply.error().message().find("no connection within 70 ms"), std::string::npos) << reply.error().ToString();
}

}  // namespace
}  // namespace mooncake
