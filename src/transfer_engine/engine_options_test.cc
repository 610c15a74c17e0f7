// The engine's environment variables.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "transfer_engine/transfer_engine.h"

namespace mooncake {
namespace {

class EngineOptionsTest : public testing::Test {
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

TEST_F(EngineOptionsTest, NothingSetIsTheDefaults) {
  const auto options = TransferEngineOptionsFromEnvironment();
  ASSERT_TRUE(options);
  EXPECT_FALSE(options->force_tcp);
  EXPECT_FALSE(options->strict_protocol);
  EXPECT_EQ(options->default_timeout, std::chrono::seconds(30));
  EXPECT_TRUE(options->device_filter.empty());
}

TEST_F(EngineOptionsTest, VariablesAreRead) {
  Set("MC_FORCE_TCP", "1");
  Set("MC_STRICT_PROTOCOL", "true");
  Set("MC_TRANSFER_TIMEOUT", "60");
  Set("MC_TRANSFER_SPIN_US", "0");
  Set("MC_TE_FILTERS", " mlx5_0, mlx5_2 ,,");
  Set("MC_TCP_BIND_ADDRESS", "127.0.0.1");
  Set("MC_LEGACY_RPC_PORT_BINDING", "1");
  Set("MC_MIN_RPC_PORT", "20000");
  Set("MC_MAX_RPC_PORT", "20010");
  const auto options = TransferEngineOptionsFromEnvironment();
  ASSERT_TRUE(options) << options.error().ToString();
  EXPECT_TRUE(options->force_tcp);
  EXPECT_TRUE(options->strict_protocol);
  EXPECT_TRUE(options->legacy_port_binding);
  EXPECT_EQ(options->default_timeout, std::chrono::seconds(60));
  EXPECT_EQ(options->spin, Duration::zero());
  EXPECT_EQ(options->device_filter, std::vector<std::string>({"mlx5_0", "mlx5_2"}));
  EXPECT_EQ(options->bind_address, "127.0.0.1");
  EXPECT_EQ(options->min_control_port, 20000);
  EXPECT_EQ(options->max_control_port, 20010);
}

TEST_F(EngineOptionsTest, ShortTimeoutsAreRaisedToFiveSeconds) {
  Set("MC_TRANSFER_TIMEOUT", "1");
  EXPECT_EQ(TransferEngineOptionsFromEnvironment()->default_timeout, std::chrono::seconds(5));
}

TEST_F(EngineOptionsTest, TopologyIsTextOrAFile) {
  const std::string json = R"({"cpu:0": [["mlx5_0"], []]})";
  Set("MC_CUSTOM_TOPO_JSON", json);
  EXPECT_EQ(TransferEngineOptionsFromEnvironment()->custom_topology, json);
  const std::string path = testing::TempDir() + "/topology_of_engine_options_test.json";
  std::ofstream(path) << json;
  Set("MC_CUSTOM_TOPO_JSON", path);
  EXPECT_EQ(TransferEngineOptionsFromEnvironment()->custom_topology, json);
  unlink(path.c_str());
  EXPECT_FALSE(TransferEngineOptionsFromEnvironment());
}

TEST_F(EngineOptionsTest, WrongValuesAreNamedWithTheirVariable) {
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{{"MC_FORCE_TCP", "yes please"},
                                                                                    {"MC_TRANSFER_TIMEOUT", "-1"},
                                                                                    {"MC_TRANSFER_TIMEOUT", "5s"},
                                                                                    {"MC_TRANSFER_TIMEOUT", ""},
                                                                                    {"MC_MIN_RPC_PORT", "0"},
                                                                                    {"MC_MIN_RPC_PORT", "65536"},
                                                                                    {"MC_MAX_RPC_PORT", "14999"}}) {
    Set(name, value);
    const auto options = TransferEngineOptionsFromEnvironment();
    ASSERT_FALSE(options) << name << "=" << value;
    EXPECT_EQ(options.error().code(), ErrorCode::INVALID_PARAMS);
    EXPECT_NE(options.error().message().find(fmt::format("{}='{}'", name, value)), std::string::npos)
        << options.error().message();
    unsetenv(name.c_str());
  }
}

TEST(EngineProtocolsTest, UnknownOneIsRefused) {
  TransferEngineOptions options;
  options.protocols = {"tcp", "pigeon"};
  const auto engine = TransferEngine::Open(std::move(options));
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_NE(engine.error().message().find("'pigeon'"), std::string::npos) << engine.error().ToString();
}

TEST(EngineProtocolsTest, AscendIsThereOrTheErrorNamesTheBuildOption) {
  TransferEngineOptions options;
  options.local_name = "127.0.0.1";
  options.protocols = {"ascend"};
  const auto engine = TransferEngine::Open(std::move(options));
  if (engine) {
    const auto names = (*engine)->TransportNames();
    EXPECT_EQ(std::ranges::count(names, "ascend"), 1) << fmt::format("{}", fmt::join(names, " "));
    EXPECT_EQ(std::ranges::count(names, "tcp"), 0) << "nobody asked for it";
    return;
  }
  EXPECT_NE(engine.error().message().find("protocol 'ascend'"), std::string::npos) << engine.error().ToString();
  EXPECT_NE(engine.error().message().find("USE_ASCEND_"), std::string::npos) << engine.error().ToString();
}

}  // namespace
}  // namespace mooncake
