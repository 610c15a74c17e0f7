// Messages survive the round trip, tolerate other versions and refuse hostile bytes.
#include "rpc/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>

namespace mooncake::rpc {
namespace {

struct Inner {
  int32_t number = 0;
  std::string name;
  MSGPACK_DEFINE_MAP(number, name);
  friend bool operator==(const Inner&, const Inner&) = default;
};

struct Everything {
  bool flag = false;
  int64_t negative = 0;
  uint64_t large = 0;
  double fraction = 0;
  std::string text;
  std::vector<uint8_t> binary;
  std::vector<Inner> list;
  std::map<std::string, uint64_t> table;
  std::optional<int> maybe;
  Uuid id;
  KeyDigest digest;
  std::vector<KeyDigest> digests;
  ErrorCode code = ErrorCode::OK;
  MSGPACK_DEFINE_MAP(flag, negative, large, fraction, text, binary, list, table, maybe, id, digest, digests, code);
  friend bool operator==(const Everything&, const Everything&) = default;
};

struct OldMessage {
  int kept = 1;
  MSGPACK_DEFINE_MAP(kept);
};
struct NewMessage {
  int kept = 2;
  std::string added = "default";
  std::vector<Inner> more = {{7, "seven"}};
  MSGPACK_DEFINE_MAP(kept, added, more);
};

TEST(CodecTest, EveryFieldTypeSurvivesTheRoundTrip) {
  Everything message{.flag = true,
                     .negative = INT64_MIN,
                     .large = UINT64_MAX,
                     .fraction = -0.125,
                     .text = std::string("nul\0inside", 10),
                     .binary = {0, 255, 128},
                     .list = {{1, "one"}, {-2, ""}},
                     .table = {{"a", 1}, {"", 2}},
                     .maybe = 5,
                     .id = Uuid::Random(),
                     .digest = KeyDigest::Of("key"),
                     .digests = {KeyDigest::Of("a"), KeyDigest::Of("b")},
                     .code = ErrorCode::OBJECT_NOT_FOUND};
  const auto decoded = Decode<Everything>(Encode(message));
  ASSERT_TRUE(decoded) << decoded.error().ToString();
  EXPECT_EQ(*decoded, message);
}

TEST(CodecTest, UnknownFieldsAreIgnoredAndMissingOnesKeepDefaults) {
  const auto older = Decode<OldMessage>(Encode(NewMessage{.kept = 9, .added = "x", .more = {}}));
  ASSERT_TRUE(older);
  EXPECT_EQ(older->kept, 9);
  const auto newer = Decode<NewMessage>(Encode(OldMessage{.kept = 4}));
  ASSERT_TRUE(newer);
  EXPECT_EQ(newer->kept, 4);
  EXPECT_EQ(newer->added, "default");
  EXPECT_EQ(newer->more, (std::vector<Inner>{{7, "seven"}}));
}

TEST(CodecTest, WrongTypesTruncationAndTrailingBytesAreInvalidParams) {
  const std::string good = Encode(Everything{});
  for (size_t size = 0; size < good.size(); ++size) {
    const auto decoded = Decode<Everything>(std::string_view(good).substr(0, size));
    ASSERT_FALSE(decoded);
    ASSERT_EQ(decoded.error().code(), ErrorCode::INVALID_PARAMS);
  }
  EXPECT_FALSE(Decode<Everything>(good + '\0'));
  EXPECT_FALSE(Decode<OldMessage>(Encode(std::string("text"))));
  EXPECT_FALSE(Decode<OldMessage>(Encode(std::map<std::string, std::string>{{"kept", "text"}})));
  EXPECT_FALSE(Decode<Uuid>(Encode(std::vector<uint64_t>{1, 2, 3})));
}

TEST(CodecTest, LengthFieldsThatLieAndDeepNestingAreRefusedBeforeAllocation) {
  EXPECT_FALSE(Decode<std::vector<int>>(std::string_view("\xdd\xff\xff\xff\xff", 5)));  // array of 2^32-1
  EXPECT_FALSE(Decode<OldMessage>(std::string_view("\xdf\xff\xff\xff\xff", 5)));        // map of 2^32-1
  EXPECT_FALSE(
      Decode<std::string>(std::string_view("\xdb\xff\xff\xff\xff"
                                           "abc",
                                           8)));  // string of 4 GiB
  std::string nested;
  for (int i = 0; i < 100; ++i) nested += std::string("\xdd\x00\x10\x00\x00", 5);  // arrays of 1 Mi in arrays of 1 Mi
  EXPECT_FALSE(Decode<OldMessage>(nested));
  EXPECT_FALSE(Decode<OldMessage>(std::string(100'000, '\x91')));
}

TEST(CodecTest, RandomBytesNeverEscapeAsExceptions) {
  std::mt19937 random(20240607);
  Everything message;
  message.text = "some text";
  message.list = {{1, "one"}};
  message.digests = {KeyDigest::Of("a")};
  const std::string good = Encode(message);
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = good;
    for (int flips = random() % 4 + 1; flips > 0; --flips) bytes[random() % bytes.size()] = static_cast<char>(random());
    const auto decoded = Decode<Everything>(bytes);
    ASSERT_TRUE(decoded || decoded.error().code() == ErrorCode::INVALID_PARAMS);
  }
}

}  // namespace
}  // namespace mooncake::rpc
