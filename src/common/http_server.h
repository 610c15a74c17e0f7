// A small HTTP server for health, metrics, reports and metadata. A door to cpp-httplib, whose header stays in one file.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/endpoint.h"
#include "common/status.h"

namespace mooncake {

struct HttpRequest {
  std::string path;
  std::multimap<std::string, std::string> query;
  std::string body;
};
struct HttpReply {
  int code = 200;
  std::string body;
  std::string content_type = "text/plain; charset=utf-8";
};
using HttpHandler = std::function<HttpReply(const HttpRequest&)>;

// Handlers run on the server's few threads, one request each at a time; they may block for as long as a caller will
// wait.
class HttpServer {
 public:
  struct Options {
    Endpoint listen;
    // The port is only a default: when it is taken, use the next free one (at most 100 further on).
    bool move_on_if_taken = false;
    std::map<std::string, HttpHandler> get;  // exact paths
    std::map<std::string, HttpHandler> put;
    std::map<std::string, HttpHandler> del;  // DELETE; bodies are not read
    size_t max_body_bytes = 64 << 10;        // of a PUT; a longer one is answered with 413
  };

  // INVALID_PARAMS naming the address when it cannot be bound.
  static Result<std::unique_ptr<HttpServer>> Open(Options options);
  ~HttpServer();  // stops and joins

  uint16_t port() const { return port_; }

 private:
  struct Impl;
  HttpServer(std::unique_ptr<Impl> impl, uint16_t port);
  std::unique_ptr<Impl> impl_;
  uint16_t port_;
};

}  // namespace mooncake
