// Choice of copy paths, and what a copy refuses to do.
#include "tiered_cache/data_copier.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

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

DataCopier BuiltCopier() {
  auto copier = DataCopierBuilder().Build();
  EXPECT_TRUE(copier) << copier.error().ToString();
  return *copier;
}

TEST(DataCopierTest, CopiesHostToHost) {
  Bytes source = Pattern(1000);
  Bytes target(1000);
  ASSERT_TRUE(BuiltCopier().Copy(HostOf(source), HostOf(target)));
  EXPECT_EQ(target, source);
}

TEST(DataCopierTest, FillsOnlyTheStartOfALargerTarget) {
  Bytes source = Pattern(100);
  Bytes target(200, std::byte{7});
  ASSERT_TRUE(BuiltCopier().Copy(HostOf(source), HostOf(target)));
  EXPECT_TRUE(std::equal(source.begin(), source.end(), target.begin()));
  EXPECT_TRUE(std::all_of(target.begin() + 100, target.end(), [](std::byte b) { return b == std::byte{7}; }));
}

TEST(DataCopierTest, OverflowIsRefusedWithBothSizesAndTouchesNothing) {
  Bytes source = Pattern(101);
  Bytes target(100, std::byte{7});
  const auto copied = BuiltCopier().Copy(HostOf(source), HostOf(target));
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.error().code(), ErrorCode::BUFFER_OVERFLOW);
  EXPECT_NE(copied.error().message().find("101 B into a buffer of 100 B"), std::string::npos);
  EXPECT_EQ(target, Bytes(100, std::byte{7}));
}

TEST(DataCopierTest, ZeroBytesCopyNothingAnywhere) {
  const DataCopier copier = BuiltCopier();
  Bytes target(4, std::byte{7});
  EXPECT_TRUE(copier.Copy(DataSource{nullptr, MemoryType::DRAM}, HostOf(target)));
  EXPECT_TRUE(copier.Copy(DataSource{nullptr, MemoryType::NVME}, DataSource{nullptr, MemoryType::UNKNOWN}));
  EXPECT_TRUE(copier.Copy(DataSource::Host(target.data(), 0), DataSource{nullptr, MemoryType::ASCEND_NPU}));
  EXPECT_EQ(target, Bytes(4, std::byte{7}));
}

TEST(DataCopierTest, MissingTargetIsRefused) {
  Bytes source = Pattern(10);
  const auto copied = BuiltCopier().Copy(HostOf(source), DataSource{nullptr, MemoryType::DRAM});
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_NE(copied.error().message().find("10 B"), std::string::npos);
}

TEST(DataCopierTest, HostMemoryWithoutAddressIsRefused) {
  Bytes source = Pattern(10);
  const auto copied = BuiltCopier().Copy(HostOf(source), DataSource::Host(static_cast<std::byte*>(nullptr), 10));
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.error().code(), ErrorCode::INVALID_PARAMS);
}

TEST(DataCopierTest, KindWithoutCopiersFailsWithBothNames) {
  const DataCopier copier = BuiltCopier();
  EXPECT_FALSE(copier.Supports(MemoryType::NVME));
  EXPECT_TRUE(copier.Supports(MemoryType::DRAM));
  Bytes bytes = Pattern(10);
  const DataSource disk{std::make_unique<RefBuffer>(bytes.data(), bytes.size()), MemoryType::NVME};
  const DataSource unknown{std::make_unique<RefBuffer>(bytes.data(), bytes.size()), MemoryType::UNKNOWN};
  const auto to_disk = copier.Copy(HostOf(bytes), disk);
  ASSERT_FALSE(to_disk);
  EXPECT_EQ(to_disk.error().code(), ErrorCode::DATA_COPY_FAILED);
  EXPECT_NE(to_disk.error().message().find("from DRAM to NVME"), std::string::npos);
  const auto between = copier.Copy(unknown, disk);
  ASSERT_FALSE(between);
  EXPECT_EQ(between.error().code(), ErrorCode::DATA_COPY_FAILED);
  EXPECT_NE(between.error().message().find("from UNKNOWN to NVME"), std::string::npos);
}

TEST(DataCopierBuilderTest, RefusesKindWithOneDirectionOnly) {
  const CopyFunction copy = [](const DataSource&, const DataSource&) -> Result<void> { return {}; };
  const auto no_way_back = DataCopierBuilder().AddDirectPath(MemoryType::NVME, MemoryType::DRAM, copy).Build();
  ASSERT_FALSE(no_way_back);
  EXPECT_EQ(no_way_back.error().code(), ErrorCode::INTERNAL_ERROR);
  EXPECT_NE(no_way_back.error().message().find("NVME has no copier from DRAM"), std::string::npos)
      << no_way_back.error().message();
  const auto no_way_out = DataCopierBuilder().AddDirectPath(MemoryType::DRAM, MemoryType::NVME, copy).Build();
  ASSERT_FALSE(no_way_out);
  EXPECT_NE(no_way_out.error().message().find("NVME has no copier to DRAM"), std::string::npos)
      << no_way_out.error().message();
}

TEST(DataCopierBuilderTest, DirectPathGoesBeforeTheWayThroughDram) {
  int direct = 0;
  int hops = 0;
  const CopyFunction hop = [&](const DataSource&, const DataSource&) -> Result<void> { return ++hops, Result<void>{}; };
  const CopyFunction straight = [&](const DataSource&, const DataSource&) -> Result<void> {
    return ++direct, Result<void>{};
  };
  DataCopierBuilder builder;
  builder.AddDirectPath(MemoryType::NVME, MemoryType::DRAM, hop).AddDirectPath(MemoryType::DRAM, MemoryType::NVME, hop);
  Bytes bytes = Pattern(10);
  const auto on_disk = [&] {
    return DataSource{std::make_unique<RefBuffer>(bytes.data(), bytes.size()), MemoryType::NVME};
  };
  auto two_hops = builder.Build();
  ASSERT_TRUE(two_hops);
  EXPECT_TRUE(two_hops->Supports(MemoryType::NVME));
  ASSERT_TRUE(two_hops->Copy(on_disk(), on_disk()));
  EXPECT_EQ(hops, 2);
  auto one_step = builder.AddDirectPath(MemoryType::NVME, MemoryType::NVME, straight).Build();
  ASSERT_TRUE(one_step);
  ASSERT_TRUE(one_step->Copy(on_disk(), on_disk()));
  EXPECT_EQ(direct, 1);
  EXPECT_EQ(hops, 2);
}

// What holds for NPU memory, on a runtime that fails when told to.
class AscendCopyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!NpuSupportBuilt()) GTEST_SKIP() << "built without " << kNpuBuildOption;
  }
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
  DataCopier copier_ = BuiltCopier();
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

TEST_F(AscendCopyTest, NpuToNpuOfAnotherDeviceGoesThroughDram) {
  Bytes source = Pattern(5000);
  const DataSource from = OnDevice(0, 5000);
  const DataSource to = OnDevice(1, 6000);
  ASSERT_TRUE(copier_.Copy(HostOf(source), from));
  const uint64_t down = runtime_.calls(Call::kToHost);
  const uint64_t up = runtime_.calls(Call::kToDevice);
  ASSERT_TRUE(copier_.Copy(from, to));
  EXPECT_EQ(runtime_.calls(Call::kToHost), down + 1);
  EXPECT_EQ(runtime_.calls(Call::kToDevice), up + 1);
  Bytes read = Read(to);
  read.resize(5000);
  EXPECT_EQ(read, source);
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

TEST_F(AscendCopyTest, FailureOfEitherHopIsTheResultWithTheVendorCode) {
  const DataSource from = OnDevice(0, 100);
  const DataSource to = OnDevice(1, 100);
  Bytes before = Pattern(100, 9);
  ASSERT_TRUE(copier_.Copy(HostOf(before), to));
  for (const Call hop : {Call::kToHost, Call::kToDevice}) {
    const uint64_t written = runtime_.calls(Call::kToDevice);
    runtime_.Fail(hop, 1, FakeNpuRuntime::CopyFailed());
    const auto copied = copier_.Copy(from, to);
    ASSERT_FALSE(copied);
    EXPECT_EQ(copied.error().code(), ErrorCode::DATA_COPY_FAILED);
    EXPECT_EQ(copied.error().vendor_code(), FakeNpuRuntime::kCopyFailed);
    EXPECT_EQ(runtime_.calls(Call::kToDevice), written + (hop == Call::kToDevice ? 1 : 0));
    EXPECT_EQ(Read(to), before) << "nothing may be written after a hop failed";
  }
  EXPECT_TRUE(copier_.Copy(from, to));
}

}  // namespace
}  // namespace mooncake
