// Topologies from made-up sysfs trees and from JSON.
#include "transfer_engine/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "transfer_engine/topology/natural_less.h"

namespace mooncake {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class DiscoveryTest : public ::testing::Test {
 protected:
  DiscoveryTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "topology_test.XXXXXX").string();
    root_ = mkdtemp(pattern.data());
  }
  ~DiscoveryTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  void AddNode(int node, const std::string& distances) const {
    Write("devices/system/node/node" + std::to_string(node) + "/distance", distances);
  }
  void AddNic(const std::string& name, const std::string& node, const std::string& state = "4: ACTIVE") const {
    Write("class/infiniband/" + name + "/device/numa_node", node);
    Write("class/infiniband/" + name + "/ports/1/state", state);
  }
  void AddPci(const std::string& address, const std::string& vendor, const std::string& kind,
              const std::string& node) const {
    const std::string folder = "bus/pci/devices/" + address;
    Write(folder + "/vendor", vendor);
    Write(folder + "/class", kind);
    Write(folder + "/numa_node", node);
  }
  void AddTwoSocketsWithFourNics() const {
    AddNode(0, "10 21");
    AddNode(1, "21 10");
    for (int i = 0; i < 4; ++i) AddNic("mlx5_" + std::to_string(i), std::to_string(i / 2));
  }
  Topology Discover(const std::vector<std::string>& filter = {}) const {
    auto topology = Topology::Discover(filter, root_.string());
    EXPECT_TRUE(topology) << topology.error().ToString();
    return topology ? std::move(*topology) : Topology();
  }

  std::filesystem::path root_;
};

TEST_F(DiscoveryTest, NicsOfTheOwnSocketArePreferred) {
  AddTwoSocketsWithFourNics();
  const Topology topology = Discover();
  EXPECT_EQ(topology.ToJson(), R"({"cpu:0":[["mlx5_0","mlx5_1"],["mlx5_2","mlx5_3"]],)"
                               R"("cpu:1":[["mlx5_2","mlx5_3"],["mlx5_0","mlx5_1"]]})");
  EXPECT_THAT(topology.devices(), ElementsAre("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"));
  EXPECT_THAT(topology.Near("cpu:1").preferred, ElementsAre("mlx5_2", "mlx5_3"));
  EXPECT_THAT(topology.Near("cpu:7").preferred, ElementsAre("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"));
  EXPECT_THAT(topology.Near("*").available, IsEmpty());
}

TEST_F(DiscoveryTest, FarNodesAreOrderedByDistance) {
  AddNode(0, "10 16 32");
  AddNode(1, "16 10 32");
  AddNode(10, "32 24 10");  // the third column, although its number is 10
  AddNic("a", "10");
  AddNic("b", "1");
  AddNic("c", "0");
  const Topology topology = Discover();
  EXPECT_THAT(topology.Near("cpu:0").available, ElementsAre("b", "a"));
  EXPECT_THAT(topology.Near("cpu:10").preferred, ElementsAre("a"));
  EXPECT_THAT(topology.Near("cpu:10").available, ElementsAre("b", "c"));
}

TEST_F(DiscoveryTest, NodeWithoutNicPrefersTheNearest) {
  AddNode(0, "10 16 32");
  AddNode(1, "16 10 32");
  AddNode(2, "32 24 10");
  AddNic("a", "1");
  AddNic("b", "2");
  EXPECT_THAT(Discover().Near("cpu:0").preferred, ElementsAre("a"));
}

TEST_F(DiscoveryTest, KernelWithoutNumaHasOneNodeWithEveryDevice) {
  AddNic("rxe0", "-1");
  AddNic("rxe1", "3");
  AddPci("0000:81:00.0", "0x19e5", "0x120000", "-1");
  EXPECT_EQ(Discover().ToJson(), R"({"cpu:0":[["rxe0","rxe1"],[]],"npu:0":[["rxe0","rxe1"],[]]})");
}

TEST_F(DiscoveryTest, HostWithNothingHasOneEmptyLocation) {
  const Topology topology = Discover();
  EXPECT_EQ(topology.ToJson(), R"({"cpu:0":[[],[]]})");
  EXPECT_THAT(topology.devices(), IsEmpty());
  EXPECT_THAT(topology.Near("*").preferred, IsEmpty());
}

TEST_F(DiscoveryTest, NicOfUnknownNodeComesLast) {
  AddNode(0, "10 20");
  AddNode(1, "20 10");
  AddNic("a", "-1");
  AddNic("b", "1");
  AddNic("c", "9");  // no such node
  const Topology topology = Discover();
  EXPECT_THAT(topology.Near("cpu:0").preferred, ElementsAre("b"));
  EXPECT_THAT(topology.Near("cpu:0").available, ElementsAre("a", "c"));
}

TEST_F(DiscoveryTest, MissingAndSenselessFilesAreTolerated) {
  AddNode(0, "ten twenty");
  AddNode(1, "20");
  Write("devices/system/node/online", "0-1");
  Write("devices/system/node/nodeX/distance", "10");
  AddNic("a", "zero");
  AddNic("b", "1");
  Write("class/infiniband/c/ports/1/state", "");                                    // neither numa_node nor a state
  Write("class/infiniband/d/device/numa_node", "0");                                // no port
  std::filesystem::create_directories(root_ / "class/infiniband/e/ports/1/state");  // a folder, cannot be read
  std::filesystem::create_symlink("nowhere", root_ / "class/infiniband/f");
  Write("bus/pci/devices/0000:00:00.0/vendor", "0x19e5");  // no class
  const Topology topology = Discover();
  EXPECT_THAT(topology.devices(), ElementsAre("a", "b", "c", "e"));
  EXPECT_THAT(topology.Near("cpu:1").preferred, ElementsAre("b"));
  EXPECT_THAT(topology.Near("cpu:0").preferred, ElementsAre("b"));
}

TEST_F(DiscoveryTest, ActivePortsComeFirst) {
  AddNode(0, "10");
  AddNic("mlx5_0", "0", "1: DOWN");
  AddNic("mlx5_1", "0");
  const Topology topology = Discover();
  EXPECT_THAT(topology.Near("cpu:0").preferred, ElementsAre("mlx5_1", "mlx5_0"));
  EXPECT_THAT(topology.devices(), ElementsAre("mlx5_0", "mlx5_1"));
}

TEST_F(DiscoveryTest, NpusAreNumberedByPciAddressAndKnowTheirNics) {
  AddTwoSocketsWithFourNics();
  AddPci("0000:c1:00.0", "0x19e5", "0x120000", "1");
  AddPci("0000:81:00.0", "0x19e5", "0x120000", "0");
  AddPci("0000:c2:00.0", "0x19e5", "0x120000", "-1");
  AddPci("0000:01:00.0", "0x19e5", "0x020000", "0");  // a network card of the same vendor
  AddPci("0000:02:00.0", "0x10de", "0x120000", "0");
  const Topology topology = Discover();
  EXPECT_THAT(topology.Near("npu:0").preferred, ElementsAre("mlx5_0", "mlx5_1"));
  EXPECT_THAT(topology.Near("npu:1").preferred, ElementsAre("mlx5_2", "mlx5_3"));
  EXPECT_THAT(topology.Near("npu:1").available, ElementsAre("mlx5_0", "mlx5_1"));
  EXPECT_THAT(topology.Near("npu:2").preferred, ElementsAre("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"));
  EXPECT_THAT(topology.ToJson(), ::testing::Not(HasSubstr("npu:3")));
}

TEST_F(DiscoveryTest, FilterKeepsWhatItNames) {
  AddTwoSocketsWithFourNics();
  const Topology topology = Discover({"mlx5_3", "mlx5_0"});
  EXPECT_EQ(topology.ToJson(), R"({"cpu:0":[["mlx5_0"],["mlx5_3"]],"cpu:1":[["mlx5_3"],["mlx5_0"]]})");
}

TEST_F(DiscoveryTest, FilterOfAMissingDeviceNamesThoseThatExist) {
  AddTwoSocketsWithFourNics();
  const std::vector<std::string> filter{"mlx5_0", "mlx5_9"};
  const auto topology = Topology::Discover(filter, root_.string());
  ASSERT_FALSE(topology);
  EXPECT_EQ(topology.error().code(), ErrorCode::DEVICE_NOT_FOUND);
  EXPECT_THAT(topology.error().message(), HasSubstr("'mlx5_9'"));
  EXPECT_THAT(topology.error().message(), HasSubstr("mlx5_0, mlx5_1, mlx5_2, mlx5_3"));
}

TEST(TopologyTest, RealSysfsCanBeRead) {
  const auto topology = Topology::Discover();
  ASSERT_TRUE(topology) << topology.error().ToString();
  EXPECT_THAT(topology->ToJson(), HasSubstr("\"cpu:"));
}

TEST(TopologyTest, JsonRoundTrips) {
  for (const char* json : {R"({})", R"({"cpu:0":[[],[]]})", R"({"*":[["b"],["a"]],"cpu:0":[["a"],[]]})",
                           R"({"cpu:0":[["b","a"],["c"]],"npu:0":[["c"],["a","b"]]})"}) {
    const auto topology = Topology::Parse(json);
    ASSERT_TRUE(topology) << topology.error().ToString();
    EXPECT_EQ(topology->ToJson(), json);
  }
}

TEST(TopologyTest, WildcardIsTheUnionUnlessGiven) {
  const auto derived = Topology::Parse(R"({"cpu:0": [["b10", "b2"], []], "cpu:1": [["a"], ["b2"]]})");
  ASSERT_TRUE(derived);
  EXPECT_THAT(derived->Near("*").preferred, ElementsAre("a", "b2", "b10"));
  EXPECT_THAT(derived->Near("npu:0").preferred, ElementsAre("a", "b2", "b10"));
  const auto given = Topology::Parse(R"({"*": [["x"], []], "cpu:0": [["y"], []]})");
  ASSERT_TRUE(given);
  EXPECT_THAT(given->Near("npu:0").preferred, ElementsAre("x"));
  EXPECT_THAT(given->devices(), ElementsAre("x", "y"));
}

TEST(TopologyTest, NothingIsNearInAnEmptyTopology) {
  EXPECT_THAT(Topology().Near("cpu:0").preferred, IsEmpty());
  EXPECT_EQ(Topology().ToJson(), "{}");
}

TEST(TopologyTest, WrongJsonIsRefusedWithItsPlace) {
  const std::pair<const char*, const char*> kCases[] = {
      {"", "topology:1:1"},
      {"[]", "expected an object"},
      {R"({"": [[], []]})", "location without a name"},
      {R"({"cpu:0": {}})", "topology:1:11: $[\"cpu:0\"]: an object"},
      {R"({"cpu:0": [[]]})", "an array of 1; expected [[preferred"},
      {R"({"cpu:0": [[], [], []]})", "an array of 3"},
      {R"({"cpu:0": [[], 1]})", "$[\"cpu:0\"][1]: 1; expected an array"},
      {R"({"cpu:0": [[1], []]})", "$[\"cpu:0\"][0][0]: 1; expected the name"},
      {R"({"cpu:0": [["a"], ["a"]]})", "\"a\" appears twice"},
      {R"({"cpu:0": [[], []], "cpu:0": [[], []]})", "appears twice"},
  };
  for (const auto& [json, part] : kCases) {
    const auto topology = Topology::Parse(json);
    ASSERT_FALSE(topology) << json;
    EXPECT_EQ(topology.error().code(), ErrorCode::INVALID_PARAMS);
    EXPECT_THAT(topology.error().message(), StartsWith("topology:"));
    EXPECT_THAT(topology.error().message(), HasSubstr(part)) << json;
  }
}

TEST(NaturalLessTest, CountsAsPeopleDo) {
  const std::vector<std::string_view> kInOrder = {"",    "1",   "01", "2",   "10",   "a", "a1",
                                                  "a01", "a1b", "a2", "a10", "a10b", "b"};
  for (size_t i = 0; i < kInOrder.size(); ++i) {
    for (size_t j = 0; j < kInOrder.size(); ++j) {
      if (kInOrder[i] == "a01" || kInOrder[j] == "a01") continue;
      EXPECT_EQ(NaturalLess(kInOrder[i], kInOrder[j]), i < j) << kInOrder[i] << " " << kInOrder[j];
    }
  }
  EXPECT_TRUE(NaturalLess("a1", "a01"));
  EXPECT_FALSE(NaturalLess("a01", "a1"));
}

TEST(LocationOfTest, NamesANodeWhateverTheMemory) {
  const size_t bytes = size_t{64} << 20;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  EXPECT_EQ(LocationOf(memory, bytes), "cpu:0");  // no page is in memory
  std::memset(static_cast<char*>(memory) + bytes / 2, 1, bytes / 2);
  const std::string location = LocationOf(memory, bytes);
  EXPECT_THAT(location, StartsWith("cpu:"));
  const std::filesystem::path node = "/sys/devices/system/node/node" + location.substr(4);
  EXPECT_TRUE(location == "cpu:0" || std::filesystem::exists(node)) << location;
  munmap(memory, bytes);
  EXPECT_EQ(LocationOf(memory, bytes), "cpu:0");
  EXPECT_EQ(LocationOf(nullptr, 0), "cpu:0");
  EXPECT_EQ(LocationOf(nullptr, SIZE_MAX), "cpu:0");
}

}  // namespace
}  // namespace mooncake
