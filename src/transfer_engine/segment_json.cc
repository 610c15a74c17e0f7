// Segment descriptors as JSON. Regions are taken out of the text one by one: a process may have a hundred thousand of
// them (one per weight tensor), and a tree of all with the positions of every value would take a gigabyte.
#include <fmt/chrono.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/check.h"
#include "common/json_text.h"
#include "transfer_engine/segment.h"
#include "transfer_engine/topology.h"

namespace mooncake {
namespace {

using nlohmann::json;

constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr size_t kMaxRegions = size_t{1} << 20;
constexpr size_t kMaxValues = size_t{1} << 20;  // held at a time: everything but regions, and one region
constexpr int kMaxDepth = 8;
constexpr size_t kMaxProtocols = 16;
constexpr size_t kMaxDevices = 256;
constexpr size_t kMaxText = 1024;
constexpr size_t kGidText = 16 * 3 - 1;

std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

json EncodeRegion(const SegmentRegion& region, size_t devices) {
  json out = {{"name", region.location}, {"addr", region.address}, {"length", region.length}, {"key", region.key}};
  if (!region.rkeys.empty()) {
    out["rkey"] = region.rkeys.front();
    out["lkey"] = std::vector<uint32_t>(devices);  // earlier engines want as many as there are rkeys, and use none
    if (region.rkeys.size() > 1) out["rkeys"] = region.rkeys;
  }
  if (region.mr_piece_bytes != 0) out["mr_piece_bytes"] = region.mr_piece_bytes;
  if (region.shm_id != 0) {
    out["shm_id"] = region.shm_id;
    out["shm_offset"] = region.shm_offset;
  }
  if (region.npu_id != 0) out["npu_id"] = region.npu_id;
  if (region.staged) out["staged"] = 1;
  return out;
}

std::string Describe(const json& value) {
  if (value.is_string()) return QuoteForMessage(value.get_ref<const std::string&>());
  if (value.is_array()) return fmt::format("an array of {}", value.size());
  return value.is_object() ? "an object" : Dump(value);
}

// Where a value stands. Turned to text for messages only.
struct Place {
  const char* section = nullptr;  // null: the root
  size_t index = 0;

  std::string Of(std::string_view key) const {
    const std::string parent = section == nullptr ? "$" : fmt::format("$.{}[{}]", section, index);
    return key.empty() ? parent : fmt::format("{}.{}", parent, key);
  }
};

template <typename... Args>
std::unexpected<Status> Wrong(const std::string& path, fmt::format_string<Args...> format, Args&&... args) {
  return Error(ErrorCode::METADATA_ERROR, "segment descriptor: {}: {}", path,
               fmt::format(format, std::forward<Args>(args)...));
}

// The member, or null when it is absent.
const json* Member(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

template <typename T>
Result<T> UnsignedValue(const json& value, const std::string& path) {
  constexpr uint64_t kMax = std::numeric_limits<T>::max();
  if (!value.is_number_unsigned() || value.get<uint64_t>() > kMax) {
    return Wrong(path, "{}; expected a whole number from 0 to {}", Describe(value), kMax);
  }
  return static_cast<T>(value.get<uint64_t>());
}

// 0 when absent.
template <typename T>
Result<T> Unsigned(const json& object, const char* key, const Place& place) {
  const json* value = Member(object, key);
  return value == nullptr ? Result<T>(T{0}) : UnsignedValue<T>(*value, place.Of(key));
}

Result<std::string> TextValue(const json& value, const std::string& path) {
  if (!value.is_string()) return Wrong(path, "{}; expected a string", Describe(value));
  const auto& text = value.get_ref<const std::string&>();
  if (text.size() > kMaxText) return Wrong(path, "{} bytes of text, the limit is {}", text.size(), kMaxText);
  if (text.contains('\0')) return Wrong(path, "{}; expected text without NUL", Describe(value));
  return text;
}

// "" when absent.
Result<std::string> Text(const json& object, const char* key, const Place& place) {
  const json* value = Member(object, key);
  return value == nullptr ? Result<std::string>(std::string()) : TextValue(*value, place.Of(key));
}

Result<std::string> NonEmptyText(const json& object, const char* key, const Place& place) {
  std::string text = MC_TRY(Text(object, key, place));
  if (text.empty()) return Wrong(place.Of(key), "missing or empty");
  return text;
}

Result<std::vector<uint32_t>> Keys(const json& value, const std::string& path) {
  if (!value.is_array() || value.empty() || value.size() > kMaxDevices) {
    return Wrong(path, "{}; expected an array of 1 to {} keys", Describe(value), kMaxDevices);
  }
  std::vector<uint32_t> keys;
  keys.reserve(value.size());
  for (const json& key : value) {
    keys.push_back(MC_TRY(UnsignedValue<uint32_t>(key, fmt::format("{}[{}]", path, keys.size()))));
  }
  return keys;
}

// Rows of keys, as many as the region has pieces. Those of the first piece alone are what earlier engines write.
Result<std::vector<std::vector<uint32_t>>> DecodeKeys(const json& object, const Place& place,
                                                      const SegmentRegion& region) {
  std::vector<std::vector<uint32_t>> rows;
  const json* first = Member(object, "rkey");
  if (first != nullptr) rows.push_back(MC_TRY(Keys(*first, place.Of("rkey"))));
  if (const json* local = Member(object, "lkey"); local != nullptr) {
    const auto keys = MC_TRY(Keys(*local, place.Of("lkey")));
    if (first == nullptr || keys.size() != first->size()) return Wrong(place.Of("lkey"), "not as many as rkey");
  }
  const json* all = Member(object, "rkeys");
  const std::string path = place.Of(all == nullptr ? "rkey" : "rkeys");
  if (all != nullptr) {
    if (!all->is_array()) return Wrong(path, "{}; expected an array of arrays", Describe(*all));
    std::vector<std::vector<uint32_t>> of_pieces;
    for (const json& row : *all) of_pieces.push_back(MC_TRY(Keys(row, fmt::format("{}[{}]", path, of_pieces.size()))));
    if (first != nullptr && (of_pieces.empty() || of_pieces.front() != rows.front())) {
      return Wrong(path, "its first row is not rkey");
    }
    rows = std::move(of_pieces);
  }
  const uint64_t piece = region.mr_piece_bytes == 0 ? region.length : region.mr_piece_bytes;
  const uint64_t pieces = (region.length - 1) / piece + 1;
  if (!rows.empty() && rows.size() != pieces) {
    return Wrong(path, "keys of {} piece(s) for {} bytes in pieces of {}; expected {}", rows.size(), region.length,
                 piece, pieces);
  }
  return rows;
}

// How many keys a row must have is known when $.devices has been read, which may stand behind $.buffers.
Result<SegmentRegion> DecodeRegion(const json& object, const Place& place) {
  SegmentRegion region;
  region.location = MC_TRY(NonEmptyText(object, "name", place));
  region.address = MC_TRY(Unsigned<uint64_t>(object, "addr", place));
  region.length = MC_TRY(Unsigned<uint64_t>(object, "length", place));
  region.key = MC_TRY(Unsigned<uint64_t>(object, "key", place));
  region.mr_piece_bytes = MC_TRY(Unsigned<uint64_t>(object, "mr_piece_bytes", place));
  region.shm_id = MC_TRY(Unsigned<uint64_t>(object, "shm_id", place));
  region.shm_offset = MC_TRY(Unsigned<uint64_t>(object, "shm_offset", place));
  region.npu_id = MC_TRY(Unsigned<uint64_t>(object, "npu_id", place));
  region.staged = MC_TRY(Unsigned<uint64_t>(object, "staged", place)) != 0;
  if (region.address == 0) return Wrong(place.Of("addr"), "missing or 0");
  if (region.length == 0) return Wrong(place.Of("length"), "missing or 0");
  if (region.length > UINT64_MAX - region.address) {
    return Wrong(place.Of("length"), "{} bytes at {:#x} wrap around", region.length, region.address);
  }
  if (region.length > UINT64_MAX - region.shm_offset) {
    return Wrong(place.Of("shm_offset"), "{} bytes at {} wrap around", region.length, region.shm_offset);
  }
  region.rkeys = MC_TRY(DecodeKeys(object, place, region));
  return region;
}

bool IsHex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

bool IsGid(std::string_view text) {
  if (text.size() != kGidText) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (i % 3 == 2 ? text[i] != ':' : !IsHex(text[i])) return false;
  }
  return true;
}

Result<std::vector<SegmentDevice>> DecodeDevices(const json& value) {
  if (!value.is_array() || value.size() > kMaxDevices) {
    return Wrong("$.devices", "{}; expected an array of at most {}", Describe(value), kMaxDevices);
  }
  std::vector<SegmentDevice> devices;
  for (const json& object : value) {
    const Place place{"devices", devices.size()};
    if (!object.is_object()) return Wrong(place.Of(""), "{}; expected an object", Describe(object));
    SegmentDevice device;
    device.name = MC_TRY(NonEmptyText(object, "name", place));
    device.lid = MC_TRY(Unsigned<uint16_t>(object, "lid", place));
    device.gid = MC_TRY(NonEmptyText(object, "gid", place));
    if (!IsGid(device.gid)) {
      return Wrong(place.Of("gid"), "{}; expected 16 bytes as \"fe:80:...\"", QuoteForMessage(device.gid));
    }
    if (std::ranges::find(devices, device.name, &SegmentDevice::name) != devices.end()) {
      return Wrong(place.Of("name"), "{} appears twice", QuoteForMessage(device.name));
    }
    devices.push_back(std::move(device));
  }
  return devices;
}

// "protocols", or "protocol" as one name or several.
Result<std::vector<std::string>> DecodeProtocols(const json& root) {
  const char* key = root.contains("protocols") ? "protocols" : "protocol";
  const json* value = Member(root, key);
  const std::string path = Place{}.Of(key);
  if (value == nullptr) return Wrong(path, "missing");
  if (!value->is_array()) return std::vector{MC_TRY(TextValue(*value, path))};
  if (value->size() > kMaxProtocols) return Wrong(path, "{}, the limit is {}", Describe(*value), kMaxProtocols);
  std::vector<std::string> protocols;
  for (const json& name : *value) {
    protocols.push_back(MC_TRY(TextValue(name, fmt::format("{}[{}]", path, protocols.size()))));
  }
  return protocols;
}

Result<Uuid> DecodeGeneration(const json& root) {
  const std::string text = MC_TRY(Text(root, "generation", {}));
  if (text.empty()) return Uuid{};
  Uuid id;
  const auto half = [&](size_t at, uint64_t& number) {
    const char* end = text.data() + at + 16;
    return std::from_chars(text.data() + at, end, number, 16).ptr == end;
  };
  if (text.size() != 33 || text[16] != '-' || !half(0, id.first) || !half(17, id.second)) {
    return Wrong("$.generation", "{}; expected 16 hex digits, '-' and 16 more", QuoteForMessage(text));
  }
  return id;
}

Result<Endpoint> DecodeControl(const json& root) {
  const std::string text = MC_TRY(Text(root, "control", {}));
  if (text.empty()) return Endpoint{};
  auto endpoint = Endpoint::Parse(text);
  if (!endpoint || endpoint->port == 0) return Wrong("$.control", "{}; expected host:port", QuoteForMessage(text));
  return std::move(*endpoint);
}

Result<std::string> DecodeTopology(const json& root) {
  const json* value = Member(root, "priority_matrix");
  if (value == nullptr) return std::string();
  std::string text = Dump(*value);
  if (auto parsed = Topology::Parse(text); !parsed) {
    return Wrong("$.priority_matrix", "{}", parsed.error().message());
  }
  return text;
}

// Follows nlohmann's parser. Regions leave the tree as soon as they are complete.
class Reader {
 public:
  Result<SegmentDescriptor> Read(std::string_view text) {
    json root;
    try {
      root = json::parse(
          text, [this](int depth, json::parse_event_t event, json& value) { return OnEvent(depth, event, value); });
    } catch (const json::parse_error& error) {
      if (failed_.ok()) return Wrong("$", "no JSON at byte {} of {}", error.byte, text.size());
    } catch (const json::exception& error) {  // a number beyond all bounds
      if (failed_.ok()) return Wrong("$", "no JSON: {}", QuoteForMessage(error.what(), kMaxText));
    }
    if (!failed_.ok()) return std::unexpected(std::move(failed_));
    return Finish(root);
  }

 private:
  bool Fail(std::unexpected<Status> error) {
    failed_ = std::move(error).error();
    return false;
  }

  // False drops the value that the event is about. After a failure all is dropped, and the parser runs to its end.
  bool OnEvent(int depth, json::parse_event_t event, json& value) {
    if (!failed_.ok()) return false;
    switch (event) {
      case json::parse_event_t::key:
        if (depth == 1) in_buffers_ = value == "buffers";
        return Hold();
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (depth >= kMaxDepth) return Fail(Wrong("$", "nested deeper than {} levels", kMaxDepth));
        if (depth == 2 && in_buffers_) held_before_region_ = held_;
        return Hold();
      case json::parse_event_t::value:
        return Hold();
      case json::parse_event_t::object_end:
        return depth != 2 || !in_buffers_ || Take(value);
      case json::parse_event_t::array_end:
        return true;
    }
    return true;
  }

  bool Hold() { return ++held_ <= kMaxValues || Fail(Wrong("$", "more than {} values", kMaxValues)); }

  bool Take(const json& object) {
    held_ = held_before_region_;
    const Place place{"buffers", segment_.regions.size()};
    if (place.index == kMaxRegions) return Fail(Wrong("$.buffers", "more than {} regions", kMaxRegions));
    auto region = DecodeRegion(object, place);
    if (!region) return Fail(std::unexpected(std::move(region).error()));
    pieces_ += region->rkeys.size();
    if (pieces_ > kMaxRegions) return Fail(Wrong("$.buffers", "more than {} rows of keys", kMaxRegions));
    segment_.regions.push_back(std::move(*region));
    return false;
  }

  Result<SegmentDescriptor> Finish(const json& root) {
    if (!root.is_object()) return Wrong("$", "{}; expected an object", Describe(root));
    SegmentDescriptor& segment = segment_;
    segment.name = MC_TRY(NonEmptyText(root, "name", {}));
    segment.protocols = MC_TRY(DecodeProtocols(root));
    segment.generation = MC_TRY(DecodeGeneration(root));
    segment.revision = MC_TRY(Unsigned<uint64_t>(root, "revision", {}));
    segment.control = MC_TRY(DecodeControl(root));
    segment.tcp_data.host = MC_TRY(Text(root, "tcp_data", {}));
    segment.tcp_data.port = MC_TRY(Unsigned<uint16_t>(root, "tcp_data_port", {}));
    segment.host_id = MC_TRY(Text(root, "host_id", {}));
    segment.shm_socket = MC_TRY(Text(root, "shm_socket", {}));
    segment.npu_socket = MC_TRY(Text(root, "npu_socket", {}));
    segment.topology = MC_TRY(DecodeTopology(root));
    if (const json* devices = Member(root, "devices")) segment.devices = MC_TRY(DecodeDevices(*devices));
    if (const json* left = Member(root, "buffers"); left != nullptr && !(left->is_array() && left->empty())) {
      return Wrong("$.buffers", "{} beside regions; expected an array of objects", Describe(*left));
    }
    MC_TRY(CheckKeys());
    MC_TRY(SortRegions());
    return std::move(segment);
  }

  Result<void> CheckKeys() const {
    const size_t devices = segment_.devices.size();
    for (size_t i = 0; i < segment_.regions.size(); ++i) {
      for (const auto& row : segment_.regions[i].rkeys) {
        if (row.size() == devices) continue;
        return Wrong(Place{"buffers", i}.Of("rkey"), "{} key(s) for {} device(s)", row.size(), devices);
      }
    }
    return {};
  }

  Result<void> SortRegions() {
    std::ranges::sort(segment_.regions, {}, &SegmentRegion::address);
    const auto overlap = std::ranges::adjacent_find(segment_.regions, [](const auto& before, const auto& after) {
      return after.address - before.address < before.length;
    });
    if (overlap == segment_.regions.end()) return {};
    const SegmentRegion& before = overlap[0];
    const SegmentRegion& after = overlap[1];
    return Wrong("$.buffers", "{} bytes at {:#x} overlap {} bytes at {:#x}", before.length, before.address,
                 after.length, after.address);
  }

  SegmentDescriptor segment_;
  Status failed_;
  bool in_buffers_ = false;
  size_t pieces_ = 0;
  size_t held_ = 0;
  size_t held_before_region_ = 0;
};

}  // namespace

std::string EncodeSegment(const SegmentDescriptor& segment) {
  json root = {{"name", segment.name},
               {"protocol", segment.protocols.empty() ? "" : segment.protocols.front()},
               {"protocols", segment.protocols},
               {"timestamp", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
               {"revision", segment.revision},
               {"buffers", json::array()}};
  if (!segment.generation.IsNil()) root["generation"] = segment.generation.ToString();
  if (segment.control.port != 0) root["control"] = segment.control.ToString();
  if (segment.tcp_data.port != 0) {
    root["tcp_data"] = segment.tcp_data.host;
    root["tcp_data_port"] = segment.tcp_data.port;
  }
  if (!segment.host_id.empty()) root["host_id"] = segment.host_id;
  if (!segment.shm_socket.empty()) root["shm_socket"] = segment.shm_socket;
  if (!segment.npu_socket.empty()) root["npu_socket"] = segment.npu_socket;
  for (const SegmentDevice& device : segment.devices) {
    root["devices"].push_back({{"name", device.name}, {"lid", device.lid}, {"gid", device.gid}});
  }
  for (const SegmentRegion& region : segment.regions) {
    root["buffers"].push_back(EncodeRegion(region, segment.devices.size()));
  }
  if (!segment.topology.empty()) {
    root["priority_matrix"] = json::parse(segment.topology, nullptr, /*allow_exceptions=*/false);
    MC_CHECK(!root["priority_matrix"].is_discarded(), "topology is no JSON: {}", segment.topology);
  }
  return Dump(root);
}

Result<SegmentDescriptor> DecodeSegment(std::string_view text) {
  if (text.size() > kMaxBytes) return Wrong("$", "{} bytes, the limit is {}", text.size(), kMaxBytes);
  // The parser takes a NUL for the end of its input and would drop the rest.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) return Wrong("$", "NUL byte at {}", nul);
  return Reader().Read(text);
}

}  // namespace mooncake
