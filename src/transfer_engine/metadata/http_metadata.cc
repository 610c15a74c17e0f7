// Metadata under an HTTP address.
#include "coordination/http_call.h"
#include "transfer_engine/metadata/stores.h"

namespace mooncake {
namespace {

class HttpMetadata final : public MetadataStore {
 public:
  HttpMetadata(Endpoint server, std::string path) : server_(std::move(server)), path_(std::move(path)) {}

  Result<std::optional<std::string>> Get(const std::string& key, Deadline deadline) override {
    const HttpCall call = To("GET", key);
    HttpAnswer answer = MC_TRY(Call(call, deadline));
    if (answer.code == 404) return std::nullopt;
    if (answer.code != 200) return HttpError(call, answer);
    return std::move(answer.body);
  }

  Result<void> Put(const std::string& key, const std::string& value, Deadline deadline) override {
    HttpCall call = To("PUT", key);
    call.content_type = "application/octet-stream";
    call.body = value;
    const HttpAnswer answer = MC_TRY(Call(call, deadline));
    if (answer.code != 200) return HttpError(call, answer);
    return {};
  }

  Result<void> Remove(const std::string& key, Deadline deadline) override {
    const HttpCall call = To("DELETE", key);
    const HttpAnswer answer = MC_TRY(Call(call, deadline));
    if (answer.code != 200 && answer.code != 404) return HttpError(call, answer);
    return {};
  }

 private:
  HttpCall To(std::string_view method, const std::string& key) const {
    return {.server = server_,
            .method = method,
            .target = path_ + (path_.contains('?') ? "&key=" : "?key=") + UrlEscape(key)};
  }

  const Endpoint server_;
  const std::string path_;
};

}  // namespace

std::unique_ptr<MetadataStore> OpenHttpMetadata(Endpoint server, std::string path) {
  return std::make_unique<HttpMetadata>(std::move(server), std::move(path));
}

}  // namespace mooncake
