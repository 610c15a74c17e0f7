// Arithmetic and choices of the RDMA transport: addresses, rails, slices, settings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "common/env.h"
#include "transfer_engine/transport/rdma/addressing.h"
#include "transfer_engine/transport/rdma/rail_plan.h"
#include "transfer_engine/transport/rdma/rdma_device.h"
#include "transfer_engine/transport/rdma/rdma_options.h"

namespace mooncake::rdma {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Gid V4(uint8_t c, uint8_t d) {
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, c, d};
}
Gid V6(uint8_t first, uint8_t second) {
  return {first, second, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
}

class GidTable {
 public:
  explicit GidTable(std::vector<std::optional<GidEntry>> entries) : entries_(std::move(entries)) {}
  Result<GidChoice> Choose(int wanted = -1) {
    return ChooseGid(
        static_cast<int>(entries_.size()),
        [this](int index) {
          EXPECT_LT(static_cast<size_t>(index), entries_.size()) << "read beyond the table";
          return entries_[static_cast<size_t>(index)];
        },
        wanted);
  }

 private:
  std::vector<std::optional<GidEntry>> entries_;
};

TEST(GidChoiceTest, TakesRoceV2WithAnIpv4AddressFirst) {
  GidTable table({GidEntry{V6(0xfe, 0x80), GidKind::kRoceV1}, GidEntry{V6(0xfe, 0x80), GidKind::kRoceV2},
                  GidEntry{V6(0x20, 0x01), GidKind::kRoceV2}, GidEntry{V4(0, 1), GidKind::kRoceV1},
                  GidEntry{V4(0, 1), GidKind::kRoceV2}, GidEntry{V4(0, 2), GidKind::kRoceV2}});
  EXPECT_EQ(table.Choose().value().index, 4);
}

TEST(GidChoiceTest, TakesAGlobalIpv6AddressBeforeALinkLocalOne) {
  GidTable table({GidEntry{V6(0xfe, 0x80), GidKind::kRoceV2}, GidEntry{V6(0x20, 0x01), GidKind::kRoceV2}});
  EXPECT_EQ(table.Choose().value().index, 1);
}

TEST(GidChoiceTest, TakesEntryZeroOfInfiniBand) {
  GidTable table({GidEntry{V6(0xfe, 0x80), GidKind::kInfiniBand}, GidEntry{V6(0x20, 0x01), GidKind::kInfiniBand}});
  EXPECT_EQ(table.Choose().value().index, 0);
}

TEST(GidChoiceTest, PassesOverEmptyEntriesAndSaysWhenThereIsNone) {
  GidTable some({std::nullopt, GidEntry{}, GidEntry{V4(0, 1), GidKind::kRoceV1}});
  EXPECT_EQ(some.Choose().value().index, 2);
  GidTable none({std::nullopt, GidEntry{}});
  EXPECT_EQ(none.Choose().error().code(), ErrorCode::DEVICE_NOT_FOUND);
}

TEST(GidChoiceTest, ObeysTheConfiguredIndex) {
  GidTable table({GidEntry{V4(0, 1), GidKind::kRoceV2}, GidEntry{V6(0xfe, 0x80), GidKind::kRoceV1}, std::nullopt});
  EXPECT_EQ(table.Choose(1).value().index, 1);
  EXPECT_EQ(table.Choose(2).error().code(), ErrorCode::DEVICE_NOT_FOUND);
  EXPECT_EQ(table.Choose(3).error().code(), ErrorCode::DEVICE_NOT_FOUND);
}

TEST(GidTextTest, ComesBackAndRefusesWhatIsNone) {
  const Gid gid = V6(0xfe, 0x80);
  EXPECT_EQ(FormatGid(gid), "fe:80:00:00:00:00:00:00:00:00:00:00:00:00:00:01");
  EXPECT_EQ(ParseGid(FormatGid(gid)), gid);
  for (const char* text :
       {"", "fe", "fe:80", "fe:80:00:00:00:00:00:00:00:00:00:00:00:00:00:0g",
        "fe 80:00:00:00:00:00:00:00:00:00:00:00:00:00:01", "-e:80:00:00:00:00:00:00:00:00:00:00:00:00:00:01"}) {
    EXPECT_FALSE(ParseGid(text).has_value()) << text;
  }
}

TEST(RailPlanTest, JoinsDevicesOfTheSameSubnet) {
  const Gid local[] = {V4(0, 1), V4(1, 1)};
  const Gid remote[] = {V4(1, 2), V4(0, 2)};
  EXPECT_THAT(PlanRails(local, remote, 16), ElementsAre(Rail{0, 1}, Rail{1, 0}));
}

TEST(RailPlanTest, JoinsInOrderWhereAllAreInOneNetwork) {
  const Gid local[] = {V4(0, 16), V4(0, 17)};
  const Gid remote[] = {V4(0, 128), V4(0, 128)};
  EXPECT_THAT(PlanRails(local, remote, 16), ElementsAre(Rail{0, 0}, Rail{1, 1}));
}

TEST(RailPlanTest, UsesEveryDeviceOfTheLargerSideEvenly) {
  const Gid one[] = {V4(0, 1)};
  const Gid two[] = {V4(0, 2), V4(0, 3)};
  const Gid five[] = {V4(0, 4), V4(0, 5), V4(0, 6), V4(0, 7), V4(0, 8)};
  EXPECT_THAT(PlanRails(one, two, 16), ElementsAre(Rail{0, 0}, Rail{0, 1}));
  const std::vector<Rail> rails = PlanRails(five, two, 16);
  ASSERT_EQ(rails.size(), 5u);
  size_t served[2] = {0, 0};
  for (size_t i = 0; i < rails.size(); ++i) {
    EXPECT_EQ(rails[i].local, i);
    ++served[rails[i].remote];
  }
  EXPECT_EQ(std::max(served[0], served[1]), 3u);
  EXPECT_EQ(PlanRails(five, two, 4).size(), 4u);
  EXPECT_TRUE(PlanRails(five, {}, 4).empty());
}

TEST(RailPlanTest, NearerRailsHaveSmallerDistances) {
  const Topology topology =
      Topology::Parse(R"({"cpu:0": [["a"], ["b"]], "cpu:1": [["b"], ["a"]], "*": [["a", "b"], []]})").value();
  const Rail rails[] = {{0, 0}, {1, 1}};
  const std::string local[] = {"a", "b"};
  const SegmentDevice remote[] = {{.name = "a"}, {.name = "b"}};
  const auto distances = [&](const std::string& here, const std::string& there) {
    return RailDistances(rails, local, remote, topology, here, topology, there);
  };
  EXPECT_THAT(distances("cpu:0", "cpu:0"), ElementsAre(0, 2));
  EXPECT_THAT(distances("cpu:1", "cpu:1"), ElementsAre(2, 0));
  EXPECT_THAT(distances("cpu:0", "cpu:1"), ElementsAre(0, 0));
  EXPECT_THAT(distances("*", "cpu:1"), ElementsAre(1, 0));
}

TEST(SliceTest, CutsCoverARequestOnceAndStayWithinPieces) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 300; ++round) {
    const uint64_t piece_here = random() % 2 == 0 ? 0 : (1 + random() % 9) * 4096;
    const uint64_t piece_there = random() % 2 == 0 ? 0 : (1 + random() % 9) * 4096;
    const uint64_t here = 0x10000 + random() % 100000;
    const uint64_t there = 0x90000 + random() % 100000;
    const uint64_t length = 1 + random() % 200000;
    const uint64_t slice = 4096 * (1 + random() % 8);
    uint64_t done = 0;
    while (done < length) {
      const uint64_t bytes = SliceLength(length - done, LeftInPiece(0x10000, piece_here, here + done),
                                         LeftInPiece(0x90000, piece_there, there + done), slice);
      ASSERT_GT(bytes, 0u);
      ASSERT_LE(bytes, slice + slice / 4);
      ASSERT_LE(done + bytes, length);
      const auto one_piece = [&](uint64_t base, uint64_t piece, uint64_t at) {
        return piece == 0 || (at - base) / piece == (at + bytes - 1 - base) / piece;
      };
      ASSERT_TRUE(one_piece(0x10000, piece_here, here + done));
      ASSERT_TRUE(one_piece(0x90000, piece_there, there + done));
      done += bytes;
    }
  }
}

TEST(SliceTest, LeavesNoSmallRest) {
  EXPECT_EQ(SliceLength(80 << 10, UINT64_MAX, UINT64_MAX, 64 << 10), 80u << 10);
  EXPECT_EQ(SliceLength(81 << 10, UINT64_MAX, UINT64_MAX, 64 << 10), 64u << 10);
}

class VariableGuard {
 public:
  VariableGuard(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~VariableGuard() { unsetenv(name_); }

 private:
  const char* name_;
};

TEST(RdmaOptionsTest, ReadsTheEnvironment) {
  const VariableGuard nccl("NCCL_IB_GID_INDEX", "3");
  const VariableGuard slice("MC_SLICE_SIZE", "65536");
  const VariableGuard mr("MC_MAX_MR_SIZE", "2147483648");
  const VariableGuard ordering("MC_IB_PCI_RELAXED_ORDERING", "0");
  const VariableGuard sl("MC_IB_SL", "-1");
  {
    const RdmaOptions options = RdmaOptions::FromEnvironment().value();
    EXPECT_EQ(options.gid_index, 3);
    EXPECT_EQ(options.slice_bytes, 65536u);
    EXPECT_EQ(options.max_mr_bytes, 2147483648u);
    EXPECT_FALSE(options.relaxed_ordering);
    EXPECT_EQ(options.service_level, 0);
    EXPECT_LE(options.retry_count, 6);  // 7 is "for ever" on some devices
  }
  const VariableGuard own("MC_GID_INDEX", "5");
  EXPECT_EQ(RdmaOptions::FromEnvironment().value().gid_index, 5);
}

TEST(RdmaOptionsTest, NamesTheVariableThatIsWrong) {
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, const char*>>{
           {"MC_MTU", "1500"}, {"MC_NUM_QP_PER_EP", "0"}, {"MC_SLICE_SIZE", "64k"}, {"MC_IB_PORT", "x"}}) {
    const VariableGuard guard(name, value);
    const auto options = RdmaOptions::FromEnvironment();
    ASSERT_FALSE(options.has_value()) << name;
    EXPECT_EQ(options.error().code(), ErrorCode::INVALID_PARAMS);
    EXPECT_THAT(options.error().message(), HasSubstr(name));
  }
}

TEST(RdmaDeviceTest, ReadsTheProcessorsNearADevice) {
  const std::filesystem::path root = std::filesystem::temp_directory_path() / fmt::format("mc_rdma_sys_{}", getpid());
  const auto write = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  };
  write("class/infiniband/mlx5_0/device/numa_node", "1\n");
  write("class/infiniband/mlx5_1/device/numa_node", "-1\n");
  write("devices/system/node/node1/cpulist", "4-6,12,14-15\n");
  EXPECT_THAT(CpusNearDevice("mlx5_0", root), ElementsAre(4, 5, 6, 12, 14, 15));
  EXPECT_TRUE(CpusNearDevice("mlx5_1", root).empty());
  EXPECT_TRUE(CpusNearDevice("rxe0", root).empty());
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace mooncake::rdma
