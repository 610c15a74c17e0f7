// Stamps rank contents and their clock only goes forward; sums do not depend on how the bytes came.
#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "common/content_stamp.h"
#include "common/content_sum.h"

namespace mooncake {
namespace {

TEST(ContentStampTest, UpsertsRankAbovePutsThenTimeThenWriter) {
  const ContentStamp put{.hlc = 9, .writer = 9};
  const ContentStamp upsert{.hlc = 1, .writer = 1, .upserted = true};
  EXPECT_GT(upsert, put);
  EXPECT_GT((ContentStamp{.hlc = 10, .writer = 1}), put);
  EXPECT_GT((ContentStamp{.hlc = 9, .writer = 10}), put);
  EXPECT_EQ((ContentStamp{.hlc = 9, .writer = 9}), put);
  EXPECT_NE((ContentStamp{.hlc = 9, .writer = 9, .upserted = true}), put);
  EXPECT_LT(ContentStamp{}, put);
  EXPECT_TRUE(ContentStamp{}.none());
  EXPECT_FALSE(put.none());
}

TEST(ContentStampTest, WritersOfDifferentClientsDiffer) {
  EXPECT_NE(WriterOf({1, 2}), WriterOf({1, 3}));
  EXPECT_NE(WriterOf({1, 2}), WriterOf({uint64_t{1} << 40, 2}));
  EXPECT_EQ(WriterOf({7, 8}), WriterOf({7, 8}));
}

TEST(StampClockTest, FollowsTheTimeOfDayAndNeverGoesBack) {
  uint64_t now = 1000;
  StampClock clock(5, [&] { return now; });
  const ContentStamp first = clock.Next(false);
  EXPECT_EQ(first.hlc, uint64_t{1000} << 16);
  EXPECT_EQ(first.writer, 5u);
  EXPECT_FALSE(first.upserted);
  now = 900;  // somebody set the clock back
  const ContentStamp second = clock.Next(true);
  EXPECT_EQ(second.hlc, first.hlc + 1);
  EXPECT_TRUE(second.upserted);
  now = 2000;
  EXPECT_EQ(clock.Next(false).hlc, uint64_t{2000} << 16);
}

TEST(StampClockTest, IsAheadOfWhatItHasSeenUnlessThatIsAbsurd) {
  uint64_t now = 1000;
  StampClock clock(1, [&] { return now; });
  const uint64_t seen = (now + StampClock::kMaxAheadMs) << 16 | 7;
  EXPECT_TRUE(clock.Observe(seen));
  EXPECT_EQ(clock.Next(false).hlc, seen + 1);
  EXPECT_TRUE(clock.Observe(1));  // what is older changes nothing
  EXPECT_EQ(clock.Next(false).hlc, seen + 2);
  EXPECT_FALSE(clock.Observe((now + StampClock::kMaxAheadMs + 1) << 16));
  EXPECT_FALSE(clock.Observe(UINT64_MAX));
  EXPECT_EQ(clock.Next(false).hlc, seen + 3);
}

TEST(StampClockTest, ThreadsNeverGetTheSameStamp) {
  StampClock clock(1, [] { return uint64_t{1}; });
  std::vector<std::vector<uint64_t>> made(4);
  {
    std::vector<std::jthread> threads;
    for (auto& mine : made) {
      threads.emplace_back([&mine, &clock] {
        for (int i = 0; i < 5000; ++i) mine.push_back(clock.Next(false).hlc);
      });
    }
  }
  std::vector<uint64_t> all;
  for (const auto& mine : made) {
    EXPECT_TRUE(std::is_sorted(mine.begin(), mine.end()));
    all.insert(all.end(), mine.begin(), mine.end());
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
}

std::vector<std::byte> Pattern(size_t size) {
  std::vector<std::byte> bytes(size);
  uint64_t state = size + 1;
  for (auto& byte : bytes) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

TEST(ContentSumTest, IsXxh3OfSmallObjectsAndXxh3OfTheChunksSumsOfLargeOnes) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4096}, kSumChunkBytes}) {
    const auto bytes = Pattern(size);
    EXPECT_EQ(SumOf(bytes), XXH3_64bits(bytes.data(), bytes.size())) << size;
  }
  const auto bytes = Pattern(2 * kSumChunkBytes + 3);
  const uint64_t sums[] = {XXH3_64bits(bytes.data(), kSumChunkBytes),
                           XXH3_64bits(bytes.data() + kSumChunkBytes, kSumChunkBytes),
                           XXH3_64bits(bytes.data() + 2 * kSumChunkBytes, 3)};
  EXPECT_EQ(SumOf(bytes), XXH3_64bits(sums, sizeof(sums)));
}

TEST(ContentSumTest, SeesOneFlippedBitAndTheOrderOfChunks) {
  auto bytes = Pattern(2 * kSumChunkBytes);
  const uint64_t sum = SumOf(bytes);
  bytes[kSumChunkBytes + 17] ^= std::byte{1};
  EXPECT_NE(SumOf(bytes), sum);
  bytes[kSumChunkBytes + 17] ^= std::byte{1};
  std::rotate(bytes.begin(), bytes.begin() + kSumChunkBytes, bytes.end());
  EXPECT_NE(SumOf(bytes), sum);
}

TEST(SumBuilderTest, ChunksMayComeInAnyOrderFromAnyThread) {
  for (const size_t size : {size_t{0}, size_t{5}, kSumChunkBytes, 3 * kSumChunkBytes, 3 * kSumChunkBytes + 1}) {
    const auto bytes = Pattern(size);
    SumBuilder builder(size);
    {
      std::vector<std::jthread> threads;
      for (size_t i = builder.chunk_count(); i-- > 0;) {
        threads.emplace_back(
            [&, i] { builder.Add(i, std::span(bytes).subspan(i * kSumChunkBytes, builder.ChunkSize(i))); });
      }
    }
    ASSERT_TRUE(builder.complete());
    EXPECT_EQ(builder.Sum(), SumOf(bytes)) << size;
  }
}

TEST(SumBuilderTest, IsCompleteWithItsLastChunkAndTakesTheLatestOfEach) {
  const auto bytes = Pattern(kSumChunkBytes + 1);
  const std::span all(bytes);
  SumBuilder builder(bytes.size());
  EXPECT_FALSE(builder.complete());
  builder.Add(1, all.subspan(0, 1));
  builder.Add(0, all.subspan(0, kSumChunkBytes));
  EXPECT_TRUE(builder.complete());
  EXPECT_NE(builder.Sum(), SumOf(bytes));
  builder.Add(1, all.subspan(kSumChunkBytes));
  EXPECT_EQ(builder.Sum(), SumOf(bytes));
}

}  // namespace
}  // namespace mooncake
