// NPU memory of this process and peers that only host transports reach: what the engine chooses, and what it leaves.
#include <sstream>

#include "device/acl/test_emulator_probe.h"
#include "transfer/ends.h"
#include "transfer/pattern.h"

namespace mooncake::transfer_test {
namespace {

// What of a device can be left over.
struct Belongings {
  uint64_t page_locked;
  uint64_t streams;
  uint64_t blocks;
  bool operator==(const Belongings&) const = default;
  static Belongings Now() {
    const aclemu_stats stats = EmulatorProbe::Stats();
    return {stats.host_live_blocks, stats.streams_live, stats.device_live_blocks};
  }
};

class TransferBridge : public EndsTest {
 protected:
  std::string Explained(const TransferRequest& request) {
    const auto text = near_->Explain(request);
    EXPECT_OK(text);
    return text.value_or("");
  }
  // The sum over all label sets that contain this text.
  double Metric(const std::string& name, const std::string& labels) {
    std::istringstream lines(near_->MetricsText());
    double sum = 0;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with(name) && line.contains(labels)) sum += std::stod(line.substr(line.rfind(' ') + 1));
    }
    return sum;
  }
  double Moved(const std::string& transport) {
    return Metric("mooncake_transfer_bytes_total{", "transport=\"" + transport + "\"");
  }
};

// Each request goes its own way, whatever the others of its batch do; two devices at once.
TEST_P(TransferBridge, HostAndNpuMemoryShareABatch) {
  constexpr size_t kEach = 5 * kMiB + 4321;
  const FarMemory far = MakeFarMemory(3 * kEach);
  NearMemory host(*near_, kEach);
  NearMemory one = MakeNearMemory(kEach);
  NearMemory other = MakeNearMemory(kEach);
  const std::vector<const NearMemory*> memories = {&host, &one, &other};
  std::vector<TransferRequest> writes;
  std::vector<TransferRequest> reads;
  for (size_t i = 0; i < memories.size(); ++i) {
    Fill(memories[i]->bytes(), i + 1);
    // From one memory to the next one's place and back, in pieces of all sizes.
    for (size_t at = 0; at < kEach;) {
      const size_t length = std::min(kEach - at, size_t{1} << (random_() % 21));
      writes.push_back(Write(*memories[i], at, far, i * kEach + at, length));
      reads.push_back(Read(*memories[(i + 1) % 3], at, far, i * kEach + at, length));
      at += length;
    }
  }
  std::ranges::shuffle(writes, random_);
  std::ranges::shuffle(reads, random_);
  EXPECT_COMPLETED(Run(writes));
  EXPECT_COMPLETED(Run(reads));
  for (size_t i = 0; i < memories.size(); ++i) EXPECT_OK(Check(memories[(i + 1) % 3]->bytes(), i + 1));
  EXPECT_EQ(Moved("ascend_rdma"), 4.0 * kEach);
  EXPECT_EQ(Moved(wire()), 2.0 * kEach) << "host memory takes no detour";
  EXPECT_EQ(Metric("mooncake_npu_bridge_bytes_total{", "opcode=\"write\""), 2.0 * kEach);
  EXPECT_EQ(Metric("mooncake_npu_bridge_bytes_total{", "opcode=\"read\""), 2.0 * kEach);
}

TEST_P(TransferBridge, ChoiceIsExplained) {
  const FarMemory far = MakeFarMemory(4096);
  NearMemory npu = MakeNearMemory(4096);
  NearMemory host(*near_, 4096);
  const std::string over = "ascend_rdma over " + wire();
  const std::string bridged = Explained(Write(npu, 0, far, 0, 4096));
  EXPECT_TRUE(bridged.contains(over)) << bridged;
  EXPECT_TRUE(bridged.contains("memory of NPU ")) << bridged;
  EXPECT_TRUE(bridged.contains(wire() + ": it does not take this NPU memory")) << bridged;
  const std::string plain = Explained(Read(host, 0, far, 0, 4096));
  EXPECT_TRUE(plain.contains(": " + wire())) << plain;
  EXPECT_FALSE(plain.contains("ascend_rdma")) << plain;
  EXPECT_EQ(Moved(wire()) + Moved("ascend_rdma"), 0);
  // Memory of another process's NPU, as a descriptor would list it, and what nobody registered.
  const auto nowhere = near_->Explain(Request(TransferOpcode::kRead, npu.at(0), 4096, 16));
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(ErrorCodeName(nowhere.error().code()), "ADDRESS_NOT_REGISTERED");
}

// C11: the notification leaves when the bytes of every read are on the NPU, not when they are in this host's memory.
TEST_P(TransferBridge, C11NotificationFollowsTheBytesToTheNpu) {
  constexpr size_t kLength = 24 * kMiB;
  const FarMemory far = MakeFarMemory(kLength);
  NearMemory near = MakeNearMemory(kLength);
  for (uint64_t round = 1; round <= 4; ++round) {
    far.Fill(round);
    std::vector<TransferRequest> reads;
    for (size_t at = 0; at < kLength; at += kMiB) reads.push_back(Read(near, at, far, at, kMiB));
    const std::string message = fmt::format("read-{}", round);
    SubmitOptions options;
    options.notify = TransferNotify{"sender", message};
    const BatchId batch = Begin(reads, std::move(options));
    EXPECT_OK(far_->Ask(fmt::format("await_notify {} 100000 {} {} {} 0", message, far.address(), kLength, round)));
    EXPECT_OK(Check(near.bytes(), round));
    EXPECT_EQ(TransferStateName(End(batch).state), "COMPLETED");
  }
}

// D14: neither its name nor its memory.
TEST_P(TransferBridge, D14PeersLearnNothingOfTheBridge) {
  NearMemory npu = MakeNearMemory(kMiB);
  NearMemory host(*near_, kMiB);
  const SegmentDescriptor self = near_->Describe();
  EXPECT_EQ(self.protocols, std::vector<std::string>{wire()});
  ASSERT_EQ(self.regions.size(), 2u);
  for (const SegmentRegion& region : self.regions) {
    EXPECT_EQ(region.length, kMiB);
    // The NPU's is listed, but no network device was asked to register it.
    if (region.address == reinterpret_cast<uint64_t>(npu.at(0))) {
      EXPECT_TRUE(region.rkeys.empty());
    }
  }
  EXPECT_FALSE(EncodeSegment(self).contains("ascend_rdma"));
}

// The ring holds less than a request, once no more than one slot.
TEST_P(TransferBridge, AnyRingCarriesAnySize) {
  for (const char* const ring : {"64KB", "192KB", "1MB"}) {
    SCOPED_TRACE(ring);
    const ScopedVariable slots("MC_NPU_BRIDGE_SLOT", "64KB");
    const ScopedVariable bytes("MC_NPU_BRIDGE_RING", ring);
    ASSERT_NO_FATAL_FAILURE(OpenBoth(OneNearDevice(), OneFarDevice()));
    ExpectRoundTrip(MakeFarMemory(kMiB), 1);
    ExpectMixedTraffic(256);
  }
}

// D3, D7, C14: a step that fails takes back those before it, and the next attempt is not worse for it.
TEST_P(TransferBridge, RegistrationThatFailsLeavesNothingBehind) {
  if (!EmulatorProbe::Loaded()) return;
  for (const char* const fault : {"aclrtHostRegister*@1=207001", "aclrtCreateStream*@1=207000",
                                  "aclrtCreateStream*@3=207000", "aclrtMalloc*@1=507899", "D2H@1:exec=507001",
                                  "H2D@1:exec=507001", "aclrtSynchronizeStreamWithTimeout@1=507000"}) {
    SCOPED_TRACE(fault);
    ASSERT_NO_FATAL_FAILURE(OpenBoth(OneNearDevice(), OneFarDevice()));
    const auto block = npu_->Allocate(0, kMiB);
    ASSERT_OK(block);
    void* const address = reinterpret_cast<void*>(block->device_ptr);
    const NearBytes bytes(NpuRange{*block, kMiB, npu_.get()});
    Fill(bytes, 4);  // the runtime keeps what its own copies need
    const Belongings before = Belongings::Now();
    EmulatorProbe::Inject(fault);
    const auto registered = near_->RegisterMemory(address, kMiB);
    EmulatorProbe::Inject("");
    if (registered) {
      // Some calls may fail without harm, being asked again.
      EXPECT_TRUE(std::string_view(fault).starts_with("aclrtSynchronize"));
    } else {
      EXPECT_NE(registered.error().vendor_code(), 0) << registered.error().ToString();
      EXPECT_EQ(Belongings::Now(), before) << registered.error().ToString();
      EXPECT_EQ(near_->regions().size(), 0u);
      EXPECT_OK(near_->RegisterMemory(address, kMiB));
    }
    const FarMemory far = MakeFarMemory(kMiB);
    Fill(bytes, 4);
    const TransferRequest write = Request(TransferOpcode::kWrite, address, far.address(), kMiB);
    EXPECT_COMPLETED(Run({&write, 1}));
    far.Expect(4);
    EXPECT_OK(near_->UnregisterMemory(address));
    near_.reset();
    EXPECT_EQ(Belongings::Now(), before) << "an engine that ends gives everything back";
    EXPECT_OK(npu_->Free(*block));
  }
}

// Fills a device with blocks until it has not a page left, and empties it again.
class FullDevice {
 public:
  FullDevice(NpuRuntime& npu, int32_t device) : npu_(npu) {
    for (const size_t size : {8 * kMiB, 4 * kKiB}) {
      while (const auto block = npu.Allocate(device, size)) blocks_.push_back(*block);
    }
  }
  ~FullDevice() {
    for (const auto& block : blocks_) EXPECT_OK(npu_.Free(block));
  }
  FullDevice(const FullDevice&) = delete;
  FullDevice& operator=(const FullDevice&) = delete;

 private:
  NpuRuntime& npu_;
  std::vector<AscendUnifiedPointer> blocks_;
};

// An application that has given all of the device to its model and its cache.
TEST_P(TransferBridge, MemoryOfAFullDeviceIsRegisteredAndMoved) {
  if (!EmulatorProbe::Loaded()) return;
  ASSERT_NO_FATAL_FAILURE(OpenBoth(OneNearDevice(), OneFarDevice()));
  constexpr size_t kLength = 7 * kMiB + 77;
  const FarMemory far = MakeFarMemory(kLength);
  ASSERT_OK(npu_->OpenDevice(0));
  const auto block = npu_->Allocate(0, kLength);
  ASSERT_OK(block);
  void* const address = reinterpret_cast<void*>(block->device_ptr);
  const NearBytes bytes(NpuRange{*block, kLength, npu_.get()});
  Fill(bytes, 8);
  EmulatorProbe::Inject("dev0@t0=capacity:64M");
  {
    const FullDevice full(*npu_, 0);
    const auto memory = npu_->GetMemoryInfo(0);
    ASSERT_OK(memory);
    ASSERT_EQ(memory->free_bytes, 0u);
    ASSERT_OK(near_->RegisterMemory(address, kLength));
    const TransferRequest write = Request(TransferOpcode::kWrite, address, far.address(), kLength);
    EXPECT_COMPLETED(Run({&write, 1}));
    far.Expect(8);
    far.Fill(9);
    const TransferRequest read = Request(TransferOpcode::kRead, address, far.address(), kLength);
    EXPECT_COMPLETED(Run({&read, 1}));
    EXPECT_OK(Check(bytes, 9));
    EXPECT_EQ(Moved("ascend_rdma"), 2.0 * kLength);
    EXPECT_OK(near_->UnregisterMemory(address));
  }
  EmulatorProbe::Inject("dev0@t0=capacity:1G");
  EmulatorProbe::Inject("");
  EXPECT_OK(npu_->Free(*block));
}

// The application learns which device it was, and from the runtime what happened to it; other devices go on.
TEST_P(TransferBridge, LostDeviceIsNamedByEveryCall) {
  if (!EmulatorProbe::Loaded()) return;
  const FarMemory far = MakeFarMemory(2 * kMiB);
  NearMemory one = MakeNearMemory(kMiB);
  NearMemory other = MakeNearMemory(kMiB);
  const auto device_of = [](const NearMemory& memory) {
    return std::get<NpuRange>(memory.bytes().range()).at.device_id;
  };
  const int32_t lost = device_of(one);
  ASSERT_NE(device_of(other), lost);
  Fill(other.bytes(), 2, kMiB);
  const auto tells = [&](const Status& error) {
    EXPECT_EQ(ErrorCodeName(error.code()), "DEVICE_NOT_FOUND") << error.message();
    EXPECT_EQ(error.vendor_code(), 507010) << error.message();
    for (const std::string& part : {fmt::format("NPU device {}", lost), std::string("507010"), std::string("lost")}) {
      EXPECT_TRUE(error.message().contains(part)) << error.message();
    }
  };
  const TransferRequest write = Write(one, 0, far, 0, kMiB);
  EmulatorProbe::Inject(fmt::format("D2H[dev={}]@1:call=507010", lost).c_str());
  const auto first = Run({&write, 1});
  EmulatorProbe::Inject("");
  ASSERT_OK(first);
  EXPECT_EQ(TransferStateName(first->state), "FAILED");
  tells(first->error);

  const auto second = Run({&write, 1});
  ASSERT_FALSE(second);
  tells(second.error());
  const auto explained = near_->Explain(write);
  ASSERT_FALSE(explained);
  tells(explained.error());
  const auto key = far_->AskNumber(fmt::format("grant {} {} 1", far.address(), kMiB));
  ASSERT_OK(key);
  const auto granted = near_->TransferGranted(TransferOpcode::kWrite, one.bytes().range(), target_,
                                              {.address = far.address(), .length = kMiB, .key = *key}, 0, Soon());
  ASSERT_FALSE(granted);
  tells(granted.error());
  const auto prepared = near_->PrepareDevice(lost);
  ASSERT_FALSE(prepared);
  tells(prepared.error());

  const TransferRequest alive = Write(other, 0, far, kMiB, kMiB);
  EXPECT_COMPLETED(Run({&alive, 1}));
  far.Expect(2, kMiB, kMiB);
}

// Memory that was never registered stays out of it, and so does a device before PrepareDevice.
TEST_P(TransferBridge, GrantsAreReachedFromMemoryThatIsNotRegistered) {
  const FarMemory far = MakeFarMemory(kMiB);
  const auto key = far_->AskNumber(fmt::format("grant {} {} 1", far.address(), kMiB));
  ASSERT_OK(key);
  const GrantedRange granted{.address = far.address(), .length = kMiB, .key = *key};
  const auto block = npu_->Allocate(0, kMiB);
  ASSERT_OK(block);
  const NearBytes near(NpuRange{*block, kMiB, npu_.get()});
  Fill(near, 5);
  const auto write = [&] {
    return near_->TransferGranted(TransferOpcode::kWrite, near.range(), target_, granted, 0, Soon());
  };
  const auto early = write();
  ASSERT_FALSE(early);
  EXPECT_EQ(ErrorCodeName(early.error().code()), "NOT_SUPPORTED_TRANSPORT");
  EXPECT_TRUE(early.error().message().contains("ascend_rdma: no memory of NPU 0 was registered"))
      << early.error().message();
  const auto ready = near_->PrepareDevice(0);
  ASSERT_OK(ready);
  EXPECT_TRUE(*ready);
  EXPECT_OK(write());
  far.Expect(5);
  EXPECT_OK(npu_->Free(*block));
}

// The name asks for an NPU; without the name a node without one is none the worse.
TEST_P(TransferBridge, NamedProtocolNeedsARuntime) {
  const ScopedVariable nowhere("MC_ACL_LIBRARY", "/nowhere/libascendcl.so");
  const auto far = FarEnd::Start(wire(), 0, OneFarDevice());
  ASSERT_OK(far);
  const auto opened = (*far)->Ask("open protocols=tcp,ascend_rdma");
  ASSERT_FALSE(opened);
  EXPECT_TRUE(opened.error().message().contains("ascend_rdma")) << opened.error().message();
  EXPECT_TRUE(opened.error().message().contains("/nowhere/libascendcl.so")) << opened.error().message();
  EXPECT_OK((*far)->Ask("open protocols=tcp"));
}

// Two engines of one process, each with a bridge and connections of its own.
TEST_P(TransferBridge, AnotherEngineOfThisProcessIsAPeer) {
  auto opened = TransferEngine::Open(NearOptions(GetParam(), OneFarDevice()));
  ASSERT_OK(opened);
  TransferEngine& other = **opened;
  NearMemory near = MakeNearMemory(3 * kMiB);
  NearMemory theirs(other, 3 * kMiB);
  NearMemory their_npu = MakeNearMemory(other, 3 * kMiB);
  const auto there = near_->OpenSegment(other.local_name(), Soon());
  const auto here = other.OpenSegment(near_->local_name(), Soon());
  ASSERT_OK(there);
  ASSERT_OK(here);
  NearMemory mine(*near_, 3 * kMiB);
  Fill(near.bytes(), 6);
  Fill(their_npu.bytes(), 7);
  const auto write = [](const NearMemory& from, SegmentId target, const NearMemory& to) {
    return TransferRequest{TransferOpcode::kWrite, from.at(0), target, reinterpret_cast<uint64_t>(to.at(0)), 3 * kMiB};
  };
  const TransferRequest to_them = write(near, *there, theirs);
  const TransferRequest to_us = write(their_npu, *here, mine);
  const BatchId batch = Begin({&to_them, 1});
  EXPECT_OK(other.Transfer({&to_us, 1}, Soon()));
  EXPECT_EQ(TransferStateName(End(batch).state), "COMPLETED");
  EXPECT_OK(Check(theirs.bytes(), 6));
  EXPECT_OK(Check(mine.bytes(), 7));
}

std::vector<std::string> WiresWithNpu() {
  std::vector<std::string> wires = WiresUnderTest();
  std::erase_if(wires, [](const std::string& wire) { return !OnNpu(wire) || FarOnNpu(wire); });
  return wires;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransferBridge);
INSTANTIATE_TEST_SUITE_P(Wires, TransferBridge, ::testing::ValuesIn(WiresWithNpu()),
                         [](const auto& wire) { return wire.param; });

}  // namespace
}  // namespace mooncake::transfer_test
