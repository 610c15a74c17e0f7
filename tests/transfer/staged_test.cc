// NPU memory of the far end as a target: what the engine chooses, and what becomes of the slots that it is reached by.
#include <sstream>
#include <thread>

#include "device/acl/test_emulator_probe.h"
#include "transfer/ends.h"
#include "transfer/pattern.h"

namespace mooncake::transfer_test {
namespace {

class TransferStaged : public EndsTest {
 protected:
  static double Metric(const TransferEngine& engine, const std::string& name) {
    std::istringstream lines(engine.MetricsText());
    double sum = 0;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with(name)) sum += std::stod(line.substr(line.rfind(' ') + 1));
    }
    return sum;
  }
  static void Await(const TransferEngine& engine, const std::string& name, double least, double most) {
    const Deadline deadline = Soon();
    double value = Metric(engine, name);
    while ((value < least || value > most) && !deadline.Passed()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // metrics offer nothing to wait on
      value = Metric(engine, name);
    }
    EXPECT_GE(value, least) << name;
    EXPECT_LE(value, most) << name;
  }
  static constexpr const char* kLent = "mooncake_npu_bridge_pieces_lent";
  static constexpr const char* kLeases = "mooncake_npu_bridge_leases";
};

TEST_P(TransferStaged, ChoiceIsExplained) {
  const FarMemory far = MakeFarMemory(4096);
  NearMemory near = MakeNearMemory(4096);
  const auto text = near_->Explain(Write(near, 0, far, 0, 4096));
  ASSERT_OK(text);
  const std::string staged = "staged by the target over " + wire();
  EXPECT_TRUE(text->contains(on_npu() ? "ascend_rdma over " + staged : staged)) << *text;
  // Its host memory is reached as ever.
  const auto host = far_->AskNumber("map 4096 0 0");
  ASSERT_OK(host);
  ASSERT_OK(far_->Do(fmt::format("register {} 4096", *host)));
  const auto plain = near_->Explain(Request(TransferOpcode::kRead, near.at(0), *host, 4096));
  ASSERT_OK(plain);
  EXPECT_FALSE(plain->contains("staged by the target")) << *plain;
}

TEST_P(TransferStaged, OwnerThatLendsNothingIsNamedInTheError) {
  const ScopedVariable lent("MC_NPU_BRIDGE_TARGET_RING", "0");
  auto opened = FarEnd::Start(wire(), 0, OneFarDevice());
  ASSERT_OK(opened);
  far_ = std::move(*opened);
  const auto target = near_->OpenSegment(far_->ports().name, Soon());
  ASSERT_OK(target);
  target_ = *target;
  const FarMemory far = MakeFarMemory(4096);
  NearMemory near = MakeNearMemory(4096);
  const TransferRequest write = Write(near, 0, far, 0, 4096);
  const auto refused = Run({&write, 1});
  ASSERT_FALSE(refused);
  EXPECT_EQ(ErrorCodeName(refused.error().code()), "NOT_SUPPORTED_TRANSPORT");
  EXPECT_TRUE(refused.error().message().contains("does not lend host slots for this NPU memory (no ascend_rdma there)"))
      << refused.error().message();
}

// This process is the owner; the initiator dies with slots in its hands.
TEST_P(TransferStaged, SlotsOfAKilledInitiatorComeBack) {
  auto npu = OpenNpuRuntime();
  ASSERT_OK(npu);
  constexpr size_t kLength = 64 * kMiB;
  NearMemory target(*near_, kLength, *npu);
  Fill(target.bytes(), 1);
  for (const std::string opcode : {"write", "read"}) {
    SCOPED_TRACE(opcode);
    for (int round = 0; round < 3; ++round) {
      auto initiator = FarEnd::Start(wire(), 0, OneFarDevice());
      ASSERT_OK(initiator);
      const auto memory = (*initiator)->AskNumber(fmt::format("map {} 0 0", kLength));
      ASSERT_OK(memory);
      ASSERT_OK((*initiator)->Do(fmt::format("register {} {}", *memory, kLength)));
      ASSERT_OK((*initiator)
                    ->process()
                    .Send(fmt::format("transfer {} {} {} {} {} 100000", opcode, near_->local_name(), *memory,
                                      reinterpret_cast<uint64_t>(target.at(0)), kLength)));
      Await(*near_, kLent, 1, 1e9);
      (*initiator)->process().Kill();
      Await(*near_, kLent, 0, 0);
      Await(*near_, kLeases, 0, 0);
    }
  }
  // All of the ring is there for others, and nobody writes into their bytes.
  const auto memory = far_->AskNumber(fmt::format("map {} 0 0", kLength));
  ASSERT_OK(memory);
  ASSERT_OK(far_->Do(fmt::format("register {} {}", *memory, kLength)));
  const auto transfer = [&](const char* opcode) {
    return far_->Do(fmt::format("transfer {} {} {} {} {} 100000", opcode, near_->local_name(), *memory,
                                reinterpret_cast<uint64_t>(target.at(0)), kLength));
  };
  ASSERT_OK(far_->Do(fmt::format("fill {} {} 2 0", *memory, kLength)));
  EXPECT_OK(transfer("write"));
  EXPECT_OK(Check(target.bytes(), 2));
  Fill(target.bytes(), 3);
  EXPECT_OK(transfer("read"));
  EXPECT_OK(far_->Do(fmt::format("check {} {} 3 0", *memory, kLength)));
}

// A write has ended when its bytes are on the NPU: what goes wrong on the last stretch goes wrong for the initiator.
TEST_P(TransferStaged, ErrorsOfTheOwnersNpuReachTheInitiator) {
  auto npu = OpenNpuRuntime();
  ASSERT_OK(npu);
  if (!EmulatorProbe::Loaded()) return;
  NearMemory target(*near_, kMiB, *npu);
  Fill(target.bytes(), 1);
  const auto memory = far_->AskNumber(fmt::format("map {} 0 0", kMiB));
  ASSERT_OK(memory);
  ASSERT_OK(far_->Do(fmt::format("register {} {}", *memory, kMiB)));
  const auto transfer = [&](const char* opcode, size_t length) {
    return far_->Do(fmt::format("transfer {} {} {} {} {} 100000", opcode, near_->local_name(), *memory,
                                reinterpret_cast<uint64_t>(target.at(0)), length));
  };
  ASSERT_OK(transfer("read", kMiB));
  for (const auto& [opcode, fault] : {std::pair("write", "H2D@1=507001"), std::pair("read", "D2H@1=507001")}) {
    for (const size_t length : {size_t{4096}, kMiB}) {
      SCOPED_TRACE(fmt::format("{} of {} B", opcode, length));
      EmulatorProbe::Inject(fault);
      const auto failed = transfer(opcode, length);
      EmulatorProbe::Inject("");
      ASSERT_FALSE(failed);
      EXPECT_EQ(ErrorCodeName(failed.error().code()), "DATA_COPY_FAILED") << failed.error().message();
      EXPECT_OK(transfer("read", length));
    }
  }
  Await(*near_, kLent, 0, 0);
}

// A small ring, both directions, large and small requests, more of them than there are slots.
TEST_P(TransferStaged, AnyRingCarriesAnySize) {
  for (const char* const ring : {"64KB", "1MB"}) {
    SCOPED_TRACE(ring);
    const ScopedVariable slots("MC_NPU_BRIDGE_SLOT", "64KB");
    const ScopedVariable own("MC_NPU_BRIDGE_RING", "192KB");
    const ScopedVariable lent("MC_NPU_BRIDGE_TARGET_RING", ring);
    ASSERT_NO_FATAL_FAILURE(OpenBoth(OneNearDevice(), OneFarDevice()));
    ExpectMixedTraffic(128);
  }
}

TEST_P(TransferStaged, UnregisteredMemoryIsRefusedAndEverythingInFlightEnds) {
  const FarMemory far = MakeFarMemory(32 * kMiB);
  NearMemory near = MakeNearMemory(32 * kMiB);
  ExpectRoundTrip(far, 1);
  std::vector<TransferRequest> requests;
  for (size_t i = 0; i < 8; ++i) {
    requests.push_back(Read(near, 0, far, 0, 16 * kMiB));
    requests.push_back(Write(near, 16 * kMiB, far, 16 * kMiB, 16 * kMiB));
  }
  const BatchId batch = Begin(requests, {.deadline = Far()});
  EXPECT_OK(far_->Do(fmt::format("unregister {}", far.address())));
  size_t refused = 0;
  for (const TransferStatus& end : EndEach(batch, requests.size())) {
    if (end.state == TransferState::kCompleted) continue;
    ++refused;
    EXPECT_EQ(ErrorCodeName(end.error.code()), "ADDRESS_NOT_REGISTERED") << end.error.ToString();
  }
  const TransferRequest late = Read(near, 0, far, 0, 4096);
  const auto after = Run({&late, 1});
  EXPECT_FALSE(after && after->state == TransferState::kCompleted) << refused;
  ExpectRoundTrip(MakeFarMemory(kMiB), 2);
}

std::vector<std::string> WiresToNpu() {
  std::vector<std::string> wires = WiresUnderTest();
  std::erase_if(wires, [](const std::string& wire) { return !FarOnNpu(wire); });
  return wires;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransferStaged);
INSTANTIATE_TEST_SUITE_P(Wires, TransferStaged, ::testing::ValuesIn(WiresToNpu()),
                         [](const auto& wire) { return wire.param; });

}  // namespace
}  // namespace mooncake::transfer_test
