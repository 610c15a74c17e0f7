// JSON of the tier views, with keys on request.
#include "client/tiers_report.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace mooncake {
namespace {

constexpr size_t kMaxKeys = 10'000;

// The value of ?keys=N, 0 without it; nullopt for anything that is not understood.
std::optional<size_t> WantedKeys(const HttpRequest& request) {
  size_t wanted = 0;
  for (const auto& [name, value] : request.query) {
    const char* const end = value.data() + value.size();
    const auto [parsed_to, error] = std::from_chars(value.data(), end, wanted);
    if (name != "keys" || error != std::errc() || parsed_to != end || wanted > kMaxKeys) return std::nullopt;
  }
  return wanted;
}

// Of each tier the `limit` first keys. Keeps no more than that in memory.
std::map<Uuid, std::set<std::string>> FirstKeys(const TieredBackend& backend, size_t limit) {
  std::map<Uuid, std::set<std::string>> keys;
  if (limit == 0) return keys;
  backend.ForEachKey([&](const std::string& key) {
    for (const Uuid tier : backend.GetReplicaTierIds(key)) {
      auto& first = keys[tier];
      first.insert(key);
      if (first.size() > limit) first.erase(std::prev(first.end()));
    }
  });
  return keys;
}

}  // namespace

HttpReply TiersReport(const TieredBackend* backend, const HttpRequest& request) {
  const auto wanted = WantedKeys(request);
  if (!wanted) return {.code = 400, .body = fmt::format("/tiers takes ?keys=N, N up to {}\n", kMaxKeys)};
  nlohmann::ordered_json tiers = nlohmann::ordered_json::array();
  if (backend != nullptr) {
    const auto keys = FirstKeys(*backend, *wanted);
    for (const TierView& view : backend->GetTierViews()) {
      nlohmann::ordered_json tier{{"id", view.id.ToString()},
                                  {"name", view.name},
                                  {"type", MemoryTypeName(view.type)},
                                  {"priority", view.priority},
                                  {"tags", view.tags},
                                  {"capacity", view.capacity},
                                  {"used", view.usage},
                                  {"free", view.free_space},
                                  {"largest_hole", view.largest_hole},
                                  {"lost", view.lost},
                                  {"key_count", view.keys},
                                  {"hits", view.hits},
                                  {"demoted_out", view.demoted_out},
                                  {"dropped", view.dropped},
                                  {"device_refusals", view.device_refusals}};
      if (*wanted > 0) {
        const auto listed = keys.find(view.id);
        tier["keys"] = listed == keys.end() ? std::set<std::string>() : listed->second;
      }
      tiers.push_back(std::move(tier));
    }
  }
  // Keys are bytes: what is no UTF-8 shows as the replacement character.
  return {.body = nlohmann::ordered_json{{"tiers", std::move(tiers)}}.dump(
                      2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
                  "\n",
          .content_type = "application/json"};
}

}  // namespace mooncake
