// Several processes on one emulated device.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <random>

#include "core/shared_device.h"
#include "test/process_peer.h"

namespace {

void* Alloc(size_t bytes, aclrtMemMallocPolicy policy = ACL_MEM_MALLOC_HUGE_ONLY) {
  void* ptr = nullptr;
  return aclrtMallocAlign32(&ptr, bytes, policy) == ACL_SUCCESS ? ptr : nullptr;
}

TEST(SharedDevice, ProcessesShareTheCapacity) {
  SharedDir dir;
  Knobs knobs{{"ACLEMU_DIR", dir.path()}, {"ACLEMU_HBM", "16M"}};
  Observer observer(knobs);
  EXPECT_EQ(observer.Free(), 16 * kMiB);
  Peer other(knobs, [](Link& link) {
    Start();
    void* block = Alloc(10 * kMiB);
    link.Tell(block != nullptr);
    link.Tell(Alloc(8 * kMiB) == nullptr);
    while (link.Get<char>() == 'm') link.Tell(Alloc(2 * kMiB) != nullptr);
    EXPECT_EQ(aclrtFree(block), ACL_SUCCESS);
    link.Tell(true);
    link.Get<char>();
  });
  EXPECT_TRUE(other.link().Get<bool>());
  EXPECT_TRUE(other.link().Get<bool>());
  EXPECT_EQ(observer.Free(), 6 * kMiB);
  Peer third(knobs, [](Link& link) {
    Start();
    EXPECT_EQ(FreeBytes(), 6 * kMiB);
    EXPECT_NE(Alloc(4 * kMiB), nullptr);
    void* ptr = nullptr;
    EXPECT_EQ(aclrtMallocAlign32(&ptr, 4 * kMiB, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_MEMORY_ALLOCATION);
    link.Tell(true);
    link.Get<char>();
    EXPECT_EQ(aclrtMallocAlign32(&ptr, 10 * kMiB, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    link.Tell(true);
    link.Get<char>();
  });
  EXPECT_TRUE(third.link().Get<bool>());
  other.link().Tell('m');
  EXPECT_TRUE(other.link().Get<bool>());
  other.link().Tell('m');
  EXPECT_FALSE(other.link().Get<bool>());
  other.link().Tell('f');
  EXPECT_TRUE(other.link().Get<bool>());
  third.link().Tell('g');
  EXPECT_TRUE(third.link().Get<bool>());
  EXPECT_EQ(observer.Free(), 0u);
  // The end of a process is enough, however it ends.
  third.link().Tell('e');
  EXPECT_EQ(third.Join(), 0);
  EXPECT_EQ(observer.Free(), 14 * kMiB);
  other.Kill();
  EXPECT_EQ(observer.Free(), 16 * kMiB);
}

TEST(SharedDevice, BlocksOfOneProcessAreNotThoseOfAnother) {
  SharedDir dir;
  Knobs knobs{{"ACLEMU_DIR", dir.path()}, {"ACLEMU_HBM", "16M"}};
  auto body = [](Link& link) {
    Start();
    auto mark = link.Get<uint8_t>();
    std::vector<void*> blocks;
    for (int i = 0; i < 100; ++i) blocks.push_back(Alloc(20000, ACL_MEM_MALLOC_NORMAL_ONLY));
    for (void* block : blocks) ASSERT_EQ(aclrtMemset(block, 20000, mark, 20000), ACL_SUCCESS);
    link.Tell(true);
    link.Get<uint8_t>();
    std::vector<uint8_t> out(20000);
    for (void* block : blocks) {
      ASSERT_EQ(aclrtMemcpy(out.data(), out.size(), block, out.size(), ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
      EXPECT_EQ(out, std::vector<uint8_t>(20000, mark));
    }
  };
  Peer first(knobs, body), second(knobs, body);
  first.link().Tell(uint8_t{1});
  second.link().Tell(uint8_t{2});
  EXPECT_TRUE(first.link().Get<bool>());
  EXPECT_TRUE(second.link().Get<bool>());
  first.link().Tell(uint8_t{0});
  second.link().Tell(uint8_t{0});
  EXPECT_EQ(first.Join(), 0);
  EXPECT_EQ(second.Join(), 0);
}

// Allocates, fills, checks and frees until its input ends.
void Churn(Link& link, uint32_t seed) {
  Start();
  std::mt19937 random(seed);
  std::vector<std::pair<void*, size_t>> blocks;
  for (uint32_t step = 0;; ++step) {
    size_t bytes = 1 + random() % (random() % 4 == 0 ? 3 * kMiB : 50000);
    if (void* block = Alloc(bytes, static_cast<aclrtMemMallocPolicy>(random() % 3))) blocks.emplace_back(block, bytes);
    if (blocks.size() > 12 || (step % 3 == 0 && !blocks.empty())) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      EXPECT_EQ(aclrtFree(blocks.back().first), ACL_SUCCESS);
      blocks.pop_back();
    }
    if (!link.Tell(step)) return;
  }
}

TEST(SharedDevice, KilledWhileAllocatingLeavesNothingBehind) {
  SharedDir dir;
  Knobs knobs{{"ACLEMU_DIR", dir.path()}, {"ACLEMU_HBM", "64M"}, {"ACLEMU_KEEP", "16M"}};
  Observer observer(knobs);
  uint64_t start = observer.Free();
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    Peer first(knobs, [&](Link& link) { Churn(link, random()); });
    Peer second(knobs, [&](Link& link) { Churn(link, random() + 1); });
    for (uint32_t steps = 20 + random() % 200; steps > 0; --steps) {
      first.link().Get<uint32_t>();
      second.link().Get<uint32_t>();
      if (steps % 16 == 0) observer.Free();
    }
    first.Kill();
    // The lock is whole, and the other one goes on.
    for (int steps = 0; steps < 50; ++steps) second.link().Get<uint32_t>();
    EXPECT_LE(observer.Free(), start);
    second.Kill();
    ASSERT_EQ(observer.Free(), start) << "round " << round;
  }
  // All of it can be used again.
  Peer last(knobs, [](Link&) {
    Start();
    EXPECT_NE(Alloc(64 * kMiB), nullptr);
  });
  EXPECT_EQ(last.Join(), 0);
}

aclemu::Control* MapControl(const std::string& dir) {
  int fd = open((dir + "/dev0.ctl").c_str(), O_RDWR | O_CLOEXEC);
  struct stat info{};
  EXPECT_EQ(fstat(fd, &info), 0);
  void* map = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  EXPECT_NE(map, MAP_FAILED);
  close(fd);
  return static_cast<aclemu::Control*>(map);
}

TEST(SharedDevice, DeathInsideTheLockIsRepaired) {
  SharedDir dir;
  Knobs knobs{{"ACLEMU_DIR", dir.path()}, {"ACLEMU_HBM", "16M"}};
  Observer observer(knobs);
  uint64_t start = observer.Free();
  Peer victim({}, [&](Link& link) {
    aclemu::Control* control = MapControl(dir.path());
    EXPECT_EQ(pthread_mutex_lock(&control->mutex), 0);
    // As in the middle of a split and of a claim.
    auto* tags = reinterpret_cast<std::atomic<aclemu::Tag>*>(reinterpret_cast<char*>(control) +
                                                             (sizeof(aclemu::Control) + 4095) / 4096 * 4096);
    tags[1] = aclemu::kTagSplit;
    tags[3] = 77;
    control->free_chunks = 1000;
    control->free_pages = 3;
    control->first_free = 7;
    link.Tell(true);
    link.Get<char>();
  });
  EXPECT_TRUE(victim.link().Get<bool>());
  victim.Kill();
  EXPECT_EQ(observer.Free(), start);
  Peer after(knobs, [](Link&) {
    Start();
    EXPECT_NE(Alloc(16 * kMiB), nullptr);
  });
  EXPECT_EQ(after.Join(), 0);
}

TEST(SharedDevice, AForkedChildDoesNotKeepItsParentAlive) {
  SharedDir dir;
  Knobs knobs{{"ACLEMU_DIR", dir.path()}, {"ACLEMU_HBM", "16M"}};
  Observer observer(knobs);
  Peer parent(knobs, [](Link& link) {
    Start();
    EXPECT_NE(Alloc(4 * kMiB), nullptr);
    if (fork() == 0) {
      prctl(PR_SET_PDEATHSIG, 0);
      link.Tell(getpid());  // it has let go of its parent's lock by now
      pause();
    }
    pause();
  });
  auto grandchild = parent.link().Get<pid_t>();
  EXPECT_EQ(observer.Free(), 12 * kMiB);
  parent.Kill();
  EXPECT_EQ(observer.Free(), 16 * kMiB);
  EXPECT_EQ(kill(grandchild, SIGKILL), 0);
}

// Makes as many as it is told, and tells how many it got.
void MakeStreams(Link& link) {
  Start();
  uint32_t wanted = 0;
  while (link.Hear(&wanted)) {
    uint32_t made = 0;
    aclrtStream stream = nullptr;
    aclError code = ACL_SUCCESS;
    while (made < wanted && (code = aclrtCreateStream(&stream)) == ACL_SUCCESS) ++made;
    EXPECT_TRUE(code == ACL_SUCCESS || code == ACL_ERROR_RT_NO_STREAM_RESOURCE) << code;
    link.Tell(made);
  }
}

void MakeEvents(Link& link) {
  Start();
  uint32_t wanted = 0;
  while (link.Hear(&wanted)) {
    uint32_t made = 0;
    aclrtEvent event = nullptr;
    aclError code = ACL_SUCCESS;
    while (made < wanted && (code = aclrtCreateEvent(&event)) == ACL_SUCCESS) ++made;
    EXPECT_TRUE(code == ACL_SUCCESS || code == ACL_ERROR_RT_NO_EVENT_RESOURCE) << code;
    link.Tell(made);
  }
}

uint32_t Make(Peer& peer, uint32_t count) {
  peer.link().Tell(count);
  return peer.link().Get<uint32_t>();
}

void LimitOverProcesses(const std::function<void(Link&)>& body, uint32_t limit) {
  SharedDir dir;
  Knobs knobs{{"ACLEMU_DIR", dir.path()}, {"ACLEMU_HBM", "16M"}};
  Peer first(knobs, body), second(knobs, body);
  EXPECT_EQ(Make(first, limit / 2), limit / 2);
  EXPECT_EQ(Make(second, limit), limit - limit / 2);
  EXPECT_EQ(Make(first, 1), 0u);
  first.Kill();
  EXPECT_EQ(Make(second, limit), limit / 2);
  EXPECT_EQ(second.Join(), 0);
}

TEST(SharedDevice, StreamsAreLimitedOverAllProcesses) {
  LimitOverProcesses(MakeStreams, 1984);
}

TEST(SharedDevice, EventsAreLimitedOverAllProcesses) {
  LimitOverProcesses(MakeEvents, 65536);
}

TEST(SharedDevice, AnotherCapacityIsRefusedWhileTheDeviceIsInUse) {
  SharedDir dir;
  auto start = [](Link&) {
    Start();
    void* ptr;
    aclrtMalloc(&ptr, 1, ACL_MEM_MALLOC_HUGE_FIRST);
  };
  {
    Observer observer({{"ACLEMU_DIR", dir.path()}, {"ACLEMU_HBM", "16M"}});
    EXPECT_EQ(observer.Free(), 16 * kMiB);
    EXPECT_EQ(Peer({{"ACLEMU_DIR", dir.path()}, {"ACLEMU_HBM", "32M"}}, start).Join(), 24);
    EXPECT_EQ(Peer({{"ACLEMU_DIR", dir.path()}, {"ACLEMU_HBM", "16M"}, {"ACLEMU_HBM_RESERVED", "2M"}}, start).Join(),
              24);
    EXPECT_EQ(Peer({{"ACLEMU_DIR", dir.path()}, {"ACLEMU_HBM", "16M"}}, start).Join(), 0);
  }
  // Nobody is left: a new start.
  Observer larger({{"ACLEMU_DIR", dir.path()}, {"ACLEMU_HBM", "32M"}});
  EXPECT_EQ(larger.Free(), 32 * kMiB);
}

TEST(SharedDevice, AnotherLayoutAndOtherFilesAreRefused) {
  SharedDir dir;
  Knobs knobs{{"ACLEMU_DIR", dir.path()}, {"ACLEMU_HBM", "16M"}};
  auto start = [](Link&) {
    Start();
    FreeBytes();
  };
  EXPECT_EQ(Peer(knobs, start).Join(), 0);
  aclemu::Control* control = MapControl(dir.path());
  control->layout += 1;
  EXPECT_EQ(Peer(knobs, start).Join(), 24);
  control->layout -= 1;
  EXPECT_EQ(Peer(knobs, start).Join(), 0);
  control->magic += 1;
  EXPECT_EQ(Peer(knobs, start).Join(), 24);
}

TEST(SharedDevice, FilesThatWereCutAreRefused) {
  Knobs knobs{{"ACLEMU_DIR", ""}, {"ACLEMU_HBM", "16M"}};
  auto start = [](Link&) {
    Start();
    FreeBytes();
  };
  for (const char* name : {"/dev0.ctl", "/dev0.hbm"}) {
    SharedDir dir;
    knobs[0].second = dir.path();
    EXPECT_EQ(Peer(knobs, start).Join(), 0);
    ASSERT_EQ(truncate((dir.path() + name).c_str(), 1 << 20), 0);
    EXPECT_EQ(Peer(knobs, start).Join(), 24) << name;
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Memory beyond the end of its file ends a process like that on a full file system.
TEST(SharedDeviceDeathTest, FileWithoutRoomIsExplained) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  SharedDir dir;
  EXPECT_EXIT(
      {
        setenv("ACLEMU_DIR", dir.path().c_str(), 1);
        Start();
        void* block = Alloc(4 * kMiB);
        EXPECT_EQ(truncate((dir.path() + "/dev0.hbm").c_str(), 0), 0);
        std::filesystem::remove_all(dir.path());  // of this process, which has no destructors ahead
        aclrtMemset(block, 4 * kMiB, 1, 4 * kMiB);
      },
      testing::KilledBySignal(SIGBUS), "has no room for what the devices hold");
}
#endif

TEST(SharedDevice, VisibleDevicesNameTheSameCards) {
  SharedDir dir;
  Knobs all{{"ACLEMU_DIR", dir.path()}, {"ACLEMU_HBM", "16M"}};
  Knobs second = all;
  second.emplace_back("ASCEND_RT_VISIBLE_DEVICES", "1");
  Observer zero(all, 0), one(all, 1);
  Peer peer(second, [](Link& link) {
    Start(0);
    EXPECT_NE(Alloc(4 * kMiB), nullptr);
    link.Tell(true);
    link.Get<char>();
  });
  EXPECT_TRUE(peer.link().Get<bool>());
  EXPECT_EQ(zero.Free(), 16 * kMiB);
  EXPECT_EQ(one.Free(), 12 * kMiB);
}

TEST(SharedDevice, EndedProcessesLeaveNoFilesOfTheirOwn) {
  SharedDir dir;
  Knobs knobs{{"ACLEMU_DIR", dir.path()}, {"ACLEMU_HBM", "16M"}};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Peer(knobs,
                   [](Link&) {
                     Start();
                     FreeBytes();
                   })
                  .Join(),
              0);
  }
  Observer observer(knobs);
  observer.Free();
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    files += entry.path().filename().string().starts_with("proc.");
  }
  EXPECT_EQ(files, 1);
}

}  // namespace
