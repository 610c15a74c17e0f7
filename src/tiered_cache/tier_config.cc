// Parsing and locating of the tier configuration, driven by one table of keys and one of tier types.
#include "tiered_cache/tier_config.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>

#include "common/byte_size.h"

namespace mooncake {
namespace {

using Kind = JsonValue::Kind;

constexpr uint64_t kHugePage2M = uint64_t{2} << 20;
constexpr uint64_t kHugePage1G = uint64_t{1} << 30;
constexpr uint64_t kDevicePage = uint64_t{2} << 20;

constexpr unsigned kDram = 1, kAscend = 2, kStorage = 4, kAllTypes = kDram | kAscend | kStorage;

struct TierType {
  std::string_view name;
  std::string_view alias;  // "" = none
  unsigned bit;
  bool built;
};
constexpr TierType kTierTypes[] = {
    {kDramTierType, "", kDram, true}, {kAscendTierType, "ASCEND", kAscend, true}, {"STORAGE", "DISK", kStorage, false}};

// What a key's parser sees: the text's name, the build, and where notices go.
struct Context {
  std::string_view source;
  const TierSupport& support;
  std::vector<std::string>& notices;
};

struct KeyRule {
  std::string_view name;
  unsigned types;
  std::string_view form;
  std::string_view default_value;
  std::string_view meaning;
  Result<void> (*apply)(const Context&, const KeyRule&, const JsonValue&, TierConfig&);  // null: not built yet
};

std::string Join(const std::vector<std::string_view>& words) {
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string AllowedTypes(const TierSupport& support) {
  return support.ascend_npu ? R"("DRAM", "ASCEND_NPU" (or "ASCEND"))" : R"("DRAM")";
}

std::unexpected<Status> BadValue(const Context& context, const KeyRule& rule, const JsonValue& value) {
  return JsonError(context.source, value, "{} is not allowed; allowed: {}", DescribeJson(value), rule.form);
}

Result<void> ApplyType(const Context& context, const KeyRule& rule, const JsonValue& value, TierConfig& tier) {
  if (value.kind != Kind::kString) return BadValue(context, rule, value);
  const std::string allowed = AllowedTypes(context.support);
  const auto type = std::ranges::find_if(kTierTypes, [&](const TierType& t) {
    return value.text == t.name || (!t.alias.empty() && value.text == t.alias);
  });
  if (type == std::end(kTierTypes)) {
    static constexpr std::string_view kNames[] = {kDramTierType, kAscendTierType, "ASCEND", "STORAGE", "DISK"};
    return JsonError(context.source, value, "unknown tier type {}{}; allowed: {}", DescribeJson(value),
                     DidYouMean(value.text, kNames), allowed);
  }
  if (!type->built) {
    return JsonError(context.source, value, "tier type {} is not built yet; allowed: {}", DescribeJson(value), allowed);
  }
  if (type->bit == kAscend && !context.support.ascend_npu) {
    const std::string& why = context.support.ascend_npu_why_not;
    return JsonError(
        context.source, value,
        "tier type {} is switched off in this build{}; build with -DUSE_ASCEND_CACHE_TIER=ON (CMake) or use "
        "an allowed type: {}",
        DescribeJson(value), why.empty() ? "" : fmt::format(" ({})", why), allowed);
  }
  tier.type = type->name;
  return {};
}

// Bytes as a number or a size; 0 for anything else and for "infinite": that is a size, but memory has an end.
uint64_t SizeOrZero(const JsonValue& value) {
  uint64_t bytes = 0;
  if (value.kind == Kind::kUnsigned) bytes = value.unsigned_value;
  if (value.kind == Kind::kString) bytes = ParseByteSize(value.text).value_or(0);
  return bytes == std::numeric_limits<uint64_t>::max() ? 0 : bytes;
}

// "80%", "12.5 %"; nullopt when it is not a number from above 0 to 100.
std::optional<double> ParsePercent(std::string_view text) {
  text.remove_suffix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  double percent = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), percent, std::chars_format::fixed);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return percent > 0 && percent <= 100 ? std::optional(percent) : std::nullopt;
}

Result<void> ApplyCapacity(const Context& context, const KeyRule& rule, const JsonValue& value, TierConfig& tier) {
  if (value.kind == Kind::kString && value.text.ends_with('%')) {
    const auto percent = ParsePercent(value.text);
    if (!percent) return BadValue(context, rule, value);
    tier.capacity_percent = *percent;
    return {};
  }
  tier.capacity_bytes = SizeOrZero(value);
  if (tier.capacity_bytes == 0) return BadValue(context, rule, value);
  return {};
}

Result<void> ApplyPriority(const Context& context, const KeyRule& rule, const JsonValue& value, TierConfig& tier) {
  constexpr int64_t kMin = std::numeric_limits<int32_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (value.kind == Kind::kUnsigned && value.unsigned_value <= static_cast<uint64_t>(kMax)) {
    tier.priority = static_cast<int32_t>(value.unsigned_value);
  } else if (value.kind == Kind::kSigned && value.signed_value >= kMin) {
    tier.priority = static_cast<int32_t>(value.signed_value);
  } else {
    return BadValue(context, rule, value);
  }
  return {};
}

Result<void> ApplyTags(const Context& context, const KeyRule& rule, const JsonValue& value, TierConfig& tier) {
  if (value.kind != Kind::kArray) return BadValue(context, rule, value);
  for (const JsonValue& tag : value.items) {
    if (tag.kind != Kind::kString) return BadValue(context, rule, tag);
    tier.tags.push_back(tag.text);
  }
  return {};
}

Result<void> ApplyAllocatorType(const Context& context, const KeyRule& rule, const JsonValue& value, TierConfig& tier) {
  if (value.kind != Kind::kString) return BadValue(context, rule, value);
  if (value.text != tier.allocator_type) {
    context.notices.push_back(
        fmt::format("{}: {} {}; the OFFSET allocator is used", JsonPlace(context.source, value.position, value.path),
                    value.text == "CACHELIB" ? "there is no separate allocator for" : "unknown allocator_type",
                    DescribeJson(value)));
  }
  return {};
}

// An index from 0 to the largest int.
Result<int32_t> Index(const Context& context, const KeyRule& rule, const JsonValue& value) {
  if (value.kind != Kind::kUnsigned || value.unsigned_value > std::numeric_limits<int32_t>::max()) {
    return BadValue(context, rule, value);
  }
  return static_cast<int32_t>(value.unsigned_value);
}

Result<void> ApplyNumaNode(const Context& context, const KeyRule& rule, const JsonValue& value, TierConfig& tier) {
  tier.numa_node = MC_TRY(Index(context, rule, value));
  return {};
}

Result<void> ApplyDeviceId(const Context& context, const KeyRule& rule, const JsonValue& value, TierConfig& tier) {
  tier.device_id = MC_TRY(Index(context, rule, value));
  return {};
}

Result<void> ApplyHugepages(const Context& context, const KeyRule& rule, const JsonValue& value, TierConfig& tier) {
  if (value.kind != Kind::kString) return BadValue(context, rule, value);
  if (value.text == "off") {
    tier.hugepage_bytes = 0;
  } else if (value.text == "2MB") {
    tier.hugepage_bytes = kHugePage2M;
  } else if (value.text == "1GB") {
    tier.hugepage_bytes = kHugePage1G;
  } else {
    return BadValue(context, rule, value);
  }
  return {};
}

Result<void> ApplyAllocation(const Context& context, const KeyRule& rule, const JsonValue& value, TierConfig& tier) {
  if (value.kind != Kind::kString || (value.text != "slab" && value.text != "direct")) {
    return BadValue(context, rule, value);
  }
  tier.direct_allocation = value.text == "direct";
  return {};
}

Result<void> ApplySlabSize(const Context& context, const KeyRule& rule, const JsonValue& value, TierConfig& tier) {
  tier.slab_bytes = SizeOrZero(value);
  if (tier.slab_bytes == 0) return BadValue(context, rule, value);
  if (tier.slab_bytes % kDevicePage != 0) {
    return JsonError(
        context.source, value,
        "{} is not a multiple of 2 MiB, the device's page: the rest of a page would be lost in every slab; "
        "allowed: {}",
        DescribeJson(value), rule.form);
  }
  return {};
}

constexpr std::string_view kRequired = "required";
constexpr std::string_view kSizeForm = R"(bytes as a positive integer, or a size such as "512MB" or "1.5GB")";
constexpr std::string_view kCapacityForm =
    R"(bytes as a positive integer, a size such as "512MB" or "1.5GB", or a share of the free memory, "1%" to "100%")";
constexpr std::string_view kIndexForm = "integer from 0 to 2147483647";

constexpr KeyRule kKeyRules[] = {
    {"type", kAllTypes, R"(string: "DRAM", "ASCEND_NPU" or "ASCEND")", kRequired, "memory the tier is made of",
     ApplyType},
    {"capacity", kAllTypes, kCapacityForm, kRequired, "hard limit of the tier", ApplyCapacity},
    {"priority", kAllTypes, "integer from -2147483648 to 2147483647", kRequired, "larger = faster, preferred",
     ApplyPriority},
    {"tags", kAllTypes, "array of strings", "[]", "labels that routes can filter by", ApplyTags},
    {"allocator_type", kDram, R"(string: "OFFSET" or "CACHELIB" (uses OFFSET, with a notice))", "\"OFFSET\"",
     "how space inside the tier is handed out", ApplyAllocatorType},
    {"numa_node", kDram, kIndexForm, "no binding", "NUMA node whose memory is used", ApplyNumaNode},
    {"device_id", kAscend, kIndexForm, "0", "Ascend device; must be the one the engine's process uses", ApplyDeviceId},
    {"hugepages", kDram, R"(string: "off", "2MB" or "1GB")", "MC_STORE_USE_HUGEPAGE, else \"off\"",
     "pages of the tier; capacity must be a multiple", ApplyHugepages},
    {"allocation", kAscend, R"(string: "slab" or "direct")", "\"slab\"",
     "slab: the capacity is taken from the device at start; direct: one driver allocation per block", ApplyAllocation},
    {"slab_size", kAscend, R"(multiple of 2 MiB, as bytes or a size such as "1GB")", "the capacity",
     "device memory taken at once; no block is larger", ApplySlabSize},
    {"storage_backend_type", kStorage, R"(string: "bucket_storage_backend")", "\"bucket_storage_backend\"",
     "layout on disk", nullptr},
    {"storage_filepath", kStorage, "string: absolute path", "\"/data/file_storage\"", "folder of the tier", nullptr},
    {"total_size_limit", kStorage, kSizeForm, "\"2TB\"", "limit of all files", nullptr},
    {"bucket_size_limit", kStorage, kSizeForm, "\"256MB\"", "limit of one file", nullptr},
    {"bucket_keys_limit", kStorage, "positive integer", "500", "keys in one file", nullptr},
    {"batch_size_threshold", kStorage, kSizeForm, "\"64MB\"", "pending bytes that start a flush", nullptr},
    {"batch_count_threshold", kStorage, "positive integer", "1000", "pending keys that start a flush", nullptr},
    {"staging_buffer_capacity", kStorage, kSizeForm, "\"128MB\"", "host memory for data on its way to disk", nullptr},
    {"local_buffer_size", kStorage, kSizeForm, "none", "accepted elsewhere, without effect", nullptr},
};

const KeyRule* FindRule(std::string_view name) {
  const auto* rule = std::ranges::find(kKeyRules, name, &KeyRule::name);
  return rule == std::end(kKeyRules) ? nullptr : rule;
}

std::vector<std::string_view> TypeNames(unsigned types) {
  std::vector<std::string_view> names;
  for (const TierType& type : kTierTypes) {
    if ((types & type.bit) != 0) names.push_back(type.name);
  }
  return names;
}

unsigned TypeBit(std::string_view name) {
  const auto* type = std::ranges::find(kTierTypes, name, &TierType::name);
  return type == std::end(kTierTypes) ? 0 : type->bit;
}

// Keys that may stand in a tier of one of these types.
std::vector<std::string_view> KeyNames(unsigned types) {
  std::vector<std::string_view> names;
  for (const KeyRule& rule : kKeyRules) {
    if ((rule.types & types) != 0) names.push_back(rule.name);
  }
  return names;
}

std::unexpected<Status> UnknownKey(std::string_view source, const JsonMember& member,
                                   const std::vector<std::string_view>& nearby,
                                   const std::vector<std::string_view>& allowed) {
  return JsonError(source, member, "unknown key {}{}; allowed: {}", QuoteForMessage(member.key),
                   DidYouMean(member.key, nearby), Join(allowed));
}

// The key is known; is it one for this tier?
Result<void> CheckKeyFits(const Context& context, const KeyRule& rule, const JsonMember& member,
                          const TierConfig& tier) {
  const unsigned type = TypeBit(tier.type);
  if ((rule.types & type) != 0) return {};
  return JsonError(context.source, member, "key \"{}\" belongs to tier type {}{}, this tier is {}; allowed: {}",
                   rule.name, Join(TypeNames(rule.types)), rule.apply == nullptr ? ", which is not built yet" : "",
                   tier.type, Join(KeyNames(type)));
}

Result<void> CheckKeysPresent(const Context& context, const JsonValue& object) {
  for (const KeyRule& rule : kKeyRules) {
    if (rule.default_value != kRequired || object.Find(rule.name) != nullptr) continue;
    return JsonError(context.source, object, "tier without the required key \"{}\"; allowed: {}", rule.name, rule.form);
  }
  return {};
}

// What single keys cannot know of each other.
Result<void> CheckKeysAgree(const Context& context, const JsonValue& object, const TierConfig& tier) {
  const JsonMember* slab_size = object.Find("slab_size");
  if (slab_size != nullptr && tier.direct_allocation) {
    return JsonError(context.source, *slab_size,
                     "\"slab_size\" has no meaning with \"allocation\": \"direct\"; leave "
                     "one of the two out");
  }
  const uint64_t page = tier.hugepage_bytes.value_or(0);
  if (page != 0 && tier.capacity_bytes % page != 0) {
    return JsonError(context.source, object.Find("capacity")->value,
                     "{} is not a multiple of the tier's huge pages; the next one is {} B",
                     DescribeJson(object.Find("capacity")->value), (tier.capacity_bytes / page + 1) * page);
  }
  return {};
}

Result<TierConfig> ParseTier(const Context& context, const JsonValue& object) {
  if (object.kind != Kind::kObject) {
    return JsonError(context.source, object, "{} is not a tier; allowed: an object with type, capacity and priority",
                     DescribeJson(object));
  }
  TierConfig tier;
  tier.position = object.position;
  tier.path = object.path;
  // The type comes first: what the other keys may be depends on it.
  const JsonMember* type = object.Find("type");
  if (type != nullptr) MC_TRY(ApplyType(context, *FindRule("type"), type->value, tier));
  for (const JsonMember& member : object.members) {
    const KeyRule* rule = FindRule(member.key);
    if (rule == nullptr) {
      const unsigned types = type == nullptr ? kDram | kAscend : TypeBit(tier.type);
      return UnknownKey(context.source, member, KeyNames(kAllTypes), KeyNames(types));
    }
    if (type == nullptr || &member == type) continue;
    MC_TRY(CheckKeyFits(context, *rule, member, tier));
    MC_TRY(rule->apply(context, *rule, member.value, tier));
  }
  MC_TRY(CheckKeysPresent(context, object));
  MC_TRY(CheckKeysAgree(context, object, tier));
  return tier;
}

Result<void> CheckRootKeys(std::string_view source, const JsonValue& root) {
  if (root.kind != Kind::kObject) {
    return JsonError(source, root, "{} is not a tier configuration; allowed: {{\"tiers\": [...]}}", DescribeJson(root));
  }
  for (const JsonMember& member : root.members) {
    if (member.key == "tiers") continue;
    if (member.key == "scheduler") {
      return JsonError(source, member, "\"scheduler\" is not built yet; allowed: tiers");
    }
    return UnknownKey(source, member, {"tiers", "scheduler"}, {"tiers"});
  }
  return {};
}

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t start = text.find_first_not_of(kBlank);
  if (start == std::string_view::npos) return "";
  return text.substr(start, text.find_last_not_of(kBlank) - start + 1);
}

bool IsInlineText(std::string_view trimmed) {
  constexpr std::string_view kStarts[] = {"{", "[", "//", "/*", "\xEF\xBB\xBF"};
  return std::ranges::any_of(kStarts, [&](std::string_view start) { return trimmed.starts_with(start); });
}

// 0 when there is something to read or the end is reached, else an errno. For files at once.
int WaitReadable(int fd) {
  constexpr int kTimeoutMs = 5000;
  pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
  const int ready = poll(&wait, 1, kTimeoutMs);
  if (ready == 0) return ETIMEDOUT;
  return ready < 0 && errno != EINTR ? errno : 0;
}

// At most the parser's limit plus one byte, so that a longer file is refused there, by name.
Result<std::string> ReadFile(const std::string& path) {
  // Not blocking: a pipe nobody writes to would hold the process, which ignores its end signals this early.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return Error(ErrorCode::INVALID_PARAMS, "cannot open the tier configuration file {}: {}",
                 QuoteForMessage(path, 256), std::strerror(errno));
  }
  std::string text(JsonLimits{}.max_bytes + 1, '\0');
  size_t size = 0;
  ssize_t count = 0;
  int error = 0;
  do {
    error = WaitReadable(fd);
    if (error != 0) break;
    count = read(fd, text.data() + size, text.size() - size);
    error = count < 0 ? errno : 0;
    if (count > 0) size += static_cast<size_t>(count);
  } while (size < text.size() && (count > 0 || error == EINTR || error == EAGAIN));
  close(fd);
  if (error != 0) {
    return Error(ErrorCode::INVALID_PARAMS, "cannot read the tier configuration file {}: {}",
                 QuoteForMessage(path, 256), std::strerror(error));
  }
  text.resize(size);
  return text;
}

// The page size that the environment asks for, 0 for ordinary pages.
Result<uint64_t> HugepagesOfEnvironment(const EnvLookup& lookup) {
  const auto is_one_of = [](std::string_view text, std::initializer_list<std::string_view> words) {
    return std::ranges::find(words, text) != words.end();
  };
  const std::string use = lookup(env::kUseHugepage).value_or("");
  if (is_one_of(use, {"", "0", "false", "off", "no"})) return 0;
  const std::string size = lookup(env::kHugepageSize).value_or("");
  if (is_one_of(size, {"", "2MB", "2M"})) return kHugePage2M;
  if (is_one_of(size, {"1GB", "1G"})) return kHugePage1G;
  return Error(ErrorCode::INVALID_PARAMS, "{}: {} is not allowed; allowed: 2MB, 1GB", env::kHugepageSize.name,
               QuoteForMessage(size));
}

// `given` is what `origin` (an argument or variable) holds: the text itself or a path.
Result<TieredBackendConfig> ParseTextOrFile(std::string_view given, std::string_view origin,
                                            const TierSupport& support) {
  const std::string_view trimmed = Trim(given);
  if (IsInlineText(trimmed)) return ParseTieredBackendConfig(given, origin, support);
  if (trimmed.contains('\0')) {
    return Error(ErrorCode::INVALID_PARAMS, "{}: {} is neither JSON text nor a file path", origin,
                 QuoteForMessage(trimmed));
  }
  const auto text = ReadFile(std::string(trimmed));
  if (!text) {
    return Error(ErrorCode::INVALID_PARAMS, "{}: {} (taken for a path: JSON text starts with '{{')", origin,
                 text.error().message());
  }
  return ParseTieredBackendConfig(*text, trimmed, support);
}

}  // namespace

Result<TieredBackendConfig> WithTierEnvironment(Result<TieredBackendConfig> config, const EnvLookup& lookup) {
  if (!config) return config;
  const uint64_t page = MC_TRY(HugepagesOfEnvironment(lookup));
  for (TierConfig& tier : config->tiers) {
    if (tier.type != kDramTierType || tier.hugepage_bytes || page == 0) continue;
    if (tier.capacity_bytes % page != 0) {
      return Error(
          ErrorCode::INVALID_PARAMS,
          "{}: a capacity of {} B is not a multiple of the huge pages that {} asks for; the next one is {} B, or "
          "say \"hugepages\": \"off\"",
          config->Where(tier), tier.capacity_bytes, env::kUseHugepage.name, (tier.capacity_bytes / page + 1) * page);
    }
    tier.hugepage_bytes = page;
  }
  return config;
}

std::vector<TierConfigKey> TierConfigKeys() {
  std::vector<TierConfigKey> keys;
  for (const KeyRule& rule : kKeyRules) {
    keys.push_back({rule.name, rule.types == kAllTypes ? "all" : Join(TypeNames(rule.types)), rule.form,
                    rule.default_value, rule.meaning, rule.apply != nullptr});
  }
  return keys;
}

Result<TieredBackendConfig> ParseTieredBackendConfig(std::string_view text, std::string_view source,
                                                     const TierSupport& support) {
  const JsonValue root = MC_TRY(ParseJson(text, source));
  MC_TRY(CheckRootKeys(source, root));
  const JsonMember* tiers = root.Find("tiers");
  if (tiers == nullptr) {
    return JsonError(source, root, "configuration without the required key \"tiers\"; allowed: an array of tiers");
  }
  if (tiers->value.kind != Kind::kArray || tiers->value.items.empty()) {
    return JsonError(source, tiers->value, "{} is not allowed; allowed: an array of at least one tier",
                     DescribeJson(tiers->value));
  }
  TieredBackendConfig config;
  config.source = source;
  const Context context{source, support, config.notices};
  for (const JsonValue& tier : tiers->value.items) config.tiers.push_back(MC_TRY(ParseTier(context, tier)));
  return config;
}

namespace {

Result<TieredBackendConfig> FindAndParse(std::optional<std::string_view> argument, const EnvLookup& lookup,
                                         const TierSupport& support, std::string_view default_path) {
  if (argument && !Trim(*argument).empty()) return ParseTextOrFile(*argument, "tiered_backend_config", support);

  const auto given = [&](const env::Variable& variable) { return lookup(variable).value_or(""); };
  const std::string first = given(env::kTieredConfigSeedSpelling);
  const std::string second = given(env::kTieredConfig);
  if (!Trim(first).empty()) {
    TieredBackendConfig config = MC_TRY(ParseTextOrFile(first, env::kTieredConfigSeedSpelling.name, support));
    if (!Trim(second).empty()) {
      config.notices.push_back(fmt::format("both {0} and {1} are set; {0} is used, {1} is ignored",
                                           env::kTieredConfigSeedSpelling.name, env::kTieredConfig.name));
    }
    return config;
  }
  if (!Trim(second).empty()) return ParseTextOrFile(second, env::kTieredConfig.name, support);

  const std::string default_file(default_path);
  if (!argument && access(default_file.c_str(), F_OK) == 0) {
    return ParseTieredBackendConfig(MC_TRY(ReadFile(default_file)), default_file, support);
  }
  return Error(ErrorCode::INVALID_PARAMS,
               "no tier configuration: give --tiered_backend_config (programs) or tiered_backend_config_json (Python) "
               "as JSON text or a file path, or set {} or {} to either, or leave the argument out and create {}",
               env::kTieredConfigSeedSpelling.name, env::kTieredConfig.name, default_file);
}

}  // namespace

Result<TieredBackendConfig> LoadTieredBackendConfig(std::optional<std::string_view> argument, const EnvLookup& lookup,
                                                    const TierSupport& support, std::string_view default_path) {
  return WithTierEnvironment(FindAndParse(argument, lookup, support, default_path), lookup);
}

}  // namespace mooncake
