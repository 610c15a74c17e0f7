// Every rule of the tier configuration with its exact message, where the text is taken from, and fuzz.
#include "tiered_cache/tier_config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <random>
#include <set>

namespace mooncake {
namespace {

const TierSupport kWithAscend{true, ""};
const TierSupport kWithoutAscend{false, ""};

// The two configurations of the feature description, comments included.
constexpr std::string_view kSingleNpuText = R"({
    "tiers": [
        {
            "type": "ASCEND_NPU",
            "capacity": 536870912,      // 512MB
            "priority": 100,            // 优先级，数值越大优先级越高
            "device_id": 0,             // Ascend设备ID
            "tags": ["npu", "fast"]     // 可选标签
        }
    ]
})";
constexpr std::string_view kCommandLineText =
    R"({"tiers":[{"type":"DRAM","capacity":536870912,"priority":100,"allocator_type":"OFFSET"}]})";

constexpr std::string_view kCapacityForm =
    R"(bytes as a positive integer, a size such as "512MB" or "1.5GB", or a share of the free memory, "1%" to "100%")";

std::string ErrorOf(std::string_view text, const TierSupport& support = kWithAscend) {
  const auto config = ParseTieredBackendConfig(text, "t.json", support);
  if (config) return "(accepted)";
  EXPECT_EQ(config.error().code(), ErrorCode::INVALID_PARAMS);
  return config.error().message();
}

// A DRAM tier with more keys behind the required ones; they start at line 2.
std::string Dram(std::string_view keys) {
  return fmt::format("{{\"tiers\": [{{\"type\": \"DRAM\", \"capacity\": 4096, \"priority\": 1,\n{}}}]}}", keys);
}
std::string Npu(std::string_view keys) {
  return fmt::format("{{\"tiers\": [{{\"type\": \"ASCEND_NPU\", \"capacity\": 4096, \"priority\": 1,\n{}}}]}}", keys);
}
std::string Capacity(std::string_view value) {
  return fmt::format("{{\"tiers\": [{{\"type\": \"DRAM\", \"priority\": 1,\n\"capacity\": {}}}]}}", value);
}

TEST(TierConfigParse, AcceptsTheCommentedNpuExample) {
  const auto config = ParseTieredBackendConfig(kSingleNpuText, "npu.json", kWithAscend);
  ASSERT_TRUE(config) << config.error().message();
  ASSERT_EQ(config->tiers.size(), 1u);
  const TierConfig& tier = config->tiers[0];
  EXPECT_EQ(tier.type, "ASCEND_NPU");
  EXPECT_EQ(tier.capacity_bytes, 536870912u);
  EXPECT_EQ(tier.priority, 100);
  EXPECT_EQ(tier.device_id, 0);
  EXPECT_EQ(tier.tags, (std::vector<std::string>{"npu", "fast"}));
  EXPECT_EQ(config->Where(tier), "npu.json:3:9: $.tiers[0]");
  EXPECT_TRUE(config->notices.empty());
}

TEST(TierConfigParse, AcceptsTheCommandLineExample) {
  const auto config = ParseTieredBackendConfig(kCommandLineText, "argument", kWithoutAscend);
  ASSERT_TRUE(config) << config.error().message();
  const TierConfig& tier = config->tiers.at(0);
  EXPECT_EQ(tier.type, "DRAM");
  EXPECT_EQ(tier.capacity_bytes, 536870912u);
  EXPECT_EQ(tier.allocator_type, "OFFSET");
  EXPECT_FALSE(tier.numa_node);
  EXPECT_TRUE(tier.tags.empty());
  EXPECT_EQ(config->source, "argument");
}

TEST(TierConfigParse, AcceptsSeveralTiersOfEachTypeAndTheAlias) {
  const auto good = ParseTieredBackendConfig(
      R"({"tiers": [{"type": "DRAM", "capacity": "1.5 GB", "priority": -3, "numa_node": 1},
                    {"type": "DRAM", "capacity": 67108864, "priority": 10},
                    {"type": "ASCEND", "capacity": "512MB", "priority": 100, "device_id": 3},
                    {"device_id": 3, "tags": [], "priority": 100, "capacity": 1, "type": "ASCEND_NPU"}]})",
      "t.json", kWithAscend);
  ASSERT_TRUE(good) << good.error().message();
  ASSERT_EQ(good->tiers.size(), 4u);
  EXPECT_EQ(good->tiers[0].capacity_bytes, 1610612736u);
  EXPECT_EQ(good->tiers[0].priority, -3);
  EXPECT_EQ(good->tiers[0].numa_node, 1);
  EXPECT_EQ(good->tiers[2].type, "ASCEND_NPU");
  EXPECT_EQ(good->tiers[2].device_id, 3);
  EXPECT_EQ(good->tiers[3].device_id, 3) << "two tiers on one device are allowed";
}

TEST(TierConfigParse, CapacityTakesBytesAndSizeStringsOnly) {
  const auto capacity_of = [](std::string_view value) {
    const auto config = ParseTieredBackendConfig(Capacity(value), "t.json", kWithAscend);
    return config ? config->tiers[0].capacity_bytes : 0;
  };
  EXPECT_EQ(capacity_of("1"), 1u);
  EXPECT_EQ(capacity_of("\"512MB\""), 536870912u);
  EXPECT_EQ(capacity_of("\"2g\""), 2147483648u);
  EXPECT_EQ(capacity_of("\"4096\""), 4096u);
  const std::map<std::string, std::string> bad = {{"0", "0"},
                                                  {"-1", "-1"},
                                                  {"-0", "-0"},
                                                  {"4096.0", "4096.0"},
                                                  {"1e9", "1e9"},
                                                  {"18446744073709551616", "18446744073709551616"},
                                                  {"18446744073709551615", "18446744073709551615"},
                                                  {"null", "null"},
                                                  {"true", "true"},
                                                  {"[1]", "an array of 1"},
                                                  {"{}", "an object"},
                                                  {"\"\"", "\"\""},
                                                  {"\"0 GB\"", "\"0 GB\""},
                                                  {"\"-5MB\"", "\"-5MB\""},
                                                  {"\"12XB\"", "\"12XB\""},
                                                  {"\"infinite\"", "\"infinite\""},
                                                  {"\"0%\"", "\"0%\""},
                                                  {"\"100.1%\"", "\"100.1%\""},
                                                  {"\"-5%\"", "\"-5%\""},
                                                  {"\"%\"", "\"%\""},
                                                  {"\"nan%\"", "\"nan%\""},
                                                  {"\"80%%\"", "\"80%%\""},
                                                  {"\"80 MB%\"", "\"80 MB%\""}};
  for (const auto& [value, shown] : bad) {
    EXPECT_EQ(ErrorOf(Capacity(value)),
              fmt::format("t.json:2:13: $.tiers[0].capacity: {} is not allowed; allowed: {}", shown, kCapacityForm));
  }
}

TEST(TierConfigParse, CapacityMayBeAShareOfTheFreeMemory) {
  const std::map<std::string, double> shares = {
      {"80%", 80}, {"100%", 100}, {"12.5%", 12.5}, {"12.5 %", 12.5}, {"0.001%", 0.001}};
  for (const auto& [text, percent] : shares) {
    const auto config = ParseTieredBackendConfig(Capacity(fmt::format("\"{}\"", text)), "t.json", kWithAscend);
    ASSERT_TRUE(config) << config.error().message();
    EXPECT_EQ(config->tiers[0].capacity_percent, percent);
    EXPECT_EQ(config->tiers[0].capacity_bytes, 0u);
  }
}

TEST(TierConfigParse, NpuMemoryComesInSlabsUnlessToldOtherwise) {
  const auto parsed = [](std::string_view keys) {
    const auto config = ParseTieredBackendConfig(Npu(keys), "t.json", kWithAscend);
    EXPECT_TRUE(config) << config.error().message();
    return config ? config->tiers[0] : TierConfig{};
  };
  EXPECT_FALSE(parsed("\"tags\": []").direct_allocation);
  EXPECT_EQ(parsed("\"tags\": []").slab_bytes, 0u);
  EXPECT_FALSE(parsed("\"allocation\": \"slab\"").direct_allocation);
  EXPECT_TRUE(parsed("\"allocation\": \"direct\"").direct_allocation);
  EXPECT_EQ(parsed("\"slab_size\": \"1GB\"").slab_bytes, 1073741824u);
  EXPECT_EQ(parsed("\"slab_size\": 2097152").slab_bytes, 2097152u);
  for (const std::string_view value : {"\"Slab\"", "1", "null", "\"\""}) {
    EXPECT_EQ(
        ErrorOf(Npu(fmt::format("\"allocation\": {}", value))),
        fmt::format("t.json:2:15: $.tiers[0].allocation: {} is not allowed; allowed: string: \"slab\" or \"direct\"",
                    value));
  }
  const std::string form = "multiple of 2 MiB, as bytes or a size such as \"1GB\"";
  for (const std::string_view value : {"0", "-1", "\"x\"", "[]", "\"infinite\"", "\"50%\""}) {
    EXPECT_TRUE(ErrorOf(Npu(fmt::format("\"slab_size\": {}", value))).ends_with("is not allowed; allowed: " + form))
        << value;
  }
  EXPECT_EQ(
      ErrorOf(Npu("\"slab_size\": \"3MB\"")),
      "t.json:2:14: $.tiers[0].slab_size: \"3MB\" is not a multiple of 2 MiB, the device's page: the rest of a page "
      "would be lost in every slab; allowed: " +
          form);
  EXPECT_EQ(
      ErrorOf(Npu("\"slab_size\": \"2MB\", \"allocation\": \"direct\"")),
      "t.json:2:1: $.tiers[0].slab_size: \"slab_size\" has no meaning with \"allocation\": \"direct\"; leave one of "
      "the two out");
}

TEST(TierConfigParse, HugePagesTakeWholePagesOfCapacity) {
  const auto text = [](std::string_view capacity, std::string_view pages) {
    return fmt::format("{{\"tiers\": [{{\"type\": \"DRAM\", \"priority\": 1, \"hugepages\": {},\n\"capacity\": {}}}]}}",
                       pages, capacity);
  };
  const auto pages_of = [&](std::string_view pages) {
    const auto config = ParseTieredBackendConfig(text("\"4GB\"", pages), "t.json", kWithAscend);
    EXPECT_TRUE(config) << config.error().message();
    return config ? config->tiers[0].hugepage_bytes : std::nullopt;
  };
  EXPECT_EQ(pages_of("\"off\""), 0u);
  EXPECT_EQ(pages_of("\"2MB\""), 2097152u);
  EXPECT_EQ(pages_of("\"1GB\""), 1073741824u);
  for (const std::string_view value : {"\"4MB\"", "true", "2097152", "\"\""}) {
    EXPECT_TRUE(
        ErrorOf(text("\"4GB\"", value)).ends_with("is not allowed; allowed: string: \"off\", \"2MB\" or \"1GB\""))
        << value;
  }
  EXPECT_EQ(
      ErrorOf(text("\"3MB\"", "\"2MB\"")),
      "t.json:2:13: $.tiers[0].capacity: \"3MB\" is not a multiple of the tier's huge pages; the next one is 4194304 "
      "B");
  EXPECT_EQ(ErrorOf(text("1073741825", "\"1GB\"")),
            "t.json:2:13: $.tiers[0].capacity: 1073741825 is not a multiple of the tier's huge pages; the next one is "
            "2147483648 B");
  EXPECT_EQ(ErrorOf(text("\"50%\"", "\"2MB\"")), "(accepted)") << "a share is rounded when it is known";
}

TEST(TierConfigParse, RequiredKeysAreNamedWithTheTier) {
  EXPECT_EQ(ErrorOf("{\"tiers\": [\n {\"type\": \"DRAM\", \"capacity\": 1, \"priority\": 1},\n {\"priority\": 1}]}"),
            "t.json:3:2: $.tiers[1]: tier without the required key \"type\"; allowed: string: \"DRAM\", \"ASCEND_NPU\" "
            "or \"ASCEND\"");
  EXPECT_EQ(
      ErrorOf("{\"tiers\": [{\"type\": \"DRAM\", \"priority\": 1}]}"),
      fmt::format("t.json:1:12: $.tiers[0]: tier without the required key \"capacity\"; allowed: {}", kCapacityForm));
  EXPECT_EQ(ErrorOf("{\"tiers\": [{\"type\": \"DRAM\", \"capacity\": 1}]}"),
            "t.json:1:12: $.tiers[0]: tier without the required key \"priority\"; allowed: integer from -2147483648 to "
            "2147483647");
}

TEST(TierConfigParse, PriorityIsAnInt32) {
  const auto priority = [](std::string_view value) {
    return fmt::format("{{\"tiers\": [{{\"type\": \"DRAM\", \"capacity\": 1, \"priority\":\n  {}}}]}}", value);
  };
  EXPECT_EQ(ErrorOf(priority("2147483647")), "(accepted)");
  EXPECT_EQ(ErrorOf(priority("-2147483648")), "(accepted)");
  for (const std::string_view value : {"2147483648", "-2147483649", "1.5", "\"10\"", "null"}) {
    EXPECT_EQ(ErrorOf(priority(value)),
              fmt::format("t.json:2:3: $.tiers[0].priority: {} is not allowed; allowed: integer from -2147483648 to "
                          "2147483647",
                          value));
  }
}

TEST(TierConfigParse, UnknownKeysNameTheNearestKnownOne) {
  EXPECT_EQ(ErrorOf(Dram("\"numa_nod\": 0")),
            "t.json:2:1: $.tiers[0].numa_nod: unknown key \"numa_nod\" (did you mean \"numa_node\"?); allowed: type, "
            "capacity, priority, tags, allocator_type, numa_node, hugepages");
  EXPECT_EQ(ErrorOf("{\"tiers\": [{\"tpye\": \"DRAM\", \"capacity\": 1, \"priority\": 1}]}"),
            "t.json:1:13: $.tiers[0].tpye: unknown key \"tpye\" (did you mean \"type\"?); allowed: type, capacity, "
            "priority, tags, allocator_type, numa_node, device_id, hugepages, allocation, slab_size");
  EXPECT_EQ(ErrorOf(Npu("\"colour\": 0")),
            "t.json:2:1: $.tiers[0].colour: unknown key \"colour\"; allowed: type, capacity, priority, tags, "
            "device_id, allocation, slab_size");
  EXPECT_EQ(ErrorOf("{\n\"tier\": []}"),
            "t.json:2:1: $.tier: unknown key \"tier\" (did you mean \"tiers\"?); allowed: tiers");
}

TEST(TierConfigParse, TierTypesAreExact) {
  const auto type = [](std::string_view value) {
    return fmt::format("{{\"tiers\": [{{\"capacity\": 1, \"priority\": 1, \"type\":\n{}}}]}}", value);
  };
  EXPECT_EQ(ErrorOf(type("\"dram\"")),
            "t.json:2:1: $.tiers[0].type: unknown tier type \"dram\" (did you mean \"DRAM\"?); allowed: \"DRAM\", "
            "\"ASCEND_NPU\" (or \"ASCEND\")");
  EXPECT_EQ(ErrorOf(type("\"\""), kWithoutAscend),
            "t.json:2:1: $.tiers[0].type: unknown tier type \"\"; allowed: \"DRAM\"");
  EXPECT_EQ(ErrorOf(type("7")),
            "t.json:2:1: $.tiers[0].type: 7 is not allowed; allowed: string: \"DRAM\", \"ASCEND_NPU\" or \"ASCEND\"");
}

TEST(TierConfigParse, AnNpuTierInABuildWithoutItNamesTheCmakeOption) {
  EXPECT_EQ(ErrorOf(kSingleNpuText, kWithoutAscend),
            "t.json:4:21: $.tiers[0].type: tier type \"ASCEND_NPU\" is switched off in this build; build with "
            "-DUSE_ASCEND_CACHE_TIER=ON (CMake) or use an allowed type: \"DRAM\"");
  EXPECT_EQ(ErrorOf("{\"tiers\": [{\"type\": \"ASCEND\"}]}", {false, "built with USE_ASCEND_CACHE_TIER=OFF"}),
            "t.json:1:21: $.tiers[0].type: tier type \"ASCEND\" is switched off in this build (built with "
            "USE_ASCEND_CACHE_TIER=OFF); build with -DUSE_ASCEND_CACHE_TIER=ON (CMake) or use an allowed type: "
            "\"DRAM\"");
}

TEST(TierConfigParse, PartsNotBuiltYetAreNotCalledUnknown) {
  for (const std::string_view type : {"STORAGE", "DISK"}) {
    EXPECT_EQ(ErrorOf(fmt::format("{{\"tiers\": [{{\"type\": \"{}\"}}]}}", type)),
              fmt::format("t.json:1:21: $.tiers[0].type: tier type \"{}\" is not built yet; allowed: \"DRAM\", "
                          "\"ASCEND_NPU\" (or \"ASCEND\")",
                          type));
  }
  EXPECT_EQ(ErrorOf("{\"tiers\": [{\"type\": \"DRAM\", \"capacity\": 1, \"priority\": 1}],\n \"scheduler\": {}}"),
            "t.json:2:2: $.scheduler: \"scheduler\" is not built yet; allowed: tiers");
  EXPECT_EQ(ErrorOf(Dram("\"storage_filepath\": \"/data\"")),
            "t.json:2:1: $.tiers[0].storage_filepath: key \"storage_filepath\" belongs to tier type STORAGE, which is "
            "not built yet, this tier is DRAM; allowed: type, capacity, priority, tags, allocator_type, numa_node, "
            "hugepages");
}

TEST(TierConfigParse, KeysOfAnotherTierTypeSayWhoseTheyAre) {
  EXPECT_EQ(ErrorOf(Dram("\"device_id\": 0")),
            "t.json:2:1: $.tiers[0].device_id: key \"device_id\" belongs to tier type ASCEND_NPU, this tier is DRAM; "
            "allowed: type, capacity, priority, tags, allocator_type, numa_node, hugepages");
  EXPECT_EQ(ErrorOf(Npu("\"numa_node\": 0")),
            "t.json:2:1: $.tiers[0].numa_node: key \"numa_node\" belongs to tier type DRAM, this tier is ASCEND_NPU; "
            "allowed: type, capacity, priority, tags, device_id, allocation, slab_size");
  EXPECT_EQ(ErrorOf("{\"tiers\": [{\"device_id\": 0, \"type\": \"DRAM\"}]}").substr(0, 36),
            "t.json:1:13: $.tiers[0].device_id: k")
      << "the order of the keys does not matter";
}

TEST(TierConfigParse, IndicesAreNotNegative) {
  for (const std::string_view value : {"-1", "2147483648", "0.5", "\"0\"", "null"}) {
    const std::string wanted = fmt::format("{} is not allowed; allowed: integer from 0 to 2147483647", value);
    EXPECT_EQ(ErrorOf(Dram(fmt::format("\"numa_node\": {}", value))), "t.json:2:14: $.tiers[0].numa_node: " + wanted);
    EXPECT_EQ(ErrorOf(Npu(fmt::format("\"device_id\": {}", value))), "t.json:2:14: $.tiers[0].device_id: " + wanted);
  }
}

TEST(TierConfigParse, TagsAreAnArrayOfStrings) {
  EXPECT_EQ(ErrorOf(Dram("\"tags\": \"fast\"")),
            "t.json:2:9: $.tiers[0].tags: \"fast\" is not allowed; allowed: array of strings");
  EXPECT_EQ(ErrorOf(Dram("\"tags\": [\"a\",\n7]")),
            "t.json:3:1: $.tiers[0].tags[1]: 7 is not allowed; allowed: array of strings");
}

TEST(TierConfigParse, OtherAllocatorsAreAcceptedWithANotice) {
  const auto notices = [](std::string_view allocator) {
    const auto config =
        ParseTieredBackendConfig(Dram(fmt::format("\"allocator_type\": \"{}\"", allocator)), "t.json", kWithAscend);
    EXPECT_TRUE(config) << config.error().message();
    EXPECT_EQ(config->tiers[0].allocator_type, "OFFSET");
    return config->notices;
  };
  EXPECT_TRUE(notices("OFFSET").empty());
  EXPECT_EQ(notices("CACHELIB"),
            std::vector<std::string>{"t.json:2:19: $.tiers[0].allocator_type: there is no separate "
                                     "allocator for \"CACHELIB\"; the OFFSET allocator is used"});
  EXPECT_EQ(notices("SLAB"), std::vector<std::string>{"t.json:2:19: $.tiers[0].allocator_type: unknown allocator_type "
                                                      "\"SLAB\"; the OFFSET allocator is used"});
  EXPECT_EQ(ErrorOf(Dram("\"allocator_type\": 1")),
            "t.json:2:19: $.tiers[0].allocator_type: 1 is not allowed; allowed: string: \"OFFSET\" or \"CACHELIB\" "
            "(uses OFFSET, with a notice)");
}

TEST(TierConfigParse, TiersMustBeAnArrayWithATier) {
  EXPECT_EQ(ErrorOf("\n{}"),
            "t.json:2:1: $: configuration without the required key \"tiers\"; allowed: an array of tiers");
  EXPECT_EQ(ErrorOf("{\"tiers\": []}"),
            "t.json:1:11: $.tiers: an array of 0 is not allowed; allowed: an array of at least one tier");
  EXPECT_EQ(ErrorOf("{\"tiers\": {}}"),
            "t.json:1:11: $.tiers: an object is not allowed; allowed: an array of at least one tier");
  EXPECT_EQ(ErrorOf("[{\"type\": \"DRAM\"}]"),
            "t.json:1:1: $: an array of 1 is not a tier configuration; allowed: {\"tiers\": [...]}");
  EXPECT_EQ(ErrorOf("{\"tiers\": [\"DRAM\"]}"),
            "t.json:1:12: $.tiers[0]: \"DRAM\" is not a tier; allowed: an object with type, capacity and priority");
}

TEST(TierConfigParse, SyntaxErrorsAndRepeatedKeysNameTheirPlace) {
  EXPECT_EQ(ErrorOf(Dram("\"priority\": 2")),
            "t.json:2:1: $.tiers[0].priority: key \"priority\" appears twice in one object, first at line 1 column 47");
  EXPECT_EQ(ErrorOf("{\"tiers\": [}"),
            "t.json:1:12: $.tiers[0]: syntax error at \"}\"; expected a value: a string, number, true, false, null, "
            "'{' or '['");
}

// A folder of its own, removed at the end.
class TierConfigLoadTest : public testing::Test {
 protected:
  TierConfigLoadTest() {
    std::string name = testing::TempDir() + "tier_config_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~TierConfigLoadTest() override {
    for (const std::string& path : files_) std::remove(path.c_str());
    rmdir(folder_.c_str());
  }

  std::string Write(std::string_view name, std::string_view text) {
    files_.push_back(fmt::format("{}/{}", folder_, name));
    std::ofstream(files_.back()) << text;
    return files_.back();
  }

  // Priority of the only tier, which tells the sources apart, or the message.
  std::string Load(std::optional<std::string_view> argument, std::string_view default_path = "/nonexistent/conf") {
    const auto lookup = [&](const env::Variable& variable) -> std::optional<std::string> {
      const auto found = environment_.find(variable.name);
      return found == environment_.end() ? std::nullopt : std::optional(found->second);
    };
    const auto config = LoadTieredBackendConfig(argument, lookup, kWithAscend, default_path);
    if (!config) {
      EXPECT_EQ(config.error().code(), ErrorCode::INVALID_PARAMS);
      return config.error().message();
    }
    notices_ = config->notices;
    source_ = config->source;
    return std::to_string(config->tiers.at(0).priority);
  }

  static std::string Text(int priority) {
    return fmt::format(R"({{"tiers": [{{"type": "DRAM", "capacity": "1MB", "priority": {}}}]}})", priority);
  }

  std::string folder_;
  std::vector<std::string> files_;
  std::map<std::string, std::string> environment_;
  std::vector<std::string> notices_;
  std::string source_;
};

TEST_F(TierConfigLoadTest, TheArgumentIsTextOrAPath) {
  EXPECT_EQ(Load(Text(1)), "1");
  EXPECT_EQ(source_, "tiered_backend_config");
  EXPECT_EQ(Load("  \n" + Text(2)), "2");
  EXPECT_EQ(Load("// comment\n" + Text(3)), "3");
  EXPECT_EQ(Load("/* comment */" + Text(4)), "4");
  EXPECT_EQ(Load("\xEF\xBB\xBF" + Text(5)), "5");
  const std::string path = Write("tiers.json", "// file\n" + Text(6));
  EXPECT_EQ(Load(path), "6");
  EXPECT_EQ(source_, path);
  EXPECT_EQ(Load(" " + path + "\n"), "6");
}

TEST_F(TierConfigLoadTest, ErrorsNameTheSourceAndCountFromTheTextAsGiven) {
  EXPECT_EQ(
      Load("\n  {\"tiers\": []}"),
      "tiered_backend_config:2:13: $.tiers: an array of 0 is not allowed; allowed: an array of at least one tier");
  EXPECT_EQ(Load("[]"),
            "tiered_backend_config:1:1: $: an array of 0 is not a tier configuration; allowed: {\"tiers\": [...]}");
  const std::string path = Write("bad.json", "{\n \"tiers\": 1}");
  EXPECT_EQ(Load(path), path + ":2:11: $.tiers: 1 is not allowed; allowed: an array of at least one tier");
  EXPECT_EQ(
      Load("/nonexistent/tiers.json"),
      "tiered_backend_config: cannot open the tier configuration file \"/nonexistent/tiers.json\": No such file or "
      "directory (taken for a path: JSON text starts with '{')");
  EXPECT_EQ(Load(folder_), fmt::format("tiered_backend_config: cannot read the tier configuration file \"{}\": Is a "
                                       "directory (taken for a path: JSON text starts with '{{')",
                                       folder_));
  EXPECT_EQ(Load(std::string_view("a\0b", 3)),
            "tiered_backend_config: \"a\\x00b\" is neither JSON text nor a file path");
  const std::string large = Write("large.json", std::string(JsonLimits{}.max_bytes + 100, ' '));
  EXPECT_EQ(Load(large), large + ":1:1: $: 1048577 bytes of JSON, the limit is 1048576");
}

TEST_F(TierConfigLoadTest, AnEmptyArgumentFallsBackToTheVariablesInOrder) {
  const std::string path = Write("env.json", Text(30));
  environment_ = {{"MOONCAKE_TIERED_CONFIG", path}};
  EXPECT_EQ(Load(""), "30");
  EXPECT_EQ(Load(std::nullopt), "30");
  EXPECT_EQ(Load(Text(1)), "1") << "the argument wins";
  environment_ = {{"MOONCAKE_TIRED_CONFIG", Text(20)}};
  EXPECT_EQ(Load(" \n"), "20");
  EXPECT_EQ(source_, "MOONCAKE_TIRED_CONFIG");
  EXPECT_TRUE(notices_.empty());
  environment_ = {{"MOONCAKE_TIRED_CONFIG", Text(20)}, {"MOONCAKE_TIERED_CONFIG", path}};
  EXPECT_EQ(Load(""), "20");
  EXPECT_EQ(notices_, std::vector<std::string>{"both MOONCAKE_TIRED_CONFIG and MOONCAKE_TIERED_CONFIG are set; "
                                               "MOONCAKE_TIRED_CONFIG is used, MOONCAKE_TIERED_CONFIG is ignored"});
  environment_ = {{"MOONCAKE_TIRED_CONFIG", " "}, {"MOONCAKE_TIERED_CONFIG", path}};
  EXPECT_EQ(Load(""), "30") << "a blank variable counts as unset";
  environment_ = {{"MOONCAKE_TIRED_CONFIG", "{"}, {"MOONCAKE_TIERED_CONFIG", path}};
  EXPECT_TRUE(Load("").starts_with("MOONCAKE_TIRED_CONFIG:1:2: $: syntax error")) << "a bad source is never skipped";
}

TEST_F(TierConfigLoadTest, HugePagesOfTheEnvironmentAreForTiersThatSayNothing) {
  const std::string text = R"({"tiers": [
      {"type": "DRAM", "capacity": "2GB", "priority": 7}, {"type": "ASCEND", "capacity": "3MB", "priority": 1},
      {"type": "DRAM", "capacity": "3MB", "priority": 1, "hugepages": "off"},
      {"type": "DRAM", "capacity": "2MB", "priority": 1, "hugepages": "2MB"}]})";
  using Pages = std::vector<std::optional<uint64_t>>;
  const auto pages = [&]() -> Pages {
    const auto lookup = [&](const env::Variable& variable) -> std::optional<std::string> {
      const auto found = environment_.find(variable.name);
      return found == environment_.end() ? std::nullopt : std::optional(found->second);
    };
    const auto config = LoadTieredBackendConfig(text, lookup, kWithAscend);
    EXPECT_TRUE(config) << config.error().message();
    Pages found;
    for (const TierConfig& tier : config->tiers) found.push_back(tier.hugepage_bytes);
    return found;
  };
  constexpr uint64_t k2M = 2 << 20;
  const Pages as_written = {std::nullopt, std::nullopt, 0, k2M};
  EXPECT_EQ(pages(), as_written);
  for (const char* off : {"", "0", "false", "off", "no"}) {
    environment_ = {{"MC_STORE_USE_HUGEPAGE", off}, {"MC_STORE_HUGEPAGE_SIZE", "1GB"}};
    EXPECT_EQ(pages(), as_written) << off;
  }
  environment_ = {{"MC_STORE_HUGEPAGE_SIZE", "1GB"}};
  EXPECT_EQ(pages(), as_written) << "the size alone switches nothing on";
  environment_ = {{"MC_STORE_USE_HUGEPAGE", "1"}};
  EXPECT_EQ(pages(), (Pages{k2M, std::nullopt, 0, k2M}));
  environment_ = {{"MC_STORE_USE_HUGEPAGE", "1"}, {"MC_STORE_HUGEPAGE_SIZE", "1GB"}};
  EXPECT_EQ(pages(), (Pages{uint64_t{1} << 30, std::nullopt, 0, k2M}));

  EXPECT_EQ(Load(Text(1)),
            "tiered_backend_config:1:12: $.tiers[0]: a capacity of 1048576 B is not a multiple of the huge pages that "
            "MC_STORE_USE_HUGEPAGE asks for; the next one is 1073741824 B, or say \"hugepages\": \"off\"");
  environment_ = {{"MC_STORE_USE_HUGEPAGE", "1"}, {"MC_STORE_HUGEPAGE_SIZE", "4KB"}};
  EXPECT_EQ(Load(text), "MC_STORE_HUGEPAGE_SIZE: \"4KB\" is not allowed; allowed: 2MB, 1GB");
}

TEST_F(TierConfigLoadTest, TheDefaultFileIsReadOnlyWithoutAnArgument) {
  const std::string path = Write("default.json", Text(40));
  EXPECT_EQ(Load(std::nullopt, path), "40");
  environment_ = {{"MOONCAKE_TIERED_CONFIG", Text(30)}};
  EXPECT_EQ(Load(std::nullopt, path), "30");
  environment_.clear();
  const std::string how =
      "no tier configuration: give --tiered_backend_config (programs) or tiered_backend_config_json (Python) as JSON "
      "text or a file path, or set MOONCAKE_TIRED_CONFIG or MOONCAKE_TIERED_CONFIG to either, or leave the argument "
      "out "
      "and create ";
  EXPECT_EQ(Load("", path), how + path);
  EXPECT_EQ(Load(std::nullopt), how + "/nonexistent/conf");
}

TEST_F(TierConfigLoadTest, TheShippedDefaultIsOneSmallDramTier) {
  const auto none = [](const env::Variable&) -> std::optional<std::string> { return std::nullopt; };
  const auto config = LoadTieredBackendConfig(std::nullopt, none, kWithoutAscend,
                                              fmt::format("{}/{}", MC_SOURCE_DIR, kDefaultTieredConfigPath));
  ASSERT_TRUE(config) << config.error().message();
  ASSERT_EQ(config->tiers.size(), 1u);
  EXPECT_EQ(config->tiers[0].type, "DRAM");
  EXPECT_EQ(config->tiers[0].capacity_bytes, 1073741824u);
  EXPECT_EQ(config->tiers[0].priority, 10);
}

TEST(TierConfigKeyTable, DescribesEveryKeyOnceAndCompletely) {
  std::set<std::string_view> names;
  for (const TierConfigKey& key : TierConfigKeys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_FALSE(key.tier_types.empty() || key.form.empty() || key.default_value.empty() || key.meaning.empty());
    EXPECT_EQ(key.built, key.tier_types != "STORAGE") << key.name;
  }
  for (const std::string_view name : {"type", "capacity", "priority", "tags", "allocator_type", "numa_node",
                                      "device_id", "hugepages", "allocation", "slab_size", "storage_filepath"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

TEST(TierConfigParse, MutatedTextsNeverCrashAndNeverGiveAnEmptyTier) {
  const std::string_view seeds[] = {
      kSingleNpuText, kCommandLineText,
      R"({"tiers": [{"type": "DRAM", "capacity": "1.5GB", "priority": 1, "numa_node": 0, "tags": ["a"]},
         {"type": "ASCEND", "capacity": "512 MB", "priority": 100, "device_id": 1}]})",
      R"({"tiers": [{"type": "DRAM", "capacity": "4MB", "priority": 1, "hugepages": "2MB"},
         {"type": "ASCEND", "capacity": "80%", "priority": 9, "allocation": "slab", "slab_size": "2MB"}]})"};
  constexpr std::string_view kPieces[] = {
      "0", "-",  "{}", "[]",   "null", "\"\"",    "e9",      ".5",       "18446744073709551615", "\"", ",",
      ":", "//", "/*", "\xff", "DRAM", "STORAGE", "\"0MB\"", "\"type\":"};
  std::mt19937_64 random(42);
  size_t accepted = 0;
  for (int round = 0; round < 40000; ++round) {
    std::string text(seeds[random() % std::size(seeds)]);
    for (uint64_t edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = random() % (text.size() + 1);
      switch (random() % 4) {
        case 0:
          text.erase(at, 1 + random() % 6);
          break;
        case 1:
          text.insert(at, kPieces[random() % std::size(kPieces)]);
          break;
        case 2:
          text.insert(at, 1, static_cast<char>(random()));
          break;
        default:
          text.insert(at, text.substr(random() % (text.size() + 1), random() % 40));
      }
    }
    const auto config = ParseTieredBackendConfig(text, "t", random() % 2 == 0 ? kWithAscend : kWithoutAscend);
    if (!config) {
      unsigned line = 0, column = 0;
      ASSERT_EQ(config.error().code(), ErrorCode::INVALID_PARAMS);
      ASSERT_EQ(std::sscanf(config.error().message().c_str(), "t:%u:%u: $", &line, &column), 2) << text;
      continue;
    }
    ++accepted;
    ASSERT_FALSE(config->tiers.empty()) << text;
    for (const TierConfig& tier : config->tiers) {
      ASSERT_NE(tier.capacity_bytes > 0, tier.capacity_percent > 0) << text;
      ASSERT_LE(tier.capacity_percent, 100) << text;
      ASSERT_EQ(tier.slab_bytes % (2 << 20), 0u) << text;
      ASSERT_TRUE(tier.type == kDramTierType || tier.type == kAscendTierType) << text;
      ASSERT_GE(tier.device_id, 0);
      ASSERT_GE(tier.numa_node.value_or(0), 0);
    }
  }
  EXPECT_GT(accepted, 500u) << "mutations should leave some texts valid";
}

}  // namespace
}  // namespace mooncake
