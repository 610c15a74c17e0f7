// Base64, there and back again.
#include "coordination/base64.h"

#include <gtest/gtest.h>

namespace mooncake {
namespace {

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
