// Tests on the emulated runtime that leave no device memory behind.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "device/acl/test_emulator_probe.h"
#include "device/npu_runtime.h"

namespace mooncake {

class EmulatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto runtime = OpenNpuRuntime();
    ASSERT_TRUE(runtime) << runtime.error().ToString();
    runtime_ = *runtime;
    ASSERT_TRUE(EmulatorProbe::Loaded()) << "these tests look into the emulator";
    ASSERT_EQ(EmulatorProbe::LiveBlocks(), 0);
  }
  void TearDown() override {
    if (!EmulatorProbe::Loaded()) return;
    EmulatorProbe::Inject("");
    EXPECT_EQ(EmulatorProbe::LiveBlocks(), 0) << "device memory leaked";
  }
  std::shared_ptr<NpuRuntime> runtime_;
};

}  // namespace mooncake
