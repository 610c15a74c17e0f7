// The DRAM tier: its limit, its blocks, and what it refuses to start with.
#include "tiered_cache/tiers/dram_tier.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <latch>
#include <random>
#include <thread>

#include "common/byte_size.h"
#include "tiered_cache/fake_npu_runtime.h"
#include "tiered_cache/tiers/huge_pages.h"

namespace mooncake {
namespace {

std::shared_ptr<DramTier> OpenTier(size_t capacity) {
  auto tier =
      DramTier::Open({.capacity = capacity, .priority = 7, .tags = {"a", "b"}, .numa_node = {}, .prefault = false});
  EXPECT_TRUE(tier) << tier.error().ToString();
  return tier ? *tier : nullptr;
}

const HostBuffer& HostOf(const DataSource& data) {
  return dynamic_cast<const HostBuffer&>(*data.buffer);
}

TEST(DramTierTest, SaysWhatItIs) {
  const auto tier = OpenTier(1 << 20);
  ASSERT_TRUE(tier);
  EXPECT_EQ(tier->info().name, "DRAM");
  EXPECT_EQ(tier->info().type, MemoryType::DRAM);
  EXPECT_EQ(tier->info().capacity, size_t{1} << 20);
  EXPECT_EQ(tier->info().priority, 7);
  EXPECT_EQ(tier->info().tags, (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(tier->info().id.IsNil());
  EXPECT_EQ(tier->usage(), 0u);
}

TEST(DramTierTest, BuffersHaveTheSizeAskedFor) {
  const auto tier = OpenTier(1 << 20);
  ASSERT_TRUE(tier);
  for (const size_t size : {1u, 63u, 64u, 65u, 4096u, 100'000u}) {
    const auto block = tier->Allocate(size);
    ASSERT_TRUE(block) << size;
    EXPECT_EQ(block->size(), size);
    EXPECT_EQ(block->type, MemoryType::DRAM);
    EXPECT_GE(tier->usage(), size);
  }
  EXPECT_EQ(tier->usage(), 0u);
}

TEST(DramTierTest, RefusesBlockOfZeroBytes) {
  const auto tier = OpenTier(1 << 20);
  ASSERT_TRUE(tier);
  const auto block = tier->Allocate(0);
  ASSERT_FALSE(block);
  EXPECT_EQ(block.error().code(), ErrorCode::INVALID_PARAMS);
}

TEST(DramTierTest, FullTierRefusesAndKeepsUsage) {
  const auto tier = OpenTier(4096);
  ASSERT_TRUE(tier);
  auto held = tier->Allocate(4096);
  ASSERT_TRUE(held);
  EXPECT_EQ(tier->usage(), 4096u);
  for (const size_t size : {size_t{1}, size_t{4096}, size_t{4097}, ~size_t{0}}) {
    const auto more = tier->Allocate(size);
    ASSERT_FALSE(more) << size;
    EXPECT_EQ(more.error().code(), ErrorCode::NO_AVAILABLE_HANDLE);
    EXPECT_EQ(more.error().vendor_code(), 0);
    EXPECT_NE(more.error().message().find(fmt::format("{} B", size)), std::string::npos) << more.error().message();
    EXPECT_NE(more.error().message().find("used 4096 of 4096 B, largest hole 0 B"), std::string::npos)
        << more.error().message();
  }
  EXPECT_EQ(tier->usage(), 4096u);
  tier->Free(std::move(*held));
  EXPECT_EQ(tier->usage(), 0u);
  EXPECT_TRUE(tier->Allocate(4096)) << "the freed space is whole again";
}

TEST(DramTierTest, LargestHoleIsWhatCanBeAllocated) {
  const auto tier = OpenTier(4096);
  ASSERT_TRUE(tier);
  EXPECT_EQ(tier->largest_hole(), 4096u);
  auto first = tier->Allocate(1024);
  const auto second = tier->Allocate(1024);
  ASSERT_TRUE(first && second);
  tier->Free(std::move(*first));
  EXPECT_EQ(tier->largest_hole(), 2048u) << "the other hole is before the second block";
  EXPECT_FALSE(tier->Allocate(2049));
  EXPECT_TRUE(tier->Allocate(tier->largest_hole()));
  EXPECT_EQ(tier->largest_block(), 4096u);
  EXPECT_EQ(tier->device_refusals(), 0u);
}

TEST(DramTierTest, FreeingANullBufferIsFine) {
  const auto tier = OpenTier(4096);
  ASSERT_TRUE(tier);
  tier->Free(DataSource{nullptr, MemoryType::DRAM});
  EXPECT_EQ(tier->usage(), 0u);
}

// Every block is filled with its own number and checked when it goes: an overlap would show as a foreign number.
TEST(DramTierTest, BlocksOfManyThreadsDoNotOverlap) {
  constexpr int kThreads = 4;
  constexpr size_t kCapacity = 256 << 10;
  const auto tier = OpenTier(kCapacity);
  ASSERT_TRUE(tier);
  std::atomic<uint64_t> wrong{0};
  std::atomic<uint64_t> over{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(static_cast<unsigned>(t + 1));
      std::vector<std::pair<DataSource, int>> mine;
      const auto give_back = [&](size_t i) {
        std::swap(mine[i], mine.back());
        const auto& [block, number] = mine.back();
        for (size_t at = 0; at < block.size(); ++at) {
          if (HostOf(block).data()[at] != static_cast<std::byte>(number)) wrong.fetch_add(1);
        }
        tier->Free(std::move(mine.back().first));
        mine.pop_back();
      };
      for (int i = 0; i < 3000; ++i) {
        auto block = tier->Allocate(random() % 3000 + 1);
        if (block) {
          const int number = (t * 61 + i) & 0xFF;
          std::memset(HostOf(*block).data(), number, block->size());
          mine.emplace_back(std::move(*block), number);
        }
        if (tier->usage() > kCapacity) over.fetch_add(1);
        if (mine.size() > 20 || (!block && !mine.empty())) give_back(random() % mine.size());
      }
      while (!mine.empty()) give_back(mine.size() - 1);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_EQ(over.load(), 0u);
  EXPECT_EQ(tier->usage(), 0u);
}

TEST(DramTierTest, BlocksLieInsideOneMapping) {
  constexpr size_t kCapacity = 64 << 10;
  const auto tier = OpenTier(kCapacity);
  ASSERT_TRUE(tier);
  std::vector<DataSource> blocks;
  std::byte* lowest = nullptr;
  std::byte* highest = nullptr;
  while (auto block = tier->Allocate(1024)) {
    std::byte* data = HostOf(*block).data();
    if (lowest == nullptr || data < lowest) lowest = data;
    if (data + 1024 > highest) highest = data + 1024;
    blocks.push_back(std::move(*block));
  }
  EXPECT_EQ(blocks.size(), kCapacity / 1024);
  EXPECT_EQ(static_cast<size_t>(highest - lowest), kCapacity);
}

TEST(DramTierTest, WholeTierCanBeMappedElsewhereAndNobodyCanShrinkIt) {
  const auto tier = OpenTier(1 << 20);
  ASSERT_TRUE(tier);
  const HostMemory shared = tier->host_memory().value();
  ASSERT_EQ(shared.bytes, size_t{1} << 20);
  auto block = tier->Allocate(5000);
  ASSERT_TRUE(block);
  std::memset(HostOf(*block).data(), 0x5A, 5000);
  void* const other = mmap(nullptr, shared.bytes, PROT_READ, MAP_SHARED, shared.memfd, 0);
  ASSERT_NE(other, MAP_FAILED);
  EXPECT_EQ(
      std::memcmp(static_cast<std::byte*>(other) + (HostOf(*block).data() - shared.base), HostOf(*block).data(), 5000),
      0);
  munmap(other, shared.bytes);
  EXPECT_NE(ftruncate(shared.memfd, 4096), 0);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(fcntl(shared.memfd, F_GET_SEALS) & F_SEAL_SHRINK, F_SEAL_SHRINK);
}

TEST(DramTierTest, RefusesCapacityAboveHostMemoryWithBothNumbers) {
  struct sysinfo host{};
  ASSERT_EQ(sysinfo(&host), 0);
  const size_t total = host.totalram * host.mem_unit;
  const auto tier =
      DramTier::Open({.capacity = total + 1, .priority = 0, .tags = {}, .numa_node = {}, .prefault = true});
  ASSERT_FALSE(tier);
  EXPECT_EQ(tier.error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_NE(tier.error().message().find(fmt::format("{} B", total + 1)), std::string::npos) << tier.error().message();
  EXPECT_NE(tier.error().message().find(FormatBytes(total)), std::string::npos) << tier.error().message();
}

TEST(DramTierTest, RefusesMissingNumaNode) {
  for (const int node : {4095, 1 << 20, -1}) {
    const auto tier =
        DramTier::Open({.capacity = 1 << 20, .priority = 0, .tags = {}, .numa_node = node, .prefault = false});
    ASSERT_FALSE(tier) << node;
    EXPECT_EQ(tier.error().code(), ErrorCode::INVALID_PARAMS);
    EXPECT_NE(tier.error().message().find(fmt::format("numa_node {}", node)), std::string::npos);
  }
}

TEST(DramTierTest, BindsToNodeZeroWhereThereIsOne) {
  const bool has_nodes = access("/sys/devices/system/node/node0", F_OK) == 0;
  const auto tier = DramTier::Open({.capacity = 1 << 20, .priority = 0, .tags = {}, .numa_node = 0, .prefault = true});
  ASSERT_EQ(tier.has_value(), has_nodes) << tier.error().ToString();
  if (!has_nodes) return;
  const auto block = (*tier)->Allocate(1 << 20);
  ASSERT_TRUE(block);
  std::memset(HostOf(*block).data(), 1, block->size());
}

long MinorFaults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// Prefaulting touches every page once, which the kernel counts; a tier destroyed at once must have touched only some.
TEST(DramTierTest, PrefaultStopsWhenTheTierDiesEarly) {
  struct sysinfo host{};
  ASSERT_EQ(sysinfo(&host), 0);
  const size_t capacity = std::min(size_t{2} << 30, host.totalram * host.mem_unit / 4);
  const long before = MinorFaults();
  {
    ASSERT_TRUE(DramTier::Open({.capacity = capacity, .priority = 0, .tags = {}, .numa_node = {}, .prefault = true}));
  }
  const long pages = static_cast<long>(capacity) / sysconf(_SC_PAGESIZE);
  EXPECT_LT(MinorFaults() - before, pages / 2);
}

// --- huge pages ---

constexpr size_t kHuge2M = size_t{2} << 20;
constexpr size_t kHuge1G = size_t{1} << 30;

DramTier::Options OnHugePages(size_t capacity, size_t page) {
  DramTier::Options options;
  options.capacity = capacity;
  options.huge_page_bytes = page;
  return options;
}

// Adds a few huge pages to the host while it lives, where this process may. The pool it leaves is the one it found.
class MoreHugePages {
 public:
  MoreHugePages() {
    const auto pool = GetHugePagePool(kHuge2M);
    if (!pool || pool->free >= 8) return;
    before_ = pool->total;
    Set(pool->total + 8);
  }
  ~MoreHugePages() {
    if (before_) Set(*before_);
  }

 private:
  static void Set(size_t count) {
    std::ofstream("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages") << count << std::flush;
  }
  std::optional<size_t> before_;
};

// The pool belongs to the host: tests that change it or count on its numbers take turns, in all processes.
class HugePageTurn {
 public:
  HugePageTurn() : fd_(open("/sys/kernel/mm/hugepages", O_RDONLY | O_CLOEXEC)) {
    if (fd_ >= 0) flock(fd_, LOCK_EX);
  }
  ~HugePageTurn() {
    if (fd_ >= 0) close(fd_);
  }

 private:
  const int fd_;
};

// "2048 kB" for a mapping on such pages.
std::string PageSizeAt(const std::byte* address) {
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      const auto at = reinterpret_cast<uintptr_t>(address);
      inside = begin <= at && at < end;
    } else if (inside && line.starts_with("KernelPageSize:")) {
      return line.substr(line.find_first_not_of(' ', line.find(':') + 1));
    }
  }
  return "not mapped";
}

// Both outcomes are checked; which of them the host allows is not this test's choice.
TEST(DramTierHugePagesTest, TierIsOnHugePagesOrSaysWhatIsMissing) {
  const HugePageTurn turn;
  const MoreHugePages more;
  auto tier = DramTier::Open(OnHugePages(2 * kHuge2M, kHuge2M));
  if (!tier) {
    const auto expected = GetHugePagePool(kHuge2M) ? ErrorCode::NO_AVAILABLE_HANDLE : ErrorCode::INVALID_PARAMS;
    EXPECT_EQ(tier.error().code(), expected) << tier.error().ToString();
    return;
  }
  (*tier)->WaitReady();
  const auto block = (*tier)->Allocate(2 * kHuge2M);
  ASSERT_TRUE(block);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(HostOf(*block).data()) % kHuge2M, 0u);
  EXPECT_EQ(PageSizeAt(HostOf(*block).data()), "2048 kB");
  std::memset(HostOf(*block).data(), 7, block->size());
}

TEST(DramTierHugePagesTest, TooFewPagesAreToldWithTheNumbersAndTheCure) {
  const HugePageTurn turn;
  for (const size_t page : {kHuge2M, kHuge1G}) {
    const auto pool = GetHugePagePool(page);
    const size_t wanted = pool ? pool->free + 1 : 1;
    const auto tier = DramTier::Open(OnHugePages(wanted * page, page));
    ASSERT_FALSE(tier);
    const std::string& message = tier.error().message();
    EXPECT_NE(message.find(fmt::format("{} B", wanted * page)), std::string::npos) << message;
    if (!pool) {
      EXPECT_NE(message.find("no huge pages of " + FormatBytes(page)), std::string::npos) << message;
      continue;
    }
    EXPECT_EQ(tier.error().code(), ErrorCode::NO_AVAILABLE_HANDLE);
    EXPECT_NE(message.find(fmt::format("needs {} pages, {} of {} are free", wanted, pool->free, pool->total)),
              std::string::npos)
        << message;
    EXPECT_NE(message.find(fmt::format("echo {} > /sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages",
                                       pool->total + 1, page / 1024)),
              std::string::npos)
        << message;
  }
}

TEST(DramTierHugePagesTest, CapacityOfPartOfAPageNamesTheNextOne) {
  const auto tier = DramTier::Open(OnHugePages(kHuge2M + 1, kHuge2M));
  ASSERT_FALSE(tier);
  EXPECT_EQ(tier.error().code(), ErrorCode::INVALID_PARAMS);
  EXPECT_NE(tier.error().message().find("the next one is 4194304 B"), std::string::npos) << tier.error().message();
  const auto strange = DramTier::Open(OnHugePages(4096, 4096));
  ASSERT_FALSE(strange);
  EXPECT_EQ(strange.error().code(), ErrorCode::INVALID_PARAMS);
}

TEST(HostMemoryTest, AvailableMemoryIsPartOfTheHosts) {
  struct sysinfo host{};
  ASSERT_EQ(sysinfo(&host), 0);
  const auto available = AvailableHostMemory();
  ASSERT_TRUE(available) << available.error().ToString();
  EXPECT_GT(*available, 0u);
  EXPECT_LE(*available, host.totalram * host.mem_unit);
}

// --- page-locking for an NPU ---

constexpr size_t kPiece = size_t{64} << 10;

class DramTierPinTest : public ::testing::Test {
 protected:
  std::shared_ptr<DramTier> Open(size_t capacity) {
    DramTier::Options options;
    options.capacity = capacity;
    options.prefault = false;
    options.pin_with = runtime_;
    options.pin_device = 1;
    options.pin_piece_bytes = kPiece;
    auto tier = DramTier::Open(options);
    EXPECT_TRUE(tier) << tier.error().ToString();
    return tier ? *tier : nullptr;
  }
  std::shared_ptr<FakeNpuRuntime> runtime_ = std::make_shared<FakeNpuRuntime>(2);
};

TEST_F(DramTierPinTest, WholeTierIsLockedInPiecesAndUnlockedInReverse) {
  std::vector<std::span<std::byte>> unlocked;
  runtime_->on_unregister = [&](std::span<std::byte> piece) {
    piece[0] = piece[piece.size() - 1] = std::byte{1};  // still mapped
    unlocked.push_back(piece);
  };
  constexpr size_t kCapacity = 3 * kPiece + 5056;
  auto tier = Open(kCapacity);
  ASSERT_TRUE(tier);
  tier->WaitReady();
  EXPECT_EQ(tier->pinned_bytes(), kCapacity);
  const auto pieces = runtime_->registered();
  ASSERT_EQ(pieces.size(), 4u);
  {
    const auto whole = tier->Allocate(kCapacity);
    ASSERT_TRUE(whole);
    std::byte* next = HostOf(*whole).data();
    for (const auto& piece : pieces) {
      EXPECT_EQ(piece.data(), next);
      EXPECT_EQ(piece.size(), &piece == &pieces.back() ? 8192 : kPiece) << "whole pages";
      next += piece.size();
    }
  }
  tier.reset();
  EXPECT_TRUE(runtime_->registered().empty());
  ASSERT_EQ(unlocked.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(unlocked[i].data(), pieces[3 - i].data());
}

TEST_F(DramTierPinTest, RuntimeWithoutTheFunctionIsToldOnceAndNothingElseChanges) {
  runtime_->Fail(FakeNpuRuntime::Call::kRegister, 0, Status(ErrorCode::NOT_IMPLEMENTED, "no such function"));
  ::testing::internal::CaptureStderr();
  const auto tier = Open(4 * kPiece);
  ASSERT_TRUE(tier);
  tier->WaitReady();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find(" I "), std::string::npos) << log;
  EXPECT_NE(log.find("NPU device 1: no such function"), std::string::npos) << log;
  EXPECT_EQ(runtime_->calls(FakeNpuRuntime::Call::kRegister), 1u);
  EXPECT_EQ(tier->pinned_bytes(), 0u);
  EXPECT_TRUE(tier->Allocate(4 * kPiece));
}

TEST_F(DramTierPinTest, FailingPieceIsToldOnceAndTheRestStaysUnlocked) {
  runtime_->Fail(FakeNpuRuntime::Call::kRegister, 3, Status(ErrorCode::INTERNAL_ERROR, "too much", 207001));
  ::testing::internal::CaptureStderr();
  const auto tier = Open(6 * kPiece);
  ASSERT_TRUE(tier);
  tier->WaitReady();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find(" W "), std::string::npos) << log;
  EXPECT_NE(log.find("128 KiB of 384 KiB are page-locked"), std::string::npos) << log;
  EXPECT_NE(log.find("too much"), std::string::npos) << log;
  EXPECT_EQ(tier->pinned_bytes(), 2 * kPiece);
  EXPECT_EQ(runtime_->calls(FakeNpuRuntime::Call::kRegister), 3u) << "not tried again";
  EXPECT_EQ(runtime_->registered().size(), 2u);
}

TEST_F(DramTierPinTest, TierThatDiesWhilePiecesAreLockedLeavesNone) {
  std::atomic<int> calls{0};
  std::latch second_piece(1);
  std::latch tier_is_dying(1);
  runtime_->on_call = [&](FakeNpuRuntime::Call call) {
    if (call != FakeNpuRuntime::Call::kRegister || calls.fetch_add(1) != 1) return;
    second_piece.count_down();
    tier_is_dying.wait();
  };
  auto tier = Open(64 * kPiece);
  ASSERT_TRUE(tier);
  second_piece.wait();
  std::thread killer([&] { tier.reset(); });
  tier_is_dying.count_down();
  killer.join();
  EXPECT_GE(calls.load(), 2);
  EXPECT_TRUE(runtime_->registered().empty());
}

TEST(DramTierTest, WithoutABackgroundThreadTheTierIsReadyAtOnce) {
  const auto tier = OpenTier(4096);
  ASSERT_TRUE(tier);
  tier->WaitReady();
  EXPECT_EQ(tier->pinned_bytes(), 0u);
}

TEST(DramTierDeathTest, DyingWithBlocksOutStopsTheProcess) {
  EXPECT_DEATH(
      {
        auto tier = DramTier::Open({.capacity = 4096, .priority = 0, .tags = {}, .numa_node = {}, .prefault = false});
        auto* leaked = new DataSource(std::move(*(*tier)->Allocate(64)));
        (*tier).reset();
        (void)leaked;
      },
      "64 B handed out");
}

}  // namespace
}  // namespace mooncake
