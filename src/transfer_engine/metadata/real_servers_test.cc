// Every kind of metadata store against a real server of its kind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "coordination/test_server_process.h"
#include "transfer_engine/metadata/http_metadata_server.h"
#include "transfer_engine/metadata/stores.h"

namespace mooncake {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

Deadline Soon() {
  return Deadline::After(std::chrono::seconds(60));
}

// A server on loopback that can be killed and started again on its port.
class Server {
 public:
  virtual ~Server() = default;
  // False when the port has been taken meanwhile.
  virtual bool Start(uint16_t port) = 0;
  virtual void Kill() = 0;
  virtual std::unique_ptr<MetadataStore> Connect() = 0;
};

class OwnServer final : public Server {
 public:
  bool Start(uint16_t port) override {
    auto server = HttpMetadataServer::Open({.listen = {"127.0.0.1", port}});
    if (!server) return false;
    server_ = std::move(*server);
    port_ = port;
    return true;
  }
  void Kill() override { server_.reset(); }
  std::unique_ptr<MetadataStore> Connect() override { return OpenHttpMetadata({"127.0.0.1", port_}, "/metadata"); }

 private:
  uint16_t port_ = 0;
  std::unique_ptr<HttpMetadataServer> server_;
};

class RedisServer final : public Server {
 public:
  explicit RedisServer(std::vector<std::string> options = {}) : options_(std::move(options)) {}
  bool Start(uint16_t port) override {
    std::vector<std::string> command{TestServersFolder() + "/usr/bin/redis-server",
                                     "--bind",
                                     "127.0.0.1",
                                     "--port",
                                     std::to_string(port),
                                     "--save",
                                     "",
                                     "--daemonize",
                                     "no",
                                     "--dir",
                                     folder_.path()};
    command.insert(command.end(), options_.begin(), options_.end());
    process_.emplace(command, "Ready to accept connections");
    port_ = port;
    return process_->started();
  }
  void Kill() override { process_->Kill(); }
  std::unique_ptr<MetadataStore> Connect() override { return Connect({}); }
  std::unique_ptr<MetadataStore> Connect(RedisOptions options) const {
    options.server = {"127.0.0.1", port_};
    return OpenRedisMetadata(std::move(options));
  }

 private:
  const std::vector<std::string> options_;
  TestFolder folder_;
  uint16_t port_ = 0;
  std::optional<ServerProcess> process_;
};

class EtcdServer final : public Server {
 public:
  bool Start(uint16_t port) override { return process_.Start(port); }
  void Kill() override { process_.Kill(); }
  std::unique_ptr<MetadataStore> Connect() override { return OpenEtcdMetadata({process_.endpoint()}); }
  uint16_t port() const { return process_.endpoint().port; }

 private:
  EtcdProcess process_;
};

// On a free port; null, with a failed test, when it does not start.
template <typename T, typename... Args>
std::unique_ptr<T> Started(Args&&... args) {
  constexpr int kAttempts = 5;
  for (int i = 0; i < kAttempts; ++i) {
    auto server = std::make_unique<T>(args...);
    if (server->Start(FreePort())) return server;
  }
  ADD_FAILURE() << "the server does not start";
  return nullptr;
}

class RealServerTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() != "Http") SKIP_WITHOUT_SERVERS();
    if (GetParam() == "Http") server_ = Started<OwnServer>();
    if (GetParam() == "Redis") server_ = Started<RedisServer>();
    if (GetParam() == "Etcd") server_ = Started<EtcdServer>();
    ASSERT_NE(server_, nullptr);
    store_ = server_->Connect();
  }

  void Put(const std::string& key, const std::string& value) const {
    const auto put = store_->Put(key, value, Soon());
    EXPECT_TRUE(put) << put.error().ToString();
  }
  std::optional<std::string> Get(const std::string& key) const {
    auto got = store_->Get(key, Soon());
    EXPECT_TRUE(got) << got.error().ToString();
    return got ? std::move(*got) : std::nullopt;
  }
  void Remove(const std::string& key) const {
    const auto removed = store_->Remove(key, Soon());
    EXPECT_TRUE(removed) << removed.error().ToString();
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<MetadataStore> store_;
};

TEST_P(RealServerTest, GetsWhatWasPutUntilItIsRemoved) {
  EXPECT_EQ(Get("mooncake/ram/a:1"), std::nullopt);
  Put("mooncake/ram/a:1", "one");
  EXPECT_THAT(Get("mooncake/ram/a:1"), Optional(std::string("one")));
  EXPECT_EQ(Get("mooncake/ram/a"), std::nullopt);
  EXPECT_EQ(Get("mooncake/ram/a:12"), std::nullopt);
  Put("mooncake/ram/a:1", "two");
  EXPECT_THAT(Get("mooncake/ram/a:1"), Optional(std::string("two")));
  Remove("mooncake/ram/a:1");
  EXPECT_EQ(Get("mooncake/ram/a:1"), std::nullopt);
  Remove("mooncake/ram/a:1");
}

TEST_P(RealServerTest, AnyBytesSurvive) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  const std::string key = "key \"/?&=%+;\r\n\xc3\xa9" + bytes;
  Put(key, bytes);
  EXPECT_THAT(Get(key), Optional(bytes));
  Put(key, "");
  EXPECT_THAT(Get(key), Optional(std::string()));
  Remove(key);
  EXPECT_EQ(Get(key), std::nullopt);
}

TEST_P(RealServerTest, MegabyteSurvives) {
  std::string value(1 << 20, '\0');
  for (size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 2654435761u >> 13);
  Put("large", value);
  EXPECT_THAT(Get("large"), Optional(value));
}

TEST_P(RealServerTest, ManyThreadsUseOneStore) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 20; ++i) {
        const std::string key = "key" + std::to_string(t), value = std::to_string(t * 100 + i);
        Put(key, value);
        EXPECT_THAT(Get(key), Optional(value));
      }
      Remove("key" + std::to_string(t));
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_P(RealServerTest, DeadServerIsAnErrorThatNamesIt) {
  Put("key", "before");
  // Several connections may be kept; all of them die.
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back([this] { Get("key"); });
  for (auto& thread : threads) thread.join();
  server_->Kill();
  const auto got = store_->Get("key", Deadline::After(std::chrono::seconds(2)));
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code(), ErrorCode::METADATA_ERROR);
  EXPECT_THAT(got.error().message(), HasSubstr("127.0.0.1"));
  EXPECT_FALSE(store_->Put("key", "lost", Deadline::After(std::chrono::seconds(2))));
  EXPECT_FALSE(store_->Remove("key", Deadline::After(std::chrono::seconds(2))));
}

INSTANTIATE_TEST_SUITE_P(Kinds, RealServerTest, ::testing::Values("Http", "Redis", "Etcd"),
                         [](const auto& kind) { return kind.param; });

// A server that is killed and started again on its port between two calls: the second call works the first time.
template <typename T>
void ExpectRestartGoesUnnoticed() {
  const uint16_t port = FreePort();
  T server;
  ASSERT_TRUE(server.Start(port));
  const auto store = server.Connect();
  ASSERT_TRUE(store->Put("key", "before", Soon()));
  for (int i = 0; i < 2; ++i) {
    server.Kill();
    ASSERT_TRUE(server.Start(port));
    const auto put = store->Put("key", "after", Soon());
    ASSERT_TRUE(put) << put.error().ToString();
    const auto got = store->Get("key", Soon());
    ASSERT_TRUE(got) << got.error().ToString();
    EXPECT_THAT(*got, Optional(std::string("after")));
  }
}

TEST(RestartTest, OfHttpGoesUnnoticed) {
  ExpectRestartGoesUnnoticed<OwnServer>();
}
TEST(RestartTest, OfRedisGoesUnnoticed) {
  SKIP_WITHOUT_SERVERS();
  ExpectRestartGoesUnnoticed<RedisServer>();
}
TEST(RestartTest, OfEtcdGoesUnnoticed) {
  SKIP_WITHOUT_SERVERS();
  ExpectRestartGoesUnnoticed<EtcdServer>();
}

TEST(RedisServerTest, PasswordIsNeededAndChecked) {
  SKIP_WITHOUT_SERVERS();
  const auto server = Started<RedisServer>(std::vector<std::string>{"--requirepass", "right one"});
  ASSERT_NE(server, nullptr);
  EXPECT_TRUE(server->Connect({.password = "right one"})->Put("key", "value", Soon()));
  EXPECT_TRUE(server->Connect({.username = "default", .password = "right one"})->Put("key", "value", Soon()));
  const auto wrong = server->Connect({.password = "wrong"})->Get("key", Soon());
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code(), ErrorCode::METADATA_ERROR);
  EXPECT_THAT(wrong.error().message(), HasSubstr("WRONGPASS"));
  EXPECT_THAT(wrong.error().message(), ::testing::Not(HasSubstr("wrong\"")));
  const auto stranger = server->Connect({.username = "nobody", .password = "right one"})->Get("key", Soon());
  ASSERT_FALSE(stranger);
  EXPECT_THAT(stranger.error().message(), HasSubstr("WRONGPASS"));
  const auto none = server->Connect()->Get("key", Soon());
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message(), HasSubstr("NOAUTH"));
}

TEST(RedisServerTest, DatabasesAreApart) {
  SKIP_WITHOUT_SERVERS();
  const auto server = Started<RedisServer>();
  ASSERT_NE(server, nullptr);
  const auto third = server->Connect({.database = 3});
  ASSERT_TRUE(third->Put("key", "value", Soon()));
  EXPECT_THAT(*third->Get("key", Soon()), Optional(std::string("value")));
  EXPECT_EQ(*server->Connect()->Get("key", Soon()), std::nullopt);
  const auto beyond = server->Connect({.database = 200})->Get("key", Soon());
  ASSERT_FALSE(beyond);
  EXPECT_THAT(beyond.error().message(), HasSubstr("SELECT"));
}

TEST(RedisServerTest, RefusalIsAnErrorWithItsReason) {
  SKIP_WITHOUT_SERVERS();
  // As small a memory as Redis takes: a value that does not fit is refused with its reason.
  const auto server = Started<RedisServer>(std::vector<std::string>{"--maxmemory", "1mb"});
  ASSERT_NE(server, nullptr);
  const auto store = server->Connect();
  Result<void> put;
  for (int i = 0; i < 8 && put; ++i) put = store->Put("key" + std::to_string(i), std::string(1 << 20, 'x'), Soon());
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code(), ErrorCode::METADATA_ERROR);
  EXPECT_THAT(put.error().message(), HasSubstr("OOM"));
}

TEST(EtcdServerTest, MembersThatAreDownOrSilentAreLeftOut) {
  SKIP_WITHOUT_SERVERS();
  const auto server = Started<EtcdServer>();
  ASSERT_NE(server, nullptr);
  const ScriptedServer garbage("HTTP/1.1 503 Unavailable\r\n\r\nno leader");
  const auto store =
      OpenEtcdMetadata({{"127.0.0.1", FreePort()}, {"127.0.0.1", garbage.port()}, {"127.0.0.1", server->port()}});
  for (int i = 0; i < 2; ++i) {
    const auto put = store->Put("key", "value", Soon());
    ASSERT_TRUE(put) << put.error().ToString();
  }
  const ScriptedServer silent(&ScriptedServer::WaitForClose);
  const auto got = OpenEtcdMetadata({{"127.0.0.1", silent.port()}, {"127.0.0.1", server->port()}})
                       ->Get("key", Deadline::After(std::chrono::seconds(6)));
  ASSERT_TRUE(got) << got.error().ToString();
  EXPECT_THAT(*got, Optional(std::string("value")));
}

TEST(EtcdServerTest, ValueBeyondItsLimitIsRefusedWithItsReason) {
  SKIP_WITHOUT_SERVERS();
  const auto server = Started<EtcdServer>();
  ASSERT_NE(server, nullptr);
  const auto put = server->Connect()->Put("key", std::string(4 << 20, 'x'), Soon());
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code(), ErrorCode::METADATA_ERROR);
  EXPECT_THAT(put.error().message(), HasSubstr("larger than max"));
}

}  // namespace
}  // namespace mooncake
