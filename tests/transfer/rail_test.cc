// Cables that are pulled and put back, in the guest: what becomes of transfers over RDMA.
#include <fstream>

#include "transfer/ends.h"
#include "transfer/pattern.h"

namespace mooncake::transfer_test {
namespace {

using std::chrono::seconds;

uint64_t BytesSent(const std::string& device) {
  uint64_t bytes = 0;
  std::ifstream("/sys/class/net/" + device + "/statistics/tx_bytes") >> bytes;
  return bytes;
}

class TransferRails : public EndsTest {
 protected:
  static constexpr size_t kLength = 64 * kMiB;

  void TearDown() override {
    SetLink("veth1", "up");
    EndsTest::TearDown();
  }

  std::vector<TransferRequest> Pieces(TransferOpcode opcode, const NearMemory& near, const FarMemory& far) {
    std::vector<TransferRequest> requests;
    for (size_t at = 0; at < kLength; at += kMiB) {
      requests.push_back(Request(opcode, near.at(at), far.address() + at, kMiB));
    }
    return requests;
  }

  // Pulls the cable of rxe1 when the first piece is through. The ends of the others.
  std::vector<TransferStatus> RunAndPull(const std::vector<TransferRequest>& requests, Deadline deadline) {
    const BatchId first = Begin({requests.begin(), requests.begin() + 1}, {.deadline = deadline});
    const BatchId others = Begin({requests.begin() + 1, requests.end()}, {.deadline = deadline});
    EXPECT_EQ(TransferStateName(End(first).state), "COMPLETED");
    SetLink("veth1", "down");
    return EndEach(others, requests.size() - 1);
  }
};

TEST_P(TransferRails, OnlyRailDownSettlesEveryRequestAndWorksAgainWhenUp) {
  const FarMemory far = MakeFarMemory(kLength);
  far.Fill(1);
  NearMemory near = MakeNearMemory(kLength);
  const std::vector<TransferRequest> reads = Pieces(TransferOpcode::kRead, near, far);
  for (const TransferStatus& end : RunAndPull(reads, Deadline::After(seconds(30)))) {
    EXPECT_NE(TransferStateName(end.state), "WAITING");
  }
  Fill(near.bytes(), 2);
  SetLink("veth1", "up");
  ExpectRoundTrip(far, 3);
  EXPECT_OK(Check(near.bytes(), 2));
}

TEST_P(TransferRails, LossOfOneOfTwoRailsLosesNoRequest) {
  ASSERT_NO_FATAL_FAILURE(OpenBoth("rxe0,rxe2", "rxe1,rxe3"));
  const FarMemory far = MakeFarMemory(kLength);
  NearMemory near = MakeNearMemory(kLength);
  Fill(near.bytes(), 1);
  const uint64_t before[] = {BytesSent("veth0"), BytesSent("veth2")};
  EXPECT_COMPLETED(Run(Pieces(TransferOpcode::kWrite, near, far)));
  far.Expect(1);
  EXPECT_GT(BytesSent("veth0") - before[0], kLength / 10) << "rail 0 carried nothing to speak of";
  EXPECT_GT(BytesSent("veth2") - before[1], kLength / 10) << "rail 1 carried nothing to speak of";

  Fill(near.bytes(), 2);
  for (const TransferStatus& end : RunAndPull(Pieces(TransferOpcode::kWrite, near, far), Soon())) {
    EXPECT_EQ(TransferStateName(end.state), "COMPLETED") << end.error.ToString();
  }
  far.Expect(2);
  ExpectRoundTrip(far, 3);  // with one rail
  SetLink("veth1", "up");
  ExpectRoundTrip(far, 4);
}

std::vector<std::string> WiresWithRails() {
  std::vector<std::string> wires = WiresUnderTest();
  std::erase_if(wires, [](const std::string& wire) { return wire != "rdma"; });
  return wires;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransferRails);
INSTANTIATE_TEST_SUITE_P(Wires, TransferRails, ::testing::ValuesIn(WiresWithRails()),
                         [](const auto& wire) { return wire.param; });

}  // namespace
}  // namespace mooncake::transfer_test
