// Words that applications pass, and numbers that they get.
#include "capi/engine_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transfer_engine/protocol_names.h"

namespace mooncake {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TransferEngineOptions Made(const EngineArguments& arguments, TransferEngineOptions base = {}) {
  auto options = EngineOptions(arguments, std::move(base));
  EXPECT_TRUE(options) << options.error().ToString();
  return options.value_or(TransferEngineOptions{});
}

TEST(EngineOptionsTest, ProtocolNamesChooseTransports) {
  EXPECT_THAT(Made({.protocol = "tcp"}).protocols, ElementsAre("tcp"));
  EXPECT_THAT(Made({.protocol = "rdma"}).protocols, ElementsAre("rdma", "tcp"));
  EXPECT_THAT(Made({.protocol = ""}).protocols, ElementsAre("rdma", "tcp"));
  for (const char* other : {"ascend", "ascend_direct", "efa", "nvlink", "cxl"})
    EXPECT_THAT(Made({.protocol = other}).protocols, ElementsAre("rdma", "tcp")) << other;
}

TEST(EngineOptionsTest, BridgeStandsOnTheHostTransportsOrIsRefused) {
  const auto options = EngineOptions({.protocol = "ascend_rdma"}, TransferEngineOptions{});
  if (CheckBridgeBuilt()) {
    ASSERT_TRUE(options);
    EXPECT_THAT(options->protocols, ElementsAre("rdma", "tcp", "ascend_rdma"));
    EXPECT_THAT(Made({.protocol = "ascend_rdma"}, {.force_tcp = true}).protocols, ElementsAre("tcp", "ascend_rdma"));
    EXPECT_THAT(Made({.protocol = "ascend_rdma", .devices = "mlx5_0"}).device_filter, ElementsAre("mlx5_0"));
  } else {
    ASSERT_FALSE(options);
    EXPECT_EQ(options.error().code(), ErrorCode::NOT_SUPPORTED_TRANSPORT);
    EXPECT_THAT(options.error().message(), HasSubstr("USE_ASCEND_RDMA"));
  }
}

TEST(EngineOptionsTest, UnknownProtocolIsRefusedWithItsName) {
  const auto options = EngineOptions({.protocol = "rmda"}, TransferEngineOptions{});
  ASSERT_FALSE(options);
  EXPECT_EQ(options.error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_THAT(options.error().message(), HasSubstr("rmda"));
}

TEST(EngineOptionsTest, ForcedTcpServesEveryName) {
  const TransferEngineOptions forced{.force_tcp = true};
  EXPECT_THAT(Made({.protocol = "ascend"}, forced).protocols, ElementsAre("tcp"));
  EXPECT_TRUE(Made({.protocol = "rdma", .devices = "mlx5_0"}, forced).force_tcp);
  EXPECT_THAT(Made({.protocol = "rdma", .devices = "mlx5_0"}, forced).device_filter, IsEmpty());
}

TEST(EngineOptionsTest, DeviceListIsSplitAndOnlyForRdma) {
  EXPECT_THAT(Made({.protocol = "rdma", .devices = "mlx5_0, mlx5_1,,"}).device_filter, ElementsAre("mlx5_0", "mlx5_1"));
  EXPECT_THAT(Made({.protocol = "tcp", .devices = "eth0"}).device_filter, IsEmpty());
}

TEST(EngineOptionsTest, MetadataTypeCompletesAServerWithoutScheme) {
  EXPECT_EQ(Made({.metadata = "10.0.0.1:2379", .metadata_type = "etcd"}).metadata, "etcd://10.0.0.1:2379");
  EXPECT_EQ(Made({.metadata = "http://h:1/metadata", .metadata_type = "http"}).metadata, "http://h:1/metadata");
  EXPECT_EQ(Made({.metadata = "P2PHANDSHAKE", .metadata_type = "redis"}).metadata, "P2PHANDSHAKE");
  EXPECT_EQ(Made({.metadata = "redis://h:1"}).metadata, "redis://h:1");
  EXPECT_FALSE(EngineOptions({.metadata = "redis://h:1", .metadata_type = "etcd"}, TransferEngineOptions{}));
  EXPECT_FALSE(EngineOptions({.metadata = "h:1", .metadata_type = "zookeeper"}, TransferEngineOptions{}));
}

TEST(RegionOptionsTest, LocationsSayWhoseMemoryItIs) {
  EXPECT_EQ(RegionOptionsOf("*")->device_id, -1);
  EXPECT_EQ(RegionOptionsOf("")->location, "*");
  EXPECT_EQ(RegionOptionsOf("cpu:1")->device_id, -1);
  EXPECT_EQ(RegionOptionsOf("npu:3")->device_id, 3);
  EXPECT_EQ(RegionOptionsOf("npu:3", RegionAccess::kLocal)->access, RegionAccess::kLocal);
  for (const char* wrong : {"npu:", "npu:x", "npu:-1", "npu:1x", "gpu:0", "npu:99999999999"})
    EXPECT_FALSE(RegionOptionsOf(wrong)) << wrong;
}

TEST(NumbersTest, ErrorsHaveTheNumbersOfTheContract) {
  const auto status = [](ErrorCode code) { return Status(code, ""); };
  EXPECT_EQ(NegativeNumber(status(ErrorCode::ADDRESS_OVERLAPPED)), -7);
  EXPECT_EQ(NegativeNumber(status(ErrorCode::ADDRESS_NOT_REGISTERED)), -3);
  EXPECT_EQ(NegativeNumber(status(ErrorCode::INVALID_PARAMS)), -1);
  EXPECT_EQ(NegativeNumber(status(ErrorCode::TRANSFER_FAIL)), -1);
  EXPECT_EQ(StatusNumber(Status()), 0);
  EXPECT_EQ(StatusNumber(status(ErrorCode::INVALID_PARAMS)), 1);
  EXPECT_EQ(StatusNumber(status(ErrorCode::TOO_MANY_REQUESTS)), 2);
  EXPECT_EQ(StatusNumber(status(ErrorCode::ADDRESS_NOT_REGISTERED)), 3);
  EXPECT_EQ(StatusNumber(status(ErrorCode::BATCH_BUSY)), 4);
  EXPECT_EQ(StatusNumber(status(ErrorCode::NOT_SUPPORTED_TRANSPORT)), 8);
  EXPECT_EQ(StatusNumber(status(ErrorCode::TRANSFER_FAIL)), 999);
}

}  // namespace
}  // namespace mooncake
