// Copies to, from and between NPUs, on a runtime that fails when told to.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tiered_cache/data_copier.h"
#include "tiered_cache/fake_npu_runtime.h"

namespace mooncake {
namespace {

using Bytes = std::vector<std::byte>;
using Call = FakeNpuRuntime::Call;

Bytes Pattern(size_t size, unsigned seed = 1) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i * 131 + seed) & 0xFF);
  return bytes;
}

DataSource HostOf(Bytes& bytes) {
  return DataSource::Host(bytes.data(), bytes.size());
}

class AscendCopyTest : public ::testing::Test {
 protected:
  DataSource OnDevice(int32_t device_id, size_t size) {
    const auto block = runtime_.Allocate(device_id, size);
    EXPECT_TRUE(block);
    return DataSource::Ascend(*block, size, runtime_);
  }
  Bytes Read(const DataSource& data) {
    Bytes bytes(data.size());
    EXPECT_TRUE(copier_.Copy(data, HostOf(bytes)));
    return bytes;
  }

  FakeNpuRuntime runtime_{2};
  DataCopier copier_ = *DataCopierBuilder().Build();
};

TEST_F(AscendCopyTest, RegistrarAnnouncedBothDirectionsBeforeMain) {
  EXPECT_TRUE(copier_.Supports(MemoryType::ASCEND_NPU));
  EXPECT_TRUE(CopierRegistry::Instance().ToDram(MemoryType::ASCEND_NPU));
  EXPECT_TRUE(CopierRegistry::Instance().FromDram(MemoryType::ASCEND_NPU));
  EXPECT_FALSE(CopierRegistry::Instance().ToDram(MemoryType::NVME));
}

TEST_F(AscendCopyTest, HostToNpuAndBack) {
  Bytes source = Pattern(5000);
  const DataSource block = OnDevice(0, 5000);
  ASSERT_TRUE(copier_.Copy(HostOf(source), block));
  EXPECT_EQ(Read(block), source);
}

// Whether it goes directly or through the host is the runtime's business.
TEST_F(AscendCopyTest, NpuToNpuIsOneCopyOfTheRuntimeWithinADeviceAndBetweenTwo) {
  Bytes source = Pattern(5000);
  const DataSource from = OnDevice(0, 5000);
  ASSERT_TRUE(copier_.Copy(HostOf(source), from));
  for (const int32_t device_id : {0, 1}) {
    const DataSource to = OnDevice(device_id, 6000);
    const uint64_t through_host = runtime_.calls(Call::kToHost) + runtime_.calls(Call::kToDevice);
    const uint64_t between = runtime_.calls(Call::kBetween);
    ASSERT_TRUE(copier_.Copy(from, to));
    EXPECT_EQ(runtime_.calls(Call::kBetween), between + 1);
    EXPECT_EQ(runtime_.calls(Call::kToHost) + runtime_.calls(Call::kToDevice), through_host);
    Bytes read = Read(to);
    read.resize(5000);
    EXPECT_EQ(read, source);
  }
}

TEST_F(AscendCopyTest, SlicesOfBlocksAreCopiedWhereTheyLie) {
  Bytes source = Pattern(100);
  Bytes patch = Pattern(10, 77);
  const DataSource block = OnDevice(0, 100);
  ASSERT_TRUE(copier_.Copy(HostOf(source), block));
  ASSERT_TRUE(copier_.Copy(HostOf(patch), *Slice(block, 50, 10)));
  std::copy(patch.begin(), patch.end(), source.begin() + 50);
  EXPECT_EQ(Read(block), source);
  EXPECT_EQ(Read(*Slice(block, 45, 20)), Bytes(source.begin() + 45, source.begin() + 65));
}

TEST_F(AscendCopyTest, OverflowIsRefusedBeforeTheDeviceIsAsked) {
  Bytes source = Pattern(101);
  const DataSource block = OnDevice(0, 100);
  const auto copied = copier_.Copy(HostOf(source), block);
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.error().code(), ErrorCode::BUFFER_OVERFLOW);
  EXPECT_EQ(runtime_.calls(Call::kToDevice), 0u);
}

// The tag chooses the path, the buffer's own type decides: an address of the wrong kind would crash the process.
TEST_F(AscendCopyTest, TagThatLiesIsRefusedOnEitherSide) {
  Bytes host = Pattern(100);
  Bytes other(100);
  const auto block = runtime_.Allocate(0, 100);
  ASSERT_TRUE(block);
  const auto host_as = [&](MemoryType type) {
    return DataSource{std::make_unique<RefBuffer>(host.data(), host.size()), type};
  };
  const auto npu_as = [&](MemoryType type) {
    return DataSource{std::make_unique<AscendRefBuffer>(*block, 100, runtime_), type};
  };
  struct Case {
    DataSource source;
    DataSource target;
    const char* role;
    const char* tag;
  };
  std::vector<Case> cases;
  cases.push_back({npu_as(MemoryType::DRAM), HostOf(other), "source", "DRAM"});
  cases.push_back({HostOf(other), npu_as(MemoryType::DRAM), "target", "DRAM"});
  cases.push_back({host_as(MemoryType::ASCEND_NPU), HostOf(other), "source", "ASCEND_NPU"});
  cases.push_back({HostOf(other), host_as(MemoryType::ASCEND_NPU), "target", "ASCEND_NPU"});
  cases.push_back({host_as(MemoryType::ASCEND_NPU), npu_as(MemoryType::ASCEND_NPU), "source", "ASCEND_NPU"});
  cases.push_back({npu_as(MemoryType::ASCEND_NPU), host_as(MemoryType::ASCEND_NPU), "target", "ASCEND_NPU"});
  cases.push_back({npu_as(MemoryType::DRAM), npu_as(MemoryType::ASCEND_NPU), "source", "DRAM"});
  for (const auto& [source, target, role, tag] : cases) {
    const auto copied = copier_.Copy(source, target);
    ASSERT_FALSE(copied);
    EXPECT_EQ(copied.error().code(), ErrorCode::INVALID_PARAMS);
    EXPECT_NE(copied.error().message().find(fmt::format("{} is tagged {} but", role, tag)), std::string::npos)
        << copied.error().message();
  }
}

TEST_F(AscendCopyTest, FailureBetweenNpusIsTheResultWithTheVendorCode) {
  const DataSource from = OnDevice(0, 100);
  for (const int32_t device_id : {0, 1}) {
    const DataSource to = OnDevice(device_id, 100);
    Bytes before = Pattern(100, 9);
    ASSERT_TRUE(copier_.Copy(HostOf(before), to));
    runtime_.Fail(Call::kBetween, 1, FakeNpuRuntime::CopyFailed());
    const auto copied = copier_.Copy(from, to);
    ASSERT_FALSE(copied);
    EXPECT_EQ(copied.error().code(), ErrorCode::DATA_COPY_FAILED);
    EXPECT_EQ(copied.error().vendor_code(), FakeNpuRuntime::kCopyFailed);
    EXPECT_EQ(Read(to), before) << "nothing is written by another way after the failure";
    EXPECT_TRUE(copier_.Copy(from, to));
  }
}

}  // namespace
}  // namespace mooncake
