// Engines with each other: registration, segments, notifications, restarts, opening and closing.
#include "transfer_engine/transfer_engine.h"

#include <gtest/gtest.h>

#include "transfer_engine/test_engines.h"

namespace mooncake {
namespace {

class TransferEngineTest : public testing::Test {
 protected:
  FakeNetwork network_;
};

TEST_F(TransferEngineTest, BytesGoBothWays) {
  FakeEngine a = OpenFake(network_);
  FakeEngine b = OpenFake(network_);
  std::vector<std::byte> remote(4096);
  ASSERT_TRUE(Register(b, remote));
  const auto segment = a->segments().Open(b->name(), Soon());
  ASSERT_TRUE(segment) << segment.error().ToString();
  std::vector<std::byte> data = Pattern(4096);
  const TransferRequest write = Write(data, *segment, remote.data());
  const auto wrote = a->Transfer({&write, 1}, Soon(), std::nullopt);
  ASSERT_TRUE(wrote) << wrote.error().ToString();
  EXPECT_EQ(remote, data);
  std::vector<std::byte> back(4096);
  const TransferRequest read = Read(back, *segment, remote.data());
  ASSERT_TRUE(a->Transfer({&read, 1}, Soon(), TransferNotify{.message = "done"}));
  EXPECT_EQ(back, data);
  const auto notifies = b->GetNotifies();
  ASSERT_EQ(notifies.size(), 1u);
  EXPECT_EQ(notifies[0].name, a->name());
  EXPECT_EQ(notifies[0].message, "done");
}

}  // namespace
}  // namespace mooncake
