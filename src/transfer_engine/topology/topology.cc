// A topology as JSON, and looking up what is near.
#include "transfer_engine/topology.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/json_text.h"
#include "transfer_engine/topology/natural_less.h"

namespace mooncake {
namespace {

constexpr const char* kSource = "topology";
constexpr const char* kAnywhere = "*";

size_t DigitsAtFront(std::string_view text) {
  return std::min(text.find_first_not_of("0123456789"), text.size());
}

// Appends the names of one list.
Result<void> ReadNames(const JsonValue& list, std::vector<std::string>& seen, std::vector<std::string>& names) {
  if (list.kind != JsonValue::Kind::kArray) {
    return JsonError(kSource, list, "{}; expected an array of device names", DescribeJson(list));
  }
  for (const JsonValue& name : list.items) {
    if (name.kind != JsonValue::Kind::kString || name.text.empty()) {
      return JsonError(kSource, name, "{}; expected the name of a device", DescribeJson(name));
    }
    if (std::ranges::find(seen, name.text) != seen.end()) {
      return JsonError(kSource, name, "{} appears twice for one location", DescribeJson(name));
    }
    seen.push_back(name.text);
    names.push_back(name.text);
  }
  return {};
}

}  // namespace

bool NaturalLess(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    const std::string_view digits_a = a.substr(0, DigitsAtFront(a));
    const std::string_view digits_b = b.substr(0, DigitsAtFront(b));
    if (!digits_a.empty() && !digits_b.empty()) {
      const auto value = [](std::string_view digits) {
        return digits.substr(std::min(digits.find_first_not_of('0'), digits.size()));
      };
      const auto value_a = value(digits_a), value_b = value(digits_b);
      if (value_a.size() != value_b.size()) return value_a.size() < value_b.size();
      if (value_a != value_b) return value_a < value_b;
      if (digits_a.size() != digits_b.size()) return digits_a.size() < digits_b.size();  // "1" before "01"
      a.remove_prefix(digits_a.size());
      b.remove_prefix(digits_b.size());
    } else {
      if (a.front() != b.front()) return a.front() < b.front();
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() < b.size();
}

Topology::Topology(std::map<std::string, Devices> locations) : locations_(std::move(locations)) {
  for (const auto& [location, near] : locations_) {
    for (const auto* names : {&near.preferred, &near.available})
      devices_.insert(devices_.end(), names->begin(), names->end());
  }
  std::ranges::sort(devices_, NaturalLess);
  devices_.erase(std::ranges::unique(devices_).begin(), devices_.end());
  locations_.try_emplace(kAnywhere, Devices{devices_, {}});
}

Result<Topology> Topology::Parse(std::string_view json) {
  const JsonValue root = MC_TRY(ParseJson(json, kSource));
  if (root.kind != JsonValue::Kind::kObject) {
    return JsonError(kSource, root, "{}; expected an object", DescribeJson(root));
  }
  std::map<std::string, Devices> locations;
  for (const JsonMember& member : root.members) {
    if (member.key.empty()) return JsonError(kSource, member, "a location without a name");
    const JsonValue& lists = member.value;
    if (lists.kind != JsonValue::Kind::kArray || lists.items.size() != 2) {
      return JsonError(kSource, lists, "{}; expected [[preferred devices], [available devices]]", DescribeJson(lists));
    }
    std::vector<std::string> seen;
    Devices near;
    MC_TRY(ReadNames(lists.items[0], seen, near.preferred));
    MC_TRY(ReadNames(lists.items[1], seen, near.available));
    locations.emplace(member.key, std::move(near));
  }
  return Topology(std::move(locations));
}

std::string Topology::ToJson() const {
  auto root = nlohmann::json::object();
  for (const auto& [location, near] : locations_) {
    const bool derived = location == kAnywhere && near.preferred == devices_ && near.available.empty();
    if (!derived) root[location] = nlohmann::json::array({near.preferred, near.available});
  }
  return root.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

const Topology::Devices& Topology::Near(const std::string& location) const {
  static const Devices kNone;
  auto found = locations_.find(location);
  if (found == locations_.end()) found = locations_.find(kAnywhere);
  return found == locations_.end() ? kNone : found->second;
}

}  // namespace mooncake
