// The bridge's environment variables.
#include <gtest/gtest.h>

#include <cstdlib>

#include "transfer_engine/transport/ascend_rdma/ascend_rdma_transport.h"

namespace mooncake {
namespace {

class AscendRdmaOptionsTest : public testing::Test {
 protected:
  void TearDown() override {
    for (const std::string& name : set_) unsetenv(name.c_str());
  }
  void Set(const std::string& name, const std::string& value) {
    setenv(name.c_str(), value.c_str(), 1);
    set_.push_back(name);
  }
  std::vector<std::string> set_;
};

TEST_F(AscendRdmaOptionsTest, NothingSetIsTheDefaults) {
  const auto options = AscendRdmaOptions::FromEnvironment();
  ASSERT_TRUE(options);
  EXPECT_EQ(options->ring_bytes, size_t{64} << 20);
  EXPECT_EQ(options->target_ring_bytes, size_t{32} << 20);
  EXPECT_EQ(options->slot_bytes, size_t{2} << 20);
  EXPECT_EQ(options->chunk_bytes, 0u);
  EXPECT_EQ(options->lane.scheduler.small_age, std::chrono::microseconds(50));
  EXPECT_TRUE(options->devices.empty());
}

TEST_F(AscendRdmaOptionsTest, VariablesAreRead) {
  Set("MC_NPU_BRIDGE_RING", "3GB");
  Set("MC_NPU_BRIDGE_TARGET_RING", "0");
  Set("MC_NPU_BRIDGE_SLOT", "8MB");
  Set("MC_NPU_BRIDGE_CHUNK", "4MB");
  Set("MC_NPU_BRIDGE_SMALL", "256KB");
  Set("MC_NPU_BRIDGE_AGE_US", "0");
  Set("MC_NPU_BRIDGE_REQUESTS", "1000");
  Set("MC_NPU_BRIDGE_DEVICES", "0,3");
  const auto options = AscendRdmaOptions::FromEnvironment();
  ASSERT_TRUE(options) << options.error().ToString();
  EXPECT_EQ(options->ring_bytes, size_t{3} << 30);
  EXPECT_EQ(options->target_ring_bytes, 0u);
  EXPECT_EQ(options->slot_bytes, size_t{8} << 20);
  EXPECT_EQ(options->chunk_bytes, size_t{4} << 20);
  EXPECT_EQ(options->lane.scheduler.small_bytes, size_t{256} << 10);
  EXPECT_EQ(options->lane.scheduler.small_age, Duration::zero());
  EXPECT_EQ(options->lane.scheduler.operations_max, 1000u);
  EXPECT_EQ(options->lane.scheduler.operations_per_peer_max, 750u);
  EXPECT_EQ(options->devices, (std::vector<int32_t>{0, 3}));
}

TEST_F(AscendRdmaOptionsTest, WrongValuesAreNamedWithTheirVariable) {
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, std::string>>{{"MC_NPU_BRIDGE_RING", "1MB"},
                                                        {"MC_NPU_BRIDGE_TARGET_RING", "4GB"},
                                                        {"MC_NPU_BRIDGE_RING", "4GB"},
                                                        {"MC_NPU_BRIDGE_RING", "big"},
                                                        {"MC_NPU_BRIDGE_SLOT", "100"},
                                                        {"MC_NPU_BRIDGE_CHUNK", "3MB"},
                                                        {"MC_NPU_BRIDGE_SMALL", "-1"},
                                                        {"MC_NPU_BRIDGE_AGE_US", "1ms"},
                                                        {"MC_NPU_BRIDGE_REQUESTS", "0"},
                                                        {"MC_NPU_BRIDGE_DEVICES", "0,,1"},
                                                        {"MC_NPU_BRIDGE_DEVICES", "-1"}}) {
    Set(name, value);
    const auto options = AscendRdmaOptions::FromEnvironment();
    ASSERT_FALSE(options) << name << "=" << value;
    EXPECT_EQ(options.error().code(), ErrorCode::INVALID_PARAMS);
    EXPECT_NE(options.error().message().find(fmt::format("{}='{}'", name, value)), std::string::npos)
        << options.error().message();
    unsetenv(name.c_str());
  }
}

}  // namespace
}  // namespace mooncake
