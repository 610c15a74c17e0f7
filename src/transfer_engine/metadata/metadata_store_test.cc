// Connection strings and keys of metadata servers, and what servers must not be believed.
#include "transfer_engine/metadata/metadata_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "coordination/test_server_process.h"
#include "transfer_engine/metadata/stores.h"

namespace mooncake {
namespace {

using ::testing::HasSubstr;

Deadline Soon() {
  return Deadline::After(std::chrono::milliseconds(200));
}
Deadline Later() {
  return Deadline::After(std::chrono::seconds(60));
}

TEST(MetadataStoreTest, KnowsItsConnectionStrings) {
  for (const char* connection :
       {"http://127.0.0.1:8080/metadata", "http://[::1]:8080", "http://host/a/b?x=y", "etcd://a:1;b:2;[::1]:3",
        "etcd://a", "a:1", "10.0.0.1", "a:1;b:2", "redis://a:1", "redis://a", "redis://a:1/"}) {
    const auto store = OpenMetadataStore(connection);
    EXPECT_TRUE(store) << connection << ": " << store.error().ToString();
  }
}

TEST(MetadataStoreTest, RefusesOthersNamingThem) {
  for (const char* connection :
       {"", "ftp://a", "HTTP://a", "://a", "http://", "http://:80", "http://a:b", "http://a/b c", "http://a/\r\n",
        "etcd://", "etcd://;", "etcd://a:99999", "redis://", "redis://a:x"}) {
    const auto store = OpenMetadataStore(connection);
    ASSERT_FALSE(store) << connection;
    EXPECT_EQ(store.error().code(), ErrorCode::INVALID_PARAMS);
    EXPECT_THAT(store.error().message(), HasSubstr(connection));
  }
}

TEST(MetadataStoreTest, RefusesADatabaseThatIsNone) {
  for (const char* index : {"x", "256", "-1", "1 "}) {
    setenv("MC_REDIS_DB_INDEX", index, 1);
    const auto store = OpenMetadataStore("redis://a");
    EXPECT_FALSE(store) << index;
  }
  setenv("MC_REDIS_DB_INDEX", "255", 1);
  EXPECT_TRUE(OpenMetadataStore("redis://a"));
  unsetenv("MC_REDIS_DB_INDEX");
}

TEST(MetadataStoreTest, KeptConnectionThatDiedIsReplacedWithinTheCall) {
  const ScriptedServer server("+OK\r\n");  // and closes
  const auto store = OpenRedisMetadata({.server = {"127.0.0.1", server.port()}});
  for (int i = 0; i < 3; ++i) {
    const auto put = store->Put("key", "value", Deadline::After(std::chrono::seconds(60)));
    ASSERT_TRUE(put) << put.error().ToString();
  }
}

void PrintKeysAndExit(const char* cluster) {
  setenv("MC_METADATA_CLUSTER_ID", cluster, 1);
  std::fprintf(stderr, "%s %s\n", SegmentKey("node:1").c_str(), RpcMetaKey("node:1").c_str());
  std::_Exit(0);
}

TEST(MetadataStoreDeathTest, KeysAreThoseOfTheCluster) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(PrintKeysAndExit(""), ::testing::ExitedWithCode(0), "^mooncake/ram/node:1 mooncake/rpc_meta/node:1");
  EXPECT_EXIT(PrintKeysAndExit("c1"), ::testing::ExitedWithCode(0),
              "^mooncake/c1/ram/node:1 mooncake/c1/rpc_meta/node:1");
  EXPECT_EXIT(PrintKeysAndExit("c1/"), ::testing::ExitedWithCode(0), "^mooncake/c1/ram/node:1");
}

void ExpectAllFail(MetadataStore& store, const std::string& text) {
  const auto got = store.Get("key", Later());
  ASSERT_FALSE(got) << text;
  EXPECT_EQ(got.error().code(), ErrorCode::METADATA_ERROR);
  const auto put = store.Put("key", "value", Later());
  ASSERT_FALSE(put) << text;
  EXPECT_EQ(put.error().code(), ErrorCode::METADATA_ERROR);
  const auto removed = store.Remove("key", Later());
  ASSERT_FALSE(removed) << text;
  EXPECT_EQ(removed.error().code(), ErrorCode::METADATA_ERROR);
}

TEST(MetadataGarbageTest, HttpCodesOtherThanTheKnownAreErrors) {
  for (const std::string text : {"garbage", "HTTP/1.1 500 Oh\r\n\r\nno", "HTTP/1.1 301 Moved\r\nLocation: /\r\n\r\n"}) {
    const ScriptedServer server(text);
    ExpectAllFail(*OpenHttpMetadata({"127.0.0.1", server.port()}, "/metadata"), text);
  }
}

TEST(MetadataGarbageTest, EtcdRepliesThatAreNoneAreErrors) {
  for (const std::string body : {"", "garbage", "[]", "{}", "{\"header\":{", "1e999", "\xff"}) {
    const ScriptedServer server("HTTP/1.1 200 OK\r\n\r\n" + body);
    ExpectAllFail(*OpenEtcdMetadata({{"127.0.0.1", server.port()}}), body);
  }
  for (const std::string kvs : {"1", "[]", "[1]", "[{\"value\":1}]", "[{\"value\":\"*\"}]", "[{},{}]"}) {
    const ScriptedServer server("HTTP/1.1 200 OK\r\n\r\n{\"header\":{},\"kvs\":" + kvs + "}");
    EXPECT_FALSE(OpenEtcdMetadata({{"127.0.0.1", server.port()}})->Get("key", Later())) << kvs;
  }
}

TEST(MetadataGarbageTest, RedisRepliesThatAreNoneAreErrors) {
  for (const std::string text : {"", "garbage\r\n", "-ERR no\r\n", "*2147483647\r\n", "*1000000000\r\n", "$5\r\nab",
                                 "$-2\r\n", "$99999999999999999999\r\n", "HTTP/1.1 400 Bad\r\n\r\n"}) {
    const ScriptedServer server(text);
    ExpectAllFail(*OpenRedisMetadata({.server = {"127.0.0.1", server.port()}}), text);
  }
}

TEST(MetadataGarbageTest, SilentServersCostTheDeadline) {
  const ScriptedServer server(&ScriptedServer::WaitForClose);
  const Endpoint at{"127.0.0.1", server.port()};
  for (const auto& open :
       {std::function([&] { return OpenHttpMetadata(at, "/"); }), std::function([&] { return OpenEtcdMetadata({at}); }),
        std::function([&] { return OpenRedisMetadata({.server = at}); })}) {
    const auto got = open()->Get("key", Soon());
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code(), ErrorCode::METADATA_ERROR);
    EXPECT_THAT(got.error().message(), HasSubstr("the deadline passed"));
  }
}

}  // namespace
}  // namespace mooncake
