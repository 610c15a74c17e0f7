// Copies of every kind through the ACL driver, page-locked memory, lost devices and page accounting, on the emulator.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "device/acl/acl_runtime.h"
#include "device/acl/test_emulator_probe.h"
#include "device/memory_range.h"
#include "device/test_pattern.h"

namespace mooncake {
namespace {

using acl::AclRuntime;
// Host memory on pages of its own.
class HostPages {
 public:
  explicit HostPages(size_t size) : size_(size) {
    void* map = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MC_CHECK(map != MAP_FAILED, "no memory");
    begin_ = static_cast<std::byte*>(map);
    std::memset(begin_, 0, size);
  }
  ~HostPages() { munmap(begin_, size_); }
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;
  std::span<std::byte> bytes() const { return {begin_, size_}; }

 private:
  size_t size_;
  std::byte* begin_;
};

class AclCopyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Open({});
    ASSERT_GE(runtime_->DeviceCount(), 2);
    before_ = EmulatorProbe::Stats();
  }
  void Open(CopyEngineOptions options) {
    runtime_.reset();
    auto runtime = AclRuntime::Open(options);
    ASSERT_TRUE(runtime) << runtime.error().ToString();
    runtime_ = *runtime;
  }
  void TearDown() override {
    EmulatorProbe::Inject("");
    blocks_.clear();
    runtime_.reset();
    const aclemu_stats after = EmulatorProbe::Stats();
    EXPECT_EQ(after.violations, before_.violations) << "the emulator saw a call that no release of ACL takes";
    EXPECT_EQ(after.device_live_blocks, 0u);
    EXPECT_EQ(after.host_live_blocks, 0u);
    EXPECT_EQ(after.streams_live, 0u);
    EXPECT_EQ(after.events_live, 0u);
  }

  AscendUnifiedPointer Block(int32_t device_id, size_t size) {
    const auto block = runtime_->Allocate(device_id, size);
    EXPECT_TRUE(block) << block.error().ToString();
    blocks_.push_back(std::shared_ptr<void>(nullptr, [this, at = *block](void*) { EXPECT_TRUE(runtime_->Free(at)); }));
    return *block;
  }
  // What a device holds, without a copy.
  static Bytes Peek(AscendUnifiedPointer at, size_t size) {
    Bytes bytes(size);
    EmulatorProbe::Peek(acl::ToPointer(at), bytes);
    return bytes;
  }
  static void Poke(AscendUnifiedPointer at, const Bytes& bytes) { EmulatorProbe::Poke(acl::ToPointer(at), bytes); }
  const acl::FunctionTable& functions() { return runtime_->library().functions; }
  NpuRange Range(AscendUnifiedPointer at, size_t size) { return {at, size, runtime_.get()}; }

  std::shared_ptr<AclRuntime> runtime_;
  std::vector<std::shared_ptr<void>> blocks_;
  aclemu_stats before_{};
};

// --- all ways ---

TEST_F(AclCopyTest, EverySizeAndOffsetArrivesFromAndToEveryKindOfHostMemory) {
  constexpr size_t kMax = 5 * kMiB;
  const auto device = Block(0, kMax + 128);
  HostPages ordinary(kMax + 4096);
  HostPages registered(kMax + 4096);
  const auto registration = runtime_->RegisterHost(0, registered.bytes());
  ASSERT_TRUE(registration || registration.error().code() == ErrorCode::NOT_IMPLEMENTED);
  const auto pinned = runtime_->driver().AllocatePinned(0, kMax + 4096);
  ASSERT_TRUE(pinned);
  unsigned seed = 0;
  for (const std::span<std::byte> host : {ordinary.bytes(), registered.bytes(), (*pinned)->bytes()}) {
    for (const size_t size : {size_t{1}, 64 * kKiB, 256 * kKiB - 1, 256 * kKiB, 256 * kKiB + 1, kMiB, 2 * kMiB + 64,
                              4 * kMiB - 64, 5 * kMiB}) {
      for (const auto& [host_offset, device_offset] : {std::pair(0, 0), {64, 64}, {1, 0}, {0, 1}, {3, 64}}) {
        const Bytes source = Pattern(size, ++seed);
        std::copy(source.begin(), source.end(), host.begin() + host_offset);
        const auto at = device + static_cast<size_t>(device_offset);
        const auto up = runtime_->CopyHostToDevice(at, size, host.data() + host_offset, size);
        ASSERT_TRUE(up) << up.error().ToString();
        ASSERT_EQ(Peek(at, size), source) << size << " at " << host_offset << ", " << device_offset;
        std::fill_n(host.begin() + host_offset, size, std::byte{0});
        const auto down = runtime_->CopyDeviceToHost(host.data() + host_offset, size, at, size);
        ASSERT_TRUE(down) << down.error().ToString();
        ASSERT_TRUE(std::equal(source.begin(), source.end(), host.begin() + host_offset));
      }
    }
  }
}

TEST_F(AclCopyTest, LargeCopiesAreAsynchronousAndSmallOnesAreNot) {
  const auto device = Block(0, 4 * kMiB);
  const Bytes source = Pattern(4 * kMiB);
  ASSERT_TRUE(runtime_->CopyHostToDevice(device, source.size(), source.data(), 1000));
  aclemu_stats now = EmulatorProbe::Stats();
  EXPECT_EQ(now.sync_copies[ACLEMU_H2D], before_.sync_copies[ACLEMU_H2D] + 1);
  ASSERT_TRUE(runtime_->CopyHostToDevice(device, source.size(), source.data(), source.size()));
  now = EmulatorProbe::Stats();
  EXPECT_EQ(now.sync_copies[ACLEMU_H2D], before_.sync_copies[ACLEMU_H2D] + 1);
  EXPECT_EQ(now.async_copies[ACLEMU_H2D], before_.async_copies[ACLEMU_H2D] + 4);
  EXPECT_EQ(now.host_live_bytes, 16 * kMiB) << "the ring";
}

TEST_F(AclCopyTest, MemoryTheApplicationPageLockedItselfIsNotStaged) {
  const auto device = Block(0, 4 * kMiB);
  void* host = nullptr;
  std::thread([&] {
    ASSERT_EQ(functions().SetDevice(0), acl::kSuccess);
    ASSERT_EQ(functions().MallocHost(&host, 4 * kMiB), acl::kSuccess);
    ASSERT_EQ(functions().ResetDevice(0), acl::kSuccess);
  }).join();
  std::memset(host, 7, 4 * kMiB);
  ASSERT_TRUE(runtime_->CopyHostToDevice(device, 4 * kMiB, static_cast<std::byte*>(host), 4 * kMiB));
  EXPECT_EQ(Peek(device, 4 * kMiB), Bytes(4 * kMiB, std::byte{7}));
  const aclemu_stats now = EmulatorProbe::Stats();
  if (functions().PointerGetAttributes != nullptr) {
    EXPECT_EQ(now.host_allocs, before_.host_allocs + 1) << "no ring";
    EXPECT_EQ(now.sync_copies[ACLEMU_H2D], before_.sync_copies[ACLEMU_H2D]);
  }
  EXPECT_EQ(functions().FreeHost(host), acl::kSuccess);
}

// --- between devices ---

TEST_F(AclCopyTest, CopiesWithinAndBetweenDevicesThatReachEachOther) {
  for (const int32_t to_device : {0, 1}) {
    const auto from = Block(0, 3 * kMiB + 64);
    const auto to = Block(to_device, 3 * kMiB + 64);
    unsigned seed = 0;
    for (const auto& [size, offset] :
         {std::pair(size_t{10}, 0), {3 * kMiB, 0}, {3 * kMiB, 1}, {256 * kKiB, 64}, {3 * kMiB + 1, 0}}) {
      const Bytes bytes = Pattern(size, ++seed);
      Poke(from, bytes);
      const auto at = to + static_cast<size_t>(offset);
      const auto copied = runtime_->CopyDeviceToDevice(at, size, from, size);
      ASSERT_TRUE(copied) << copied.error().ToString();
      ASSERT_EQ(Peek(at, size), bytes);
    }
  }
  EXPECT_EQ(EmulatorProbe::Stats().host_allocs, before_.host_allocs) << "nothing went through the host";
}

TEST_F(AclCopyTest, RefusedPeerAccessMeansTwoHops) {
  for (const char* refusal : {"aclrtDeviceCanAccessPeer@1=507899", "aclrtDeviceEnablePeerAccess@1=207000",
                              "aclrtDeviceEnablePeerAccess@2=200006"}) {
    Open({});
    EmulatorProbe::Inject(refusal);
    const auto from = Block(1, 5 * kMiB);
    const auto to = Block(0, 5 * kMiB);
    for (const size_t size : {size_t{100}, 300 * kKiB, 5 * kMiB - 1, 5 * kMiB}) {
      const Bytes bytes = Pattern(size, static_cast<unsigned>(size));
      Poke(from, bytes);
      const auto copied = runtime_->CopyDeviceToDevice(to, size, from, size);
      ASSERT_TRUE(copied) << copied.error().ToString();
      ASSERT_EQ(Peek(to, size), bytes) << size;
      ASSERT_TRUE(runtime_->CopyDeviceToDevice(to + 1, size - 1, from, size - 1)) << "unaligned";
      ASSERT_EQ(Peek(to + 1, size - 1), Bytes(bytes.begin(), bytes.end() - 1));
    }
    EXPECT_EQ(EmulatorProbe::Stats().async_copies[ACLEMU_D2D], before_.async_copies[ACLEMU_D2D]);
    blocks_.clear();
  }
}

// --- many ---

TEST_F(AclCopyTest, ManyCopiesOfEveryKindArrive) {
  for (const char* rules : {"", "aclrtMemcpyBatchAsync@1=207000", "aclrtDeviceCanAccessPeer@1=507899"}) {
    Open({});
    EmulatorProbe::Inject(rules);
    HostPages registered(kMiB);
    const auto registration = runtime_->RegisterHost(0, registered.bytes());
    Bytes host = Pattern(3 * kMiB);
    std::copy_n(host.begin(), kMiB, registered.bytes().begin());
    Bytes back(kMiB);
    const auto a = Block(0, 4 * kMiB);
    const auto b = Block(1, 4 * kMiB);
    const auto c = Block(0, kMiB);
    Poke(c, Bytes(host.begin(), host.begin() + kMiB));
    std::vector<RangeCopy> copies;
    for (size_t i = 0; i < 32; ++i) {
      const size_t at = i * 4 * kKiB;
      copies.push_back({Range(a + at, 4 * kKiB), HostRange(host).subspan(at, 4 * kKiB)});
      copies.push_back({Range(b + at, 4 * kKiB), registered.bytes().subspan(at, 4 * kKiB)});
      copies.push_back({Range(b + kMiB + at, 1000), Range(c + at, 1000)});
      copies.push_back({HostRange(back).subspan(at, 100 + i), Range(c + at, 100 + i)});
    }
    copies.push_back({Range(a + kMiB + 1, 2 * kMiB), HostRange(host).subspan(5, 2 * kMiB)});
    copies.push_back({Range(b + 2 * kMiB, 0), HostRange(host).subspan(0, 0)});
    runtime_->CopyMany(copies);
    for (const auto& copy : copies) ASSERT_TRUE(copy.result) << copy.result.error().ToString();
    EXPECT_EQ(Peek(a, 128 * kKiB), Bytes(host.begin(), host.begin() + 128 * kKiB));
    EXPECT_EQ(Peek(b, 128 * kKiB), Bytes(host.begin(), host.begin() + 128 * kKiB));
    EXPECT_EQ(Peek(a + kMiB + 1, 2 * kMiB), Bytes(host.begin() + 5, host.begin() + 5 + 2 * kMiB));
    for (size_t i = 0; i < 32; ++i) {
      const auto expected = host.begin() + static_cast<std::ptrdiff_t>(i * 4 * kKiB);
      EXPECT_EQ(Peek(b + kMiB + i * 4 * kKiB, 1000), Bytes(expected, expected + 1000));
      EXPECT_TRUE(std::equal(expected, expected + 100 + static_cast<std::ptrdiff_t>(i),
                             back.begin() + static_cast<std::ptrdiff_t>(i * 4 * kKiB)));
    }
    blocks_.clear();
  }
}

TEST_F(AclCopyTest, BatchWithABadAddressFailsForThatOneOnly) {
  const auto device = Block(0, kMiB);
  Bytes host = Pattern(kMiB);
  std::vector<RangeCopy> copies;
  for (size_t i = 0; i < 8; ++i) {
    copies.push_back({Range(device + i * 4 * kKiB, 4 * kKiB), HostRange(host).subspan(i * 4 * kKiB, 4 * kKiB)});
  }
  copies[3].target = Range({runtime_->DeviceCount(), static_cast<DeviceAddress>(0x1000)}, 4 * kKiB);
  runtime_->CopyMany(copies);
  for (size_t i = 0; i < copies.size(); ++i) EXPECT_EQ(copies[i].result.has_value(), i != 3) << i;
  EXPECT_EQ(copies[3].result.error().code(), ErrorCode::INVALID_PARAMS);
}

// --- failing calls ---

// Every function that copies use fails once: the copy succeeds with the right bytes or says why not; nothing leaks, and
// the next copy succeeds.
TEST_F(AclCopyTest, EveryFailingCallIsAnErrorOrMadeGood) {
  Bytes host = Pattern(kMiB);
  const auto attempt = [&](const std::string& rules) {
    Open({.ring_bytes = kMiB, .slot_bytes = 128 * kKiB});
    const auto a = Block(0, kMiB);
    const auto b = Block(1, kMiB);
    Bytes back(kMiB);
    for (int round = 0; round < 2; ++round) {
      EmulatorProbe::Inject(round == 0 ? rules.c_str() : "");
      const auto up = runtime_->CopyHostToDevice(a, host.size(), host.data(), host.size());
      if (up) {
        EXPECT_EQ(Peek(a, host.size()), host) << rules;
      }
      if (!up) Poke(a, host);
      const auto across = runtime_->CopyDeviceToDevice(b, host.size(), a, host.size());
      if (across) {
        EXPECT_EQ(Peek(b, host.size()), host) << rules;
      }
      if (!across) Poke(b, host);
      const auto down = runtime_->CopyDeviceToHost(back.data(), back.size(), b, back.size());
      if (down) {
        EXPECT_EQ(back, host) << rules;
      }
      std::vector<RangeCopy> many;
      for (size_t i = 0; i < 10; ++i)
        many.push_back({Range(a + i * 4096, 4096), HostRange(host).subspan(i * 4096, 4096)});
      runtime_->CopyMany(many);
      for (const auto& copy : many) EXPECT_TRUE(copy.result) << rules << ": those without guilt are done again";
      EXPECT_EQ(Peek(a, 40960), Bytes(host.begin(), host.begin() + 40960));
      int errors = 0;
      for (const auto* result : {&up, &across, &down}) {
        if (*result) continue;
        ++errors;
        EXPECT_EQ(result->error().code(), ErrorCode::DATA_COPY_FAILED) << result->error().ToString();
        EXPECT_NE(result->error().vendor_code(), 0);
        EXPECT_NE(result->error().message().find(std::to_string(result->error().vendor_code())), std::string::npos);
      }
      EXPECT_LE(errors, round == 0 ? 1 : 0) << rules;
    }
    blocks_.clear();
    runtime_.reset();
    EmulatorProbe::Inject("");
  };
  for (const char* function :
       {"aclrtCreateStreamWithConfig", "aclrtMallocHost", "aclrtFreeHost", "aclrtMemcpyAsync", "aclrtMemcpyBatchAsync",
        "aclrtCreateEventExWithFlag", "aclrtRecordEvent", "aclrtSynchronizeEventWithTimeout",
        "aclrtSynchronizeStreamWithTimeout", "aclrtDestroyStream", "aclrtDestroyEvent", "aclrtSetCurrentContext",
        "aclrtDeviceCanAccessPeer", "aclrtDeviceEnablePeerAccess", "aclrtPointerGetAttributes", "aclrtMemcpy"}) {
    for (const int nth : {1, 2, 5}) attempt(fmt::format("{}@{}=507899", function, nth));
  }
  for (const char* direction : {"H2D", "D2H", "D2D"}) {
    for (const int nth : {1, 3}) attempt(fmt::format("{}@{}=507001", direction, nth));
    attempt(fmt::format("{}@1=507001;aclrtDeviceCanAccessPeer@1=507899", direction));
  }
}

// The runtime keeps its last text per thread until somebody asks, and says nothing about some failures.
TEST_F(AclCopyTest, FailureIsNotExplainedByAnEarlierOneThatWasExpected) {
  const Bytes host = Pattern(4 * kMiB);
  const auto a = Block(0, host.size());
  std::thread([&] {  // without a context: asking for the current one fails
    EmulatorProbe::Inject("H2D@1:exec=507899");
    const auto up = runtime_->CopyHostToDevice(a, host.size(), host.data(), host.size());
    ASSERT_FALSE(up);
    EXPECT_EQ(up.error().message().find("no device"), std::string::npos) << up.error().ToString();
  })
      .join();
  const auto b = Block(1, host.size());
  EmulatorProbe::Inject("aclrtDeviceCanAccessPeer@1=207000;D2H@1:exec=507899");
  const auto across = runtime_->CopyDeviceToDevice(b, host.size(), a, host.size());
  ASSERT_FALSE(across);
  EXPECT_EQ(across.error().message().find("injected fault"), std::string::npos) << across.error().ToString();
}

// The fixture's end looks for streams, registrations and calls in the wrong context.
TEST_F(AclCopyTest, SwitchThatFailsInPassingLosesNothingThatIsGivenBack) {
  const Bytes host = Pattern(4 * kMiB);
  for (const int nth : {1, 2, 3, 4}) {
    Open({});
    HostPages registered(kMiB);
    auto registration = runtime_->RegisterHost(1, registered.bytes());
    for (const int32_t device : {0, 1}) {
      ASSERT_TRUE(runtime_->CopyHostToDevice(Block(device, host.size()), host.size(), host.data(), host.size()));
    }
    blocks_.clear();
    EmulatorProbe::Inject(fmt::format("aclrtSetCurrentContext@{}=107002", nth).c_str());
    if (registration) registration->reset();
    runtime_.reset();
    EmulatorProbe::Inject("");
  }
}

TEST_F(AclCopyTest, CopyThatHangsIsAbortedAndItsLaneReplaced) {
  if (functions().StreamAbort == nullptr) GTEST_SKIP() << "release without an abort";
  Open({.patience = std::chrono::milliseconds(100)});
  const auto a = Block(0, 4 * kMiB);
  const auto b = Block(1, 4 * kMiB);
  Bytes host = Pattern(4 * kMiB);
  for (const char* rules : {"H2D@2=hang", "D2H@1=hang", "H2D@1=hang;aclrtDeviceCanAccessPeer@1=507899"}) {
    if (!EmulatorProbe::TryInject(rules)) GTEST_SKIP() << "this emulator has no hangs";
    const auto up = runtime_->CopyHostToDevice(a, host.size(), host.data(), host.size());
    const auto across = runtime_->CopyDeviceToDevice(b, host.size(), a, host.size());
    const auto down = runtime_->CopyDeviceToHost(host.data(), host.size(), a, host.size());
    int errors = 0;
    for (const auto* result : {&up, &across, &down}) {
      if (*result) continue;
      ++errors;
      EXPECT_NE(result->error().message().find("timed out after 0.1 s"), std::string::npos)
          << result->error().ToString();
    }
    EXPECT_EQ(errors, 1) << rules;
    EmulatorProbe::Inject("");
    host = Pattern(4 * kMiB);
    ASSERT_TRUE(runtime_->CopyHostToDevice(a, host.size(), host.data(), host.size()));
    EXPECT_EQ(Peek(a, host.size()), host);
  }
}

// --- lost devices ---

TEST_F(AclCopyTest, LostDeviceFailsAtOnceAndTheOtherGoesOn) {
  const auto a = Block(0, kMiB);
  const auto b = Block(1, kMiB);
  const Bytes host = Pattern(kMiB);
  Bytes back(kMiB);
  EXPECT_FALSE(runtime_->DeviceLost(0));
  EmulatorProbe::Inject("aclrtMemcpyAsync@1=507010;aclrtMemcpyBatchAsync@1=507010");
  const auto copied = runtime_->CopyHostToDevice(a, kMiB, host.data(), kMiB);
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.error().vendor_code(), 507010);
  EXPECT_TRUE(runtime_->DeviceLost(0));
  EmulatorProbe::Inject("");
  const uint64_t copies = EmulatorProbe::Stats().sync_copies[ACLEMU_H2D];
  const auto again = runtime_->CopyHostToDevice(a, kMiB, host.data(), 10);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), ErrorCode::DATA_COPY_FAILED);
  EXPECT_EQ(again.error().vendor_code(), 507010);
  EXPECT_NE(again.error().message().find("is lost since 20"), std::string::npos) << again.error().message();
  EXPECT_EQ(EmulatorProbe::Stats().sync_copies[ACLEMU_H2D], copies);
  const auto block = runtime_->Allocate(0, 100);
  ASSERT_FALSE(block);
  EXPECT_EQ(block.error().code(), ErrorCode::NO_AVAILABLE_HANDLE);
  EXPECT_EQ(block.error().vendor_code(), 507010);
  EXPECT_FALSE(runtime_->GetMemoryInfo(0));
  EXPECT_FALSE(runtime_->CopyDeviceToDevice(b, kMiB, a, kMiB));
  EXPECT_FALSE(runtime_->DeviceLost(1));
  ASSERT_TRUE(runtime_->CopyHostToDevice(b, kMiB, host.data(), kMiB));
  ASSERT_TRUE(runtime_->CopyDeviceToHost(back.data(), kMiB, b, kMiB));
  EXPECT_EQ(back, host);
  std::vector<RangeCopy> many = {{Range(a, 10), HostRange(back).subspan(0, 10)},
                                 {Range(b, 10), HostRange(back).subspan(0, 10)}};
  runtime_->CopyMany(many);
  EXPECT_FALSE(many[0].result);
  EXPECT_TRUE(many[1].result);
}

TEST_F(AclCopyTest, EveryCodeOfALostDeviceIsRecognised) {
  for (const int code : {507010, 507033, 507053, 507054, 507900, 507901}) {
    Open({});
    EmulatorProbe::Inject(fmt::format("aclrtMallocAlign32@1={};aclrtMalloc@1={}", code, code).c_str());
    const auto block = runtime_->Allocate(1, 100);
    ASSERT_FALSE(block);
    EXPECT_EQ(block.error().code(), ErrorCode::NO_AVAILABLE_HANDLE);
    EXPECT_EQ(block.error().vendor_code(), code);
    EXPECT_TRUE(runtime_->DeviceLost(1));
    EXPECT_FALSE(runtime_->DeviceLost(0));
    EmulatorProbe::Inject("");
  }
  EXPECT_FALSE(acl::MeansDeviceLost(0));
  EXPECT_FALSE(acl::MeansDeviceLost(507001));
  EXPECT_FALSE(acl::MeansDeviceLost(507899));
}

// --- registration ---

TEST_F(AclCopyTest, RegisteredMemoryIsCopiedDirectlyUntilItsRegistrationDies) {
  HostPages host(4 * kMiB);
  auto registration = runtime_->RegisterHost(0, host.bytes());
  if (!registration && registration.error().code() == ErrorCode::NOT_IMPLEMENTED) GTEST_SKIP() << "release without it";
  ASSERT_TRUE(registration) << registration.error().ToString();
  const auto device = Block(1, 4 * kMiB);
  ASSERT_TRUE(runtime_->CopyHostToDevice(device, 4 * kMiB, host.bytes().data(), 4 * kMiB));
  EXPECT_EQ(EmulatorProbe::Stats().host_allocs, before_.host_allocs) << "no ring";
  EXPECT_FALSE(runtime_->RegisterHost(0, host.bytes())) << "it is registered already";
  registration->reset();
  EXPECT_EQ(EmulatorProbe::Stats().host_unregisters, before_.host_unregisters + 1);
  ASSERT_TRUE(runtime_->CopyHostToDevice(device, 4 * kMiB, host.bytes().data(), 4 * kMiB));
  EXPECT_EQ(EmulatorProbe::Stats().host_allocs, before_.host_allocs + 1) << "staged";
}

TEST_F(AclCopyTest, RegistrationKeepsTheRuntimeThatItEndsIn) {
  HostPages host(kMiB);
  auto registration = runtime_->RegisterHost(0, host.bytes());
  if (!registration) GTEST_SKIP() << registration.error().ToString();
  const std::weak_ptr<AclRuntime> watched = runtime_;
  runtime_.reset();
  EXPECT_FALSE(watched.expired());
  registration->reset();
  EXPECT_TRUE(watched.expired());
}

TEST_F(AclCopyTest, RegistrationNeedsWholePagesAndADevice) {
  HostPages host(kMiB);
  for (const auto memory : {host.bytes().subspan(1, 4096), host.bytes().subspan(0, 100), host.bytes().subspan(0, 0)}) {
    const auto registration = runtime_->RegisterHost(0, memory);
    ASSERT_FALSE(registration);
    EXPECT_EQ(registration.error().code(), ErrorCode::INVALID_PARAMS);
  }
  EXPECT_FALSE(runtime_->RegisterHost(runtime_->DeviceCount(), host.bytes()));
}

// --- pages ---

TEST_F(AclCopyTest, DeviceBytesIsWhatABlockTakesAtMost) {
  EXPECT_EQ(runtime_->DeviceBytes(0), 0u);
  EXPECT_EQ(runtime_->DeviceBytes(~size_t{0}), ~size_t{0});
  EXPECT_EQ(runtime_->DeviceBytes(3 * kMiB / 2), 3 * kMiB / 2) << "no page is lost on a block below one";
  EXPECT_EQ(runtime_->DeviceBytes(2 * kMiB), 2 * kMiB);
  std::vector<size_t> sizes = {1, 31, 32, 33, 100};
  for (const size_t base : {4 * kKiB, 64 * kKiB, kMiB, 3 * kMiB / 2, 2 * kMiB, 4 * kMiB, 7 * kMiB, 64 * kMiB}) {
    for (const int delta : {-33, -32, -1, 0, 1, 32, 33}) sizes.push_back(base + static_cast<size_t>(delta));
  }
  ASSERT_TRUE(runtime_->OpenDevice(0));
  for (const size_t size : sizes) {
    const size_t free_before = runtime_->GetMemoryInfo(0)->free_bytes;
    const auto block = runtime_->Allocate(0, size);
    ASSERT_TRUE(block);
    const size_t taken = free_before - runtime_->GetMemoryInfo(0)->free_bytes;
    EXPECT_LE(taken, runtime_->DeviceBytes(size)) << size;
    EXPECT_GE(taken + 4096, std::min(runtime_->DeviceBytes(size), size + 4096)) << size;
    ASSERT_TRUE(runtime_->Free(*block));
    // What a runtime without Align32 does.
    const acl::PagePlan plan = acl::PlanPages(size, 32);
    const uint64_t paged_before = EmulatorProbe::Stats().device_paged_bytes;
    std::thread([&] {
      ASSERT_EQ(functions().SetDevice(0), acl::kSuccess);
      void* padded = nullptr;
      ASSERT_EQ(functions().Malloc(&padded, size, plan.policy), acl::kSuccess);
      EXPECT_LE(EmulatorProbe::Stats().device_paged_bytes - paged_before, plan.bytes) << size;
      ASSERT_EQ(functions().Free(padded), acl::kSuccess);
      ASSERT_EQ(functions().ResetDevice(0), acl::kSuccess);
    }).join();
  }
}

// --- threads ---

TEST_F(AclCopyTest, ThreadsCopyEverythingAtOnce) {
  Open({.ring_bytes = 2 * kMiB, .slot_bytes = 256 * kKiB, .lanes = 2});
  EmulatorProbe::Inject("aclrtDeviceCanAccessPeer@1=507899");
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      const auto id = static_cast<int32_t>(t % 2);
      constexpr size_t kSize = 700 * kKiB;
      const auto a = runtime_->Allocate(id, kSize);
      const auto b = runtime_->Allocate(1 - id, kSize);
      if (!a || !b) {
        wrong.fetch_add(1);
        return;
      }
      for (unsigned round = 0; round < 10; ++round) {
        Bytes host = Pattern(kSize, t * 100 + round);
        Bytes back(kSize);
        if (!runtime_->CopyHostToDevice(*a, kSize, host.data(), kSize) ||
            !runtime_->CopyDeviceToDevice(*b, kSize, *a, kSize) ||
            !runtime_->CopyDeviceToHost(back.data(), kSize, *b, kSize) || back != host) {
          wrong.fetch_add(1);
        }
        std::vector<RangeCopy> many;
        for (size_t i = 0; i < 20; ++i) {
          many.push_back({Range(*a + i * 8192, 5000), HostRange(back).subspan(i * 5000, 5000)});
          many.push_back({HostRange(host).subspan(i * 8192, 5000), Range(*b + i * 8192, 5000)});
        }
        runtime_->CopyMany(many);
        for (const auto& copy : many) {
          if (!copy.result) wrong.fetch_add(1);
        }
      }
      if (!runtime_->Free(*a) || !runtime_->Free(*b)) wrong.fetch_add(1);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST_F(AclCopyTest, DeviceOfIsKnownOnAThreadWithoutDevice) {
  if (functions().PointerGetAttributes == nullptr) GTEST_SKIP() << "release without it";
  const auto block = Block(1, 1000);
  std::thread([&] {
    EXPECT_EQ(runtime_->DeviceOf(acl::ToPointer(block)), 1);
    const std::byte host{};
    EXPECT_EQ(runtime_->DeviceOf(&host), std::nullopt);
  }).join();
}

}  // namespace
}  // namespace mooncake
