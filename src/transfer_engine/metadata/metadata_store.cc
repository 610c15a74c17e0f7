// From a connection string to a store, and the layout of keys.
#include "transfer_engine/metadata/metadata_store.h"

#include <charconv>

#include "common/env.h"
#include "coordination/etcd_client.h"
#include "transfer_engine/metadata/stores.h"

namespace mooncake {
namespace {

constexpr uint16_t kHttpPort = 80;
constexpr uint16_t kRedisPort = 6379;
constexpr uint32_t kMaxRedisDatabase = 255;

Result<std::unique_ptr<MetadataStore>> Http(std::string_view rest) {
  const size_t slash = std::min(rest.find_first_of("/?"), rest.size());
  std::string path(rest.substr(slash));
  for (const char c : path) {
    if (c <= ' ' || c == 0x7F) return Error(ErrorCode::INVALID_PARAMS, "path '{}' has characters to be escaped", path);
  }
  if (!path.starts_with('/')) path.insert(0, "/");
  return OpenHttpMetadata(MC_TRY(Endpoint::Parse(rest.substr(0, slash), kHttpPort)), std::move(path));
}

Result<std::unique_ptr<MetadataStore>> Etcd(std::string_view rest) {
  return OpenEtcdMetadata(MC_TRY(ParseEtcdMembers(rest)));
}

Result<std::unique_ptr<MetadataStore>> Redis(std::string_view rest) {
  RedisOptions options;
  if (rest.ends_with('/')) rest.remove_suffix(1);
  options.server = MC_TRY(Endpoint::Parse(rest, kRedisPort));
  options.username = env::Get(env::kRedisUsername).value_or("");
  options.password = env::Get(env::kRedisPassword).value_or("");
  if (const auto text = env::Get(env::kRedisDatabase); text && !text->empty()) {
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), options.database);
    if (error != std::errc() || end != text->data() + text->size() || options.database > kMaxRedisDatabase) {
      return Error(ErrorCode::INVALID_PARAMS, "{}='{}' is not a number from 0 to {}", env::kRedisDatabase.name, *text,
                   kMaxRedisDatabase);
    }
  }
  return OpenRedisMetadata(std::move(options));
}

Result<std::unique_ptr<MetadataStore>> Open(std::string_view connection) {
  const size_t mark = connection.find("://");
  if (mark == std::string_view::npos) return Etcd(connection);
  const std::string_view scheme = connection.substr(0, mark);
  const std::string_view rest = connection.substr(mark + 3);
  if (scheme == "http") return Http(rest);
  if (scheme == "etcd") return Etcd(rest);
  if (scheme == "redis") return Redis(rest);
  return Error(ErrorCode::INVALID_PARAMS, "scheme '{}' is none of http, etcd, redis", scheme);
}

const std::string& Prefix() {
  static const std::string kPrefix = [] {
    std::string prefix = "mooncake/" + env::Get(env::kMetadataClusterId).value_or("");
    return prefix.ends_with('/') ? prefix : prefix + "/";
  }();
  return kPrefix;
}

}  // namespace

Result<std::unique_ptr<MetadataStore>> OpenMetadataStore(const std::string& connection) {
  auto store = Open(connection);
  if (!store) return Annotate(store.error(), fmt::format("metadata server '{}'", connection));
  return store;
}

std::string SegmentKey(const std::string& segment) {
  return Prefix() + "ram/" + segment;
}

std::string RpcMetaKey(const std::string& server) {
  return Prefix() + "rpc_meta/" + server;
}

}  // namespace mooncake
