// Exports, counted; what imports mean is tested with two processes in transfer_engine/transport/ascend.
#include "device/acl/test_emulator_fixture.h"

namespace mooncake {
namespace {

class AclIpcTest : public EmulatorTest {};

TEST_F(AclIpcTest, OlderRuntimeSaysWhichFunctionIsMissing) {
  const auto ipc = runtime_->Ipc();
  if (ipc) GTEST_SKIP() << "this runtime has IPC memory";
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

}  // namespace
}  // namespace mooncake
