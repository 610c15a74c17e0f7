// The RDMA transport on real (or Soft-RoCE) devices. Needs some, and rights to change links: it runs in the guest of
// tests/rdma_vm.
#include <gtest/gtest.h>

#include "transfer_engine/transport/rdma/test_rdma_node.h"

namespace mooncake::rdma {
namespace {

TEST(RdmaDeviceTest, MovesBytesOfAllSizes) {
  TestNode here({.devices = {"rxe0"}});
  TestNode there({.devices = {"rxe1"}});
  ASSERT_TRUE(here.Open().has_value());
  ASSERT_TRUE(there.Open().has_value());
  TestMemory local(16 << 20);
  TestMemory remote(16 << 20);
  ASSERT_TRUE(here.Register(local).has_value());
  ASSERT_TRUE(there.Register(remote).has_value());
  const SegmentPtr target = there.Describe();
  for (const size_t size : {1ul, 4096ul, 65537ul, 1ul << 20, 16ul << 20}) {
    SCOPED_TRACE(size);
    local.Fill(0, size, 7);
    const auto written = here.Transfer(TransferOpcode::kWrite, local.Range(0, size), target, remote.address());
    ASSERT_TRUE(written.has_value()) << written.error().ToString();
    EXPECT_EQ(remote.Wrong(0, size, 7), 0u);
    remote.Fill(0, size, 9);
    const auto read = here.Transfer(TransferOpcode::kRead, local.Range(0, size), target, remote.address());
    ASSERT_TRUE(read.has_value()) << read.error().ToString();
    EXPECT_EQ(local.Wrong(0, size, 9), 0u);
  }
  std::printf("%s", here.transport().DescribeState().c_str());
}

}  // namespace
}  // namespace mooncake::rdma

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
