// Segment descriptors as JSON: exact both ways, readable by earlier engines, and safe to read from strangers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "transfer_engine/segment.h"
#include "transfer_engine/topology.h"

namespace mooncake {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

SegmentDescriptor Example() {
  SegmentDescriptor segment;
  segment.name = "node-7:12345";
  segment.protocols = {"rdma", "tcp"};
  segment.generation = {0x0123456789abcdef, 0xfedcba9876543210};
  segment.revision = UINT64_MAX;
  segment.control = {"fe80::1", 15001};
  segment.tcp_data = {"10.0.0.7", 65535};
  segment.host_id = "host \"7\"\n";
  segment.shm_socket = "mooncake-shm-1";
  segment.npu_socket = "mooncake-shm-2";
  segment.devices = {{"mlx5_0", 65535, "fe:80:00:00:00:00:00:00:00:11:22:33:44:55:66:77"},
                     {"mlx5_1", 0, "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:07"}};
  segment.regions = {{.address = 1, .length = 4095, .location = "cpu:0", .key = UINT64_MAX, .rkeys = {{0, UINT32_MAX}}},
                     {.address = 0x7fff'ffff'f001,
                      .length = 2500,
                      .location = "*",
                      .key = (uint64_t{1} << 53) + 1,
                      .mr_piece_bytes = 1000,
                      .rkeys = {{1, 2}, {3, 4}, {5, 6}},
                      .shm_id = 9'007'199'254'740'993,
                      .shm_offset = UINT64_MAX - 2500,
                      .npu_id = 9'007'199'254'740'995},
                     {.address = UINT64_MAX - 10, .length = 10, .location = "npu:1"}};
  segment.topology = R"({"cpu:0":[["mlx5_0"],["mlx5_1"]],"npu:1":[["mlx5_1"],["mlx5_0"]]})";
  return segment;
}

void ExpectEqual(const SegmentDescriptor& a, const SegmentDescriptor& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.protocols, b.protocols);
  EXPECT_EQ(a.generation, b.generation);
  EXPECT_EQ(a.revision, b.revision);
  EXPECT_EQ(a.control, b.control);
  EXPECT_EQ(a.tcp_data, b.tcp_data);
  EXPECT_EQ(a.host_id, b.host_id);
  EXPECT_EQ(a.shm_socket, b.shm_socket);
  EXPECT_EQ(a.npu_socket, b.npu_socket);
  EXPECT_EQ(a.topology, b.topology);
  ASSERT_EQ(a.devices.size(), b.devices.size());
  for (size_t i = 0; i < a.devices.size(); ++i) {
    EXPECT_EQ(a.devices[i].name, b.devices[i].name);
    EXPECT_EQ(a.devices[i].lid, b.devices[i].lid);
    EXPECT_EQ(a.devices[i].gid, b.devices[i].gid);
  }
  ASSERT_EQ(a.regions.size(), b.regions.size());
  for (size_t i = 0; i < a.regions.size(); ++i) {
    EXPECT_EQ(a.regions[i].address, b.regions[i].address);
    EXPECT_EQ(a.regions[i].length, b.regions[i].length);
    EXPECT_EQ(a.regions[i].location, b.regions[i].location);
    EXPECT_EQ(a.regions[i].key, b.regions[i].key);
    EXPECT_EQ(a.regions[i].mr_piece_bytes, b.regions[i].mr_piece_bytes);
    EXPECT_EQ(a.regions[i].rkeys, b.regions[i].rkeys);
    EXPECT_EQ(a.regions[i].shm_id, b.regions[i].shm_id);
    EXPECT_EQ(a.regions[i].shm_offset, b.regions[i].shm_offset);
    EXPECT_EQ(a.regions[i].npu_id, b.regions[i].npu_id);
  }
}

// The example with one change, given as a JSON merge patch (null removes).
std::string Patched(const char* patch) {
  auto root = nlohmann::json::parse(EncodeSegment(Example()));
  root.merge_patch(nlohmann::json::parse(patch));
  return root.dump();
}
// The example with one change to its second region, the one with three pieces.
std::string PatchedRegion(const char* patch) {
  auto root = nlohmann::json::parse(EncodeSegment(Example()));
  root["buffers"][1].merge_patch(nlohmann::json::parse(patch));
  return root.dump();
}

void ExpectRefused(const std::string& text, const std::string& part_of_message) {
  const auto decoded = DecodeSegment(text);
  ASSERT_FALSE(decoded) << text;
  EXPECT_EQ(decoded.error().code(), ErrorCode::METADATA_ERROR);
  EXPECT_THAT(decoded.error().message(), StartsWith("segment descriptor: "));
  EXPECT_THAT(decoded.error().message(), HasSubstr(part_of_message)) << text;
  EXPECT_LT(decoded.error().message().size(), 4096u);
}

TEST(SegmentJsonTest, RoundTripIsExact) {
  const auto decoded = DecodeSegment(EncodeSegment(Example()));
  ASSERT_TRUE(decoded) << decoded.error().ToString();
  ExpectEqual(*decoded, Example());
}

TEST(SegmentJsonTest, SmallestSegmentRoundTrips) {
  SegmentDescriptor segment;
  segment.name = "n";
  segment.protocols = {"tcp"};
  const auto decoded = DecodeSegment(EncodeSegment(segment));
  ASSERT_TRUE(decoded) << decoded.error().ToString();
  ExpectEqual(*decoded, segment);
}

TEST(SegmentJsonTest, EarlierEnginesFindTheirFields) {
  const auto root = nlohmann::json::parse(EncodeSegment(Example()));
  EXPECT_EQ(root["name"], "node-7:12345");
  EXPECT_EQ(root["protocol"], "rdma");
  EXPECT_EQ(root["tcp_data_port"], 65535);
  EXPECT_TRUE(root["timestamp"].is_string());
  EXPECT_EQ(root["devices"][0]["gid"], "fe:80:00:00:00:00:00:00:00:11:22:33:44:55:66:77");
  EXPECT_EQ(root["buffers"][0]["name"], "cpu:0");
  EXPECT_EQ(root["buffers"][1]["addr"], 0x7fff'ffff'f001);
  EXPECT_EQ(root["buffers"][1]["rkey"], nlohmann::json({1, 2}));
  EXPECT_EQ(root["buffers"][1]["lkey"], nlohmann::json({0, 0}));
  EXPECT_FALSE(root["buffers"][2].contains("rkey"));
  EXPECT_EQ(root["priority_matrix"]["cpu:0"][0][0], "mlx5_0");
}

TEST(SegmentJsonTest, ReadsWhatEarlierEnginesWrite) {
  const auto decoded = DecodeSegment(R"({"name": "node:1", "protocol": "rdma", "timestamp": "2026", "unknown": [1, {}],
    "buffers": [{"name": "cpu:1", "addr": 8192, "length": 4096, "rkey": [7], "lkey": [3]},
                {"name": "cpu:0", "addr": 4096, "length": 4096, "rkey": [8], "lkey": [4]}],
    "devices": [{"name": "mlx5_0", "lid": 3, "gid": "fe:80:00:00:00:00:00:00:00:11:22:33:44:55:66:77"}],
    "priority_matrix": {"cpu:0": [["mlx5_0"], []]}})");
  ASSERT_TRUE(decoded) << decoded.error().ToString();
  EXPECT_THAT(decoded->protocols, ElementsAre("rdma"));
  EXPECT_TRUE(decoded->generation.IsNil());
  EXPECT_EQ(decoded->control, Endpoint{});
  ASSERT_EQ(decoded->regions.size(), 2u);
  EXPECT_EQ(decoded->regions[0].address, 4096u);  // sorted
  EXPECT_EQ(decoded->regions[0].rkeys, (std::vector<std::vector<uint32_t>>{{8}}));
}

TEST(SegmentJsonTest, RefusesWrongTypesAndRangesWithTheirPlace) {
  ExpectRefused("", "$: no JSON");
  ExpectRefused("{", "$: no JSON at byte");
  ExpectRefused("[]", "$: an array of 0");
  ExpectRefused("1e999", "$: no JSON");
  ExpectRefused(std::string(R"({"name":"n","protocols":[]})") + "x", "no JSON at byte");
  ExpectRefused(std::string("{}\0{}", 5), "NUL byte at 2");
  ExpectRefused("{\"name\":\"\xff\"}", "no JSON");
  ExpectRefused(std::string(100, '['), "nested deeper");
  ExpectRefused(Patched(R"({"name": null})"), "$.name: missing");
  ExpectRefused(Patched(R"({"name": 7})"), "$.name: 7; expected a string");
  ExpectRefused(Patched(R"({"name": "a\u0000b"})"), "$.name");
  ExpectRefused(Patched(R"({"protocols": null, "protocol": null})"), "$.protocol: missing");
  ExpectRefused(Patched(R"({"protocols": [7]})"), "$.protocols[0]: 7");
  ExpectRefused(Patched(R"({"protocols": {}})"), "$.protocols: an object");
  ExpectRefused(Patched(R"({"generation": "0123456789abcdef-fedcba987654321"})"), "$.generation");
  ExpectRefused(Patched(R"({"generation": "0123456789abcdef-fedcba987654321g"})"), "$.generation");
  ExpectRefused(Patched(R"({"revision": -1})"), "$.revision: -1");
  ExpectRefused(Patched(R"({"revision": 18446744073709551616})"), "$.revision");
  ExpectRefused(Patched(R"({"revision": 1.0})"), "$.revision: 1.0");
  ExpectRefused(Patched(R"({"control": "nowhere"})"), "$.control");
  ExpectRefused(Patched(R"({"control": "a:70000"})"), "$.control");
  ExpectRefused(Patched(R"({"tcp_data_port": 65536})"), "$.tcp_data_port: 65536; expected a whole number");
  ExpectRefused(Patched(R"({"host_id": []})"), "$.host_id");
  ExpectRefused(Patched(R"({"priority_matrix": {"cpu:0": 3}})"), "$.priority_matrix");
  ExpectRefused(Patched(("{\"name\": \"" + std::string(1025, 'n') + "\"}").c_str()), "$.name: 1025 bytes");
}

TEST(SegmentJsonTest, RefusesWrongDevices) {
  ExpectRefused(Patched(R"({"devices": 1})"), "$.devices: 1");
  ExpectRefused(Patched(R"({"devices": [1]})"), "$.devices[0]: 1");
  ExpectRefused(Patched(R"({"devices": [{"name": "a", "lid": 65536}]})"), "$.devices[0].lid: 65536");
  ExpectRefused(Patched(R"({"devices": [{"name": "a"}]})"), "$.devices[0].gid: missing");
  ExpectRefused(Patched(R"({"devices": [{"name": "a", "gid": "fe80::1"}]})"), "$.devices[0].gid");
  const std::string device = R"({"name": "a", "gid": "fe:80:00:00:00:00:00:00:00:11:22:33:44:55:66:77"})";
  ExpectRefused(Patched((R"({"devices": [)" + device + "," + device + "]}").c_str()), "$.devices[1].name: \"a\"");
}

TEST(SegmentJsonTest, RefusesWrongRegions) {
  ExpectRefused(Patched(R"({"buffers": 1})"), "$.buffers: 1");
  ExpectRefused(Patched(R"({"buffers": {"a": {"name": "x", "addr": 1, "length": 1}}})"), "$.buffers: an object");
  ExpectRefused(Patched(R"({"buffers": [7]})"), "$.buffers: an array of 1");
  ExpectRefused(PatchedRegion(R"({"name": ""})"), "$.buffers[1].name: missing or empty");
  ExpectRefused(PatchedRegion(R"({"addr": 0})"), "$.buffers[1].addr");
  ExpectRefused(PatchedRegion(R"({"addr": "1"})"), "$.buffers[1].addr: \"1\"");
  ExpectRefused(PatchedRegion(R"({"length": null})"), "$.buffers[1].length");
  ExpectRefused(PatchedRegion(R"({"length": 18446744073709551615})"), "$.buffers[1].length");
  ExpectRefused(PatchedRegion(R"({"shm_offset": 18446744073709551615})"), "$.buffers[1].shm_offset");
  ExpectRefused(PatchedRegion(R"({"npu_id": "3"})"), "$.buffers[1].npu_id");
  ExpectRefused(PatchedRegion(R"({"key": -1})"), "$.buffers[1].key");
}

TEST(SegmentJsonTest, RefusesRegionsThatOverlap) {
  ExpectRefused(PatchedRegion(R"({"addr": 4095})"), "2500 bytes at 0xfff");
  EXPECT_TRUE(DecodeSegment(PatchedRegion(R"({"addr": 4096})")));
}

TEST(SegmentJsonTest, RefusesKeysThatDoNotFitDevicesOrPieces) {
  ExpectRefused(PatchedRegion(R"({"rkey": [1]})"), "$.buffers[1].lkey: not as many");
  ExpectRefused(PatchedRegion(R"({"rkey": [1], "lkey": [1], "rkeys": [[1], [1], [1]]})"),
                "$.buffers[1].rkey: 1 key(s) for 2 device(s)");
  ExpectRefused(PatchedRegion(R"({"rkeys": [[1, 2], [3, 4], [5]]})"), "$.buffers[1].rkey: 1 key(s)");
  ExpectRefused(PatchedRegion(R"({"rkeys": [[1, 2], [3, 4]]})"), "$.buffers[1].rkeys: keys of 2 piece(s)");
  ExpectRefused(PatchedRegion(R"({"rkeys": [[9, 2], [3, 4], [5, 6]]})"), "$.buffers[1].rkeys: its first row");
  ExpectRefused(PatchedRegion(R"({"rkeys": [[1, 2], [3, 4294967296], [5, 6]]})"), "$.buffers[1].rkeys[1][1]");
  ExpectRefused(PatchedRegion(R"({"rkeys": []})"), "$.buffers[1].rkeys");
  ExpectRefused(PatchedRegion(R"({"mr_piece_bytes": 1})"), "$.buffers[1].rkeys: keys of 3 piece(s)");
  ExpectRefused(Patched(R"({"devices": null})"), "$.buffers[0].rkey: 2 key(s) for 0 device(s)");
}

TEST(SegmentJsonTest, ManyRegionsRoundTrip) {
  SegmentDescriptor segment;
  segment.name = "many";
  segment.protocols = {"tcp"};
  for (uint64_t i = 0; i < 30'000; ++i) {
    segment.regions.push_back({.address = (i + 1) << 20, .length = 1 << 20, .location = "cpu:0", .key = i + 1});
  }
  const auto decoded = DecodeSegment(EncodeSegment(segment));
  ASSERT_TRUE(decoded) << decoded.error().ToString();
  ExpectEqual(*decoded, segment);
}

TEST(SegmentJsonTest, TextsBeyondTheLimitsAreRefused) {
  ExpectRefused(std::string((size_t{64} << 20) + 1, ' '), "the limit is");
  std::string values = "[0";
  for (size_t i = 0; i < (size_t{1} << 20); ++i) values += ",0";
  ExpectRefused(values + "]", "more than 1048576 values");
}

TEST(SegmentJsonTest, EveryTruncationIsRefused) {
  const std::string text = EncodeSegment(Example());
  for (size_t length = 0; length < text.size(); ++length) {
    const auto decoded = DecodeSegment(std::string_view(text).substr(0, length));
    ASSERT_FALSE(decoded) << length;
    ASSERT_EQ(decoded.error().code(), ErrorCode::METADATA_ERROR);
  }
}

// Whatever decodes holds what the rest of the engine relies on.
TEST(SegmentJsonTest, BrokenBytesDecodeSoundlyOrAreRefused) {
  const std::string text = EncodeSegment(Example());
  std::mt19937 random(20240611);
  size_t decoded_count = 0;
  for (int round = 0; round < 10'000; ++round) {
    std::string broken = text;
    const size_t edits = 1 + random() % 3;
    for (size_t i = 0; i < edits; ++i) {
      char& byte = broken[random() % broken.size()];
      byte =
          random() % 2 == 0 ? static_cast<char>(byte ^ (1 << random() % 8)) : "0123456789{}[],:\"\\-.eE"[random() % 22];
    }
    const auto decoded = DecodeSegment(broken);
    if (!decoded) {
      ASSERT_EQ(decoded.error().code(), ErrorCode::METADATA_ERROR);
      continue;
    }
    ++decoded_count;
    uint64_t end = 0;
    for (const SegmentRegion& region : decoded->regions) {
      ASSERT_GE(region.address, end);
      ASSERT_LE(region.length, UINT64_MAX - region.address);
      end = region.address + region.length;
      for (const auto& row : region.rkeys) ASSERT_EQ(row.size(), decoded->devices.size());
    }
    const auto again = DecodeSegment(EncodeSegment(*decoded));
    ASSERT_TRUE(again) << again.error().ToString() << "\n" << broken;
  }
  EXPECT_GT(decoded_count, 100u);
}

}  // namespace
}  // namespace mooncake
