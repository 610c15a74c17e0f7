// Connection strings, keys, base64.
#include "transfer_engine/metadata/metadata_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "transfer_engine/metadata/base64.h"
#include "transfer_engine/metadata/stores.h"
#include "transfer_engine/metadata/test_server_process.h"

namespace mooncake {
namespace {

using ::testing::HasSubstr;

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

TEST(Base64Test, RoundTripsEveryLengthAndByte) {
  std::string bytes;
  for (int i = 0; i < 300; ++i) {
    const auto decoded = FromBase64(Base64(bytes));
    ASSERT_TRUE(decoded);
    ASSERT_EQ(*decoded, bytes);
    bytes += static_cast<char>(i * 7);
  }
}

TEST(Base64Test, IsTheUsualOne) {
  EXPECT_EQ(Base64(""), "");
  EXPECT_EQ(Base64("f"), "Zg==");
  EXPECT_EQ(Base64("fo"), "Zm8=");
  EXPECT_EQ(Base64("foo"), "Zm9v");
  EXPECT_EQ(Base64("\xff\xfe\xfd"), "//79");
}

TEST(Base64Test, RefusesWhatItDoesNotMake) {
  for (const char* text : {"Z", "Zg", "Zg=", "Z===", "====", "Zh==", "Zm9=", "Zg==Zg==", "Zm 9v", "Zm9*", "=m9v"}) {
    EXPECT_FALSE(FromBase64(text)) << text;
  }
}

}  // namespace
}  // namespace mooncake
