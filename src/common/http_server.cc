// HTTP on cpp-httplib.
#include "common/http_server.h"

#include <httplib.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <thread>

#include "common/check.h"
#include "common/executor.h"

namespace mooncake {

struct HttpServer::Impl {
  httplib::Server server;
  socket_t listening = INVALID_SOCKET;          // the library keeps it; only its queue is changed here
  std::unique_ptr<httplib::TaskQueue> workers;  // until the library takes them
  std::atomic<bool> ended{false};
  std::thread thread;
};

namespace {

// The library starts threads of its own on the listening thread, where nobody learns that there are none to be had.
class Workers : public httplib::TaskQueue {
 public:
  explicit Workers(size_t threads) : executor_("http", threads, std::numeric_limits<size_t>::max()) {}
  void enqueue(std::function<void()> task) override {
    std::move_only_function<void()> connection = std::move(task);
    MC_CHECK(executor_.TrySubmit(connection), "the library hands over connections after its end");
  }
  void shutdown() override { executor_.Stop(); }

 private:
  Executor executor_;
};

// The library's default allows several processes on one port, which would hide a clash.
void ReuseAddressOnly(socket_t socket) {
  const int yes = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
}

// Paths are literal; the library takes patterns.
std::string PatternOf(const std::string& path) {
  std::string pattern;
  for (const char c : path) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '/' && c != '_' && c != '-') pattern += '\\';
    pattern += c;
  }
  return pattern;
}

void Answer(const HttpHandler& handler, const httplib::Request& request, std::string body,
            httplib::Response& response) {
  const HttpReply reply = handler({request.path, {request.params.begin(), request.params.end()}, std::move(body)});
  response.status = reply.code;
  response.set_content(reply.body, reply.content_type);
}

void AddRoutes(httplib::Server& server, HttpServer::Options& options) {
  for (auto& [path, handler] : options.get) {
    server.Get(PatternOf(path), [handler](const httplib::Request& request, httplib::Response& response) {
      Answer(handler, request, {}, response);
    });
  }
  // Bodies are counted as they come: the library's own limit knows announced lengths only, and it takes bodies that
  // claim to be forms, as curl's do, for parameters.
  for (auto& [path, handler] : options.put) {
    server.Put(PatternOf(path),
               [handler, limit = options.max_body_bytes](const httplib::Request& request, httplib::Response& response,
                                                         const httplib::ContentReader& read) {
                 std::string body;
                 bool fits = true;
                 const bool complete = read([&](const char* data, size_t size) {
                   fits = size <= limit - body.size();
                   if (fits) body.append(data, size);
                   return fits;
                 });
                 if (complete) return Answer(handler, request, std::move(body), response);
                 fits = fits && response.status != 413;  // the library's answer to an announced length
                 response.status = fits ? 400 : 413;
                 response.set_content(fits ? "incomplete body\n" : "body too long\n", "text/plain");
               });
  }
  for (auto& [path, handler] : options.del) {
    server.Delete(PatternOf(path),
                  [handler](const httplib::Request& request, httplib::Response& response,
                            const httplib::ContentReader&) { Answer(handler, request, {}, response); });
  }
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::Open(Options options) {
  constexpr uint32_t kFurtherPorts = 100;
  constexpr size_t kThreads = 8;
  constexpr int kBacklog = 128;
  auto impl = std::make_unique<Impl>();
  // A connection holds a thread until its request is there. Silent ones must not keep a health check waiting: several
  // threads, one second for the next bytes of a request, one request a connection.
  impl->workers = std::make_unique<Workers>(kThreads);
  impl->server.new_task_queue = [raw = impl.get()] { return raw->workers.release(); };
  impl->server.set_read_timeout(1);
  impl->server.set_write_timeout(2);
  impl->server.set_keep_alive_max_count(1);
  impl->server.set_payload_max_length(options.max_body_bytes);
  impl->server.set_socket_options([raw = impl.get()](socket_t socket) {
    ReuseAddressOnly(socket);
    raw->listening = socket;
  });
  impl->server.set_keep_alive_timeout(1);
  AddRoutes(impl->server, options);

  const Endpoint& address = options.listen;
  uint32_t port = address.port;
  bool bound = false;
  if (port == 0) {
    const int chosen = impl->server.bind_to_any_port(address.host);
    bound = chosen > 0;
    port = bound ? static_cast<uint32_t>(chosen) : 0;
  } else {
    const uint32_t last = options.move_on_if_taken ? std::min<uint32_t>(65535, port + kFurtherPorts) : port;
    for (;; ++port) {
      bound = impl->server.bind_to_port(address.host, static_cast<int>(port));
      if (bound || port >= last) break;
    }
  }
  if (!bound) {
    const char* why = impl->listening == INVALID_SOCKET ? "the host does not resolve" : std::strerror(errno);
    return Error(ErrorCode::INVALID_PARAMS, "cannot serve HTTP on {}: {}", address.ToString(), why);
  }
  // The library's queue of five makes a burst of connections wait until TCP asks again, a second later.
  if (::listen(impl->listening, kBacklog) != 0) {
    return Error(ErrorCode::INVALID_PARAMS, "cannot serve HTTP on port {}: listen: {}", port, std::strerror(errno));
  }
  impl->thread = std::thread([raw = impl.get()] {
    raw->server.listen_after_bind();
    raw->ended.store(true);
  });
  // The library ignores a stop that comes before its loop runs.
  while (!impl->server.is_running() && !impl->ended.load()) std::this_thread::yield();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl), static_cast<uint16_t>(port)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl, uint16_t port) : impl_(std::move(impl)), port_(port) {}

HttpServer::~HttpServer() {
  impl_->server.stop();
  impl_->thread.join();
}

}  // namespace mooncake
