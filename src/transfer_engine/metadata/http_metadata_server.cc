// A map behind HTTP.
#include "transfer_engine/metadata/http_metadata_server.h"

namespace mooncake {
namespace {

constexpr const char* kPath = "/metadata";
constexpr std::string_view kAddressOfServer = "rpc_meta";
constexpr const char* kBytes = "application/octet-stream";

// "" when there is none.
std::string_view KeyOf(const HttpRequest& request) {
  const auto key = request.query.find("key");
  return key == request.query.end() ? std::string_view() : std::string_view(key->second);
}

HttpReply NotFound() {
  return {.code = 404, .body = "metadata not found\n"};
}

}  // namespace

Result<std::unique_ptr<HttpMetadataServer>> HttpMetadataServer::Open(const Options& options) {
  std::unique_ptr<HttpMetadataServer> server(new HttpMetadataServer(options));
  HttpServer::Options http{.listen = options.listen, .get = {}, .put = {}, .del = {}};
  http.max_body_bytes = options.max_value_bytes;
  http.get["/health"] = [](const HttpRequest&) { return HttpReply{.body = "OK\n"}; };
  http.get[kPath] = [raw = server.get()](const HttpRequest& request) { return raw->Get(request); };
  http.put[kPath] = [raw = server.get()](const HttpRequest& request) { return raw->Put(request); };
  http.del[kPath] = [raw = server.get()](const HttpRequest& request) { return raw->Delete(request); };
  server->http_ = MC_TRY(HttpServer::Open(std::move(http)));
  return server;
}

HttpReply HttpMetadataServer::Get(const HttpRequest& request) {
  const std::string_view key = KeyOf(request);
  if (key.empty()) return {.body = "OK\n"};
  std::shared_ptr<const std::string> value;
  {
    std::lock_guard lock(mutex_);
    const auto found = values_.find(key);
    if (found == values_.end()) return NotFound();
    value = found->second;
  }
  return {.body = *value, .content_type = kBytes};
}

HttpReply HttpMetadataServer::Put(const HttpRequest& request) {
  const std::string_view key = KeyOf(request);
  if (key.empty()) return {.code = 400, .body = "no key\n"};
  if (key.size() > options_.max_key_bytes) return {.code = 400, .body = "key too long\n"};
  if (request.body.size() > options_.max_value_bytes) return {.code = 413, .body = "value too long\n"};
  auto value = std::make_shared<const std::string>(request.body);

  std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  const bool exists = found != values_.end();
  if (exists && key.contains(kAddressOfServer)) {
    return {.code = 400, .body = "this rpc_meta key exists; delete it first\n"};
  }
  const size_t freed = exists ? key.size() + found->second->size() : 0;
  const size_t needed = key.size() + value->size();
  if ((!exists && values_.size() >= options_.max_keys) || needed > options_.max_total_bytes ||
      total_bytes_ - freed > options_.max_total_bytes - needed) {
    return {.code = 507, .body = "the server is full\n"};
  }
  total_bytes_ = total_bytes_ - freed + needed;
  if (exists) {
    found->second.swap(value);
  } else {
    values_.emplace(key, std::move(value));
  }
  return {.body = "metadata updated\n"};
}

HttpReply HttpMetadataServer::Delete(const HttpRequest& request) {
  const std::string_view key = KeyOf(request);
  if (key.empty()) return {.code = 400, .body = "no key\n"};
  std::shared_ptr<const std::string> dropped;  // freed without the lock
  std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end()) return NotFound();
  dropped = std::move(found->second);
  total_bytes_ -= found->first.size() + dropped->size();
  values_.erase(found);
  return {.body = "metadata deleted\n"};
}

}  // namespace mooncake
