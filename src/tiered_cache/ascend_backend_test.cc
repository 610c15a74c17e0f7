// The backend over NPU memory and DRAM: blocks on their way between the two, and many threads at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <span>
#include <thread>

#include "device/acl/test_emulator_probe.h"
#include "tiered_cache/fake_npu_runtime.h"
#include "tiered_cache/tiered_backend.h"
#include "tiered_cache/tiers/ascend_tier.h"
#include "tiered_cache/tiers/dram_tier.h"

namespace mooncake {
namespace {

using Bytes = std::vector<std::byte>;
using Call = FakeNpuRuntime::Call;

// Sanitized builds do a tenth: they are that much slower.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kOperationsPerThread = 1'000;
#else
constexpr int kOperationsPerThread = 10'000;
#endif

constexpr size_t kKiB = size_t{1} << 10;

struct Tiers {
  std::shared_ptr<AscendCacheTier> npu;
  std::shared_ptr<AscendCacheTier> other_npu;  // null with one device
  std::shared_ptr<DramTier> dram;
  std::unique_ptr<TieredBackend> backend;

  std::vector<std::shared_ptr<CacheTier>> all() const {
    std::vector<std::shared_ptr<CacheTier>> tiers{npu, dram};
    if (other_npu) tiers.push_back(other_npu);
    return tiers;
  }
};

std::shared_ptr<AscendCacheTier> OpenNpuTier(const std::shared_ptr<NpuRuntime>& runtime, size_t bytes,
                                             int32_t device_id) {
  using Allocation = AscendCacheTier::Allocation;
  auto npu = AscendCacheTier::Open({.capacity = bytes,
                                    .priority = 100 - device_id,
                                    .tags = {},
                                    .device_id = device_id,
                                    .allocation = device_id == 0 ? Allocation::kDirect : Allocation::kSlab},
                                   runtime);
  MC_CHECK(npu, "{}", npu.error().ToString());
  return *npu;
}

// 0 bytes: no tier on a second device.
Tiers OpenTiers(const std::shared_ptr<NpuRuntime>& runtime, size_t npu_bytes, size_t dram_bytes,
                size_t other_npu_bytes = 0) {
  Tiers tiers;
  tiers.npu = OpenNpuTier(runtime, npu_bytes, 0);
  if (other_npu_bytes > 0) tiers.other_npu = OpenNpuTier(runtime, other_npu_bytes, 1);
  auto dram = DramTier::Open({.capacity = dram_bytes, .priority = 10, .tags = {}, .numa_node = {}, .prefault = false});
  MC_CHECK(dram, "{}", dram.error().ToString());
  tiers.dram = *dram;
  auto backend = TieredBackend::Open(tiers.all(), {});
  MC_CHECK(backend, "backend");
  tiers.backend = std::move(*backend);
  return tiers;
}

Result<uint64_t> Put(TieredBackend& backend, const std::string& key, const Bytes& bytes) {
  const AllocationHandle handle =
      MC_TRY(backend.Allocate(bytes.size(), std::nullopt, false, Deadline::After(std::chrono::minutes(1))));
  MC_TRY(backend.Write(DataSource::Host(bytes.data(), bytes.size()), handle));
  return backend.Commit(key, handle);
}

Result<Bytes> Read(const TieredBackend& backend, const AllocationHandle& handle) {
  Bytes bytes(handle->data.size());
  MC_TRY(backend.copier().Copy(handle->data, DataSource::Host(bytes.data(), bytes.size())));
  return bytes;
}

// --- on the fake ---

class AscendBackendTest : public ::testing::Test {
 protected:
  static constexpr size_t kBlock = 1024;
  std::shared_ptr<FakeNpuRuntime> runtime_ = std::make_shared<FakeNpuRuntime>();
  Tiers tiers_ = OpenTiers(runtime_, 2 * kBlock, 2 * kBlock);
  TieredBackend& backend_ = *tiers_.backend;
  Uuid npu() const { return tiers_.npu->info().id; }
  Uuid dram() const { return tiers_.dram->info().id; }
  Bytes Block(int number) const { return Bytes(kBlock, static_cast<std::byte>(number)); }
};

TEST_F(AscendBackendTest, OldestBlockMovesFromNpuToDramWithItsBytes) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Put(backend_, std::to_string(i), Block(i)));
  EXPECT_EQ(backend_.Get("0")->handle->tier, tiers_.dram);
  EXPECT_EQ(backend_.Get("2")->handle->tier, tiers_.npu);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Read(backend_, backend_.Get(std::to_string(i))->handle), Block(i));
  }
  EXPECT_EQ(runtime_->live_blocks(), 2u);
  EXPECT_EQ(backend_.GetDramTierId(), dram());
}

TEST_F(AscendBackendTest, DeviceOutOfMemoryPutsTheBlockInDram) {
  ASSERT_TRUE(Put(backend_, "a", Block(1)));
  runtime_->Fail(Call::kAllocate, 0, FakeNpuRuntime::OutOfMemory());
  ASSERT_TRUE(Put(backend_, "b", Block(2)));
  EXPECT_EQ(backend_.Get("a")->handle->tier, tiers_.npu);
  EXPECT_EQ(backend_.Get("b")->handle->tier, tiers_.dram);
  EXPECT_EQ(tiers_.npu->usage(), kBlock);
  EXPECT_EQ(runtime_->calls(Call::kAllocate), 2u) << "asked once";
}

TEST_F(AscendBackendTest, FailingCopyToTheDeviceLeavesNothingBehind) {
  runtime_->Fail(Call::kToDevice, 1, FakeNpuRuntime::CopyFailed());
  const auto put = Put(backend_, "a", Block(1));
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().vendor_code(), FakeNpuRuntime::kCopyFailed);
  EXPECT_FALSE(backend_.Exist("a"));
  EXPECT_EQ(tiers_.npu->usage(), 0u);
  EXPECT_EQ(runtime_->live_blocks(), 0u);
}

TEST_F(AscendBackendTest, BlockThatTheDeviceCannotReadIsDroppedWhenItHasToLeave) {
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(Put(backend_, std::to_string(i), Block(i)));
  runtime_->Fail(Call::kToHost, 1, FakeNpuRuntime::CopyFailed());
  ASSERT_TRUE(Put(backend_, "2", Block(2)));
  EXPECT_FALSE(backend_.Exist("0"));
  EXPECT_EQ(tiers_.dram->usage(), 0u);
  EXPECT_EQ(backend_.GetTierViews()[0].dropped, 1u);
}

TEST_F(AscendBackendTest, TransferBetweenTheKindsKeepsTheBytes) {
  ASSERT_TRUE(Put(backend_, "a", Block(1)));
  ASSERT_TRUE(backend_.Transfer("a", npu(), dram()));
  ASSERT_TRUE(backend_.Delete("a", npu()));
  EXPECT_EQ(runtime_->live_blocks(), 0u);
  ASSERT_TRUE(backend_.Transfer("a", dram(), npu()));
  ASSERT_TRUE(backend_.Delete("a", dram()));
  EXPECT_EQ(Read(backend_, backend_.Get("a")->handle), Block(1));
}

// Each call of a put that has to evict fails once: the device's error is the only outcome, and nothing leaks.
TEST_F(AscendBackendTest, EveryFailingDeviceCallLeavesConsistentTiers) {
  for (const Call call : {Call::kAllocate, Call::kToDevice, Call::kToHost}) {
    for (int nth = 1; nth <= 4; ++nth) {
      SCOPED_TRACE(fmt::format("call {} number {}", static_cast<int>(call), nth));
      const Status status = call == Call::kAllocate ? FakeNpuRuntime::OutOfMemory() : FakeNpuRuntime::CopyFailed();
      runtime_->Fail(call, nth, status);
      for (int i = 0; i < 6; ++i) {
        const auto put = Put(backend_, std::to_string(i), Block(i));
        if (!put) {
          EXPECT_EQ(put.error().vendor_code(), status.vendor_code()) << put.error().ToString();
        }
      }
      runtime_->Heal(call);
      backend_.ForEachKey(
          [&](const std::string& key) { EXPECT_EQ(Read(backend_, backend_.Get(key)->handle), Block(std::stoi(key))); });
      EXPECT_EQ(runtime_->used_bytes(0), tiers_.npu->usage());
      backend_.RemoveAll();
      EXPECT_EQ(tiers_.npu->usage() + tiers_.dram->usage(), 0u);
      EXPECT_EQ(runtime_->live_blocks(), 0u);
    }
  }
}

// --- many threads ---

// What is stored says which key and which put it belongs to; the rest follows from the two.
struct Stamp {
  uint32_t key;
  uint32_t put;
  uint64_t size;
};

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

void FillWords(std::span<std::byte> bytes, uint64_t seed) {
  size_t at = 0;
  for (uint64_t i = 0; at + 8 <= bytes.size(); at += 8, ++i) {
    const uint64_t word = seed + i * 0x9E3779B97F4A7C15ULL;
    std::memcpy(bytes.data() + at, &word, 8);
  }
  for (; at < bytes.size(); ++at) bytes[at] = static_cast<std::byte>(seed >> (at % 8 * 8));
}

Bytes ContentOf(uint32_t key, uint32_t put) {
  const uint64_t seed = Mix((uint64_t{key} << 32) | put);
  const size_t size = seed % 16 == 0 ? 0 : sizeof(Stamp) + seed % (64 * kKiB - sizeof(Stamp) + 1);
  Bytes bytes(size);
  if (size == 0) return bytes;
  const Stamp stamp{key, put, size};
  std::memcpy(bytes.data(), &stamp, sizeof(stamp));
  FillWords(std::span(bytes).subspan(sizeof(stamp)), seed);
  return bytes;
}

// One content as a thread saw or made it: the backend's version, the key and the number of the put (0: empty value).
struct Seen {
  uint64_t version;
  uint32_t key;
  uint32_t put;
  bool empty;
};

class Worker {
 public:
  static constexpr uint32_t kKeys = 300;

  Worker(Tiers& tiers, uint32_t number)
      : all_(tiers.all()), backend_(*tiers.backend), number_(number), random_(number + 1) {}

  void Run() {
    for (int i = 0; i < kOperationsPerThread; ++i) {
      const uint32_t key = random_() % kKeys;
      const uint32_t what = random_() % 100;
      if (what < 45) {
        GetOne(key, what);
      } else if (what < 80) {
        PutOne(key, static_cast<uint32_t>(i));
      } else if (what < 92) {
        Expect(CodeOf(backend_.Delete(Name(key))), {ErrorCode::OBJECT_NOT_FOUND});
      } else {
        Expect(CodeOf(backend_.Transfer(Name(key), Tier(what), Tier(what + 1))),
               {ErrorCode::OBJECT_NOT_FOUND, ErrorCode::TIER_NOT_FOUND, ErrorCode::NO_AVAILABLE_HANDLE,
                ErrorCode::CAS_FAILED});
      }
      for (const auto& tier : all_) {
        if (tier->usage() > tier->info().capacity) failures.push_back("usage above capacity");
      }
    }
  }

  std::vector<Seen> made;
  std::vector<Seen> read;
  std::vector<std::string> failures;

 private:
  static std::string Name(uint32_t key) { return "key/" + std::to_string(key); }
  template <typename T>
  static ErrorCode CodeOf(const Result<T>& result) {
    return result ? ErrorCode::OK : result.error().code();
  }
  Uuid Tier(uint32_t number) const { return all_[number % all_.size()]->info().id; }

  void Expect(ErrorCode code, std::initializer_list<ErrorCode> allowed) {
    if (code == ErrorCode::OK || std::find(allowed.begin(), allowed.end(), code) != allowed.end()) return;
    failures.push_back(fmt::format("unexpected {}", ErrorCodeName(code)));
  }

  void PutOne(uint32_t key, uint32_t turn) {
    const uint32_t put = turn * 16 + number_;  // unique among the threads
    const Bytes bytes = ContentOf(key, put);
    const auto version = Put(backend_, Name(key), bytes);
    if (version) {
      made.push_back({*version, key, put, bytes.empty()});
    } else {
      failures.push_back(version.error().ToString());
    }
  }

  void GetOne(uint32_t key, uint32_t what) {
    const auto view = what < 35 ? backend_.Get(Name(key)) : backend_.Get(Name(key), Tier(what));
    if (!view) return Expect(view.error().code(), {ErrorCode::OBJECT_NOT_FOUND, ErrorCode::TIER_NOT_FOUND});
    if (what % 4 == 0) (void)EnsureSum(*view->handle, backend_.copier());
    const auto bytes = Read(backend_, view->handle);
    if (!bytes) return failures.push_back(bytes.error().ToString());
    Stamp stamp{};
    if (!bytes->empty()) {
      if (bytes->size() < sizeof(stamp)) return failures.push_back("torn size");
      std::memcpy(&stamp, bytes->data(), sizeof(stamp));
      if (stamp.key != key) return failures.push_back(fmt::format("key {} got bytes of key {}", key, stamp.key));
      if (*bytes != ContentOf(key, stamp.put)) return failures.push_back(fmt::format("key {} got torn bytes", key));
    }
    read.push_back({view->version, key, stamp.put, bytes->empty()});
  }

  const std::vector<std::shared_ptr<CacheTier>> all_;
  TieredBackend& backend_;
  const uint32_t number_;
  std::minstd_rand random_;
};

// Every get must have seen exactly the content that was committed under the version it was told.
void ExpectReadsMatchCommits(const std::vector<Worker>& workers) {
  std::map<uint64_t, Seen> committed;
  for (const Worker& worker : workers) {
    for (const Seen& made : worker.made) {
      EXPECT_TRUE(committed.emplace(made.version, made).second) << "version " << made.version << " given twice";
    }
  }
  size_t compared = 0;
  size_t wrong = 0;
  for (const Worker& worker : workers) {
    for (const Seen& read : worker.read) {
      const auto made = committed.find(read.version);
      ++compared;
      const bool same = made != committed.end() && made->second.key == read.key && made->second.empty == read.empty &&
                        (read.empty || made->second.put == read.put);
      if (!same) ++wrong;
    }
  }
  EXPECT_EQ(wrong, 0u) << "of " << compared;
  EXPECT_GT(compared, workers.size() * kOperationsPerThread / 20) << "too many misses to prove anything";
}

// About 300 keys of 32 KiB on average want 9 MiB; the tiers have about 4.
void ManyThreadsMixEverything(Tiers tiers, uint32_t thread_count) {
  std::vector<Worker> workers;
  workers.reserve(thread_count);
  for (uint32_t i = 0; i < thread_count; ++i) workers.emplace_back(tiers, i);
  std::vector<std::thread> threads;
  for (Worker& worker : workers) threads.emplace_back([&worker] { worker.Run(); });
  for (auto& thread : threads) thread.join();
  for (const Worker& worker : workers) {
    EXPECT_EQ(worker.failures.size(), 0u) << "first: " << worker.failures.front();
  }
  ExpectReadsMatchCommits(workers);
  uint64_t demoted = 0;
  uint64_t dropped = 0;
  for (const TierView& view : tiers.backend->GetTierViews()) {
    demoted += view.demoted_out;
    dropped += view.dropped;
    EXPECT_EQ(view.corrupt, 0u) << view.name << " took a sound block for a damaged one";
  }
  EXPECT_GT(demoted, 0u) << "nothing had to move: this run proved nothing";
  EXPECT_GT(dropped, 0u);
  tiers.backend->RemoveAll();
  for (const TierView& view : tiers.backend->GetTierViews()) {
    EXPECT_EQ(view.usage, 0u) << view.name;
    EXPECT_EQ(view.keys, 0u) << view.name;
  }
}

TEST(TieredConcurrencyTest, EightThreadsOnFakeNpuAndDramSeeWholeObjectsAndLeaveNothing) {
  const auto runtime = std::make_shared<FakeNpuRuntime>();
  ManyThreadsMixEverything(OpenTiers(runtime, 1536 * kKiB, 2560 * kKiB), 8);
  EXPECT_EQ(runtime->live_blocks(), 0u);
  EXPECT_EQ(runtime->used_bytes(0), 0u);
}

TEST(TieredConcurrencyTest, EightThreadsOnAclAndDramSeeWholeObjectsAndLeaveNothing) {
  auto runtime = OpenNpuRuntime();
  ASSERT_TRUE(runtime) << runtime.error().ToString();
  ASSERT_TRUE(EmulatorProbe::Loaded());
  ManyThreadsMixEverything(OpenTiers(*runtime, 1536 * kKiB, 2560 * kKiB), 8);
  EXPECT_EQ(EmulatorProbe::LiveBlocks(), 0);
  EXPECT_EQ(EmulatorProbe::Stats().device_live_bytes, 0u);
}

TEST(TieredConcurrencyTest, SixteenThreadsOnTwoNpusAndDramSeeWholeObjectsAndLeaveNothing) {
  auto runtime = OpenNpuRuntime();
  ASSERT_TRUE(runtime) << runtime.error().ToString();
  ManyThreadsMixEverything(OpenTiers(*runtime, 1024 * kKiB, 2048 * kKiB, 1024 * kKiB), 16);
  EXPECT_EQ(EmulatorProbe::LiveBlocks(), 0);
}

}  // namespace
}  // namespace mooncake
