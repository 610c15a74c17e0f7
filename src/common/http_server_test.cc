// The HTTP server, asked through plain sockets.
#include "common/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

namespace mooncake {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class HttpServerTest : public ::testing::Test {
 protected:
  std::unique_ptr<HttpServer> Open(uint16_t port = 0, bool move_on = false) {
    HttpServer::Options options{.listen = {"127.0.0.1", port}, .move_on_if_taken = move_on, .get = {}};
    options.get["/health"] = [](const HttpRequest&) { return HttpReply{.body = "OK\n"}; };
    options.get["/echo.x"] = [](const HttpRequest& request) {
      const auto value = request.query.find("v");
      return HttpReply{.code = 201, .body = value == request.query.end() ? "none" : value->second};
    };
    auto server = HttpServer::Open(std::move(options));
    EXPECT_TRUE(server) << server.error().ToString();
    return server ? std::move(*server) : nullptr;
  }
  static std::string Ask(uint16_t port, const std::string& target) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      close(fd);
      return "unreachable";
    }
    const std::string request = "GET " + target + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    std::string reply;
    if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) < 0) reply = "closed by the server";  // as it stops
    char buffer[4096];
    for (ssize_t got = 0; (got = recv(fd, buffer, sizeof(buffer), 0)) > 0;)
      reply.append(buffer, static_cast<size_t>(got));
    close(fd);
    return reply;
  }
};

TEST_F(HttpServerTest, AnswersItsPathsAndNoOthers) {
  const auto server = Open();
  ASSERT_NE(server, nullptr);
  EXPECT_THAT(Ask(server->port(), "/health"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Ask(server->port(), "/health"), HasSubstr("OK\n"));
  const std::string echo = Ask(server->port(), "/echo.x?v=a%20b");
  EXPECT_THAT(echo, StartsWith("HTTP/1.1 201"));
  EXPECT_THAT(echo, HasSubstr("a b"));
  for (const char* other : {"/", "/healthy", "/echoax", "/health/x"})
    EXPECT_THAT(Ask(server->port(), other), StartsWith("HTTP/1.1 404")) << other;
}

TEST_F(HttpServerTest, TakenPortIsAnErrorThatNamesTheAddress) {
  const auto server = Open();
  ASSERT_NE(server, nullptr);
  const auto second = HttpServer::Open({.listen = {"127.0.0.1", server->port()}, .get = {}});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_THAT(second.error().message(), HasSubstr("127.0.0.1:" + std::to_string(server->port())));
}

TEST_F(HttpServerTest, DefaultPortThatIsTakenMovesOn) {
  const auto first = Open();
  ASSERT_NE(first, nullptr);
  const auto second = Open(first->port(), /*move_on=*/true);
  ASSERT_NE(second, nullptr);
  EXPECT_GT(second->port(), first->port());
  EXPECT_THAT(Ask(second->port(), "/health"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, AddressOfNobodyIsAnError) {
  EXPECT_FALSE(HttpServer::Open({.listen = {"203.0.113.1", 0}, .get = {}}));
}

TEST_F(HttpServerTest, StopsAtOnceAndWhileRequestsAreServed) {
  for (int i = 0; i < 20; ++i) ASSERT_NE(Open(), nullptr);
  auto server = Open();
  ASSERT_NE(server, nullptr);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([port = server->port()] {
      for (int i = 0; i < 20; ++i) (void)Ask(port, "/health");
    });
  }
  server.reset();
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace mooncake
