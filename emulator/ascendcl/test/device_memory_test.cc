// Page rules of device memory, what the system reserves, the cache of the driver, and host access.
#include <signal.h>

#include <unistd.h>

#include "test/emulator_session.h"

namespace {

struct Room {
  size_t free, total;
};

Room RoomOf(aclrtMemAttr attr) {
  Room room{};
  EXPECT_EQ(aclrtGetMemInfo(attr, &room.free, &room.total), ACL_SUCCESS);
  return room;
}

void Start() {
  ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
  ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
}

// Bytes of the device that a block costs.
uint64_t Cost(size_t bytes, aclrtMemMallocPolicy policy, bool padded = true) {
  uint64_t before = FreeBytes();
  void* ptr = nullptr;
  aclError code = padded ? aclrtMalloc(&ptr, bytes, policy) : aclrtMallocAlign32(&ptr, bytes, policy);
  EXPECT_EQ(code, ACL_SUCCESS);
  uint64_t cost = before - FreeBytes();
  aclrtPtrAttributes attributes{};
  EXPECT_EQ(aclrtPointerGetAttributes(ptr, &attributes), ACL_SUCCESS);
  EXPECT_EQ(attributes.pageSize, cost % (2 * kMiB) == 0 ? 2 * kMiB : 4096u);
  EXPECT_EQ(aclrtFree(ptr), ACL_SUCCESS);
  EXPECT_EQ(FreeBytes(), before);
  return cost;
}

TEST(PageRules, CostBySizeAndPolicy) {
  InProcess({{"ACLEMU_HBM", "4G"}, {"ACLEMU_POISON", "0"}}, [] {
    Start();
    struct Case {
      size_t bytes;
      aclrtMemMallocPolicy policy;
      uint64_t padded, plain;
    };
    constexpr uint64_t kG = 1024 * kMiB;
    const Case cases[] = {
        // The padding decides at the threshold: 1 MiB with it is above.
        {kMiB - 32, ACL_MEM_MALLOC_HUGE_FIRST, kMiB, kMiB},
        {kMiB, ACL_MEM_MALLOC_HUGE_FIRST, 2 * kMiB, kMiB},
        {kMiB + 1, ACL_MEM_MALLOC_HUGE_FIRST, 2 * kMiB, 2 * kMiB},
        {2 * kMiB - 32, ACL_MEM_MALLOC_HUGE_FIRST, 2 * kMiB, 2 * kMiB},
        {2 * kMiB, ACL_MEM_MALLOC_HUGE_FIRST, 4 * kMiB, 2 * kMiB},
        {1, ACL_MEM_MALLOC_HUGE_FIRST, 4096, 4096},
        {4064, ACL_MEM_MALLOC_HUGE_FIRST, 4096, 4096},
        {4065, ACL_MEM_MALLOC_HUGE_FIRST, 8192, 4096},
        {1, ACL_MEM_MALLOC_HUGE_ONLY, 2 * kMiB, 2 * kMiB},
        {3 * kMiB, ACL_MEM_MALLOC_NORMAL_ONLY, 3 * kMiB + 4096, 3 * kMiB},
        // Alike, as this chip has no separate memory for it.
        {2 * kMiB, ACL_MEM_MALLOC_HUGE_FIRST_P2P, 4 * kMiB, 2 * kMiB},
        {1, ACL_MEM_MALLOC_HUGE_ONLY_P2P, 2 * kMiB, 2 * kMiB},
        {3 * kMiB, ACL_MEM_MALLOC_NORMAL_ONLY_P2P, 3 * kMiB + 4096, 3 * kMiB},
        // No padding.
        {kG, ACL_MEM_MALLOC_HUGE1G_ONLY, kG, kG},
        {kG + 1, ACL_MEM_MALLOC_HUGE1G_ONLY_P2P, 2 * kG, 2 * kG},
        // Unknown: huge from 2 MiB on.
        {kMiB + 1, static_cast<aclrtMemMallocPolicy>(99), kMiB + 4096, kMiB + 4096},
        {2 * kMiB, ACL_MEM_TYPE_HIGH_BAND_WIDTH, 4 * kMiB, 2 * kMiB},
    };
    for (const Case& c : cases) {
      EXPECT_EQ(Cost(c.bytes, c.policy), c.padded) << c.bytes << " by policy " << c.policy;
      EXPECT_EQ(Cost(c.bytes, c.policy, false), c.plain) << c.bytes << " by policy " << c.policy << ", no padding";
    }
  });
}

TEST(PageRules, OnlyHugeFirstFallsBack) {
  InProcess({{"ACLEMU_HBM", "8M"}}, [] {
    Start();
    void *small = nullptr, *large = nullptr, *ptr = nullptr;
    ASSERT_EQ(aclrtMallocAlign32(&small, 4096, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
    ASSERT_EQ(aclrtMallocAlign32(&large, 6 * kMiB, ACL_MEM_MALLOC_HUGE_ONLY), ACL_SUCCESS);
    EXPECT_EQ(FreeBytes(), 2 * kMiB - 4096);
    EXPECT_EQ(aclrtMallocAlign32(&ptr, kMiB + 32, ACL_MEM_MALLOC_HUGE_ONLY), ACL_ERROR_RT_MEMORY_ALLOCATION);
    EXPECT_EQ(aclrtMallocAlign32(&ptr, kMiB + 32, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    EXPECT_EQ(aclrtFree(ptr), ACL_SUCCESS);
    EXPECT_EQ(aclrtMallocAlign32(&ptr, kMiB + 32, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
    EXPECT_EQ(aclrtFree(ptr), ACL_SUCCESS);
    // Normal blocks split huge pages when they must.
    EXPECT_EQ(aclrtFree(large), ACL_SUCCESS);
    EXPECT_EQ(aclrtMallocAlign32(&ptr, 8 * kMiB - 4096, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
    EXPECT_EQ(FreeBytes(), 0u);
  });
}

TEST(MemInfo, HugeAndNormalAddUpToTheTotal) {
  InProcess({{"ACLEMU_HBM", "16M"}, {"ACLEMU_HBM_RESERVED", "3M"}}, [] {
    Start();
    auto check = [] {
      Room all = RoomOf(ACL_HBM_MEM), huge = RoomOf(ACL_HBM_MEM_HUGE), normal = RoomOf(ACL_HBM_MEM_NORMAL);
      EXPECT_EQ(all.free, huge.free + normal.free);
      EXPECT_EQ(all.total, huge.total + normal.total);
      EXPECT_EQ(all.total, 16 * kMiB);
      return huge;
    };
    EXPECT_EQ(check().free, 12 * kMiB);  // two pages are the system's
    void *small = nullptr, *large = nullptr;
    ASSERT_EQ(aclrtMalloc(&small, 5000, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
    EXPECT_EQ(check().free, 10 * kMiB);
    EXPECT_EQ(RoomOf(ACL_MEM_NORMAL).total, 2 * kMiB);
    EXPECT_EQ(RoomOf(ACL_MEM_NORMAL).free, 2 * kMiB - 8192);
    EXPECT_EQ(aclrtMallocAlign32(&large, 12 * kMiB, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_MEMORY_ALLOCATION);
    EXPECT_EQ(aclrtMallocAlign32(&large, 10 * kMiB, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    EXPECT_EQ(check().free, 0u);
    EXPECT_EQ(RoomOf(ACL_DDR_MEM).total, 0u);
    EXPECT_EQ(RoomOf(ACL_HBM_MEM_P2P_HUGE).total, 0u);
    EXPECT_EQ(RoomOf(ACL_HBM_MEM_HUGE1G).total, 0u);
  });
}

TEST(Cache, FreeMemoryMovesInSteps) {
  InProcess({{"ACLEMU_HBM", "256M"}, {"ACLEMU_CACHE", "1"}}, [] {
    Start();
    uint64_t start = FreeBytes();
    std::vector<void*> blocks(9);
    for (void*& block : blocks) {
      ASSERT_EQ(aclrtMallocAlign32(&block, 4 * kMiB, ACL_MEM_MALLOC_HUGE_ONLY), ACL_SUCCESS);
      EXPECT_EQ(aclrtMemset(block, 4 * kMiB, 1, 4 * kMiB), ACL_SUCCESS);
      EXPECT_EQ(start - FreeBytes(), 36 * kMiB);
    }
    void *more = nullptr, *large = nullptr, *small = nullptr;
    ASSERT_EQ(aclrtMallocAlign32(&more, 4 * kMiB, ACL_MEM_MALLOC_HUGE_ONLY), ACL_SUCCESS);
    EXPECT_EQ(start - FreeBytes(), 72 * kMiB);
    // Large blocks do not use it, and each page size has its own.
    ASSERT_EQ(aclrtMallocAlign32(&large, 38 * kMiB, ACL_MEM_MALLOC_HUGE_ONLY), ACL_SUCCESS);
    EXPECT_EQ(start - FreeBytes(), 110 * kMiB);
    EXPECT_EQ(aclrtFree(large), ACL_SUCCESS);
    ASSERT_EQ(aclrtMalloc(&small, 100, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
    EXPECT_EQ(start - FreeBytes(), 108 * kMiB);
    EXPECT_EQ(aclrtFree(more), ACL_SUCCESS);
    EXPECT_EQ(start - FreeBytes(), 108 * kMiB);
    for (void* block : blocks) EXPECT_EQ(aclrtFree(block), ACL_SUCCESS);
    EXPECT_EQ(aclrtFree(small), ACL_SUCCESS);
    // Between a half and all of 36 MiB stay, of each kind.
    uint64_t kept = start - FreeBytes();
    EXPECT_GE(kept, 36 * kMiB);
    EXPECT_LE(kept, 72 * kMiB);
  });
}

TEST(Cache, AFullDeviceServesWhatIsNeeded) {
  InProcess({{"ACLEMU_HBM", "16M"}, {"ACLEMU_CACHE", "1"}}, [] {
    Start();
    std::vector<void*> blocks;
    void* ptr = nullptr;
    while (aclrtMallocAlign32(&ptr, 2 * kMiB, ACL_MEM_MALLOC_HUGE_ONLY) == ACL_SUCCESS) blocks.push_back(ptr);
    EXPECT_EQ(blocks.size(), 8u);
    for (void* block : blocks) EXPECT_EQ(aclrtFree(block), ACL_SUCCESS);
    EXPECT_EQ(aclrtMallocAlign32(&ptr, 16 * kMiB, ACL_MEM_MALLOC_HUGE_ONLY), ACL_SUCCESS);
  });
}

TEST(Config, MoreReservedThanThereIsIsRefused) {
  InProcess({{"ACLEMU_HBM", "16M"}, {"ACLEMU_HBM_RESERVED", "17M"}}, [] { Start(); }, 24, "ACLEMU_HBM_RESERVED");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr const char* kTold = "host access to device 0, block of 65536 B at offset 100 ";
#else
constexpr const char* kTold = "";  // the sanitizer reports it
#endif

void Touch(const Session& acl) {
  *static_cast<volatile uint8_t*>(acl.dev(100)) = 1;
}

TEST(HostAccessDeathTest, IsExplained) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Session acl;
        Touch(acl);
      },
      kTold);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(HostAccessDeathTest, StillEndsTheProcessBySegv) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        Session acl;
        EXPECT_EQ(aclrtFree(acl.device), ACL_SUCCESS);
        Touch(acl);
      },
      testing::KilledBySignal(SIGSEGV), "host access to a device address where no live block is");
  EXPECT_EXIT(
      {
        Session acl;
        volatile uintptr_t nowhere = 8;
        *reinterpret_cast<volatile uint8_t*>(nowhere) = 1;
      },
      testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(
      {
        Session acl;
        raise(SIGSEGV);
      },
      testing::KilledBySignal(SIGSEGV), "");
}

TEST(HostAccessDeathTest, TheProgramsOwnHandlerStays) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        signal(SIGSEGV, [](int) { _exit(42); });
        Session acl;
        Touch(acl);
      },
      testing::ExitedWithCode(42), "");
}

TEST(HostAccessDeathTest, CanBeSwitchedOff) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("ACLEMU_SEGV", "0", 1);
        Session acl;
        struct sigaction now{};
        EXPECT_EQ(sigaction(SIGSEGV, nullptr, &now), 0);
        _exit(now.sa_handler == SIG_DFL ? 7 : 8);
      },
      testing::ExitedWithCode(7), "");
}
#endif

}  // namespace
