// Opening what a configuration asks for: shares of free memory, order, and errors that name the place and the numbers.
#include "client/tier_factory.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "common/byte_size.h"
#include "device/acl/test_emulator_fixture.h"
#include "tiered_cache/tiers/ascend_tier.h"
#include "tiered_cache/tiers/dram_tier.h"
#include "tiered_cache/tiers/huge_pages.h"

namespace mooncake {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Opens tiers given as the inside of the "tiers" array.
Result<OpenedTiers> Open(std::string_view tiers) {
  auto config = ParseTieredBackendConfig(fmt::format("{{\"tiers\": [\n{}]}}", tiers), "t.json", {true, ""});
  EXPECT_TRUE(config) << config.error().message();
  return OpenTiers(*config);
}

void ExpectSays(const Status& status, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos) << part << " in: " << status.message();
  }
}

// --- DRAM ---

TEST(TierFactoryTest, DramTiersComeAsConfigured) {
  const auto opened = Open(R"({"type": "DRAM", "capacity": "1MB", "priority": 3, "tags": ["x"]},
                              {"type": "DRAM", "capacity": "2MB", "priority": 9, "hugepages": "off"})");
  ASSERT_TRUE(opened) << opened.error().ToString();
  ASSERT_EQ(opened->tiers.size(), 2u);
  EXPECT_EQ(opened->tiers[0]->info().capacity, kMiB);
  EXPECT_EQ(opened->tiers[0]->info().tags, std::vector<std::string>{"x"});
  EXPECT_EQ(opened->tiers[1]->info().priority, 9);
  EXPECT_EQ(opened->npu_runtime, nullptr);
}

// What is available moves while the test runs, so the bounds are wide; 1 % of it is far above them all the same.
TEST(TierFactoryTest, ShareOfTheHostsMemoryIsTakenFromWhatEarlierTiersLeave) {
  const size_t available = *AvailableHostMemory();
  const size_t half = available / 2 / 4096 * 4096;
  const auto opened = Open(fmt::format(R"({{"type": "DRAM", "capacity": {}, "priority": 1}},
                                          {{"type": "DRAM", "capacity": "1%", "priority": 1}})",
                                       half));
  ASSERT_TRUE(opened) << opened.error().ToString();
  const size_t share = opened->tiers[1]->info().capacity;
  EXPECT_EQ(share % 4096, 0u);
  EXPECT_GT(share, available / 400) << "about 1 % of a half";
  EXPECT_LT(share, available / 120) << "not 1 % of the whole";
}

TEST(TierFactoryTest, ShareThatIsNotEvenAPageIsRefused) {
  const auto opened = Open(R"({"type": "DRAM", "capacity": "0.0000000001%", "priority": 1})");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::INVALID_PARAMS);
  ExpectSays(opened.error(), {"t.json:2:1: $.tiers[0]: ", "the host's memory", "no page of 4 KiB"});
}

TEST(TierFactoryTest, ErrorsOfDramTiersNameTheirPlace) {
  const auto no_node = Open(R"({"type": "DRAM", "capacity": "1MB", "priority": 1},
{"type": "DRAM", "capacity": "1MB", "priority": 1, "numa_node": 4095})");
  ASSERT_FALSE(no_node);
  ExpectSays(no_node.error(), {"t.json:3:1: $.tiers[1]: numa_node 4095"});
  const auto too_large = Open(R"({"type": "DRAM", "capacity": "4000TB", "priority": 1})");
  ASSERT_FALSE(too_large);
  ExpectSays(too_large.error(), {"t.json:2:1: $.tiers[0]: ", "the host has"});
  const auto pool = GetHugePagePool(2 * kMiB);
  const size_t wanted = (pool ? pool->free + 1 : 1) * 2 * kMiB;
  const auto no_pages =
      Open(fmt::format(R"({{"type": "DRAM", "capacity": {}, "priority": 1, "hugepages": "2MB"}})", wanted));
  ASSERT_FALSE(no_pages);
  ExpectSays(no_pages.error(), {"t.json:2:1: $.tiers[0]: ", "huge pages of 2 MiB"});
}

// --- NPU, on the emulator ---

class NpuTierFactoryTest : public EmulatorTest {
 protected:
  size_t Free(int32_t device_id) {
    EXPECT_TRUE(runtime_->OpenDevice(device_id));
    return runtime_->GetMemoryInfo(device_id)->free_bytes;
  }
};

TEST_F(NpuTierFactoryTest, TiersKeepTheOrderOfTheConfiguration) {
  const auto opened = Open(R"({"type": "DRAM", "capacity": "1MB", "priority": 1},
      {"type": "ASCEND_NPU", "capacity": "8MB", "priority": 2, "device_id": 1, "slab_size": "4MB"},
      {"type": "DRAM", "capacity": "1MB", "priority": 3},
      {"type": "ASCEND_NPU", "capacity": "2MB", "priority": 4, "allocation": "direct"})");
  ASSERT_TRUE(opened) << opened.error().ToString();
  ASSERT_EQ(opened->tiers.size(), 4u);
  for (int32_t i = 0; i < 4; ++i) EXPECT_EQ(opened->tiers[static_cast<size_t>(i)]->info().priority, i + 1);
  EXPECT_EQ(opened->tiers[1]->info().name, "ASCEND_NPU:1");
  EXPECT_EQ(opened->tiers[3]->info().name, "ASCEND_NPU:0");
  EXPECT_EQ(opened->npu_runtime, runtime_);
  EXPECT_EQ(EmulatorProbe::LiveBlocks(1), 2) << "slabs are taken at the start";
  EXPECT_EQ(EmulatorProbe::LiveBlocks(0), 0) << "direct blocks are not";
}

TEST_F(NpuTierFactoryTest, ShareOfADeviceIsTakenFromWhatEarlierTiersLeave) {
  const size_t free = Free(0);
  const size_t free_there = Free(1);
  for (const char* allocation : {"slab", "direct"}) {
    const auto opened = Open(fmt::format(
        R"({{"type": "ASCEND_NPU", "capacity": "10%", "priority": 1, "allocation": "{0}"}},
           {{"type": "ASCEND_NPU", "capacity": "10%", "priority": 1, "allocation": "{0}"}},
           {{"type": "ASCEND_NPU", "capacity": "2.5 %", "priority": 1, "device_id": 1, "allocation": "{0}"}})",
        allocation));
    ASSERT_TRUE(opened) << opened.error().ToString();
    const auto whole_pages = [](size_t bytes) { return bytes / (2 * kMiB) * (2 * kMiB); };
    EXPECT_EQ(opened->tiers[0]->info().capacity, whole_pages(free / 10));
    EXPECT_EQ(opened->tiers[1]->info().capacity, whole_pages((free - whole_pages(free / 10)) / 10));
    EXPECT_EQ(opened->tiers[2]->info().capacity, whole_pages(free_there / 40));
  }
}

TEST_F(NpuTierFactoryTest, MissingDeviceNamesItsPlaceAndClosesTheTierBefore) {
  const auto opened = Open(fmt::format(R"({{"type": "ASCEND_NPU", "capacity": "8MB", "priority": 1}},
{{"type": "ASCEND_NPU", "capacity": "8MB", "priority": 1, "device_id": {}}})",
                                       runtime_->DeviceCount()));
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::INVALID_PARAMS);
  ExpectSays(opened.error(), {"t.json:3:1: $.tiers[1]: device_id 2", "sees 2 NPU device"});
  EXPECT_EQ(EmulatorProbe::LiveBlocks(), 0) << "the first tier's slab is given back";
}

TEST_F(NpuTierFactoryTest, CapacityAboveTheFreeMemoryNamesItsPlaceAndClosesTheTierBefore) {
  const size_t free = Free(0);
  const auto opened = Open(fmt::format(R"({{"type": "ASCEND_NPU", "capacity": "8MB", "priority": 1}},
{{"type": "ASCEND_NPU", "capacity": {}, "priority": 1}})",
                                       free));
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::INVALID_PARAMS);
  ExpectSays(opened.error(), {"t.json:3:1: $.tiers[1]: ", fmt::format("{} B", free),
                              fmt::format("{} free of", FormatBytes(free - 8 * kMiB)), "other tiers have 8 MiB"});
  EXPECT_EQ(EmulatorProbe::LiveBlocks(), 0);
}

TEST_F(NpuTierFactoryTest, FailingDramTierClosesTheNpuTierThoughItComesFirst) {
  const auto opened = Open(R"({"type": "DRAM", "capacity": "1MB", "priority": 1, "numa_node": 4095},
                              {"type": "ASCEND_NPU", "capacity": "8MB", "priority": 1})");
  ASSERT_FALSE(opened);
  ExpectSays(opened.error(), {"t.json:2:1: $.tiers[0]: numa_node 4095"});
  EXPECT_EQ(EmulatorProbe::LiveBlocks(), 0);
}

TEST_F(NpuTierFactoryTest, RefusedSlabNamesItsPlaceWithTheNumbers) {
  EmulatorProbe::Inject("aclrtMallocAlign32@3=207001;aclrtMalloc@3=207001");
  const auto opened = Open(R"({"type": "ASCEND_NPU", "capacity": "2MB", "priority": 1},
{"type": "ASCEND_NPU", "capacity": "8MB", "priority": 1, "slab_size": "4MB"})");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().vendor_code(), 207001);
  ExpectSays(opened.error(), {"t.json:3:1: $.tiers[1]: ", "8388608 B", "slab 2 of 2 (4194304 B)", "free of",
                              "4194304 B were taken before", "207001"});
  EXPECT_EQ(EmulatorProbe::LiveBlocks(), 0);
}

TEST_F(NpuTierFactoryTest, DeviceThatCannotBeBoundNamesItsPlaceAndNumber) {
  runtime_.reset();  // the device is bound once per runtime
  EmulatorProbe::Inject("aclrtSetDevice@1=507033");
  const auto opened = Open(R"({"type": "ASCEND_NPU", "capacity": "2MB", "priority": 1})");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().vendor_code(), 507033);
  ExpectSays(opened.error(), {"t.json:2:1: $.tiers[0]: ", "507033"});
}

TEST_F(NpuTierFactoryTest, MissingRuntimeNamesThePlaceAndWhatWasTried) {
  runtime_.reset();
  const char* before = std::getenv("MC_ACL_LIBRARY");
  const std::string kept = before == nullptr ? "" : before;
  setenv("MC_ACL_LIBRARY", "/nonexistent/libascendcl.so", 1);
  const auto opened = Open(R"({"type": "DRAM", "capacity": "1MB", "priority": 1},
{"type": "ASCEND_NPU", "capacity": "2MB", "priority": 1})");
  before == nullptr ? unsetenv("MC_ACL_LIBRARY") : setenv("MC_ACL_LIBRARY", kept.c_str(), 1);
  ASSERT_FALSE(opened);
  ExpectSays(opened.error(), {"t.json:3:1: $.tiers[1]: ", "/nonexistent/libascendcl.so"});
}

}  // namespace
}  // namespace mooncake
