// Sums of blocks on host and NPU: made once, kept, carried along by copies and checked there.
#include "tiered_cache/block_sum.h"

#include <gtest/gtest.h>

#include <thread>
#include <tuple>

#include "common/content_sum.h"
#include "tiered_cache/fake_npu_runtime.h"
#include "tiered_cache/test_ascend_tiers.h"
#include "tiered_cache/test_flip_byte.h"
#include "tiered_cache/test_heap_tier.h"

namespace mooncake {
namespace {

using Bytes = std::vector<std::byte>;
using Call = FakeNpuRuntime::Call;

enum class Place { kHost, kNpu, kOtherNpu };

Bytes SomeBytes(size_t size) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 131 >> 3);
  return bytes;
}

TEST(BlockSumTest, FirstSumStaysAndAnotherOneIsNoticed) {
  BlockSum sum;
  EXPECT_FALSE(sum.value());
  EXPECT_TRUE(sum.Confirm(7));
  EXPECT_EQ(sum.value(), 7u);
  EXPECT_TRUE(sum.Confirm(7));
  EXPECT_FALSE(sum.Confirm(8));
  EXPECT_FALSE(sum.Confirm(0));
  EXPECT_EQ(sum.value(), 7u);
}

TEST(BlockSumTest, SumOfZeroIsNotKept) {
  BlockSum sum;
  EXPECT_TRUE(sum.Confirm(0));
  EXPECT_FALSE(sum.value());
}

TEST(BlockSumTest, ThreadsAgreeOnOneSum) {
  BlockSum sum;
  std::atomic<int> confirmed = 0;
  {
    std::vector<std::jthread> threads;
    for (uint64_t mine = 1; mine <= 4; ++mine) {
      threads.emplace_back([&, mine] {
        if (sum.Confirm(mine)) ++confirmed;
      });
    }
  }
  EXPECT_EQ(confirmed, 1);
  EXPECT_TRUE(sum.Confirm(*sum.value()));
}

class BlockCopies : public ::testing::Test {
 protected:
  static constexpr size_t kSize = kSumChunkBytes + 5;

  AllocationHandle Block(Place place, const Bytes& bytes) {
    const std::shared_ptr<CacheTier> tier = place == Place::kHost  ? std::shared_ptr<CacheTier>(host_)
                                            : place == Place::kNpu ? npu_
                                                                   : other_npu_;
    DataSource data{nullptr, tier->info().type};
    if (!bytes.empty()) data = std::move(*tier->Allocate(bytes.size()));
    auto block = std::make_shared<const AllocationEntry>(tier, std::move(data), std::make_shared<RoomSignal>());
    EXPECT_TRUE(copier_.Copy(DataSource::Host(bytes.data(), bytes.size()), block->data));
    return block;
  }
  Bytes BytesOf(const AllocationHandle& block) {
    Bytes bytes(block->data.size());
    EXPECT_TRUE(copier_.Copy(block->data, DataSource::Host(bytes.data(), bytes.size())));
    return bytes;
  }

  const DataCopier copier_ = *DataCopierBuilder().Build();
  const std::shared_ptr<FakeNpuRuntime> runtime_ = std::make_shared<FakeNpuRuntime>(2);
  const std::shared_ptr<HeapTier> host_ = std::make_shared<HeapTier>("host", 8 * kMiB, 1);
  const std::shared_ptr<AscendCacheTier> npu_ = *OpenTier(runtime_, 8 * kMiB, 0);
  const std::shared_ptr<AscendCacheTier> other_npu_ = *OpenTier(runtime_, 8 * kMiB, 1);
};

TEST_F(BlockCopies, SumDoesNotDependOnWhereTheBytesLie) {
  for (const size_t size : {size_t{0}, size_t{1}, kSumChunkBytes, kSize}) {
    const Bytes bytes = SomeBytes(size);
    for (const Place place : {Place::kHost, Place::kNpu}) {
      EXPECT_EQ(ComputeSum(Block(place, bytes)->data, copier_), SumOf(bytes)) << size;
    }
  }
}

TEST_F(BlockCopies, EnsuredSumIsOfTheBytesAsTheyWereFirst) {
  const Bytes bytes = SomeBytes(kSize);
  for (const Place place : {Place::kHost, Place::kNpu}) {
    const AllocationHandle block = Block(place, bytes);
    EXPECT_EQ(EnsureSum(*block, copier_), SumOf(bytes));
    FlipByte(block, kSize - 1, copier_);
    EXPECT_EQ(EnsureSum(*block, copier_), SumOf(bytes));
    EXPECT_NE(ComputeSum(block->data, copier_), SumOf(bytes));
  }
}

TEST_F(BlockCopies, DeviceThatCannotBeReadHasNoSumYet) {
  const AllocationHandle block = Block(Place::kNpu, SomeBytes(kSize));
  runtime_->Fail(Call::kToHost, 2, FakeNpuRuntime::CopyFailed());
  EXPECT_EQ(EnsureSum(*block, copier_).error().vendor_code(), FakeNpuRuntime::kCopyFailed);
  EXPECT_FALSE(block->sum.value());
  EXPECT_EQ(EnsureSum(*block, copier_), SumOf(SomeBytes(kSize)));
}

TEST_F(BlockCopies, ReadingBackFromADeviceIsNoPartOfACopy) {
  const Bytes bytes = SomeBytes(kSize);
  const AllocationHandle on_host = Block(Place::kHost, bytes);
  EXPECT_EQ(CopyBlock(*on_host, *Block(Place::kNpu, Bytes(kSize)), copier_), true);
  EXPECT_EQ(runtime_->calls(Call::kToHost), 0u);
  EXPECT_EQ(CopyBlock(*Block(Place::kNpu, bytes), *Block(Place::kHost, Bytes(kSize)), copier_), true);
  EXPECT_EQ(runtime_->calls(Call::kToHost), 1u);
}

TEST_F(BlockCopies, MemoryThatSpoilsTheCopyIsNoticed) {
  const Bytes bytes = SomeBytes(kSize);
  const AllocationHandle source = Block(Place::kNpu, bytes);
  ASSERT_TRUE(EnsureSum(*source, copier_));
  const AllocationHandle target = Block(Place::kHost, Bytes(kSize));
  std::byte* const memory = dynamic_cast<const HostBuffer&>(*target->data.buffer).data();
  int accesses = 0;
  host_->on_access = [&] {
    if (++accesses == 3) memory[17] ^= std::byte{1};  // two of the copy itself, the next is of the check
  };
  EXPECT_EQ(CopyBlock(*source, *target, copier_), false);
  EXPECT_GE(accesses, 3);
  EXPECT_FALSE(target->sum.value());
}

class BlockCopiesBetween : public BlockCopies, public ::testing::WithParamInterface<std::tuple<Place, Place>> {
 protected:
  const Place from_ = std::get<0>(GetParam());
  const Place to_ = std::get<1>(GetParam());
};

TEST_P(BlockCopiesBetween, BytesAndSumArrive) {
  const Bytes bytes = SomeBytes(kSize);
  const AllocationHandle source = Block(from_, bytes);
  const AllocationHandle target = Block(to_, Bytes(kSize));
  EXPECT_EQ(CopyBlock(*source, *target, copier_), true);
  EXPECT_EQ(BytesOf(target), bytes);
  EXPECT_EQ(target->sum.value(), SumOf(bytes)) << "made on the way";
  EXPECT_EQ(source->sum.value(), SumOf(bytes));
}

TEST_P(BlockCopiesBetween, FlippedByteIsNoticed) {
  const Bytes bytes = SomeBytes(kSize);
  const AllocationHandle source = Block(from_, bytes);
  ASSERT_TRUE(EnsureSum(*source, copier_));
  FlipByte(source, kSize / 2, copier_);
  const AllocationHandle target = Block(to_, Bytes(kSize));
  EXPECT_EQ(CopyBlock(*source, *target, copier_), false);
  EXPECT_FALSE(target->sum.value());
}

TEST_P(BlockCopiesBetween, SumOfTheWriterThatIsNotOfTheseBytesIsNoticed) {
  const AllocationHandle source = Block(from_, SomeBytes(kSize));
  ASSERT_TRUE(source->sum.Confirm(SumOf(SomeBytes(kSize)) ^ 1));
  EXPECT_EQ(CopyBlock(*source, *Block(to_, Bytes(kSize)), copier_), false);
}

TEST_P(BlockCopiesBetween, EmptyBlocksAgree) {
  const AllocationHandle source = Block(from_, {});
  EXPECT_EQ(CopyBlock(*source, *Block(to_, {}), copier_), true);
  EXPECT_EQ(source->sum.value(), SumOf({}));
}

INSTANTIATE_TEST_SUITE_P(Kinds, BlockCopiesBetween,
                         ::testing::Values(std::tuple(Place::kHost, Place::kHost),
                                           std::tuple(Place::kHost, Place::kNpu), std::tuple(Place::kNpu, Place::kHost),
                                           std::tuple(Place::kNpu, Place::kOtherNpu)));

}  // namespace
}  // namespace mooncake
