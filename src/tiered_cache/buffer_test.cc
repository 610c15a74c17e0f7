// Slices, borrowed and temporary buffers.
#include "tiered_cache/buffer.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tiered_cache/fake_npu_runtime.h"

namespace mooncake {
namespace {

const HostBuffer& HostOf(const DataSource& data) {
  return dynamic_cast<const HostBuffer&>(*data.buffer);
}

TEST(DataSourceTest, NullBufferStandsForZeroBytes) {
  const DataSource nothing;
  EXPECT_EQ(nothing.size(), 0u);
  EXPECT_EQ(nothing.type, MemoryType::UNKNOWN);
}

TEST(DataSourceTest, BorrowedHostMemoryIsNotCopied) {
  std::vector<std::byte> bytes(10);
  const DataSource data = DataSource::Host(bytes.data(), bytes.size());
  EXPECT_EQ(data.type, MemoryType::DRAM);
  EXPECT_EQ(data.size(), 10u);
  EXPECT_EQ(HostOf(data).data(), bytes.data());
}

TEST(SliceTest, ViewsPartOfHostMemory) {
  std::vector<std::byte> bytes(100);
  const DataSource whole = DataSource::Host(bytes.data(), bytes.size());
  const auto part = Slice(whole, 30, 70);
  ASSERT_TRUE(part) << part.error().ToString();
  EXPECT_EQ(part->size(), 70u);
  EXPECT_EQ(part->type, MemoryType::DRAM);
  EXPECT_EQ(HostOf(*part).data(), bytes.data() + 30);
}

TEST(SliceTest, ViewsPartOfNpuMemoryOnTheSameDevice) {
  FakeNpuRuntime runtime(2);
  const auto block = runtime.Allocate(1, 100);
  ASSERT_TRUE(block);
  const DataSource whole = DataSource::Ascend(*block, 100, runtime);
  const auto part = Slice(whole, 40, 10);
  ASSERT_TRUE(part) << part.error().ToString();
  EXPECT_EQ(part->type, MemoryType::ASCEND_NPU);
  const auto& npu = dynamic_cast<const AscendBufferBase&>(*part->buffer);
  EXPECT_EQ(npu.size(), 10u);
  EXPECT_EQ(npu.pointer().device_id, 1);
  EXPECT_EQ(static_cast<uintptr_t>(npu.pointer().device_ptr), static_cast<uintptr_t>(block->device_ptr) + 40);
  EXPECT_EQ(&npu.runtime(), &runtime);
}

TEST(SliceTest, RefusesRangesThatLeaveTheBufferAlsoWhenTheSumWraps) {
  std::vector<std::byte> bytes(100);
  const DataSource whole = DataSource::Host(bytes.data(), bytes.size());
  constexpr size_t kMax = std::numeric_limits<size_t>::max();
  for (const auto& [offset, size] : std::vector<std::pair<size_t, size_t>>{
           {0, 101}, {1, 100}, {101, 0}, {100, 1}, {50, kMax - 10}, {kMax, 1}, {kMax, kMax}}) {
    const auto part = Slice(whole, offset, size);
    ASSERT_FALSE(part) << offset << " +" << size;
    EXPECT_EQ(part.error().code(), ErrorCode::INVALID_PARAMS);
    EXPECT_NE(part.error().message().find("100 B"), std::string::npos) << part.error().message();
  }
}

TEST(SliceTest, EmptySlicesKeepTheKindOfMemory) {
  std::vector<std::byte> bytes(100);
  const auto at_end = Slice(DataSource::Host(bytes.data(), bytes.size()), 100, 0);
  ASSERT_TRUE(at_end);
  EXPECT_EQ(at_end->size(), 0u);
  EXPECT_EQ(at_end->type, MemoryType::DRAM);
  const auto of_nothing = Slice(DataSource{nullptr, MemoryType::ASCEND_NPU}, 0, 0);
  ASSERT_TRUE(of_nothing);
  EXPECT_EQ(of_nothing->type, MemoryType::ASCEND_NPU);
}

TEST(SliceTest, RefusesMemoryWithoutAnAddress) {
  class Opaque final : public BufferBase {
    size_t size() const override { return 8; }
  };
  const auto part = Slice(DataSource{std::make_unique<Opaque>(), MemoryType::NVME}, 0, 8);
  ASSERT_FALSE(part);
  EXPECT_EQ(part.error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_NE(part.error().message().find("NVME"), std::string::npos);
}

TEST(TempDramBufferTest, OwnsAsManyBytesAsAsked) {
  const auto buffer = TempDRAMBuffer::Create(1000);
  ASSERT_TRUE(buffer);
  ASSERT_EQ((*buffer)->size(), 1000u);
  for (size_t i = 0; i < 1000; ++i) (*buffer)->data()[i] = std::byte{1};
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their allocators stop the process instead
TEST(TempDramBufferTest, RefusesWhatTheHostCannotHold) {
  const auto buffer = TempDRAMBuffer::Create(size_t{1} << 60);
  ASSERT_FALSE(buffer);
  EXPECT_EQ(buffer.error().code(), ErrorCode::NO_AVAILABLE_HANDLE);
}
#endif

}  // namespace
}  // namespace mooncake
