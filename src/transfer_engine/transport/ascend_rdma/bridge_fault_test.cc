// The fault matrix: whatever fails at whichever step of a write or a read, the operation ends once with the right
// error, the next one is fine, and slots, streams, events and registrations are all returned (the fixture counts).
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "transfer_engine/transport/ascend_rdma/test_bridge_emulator.h"

namespace mooncake::bridge {
namespace {

using std::chrono::milliseconds;
constexpr size_t kSlot = 64 << 10;
constexpr auto kWrite = TransferOpcode::kWrite;
constexpr auto kRead = TransferOpcode::kRead;

class BridgeFaults : public BridgeEmulatorTest {
 protected:
  void SetUp() override {
    BridgeEmulatorTest::SetUp();
    memory_ = Allocate(kSize + 128);
    Fill(memory_, Pattern(kSize + 128, 1));
    remote_ = Pattern(kSize, 2);
  }
  // With the slow machine in mind: only tests of what hangs may take a copy for one that does.
  static AscendRdmaOptions Patient() {
    AscendRdmaOptions options = SmallRing();
    options.lane.wire_grace = milliseconds(20);
    return options;
  }
  static AscendRdmaOptions Impatient() {
    AscendRdmaOptions options = Patient();
    options.lane.copy_patience = milliseconds(500);
    return options;
  }
  // One operation, of several chunks, with `rules` in force; its end.
  Result<void> Run(TransferOpcode opcode, const char* rules, size_t phase = 0, size_t length = kSize) {
    Ends ends;
    EmulatorProbe::Inject(rules);
    Submit(Make(opcode, memory_ + phase, length, remote_.data(), ends.Done(0)));
    wire_.Serve([&] { return ends.count() == 1; }, outcome_);
    EmulatorProbe::Inject("");
    return ends.of(0);
  }
  void NextIsFine() {
    outcome_ = nullptr;
    wire_.answer = nullptr;
    for (const auto opcode : {kWrite, kRead}) {
      const auto bytes = Pattern(kSize, 3);
      if (opcode == kWrite) Fill(memory_, bytes);
      if (opcode == kRead) remote_ = bytes;
      const auto result = Run(opcode, "");
      ASSERT_TRUE(result) << result.error().ToString();
      EXPECT_EQ(opcode == kWrite ? remote_ : Content(memory_, kSize), bytes);
    }
  }

  static constexpr size_t kSize = 3 * kSlot + 100;
  AscendUnifiedPointer memory_;
  std::vector<std::byte> remote_;
  std::function<Result<void>(const TransferOperation&)> outcome_;
};

struct CopyFault {
  TransferOpcode opcode;
  const char* rules;
  size_t phase;
  ErrorCode code;
  int vendor;
  bool asynchronous;  // only where copies are
};

TEST_F(BridgeFaults, D3D4C4EveryStepOfACopy) {
  const ErrorCode failed = ErrorCode::DATA_COPY_FAILED;
  const CopyFault faults[] = {
      {kWrite, "D2H@1=507899", 0, failed, 507899, false},
      {kWrite, "D2H@3=507899", 7, failed, 507899, false},
      {kRead, "H2D@1=507899", 0, failed, 507899, false},
      {kRead, "H2D@2=507899", 7, failed, 507899, false},
      {kWrite, "D2H@2=partial,507899", 0, failed, 507899, false},
      {kRead, "H2D@2=partial,507899", 0, failed, 507899, false},
      {kWrite, "aclrtMemcpyAsync@1=507899", 0, failed, 507899, true},
      {kRead, "aclrtMemcpyAsync@1=507899", 0, failed, 507899, true},
      {kWrite, "aclrtMemcpyAsync@2:exec=507001", 0, failed, 507001, true},
      {kRead, "aclrtMemcpyAsync@2:exec=507001", 0, failed, 507001, true},
      {kRead, "aclrtMemcpy@1=507899", 5, failed, 507899, true},             // the bytes before the first aligned one
      {kWrite, "aclrtStreamQuery@1:x3=507899", 0, ErrorCode::OK, 0, true},  // synchronizing tells what is true
      {kRead, "aclrtStreamQuery@1:x3=507899", 0, ErrorCode::OK, 0, true},
      {kWrite, "aclrtSynchronizeStreamWithTimeout@1=507899", 0, failed, 507899, true},
      {kRead, "aclrtSynchronizeStreamWithTimeout@1=507899", 0, failed, 507899, true},
      {kWrite, "aclrtSynchronizeStreamWithTimeout@1:x4=507899", 0, failed, 507899, true},
      {kRead, "aclrtSynchronizeStreamWithTimeout@1:x4=507899", 0, failed, 507899, true},
      {kWrite, "aclrtMemcpyAsync@1=507899;aclrtSynchronizeStreamWithTimeout@1=507001", 0, failed, 507899, true},
  };
  Open(Patient());
  for (const CopyFault& fault : faults) {
    if (fault.asynchronous && !Asynchronous()) continue;
    SCOPED_TRACE(std::string(fault.opcode == kWrite ? "write " : "read ") + fault.rules);
    const uint64_t fired = EmulatorProbe::Stats().faults_fired;
    const auto result = Run(fault.opcode, fault.rules, fault.phase);
    EXPECT_GT(EmulatorProbe::Stats().faults_fired, fired) << "nothing failed";
    EXPECT_EQ(result ? ErrorCode::OK : result.error().code(), fault.code);
    if (!result) {
      EXPECT_EQ(result.error().vendor_code(), fault.vendor) << result.error().ToString();
      EXPECT_NE(result.error().message().find("store"), std::string::npos) << result.error().ToString();
    }
    NextIsFine();
    EXPECT_EQ(bridge_->counters(0)->quarantines, 0u);
  }
}

// Small operations share a slot and one batch of copies.
TEST_F(BridgeFaults, ABatchThatIsRefusedEndsAllOfItsOperations) {
  Open(Patient());
  for (const auto opcode : {kWrite, kRead}) {
    Ends ends;
    EmulatorProbe::Inject(HasFunction("aclrtMemcpyBatchAsync") ? "aclrtMemcpyBatchAsync@1=507899"
                          : opcode == kWrite                   ? "D2H@1=507899"
                                                               : "H2D@1=507899");
    std::vector<TransferOperation> list;
    for (size_t i = 0; i < 6; ++i) {
      list.push_back(Make(opcode, memory_ + i * 1024, 1000, remote_.data() + i * 1024, ends.Done(i)));
    }
    bridge_->Submit(std::move(list), Caller::kGoesOn);
    wire_.Serve([&] { return ends.count() == 6; });
    EmulatorProbe::Inject("");
    size_t failures = 0;
    for (size_t i = 0; i < 6; ++i) failures += ends.code(i) == ErrorCode::DATA_COPY_FAILED ? 1 : 0;
    EXPECT_GE(failures, 4u);
    NextIsFine();
  }
}

TEST_F(BridgeFaults, C7ACopyThatHangsIsAbortedAndItsStreamReplaced) {
  if (!HasFunction("aclrtStreamAbort")) GTEST_SKIP() << "this release cannot abort";
  AscendRdmaOptions options = Impatient();
  options.copies_per_direction = 1;
  Open(options);
  for (const auto opcode : {kWrite, kRead}) {
    const auto hung = Run(opcode, "aclrtMemcpyAsync@2:exec=hang,507001");
    EXPECT_EQ(hung ? ErrorCode::OK : hung.error().code(), ErrorCode::DATA_COPY_FAILED);
    // Another stream has to be made now, and that may fail, too.
    const auto no_stream = Run(opcode, "aclrtCreateStreamWithConfig@1=507899");
    ASSERT_FALSE(no_stream);
    EXPECT_EQ(no_stream.error().vendor_code(), 507899);
    NextIsFine();
  }
  EXPECT_EQ(bridge_->counters(0)->quarantines, 2u);
}

// Neither asked nor synchronized, and full of work: its end would wait for ever, and all of the lane with it.
TEST_F(BridgeFaults, AStreamThatAnswersNothingAndHangsDoesNotStopTheLane) {
  if (!HasFunction("aclrtStreamAbort")) GTEST_SKIP() << "this release cannot abort";
  Open(Patient());
  for (const auto opcode : {kWrite, kRead}) {
    const auto result = Run(opcode,
                            "aclrtMemcpyAsync@1:exec=hang;aclrtStreamQuery@1:x2=507899;"
                            "aclrtSynchronizeStreamWithTimeout@1:x2=507899",
                            0, kSlot / 4);  // one copy: both errors are its stream's
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), ErrorCode::DATA_COPY_FAILED);
    EXPECT_EQ(result.error().vendor_code(), 507899);
    NextIsFine();
  }
}

TEST_F(BridgeFaults, ADeviceThatIsSaidToBeLostTakesItsLaneOnly) {
  Open(Patient(), {0, 1});
  const SegmentRegion region;
  for (const int32_t lost : {0, 1}) {
    const auto opcode = lost == 0 ? kWrite : kRead;
    const AscendUnifiedPointer other = Allocate(kSize, 1);
    const NpuRange range{lost == 0 ? memory_ : other, kSize, runtime_.get()};
    EXPECT_TRUE(bridge_->Reaches(range, *peer_, region));
    Ends ends;
    EmulatorProbe::Inject(opcode == kWrite ? "D2H@2:call=507010" : "H2D@2:call=507010");
    for (size_t i = 0; i < 3; ++i) Submit(Make(opcode, range.at, kSize, remote_.data(), ends.Done(i)));
    wire_.Serve([&] { return ends.count() == 3; });
    EmulatorProbe::Inject("");
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(ends.code(i), ErrorCode::DEVICE_NOT_FOUND) << ends.of(i).error().ToString();
      EXPECT_EQ(ends.of(i).error().vendor_code(), 507010);
    }
    EXPECT_FALSE(bridge_->Reaches(range, *peer_, region));
    Submit(Make(opcode, range.at, kSize, remote_.data(), ends.Done(3)));
    ASSERT_TRUE(ends.Await(4));
    EXPECT_EQ(ends.code(3), ErrorCode::DEVICE_NOT_FOUND);
    Region more{.address = 1, .length = 1, .options = {.device_id = lost}};
    EXPECT_EQ(bridge_->RegisterRegion(more).error().code(), ErrorCode::DEVICE_NOT_FOUND);
    if (lost == 0) {
      const auto alive = Allocate(1000, 1);
      Submit(Make(kWrite, alive, 1000, remote_.data(), ends.Done(4)));
      wire_.Serve([&] { return ends.count() == 5; });
      EXPECT_EQ(ends.code(4), ErrorCode::OK);
    }
  }
}

// For good, as nothing brings it back: in a process of its own.
TEST_F(BridgeFaults, ADeviceThatIsLostInTheMiddleEndsEverythingAndTheBridgeCloses) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto lose = [this](TransferOpcode opcode) {
    const int64_t pinned = static_cast<int64_t>(EmulatorProbe::Stats().host_live_blocks);
    AscendRdmaOptions options = Patient();
    options.copies_per_direction = 1;
    Open(options);
    NextIsFine();  // all streams have been used
    Ends ends;
    for (size_t i = 0; i < 8; ++i) Submit(Make(opcode, memory_, kSize, remote_.data(), ends.Done(i)));
    if (!wire_.AwaitHeld(2)) _exit(2);
    wire_.EndOne();
    EmulatorProbe::Inject("dev0@t0=lost");
    wire_.Serve([&] { return ends.count() == 8; });
    // Those whose copies were over by then may have been lucky.
    for (size_t i = 0; i < 8; ++i) {
      const ErrorCode code = ends.code(i);
      const bool fine = code == ErrorCode::DEVICE_NOT_FOUND || (code == ErrorCode::OK && i < 4);
      if (!fine) fmt::print(stderr, "{}: {}\n", i, Status(code, "").ToString());
      if (!fine) _exit(3);
    }
    const bool reached = bridge_->Reaches(NpuRange{memory_, 1, runtime_.get()}, *peer_, {});
    bridge_.reset();
    const bool left = static_cast<int64_t>(EmulatorProbe::Stats().host_live_blocks) != pinned;
    fmt::print(stderr, "{}{} over\n", reached ? "reached" : "", left ? " left" : "");
    _exit(0);
  };
  EXPECT_EXIT(lose(kWrite), testing::ExitedWithCode(0), "\n over\n");
  EXPECT_EXIT(lose(kRead), testing::ExitedWithCode(0), "\n over\n");
}

// Each call that opening a bridge makes fails once; it is up completely then, or not there at all.
TEST_F(BridgeFaults, C14D7EveryStepOfOpening) {
  AscendRdmaOptions options = Patient();
  options.calibrate = true;
  const std::vector<const char*> functions = {"aclrtMallocAlign32",
                                              "aclrtMalloc",
                                              "aclrtFree",
                                              "aclrtHostRegister",
                                              "aclrtHostRegisterV2",
                                              "aclrtCreateStreamWithConfig",
                                              "aclrtMemcpyAsync",
                                              "aclrtMemcpy",
                                              "aclrtStreamQuery",
                                              "aclrtSynchronizeStreamWithTimeout",
                                              "aclrtSetCurrentContext"};
  std::vector<uint64_t> calls;
  for (const char* function : functions) calls.push_back(EmulatorProbe::Calls(function));
  Open(options);
  for (size_t i = 0; i < functions.size(); ++i) calls[i] = EmulatorProbe::Calls(functions[i]) - calls[i];
  bridge_.reset();
  size_t refused = 0;
  for (size_t i = 0; i < functions.size(); ++i) {
    for (const uint64_t call : {uint64_t{1}, calls[i] / 2, calls[i]}) {
      if (call == 0 || call > calls[i]) continue;
      SCOPED_TRACE(fmt::format("{}@{}", functions[i], call));
      EmulatorProbe::Inject(fmt::format("{}@{}=507899", functions[i], call).c_str());
      auto opened = AscendRdmaTransport::Open(runtime_, {&wire_}, options, {0});
      EmulatorProbe::Inject("");
      if (opened) {
        bridge_ = std::move(*opened);
        NextIsFine();
        bridge_.reset();
      } else {
        ++refused;
        EXPECT_EQ(opened.error().vendor_code(), 507899) << opened.error().ToString();
      }
      EXPECT_TRUE(wire_.registered().empty());
      EXPECT_EQ(EmulatorProbe::Stats().streams_live, before_.streams_live);
      EXPECT_EQ(EmulatorProbe::Stats().host_live_blocks, before_.host_live_blocks);
      EXPECT_EQ(EmulatorProbe::LiveBlocks(), 1);  // the fixture's
    }
  }
  EXPECT_GE(refused, Asynchronous() ? 5u : 2u);
  wire_.fail_register = true;
  EXPECT_FALSE(AscendRdmaTransport::Open(runtime_, {&wire_}, options, {0}));
}

TEST_F(BridgeFaults, C14EveryStepOfClosing) {
  for (const char* rules : {"aclrtDestroyStream@1=507899", "aclrtHostUnregister@1=507899", "aclrtFree@1=507899"}) {
    SCOPED_TRACE(rules);
    if (!Asynchronous()) break;
    Open(Patient());
    NextIsFine();
    EmulatorProbe::Inject(rules);
    bridge_.reset();
    EmulatorProbe::Inject("");
    EXPECT_EQ(EmulatorProbe::Stats().streams_live, before_.streams_live);
    EXPECT_EQ(EmulatorProbe::Stats().host_live_blocks, before_.host_live_blocks);
  }
}

// What the wire answers is what the operation ends with; only a broken connection is tried again, from the slot.
TEST_F(BridgeFaults, C8EveryAnswerOfTheWire) {
  Open(Patient());
  for (const auto opcode : {kWrite, kRead}) {
    for (const auto code : {ErrorCode::ADDRESS_NOT_REGISTERED, ErrorCode::STALE_SEGMENT, ErrorCode::TRANSFER_TIMEOUT,
                            ErrorCode::SHUTTING_DOWN, ErrorCode::TRANSFER_FAIL}) {
      for (const bool at_once : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {}", opcode == kWrite ? "write" : "read", Status(code, "").ToString()));
        outcome_ = [&](const TransferOperation&) { return Result<void>(Error(code, "no")); };
        if (at_once) wire_.answer = [&](const TransferOperation& one) { return std::optional(outcome_(one)); };
        const uint64_t retries = bridge_->counters(0)->wire_retries;
        const auto before = Content(memory_, kSize + 128);
        const auto result = Run(opcode, "");
        EXPECT_EQ(result ? ErrorCode::OK : result.error().code(), code);
        const uint64_t more = bridge_->counters(0)->wire_retries - retries;
        EXPECT_EQ(more > 0, code == ErrorCode::TRANSFER_FAIL);
        EXPECT_EQ(Content(memory_, kSize + 128), before) << "no chunk arrived, so none may be written";
        NextIsFine();
        // A connection that comes back costs no second copy.
        int failures = 2;
        outcome_ = [&](const TransferOperation&) {
          return failures-- > 0 ? Result<void>(Error(ErrorCode::TRANSFER_FAIL, "broken")) : Result<void>{};
        };
        EXPECT_TRUE(Run(opcode, ""));
      }
    }
  }
}

// A wire that keeps what it should have ended: the operation is told, its slot is nobody's until the late end, and what
// comes late reaches nobody's memory.
TEST_F(BridgeFaults, C7C17AWireThatEndsLongAfterItShould) {
  Open(Patient());
  wire_.ends_canceled = false;
  for (const auto opcode : {kWrite, kRead}) {
    Fill(memory_, Pattern(kSize, 6));
    Ends ends;
    Submit(Make(opcode, memory_, kSlot / 4, remote_.data(), ends.Done(0)));
    ASSERT_TRUE(wire_.AwaitHeld(1));
    bridge_->Cancel(1);
    ASSERT_TRUE(ends.Await(1));
    EXPECT_EQ(ends.code(0), ErrorCode::TRANSFER_CANCELED);
    EXPECT_EQ(wire_.held(), 1u);
    EXPECT_EQ(wire_.canceled().size(), opcode == kWrite ? 1u : 2u);
    EXPECT_EQ(bridge_->counters(0)->quarantines, opcode == kWrite ? 1u : 2u);
    remote_.assign(kSize, std::byte{0x99});
    wire_.EndOne();
    EXPECT_EQ(Content(memory_, kSize), Pattern(kSize, 6));
    NextIsFine();
  }
}

TEST_F(BridgeFaults, C17ADeadlineEndsWhateverTheWireDoes) {
  Open(Patient());
  wire_.ends_canceled = false;
  for (const auto opcode : {kWrite, kRead}) {
    Ends ends;
    Submit(Make(opcode, memory_, kSize, remote_.data(), ends.Done(0), 1, milliseconds(20)));
    ASSERT_TRUE(ends.Await(1));
    EXPECT_EQ(ends.code(0), ErrorCode::TRANSFER_TIMEOUT);
    while (wire_.EndOne()) continue;
    NextIsFine();
  }
}

// All slots set aside: whoever waits for one is told all the same.
TEST_F(BridgeFaults, C7AWireThatNeverEndsAnythingUntilTheBridgeCloses) {
  AscendRdmaOptions options = Patient();
  options.ring_bytes = 2 * options.slot_bytes;
  Open(options);
  wire_.ends_canceled = false;
  Ends ends;
  for (size_t i = 0; i < 6; ++i) {
    Submit(Make(i % 2 == 0 ? kRead : kWrite, memory_, kSlot, remote_.data(), ends.Done(i)));
  }
  ASSERT_TRUE(wire_.AwaitHeld(2));
  bridge_->Cancel(1);
  ASSERT_TRUE(ends.Await(6));
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(ends.code(i), ErrorCode::TRANSFER_CANCELED);
  EXPECT_EQ(wire_.held(), 2u);
  // The memory may not be given back under the network device: closing waits for the wire.
  std::atomic<bool> closed = false;
  std::thread closing([&] {
    bridge_.reset();
    closed = true;
  });
  while (wire_.held() > 0) {
    EXPECT_FALSE(closed);
    wire_.EndOne();
  }
  closing.join();
}

}  // namespace
}  // namespace mooncake::bridge
