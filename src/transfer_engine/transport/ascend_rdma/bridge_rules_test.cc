// The defects that earlier bridges had (D) and the rules that follow from them (C), on the emulated runtime. A test's
// name says which it holds; those about the lane's inside and about the scheduler are tests of those.
#include <algorithm>
#include <set>
#include <string>
#include <thread>

#include "device/npu_driver.h"
#include "transfer_engine/region_registry.h"
#include "transfer_engine/transport/ascend_rdma/test_bridge_emulator.h"

namespace mooncake::bridge {
namespace {

constexpr size_t kSlot = 64 << 10;
constexpr auto kWrite = TransferOpcode::kWrite;
constexpr auto kRead = TransferOpcode::kRead;

class BridgeRules : public BridgeEmulatorTest {};

TEST_F(BridgeRules, D1C1NoSlotIsReusedBeforeItsLastCompletion) {
  Open();
  constexpr size_t kCount = 40;
  const auto bytes = Pattern(kCount * kSlot, 1);
  const AscendUnifiedPointer source = Allocate(bytes.size());
  Fill(source, bytes);
  std::vector<std::byte> remote(bytes.size());
  Ends ends;
  for (size_t i = 0; i < kCount; ++i) {
    Submit(Make(kWrite, source + i * kSlot, kSlot, remote.data() + i * kSlot, ends.Done(i)));
  }
  ASSERT_TRUE(wire_.AwaitHeld(4));
  // One of them stays on the wire while all others go past it (the wire looks at what it holds).
  while (ends.count() < kCount - 2) {
    if (wire_.held() < 2) {
      std::this_thread::yield();
      continue;
    }
    wire_.EndOne({}, 1);
  }
  wire_.Serve([&] { return ends.count() == kCount; });
  for (size_t i = 0; i < kCount; ++i) EXPECT_EQ(ends.code(i), ErrorCode::OK);
  EXPECT_EQ(remote, bytes);
}

TEST_F(BridgeRules, C3WhatHasNotBegunHasNotEnded) {
  Open();
  const AscendUnifiedPointer memory = Allocate(64 * kSlot);
  std::vector<std::byte> remote(64 * kSlot);
  Ends ends;
  for (size_t i = 0; i < 64; ++i)
    Submit(Make(kRead, memory + i * kSlot, kSlot, remote.data() + i * kSlot, ends.Done(i)));
  ASSERT_TRUE(wire_.AwaitHeld(4));
  EXPECT_EQ(ends.count(), 0u);
  EXPECT_EQ(wire_.submitted(), 4u);
  wire_.Serve([&] { return ends.count() == 64; });
}

TEST_F(BridgeRules, C2D5D8AnyLengthPassesASmallRing) {
  AscendRdmaOptions options = SmallRing();
  options.ring_bytes = options.slot_bytes;
  Open(options);
  const size_t large = (12 << 20) + 77;
  const auto bytes = Pattern(large, 5);
  const AscendUnifiedPointer source = Allocate(large + 100);
  const AscendUnifiedPointer target = Allocate(large + 100);
  Fill(source + 33, bytes);
  std::vector<std::byte> small(10);
  std::vector<std::byte> written(large);
  Ends ends;
  Submit(Make(kWrite, source + 33, small.size(), small.data(), ends.Done(0)));
  Submit(Make(kWrite, source + 33, large, written.data(), ends.Done(1)));
  Submit(Make(kRead, target + 1, large, const_cast<std::byte*>(bytes.data()), ends.Done(2)));
  wire_.Serve([&] { return ends.count() == 3; });
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(ends.code(i), ErrorCode::OK);
  EXPECT_EQ(written, bytes);
  EXPECT_EQ(Content(target + 1, large), bytes);
  EXPECT_TRUE(std::equal(small.begin(), small.end(), bytes.begin()));
}

TEST_F(BridgeRules, D6EachOperationOfAListGoesByItsOwnMemory) {
  Open();
  const AscendUnifiedPointer here = Allocate(100);
  const AscendUnifiedPointer elsewhere = Allocate(100, 1);
  std::vector<std::byte> host(100);
  std::vector<std::byte> remote(100);
  Ends ends;
  std::vector<TransferOperation> list;
  list.push_back(Make(kRead, here, 100, remote.data(), ends.Done(0)));
  list.push_back(Make(kRead, here, 100, remote.data(), ends.Done(1)));
  list.back().local = HostRange(host);
  list.push_back(Make(kRead, elsewhere, 100, remote.data(), ends.Done(2)));
  bridge_->Submit(std::move(list), Caller::kGoesOn);
  wire_.Serve([&] { return ends.count() == 3; });
  EXPECT_EQ(ends.code(0), ErrorCode::OK);
  EXPECT_EQ(ends.code(1), ErrorCode::TRANSFER_FAIL);
  EXPECT_EQ(ends.code(2), ErrorCode::DEVICE_NOT_FOUND);
}

TEST_F(BridgeRules, D7C14ItEndsInTheMiddleOfEverythingAndGivesAllBack) {
  for (const bool both : {false, true}) {
    Open(SmallRing(), both ? std::vector<int32_t>{0, 1} : std::vector<int32_t>{0});
    std::vector<std::byte> remote(16 * kSlot);
    const AscendUnifiedPointer memory = Allocate(remote.size());
    Ends ends;
    for (size_t i = 0; i < 16; ++i) {
      Submit(Make(i % 2 == 0 ? kWrite : kRead, memory + i * kSlot, kSlot - i, remote.data() + i * kSlot, ends.Done(i)));
    }
    ASSERT_TRUE(wire_.AwaitHeld(2));
    bridge_.reset();
    ASSERT_EQ(ends.count(), 16u);
    EXPECT_EQ(ends.code(15), ErrorCode::SHUTTING_DOWN);
    EXPECT_EQ(wire_.held(), 0u);
    EXPECT_TRUE(wire_.registered().empty());
  }
}

// The device that a caller's thread has current is none of the bridge's business, and stays what it was.
TEST_F(BridgeRules, D10C9CallersKeepTheirDeviceAndNeedNone) {
  Open(SmallRing(), {0, 1});
  const auto set_device = reinterpret_cast<int (*)(int32_t)>(dlsym(RTLD_DEFAULT, "aclrtSetDevice"));
  const auto get_device = reinterpret_cast<int (*)(int32_t*)>(dlsym(RTLD_DEFAULT, "aclrtGetDevice"));
  ASSERT_TRUE(set_device != nullptr && get_device != nullptr);
  const auto bytes = Pattern(100'000, 3);
  for (const int32_t current : {-1, 0, 1}) {
    for (const int32_t device : {0, 1}) {
      const AscendUnifiedPointer source = Allocate(bytes.size(), device);
      Fill(source, bytes);
      std::vector<std::byte> remote(bytes.size());
      Ends ends;
      std::thread([&] {
        if (current >= 0) {
          EXPECT_EQ(set_device(current), 0);
        }
        Submit(Make(kWrite, source, bytes.size(), remote.data(), ends.Done(0)));
        wire_.Serve([&] { return ends.count() == 1; });
        int32_t now = -1;
        const int rc = get_device(&now);
        EXPECT_EQ(rc == 0 ? now : -1, current);
      }).join();
      EXPECT_EQ(ends.code(0), ErrorCode::OK);
      EXPECT_EQ(remote, bytes);
    }
  }
}

// The ring is page-locked ordinary memory: copies are truly asynchronous, and a network device can map it.
TEST_F(BridgeRules, C15D11D14TheRingIsOrdinaryPageLockedMemoryThatNobodyElseReaches) {
  Open();
  ASSERT_EQ(wire_.registered().size(), 1u);  // for local use only (the wire looks)
  const auto [address, length] = *wire_.registered().begin();
  EXPECT_EQ(length, size_t{512} << 10);
  EXPECT_EQ(EmulatorProbe::Stats().host_allocs, before_.host_allocs);  // aclrtMallocHost: no network device maps that
  EXPECT_EQ(EmulatorProbe::Stats().host_live_blocks, before_.host_live_blocks + (Asynchronous() ? 1 : 0));
  SegmentDescriptor self;
  bridge_->Describe(self);
  EXPECT_TRUE(self.regions.empty() && self.protocols.empty());
  const AscendUnifiedPointer source = Allocate(1 << 20);
  const AscendUnifiedPointer target = Allocate(1 << 20);
  std::vector<std::byte> remote(1 << 20);
  std::vector<std::byte> other_remote(1 << 20);
  Ends ends;
  Submit(Make(kWrite, source, remote.size(), remote.data(), ends.Done(0)));
  Submit(Make(kRead, target, remote.size(), other_remote.data(), ends.Done(1)));
  wire_.Serve([&] { return ends.count() == 2; });
  const aclemu_stats now = EmulatorProbe::Stats();
  EXPECT_EQ(now.pageable_async_fallbacks, before_.pageable_async_fallbacks);
  if (Asynchronous()) {
    EXPECT_EQ(now.pageable_copies, before_.pageable_copies);
    EXPECT_GE(now.async_copies[ACLEMU_D2H], before_.async_copies[ACLEMU_D2H] + 16);
  }
}

// Older releases copy asynchronously only between aligned addresses (the emulator refuses others, TearDown counts).
TEST_F(BridgeRules, C16D12AnyAlignmentAndLengthWithoutAnUnalignedCopy) {
  Open();
  const auto bytes = Pattern(5000, 9);
  const AscendUnifiedPointer source = Allocate(8192);
  const AscendUnifiedPointer target = Allocate(8192);
  for (const size_t phase : {0, 1, 31, 63}) {
    for (const size_t length : {1, 63, 64, 65, 4099}) {
      const std::span<const std::byte> sent(bytes.data(), length);
      Fill(source + phase, sent);
      Fill(target, Pattern(8192, 77));
      std::vector<std::byte> remote(length);
      Ends ends;
      Submit(Make(kWrite, source + phase, length, remote.data(), ends.Done(0)));
      wire_.Serve([&] { return ends.count() == 1; });
      Submit(Make(kRead, target + phase, length, remote.data(), ends.Done(1)));
      wire_.Serve([&] { return ends.count() == 2; });
      auto expected = Pattern(8192, 77);
      std::copy(sent.begin(), sent.end(), expected.begin() + static_cast<ptrdiff_t>(phase));
      ASSERT_EQ(Content(target, 8192), expected) << "neighbours, or the bytes themselves";
    }
  }
}

// Names of blocks are asked from the registration, not from the runtime: memory that is gone already is no error.
TEST_F(BridgeRules, D16AWithdrawalAfterTheMemoryIsGoneIsFine) {
  Open(SmallRing(), {});
  const AscendUnifiedPointer memory = runtime_->Allocate(1, 4096).value();
  Region region{.address = static_cast<uint64_t>(memory.device_ptr), .length = 4096, .options = {.device_id = 1}};
  ASSERT_TRUE(bridge_->RegisterRegion(region));
  EXPECT_EQ(wire_.registered().size(), 1u);
  ASSERT_TRUE(runtime_->Free(memory));
  bridge_->WithdrawRegion(region);
  // The other way round for the ring: the wire lets go of it first, then the device, then the system.
  bool page_locked = false;
  wire_.on_withdraw = [&] { page_locked = EmulatorProbe::Stats().host_live_blocks > before_.host_live_blocks; };
  bridge_.reset();
  EXPECT_EQ(page_locked, Asynchronous());
}

TEST_F(BridgeRules, C11WhoHearsOfTheEndFindsTheBytesInPlace) {
  Open();
  const auto bytes = Pattern(300'000, 4);
  const AscendUnifiedPointer source = Allocate(bytes.size());
  const AscendUnifiedPointer target = Allocate(bytes.size());
  Fill(source, bytes);
  std::vector<std::byte> remote(bytes.size());
  Ends ends;
  Submit(Make(kWrite, source, bytes.size(), remote.data(), ends.Done(0, [&] { EXPECT_EQ(remote, bytes); })));
  wire_.Serve([&] { return ends.count() == 1; });
  Submit(Make(kRead, target, bytes.size(), remote.data(),
              ends.Done(1, [&] { EXPECT_EQ(Content(target, bytes.size()), bytes); })));
  wire_.Serve([&] { return ends.count() == 2; });
}

// The contract with whoever produces the bytes: what his stream was waited for is what is sent.
TEST_F(BridgeRules, C12WhatTheCallersStreamWroteAndWasWaitedForIsSent) {
  if (!Asynchronous()) GTEST_SKIP() << "no asynchronous copy on this release";
  Open();
  const auto bytes = Pattern(200'000, 8);
  const AscendUnifiedPointer source = Allocate(bytes.size());
  auto pinned = runtime_->AsyncDriver()->AllocatePinned(0, bytes.size());
  ASSERT_TRUE(pinned);
  std::ranges::copy(bytes, (*pinned)->bytes().begin());
  auto stream = runtime_->AsyncDriver()->CreateStream(0);
  ASSERT_TRUE(stream);
  const NpuCopy copy{CopyEnd::Device(source), CopyEnd::Host((*pinned)->bytes().data()), bytes.size(), bytes.size()};
  ASSERT_TRUE((*stream)->Submit({&copy, 1}));
  ASSERT_TRUE((*stream)->Synchronize(kPatience));
  std::vector<std::byte> remote(bytes.size());
  Ends ends;
  Submit(Make(kWrite, source, bytes.size(), remote.data(), ends.Done(0)));
  wire_.Serve([&] { return ends.count() == 1; });
  EXPECT_EQ(remote, bytes);
}

TEST_F(BridgeRules, C13UnregisteringWaitsForTheOperation) {
  Open();
  RegionRegistry registry;
  const AscendUnifiedPointer memory = Allocate(kSlot);
  const auto address = static_cast<uint64_t>(memory.device_ptr);
  const auto region = registry.Reserve(address, kSlot, {.location = "npu:0", .device_id = 0}).value().value();
  registry.Publish(region);
  std::vector<std::byte> remote(kSlot);
  Ends ends;
  // Who hears of the end may unregister at once.
  const auto unused = [&] { EXPECT_TRUE(registry.WaitUnused(region, Deadline::After({}))); };
  auto operation = Make(kRead, memory, kSlot, remote.data(), ends.Done(0, unused));
  operation.local_use = registry.Find(address, kSlot).value();
  Submit(std::move(operation));
  ASSERT_TRUE(wire_.AwaitHeld(1));
  ASSERT_TRUE(registry.Unpublish(address));
  EXPECT_EQ(registry.WaitUnused(region, Deadline::After({})).error().code(), ErrorCode::TRANSFER_TIMEOUT);
  wire_.Serve([&] { return ends.count() == 1; });
}

// The batch's plain operations on the same wire are the engine's.
TEST_F(BridgeRules, C17CancelReachesOnlyThePiecesOfTheBridge) {
  Open();
  const AscendUnifiedPointer memory = Allocate(kSlot);
  std::vector<std::byte> remote(kSlot);
  Ends ends;
  Submit(Make(kRead, memory, 5000, remote.data(), ends.Done(0), 7));
  Submit(Make(kRead, memory + 8192, 5000, remote.data(), ends.Done(1), 8));
  ASSERT_TRUE(wire_.AwaitHeld(2));
  for (const BatchId tag : wire_.held_tags()) EXPECT_GE(tag, BatchId{1} << 63);
  bridge_->Cancel(7);
  ASSERT_TRUE(ends.Await(1));
  EXPECT_EQ(ends.code(0), ErrorCode::TRANSFER_CANCELED);
  ASSERT_EQ(wire_.canceled().size(), 1u);
  EXPECT_NE(wire_.canceled()[0], BatchId{7});
  wire_.Serve([&] { return ends.count() == 2; });
  EXPECT_EQ(ends.code(1), ErrorCode::OK);
}

TEST(BridgeRulesTable, EveryDefectAndRuleHasATestOfItsName) {
  std::set<std::string> found;
  const auto& unit = *testing::UnitTest::GetInstance();
  for (int i = 0; i < unit.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *unit.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const std::string name = suite.GetTestInfo(j)->name();
      for (size_t at = 0; at < name.size(); ++at) {
        if (name[at] != 'D' && name[at] != 'C') continue;
        size_t end = at + 1;
        while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end])) != 0) ++end;
        if (end > at + 1) found.insert(name.substr(at, end - at));
      }
    }
  }
  for (int i = 1; i <= 16; ++i) EXPECT_TRUE(found.contains("D" + std::to_string(i))) << i;
  for (int i = 1; i <= 17; ++i) EXPECT_TRUE(found.contains("C" + std::to_string(i))) << i;
}

}  // namespace
}  // namespace mooncake::bridge
