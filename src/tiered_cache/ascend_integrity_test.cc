// Damaged bytes on an NPU, and on their way to and from one, are a miss and a count.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/content_sum.h"
#include "device/acl/test_emulator_probe.h"
#include "tiered_cache/fake_npu_runtime.h"
#include "tiered_cache/test_ascend_tiers.h"
#include "tiered_cache/test_backend_fixture.h"
#include "tiered_cache/test_flip_byte.h"
#include "tiered_cache/tiers/dram_tier.h"

namespace mooncake {
namespace {

using ::testing::ElementsAre;

// By priority: an NPU tier with a driver allocation for each block, one of slabs on another device, DRAM.
class AscendIntegrityTest : public ::testing::Test {
 protected:
  static constexpr size_t kBlock = kSumChunkBytes + 5;

  // Room for so many blocks on each tier.
  void Open(const std::shared_ptr<NpuRuntime>& runtime, size_t blocks) {
    const size_t capacity = blocks * 2 * kMiB;
    npu_ = *OpenTier(runtime, capacity, 0);
    slabs_ = *AscendCacheTier::Open({.capacity = capacity,
                                     .priority = 50,
                                     .tags = {},
                                     .device_id = 1,
                                     .allocation = AscendCacheTier::Allocation::kSlab,
                                     .slab_size = 2 * kMiB},
                                    runtime);
    dram_ = *DramTier::Open({.capacity = capacity, .priority = 10, .tags = {}, .numa_node = {}, .prefault = false});
    backend_ = *TieredBackend::Open({npu_, slabs_, dram_}, {});
  }
  void Put(const std::string& key, const CacheTier& tier) {
    const Bytes bytes = ContentOf(key, kBlock);
    const auto handle = backend_->Allocate(kBlock, tier.info().id, /*strict=*/true);
    ASSERT_TRUE(handle) << handle.error().ToString();
    ASSERT_TRUE(backend_->Write(DataSource::Host(bytes.data(), bytes.size()), *handle));
    ASSERT_TRUE(backend_->Commit(key, *handle));
  }
  AllocationHandle BlockOf(const std::string& key) {
    return backend_->Get(key, std::nullopt, /*record_access=*/false)->handle;
  }
  std::vector<uint64_t> Corrupt() const {
    std::vector<uint64_t> counts;
    for (const TierView& view : backend_->GetTierViews()) counts.push_back(view.corrupt);
    return counts;
  }
  // A damaged block of the first tier goes nowhere, a sound one arrives.
  void ExpectCheckedOnTheWay(const CacheTier& from, const CacheTier& to) {
    Put("damaged", from);
    ASSERT_EQ(EnsureSum(*BlockOf("damaged"), backend_->copier()), SumOf(ContentOf("damaged", kBlock)));
    FlipByte(BlockOf("damaged"), kBlock - 1, backend_->copier());
    EXPECT_EQ(CodeOf(backend_->Transfer("damaged", from.info().id, to.info().id)), ErrorCode::OBJECT_NOT_FOUND);
    EXPECT_FALSE(backend_->Exist("damaged"));
    Put("sound", from);
    ASSERT_TRUE(backend_->Transfer("sound", from.info().id, to.info().id));
    ASSERT_TRUE(backend_->Delete("sound", from.info().id));
    EXPECT_EQ(BlockOf("sound")->sum.value(), SumOf(ContentOf("sound", kBlock)));
    EXPECT_EQ(ComputeSum(BlockOf("sound")->data, backend_->copier()), SumOf(ContentOf("sound", kBlock)));
    backend_->RemoveAll();
    EXPECT_EQ(npu_->usage() + slabs_->usage() + dram_->usage(), 0u);
  }
  void ExpectEveryWayChecked() {
    ExpectCheckedOnTheWay(*npu_, *dram_);
    EXPECT_THAT(Corrupt(), ElementsAre(1, 0, 0));
    ExpectCheckedOnTheWay(*slabs_, *dram_);
    EXPECT_THAT(Corrupt(), ElementsAre(1, 1, 0));
    ExpectCheckedOnTheWay(*dram_, *npu_);
    EXPECT_THAT(Corrupt(), ElementsAre(1, 1, 1));
    ExpectCheckedOnTheWay(*npu_, *slabs_);
    EXPECT_THAT(Corrupt(), ElementsAre(2, 1, 1));
  }

  std::shared_ptr<AscendCacheTier> npu_;
  std::shared_ptr<AscendCacheTier> slabs_;
  std::shared_ptr<DramTier> dram_;
  std::unique_ptr<TieredBackend> backend_;
};

TEST_F(AscendIntegrityTest, EveryWayBetweenTheKindsIsChecked) {
  Open(std::make_shared<FakeNpuRuntime>(2), 2);
  ExpectEveryWayChecked();
}

TEST_F(AscendIntegrityTest, EveryWayBetweenTheKindsIsCheckedOnAcl) {
  const auto runtime = OpenNpuRuntime();
  ASSERT_TRUE(runtime) << runtime.error().ToString();
  Open(*runtime, 2);
  ExpectEveryWayChecked();
}

TEST_F(AscendIntegrityTest, BlockThatTheDeviceDamagedIsAMissWhenItHasToLeave) {
  const auto runtime = OpenNpuRuntime();
  ASSERT_TRUE(runtime) << runtime.error().ToString();
  ASSERT_TRUE(EmulatorProbe::Loaded());
  Open(*runtime, 1);
  Put("a", *npu_);
  ASSERT_TRUE(EnsureSum(*BlockOf("a"), backend_->copier()));
  auto* const address = reinterpret_cast<std::byte*>(NpuOf(BlockOf("a")->data).pointer().device_ptr) + 77;
  std::byte byte{};
  EmulatorProbe::Peek(address, {&byte, 1});
  byte ^= std::byte{1};
  EmulatorProbe::Poke(address, {&byte, 1});
  Put("b", *npu_);
  EXPECT_EQ(CodeOf(backend_->Get("a")), ErrorCode::OBJECT_NOT_FOUND);
  EXPECT_THAT(Corrupt(), ElementsAre(1, 0, 0));
  EXPECT_EQ(slabs_->usage() + dram_->usage(), 0u);
  Put("c", *npu_);
  EXPECT_EQ(BlockOf("b")->tier, slabs_) << "sound blocks leave as ever";
}

}  // namespace
}  // namespace mooncake
