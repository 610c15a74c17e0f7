// The metadata server: what it keeps, and what it refuses.
#include "transfer_engine/metadata/http_metadata_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "coordination/http_call.h"
#include "coordination/tcp_stream.h"

namespace mooncake {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class HttpMetadataServerTest : public ::testing::Test {
 protected:
  void Open(HttpMetadataServer::Options options = {}) {
    options.listen = {"127.0.0.1", 0};
    auto server = HttpMetadataServer::Open(options);
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = std::move(*server);
  }
  HttpAnswer Ask(std::string_view method, const std::string& target, std::string_view body = "",
                 std::string_view type = "application/json") const {
    const auto answer = Call({.server = {"127.0.0.1", server_->port()},
                              .method = method,
                              .target = target,
                              .content_type = type,
                              .body = body},
                             Soon());
    EXPECT_TRUE(answer) << answer.error().ToString();
    return answer ? *answer : HttpAnswer{};
  }
  int Code(std::string_view method, const std::string& key, std::string_view body = "") const {
    return Ask(method, "/metadata?key=" + UrlEscape(key), body).code;
  }
  // What the server says to these bytes.
  std::string Raw(const std::string& request) const {
    auto stream = TcpStream::Connect({"127.0.0.1", server_->port()}, Soon());
    EXPECT_TRUE(stream && stream->Send(request, Soon()));
    std::string reply;
    std::array<char, 4096> buffer;
    for (auto got = stream->Receive(buffer, Soon()); got && *got > 0; got = stream->Receive(buffer, Soon())) {
      reply.append(buffer.data(), *got);
    }
    return reply;
  }
  static Deadline Soon() { return Deadline::After(std::chrono::seconds(60)); }

  std::unique_ptr<HttpMetadataServer> server_;
};

TEST_F(HttpMetadataServerTest, KeepsGivesAndForgets) {
  Open();
  EXPECT_EQ(Code("GET", "a/b"), 404);
  EXPECT_EQ(Code("PUT", "a/b", "one"), 200);
  EXPECT_EQ(Ask("GET", "/metadata?key=a%2Fb").body, "one");
  EXPECT_EQ(Code("PUT", "a/b", "two"), 200);
  EXPECT_EQ(Ask("GET", "/metadata?key=a%2Fb").body, "two");
  EXPECT_EQ(Code("DELETE", "a/b"), 200);
  EXPECT_EQ(Code("DELETE", "a/b"), 404);
  EXPECT_EQ(Code("GET", "a/b"), 404);
}

TEST_F(HttpMetadataServerTest, BareGetIsAHealthCheck) {
  Open();
  EXPECT_EQ(Ask("GET", "/metadata").code, 200);
  EXPECT_EQ(Ask("GET", "/metadata?other=1").code, 200);
  EXPECT_EQ(Ask("GET", "/health").code, 200);
  EXPECT_EQ(Ask("GET", "/").code, 404);
  EXPECT_EQ(Ask("PUT", "/metadata", "x").code, 400);
  EXPECT_EQ(Ask("DELETE", "/metadata").code, 400);
}

TEST_F(HttpMetadataServerTest, SecondServerOfOneNameIsRefused) {
  Open();
  EXPECT_EQ(Code("PUT", "mooncake/rpc_meta/node:1", "first"), 200);
  EXPECT_EQ(Code("PUT", "mooncake/rpc_meta/node:1", "second"), 400);
  EXPECT_EQ(Ask("GET", "/metadata?key=mooncake%2Frpc_meta%2Fnode%3A1").body, "first");
  EXPECT_EQ(Code("DELETE", "mooncake/rpc_meta/node:1"), 200);
  EXPECT_EQ(Code("PUT", "mooncake/rpc_meta/node:1", "second"), 200);
}

TEST_F(HttpMetadataServerTest, BodiesThatClaimToBeFormsAreKeptAsTheyAre) {
  Open();
  const std::string body = "{\"a\":\"" + std::string(100'000, '&') + "=%41\"}";
  EXPECT_EQ(Ask("PUT", "/metadata?key=k", body, "application/x-www-form-urlencoded").code, 200);
  EXPECT_EQ(Ask("GET", "/metadata?key=k").body, body);
}

TEST_F(HttpMetadataServerTest, ChunkedBodiesAreKeptAndCounted) {
  Open({.max_value_bytes = 8});
  const std::string head = "PUT /metadata?key=k HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_THAT(Raw(head + "4\r\nabcd\r\n4\r\nefgh\r\n0\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(Ask("GET", "/metadata?key=k").body, "abcdefgh");
  EXPECT_THAT(Raw(head + "4\r\nabcd\r\n5\r\nefghi\r\n0\r\n\r\n"), StartsWith("HTTP/1.1 413"));
  EXPECT_EQ(Ask("GET", "/metadata?key=k").body, "abcdefgh");
}

TEST_F(HttpMetadataServerTest, IncompleteBodyChangesNothing) {
  Open();
  EXPECT_EQ(Code("PUT", "k", "old"), 200);
  Raw("PUT /metadata?key=k HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nnew");
  EXPECT_EQ(Ask("GET", "/metadata?key=k").body, "old");
}

TEST_F(HttpMetadataServerTest, DeleteWithoutABodyIsAnsweredAtOnce) {
  Open();
  EXPECT_EQ(Code("PUT", "k", "v"), 200);
  EXPECT_THAT(Raw("DELETE /metadata?key=k HTTP/1.1\r\nHost: x\r\n\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpMetadataServerTest, LimitsOfOneEntry) {
  Open({.max_key_bytes = 4, .max_value_bytes = 8});
  EXPECT_EQ(Code("PUT", "1234", "12345678"), 200);
  EXPECT_EQ(Code("PUT", "12345", "1"), 400);
  EXPECT_EQ(Code("PUT", "123", "123456789"), 413);
  EXPECT_EQ(Code("GET", "123"), 404);
}

TEST_F(HttpMetadataServerTest, NumberOfKeysIsBounded) {
  Open({.max_keys = 2});
  EXPECT_EQ(Code("PUT", "a", "1"), 200);
  EXPECT_EQ(Code("PUT", "b", "1"), 200);
  EXPECT_EQ(Code("PUT", "c", "1"), 507);
  EXPECT_EQ(Code("PUT", "b", "2"), 200);
  EXPECT_EQ(Code("DELETE", "a"), 200);
  EXPECT_EQ(Code("PUT", "c", "1"), 200);
}

TEST_F(HttpMetadataServerTest, BytesOfAllEntriesAreBounded) {
  Open({.max_total_bytes = 10});
  EXPECT_EQ(Code("PUT", "a", "1234"), 200);  // 5
  EXPECT_EQ(Code("PUT", "b", "12345"), 507);
  EXPECT_EQ(Code("PUT", "b", "1234"), 200);  // 10
  EXPECT_EQ(Code("PUT", "a", "12345"), 507);
  EXPECT_EQ(Ask("GET", "/metadata?key=a").body, "1234");
  EXPECT_EQ(Code("PUT", "a", "123"), 200);  // 9
  EXPECT_EQ(Code("PUT", "b", "12345"), 200);
  EXPECT_EQ(Code("DELETE", "b"), 200);
  EXPECT_EQ(Code("PUT", "c", "12345"), 200);
}

TEST_F(HttpMetadataServerTest, TakenPortIsAnError) {
  Open();
  const auto second = HttpMetadataServer::Open({.listen = {"127.0.0.1", server_->port()}});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_THAT(second.error().message(), HasSubstr(std::to_string(server_->port())));
}

}  // namespace
}  // namespace mooncake
