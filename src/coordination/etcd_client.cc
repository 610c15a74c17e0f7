// Requests to the gateway and what may come back: keys and values travel as base64, 64-bit numbers as text.
#include "coordination/etcd_client.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "common/check.h"
#include "common/json_text.h"
#include "coordination/base64.h"
#include "coordination/http_call.h"

namespace mooncake {
namespace {

using nlohmann::json;

constexpr uint16_t kEtcdPort = 2379;

std::unexpected<Status> Wrong(const char* path, std::string_view what, const std::string& body) {
  return Error(ErrorCode::METADATA_ERROR, "etcd: {}: {} in {}", path, what, QuoteForMessage(body));
}

// The object of that name; null when there is none.
const json* Member(const json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

// A 64-bit number as text; one that is 0 is left out. nullopt when it is something else.
std::optional<int64_t> Number(const json& object, const char* name) {
  const json* member = Member(object, name);
  if (member == nullptr) return 0;
  if (!member->is_string()) return std::nullopt;
  const auto& text = member->get_ref<const std::string&>();
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Of a range of one key. nullopt: it is empty.
Result<std::optional<EtcdClient::Pair>> OnlyPair(const char* path, const json& range, const std::string& body) {
  const json* pairs = Member(range, "kvs");
  if (pairs == nullptr) return std::nullopt;
  if (!pairs->is_array() || pairs->size() != 1) return Wrong(path, "not one pair", body);
  const json& found = pairs->front();
  const auto revision = Number(found, "create_revision");
  const auto lease = Number(found, "lease");
  if (!revision || *revision <= 0 || !lease) return Wrong(path, "no revision or lease", body);
  EtcdClient::Pair pair{.value = {}, .create_revision = *revision, .lease = *lease};
  if (const json* value = Member(found, "value"); value != nullptr) {  // empty fields are left out
    if (!value->is_string()) return Wrong(path, "no text as value", body);
    auto decoded = FromBase64(value->get_ref<const std::string&>());
    if (!decoded) return Wrong(path, "no base64 as value", body);
    pair.value = std::move(*decoded);
  }
  return pair;
}

}  // namespace

struct EtcdClient::Answer {
  int code = 0;  // 200, or 404 for what etcd has not got
  std::string body;
  json root;  // an object
};

Result<std::vector<Endpoint>> ParseEtcdMembers(std::string_view text) {
  std::vector<Endpoint> members;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(";,"), text.size());
    if (end != 0) members.push_back(MC_TRY(Endpoint::Parse(text.substr(0, end), kEtcdPort)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (members.empty()) return Error(ErrorCode::INVALID_PARAMS, "no host");
  return members;
}

EtcdClient::EtcdClient(std::vector<Endpoint> members) : members_(std::move(members)) {
  MC_CHECK(!members_.empty(), "etcd client without members");
}

Result<EtcdClient::Answer> EtcdClient::Ask(const char* path, const std::string& request, Deadline deadline) {
  const size_t first = preferred_.load(std::memory_order_relaxed);
  Status failed;
  for (size_t i = 0; i < members_.size(); ++i) {
    const size_t index = (first + i) % members_.size();
    const auto share = deadline.Remaining() / static_cast<int64_t>(members_.size() - i);
    const HttpCall call{.server = members_[index],
                        .method = "POST",
                        .target = path,
                        .content_type = "application/json",
                        .body = request};
    auto answer = Call(call, Deadline::After(share));
    if (!answer) {
      failed = std::move(answer).error();
      continue;
    }
    if (answer->code == 200 || answer->code == 404) {
      Answer good{.code = answer->code, .body = std::move(answer->body), .root = {}};
      good.root = json::parse(good.body, nullptr, /*allow_exceptions=*/false);
      if (good.root.is_object()) {
        preferred_.store(index, std::memory_order_relaxed);
        return good;
      }
      failed = Wrong(path, "no reply", good.body).error();
      continue;
    }
    failed = HttpError(call, *answer).error();
    if (answer->code < 500) break;  // any member would refuse it
  }
  return std::unexpected(std::move(failed));
}

Result<std::optional<EtcdClient::Pair>> EtcdClient::Get(const std::string& key, Deadline deadline) {
  constexpr const char* kPath = "/v3/kv/range";
  const Answer answer = MC_TRY(Ask(kPath, fmt::format(R"({{"key":"{}"}})", Base64(key)), deadline));
  if (Member(answer.root, "header") == nullptr) return Wrong(kPath, "no reply", answer.body);
  return OnlyPair(kPath, answer.root, answer.body);
}

Result<void> EtcdClient::Put(const std::string& key, const std::string& value, Deadline deadline) {
  constexpr const char* kPath = "/v3/kv/put";
  const Answer answer =
      MC_TRY(Ask(kPath, fmt::format(R"({{"key":"{}","value":"{}"}})", Base64(key), Base64(value)), deadline));
  if (Member(answer.root, "header") == nullptr) return Wrong(kPath, "no reply", answer.body);
  return {};
}

Result<void> EtcdClient::Remove(const std::string& key, Deadline deadline) {
  constexpr const char* kPath = "/v3/kv/deleterange";
  const Answer answer = MC_TRY(Ask(kPath, fmt::format(R"({{"key":"{}"}})", Base64(key)), deadline));
  if (Member(answer.root, "header") == nullptr) return Wrong(kPath, "no reply", answer.body);
  return {};
}

Result<EtcdClient::Creation> EtcdClient::Create(const std::string& key, const std::string& value, LeaseId lease,
                                                Deadline deadline) {
  constexpr const char* kPath = "/v3/kv/txn";
  const std::string name = Base64(key);
  const std::string request =
      fmt::format(R"({{"compare":[{{"target":"CREATE","result":"EQUAL","key":"{0}","create_revision":"0"}}],)"
                  R"("success":[{{"request_put":{{"key":"{0}","value":"{1}","lease":"{2}"}}}}],)"
                  R"("failure":[{{"request_range":{{"key":"{0}"}}}}]}})",
                  name, Base64(value), lease);
  const Answer answer = MC_TRY(Ask(kPath, request, deadline));
  const json* header = Member(answer.root, "header");
  if (header == nullptr) return Wrong(kPath, "no reply", answer.body);
  const json* succeeded = Member(answer.root, "succeeded");
  if (succeeded != nullptr && *succeeded == true) {
    const auto revision = Number(*header, "revision");
    if (!revision || *revision <= 0) return Wrong(kPath, "no revision", answer.body);
    return Creation{true, {value, *revision, lease}};
  }
  const json* responses = Member(answer.root, "responses");
  const json* range = responses != nullptr && responses->is_array() && responses->size() == 1
                          ? Member(responses->front(), "response_range")
                          : nullptr;
  if (range == nullptr) return Wrong(kPath, "no range", answer.body);
  auto found = MC_TRY(OnlyPair(kPath, *range, answer.body));
  if (!found) return Wrong(kPath, "no pair", answer.body);
  // The first of two requests may have created it, its answer lost.
  const bool ours = lease != 0 && found->lease == lease && found->value == value;
  return Creation{ours, std::move(*found)};
}

Result<EtcdClient::Lease> EtcdClient::GrantLease(std::chrono::seconds ttl, Deadline deadline) {
  constexpr const char* kPath = "/v3/lease/grant";
  const Answer answer = MC_TRY(Ask(kPath, fmt::format(R"({{"TTL":"{}"}})", ttl.count()), deadline));
  const auto id = Number(answer.root, "ID");
  const auto granted = Number(answer.root, "TTL");
  if (!id || *id == 0 || !granted || *granted <= 0) return Wrong(kPath, "no lease", answer.body);
  return Lease{*id, std::chrono::seconds(*granted)};
}

Result<std::chrono::seconds> EtcdClient::KeepLease(LeaseId lease, Deadline deadline) {
  constexpr const char* kPath = "/v3/lease/keepalive";
  const Answer answer = MC_TRY(Ask(kPath, fmt::format(R"({{"ID":"{}"}})", lease), deadline));
  const json* result = Member(answer.root, "result");
  if (result == nullptr) return Wrong(kPath, "no result", answer.body);
  const auto ttl = Number(*result, "TTL");
  if (!ttl || *ttl < 0) return Wrong(kPath, "no TTL", answer.body);
  return std::chrono::seconds(*ttl);
}

Result<void> EtcdClient::RevokeLease(LeaseId lease, Deadline deadline) {
  constexpr const char* kPath = "/v3/lease/revoke";
  const Answer answer = MC_TRY(Ask(kPath, fmt::format(R"({{"ID":"{}"}})", lease), deadline));
  if (answer.code == 404 || Member(answer.root, "header") != nullptr) return {};
  return Wrong(kPath, "no reply", answer.body);
}

}  // namespace mooncake
