// Reading perftest's table.
#include "bench/perftest.h"

#include <gtest/gtest.h>

namespace mooncake::bench {
namespace {

constexpr const char* kReport =
    " CQ Moderation   : 100\n"
    " local address: LID 0000 QPN 0x0011 PSN 0x7a5bc RKey 0x000313\n"
    "---------------------------------------------------------------------------------------\n"
    " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
    " 1048576    500              10.25              8.00   \t\t   0.001205\n"
    "---------------------------------------------------------------------------------------\n";

TEST(PerftestTest, AverageOfTheRowIsTheRate) {
  const auto rate = ParsePerftest(kReport, 1 << 20);
  ASSERT_TRUE(rate) << rate.error().ToString();
  EXPECT_DOUBLE_EQ(*rate, 1.0);
}

TEST(PerftestTest, ReportWithoutTheRowIsAnErrorThatShowsIt) {
  for (const char* report :
       {"", " Couldn't connect to 127.0.0.1:18515\n", " 1048576 500\n", " 1048576 500 1.0 0.0\n"}) {
    const auto rate = ParsePerftest(report, 1 << 20);
    ASSERT_FALSE(rate) << report;
    EXPECT_NE(rate.error().message().find(report), std::string::npos);
  }
  EXPECT_FALSE(ParsePerftest(kReport, 4096));
}

}  // namespace
}  // namespace mooncake::bench
