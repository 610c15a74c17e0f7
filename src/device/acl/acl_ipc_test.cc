// Exports, counted; what imports mean is tested with two processes in transfer_engine/transport/ascend.
#include <unistd.h>

#include <thread>
#include <vector>

#include "device/acl/test_emulator_fixture.h"

namespace mooncake {
namespace {

class AclIpcTest : public EmulatorTest {
 protected:
  void SetUp() override {
    if (!EmulatorProbe::Loaded()) ShareEmulatedDevices();
    if (getenv("ACLEMU_DIR") == nullptr) GTEST_SKIP() << "another test has loaded the emulator without shared devices";
    EmulatorTest::SetUp();
  }
};

using AclIpcPresenceTest = EmulatorTest;

TEST_F(AclIpcPresenceTest, RuntimeHasIpcMemoryOrTheErrorNamesWhatIsMissing) {
  const auto ipc = runtime_->Ipc();
  if (ipc) {
    EXPECT_EQ(*(*ipc)->OwnPid(), getpid());
    return;
  }
  EXPECT_EQ(ipc.error().code(), ErrorCode::NOT_IMPLEMENTED);
  EXPECT_NE(ipc.error().message().find("aclrtIpcMemGetExportKey"), std::string::npos) << ipc.error().ToString();
}

TEST_F(AclIpcTest, PartsOfExportedPagesShareTheKeyUntilTheLastIsClosed) {
  auto& ipc = **runtime_->Ipc();
  ASSERT_TRUE(runtime_->OpenDevice(0));
  const auto block = *runtime_->Allocate(0, 4 << 20);
  const auto whole = ipc.Export(block, 4 << 20);
  ASSERT_TRUE(whole) << whole.error().ToString();
  EXPECT_EQ(whole->offset, 0u);
  const auto part = ipc.Export(block + 12345, 678);
  ASSERT_TRUE(part) << part.error().ToString();
  EXPECT_EQ(part->key, whole->key);
  EXPECT_EQ(part->offset, 12345u);
  EXPECT_TRUE(ipc.CloseExport(whole->key));
  EXPECT_TRUE(ipc.Allow(part->key, 1));
  EXPECT_EQ(EmulatorProbe::Calls("aclrtIpcMemClose"), 0u);
  EXPECT_TRUE(ipc.CloseExport(part->key));
  EXPECT_EQ(EmulatorProbe::Calls("aclrtIpcMemClose"), 1u);
  EXPECT_FALSE(ipc.Allow(part->key, 1));
  EXPECT_TRUE(runtime_->Free(block));
}

TEST_F(AclIpcTest, PageWithAnotherKeyIsRefused) {
  auto& ipc = **runtime_->Ipc();
  ASSERT_TRUE(runtime_->OpenDevice(0));
  const auto block = *runtime_->Allocate(0, 4 << 20);
  const auto first = ipc.Export(block, 1 << 20);
  ASSERT_TRUE(first) << first.error().ToString();
  const auto both = ipc.Export(block, 4 << 20);
  ASSERT_FALSE(both);
  EXPECT_EQ(both.error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_TRUE(ipc.CloseExport(first->key));
  EXPECT_TRUE(runtime_->Free(block));
}

TEST_F(AclIpcTest, LastPageOfABlockIsExportedWhole) {
  auto& ipc = **runtime_->Ipc();
  ASSERT_TRUE(runtime_->OpenDevice(0));
  const auto block = *runtime_->Allocate(0, (4 << 20) + 100);
  const auto exported = ipc.Export(block, (4 << 20) + 100);
  ASSERT_TRUE(exported) << exported.error().ToString();
  EXPECT_TRUE(ipc.CloseExport(exported->key));
  EXPECT_EQ(EmulatorProbe::Stats().violations, 0u);
  EXPECT_TRUE(runtime_->Free(block));
}

TEST_F(AclIpcTest, AbandonedExportIsEndedByTheNextOfItsPagesAndItsKeyIsNotUsedAgain) {
  auto& ipc = **runtime_->Ipc();
  ASSERT_TRUE(runtime_->OpenDevice(0));
  const auto block = *runtime_->Allocate(0, 4 << 20);
  const auto first = ipc.Export(block, 4 << 20);
  ASSERT_TRUE(first) << first.error().ToString();
  ipc.AbandonExport(first->key);
  EXPECT_FALSE(ipc.Allow(first->key, 1));
  EmulatorProbe::Inject("aclrtIpcMemClose@1:x2=507899");
  EXPECT_FALSE(ipc.Export(block, 4 << 20)) << "the runtime did not end it";
  const auto second = ipc.Export(block, 4 << 20);
  ASSERT_TRUE(second) << second.error().ToString();
  EXPECT_NE(second->key, first->key);
  EXPECT_TRUE(ipc.CloseExport(second->key));
  EXPECT_TRUE(runtime_->Free(block));
}

TEST_F(AclIpcTest, ManyThreadsExportAndCloseTheSamePages) {
  auto& ipc = **runtime_->Ipc();
  ASSERT_TRUE(runtime_->OpenDevice(0));
  const auto block = *runtime_->Allocate(0, 2 << 20);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        const auto exported = ipc.Export(block + static_cast<size_t>(t) * 1000, 1000);
        ASSERT_TRUE(exported) << exported.error().ToString();
        EXPECT_TRUE(ipc.Allow(exported->key, t));
        EXPECT_TRUE(ipc.CloseExport(exported->key));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(EmulatorProbe::Calls("aclrtIpcMemClose"), EmulatorProbe::Calls("aclrtIpcMemGetExportKey"));
  EXPECT_EQ(EmulatorProbe::Stats().violations, 0u);
  EXPECT_TRUE(runtime_->Free(block));
}

}  // namespace
}  // namespace mooncake
