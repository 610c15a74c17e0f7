// The bridge on real verbs, in the guest: cables that are pulled, and which memory network devices are given.
#include <thread>

#include "device/acl/test_emulator_probe.h"
#include "device/npu_driver.h"
#include "transfer/ends.h"
#include "transfer/pattern.h"

namespace mooncake::transfer_test {
namespace {

using std::chrono::seconds;

class TransferBridgeRdma : public EndsTest {
 protected:
  static constexpr size_t kLength = 16 * kMiB;  // of each direction

  void TearDown() override {
    SetLink("veth1", "up");
    EndsTest::TearDown();
  }

  // Reads of the first half, writes of the second.
  std::vector<TransferRequest> BothWays(const NearMemory& near, const FarMemory& far) {
    std::vector<TransferRequest> requests;
    for (size_t at = 0; at < kLength; at += kMiB) {
      requests.push_back(Read(near, at, far, at, kMiB));
      requests.push_back(Write(near, kLength + at, far, kLength + at, kMiB));
    }
    return requests;
  }
  void ExpectAllArrived(const NearMemory& near, const FarMemory& far, uint64_t seed) {
    EXPECT_OK(Check(near.bytes().first(kLength), seed));
    far.Expect(seed, kLength, kLength);
  }
  void FillBoth(const NearMemory& near, const FarMemory& far, uint64_t seed) {
    far.Fill(seed, 0, kLength);
    Fill(near.bytes().subspan(kLength), seed, kLength);
  }
  // Pulled while the first of them is through and the others are under way; back after a while.
  void RunAcrossALostLink(const std::vector<TransferRequest>& requests, Duration gone) {
    const BatchId first = Begin({requests.begin(), requests.begin() + 1}, {.deadline = Far()});
    const BatchId others = Begin({requests.begin() + 1, requests.end()}, {.deadline = Far()});
    EXPECT_EQ(TransferStateName(End(first).state), "COMPLETED");
    SetLink("veth1", "down");
    std::this_thread::sleep_for(gone);  // what is on the wire is lost
    SetLink("veth1", "up");
    for (const TransferStatus& end : EndEach(others, requests.size() - 1)) {
      EXPECT_EQ(TransferStateName(end.state), "COMPLETED") << end.error.ToString();
    }
  }
  static uint64_t CopiedFromNpu() { return EmulatorProbe::Stats().async_bytes[ACLEMU_D2H]; }
};

TEST_P(TransferBridgeRdma, ATransferOutlivesALinkThatGoesAndComesBack) {
  const FarMemory far = MakeFarMemory(2 * kLength);
  NearMemory near = MakeNearMemory(2 * kLength);
  FillBoth(near, far, 1);
  const uint64_t copied = CopiedFromNpu();
  RunAcrossALostLink(BothWays(near, far), seconds(1));
  EXPECT_EQ(CopiedFromNpu() - copied, kLength) << "what was lost is sent again from the slots";
  ExpectAllArrived(near, far, 1);
  ExpectRoundTrip(far, 2);
}

TEST_P(TransferBridgeRdma, ATransferIsOverAtItsDeadlineThoughTheLinkStaysAway) {
  const FarMemory far = MakeFarMemory(2 * kLength);
  NearMemory near = MakeNearMemory(2 * kLength);
  ExpectRoundTrip(far, 1);
  SetLink("veth1", "down");
  const std::vector<TransferRequest> requests = BothWays(near, far);
  for (const TransferStatus& end :
       EndEach(Begin(requests, {.deadline = Deadline::After(seconds(2))}), requests.size())) {
    EXPECT_EQ(TransferStateName(end.state), "TIMEOUT") << end.error.ToString();
  }
  Fill(near.bytes(), 2);
  SetLink("veth1", "up");
  ExpectRoundTrip(far, 3);
  EXPECT_OK(Check(near.bytes(), 2));
  // With every slot of the ring.
  FillBoth(near, far, 4);
  EXPECT_COMPLETED(Run(BothWays(near, far)));
  ExpectAllArrived(near, far, 4);
}

// The emulated memory is as real device and page-locked memory is: no network device can have it. What the bridge has
// registered is its ring, and peers see nothing of that.
TEST_P(TransferBridgeRdma, NetworkDevicesCannotHaveNpuOrPinnedMemory) {
  NearMemory npu = MakeNearMemory(kMiB);
  const auto pinned = npu_->AsyncDriver()->AllocatePinned(0, kMiB);
  ASSERT_OK(pinned);
  ASSERT_EQ(near_->Describe().regions.size(), 1u);
  EXPECT_TRUE(near_->Describe().regions[0].rkeys.empty());
  const auto registered = near_->RegisterMemory((*pinned)->bytes().data(), kMiB);
  ASSERT_FALSE(registered);
  EXPECT_EQ(near_->Describe().regions.size(), 1u);
  ExpectRoundTrip(MakeFarMemory(kMiB), 1);
}

std::vector<std::string> RdmaWithNpu() {
  std::vector<std::string> wires = WiresUnderTest();
  std::erase_if(wires, [](const std::string& wire) { return !OnNpu(wire) || WireOf(wire) != "rdma"; });
  return wires;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransferBridgeRdma);
INSTANTIATE_TEST_SUITE_P(Wires, TransferBridgeRdma, ::testing::ValuesIn(RdmaWithNpu()),
                         [](const auto& wire) { return wire.param; });

}  // namespace
}  // namespace mooncake::transfer_test
