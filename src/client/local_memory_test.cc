// Registration and classification of the application's memory.
#include "client/local_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/npu_runtime.h"

namespace mooncake {
namespace {

using ::testing::HasSubstr;

class LocalMemoryTest : public ::testing::Test {
 protected:
  std::byte* At(size_t offset) { return memory_.data() + offset; }
  static std::string Hex(const void* address) { return fmt::format("{:#x}", reinterpret_cast<uintptr_t>(address)); }
  ErrorCode CodeOf(const Result<void>& result) { return result ? ErrorCode::OK : result.error().code(); }

  std::vector<std::byte> memory_ = std::vector<std::byte>(4096);
  LocalMemory local_{nullptr};
};

TEST_F(LocalMemoryTest, IdenticalRegionIsCounted) {
  ASSERT_TRUE(local_.Register(At(0), 100));
  ASSERT_TRUE(local_.Register(At(0), 100));
  EXPECT_TRUE(local_.Unregister(At(0)));
  EXPECT_FALSE(local_.Register(At(50), 100));  // still there
  EXPECT_TRUE(local_.Unregister(At(0)));
  EXPECT_EQ(CodeOf(local_.Unregister(At(0))), ErrorCode::INVALID_PARAMS);
  EXPECT_TRUE(local_.Register(At(50), 100));
}

TEST_F(LocalMemoryTest, OverlapIsRefusedWithBothRanges) {
  ASSERT_TRUE(local_.Register(At(100), 100));
  struct Case {
    size_t offset, size;
  };
  for (const auto& [offset, size] :
       {Case{50, 51}, Case{199, 1}, Case{100, 99}, Case{100, 101}, Case{120, 10}, Case{0, 1000}, Case{150, 100}}) {
    const auto refused = local_.Register(At(offset), size);
    ASSERT_EQ(CodeOf(refused), ErrorCode::INVALID_PARAMS) << offset << "+" << size;
    EXPECT_THAT(refused.error().message(), HasSubstr(Hex(At(offset)) + ", +" + std::to_string(size)));
    EXPECT_THAT(refused.error().message(), HasSubstr(Hex(At(100)) + ", +100"));
  }
  EXPECT_TRUE(local_.Register(At(0), 100));  // neighbours touch, they do not overlap
  EXPECT_TRUE(local_.Register(At(200), 100));
}

TEST_F(LocalMemoryTest, SenselessRegionsAreRefused) {
  EXPECT_EQ(CodeOf(local_.Register(nullptr, 10)), ErrorCode::INVALID_PARAMS);
  EXPECT_EQ(CodeOf(local_.Register(At(0), 0)), ErrorCode::INVALID_PARAMS);
  EXPECT_EQ(CodeOf(local_.Register(At(0), SIZE_MAX)), ErrorCode::INVALID_PARAMS);
  EXPECT_EQ(CodeOf(local_.Unregister(At(5))), ErrorCode::INVALID_PARAMS);
}

TEST_F(LocalMemoryTest, WithoutARuntimeEverythingIsHostMemory) {
  ASSERT_TRUE(local_.Register(At(0), 100));
  for (void* address : {static_cast<void*>(At(0)), static_cast<void*>(At(500)), reinterpret_cast<void*>(0x1000)}) {
    const MemoryRange range = local_.Classify(address, 10);
    ASSERT_TRUE(IsHost(range));
    EXPECT_EQ(std::get<HostRange>(range).data(), address);
    EXPECT_EQ(SizeOf(range), 10u);
  }
}

// A runtime that claims one address range and counts how often it is asked.
class OneRangeRuntime final : public NpuRuntime {
 public:
  OneRangeRuntime(uintptr_t begin, size_t size) : begin_(begin), size_(size) {}
  int32_t DeviceCount() const override { return 4; }
  Result<void> OpenDevice(int32_t) override { return {}; }
  Result<MemoryInfo> GetMemoryInfo(int32_t) override { return MemoryInfo{}; }
  Result<AscendUnifiedPointer> Allocate(int32_t, size_t) override { return AscendUnifiedPointer{}; }
  Result<void> Free(AscendUnifiedPointer) override { return {}; }
  Result<void> CopyHostToDevice(AscendUnifiedPointer, size_t, const std::byte*, size_t) override { return {}; }
  Result<void> CopyDeviceToHost(std::byte*, size_t, AscendUnifiedPointer, size_t) override { return {}; }
  Result<void> CopyDeviceToDevice(AscendUnifiedPointer, size_t, AscendUnifiedPointer, size_t) override { return {}; }
  std::optional<int32_t> DeviceOf(const void* address) const override {
    ++asked;
    const auto at = reinterpret_cast<uintptr_t>(address);
    return at >= begin_ && at < begin_ + size_ ? std::optional(3) : std::nullopt;
  }
  mutable int asked = 0;

 private:
  const uintptr_t begin_;
  const size_t size_;
};

TEST_F(LocalMemoryTest, AddressesOfTheRuntimeAreNpuMemory) {
  constexpr uintptr_t kNpu = 0x7000'0000'0000;
  const auto runtime = std::make_shared<OneRangeRuntime>(kNpu, 4096);
  LocalMemory local(runtime);
  const auto at = [](size_t offset) { return reinterpret_cast<void*>(kNpu + offset); };
  ASSERT_TRUE(local.Register(at(0), 1024));
  ASSERT_TRUE(local.Register(At(0), 100));
  const int asked = runtime->asked;
  const MemoryRange inside = local.Classify(at(1000), 24);
  ASSERT_FALSE(IsHost(inside));
  EXPECT_EQ(std::get<NpuRange>(inside).at.device_id, 3);
  EXPECT_EQ(static_cast<uintptr_t>(std::get<NpuRange>(inside).at.device_ptr), kNpu + 1000);
  EXPECT_EQ(std::get<NpuRange>(inside).runtime, runtime.get());
  EXPECT_TRUE(IsHost(local.Classify(At(10), 90)));
  EXPECT_EQ(runtime->asked, asked);                    // registered regions are known
  EXPECT_FALSE(IsHost(local.Classify(at(1000), 25)));  // straddles the region: the runtime decides
  EXPECT_FALSE(IsHost(local.Classify(at(2000), 10)));  // outside
  EXPECT_TRUE(IsHost(local.Classify(At(50), 100)));
  EXPECT_GT(runtime->asked, asked);
  EXPECT_TRUE(IsHost(local.Classify(nullptr, 0)));
  ASSERT_TRUE(local.Unregister(at(0)));
  EXPECT_FALSE(IsHost(local.Classify(at(0), 10)));
}

TEST_F(LocalMemoryTest, EmulatedNpuBlocksAreRecognised) {
  const auto runtime = OpenNpuRuntime();
  ASSERT_TRUE(runtime) << runtime.error().ToString();
  ASSERT_TRUE((*runtime)->OpenDevice(1));
  const auto block = (*runtime)->Allocate(1, 8192);
  ASSERT_TRUE(block) << block.error().ToString();
  const auto at = [&](size_t offset) {
    return reinterpret_cast<void*>(static_cast<uintptr_t>(block->device_ptr) + offset);
  };
  LocalMemory local(*runtime);
  for (const bool registered : {false, true}) {
    if (registered) {
      ASSERT_TRUE(local.Register(at(0), 8192));
    }
    const MemoryRange range = local.Classify(at(100), 50);
    ASSERT_FALSE(IsHost(range));
    EXPECT_EQ(std::get<NpuRange>(range).at.device_id, 1);
    EXPECT_TRUE(IsHost(local.Classify(At(0), 10)));
  }
  EXPECT_TRUE((*runtime)->Free(*block));
}

}  // namespace
}  // namespace mooncake
