// Whole engines whose only wire is "ascend": what a request between NPUs, and one it cannot carry, comes to.
#include "transfer_engine/transfer_engine.h"
#include "transfer_engine/transport/ascend/test_npu_node.h"

namespace mooncake {
namespace {

Deadline Soon() {
  return Deadline::After(std::chrono::seconds(60));
}

class AscendEngineTest : public ::testing::Test {
 protected:
  static constexpr size_t kSize = 4 * kMiB;
  static std::unique_ptr<TransferEngine> Open() {
    TransferEngineOptions options;
    options.local_name = "127.0.0.1";
    options.protocols = {"ascend"};
    auto engine = TransferEngine::Open(std::move(options));
    EXPECT_TRUE(engine) << engine.error().ToString();
    return std::move(*engine);
  }
  void SetUp() override {
    near_ = Open();
    far_ = Open();
    RegionOptions options;  // older runtimes do not tell the device of an address
    options.device_id = 0;
    EXPECT_TRUE(near_->RegisterMemory(At(local_), kSize, options));
    options.device_id = 1;
    EXPECT_TRUE(far_->RegisterMemory(At(remote_), kSize, options));
    const auto target = near_->OpenSegment(far_->local_name(), Soon());
    ASSERT_TRUE(target) << target.error().ToString();
    target_ = *target;
  }
  static void* At(const NpuBlock& block, size_t offset = 0) {
    return reinterpret_cast<void*>(static_cast<uintptr_t>(block.address() + offset));
  }
  Result<void> Transfer(TransferOpcode opcode, void* local, size_t length) {
    const TransferRequest request{
        .opcode = opcode, .local = local, .target = target_, .target_address = remote_.address(), .length = length};
    return near_->Transfer({&request, 1}, Soon());
  }

  const std::shared_ptr<NpuRuntime> runtime_ = RuntimeOfNode();
  const IpcCalls calls_;
  NpuBlock local_{*runtime_, 0, kSize, 1};
  NpuBlock remote_{*runtime_, 1, kSize, 2};
  std::unique_ptr<TransferEngine> near_;
  std::unique_ptr<TransferEngine> far_;
  SegmentId target_ = kInvalidSegment;
};

TEST_F(AscendEngineTest, CarriesRequestsBetweenNpusAndSaysWhyItDoesNotCarryOthers) {
  if (const auto ipc = runtime_->Ipc(); !ipc) GTEST_SKIP() << ipc.error().message();
  auto names = near_->TransportNames();
  std::erase(names, "ascend_rdma");  // where it is built; it has no wires here
  EXPECT_EQ(names, (std::vector<std::string>{"local", "shm", "ascend"}));
  EXPECT_TRUE(Transfer(TransferOpcode::kWrite, At(local_), kSize));
  EXPECT_TRUE(remote_.Holds(Pattern(kSize, 1)));
  remote_.Fill(3);
  EXPECT_TRUE(Transfer(TransferOpcode::kRead, At(local_), kSize));
  EXPECT_TRUE(local_.Holds(Pattern(kSize, 3)));
  EXPECT_TRUE(Transfer(TransferOpcode::kWrite, At(local_), 0));
  Bytes host(4096);
  const auto refused = Transfer(TransferOpcode::kWrite, host.data(), host.size());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::NOT_SUPPORTED_TRANSPORT);
  EXPECT_NE(refused.error().message().find("ascend: it copies from NPU to NPU"), std::string::npos)
      << refused.error().ToString();
}

TEST_F(AscendEngineTest, UnregisteredMemoryIsRefusedAndCanBeFreed) {
  if (const auto ipc = runtime_->Ipc(); !ipc) GTEST_SKIP() << ipc.error().message();
  EXPECT_TRUE(Transfer(TransferOpcode::kWrite, At(local_), kSize));
  EXPECT_TRUE(far_->UnregisterMemory(At(remote_)));
  remote_.Fill(9);
  const auto refused = Transfer(TransferOpcode::kWrite, At(local_), kSize);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::ADDRESS_NOT_REGISTERED);
  EXPECT_TRUE(remote_.Holds(Pattern(kSize, 9)));
  EXPECT_EQ(calls_.closes(), 1u);
}

TEST_F(AscendEngineTest, TransferIsNotSupportedOnlyByAnOldRuntimeAndTheErrorNamesWhatItLacks) {
  const auto result = Transfer(TransferOpcode::kWrite, At(local_), kSize);
  ASSERT_EQ(result.has_value(), runtime_->Ipc().has_value());
  if (result) return;
  EXPECT_EQ(result.error().code(), ErrorCode::NOT_SUPPORTED_TRANSPORT);
  for (const char* const part :
       {"CANN 8.5 or later", "aclrtIpcMemGetExportKey, aclrtIpcMemSetImportPid", "IpcMemClose"})
    EXPECT_NE(result.error().message().find(part), std::string::npos) << result.error().ToString();
}

}  // namespace
}  // namespace mooncake
