// A metadata server of our own, for clusters that have no etcd or Redis: text under keys, in memory, over HTTP.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "common/http_server.h"

namespace mooncake {

// GET, PUT and DELETE /metadata?key=...: 200, or 404 when there is no such key; without a key GET says 200. The
// address of a server ("rpc_meta" in the key) is not overwritten, so that two servers of one name are noticed: 400, to
// be deleted first. What exceeds a limit is refused: 400 for a key, 413 for a value, 507 when the server is full.
class HttpMetadataServer {
 public:
  struct Options {
    Endpoint listen;
    size_t max_keys = size_t{1} << 17;
    size_t max_key_bytes = 1024;
    size_t max_value_bytes = size_t{64} << 20;
    size_t max_total_bytes = size_t{1} << 30;  // keys and values
  };

  // INVALID_PARAMS naming the address when it cannot be bound.
  static Result<std::unique_ptr<HttpMetadataServer>> Open(const Options& options);

  uint16_t port() const { return http_->port(); }

 private:
  explicit HttpMetadataServer(const Options& options) : options_(options) {}

  HttpReply Get(const HttpRequest& request);
  HttpReply Put(const HttpRequest& request);
  HttpReply Delete(const HttpRequest& request);

  const Options options_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const std::string>, std::less<>> values_;
  size_t total_bytes_ = 0;
  std::unique_ptr<HttpServer> http_;  // last: its threads use the rest
};

}  // namespace mooncake
