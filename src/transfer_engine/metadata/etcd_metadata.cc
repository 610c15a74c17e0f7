// Metadata in etcd 3, through its JSON gateway: keys and values travel as base64.
#include <atomic>
#include <nlohmann/json.hpp>

#include "common/json_text.h"
#include "transfer_engine/metadata/base64.h"
#include "transfer_engine/metadata/http_call.h"
#include "transfer_engine/metadata/stores.h"

namespace mooncake {
namespace {

class EtcdMetadata final : public MetadataStore {
 public:
  explicit EtcdMetadata(std::vector<Endpoint> members) : members_(std::move(members)) {}

  Result<std::optional<std::string>> Get(const std::string& key, Deadline deadline) override {
    const std::string body = MC_TRY(Ask("/v3/kv/range", fmt::format(R"({{"key":"{}"}})", Base64(key)), deadline));
    const auto wrong = [&](std::string_view what) {
      return Error(ErrorCode::METADATA_ERROR, "etcd: range of {}: {} in {}", QuoteForMessage(key), what,
                   QuoteForMessage(body));
    };
    const auto root = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
    if (!root.is_object() || !root.contains("header")) return wrong("no reply");
    const auto found = root.find("kvs");
    if (found == root.end()) return std::nullopt;
    if (!found->is_array() || found->size() != 1 || !found->front().is_object()) return wrong("not one pair");
    const auto value = found->front().find("value");
    if (value == found->front().end()) return std::string();  // empty fields are left out
    if (!value->is_string()) return wrong("no text as value");
    auto decoded = FromBase64(value->get_ref<const std::string&>());
    if (!decoded) return wrong("no base64 as value");
    return decoded;
  }

  Result<void> Put(const std::string& key, const std::string& value, Deadline deadline) override {
    const std::string request = fmt::format(R"({{"key":"{}","value":"{}"}})", Base64(key), Base64(value));
    return Change("/v3/kv/put", request, deadline);
  }

  Result<void> Remove(const std::string& key, Deadline deadline) override {
    return Change("/v3/kv/deleterange", fmt::format(R"({{"key":"{}"}})", Base64(key)), deadline);
  }

 private:
  Result<void> Change(const char* path, const std::string& request, Deadline deadline) {
    const std::string body = MC_TRY(Ask(path, request, deadline));
    const auto root = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
    if (root.is_object() && root.contains("header")) return {};
    return Error(ErrorCode::METADATA_ERROR, "etcd: {}: no reply in {}", path, QuoteForMessage(body));
  }

  // The body of the first answer of code 200. Every request may be repeated: it does the same again. A member that is
  // silent costs its share of the time only.
  Result<std::string> Ask(const char* path, const std::string& request, Deadline deadline) {
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
      if (answer && answer->code == 200) {
        preferred_.store(index, std::memory_order_relaxed);
        return std::move(answer->body);
      }
      if (!answer) {
        failed = std::move(answer).error();
        continue;
      }
      failed = HttpError(call, *answer).error();
      if (answer->code < 500) break;  // any member would refuse it
    }
    return std::unexpected(std::move(failed));
  }

  const std::vector<Endpoint> members_;  // not empty
  std::atomic<size_t> preferred_ = 0;
};

}  // namespace

std::unique_ptr<MetadataStore> OpenEtcdMetadata(std::vector<Endpoint> members) {
  return std::make_unique<EtcdMetadata>(std::move(members));
}

}  // namespace mooncake
