// Ways, order and failures of copies, on a driver that does nothing before it is waited for.
#include "device/copy_engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "device/test_fake_driver.h"
#include "device/test_pattern.h"

namespace mooncake {
namespace {

Status CopyFailed() {
  return Status(ErrorCode::DATA_COPY_FAILED, "fake: TS_ERROR", FakeNpuDriver::kCopyFailed);
}

class CopyEngineTest : public ::testing::Test {
 protected:
  CopyEngineTest() { Options({}); }
  void Options(CopyEngineOptions options) {
    engine_.reset();
    engine_ = std::make_unique<CopyEngine>(driver_, 3, options);
  }
  static CopyEngineOptions SmallRing(size_t slots) {
    return {.ring_bytes = slots * 64 * kKiB, .slot_bytes = 64 * kKiB, .chunk_bytes_min = 64 * kKiB};
  }
  static NpuCopy Up(const FakeDeviceMemory& to, const Bytes& from, size_t offset = 0) {
    return {CopyEnd::Device(to.at(offset)), CopyEnd::Host(from.data()), from.size(), to.size() - offset};
  }
  static NpuCopy Down(Bytes& to, const FakeDeviceMemory& from) {
    return {CopyEnd::Host(to.data()), CopyEnd::Device(from.at()), to.size(), to.size()};
  }
  static NpuCopy Across(const FakeDeviceMemory& to, const FakeDeviceMemory& from) {
    return {CopyEnd::Device(to.at()), CopyEnd::Device(from.at()), from.size(), to.size()};
  }
  static Bytes Held(const FakeDeviceMemory& memory) { return {memory.bytes().begin(), memory.bytes().end()}; }
  static void Fill(const FakeDeviceMemory& memory, const Bytes& with) {
    std::copy(with.begin(), with.end(), memory.bytes().begin());
  }

  FakeNpuDriver driver_;
  std::unique_ptr<CopyEngine> engine_;
};

// --- single copies ---

TEST_F(CopyEngineTest, SmallCopyIsSynchronousAndTakesNoRing) {
  const Bytes source = Pattern(1000);
  const FakeDeviceMemory device(0, 1000);
  ASSERT_TRUE(engine_->Copy(Up(device, source)));
  EXPECT_EQ(Held(device), source);
  EXPECT_EQ(driver_.copies_now, 1);
  EXPECT_EQ(driver_.pinned_allocations, 0);
  EXPECT_EQ(driver_.streams_created, 0);
}

TEST_F(CopyEngineTest, SizesAroundEveryThresholdArriveBothWays) {
  for (const size_t base : {64 * kKiB, 256 * kKiB, 1 * kMiB, 2 * kMiB, 4 * kMiB, 5 * kMiB}) {
    for (const int delta : {-65, -64, -1, 0, 1, 63, 64, 65}) {
      const size_t size = base + static_cast<size_t>(delta);
      const Bytes source = Pattern(size, static_cast<unsigned>(size));
      const FakeDeviceMemory device(1, size);
      ASSERT_TRUE(engine_->Copy(Up(device, source)));
      ASSERT_EQ(Held(device), source) << size;
      Bytes back(size);
      ASSERT_TRUE(engine_->Copy(Down(back, device)));
      ASSERT_EQ(back, source) << size;
    }
  }
  EXPECT_EQ(driver_.pinned_live_bytes, static_cast<int64_t>(16 * kMiB)) << "one ring of one device";
}

TEST_F(CopyEngineTest, UnalignedDeviceEndIsSynchronous) {
  const Bytes source = Pattern(kMiB);
  const FakeDeviceMemory device(0, kMiB + 1);
  ASSERT_TRUE(engine_->Copy(Up(device, source, 1)));
  EXPECT_EQ(driver_.copies_now, 1);
  EXPECT_TRUE(std::equal(source.begin(), source.end(), device.bytes().begin() + 1));
}

TEST_F(CopyEngineTest, OrdinaryMemoryIsStagedInChunksThatOverlap) {
  const Bytes source = Pattern(8 * kMiB);
  const FakeDeviceMemory device(0, 8 * kMiB);
  ASSERT_TRUE(engine_->Copy(Up(device, source)));
  EXPECT_EQ(Held(device), source);
  const auto submitted = driver_.submitted();
  ASSERT_EQ(submitted.size(), 8u);
  for (size_t i = 1; i < submitted.size(); ++i) {
    EXPECT_EQ(submitted[i].own_pending, 1u) << "chunk " << i << " was filled while its forerunner was on the link";
  }
  EXPECT_EQ(driver_.copies_now, 0);
}

TEST_F(CopyEngineTest, StagedCopyToTheHostKeepsTheLinkBusyWhileASlotIsEmptied) {
  const FakeDeviceMemory device(0, 8 * kMiB);
  Fill(device, Pattern(8 * kMiB, 7));
  Bytes target(8 * kMiB);
  ASSERT_TRUE(engine_->Copy(Down(target, device)));
  EXPECT_EQ(target, Held(device));
  const auto submitted = driver_.submitted();
  ASSERT_EQ(submitted.size(), 8u);
  for (size_t i = 1; i < submitted.size(); ++i) EXPECT_EQ(submitted[i].own_pending, 1u) << i;
}

TEST_F(CopyEngineTest, MediumCopyIsCutFinerSoThatItOverlapsToo) {
  const Bytes source = Pattern(512 * kKiB);
  const FakeDeviceMemory device(0, 512 * kKiB);
  ASSERT_TRUE(engine_->Copy(Up(device, source)));
  EXPECT_EQ(driver_.submitted().size(), 4u);
}

TEST_F(CopyEngineTest, PageLockedMemoryGoesDirectlyAndNoPieceSpansTwoRegistrations) {
  const FakeDeviceMemory host(0, 3 * kMiB);  // aligned memory, whatever its name
  Fill(host, Pattern(3 * kMiB));
  driver_.pinned().Add(host.bytes().subspan(0, kMiB));
  driver_.pinned().Add(host.bytes().subspan(kMiB, 2 * kMiB));
  const FakeDeviceMemory device(2, 3 * kMiB);
  ASSERT_TRUE(
      engine_->Copy({CopyEnd::Device(device.at()), CopyEnd::Host(host.bytes().data()), host.size(), device.size()}));
  EXPECT_EQ(Held(device), Held(host));
  const auto submitted = driver_.submitted();
  ASSERT_EQ(submitted.size(), 1u);
  EXPECT_EQ(submitted[0].copies, 2u);
  EXPECT_EQ(driver_.pinned_allocations, 0) << "no ring is needed";
}

TEST_F(CopyEngineTest, HalfPageLockedMemoryIsStaged) {
  const FakeDeviceMemory host(0, 2 * kMiB);
  Fill(host, Pattern(2 * kMiB));
  driver_.pinned().Add(host.bytes().subspan(0, kMiB));
  const FakeDeviceMemory device(0, 2 * kMiB);
  ASSERT_TRUE(
      engine_->Copy({CopyEnd::Device(device.at()), CopyEnd::Host(host.bytes().data()), host.size(), device.size()}));
  EXPECT_EQ(Held(device), Held(host));
  EXPECT_EQ(driver_.pinned_allocations, 1);
}

TEST_F(CopyEngineTest, LargeDirectCopyHasFewBatchesInFlight) {
  const FakeDeviceMemory host(0, 64 * kMiB);
  driver_.pinned().Add(host.bytes());
  const FakeDeviceMemory device(0, 64 * kMiB);
  ASSERT_TRUE(
      engine_->Copy({CopyEnd::Device(device.at()), CopyEnd::Host(host.bytes().data()), host.size(), device.size()}));
  EXPECT_EQ(Held(device), Held(host));
  ASSERT_EQ(driver_.submitted().size(), 8u);
  for (const auto& entry : driver_.submitted()) EXPECT_LT(entry.own_pending, 4u);
}

TEST_F(CopyEngineTest, MemoryThatOnlyLookedPageLockedIsCopiedSynchronouslyAfterARefusal) {
  driver_.looks_pinned = true;
  driver_.on_submit = [](const NpuCopy&) -> Result<void> { return std::unexpected(CopyFailed()); };
  const FakeDeviceMemory host(0, 2 * kMiB);
  Fill(host, Pattern(2 * kMiB));
  const FakeDeviceMemory device(0, 2 * kMiB);
  ASSERT_TRUE(
      engine_->Copy({CopyEnd::Device(device.at()), CopyEnd::Host(host.bytes().data()), host.size(), device.size()}));
  EXPECT_EQ(Held(device), Held(host));
  EXPECT_EQ(driver_.copies_now, 1);
}

TEST_F(CopyEngineTest, CopyThatDoesNotFitIsLeftToTheRuntimeToRefuse) {
  const Bytes source = Pattern(2 * kMiB);
  const FakeDeviceMemory device(0, kMiB);
  driver_.on_now = [](const NpuCopy& copy) -> Result<void> {
    EXPECT_GT(copy.size, copy.capacity);
    return std::unexpected(CopyFailed());
  };
  EXPECT_FALSE(engine_->Copy(Up(device, source)));
  EXPECT_TRUE(driver_.submitted().empty());
}

// --- without the means ---

TEST_F(CopyEngineTest, WithoutPageLockedMemoryCopiesAreSynchronous) {
  driver_.has_pinned = false;
  const Bytes source = Pattern(4 * kMiB);
  const FakeDeviceMemory device(0, 4 * kMiB);
  const FakeDeviceMemory other(1, 4 * kMiB);
  driver_.unreachable.insert({0, 1});
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(engine_->Copy(Up(device, source)));
    ASSERT_TRUE(engine_->Copy(Across(other, device)));
    Bytes back(source.size());
    ASSERT_TRUE(engine_->Copy(Down(back, other)));
    EXPECT_EQ(back, source);
  }
  EXPECT_EQ(driver_.pinned_allocations, 2) << "asked once per device";
  EXPECT_TRUE(driver_.submitted().empty());
}

TEST_F(CopyEngineTest, RingOfNoBytesTurnsStagingOff) {
  Options({.ring_bytes = 0});
  driver_.unreachable.insert({0, 1});
  const Bytes source = Pattern(4 * kMiB);
  const FakeDeviceMemory device(0, 4 * kMiB);
  const FakeDeviceMemory other(1, 4 * kMiB);
  ASSERT_TRUE(engine_->Copy(Up(device, source)));
  ASSERT_TRUE(engine_->Copy(Across(other, device)));
  EXPECT_EQ(Held(other), source);
  EXPECT_EQ(driver_.pinned_allocations, 0);
  EXPECT_EQ(driver_.streams_created, 0);
}

TEST_F(CopyEngineTest, WithoutStreamsCopiesAreSynchronous) {
  driver_.has_streams = false;
  const Bytes source = Pattern(4 * kMiB);
  const FakeDeviceMemory device(0, 4 * kMiB);
  const FakeDeviceMemory other(1, 4 * kMiB);
  ASSERT_TRUE(engine_->Copy(Up(device, source)));
  ASSERT_TRUE(engine_->Copy(Across(other, device)));
  driver_.unreachable.insert({0, 2});
  const FakeDeviceMemory third(2, 4 * kMiB);
  ASSERT_TRUE(engine_->Copy(Across(third, device)));
  EXPECT_EQ(Held(other), source);
  EXPECT_EQ(Held(third), source);
}

// --- between devices ---

TEST_F(CopyEngineTest, DevicesThatReachEachOtherCopyDirectly) {
  const FakeDeviceMemory from(0, 4 * kMiB);
  const FakeDeviceMemory to(1, 4 * kMiB);
  Fill(from, Pattern(4 * kMiB));
  ASSERT_TRUE(engine_->Copy(Across(to, from)));
  EXPECT_EQ(Held(to), Held(from));
  const auto submitted = driver_.submitted();
  ASSERT_EQ(submitted.size(), 1u);
  EXPECT_EQ(submitted[0].direction, CopyDirection::kDeviceToDevice);
  EXPECT_EQ(submitted[0].device_id, 1);
}

TEST_F(CopyEngineTest, TwoHopsOverlap) {
  driver_.unreachable.insert({0, 1});
  const FakeDeviceMemory from(1, 16 * kMiB);
  const FakeDeviceMemory to(0, 16 * kMiB);
  Fill(from, Pattern(16 * kMiB));
  ASSERT_TRUE(engine_->Copy(Across(to, from)));
  EXPECT_EQ(Held(to), Held(from));
  const auto submitted = driver_.submitted();
  ASSERT_EQ(submitted.size(), 32u);
  size_t ups = 0;
  for (const auto& entry : submitted) {
    if (entry.direction != CopyDirection::kHostToDevice) continue;
    EXPECT_EQ(entry.device_id, 0);
    // The last has no successor.
    if (++ups == 16) continue;
    EXPECT_GE(entry.other_pending, 1u) << "the next chunk is coming while this one goes, " << ups;
  }
  EXPECT_EQ(ups, 16u);
}

TEST_F(CopyEngineTest, TwoHopsWorkWithASingleSlot) {
  Options(SmallRing(1));
  driver_.unreachable.insert({0, 1});
  const FakeDeviceMemory from(0, kMiB + 100);
  const FakeDeviceMemory to(1, kMiB + 100);
  Fill(from, Pattern(kMiB + 100));
  ASSERT_TRUE(engine_->Copy(Across(to, from)));
  EXPECT_EQ(Held(to), Held(from));
}

TEST_F(CopyEngineTest, UnalignedCopyBetweenUnreachableDevicesGoesThroughTheHost) {
  driver_.unreachable.insert({0, 1});
  const FakeDeviceMemory from(0, 3 * kMiB);
  const FakeDeviceMemory to(1, 3 * kMiB);
  Fill(from, Pattern(3 * kMiB));
  const size_t size = 3 * kMiB - 1;
  ASSERT_TRUE(engine_->Copy({CopyEnd::Device(to.at(1)), CopyEnd::Device(from.at()), size, size}));
  EXPECT_TRUE(std::equal(from.bytes().begin(), from.bytes().end() - 1, to.bytes().begin() + 1));
  EXPECT_TRUE(driver_.submitted().empty());
}

// --- errors ---

TEST_F(CopyEngineTest, RefusedChunkStopsTheIssueDrainsAndGivesBackSlotsAndLane) {
  Options(SmallRing(2));
  int submits = 0;
  driver_.on_submit = [&](const NpuCopy&) -> Result<void> {
    if (++submits == 3) return std::unexpected(CopyFailed());
    return {};
  };
  const Bytes source = Pattern(kMiB);
  const FakeDeviceMemory device(0, kMiB);
  const auto copied = engine_->Copy(Up(device, source));
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.error().code(), ErrorCode::DATA_COPY_FAILED);
  EXPECT_EQ(copied.error().vendor_code(), FakeNpuDriver::kCopyFailed);
  EXPECT_NE(copied.error().message().find("copying 1048576 B from host to NPU device 0"), std::string::npos)
      << copied.error().message();
  EXPECT_EQ(submits, 3) << "nothing is issued after the first error";
  EXPECT_EQ(driver_.run, 2u) << "what was issued has ended";
  driver_.on_submit = nullptr;
  ASSERT_TRUE(engine_->Copy(Up(device, source)));
  EXPECT_EQ(Held(device), source);
}

TEST_F(CopyEngineTest, ErrorThatShowsAtTheEndBelongsToItsCopyAndEndsTheStream) {
  bool fail = true;
  driver_.on_run = [&](const NpuCopy&) -> std::optional<Status> {
    if (std::exchange(fail, false)) return CopyFailed();
    return std::nullopt;
  };
  const Bytes source = Pattern(2 * kMiB);
  const FakeDeviceMemory device(0, 2 * kMiB);
  const auto copied = engine_->Copy(Up(device, source));
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.error().vendor_code(), FakeNpuDriver::kCopyFailed);
  EXPECT_EQ(driver_.streams_created, 1);
  ASSERT_TRUE(engine_->Copy(Up(device, source))) << "the next copy does not inherit the error";
  EXPECT_EQ(driver_.streams_created, 2) << "a stream that saw an error is not used again";
  ASSERT_TRUE(engine_->Copy(Up(device, source)));
  EXPECT_EQ(driver_.streams_created, 2);
}

TEST_F(CopyEngineTest, FailedLegOfTwoHopsIsTheResult) {
  driver_.unreachable.insert({0, 1});
  const FakeDeviceMemory from(0, 4 * kMiB);
  const FakeDeviceMemory to(1, 4 * kMiB);
  for (const auto leg : {CopyDirection::kDeviceToHost, CopyDirection::kHostToDevice}) {
    int count = 0;
    driver_.on_run = [&](const NpuCopy& copy) -> std::optional<Status> {
      if (copy.direction() == leg && ++count == 2) return CopyFailed();
      return std::nullopt;
    };
    const auto copied = engine_->Copy(Across(to, from));
    ASSERT_FALSE(copied);
    EXPECT_EQ(copied.error().vendor_code(), FakeNpuDriver::kCopyFailed);
    EXPECT_NE(copied.error().message().find("from NPU device 0 to NPU device 1"), std::string::npos);
  }
  driver_.on_run = nullptr;
  EXPECT_TRUE(engine_->Copy(Across(to, from)));
}

TEST_F(CopyEngineTest, TimeOutAbortsBeforeMemoryIsLetGoOf) {
  Options(SmallRing(2));
  driver_.hang_at = 1;
  const Bytes source = Pattern(kMiB);
  const FakeDeviceMemory device(0, kMiB);
  const auto copied = engine_->Copy(Up(device, source));
  ASSERT_FALSE(copied);
  EXPECT_NE(copied.error().message().find("timed out"), std::string::npos) << copied.error().message();
  EXPECT_EQ(driver_.aborts, 1);
  driver_.hang_at = -1;
  ASSERT_TRUE(engine_->Copy(Up(device, source))) << "lane and slots are back";
  EXPECT_EQ(Held(device), source);
  EXPECT_EQ(driver_.streams_created, 2) << "an aborted stream is not used again";
}

TEST_F(CopyEngineTest, WithoutAnAbortMemoryIsHeldUntilTheCopyEnds) {
  Options(SmallRing(2));
  driver_.has_abort = false;
  driver_.hang_at = 1;
  driver_.hang_timeouts = 5;
  const Bytes source = Pattern(kMiB);
  const FakeDeviceMemory device(0, kMiB);
  const auto copied = engine_->Copy(Up(device, source));
  ASSERT_FALSE(copied);
  EXPECT_EQ(driver_.timeouts, 5);
  EXPECT_EQ(driver_.run, driver_.submitted().size()) << "all chunks that were issued have ended";
  EXPECT_TRUE(engine_->Copy(Up(device, source)));
}

// --- many ---

class CopyManyTest : public CopyEngineTest {
 protected:
  std::vector<Result<void>> Run(const std::vector<NpuCopy>& copies) {
    std::vector<Result<void>> results(copies.size(), Error(ErrorCode::INTERNAL_ERROR, "not set"));
    engine_->CopyMany(copies, results);
    return results;
  }
};

TEST_F(CopyManyTest, NoCopiesAreFine) {
  Run({});
  EXPECT_EQ(driver_.synchronizes, 0);
}

TEST_F(CopyManyTest, SmallCopiesShareSlotsAndOneSynchronisation) {
  std::vector<Bytes> sources;
  std::vector<std::unique_ptr<FakeDeviceMemory>> devices;
  std::vector<NpuCopy> copies;
  for (unsigned i = 0; i < 100; ++i) sources.push_back(Pattern(1000 + i, i));
  for (const Bytes& source : sources) {
    devices.push_back(std::make_unique<FakeDeviceMemory>(0, source.size()));
    copies.push_back(Up(*devices.back(), source));
  }
  for (const auto& result : Run(copies)) EXPECT_TRUE(result);
  for (size_t i = 0; i < sources.size(); ++i) EXPECT_EQ(Held(*devices[i]), sources[i]);
  EXPECT_EQ(driver_.synchronizes, 1);
  EXPECT_EQ(driver_.copies_now, 0);
  EXPECT_LE(driver_.submitted().size(), 4u);
}

TEST_F(CopyManyTest, EveryKindAtOnceArrives) {
  driver_.unreachable.insert({0, 2});
  const FakeDeviceMemory pinned(0, 2 * kMiB);
  driver_.pinned().Add(pinned.bytes());
  Fill(pinned, Pattern(2 * kMiB, 3));
  const Bytes small = Pattern(500, 1);
  const Bytes large = Pattern(3 * kMiB + 5, 2);
  const FakeDeviceMemory a(0, 500), b(0, 3 * kMiB + 5), c(0, 2 * kMiB), d(1, 3 * kMiB + 6), e(1, 2 * kMiB),
      f(2, 2 * kMiB), g(0, kMiB);
  Fill(e, Pattern(2 * kMiB, 4));
  Fill(g, Pattern(kMiB, 5));
  const FakeDeviceMemory h(1, kMiB), k(2, kMiB), l(0, kMiB);
  Bytes down(2 * kMiB), down_small(100);
  const auto results = Run({Up(a, small),
                            Up(b, large),
                            Up(d, large, 1),
                            Down(down, e),
                            Down(down_small, e),
                            {CopyEnd::Device(c.at()), CopyEnd::Host(pinned.bytes().data()), 2 * kMiB, 2 * kMiB},
                            {CopyEnd::Device(f.at()), CopyEnd::Host(pinned.bytes().data()), 2 * kMiB, 2 * kMiB},
                            Across(h, g),
                            Across(k, g),
                            Across(l, g)});
  for (const auto& result : results) EXPECT_TRUE(result) << result.error().ToString();
  EXPECT_EQ(Held(a), small);
  EXPECT_EQ(Held(b), large);
  EXPECT_TRUE(std::equal(large.begin(), large.end(), d.bytes().begin() + 1));
  EXPECT_EQ(down, Held(e));
  EXPECT_TRUE(std::equal(down_small.begin(), down_small.end(), e.bytes().begin()));
  EXPECT_EQ(Held(c), Held(pinned));
  EXPECT_EQ(Held(f), Held(pinned));
  for (const auto* copy : {&h, &k, &l}) EXPECT_EQ(Held(*copy), Held(g));
}

TEST_F(CopyManyTest, OnlyTheGuiltyFails) {
  const FakeDeviceMemory bad(0, 1000);
  const auto guilty = [&](const NpuCopy& copy) { return copy.target.address() == CopyEnd::Device(bad.at()).address(); };
  driver_.on_run = [&](const NpuCopy& copy) -> std::optional<Status> {
    return guilty(copy) ? std::optional(CopyFailed()) : std::nullopt;
  };
  int again = 0;
  driver_.on_now = [&](const NpuCopy& copy) -> Result<void> {
    ++again;
    if (guilty(copy)) return std::unexpected(CopyFailed());
    return {};
  };
  const Bytes source = Pattern(1000);
  const FakeDeviceMemory good(0, 1000), elsewhere(1, 1000);
  const auto results = Run({Up(good, source), Up(bad, source), Up(elsewhere, source)});
  EXPECT_TRUE(results[0]);
  ASSERT_FALSE(results[1]);
  EXPECT_EQ(results[1].error().vendor_code(), FakeNpuDriver::kCopyFailed);
  EXPECT_TRUE(results[2]);
  EXPECT_EQ(Held(good), source);
  EXPECT_EQ(again, 2) << "the other device's copies are not done again";
}

TEST_F(CopyManyTest, TimeOutIsTheResultOfAllThatSharedIt) {
  driver_.hang_at = 0;
  const Bytes source = Pattern(1000);
  const FakeDeviceMemory a(0, 1000), b(0, 1000);
  for (const auto& result : Run({Up(a, source), Up(b, source)})) {
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().message().find("timed out"), std::string::npos);
  }
  EXPECT_EQ(driver_.copies_now, 0) << "the next would hang as well";
}

// --- threads ---

TEST_F(CopyEngineTest, MoreCallersThanLanesAndSlotsAllGetOn) {
  CopyEngineOptions options = SmallRing(1);
  options.lanes = 1;
  Options(options);
  driver_.unreachable = {{0, 1}, {0, 2}, {1, 2}};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      const auto id = static_cast<int32_t>(t % 3);
      const FakeDeviceMemory mine(id, 300 * kKiB), next((id + 1) % 3, 300 * kKiB), far((id + 2) % 3, 300 * kKiB);
      for (unsigned round = 0; round < 10; ++round) {
        const Bytes source = Pattern(300 * kKiB, t * 100 + round);
        Bytes back(source.size()), again(source.size());
        std::vector<Result<void>> results(4);
        if (!engine_->Copy(Up(mine, source)) || !engine_->Copy(Across(next, mine))) wrong.fetch_add(1);
        engine_->CopyMany(
            std::vector<NpuCopy>{Down(back, next), Across(far, mine), Up(next, source), Down(again, mine)}, results);
        for (const auto& result : results) {
          if (!result) wrong.fetch_add(1);
        }
        if (again != source || Held(far) != source || Held(next) != source) wrong.fetch_add(1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace mooncake
