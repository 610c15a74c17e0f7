// Every ACL function the tiers and copies use fails once, at its first, second and last call, and every kind of copy
// while it runs: the caller sees the runtime's number, nothing leaks, the other tiers go on.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "device/acl/acl_abi.h"
#include "device/acl/test_emulator_probe.h"
#include "tiered_cache/test_backend_fixture.h"
#include "tiered_cache/tiers/ascend_tier.h"
#include "tiered_cache/tiers/dram_tier.h"

namespace mooncake {
namespace {

constexpr size_t kKiB = size_t{1} << 10;
constexpr size_t kMiB = size_t{1} << 20;

// One life of a store with two NPU tiers and a DRAM tier, in which each step may fail.
class Life {
 public:
  explicit Life(std::optional<int> expected_code) : expected_code_(expected_code) {}

  void Run() {
    OpenTiers();
    if (tiers_.empty()) return;  // DRAM always opens
    auto backend = TieredBackend::Open(tiers_, {});
    ASSERT_TRUE(backend) << backend.error().ToString();
    backend_ = std::move(*backend);
    PutAndReadBack();
    MoveEverywhere();
    SmallBatch();
    EXPECT_TRUE(PutAndGetOn(*dram_)) << "the other tiers are still served";
    backend_->RemoveAll();
    for (const auto& tier : tiers_) EXPECT_EQ(tier->usage(), 0u) << tier->info().name;
    backend_.reset();
    tiers_.clear();
    dram_.reset();
    runtime_.reset();
  }
  int failures() const { return failures_; }

 private:
  // Counts a failure, which must carry the number that was injected.
  template <typename T>
  bool Worked(const Result<T>& result) {
    if (result) return true;
    ++failures_;
    if (expected_code_) {
      EXPECT_EQ(result.error().vendor_code(), *expected_code_) << result.error().ToString();
      EXPECT_NE(result.error().message().find(std::to_string(*expected_code_)), std::string::npos)
          << result.error().ToString();
    } else {
      ADD_FAILURE() << "nothing was injected, yet: " << result.error().ToString();
    }
    return false;
  }

  void OpenTiers() {
    auto runtime = OpenNpuRuntime();
    if (Worked(runtime)) runtime_ = std::move(*runtime);
    using Allocation = AscendCacheTier::Allocation;
    for (const int32_t device : {0, 1}) {
      if (runtime_ == nullptr) break;
      auto tier = AscendCacheTier::Open({.capacity = 16 * kMiB,
                                         .priority = 100 - device,
                                         .device_id = device,
                                         .allocation = device == 0 ? Allocation::kSlab : Allocation::kDirect},
                                        runtime_);
      if (Worked(tier)) tiers_.push_back(std::move(*tier));
    }
    DramTier::Options options;
    options.capacity = 32 * kMiB;
    options.priority = 1;
    options.pin_with = runtime_;
    auto dram = DramTier::Open(options);
    ASSERT_TRUE(dram) << dram.error().ToString();
    (*dram)->WaitReady();
    dram_ = *dram;
    tiers_.push_back(std::move(*dram));
  }

  bool Put(const std::string& key, const Bytes& bytes, std::optional<Uuid> tier = std::nullopt) {
    auto handle = backend_->Allocate(bytes.size(), tier, tier.has_value());
    if (!Worked(handle)) return false;
    if (!Worked(backend_->Write(DataSource::Host(bytes.data(), bytes.size()), *handle))) return false;
    return Worked(backend_->Commit(key, std::move(*handle)));
  }
  // False when the key is not there or cannot be read. What is read is right.
  bool Get(const std::string& key, size_t size, std::optional<Uuid> tier = std::nullopt) {
    const auto view = backend_->Get(key, tier);
    if (!view) return false;
    Bytes bytes(size);
    if (!Worked(backend_->copier().Copy(view->handle->data, DataSource::Host(bytes.data(), size)))) return false;
    EXPECT_EQ(bytes == ContentOf(key, size), true) << key;
    return true;
  }
  bool PutAndGetOn(const CacheTier& tier) {
    const Bytes bytes = ContentOf("dram", kMiB);
    return Put("dram", bytes, tier.info().id) && Get("dram", kMiB, tier.info().id);
  }

  void PutAndReadBack() {
    for (const size_t size : kSizes) {
      for (const auto& tier : tiers_) {
        const std::string key = KeyOf(*tier, size);
        if (Put(key, ContentOf(key, size), tier->info().id)) {
          EXPECT_TRUE(backend_->Exist(key));
          Get(key, size);
        } else {
          EXPECT_FALSE(backend_->Exist(key)) << "a failed put leaves no key";
        }
      }
    }
  }
  void MoveEverywhere() {
    for (const auto& from : tiers_) {
      for (const auto& to : tiers_) {
        const size_t size = from == to ? 0 : 3 * kMiB;
        const std::string key = KeyOf(*from, size);
        if (from == to || !backend_->Exist(key)) continue;
        if (Worked(backend_->Transfer(key, from->info().id, to->info().id))) {
          Get(key, size, to->info().id);
          EXPECT_TRUE(backend_->Delete(key, to->info().id));
        }
      }
    }
  }
  // Many small copies with one synchronisation, in both directions.
  void SmallBatch() {
    for (const auto& tier : tiers_) {
      if (tier == dram_) continue;
      std::vector<DataSource> blocks;
      std::vector<RangeCopy> in;
      std::vector<RangeCopy> out;
      const Bytes bytes = ContentOf("small", 32 * 4 * kKiB);
      Bytes back(bytes.size());
      const DataSource staging = *dram_->Allocate(bytes.size());
      const HostRange pinned(static_cast<const HostBuffer&>(*staging.buffer).data(), bytes.size());
      std::copy(bytes.begin(), bytes.end(), pinned.begin());
      for (size_t at = 0; at < bytes.size(); at += 4 * kKiB) {
        auto block = tier->Allocate(4 * kKiB);
        if (!Worked(block)) continue;
        const auto& npu = static_cast<const AscendBufferBase&>(*block->buffer);
        const NpuRange range{npu.pointer(), npu.size(), &npu.runtime()};
        in.push_back({.target = range, .source = pinned.subspan(at, 4 * kKiB)});
        out.push_back({.target = HostRange(back).subspan(at, 4 * kKiB), .source = range});
        blocks.push_back(std::move(*block));
      }
      CopyRanges(in);
      CopyRanges(out);
      for (size_t i = 0; i < in.size(); ++i) {
        const bool written = Worked(in[i].result);
        const bool read = Worked(out[i].result);
        if (!written || !read) continue;
        const auto source = std::get<HostRange>(in[i].source);
        const auto target = std::get<HostRange>(out[i].target);
        EXPECT_TRUE(std::equal(source.begin(), source.end(), target.begin())) << "block " << i;
      }
    }
  }

  static std::string KeyOf(const CacheTier& tier, size_t size) { return tier.info().name + "/" + std::to_string(size); }

  static constexpr size_t kSizes[] = {100, 4 * kKiB, 300 * kKiB, 3 * kMiB};
  const std::optional<int> expected_code_;
  int failures_ = 0;
  std::shared_ptr<NpuRuntime> runtime_;
  std::vector<std::shared_ptr<CacheTier>> tiers_;
  std::shared_ptr<DramTier> dram_;
  std::unique_ptr<TieredBackend> backend_;
};

void ExpectNothingLives() {
  const aclemu_stats stats = EmulatorProbe::Stats();
  EXPECT_EQ(stats.device_live_blocks, 0u);
  EXPECT_EQ(stats.host_live_blocks, 0u) << "page-locked or registered";
  EXPECT_EQ(stats.streams_live, 0u);
  EXPECT_EQ(stats.events_live, 0u);
}

// The functions of the table that a life calls, with their number of calls.
std::map<std::string, uint64_t> CallsOfOneLife() {
  std::vector<std::string> names;
#define MC_ACL_NAME(member, symbol, result, parameters) names.emplace_back(#symbol);
  MC_ACL_REQUIRED(MC_ACL_NAME)
  MC_ACL_OPTIONAL(MC_ACL_NAME)
#undef MC_ACL_NAME
  Life(std::nullopt).Run();
  std::map<std::string, uint64_t> before;
  for (const auto& name : names) before[name] = EmulatorProbe::Calls(name.c_str());
  Life(std::nullopt).Run();
  std::map<std::string, uint64_t> calls;
  for (const auto& name : names) {
    if (const uint64_t made = EmulatorProbe::Calls(name.c_str()) - before[name]; made > 0) calls[name] = made;
  }
  return calls;
}

// What a real runtime would answer.
int CodeFor(const std::string& name) {
  if (name.find("Malloc") != std::string::npos || name.find("HostRegister") != std::string::npos) return 207001;
  if (name == "aclrtSetDevice") return 507033;
  if (name.find("CreateStream") != std::string::npos) return 207008;
  if (name.find("CreateEvent") != std::string::npos) return 207007;
  if (name.find("Synchronize") != std::string::npos) return 507001;
  return 507899;
}

// False when the fault did not come to happen.
bool LiveWith(const std::string& fault, int code) {
  SCOPED_TRACE(fault);
  EmulatorProbe::Inject("");
  EmulatorProbe::Inject(fault.c_str());
  const uint64_t fired_before = EmulatorProbe::Stats().faults_fired;
  Life life(code);
  life.Run();
  const uint64_t fired = EmulatorProbe::Stats().faults_fired - fired_before;
  EXPECT_LE(fired, 1u);
  EmulatorProbe::Inject("");
  ExpectNothingLives();
  return fired == 1;
}

bool HappensWithin(int lives, const std::string& fault, int code) {
  for (int life = 0; life < lives; ++life) {
    if (LiveWith(fault, code)) return true;
  }
  return false;
}

// Lives with the fault at its n-th chance for n = 1, 2 and the last. How many chances a life has varies by a few,
// because threads take turns differently: memory that was page-locked before its first copy is not even asked about.
// So a chance may take several lives, and of a few chances the last need not come again.
void LiveWithEach(const std::string& name, const std::string& stage, uint64_t count, int code) {
  constexpr int kLives = 30;
  constexpr uint64_t kFew = 8;
  const auto fault = [&](uint64_t nth) { return fmt::format("{}@{}{}={}", name, nth, stage, code); };
  for (uint64_t nth = 1; nth <= std::min<uint64_t>(2, count); ++nth) {
    EXPECT_TRUE(HappensWithin(kLives, fault(nth), code)) << fault(nth) << " did not happen";
  }
  uint64_t last = count;
  while (last > 2 && !LiveWith(fault(last), code)) last = last * 9 / 10;
  if (count > kFew) {
    EXPECT_GT(last, count / 2) << name << " was far from its last call";
  }
}

class AscendFaultTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Loads the runtime, so that the probe finds the emulator.
    ASSERT_TRUE(OpenNpuRuntime());
    ASSERT_TRUE(EmulatorProbe::Loaded());
  }
  void TearDown() override { EmulatorProbe::Inject(""); }
};

// In parts, which may run side by side.
class AscendFunctionFaultTest : public AscendFaultTest, public ::testing::WithParamInterface<size_t> {
 public:
  static constexpr size_t kParts = 4;
};

TEST_P(AscendFunctionFaultTest, EachFunctionMayFailAtItsFirstSecondAndLastCall) {
  const auto calls = CallsOfOneLife();
  ExpectNothingLives();
  EXPECT_GE(calls.size(), 20u) << "a life that uses few functions proves little";
  size_t number = 0;
  for (const auto& [name, count] : calls) {
    if (number++ % kParts != GetParam() || name == "aclGetRecentErrMsg") continue;  // that one returns no code
    LiveWithEach(name, "", count, CodeFor(name));
  }
}
INSTANTIATE_TEST_SUITE_P(Part, AscendFunctionFaultTest, ::testing::Range<size_t>(0, AscendFunctionFaultTest::kParts));

TEST_F(AscendFaultTest, DeviceLostInAnyCopyTakesItsTierOnly) {
  for (const char* direction : {"H2D", "D2H"}) {
    for (const int nth : {1, 2, 4, 8, 16}) {
      EXPECT_TRUE(LiveWith(fmt::format("{}@{}=507010", direction, nth), 507010)) << direction << " " << nth;
    }
  }
}

TEST_F(AscendFaultTest, EachKindOfCopyMayFailWhileItRuns) {
  for (const auto& [direction, code, count] :
       {std::tuple("H2D", 507001, 30), {"D2H", 507001, 30}, {"D2D", 507013, 2}}) {
    LiveWithEach(direction, "", static_cast<uint64_t>(count), code);
  }
}

TEST_F(AscendFaultTest, EachAsynchronousCallMayFailWhileItRuns) {
  const auto calls = CallsOfOneLife();
  ASSERT_TRUE(calls.contains("aclrtMemcpyAsync"));
  for (const char* name : {"aclrtMemcpyAsync", "aclrtMemcpyBatchAsync"}) {
    if (calls.contains(name)) LiveWithEach(name, ":exec", calls.at(name), 507001);  // older releases have no batches
  }
}

}  // namespace
}  // namespace mooncake
