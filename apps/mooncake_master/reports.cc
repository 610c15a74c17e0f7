// Reports as JSON and text.
#include "mooncake_master/reports.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/byte_size.h"
#include "device/memory_type.h"

namespace mooncake {
namespace {

using nlohmann::ordered_json;

HttpReply AsJson(const ordered_json& json) {
  // Keys are bytes: what is no UTF-8 shows as the replacement character.
  return {.body = json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n",
          .content_type = "application/json"};
}

std::string_view TypeName(int32_t type) {
  const bool known = type >= 0 && type <= static_cast<int32_t>(MemoryType::UNKNOWN);
  return MemoryTypeName(known ? static_cast<MemoryType>(type) : MemoryType::UNKNOWN);
}

// Empty when there are none.
ordered_json OwnersOf(const MasterService& master, const std::string& key) {
  ordered_json owners = ordered_json::array();
  const auto reply = master.Lookup({.keys = {KeyDigest::Of(key)}});
  if (!reply) return owners;
  for (const protocol::Route& route : reply->routes.front()) {
    const protocol::ClientAddress& client = reply->clients[route.client];
    owners.push_back({{"endpoint", client.endpoint},
                      {"client", client.id.ToString()},
                      {"size", route.size},
                      {"type", TypeName(route.type)}});
  }
  return owners;
}

// The value of the one parameter a request takes; nullptr when it is not given, or more is.
const std::string* OnlyParameter(const HttpRequest& request, const std::string& name) {
  if (request.query.size() != 1 || request.query.begin()->first != name) return nullptr;
  const std::string& value = request.query.begin()->second;
  return value.empty() ? nullptr : &value;
}

}  // namespace

HttpReply ClientsReport(const MasterService& master) {
  ordered_json clients = ordered_json::array();
  for (const auto& client : master.Clients()) {
    ordered_json tiers = ordered_json::array();
    for (const auto& tier : client.tiers) {
      tiers.push_back({{"id", tier.id.ToString()},
                       {"name", tier.name},
                       {"type", TypeName(tier.type)},
                       {"priority", tier.priority},
                       {"tags", tier.tags},
                       {"capacity", tier.capacity},
                       {"used", tier.usage},
                       {"key_count", tier.keys},
                       {"hits", tier.hits},
                       {"demoted_out", tier.demoted_out},
                       {"dropped", tier.dropped}});
    }
    clients.push_back({{"id", client.id.ToString()},
                       {"endpoint", client.endpoint},
                       {"suspect", client.suspect},
                       {"tiers", std::move(tiers)}});
  }
  return AsJson({{"key_count", master.KeyCount()}, {"clients", std::move(clients)}});
}

HttpReply SegmentsReport(const MasterService& master) {
  HttpReply reply;
  for (const auto& client : master.Clients()) {
    for (const auto& tier : client.tiers) {
      reply.body += fmt::format("{} {} capacity={} used={}{}\n", client.endpoint, tier.name, tier.capacity, tier.usage,
                                client.suspect ? " suspect" : "");
    }
  }
  return reply;
}

HttpReply SummaryReport(MasterService& master) {
  uint64_t used = 0, capacity = 0;
  const auto clients = master.Clients();
  for (const auto& client : clients) {
    for (const auto& tier : client.tiers) {
      used += tier.usage;
      capacity += tier.capacity;
    }
  }
  const double percent = capacity == 0 ? 0 : 100.0 * static_cast<double>(used) / static_cast<double>(capacity);
  std::string requests;
  constexpr std::pair<const char*, const char*> kShown[] = {{"Get", "get_replica_list"}, {"Put", "get_write_route"},
                                                            {"Announce", "add_replica"}, {"Del", "remove"},
                                                            {"DelAll", "remove_all"},    {"Heartbeat", "heartbeat"}};
  for (const auto& [shown, method] : kShown) {
    const auto count = master.Requests(method);
    requests +=
        fmt::format("{}{}={}/{}", requests.empty() ? "" : ", ", shown, count.received - count.refused, count.received);
  }
  return {.body = fmt::format("[Arch: P2P] Mem Storage: {} / {} ({:.1f}%) | Keys: {} | Clients: {} | Requests "
                              "(Success/Total): {}\n",
                              FormatBytes(used), FormatBytes(capacity), percent, master.KeyCount(), clients.size(),
                              requests)};
}

HttpReply KeyReport(const MasterService& master, const HttpRequest& request) {
  const std::string* key = OnlyParameter(request, "key");
  if (key == nullptr) return {.code = 400, .body = "/query_key takes ?key=KEY\n"};
  ordered_json owners = OwnersOf(master, *key);
  const bool found = !owners.empty();
  HttpReply reply = AsJson({{"key", *key}, {"owners", std::move(owners)}});
  if (!found) reply.code = 404;
  return reply;
}

HttpReply KeysReport(const MasterService& master, const HttpRequest& request) {
  const std::string* keys = OnlyParameter(request, "keys");
  if (keys == nullptr) return {.code = 400, .body = "/batch_query_keys takes ?keys=KEY,KEY...\n"};
  ordered_json data = ordered_json::object();
  for (size_t at = 0; at <= keys->size();) {
    const size_t end = std::min(keys->find(',', at), keys->size());
    const std::string key = keys->substr(at, end - at);
    at = end + 1;
    if (key.empty()) continue;
    ordered_json owners = OwnersOf(master, key);
    const bool found = !owners.empty();
    data[key] = {{"ok", found}, {"values", std::move(owners)}};
  }
  return AsJson({{"success", true}, {"data", std::move(data)}});
}

}  // namespace mooncake
