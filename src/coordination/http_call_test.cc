// HTTP answers, well-formed and hostile.
#include "coordination/http_call.h"

#include <gmock/gmock.h>

#include <future>

#include "coordination/tcp_stream.h"
#include "coordination/test_server_process.h"

namespace mooncake {
namespace {

using ::testing::HasSubstr;

Deadline Soon() {
  return Deadline::After(std::chrono::milliseconds(200));
}
Deadline Later() {
  return Deadline::After(std::chrono::seconds(60));
}

Result<HttpAnswer> Ask(uint16_t port, Deadline deadline = Later()) {
  return Call({.server = {"127.0.0.1", port}, .method = "GET", .target = "/x", .content_type = "", .body = ""},
              deadline);
}

void ExpectAnswer(const std::string& text, int code, const std::string& body) {
  const ScriptedServer server(text);
  const auto answer = Ask(server.port());
  ASSERT_TRUE(answer) << answer.error().ToString();
  EXPECT_EQ(answer->code, code);
  EXPECT_EQ(answer->body, body);
}

TEST(HttpCallTest, ReadsEveryFormOfAnswer) {
  ExpectAnswer("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", 200, "abc");
  ExpectAnswer("HTTP/1.1 200 OK\r\ncontent-length:  3 \r\n\r\nabcdef", 200, "abc");
  ExpectAnswer("HTTP/1.0 404 Not Found\r\n\r\nuntil the end", 404, "until the end");
  ExpectAnswer("HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", 200, "");
  ExpectAnswer("HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\n", 204, "");
  ExpectAnswer("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 500 Oh\r\nContent-Length: 1\r\n\r\n!", 500, "!");
  ExpectAnswer("HTTP/1.1 200 OK\nContent-Length: 1\n\nx", 200, "x");
  ExpectAnswer(
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: 1\r\n\r\n", 200,
      "abc0123456789");
  const std::string large(3 << 20, 'v');
  ExpectAnswer("HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(large.size()) + "\r\n\r\n" + large, 200, large);
}

TEST(HttpCallTest, GarbageIsAnErrorThatNamesTheServer) {
  for (const std::string text : {"",
                                 "\r\n",
                                 "220 mail ready\r\n\r\n",
                                 "HTTP/2 200 OK\r\n\r\n",
                                 "HTTP/1.1 2x0 OK\r\n\r\n",
                                 "HTTP/1.1 99 OK\r\n\r\n",
                                 "HTTP/1.1",
                                 "HTTP/1.1 200 OK",
                                 "HTTP/1.1 200 OK\r\n",
                                 "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
                                 "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
                                 "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
                                 "HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\nabc",
                                 "HTTP/1.1 200 OK\r\nContent-Length: 100663297\r\n\r\n",
                                 "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc",
                                 "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nabc",
                                 "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
                                 "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n",
                                 "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
                                 "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\nabc"}) {
    const ScriptedServer server(text);
    const auto answer = Ask(server.port());
    ASSERT_FALSE(answer) << text;
    EXPECT_EQ(answer.error().code(), ErrorCode::METADATA_ERROR);
    EXPECT_THAT(answer.error().message(), HasSubstr("127.0.0.1:" + std::to_string(server.port()) + "/x"));
  }
}

// Sends the same text until the client has gone.
ScriptedServer Endless(const std::string& start, const std::string& more) {
  return ScriptedServer([=](int fd) {
    (void)send(fd, start.data(), start.size(), MSG_NOSIGNAL);
    while (send(fd, more.data(), more.size(), MSG_NOSIGNAL) > 0) {
    }
  });
}

TEST(HttpCallTest, EndlessAnswersEnd) {
  const std::string kilobyte(1024, 'x');
  const auto line = Endless("", kilobyte);
  const auto headers = Endless("HTTP/1.1 200 OK\r\n", "Name: " + kilobyte + "\r\n");
  const auto interim = Endless("", "HTTP/1.1 100 Continue\r\n\r\n");
  const auto body = Endless("HTTP/1.1 200 OK\r\n\r\n", std::string(1 << 20, 'x'));
  const auto chunk_line = Endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", kilobyte);
  for (const ScriptedServer* server : {&line, &headers, &interim, &body, &chunk_line}) {
    const auto answer = Ask(server->port());
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code(), ErrorCode::METADATA_ERROR);
  }
}

TEST(HttpCallTest, SilentServerCostsTheDeadline) {
  const ScriptedServer server(&ScriptedServer::WaitForClose);
  const ScriptedServer half([](int fd) {
    (void)send(fd, "HTTP/1.1 200 OK\r\n", 17, MSG_NOSIGNAL);
    ScriptedServer::WaitForClose(fd);
  });
  for (const ScriptedServer* silent : {&server, &half}) {
    const auto answer = Ask(silent->port(), Soon());
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code(), ErrorCode::METADATA_ERROR);
    EXPECT_THAT(answer.error().message(), HasSubstr("the deadline passed"));
  }
}

TEST(HttpCallTest, DripOfBytesCostsTheDeadline) {
  // Always something to read, never an end: limits of time per read would not end this.
  const auto server = Endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n");
  const auto answer = Ask(server.port(), Soon());
  ASSERT_FALSE(answer);
  EXPECT_THAT(answer.error().message(), HasSubstr("the deadline passed"));
}

TEST(TcpStreamTest, BytesThatAreThereDoNotExtendTheDeadline) {
  const ScriptedServer server("ab");
  auto stream = TcpStream::Connect({"127.0.0.1", server.port()}, Later());
  ASSERT_TRUE(stream && stream->Send("?", Later()));
  char byte = 0;
  const auto first = stream->Receive({&byte, 1}, Later());
  ASSERT_TRUE(first);
  ASSERT_EQ(*first, 1u);
  EXPECT_FALSE(stream->Receive({&byte, 1}, Deadline::After({})));
}

TEST(HttpCallTest, NobodyThereIsAnError) {
  const auto answer = Ask(FreePort());
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), ErrorCode::METADATA_ERROR);
  EXPECT_THAT(answer.error().message(), HasSubstr("Connection refused"));
}

TEST(HttpCallTest, DeadlineThatHasPassedIsAnError) {
  const ScriptedServer server("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
  EXPECT_FALSE(Ask(server.port(), Deadline::After({})));
}

TEST(HttpCallTest, LongRequestToAServerThatClosesIsNoSignal) {
  const ScriptedServer server([](int) {}, ScriptedServer::Close::kAtOnce);
  const std::string body(16 << 20, 'x');
  const auto answer =
      Call({.server = {"127.0.0.1", server.port()}, .method = "PUT", .target = "/", .content_type = "t", .body = body},
           Later());
  EXPECT_FALSE(answer);
}

TEST(HttpCallTest, RefusalBeforeTheEndOfALongRequestIsHeard) {
  // The server reads no more, and keeps the connection.
  std::promise<void> heard;
  const ScriptedServer server([&](int fd) {
    const std::string refusal = "HTTP/1.1 413 Too long\r\nContent-Length: 0\r\n\r\n";
    (void)send(fd, refusal.data(), refusal.size(), MSG_NOSIGNAL);
    heard.get_future().wait();
  });
  const std::string body(64 << 20, 'x');
  const auto answer =
      Call({.server = {"127.0.0.1", server.port()}, .method = "PUT", .target = "/", .content_type = "t", .body = body},
           Later());
  heard.set_value();
  ASSERT_TRUE(answer) << answer.error().ToString();
  EXPECT_EQ(answer->code, 413);
}

TEST(HttpCallTest, EscapesWhatAUrlCannotHold) {
  EXPECT_EQ(UrlEscape("mooncake/ram/a:1 b&c=d+e%"), "mooncake%2Fram%2Fa%3A1%20b%26c%3Dd%2Be%25");
  EXPECT_EQ(UrlEscape(std::string("\0\xff", 2)), "%00%FF");
  EXPECT_EQ(UrlEscape("aZ09-._~"), "aZ09-._~");
}

}  // namespace
}  // namespace mooncake
