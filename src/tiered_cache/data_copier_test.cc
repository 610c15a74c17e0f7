// Choice of copy paths, and what a copy refuses to do.
#include "tiered_cache/data_copier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace mooncake {
namespace {

using Bytes = std::vector<std::byte>;

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

}  // namespace
}  // namespace mooncake
