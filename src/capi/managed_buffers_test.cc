// Managed buffers over a source that counts: classes, growth, limits, wrong frees.
#include "capi/managed_buffers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace mooncake {
namespace {

using testing::HasSubstr;

constexpr size_t kKiB = 1 << 10;
constexpr size_t kMiB = 1 << 20;
constexpr size_t kArena = 256 * kMiB;

// Address space that is never touched unless a test does.
class CountingSource {
 public:
  ~CountingSource() { EXPECT_EQ(taken_.size(), 0U) << "memory was not given back"; }

  ManagedBuffers::Source Get() {
    return {[this](size_t bytes) { return Allocate(bytes); }, [this](void* address) { return Free(address); }};
  }
  size_t count() {
    const std::lock_guard lock(mutex_);
    return taken_.size();
  }
  size_t allocations() {
    const std::lock_guard lock(mutex_);
    return allocations_;
  }
  bool refuse = false;

 private:
  Result<void*> Allocate(size_t bytes) {
    if (refuse) return Error(ErrorCode::INTERNAL_ERROR, "no memory");
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    const std::lock_guard lock(mutex_);
    taken_[memory] = bytes;
    ++allocations_;
    return memory;
  }
  Result<void> Free(void* address) {
    const std::lock_guard lock(mutex_);
    const auto found = taken_.find(address);
    if (found == taken_.end()) return Error(ErrorCode::INVALID_PARAMS, "unknown memory");
    munmap(address, found->second);
    taken_.erase(found);
    return {};
  }

  std::mutex mutex_;
  std::map<void*, size_t> taken_;
  size_t allocations_ = 0;
};

TEST(ManagedBuffersTest, SmallBuffersShareOneArena) {
  CountingSource source;
  ManagedBuffers buffers(source.Get());
  std::vector<std::pair<void*, size_t>> taken;
  for (const size_t bytes : {size_t{1}, 8 * kKiB, 8 * kKiB + 1, 100 * kKiB, kMiB, 64 * kMiB}) {
    const auto buffer = buffers.Allocate(bytes);
    ASSERT_TRUE(buffer) << buffer.error().ToString();
    std::memset(*buffer, 7, bytes);
    taken.emplace_back(*buffer, bytes);
  }
  EXPECT_EQ(source.allocations(), 1U);
  EXPECT_EQ(buffers.held_bytes(), kArena);
  EXPECT_EQ(buffers.lent_bytes(), (8 + 8 + 16 + 128) * kKiB + 65 * kMiB);
  for (const auto& [address, bytes] : taken) EXPECT_TRUE(buffers.Free(address, bytes));
  EXPECT_EQ(buffers.lent_bytes(), 0U);
}

TEST(ManagedBuffersTest, EveryClassIsAlignedToItself) {
  CountingSource source;
  ManagedBuffers buffers(source.Get());
  const auto base = buffers.Allocate(ManagedBuffers::kLargestClass);
  ASSERT_TRUE(base);
  ASSERT_TRUE(buffers.Free(*base, ManagedBuffers::kLargestClass));
  for (size_t bytes = ManagedBuffers::kSmallestClass; bytes <= ManagedBuffers::kLargestClass / 2; bytes *= 2) {
    const auto buffer = buffers.Allocate(bytes);
    ASSERT_TRUE(buffer);
    EXPECT_EQ((static_cast<char*>(*buffer) - static_cast<char*>(*base)) % static_cast<ptrdiff_t>(bytes), 0);
  }
}

TEST(ManagedBuffersTest, FreedBuffersJoinToTheLargestAgain) {
  CountingSource source;
  ManagedBuffers buffers(source.Get(), {.max_bytes = kArena});
  std::vector<void*> taken;
  for (;;) {
    const auto buffer = buffers.Allocate(4 * kMiB);
    if (!buffer) {
      EXPECT_EQ(buffer.error().code(), ErrorCode::NO_AVAILABLE_HANDLE);
      EXPECT_THAT(buffer.error().message(), HasSubstr("256"));
      break;
    }
    taken.push_back(*buffer);
  }
  EXPECT_EQ(taken.size(), 64U);
  std::shuffle(taken.begin(), taken.end(), std::mt19937(1));
  for (void* address : taken) ASSERT_TRUE(buffers.Free(address, 4 * kMiB));
  const auto whole = buffers.Allocate(ManagedBuffers::kLargestClass);
  ASSERT_TRUE(whole) << whole.error().ToString();
  EXPECT_EQ(source.allocations(), 1U);
}

TEST(ManagedBuffersTest, WrongFreesChangeNothing) {
  CountingSource source;
  ManagedBuffers buffers(source.Get());
  const auto buffer = buffers.Allocate(64 * kKiB);
  ASSERT_TRUE(buffer);
  char* const at = static_cast<char*>(*buffer);
  int local = 0;
  for (const auto& [address, bytes] : std::vector<std::pair<void*, size_t>>{
           {nullptr, 1}, {&local, 64 * kKiB}, {at + 8 * kKiB, 8 * kKiB}, {at, 0}, {at, 128 * kKiB}, {at, SIZE_MAX}}) {
    const auto freed = buffers.Free(address, bytes);
    ASSERT_FALSE(freed);
    EXPECT_EQ(freed.error().code(), ErrorCode::INVALID_PARAMS);
  }
  EXPECT_EQ(buffers.lent_bytes(), 64 * kKiB);
  EXPECT_TRUE(buffers.Free(at, 40 * kKiB)) << "a size of the same class";
  EXPECT_FALSE(buffers.Free(at, 64 * kKiB)) << "twice";
  EXPECT_EQ(buffers.lent_bytes(), 0U);
}

TEST(ManagedBuffersTest, LargeBuffersHaveMemoryOfTheirOwn) {
  CountingSource source;
  ManagedBuffers buffers(source.Get(), {.max_bytes = 300 * kMiB});
  const auto buffer = buffers.Allocate(kArena + 1);
  ASSERT_TRUE(buffer);
  EXPECT_EQ(buffers.held_bytes(), kArena + 1);
  EXPECT_EQ(buffers.Allocate(kArena + 1).error().code(), ErrorCode::NO_AVAILABLE_HANDLE);
  EXPECT_EQ(buffers.Allocate(1).error().code(), ErrorCode::NO_AVAILABLE_HANDLE) << "an arena would exceed the limit";
  EXPECT_FALSE(buffers.Free(*buffer, kArena + 2));
  EXPECT_TRUE(buffers.Free(*buffer, kArena + 1));
  EXPECT_EQ(source.count(), 0U);
  EXPECT_EQ(buffers.held_bytes(), 0U);
}

TEST(ManagedBuffersTest, OneEmptyArenaIsKeptAndTheOthersGoBack) {
  CountingSource source;
  ManagedBuffers buffers(source.Get());
  std::vector<void*> taken;
  for (int i = 0; i < 3; ++i) taken.push_back(*buffers.Allocate(ManagedBuffers::kLargestClass));
  EXPECT_EQ(source.count(), 3U);
  for (void* address : taken) EXPECT_TRUE(buffers.Free(address, ManagedBuffers::kLargestClass));
  EXPECT_EQ(source.count(), 1U);
  EXPECT_EQ(buffers.held_bytes(), kArena);
  ASSERT_TRUE(buffers.Allocate(1));
  EXPECT_EQ(source.allocations(), 3U);
}

TEST(ManagedBuffersTest, ArenaInUseIsKeptBesideAnEmptyOne) {
  CountingSource source;
  ManagedBuffers buffers(source.Get());
  void* const whole = *buffers.Allocate(ManagedBuffers::kLargestClass);
  void* const half = *buffers.Allocate(ManagedBuffers::kLargestClass / 2);
  void* const other_half = *buffers.Allocate(ManagedBuffers::kLargestClass / 2);
  EXPECT_TRUE(buffers.Free(whole, ManagedBuffers::kLargestClass));
  EXPECT_TRUE(buffers.Free(half, ManagedBuffers::kLargestClass / 2));
  EXPECT_EQ(source.count(), 2U);
  std::memset(other_half, 1, 4096);
  EXPECT_TRUE(buffers.Free(other_half, ManagedBuffers::kLargestClass / 2));
  EXPECT_EQ(source.count(), 1U);
}

TEST(ManagedBuffersTest, RefusalOfTheSourceIsTheAnswerAndCountsNothing) {
  CountingSource source;
  ManagedBuffers buffers(source.Get());
  source.refuse = true;
  EXPECT_EQ(buffers.Allocate(1).error().message(), "no memory");
  EXPECT_EQ(buffers.Allocate(kArena + 1).error().message(), "no memory");
  EXPECT_EQ(buffers.held_bytes(), 0U);
  source.refuse = false;
  EXPECT_TRUE(buffers.Allocate(1));
  EXPECT_EQ(buffers.Allocate(0).error().code(), ErrorCode::INVALID_PARAMS);
}

TEST(ManagedBuffersTest, ThreadsNeverShareBytes) {
  CountingSource source;
  ManagedBuffers buffers(source.Get());
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      std::vector<std::pair<unsigned char*, size_t>> mine;
      const auto mark = static_cast<unsigned char>(seed + 1);
      for (int step = 0; step < 2000; ++step) {
        if (mine.size() < 16 && random() % 2 == 0) {
          const size_t bytes = 1 + random() % (kMiB / 2);
          auto* const at = static_cast<unsigned char*>(*buffers.Allocate(bytes));
          at[0] = at[bytes - 1] = mark;
          mine.emplace_back(at, bytes);
        } else if (!mine.empty()) {
          const auto [at, bytes] = mine.back();
          mine.pop_back();
          ASSERT_EQ(at[0], mark);
          ASSERT_EQ(at[bytes - 1], mark);
          ASSERT_TRUE(buffers.Free(at, bytes));
        }
      }
      for (const auto& [at, bytes] : mine) ASSERT_TRUE(buffers.Free(at, bytes));
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(buffers.lent_bytes(), 0U);
  EXPECT_EQ(source.allocations(), 1U);
}

}  // namespace
}  // namespace mooncake
