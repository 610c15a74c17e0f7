// The ACL adapter: loading, contexts, and every call on the emulator.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "common/env.h"
#include "device/acl/acl_runtime.h"
#include "device/acl/test_emulator_probe.h"
#include "device/memory_range.h"
#include "device/npu_runtime.h"

namespace mooncake {
namespace {

using acl::Context;

constexpr size_t kMiB = size_t{1} << 20;

// --- error texts ---

TEST(AclErrorTest, KnownNumbersHaveNamesAndOthersDoNotFail) {
  EXPECT_EQ(acl::ErrorName(0), "SUCCESS");
  EXPECT_NE(acl::ErrorName(acl::kOutOfDeviceMemory).find("MEMORY_ALLOCATION"), std::string_view::npos);
  EXPECT_EQ(acl::ErrorName(424242), "unknown");
  EXPECT_EQ(acl::ErrorName(-1), "unknown");
}

TEST(AclErrorTest, EveryNumberThatIsActedOnHasAName) {
  for (const int code : {100000, 100002, 100039, 107000, 107001, 107002, 107003, 107020, 107023, 107030,
                         207000, 207001, 207007, 207008, 507001, 507010, 507013, 507033, 507046, 507047,
                         507052, 507053, 507054, 507899, 507900, 507901, 507910, 507911}) {
    EXPECT_NE(acl::ErrorName(code), "unknown") << code;
  }
}

TEST(AclErrorTest, StatusSaysWhatFailedAndWhatTheRuntimeSays) {
  acl::FunctionTable functions;
  functions.GetRecentErrMsg = []() -> const char* { return "EL0004: no memory"; };
  const Status status = acl::MakeStatus(functions, ErrorCode::NO_AVAILABLE_HANDLE, 207001, "allocating 10 B");
  EXPECT_EQ(status.code(), ErrorCode::NO_AVAILABLE_HANDLE);
  EXPECT_EQ(status.vendor_code(), 207001);
  for (const char* part : {"allocating 10 B", "207001", "MEMORY_ALLOCATION", "EL0004: no memory"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
}

TEST(AclErrorTest, RuntimeWithoutAMessageIsFine) {
  acl::FunctionTable functions;
  functions.GetRecentErrMsg = []() -> const char* { return nullptr; };
  EXPECT_EQ(acl::MakeStatus(functions, ErrorCode::INTERNAL_ERROR, 1, "x").message().find("runtime says"),
            std::string::npos);
}

// --- loading ---

class AclLoadTest : public ::testing::Test {
 protected:
  void Use(const char* library) { setenv(env::kAclLibrary.name, library, 1); }
  void TearDown() override { unsetenv(env::kAclLibrary.name); }
};

TEST_F(AclLoadTest, MissingLibraryIsReportedWithWhatWasTried) {
  Use("/no/such/libascendcl.so");
  const auto library = acl::LoadLibrary();
  ASSERT_FALSE(library);
  EXPECT_EQ(library.error().code(), ErrorCode::INTERNAL_ERROR);
  EXPECT_NE(library.error().message().find("/no/such/libascendcl.so"), std::string::npos) << library.error().message();
  EXPECT_NE(library.error().message().find(env::kAclLibrary.name), std::string::npos);
}

TEST_F(AclLoadTest, LibraryThatIsNoAclRuntimeIsReportedWithTheMissingSymbols) {
  Use("libdl.so.2");
  const auto library = acl::LoadLibrary();
  ASSERT_FALSE(library);
  EXPECT_EQ(library.error().code(), ErrorCode::INTERNAL_ERROR);
  EXPECT_NE(library.error().message().find("aclrtMalloc"), std::string::npos) << library.error().message();
}

TEST_F(AclLoadTest, EmptyNameMeansTheDefault) {
  Use("");
  const auto library = acl::LoadLibrary();
  ASSERT_TRUE(library) << library.error().ToString();
  EXPECT_EQ(library->path, "libascendcl.so");
}

TEST_F(AclLoadTest, ThinRuntimeLibraryServesAsWell) {
  Use("libacl_rt.so");
  const auto library = acl::LoadLibrary();
  ASSERT_TRUE(library) << library.error().ToString();
  EXPECT_EQ(library->path, "libacl_rt.so");
}

// --- contexts, on a function table that records ---

struct ContextCalls {
  static inline Context current = nullptr;
  static inline acl::AclError set_result = acl::kSuccess;
  static inline int refusals = 0;  // of the next switches, before set_result counts
  static inline std::vector<Context> set;

  static acl::FunctionTable Table() {
    acl::FunctionTable functions;
    functions.GetCurrentContext = [](Context* out) -> acl::AclError {
      *out = current;
      return current != nullptr ? acl::kSuccess : acl::kContextNull;
    };
    functions.SetCurrentContext = [](Context wanted) -> acl::AclError {
      set.push_back(wanted);
      if (refusals > 0) {
        --refusals;
        return 107000;
      }
      if (set_result == acl::kSuccess) current = wanted;
      return set_result;
    };
    functions.GetRecentErrMsg = []() -> const char* { return nullptr; };
    return functions;
  }
  static void Reset(Context now) {
    current = now;
    set_result = acl::kSuccess;
    refusals = 0;
    set.clear();
  }
};

Context Named(uintptr_t number) {
  return reinterpret_cast<Context>(number);
}

TEST(ScopedContextTest, ForeignContextIsFoundAgain) {
  const acl::FunctionTable functions = ContextCalls::Table();
  ContextCalls::Reset(Named(1));
  {
    const acl::ScopedContext scope(functions, Named(2));
    EXPECT_EQ(scope.error(), acl::kSuccess);
    EXPECT_EQ(ContextCalls::current, Named(2));
  }
  EXPECT_EQ(ContextCalls::current, Named(1));
}

TEST(ScopedContextTest, SameContextCostsNoSwitch) {
  const acl::FunctionTable functions = ContextCalls::Table();
  ContextCalls::Reset(Named(2));
  {
    const acl::ScopedContext scope(functions, Named(2));
  }
  EXPECT_TRUE(ContextCalls::set.empty());
}

TEST(ScopedContextTest, ThreadWithoutContextKeepsOurs) {
  const acl::FunctionTable functions = ContextCalls::Table();
  ContextCalls::Reset(nullptr);
  {
    const acl::ScopedContext scope(functions, Named(2));
  }
  EXPECT_EQ(ContextCalls::set, std::vector<Context>{Named(2)});
}

TEST(ScopedContextTest, RefusedSwitchIsReportedAndNothingIsSetBack) {
  const acl::FunctionTable functions = ContextCalls::Table();
  ContextCalls::Reset(Named(1));
  ContextCalls::set_result = 107000;
  {
    const acl::ScopedContext scope(functions, Named(2));
    EXPECT_EQ(scope.error(), 107000);
  }
  EXPECT_EQ(ContextCalls::set, (std::vector<Context>{Named(2), Named(2)})) << "once more, then it is an error";
  EXPECT_EQ(ContextCalls::current, Named(1));
}

TEST(ScopedContextTest, SwitchThatFailsInPassingIsTriedAgainInBothDirections) {
  const acl::FunctionTable functions = ContextCalls::Table();
  ContextCalls::Reset(Named(1));
  ContextCalls::refusals = 1;
  {
    const acl::ScopedContext scope(functions, Named(2));
    EXPECT_EQ(scope.error(), acl::kSuccess);
    EXPECT_EQ(ContextCalls::current, Named(2));
    ContextCalls::refusals = 1;
  }
  EXPECT_EQ(ContextCalls::current, Named(1)) << "the application goes on with its own device";
}

// --- on the emulator ---

class AclRuntimeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto runtime = OpenNpuRuntime();
    ASSERT_TRUE(runtime) << runtime.error().ToString();
    runtime_ = *runtime;
    ASSERT_TRUE(EmulatorProbe::Loaded());
    violations_before_ = EmulatorProbe::Stats().violations;
  }
  void TearDown() override {
    if (!EmulatorProbe::Loaded()) return;
    EmulatorProbe::Inject("");
    EXPECT_EQ(EmulatorProbe::Stats().violations - violations_before_, violations_meant_)
        << "the emulator saw a call that no release of ACL takes";
    EXPECT_EQ(EmulatorProbe::LiveBlocks(), 0);
  }
  const acl::FunctionTable& functions() { return dynamic_cast<acl::AclRuntime&>(*runtime_).library().functions; }
  std::vector<std::byte> Pattern(size_t size) {
    std::vector<std::byte> bytes(size);
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 13 + 5);
    return bytes;
  }

  std::shared_ptr<NpuRuntime> runtime_;
  uint64_t violations_before_ = 0;
  uint64_t violations_meant_ = 0;
};

TEST_F(AclRuntimeTest, ProcessSharesOneRuntime) {
  EXPECT_TRUE(NpuSupportBuilt());
  EXPECT_EQ(*OpenNpuRuntime(), runtime_);
  EXPECT_GE(runtime_->DeviceCount(), 1);
}

TEST_F(AclRuntimeTest, RuntimeCanBeOpenedAgainAfterItsLastUserWent) {
  ASSERT_TRUE(runtime_->OpenDevice(0));
  const std::weak_ptr<NpuRuntime> gone = runtime_;
  runtime_.reset();
  EXPECT_TRUE(gone.expired());
  SetUp();
  const auto block = runtime_->Allocate(0, 1000);
  ASSERT_TRUE(block) << block.error().ToString();
  EXPECT_TRUE(runtime_->Free(*block));
}

TEST_F(AclRuntimeTest, RuntimeThatCouldNotBeOpenedHoldsNoReference) {
  if (functions().FinalizeReference == nullptr) GTEST_SKIP() << "release without references";
  const auto references = [this] {
    uint64_t left = 0;
    EXPECT_EQ(functions().Init(nullptr), acl::kRepeatInitialize);  // and takes a reference
    EXPECT_EQ(functions().FinalizeReference(&left), acl::kSuccess);
    return left;
  };
  const uint64_t before = references();
  EmulatorProbe::Inject("aclrtGetDeviceCount@1=507899");
  const auto runtime = acl::AclRuntime::Open({});
  ASSERT_FALSE(runtime);
  EXPECT_NE(runtime.error().message().find("507899"), std::string::npos) << runtime.error().ToString();
  EXPECT_EQ(references(), before);
}

TEST_F(AclRuntimeTest, MissingDeviceIsRefusedEverywhere) {
  std::byte byte{};
  for (const int32_t device_id : {-1, runtime_->DeviceCount(), std::numeric_limits<int32_t>::max()}) {
    const AscendUnifiedPointer nowhere{device_id, static_cast<DeviceAddress>(0x1000)};
    for (const Status& status :
         {runtime_->OpenDevice(device_id).error(), runtime_->GetMemoryInfo(device_id).error(),
          runtime_->Allocate(device_id, 10).error(), runtime_->CopyHostToDevice(nowhere, 1, &byte, 1).error(),
          runtime_->CopyDeviceToHost(&byte, 1, nowhere, 1).error()}) {
      EXPECT_EQ(status.code(), ErrorCode::INVALID_PARAMS);
      EXPECT_NE(status.message().find(fmt::format("sees {} NPU device", runtime_->DeviceCount())), std::string::npos)
          << status.message();
    }
  }
}

TEST_F(AclRuntimeTest, BytesComeBackAsWritten) {
  const auto written = Pattern(100'003);
  std::vector<std::byte> read(written.size());
  const auto block = runtime_->Allocate(0, written.size());
  ASSERT_TRUE(block) << block.error().ToString();
  ASSERT_TRUE(runtime_->CopyHostToDevice(*block, written.size(), written.data(), written.size()));
  ASSERT_TRUE(runtime_->CopyDeviceToHost(read.data(), read.size(), *block, read.size()));
  EXPECT_EQ(read, written);
  ASSERT_TRUE(runtime_->CopyDeviceToHost(read.data(), 10, *block + 1000, 10));
  EXPECT_TRUE(std::equal(read.begin(), read.begin() + 10, written.begin() + 1000));
  EXPECT_TRUE(runtime_->Free(*block));
}

TEST_F(AclRuntimeTest, CopyBeyondTheTargetIsRefusedByTheRuntime) {
  const auto source = Pattern(100);
  const auto block = runtime_->Allocate(0, 50);
  ASSERT_TRUE(block);
  violations_meant_ = 1;
  const auto copied = runtime_->CopyHostToDevice(*block, 50, source.data(), 100);
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.error().code(), ErrorCode::DATA_COPY_FAILED);
  EXPECT_NE(copied.error().vendor_code(), 0);
  EXPECT_NE(copied.error().message().find("100 B from host to NPU device 0"), std::string::npos);
  EXPECT_TRUE(runtime_->Free(*block));
}

TEST_F(AclRuntimeTest, FreeMemoryFallsByWhatIsAllocated) {
  const auto before = runtime_->GetMemoryInfo(0);
  ASSERT_TRUE(before) << before.error().ToString();
  const auto block = runtime_->Allocate(0, 8 * kMiB);
  ASSERT_TRUE(block);
  const auto during = runtime_->GetMemoryInfo(0);
  ASSERT_TRUE(during);
  EXPECT_EQ(during->free_bytes, before->free_bytes - 8 * kMiB) << "whole pages take no page more";
  EXPECT_EQ(during->total_bytes, before->total_bytes);
  EXPECT_TRUE(runtime_->Free(*block));
  EXPECT_EQ(runtime_->GetMemoryInfo(0)->free_bytes, before->free_bytes);
}

TEST_F(AclRuntimeTest, FullDeviceAnswersNoAvailableHandleWithItsNumber) {
  const auto memory = runtime_->GetMemoryInfo(0);
  ASSERT_TRUE(memory);
  const auto block = runtime_->Allocate(0, memory->total_bytes + kMiB);
  ASSERT_FALSE(block);
  EXPECT_EQ(block.error().code(), ErrorCode::NO_AVAILABLE_HANDLE);
  EXPECT_EQ(block.error().vendor_code(), acl::kOutOfDeviceMemory);
}

// Each call that reaches the device fails once, at that call; the error says which, and nothing leaks.
TEST_F(AclRuntimeTest, EveryFailingCallIsReportedWithItsNumber) {
  const auto bytes = Pattern(1000);
  std::vector<std::byte> read(1000);
  const auto block = runtime_->Allocate(0, 1000);
  ASSERT_TRUE(block);
  struct Case {
    const char* rules;
    ErrorCode code;
    int32_t vendor_code;
    std::function<Status()> call;
  };
  const auto status_of = [](const auto& result) { return result ? Status() : result.error(); };
  const std::vector<Case> cases = {
      {"aclrtMallocAlign32@1=507899;aclrtMalloc@1=507899", ErrorCode::INTERNAL_ERROR, 507899,
       [&] { return status_of(runtime_->Allocate(0, 10)); }},
      {EmulatorProbe::kMallocOutOfMemory, ErrorCode::NO_AVAILABLE_HANDLE, 207001,
       [&] { return status_of(runtime_->Allocate(0, 10)); }},
      {"aclrtGetMemInfo@1=507899", ErrorCode::INTERNAL_ERROR, 507899,
       [&] { return status_of(runtime_->GetMemoryInfo(0)); }},
      {"aclrtMemcpy@1=507013", ErrorCode::DATA_COPY_FAILED, 507013,
       [&] { return status_of(runtime_->CopyHostToDevice(*block, 1000, bytes.data(), 1000)); }},
      {"aclrtMemcpy@1=507001", ErrorCode::DATA_COPY_FAILED, 507001,
       [&] { return status_of(runtime_->CopyDeviceToHost(read.data(), 1000, *block, 1000)); }},
      // A free is tried twice.
      {"aclrtFree@1=507899;aclrtFree@2=507899", ErrorCode::INTERNAL_ERROR, 507899,
       [&] { return status_of(runtime_->Free(*block)); }},
  };
  for (const Case& one : cases) {
    EmulatorProbe::Inject(one.rules);
    const Status status = one.call();
    EmulatorProbe::Inject("");
    EXPECT_EQ(status.code(), one.code) << one.rules << ": " << status.ToString();
    EXPECT_EQ(status.vendor_code(), one.vendor_code) << one.rules;
    EXPECT_NE(status.message().find(std::to_string(one.vendor_code)), std::string::npos) << status.message();
  }
  EXPECT_TRUE(runtime_->Free(*block));
}

TEST(StagingOptionsTest, SizeOfTheRingIsReadAndChecked) {
  EXPECT_EQ(acl::StagingOptions(std::nullopt)->ring_bytes, size_t{16} << 20);
  EXPECT_EQ(acl::StagingOptions("")->ring_bytes, size_t{16} << 20);
  EXPECT_EQ(acl::StagingOptions("64MB")->ring_bytes, size_t{64} << 20);
  EXPECT_EQ(acl::StagingOptions("0")->ring_bytes, 0u);
  for (const char* wrong : {"many", "-1", "1KB", "17GB", "16 slots"}) {
    const auto options = acl::StagingOptions(wrong);
    ASSERT_FALSE(options) << wrong;
    EXPECT_EQ(options.error().code(), ErrorCode::INVALID_PARAMS);
    EXPECT_NE(options.error().message().find("MC_NPU_STAGING="), std::string::npos) << options.error().message();
  }
}

TEST_F(AclRuntimeTest, FreeThatFailsOnceIsTriedAgain) {
  const auto block = runtime_->Allocate(0, 1000);
  ASSERT_TRUE(block);
  EmulatorProbe::Inject("aclrtFree@1=507899");
  EXPECT_TRUE(runtime_->Free(*block));
  EXPECT_EQ(EmulatorProbe::LiveBlocks(), 0);
}

TEST_F(AclRuntimeTest, DeviceThatCannotBeBoundIsReportedAndCanBeTriedAgain) {
  EmulatorProbe::Inject("aclrtSetDevice@1=507033");
  const auto opened = runtime_->OpenDevice(0);
  EmulatorProbe::Inject("");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().vendor_code(), 507033);
  EXPECT_TRUE(runtime_->OpenDevice(0));
}

TEST_F(AclRuntimeTest, OpeningADeviceDoesNotBindTheCallingThread) {
  ASSERT_TRUE(runtime_->OpenDevice(0));
  std::thread([&] {
    ASSERT_TRUE(runtime_->OpenDevice(1));
    Context context = nullptr;
    EXPECT_EQ(functions().GetCurrentContext(&context), acl::kContextNull);
  }).join();
}

TEST_F(AclRuntimeTest, ApplicationFindsItsOwnDeviceCurrentAfterwards) {
  ASSERT_GE(runtime_->DeviceCount(), 2);
  std::thread([&] {
    ASSERT_EQ(functions().SetDevice(1), acl::kSuccess);  // what the application chose for this thread
    Context mine = nullptr;
    ASSERT_EQ(functions().GetCurrentContext(&mine), acl::kSuccess);
    const auto bytes = Pattern(100);
    std::vector<std::byte> read(100);
    const auto block = runtime_->Allocate(0, 100);
    ASSERT_TRUE(block);
    EXPECT_TRUE(runtime_->CopyHostToDevice(*block, 100, bytes.data(), 100));
    EXPECT_TRUE(runtime_->CopyDeviceToHost(read.data(), 100, *block, 100));
    EXPECT_TRUE(runtime_->GetMemoryInfo(0));
    EXPECT_TRUE(runtime_->Free(*block));
    EXPECT_EQ(read, bytes);
    Context now = nullptr;
    ASSERT_EQ(functions().GetCurrentContext(&now), acl::kSuccess);
    EXPECT_EQ(now, mine);
    EXPECT_EQ(functions().ResetDevice(1), acl::kSuccess);
  }).join();
}

TEST_F(AclRuntimeTest, BlockMayBeFreedOnAThreadWithoutDevice) {
  const auto block = runtime_->Allocate(0, 1000);
  ASSERT_TRUE(block);
  std::thread([&] { EXPECT_TRUE(runtime_->Free(*block)); }).join();
}

TEST_F(AclRuntimeTest, TellsDeviceMemoryFromHostMemory) {
  ASSERT_GE(runtime_->DeviceCount(), 2);
  const auto block = runtime_->Allocate(1, 1000);
  ASSERT_TRUE(block);
  const auto* inside = reinterpret_cast<const std::byte*>(static_cast<uintptr_t>(block->device_ptr)) + 500;
  EXPECT_EQ(runtime_->DeviceOf(inside), 1);
  const std::byte host{};
  EXPECT_EQ(runtime_->DeviceOf(&host), std::nullopt);
  EXPECT_TRUE(runtime_->Free(*block));
}

// --- NPU ranges ---

TEST_F(AclRuntimeTest, RangeKnowsItsSizeAndParts) {
  const NpuRange npu{{1, static_cast<DeviceAddress>(0x1000)}, 100, runtime_.get()};
  const MemoryRange whole = npu;
  EXPECT_EQ(SizeOf(whole), 100u);
  EXPECT_FALSE(IsHost(whole));
  const auto part = std::get<NpuRange>(SubRange(whole, 40, 60));
  EXPECT_EQ(part.at.device_id, 1);
  EXPECT_EQ(static_cast<uintptr_t>(part.at.device_ptr), 0x1028u);
  EXPECT_EQ(part.size, 60u);
  EXPECT_EQ(part.runtime, runtime_.get());
}

TEST_F(AclRuntimeTest, RangeIsReadAndWrittenInParts) {
  const auto block = runtime_->Allocate(0, 1000);
  ASSERT_TRUE(block);
  const MemoryRange middle = SubRange(NpuRange{*block, 1000, runtime_.get()}, 250, 500);
  auto written = Pattern(500);
  std::vector<std::byte> read(500);
  ASSERT_TRUE(CopyFromHost(middle, written));
  ASSERT_TRUE(CopyToHost(HostRange(read), middle));
  EXPECT_EQ(read, written);
  EmulatorProbe::Inject("aclrtMemcpy@1=507013");
  const auto refused = CopyFromHost(middle, written);
  EmulatorProbe::Inject("aclrtMemcpy@1=507001");
  const auto unread = CopyToHost(HostRange(read), middle);
  ASSERT_TRUE(!refused && !unread);
  EXPECT_EQ(refused.error().vendor_code(), 507013);
  EXPECT_EQ(unread.error().vendor_code(), 507001);
  EXPECT_TRUE(runtime_->Free(*block));
}

TEST_F(AclRuntimeTest, RangeOfZeroBytesDoesNotReachTheDevice) {
  const auto block = runtime_->Allocate(0, 10);
  ASSERT_TRUE(block);
  const aclemu_stats before = EmulatorProbe::Stats();
  const MemoryRange nothing = SubRange(NpuRange{*block, 10, runtime_.get()}, 5, 0);
  EXPECT_TRUE(CopyFromHost(nothing, {}));
  EXPECT_TRUE(CopyToHost({}, nothing));
  const aclemu_stats after = EmulatorProbe::Stats();
  for (const int direction : {ACLEMU_H2D, ACLEMU_D2H}) {
    EXPECT_EQ(after.sync_copies[direction], before.sync_copies[direction]);
  }
  EXPECT_TRUE(runtime_->Free(*block));
}

// --- threads ---

TEST_F(AclRuntimeTest, ThreadsUseBothDevicesAtOnce) {
  ASSERT_GE(runtime_->DeviceCount(), 2);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        const std::vector<std::byte> written(1000, static_cast<std::byte>(t * 31 + i));
        std::vector<std::byte> read(1000);
        const auto block = runtime_->Allocate((t + i) % 2, 1000);
        if (!block || !runtime_->CopyHostToDevice(*block, 1000, written.data(), 1000) ||
            !runtime_->CopyDeviceToHost(read.data(), 1000, *block, 1000) || !runtime_->Free(*block) ||
            read != written) {
          wrong.fetch_add(1);
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace mooncake
