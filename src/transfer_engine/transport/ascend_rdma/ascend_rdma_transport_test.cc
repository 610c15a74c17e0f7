// The bridge as the engine sees it: on real threads, on a fake device, between two fake processes.
#include "transfer_engine/transport/ascend_rdma/ascend_rdma_transport.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "device/test_fake_driver.h"
#include "transfer_engine/transport/ascend_rdma/calibration.h"
#include "transfer_engine/transport/ascend_rdma/npu_copy_port.h"

namespace mooncake {
namespace {

using bridge::Direction;

// A runtime whose devices are ordinary memory, on the fake driver; fails where told to.
class TestNpu final : public NpuRuntime {
 public:
  ~TestNpu() override {
    EXPECT_TRUE(blocks_.empty()) << "device memory is left over";
    EXPECT_EQ(registered, 0) << "host memory stays page-locked";
  }
  int32_t DeviceCount() const override { return 2; }
  Result<void> OpenDevice(int32_t device_id) override {
    if (device_id >= 2) return Error(ErrorCode::INVALID_PARAMS, "no device {}", device_id);
    return {};
  }
  Result<MemoryInfo> GetMemoryInfo(int32_t) override { return MemoryInfo{}; }
  Result<AscendUnifiedPointer> Allocate(int32_t device_id, size_t size) override {
    if (fail_allocate) return Error(ErrorCode::NO_AVAILABLE_HANDLE, "device full");
    auto block = std::make_unique<FakeDeviceMemory>(device_id, size);
    const AscendUnifiedPointer at = block->at();
    std::lock_guard lock(mutex_);
    blocks_[at.device_ptr] = std::move(block);
    return at;
  }
  Result<void> Free(AscendUnifiedPointer block) override {
    std::lock_guard lock(mutex_);
    EXPECT_EQ(blocks_.erase(block.device_ptr), 1u);
    return {};
  }
  Result<void> CopyHostToDevice(AscendUnifiedPointer, size_t, const std::byte*, size_t) override { return NotUsed(); }
  Result<void> CopyDeviceToHost(std::byte*, size_t, AscendUnifiedPointer, size_t) override { return NotUsed(); }
  Result<void> CopyDeviceToDevice(AscendUnifiedPointer, size_t, AscendUnifiedPointer, size_t) override {
    return NotUsed();
  }
  Result<std::shared_ptr<void>> RegisterHost(int32_t, std::span<std::byte> memory) override {
    if (fail_register) return Error(register_error, "no page-locking");
    driver.pinned().Add(memory);
    ++registered;
    return std::shared_ptr<void>(memory.data(), [this](void* begin) {
      driver.pinned().Remove(static_cast<std::byte*>(begin));
      --registered;
    });
  }
  NpuDriver* AsyncDriver() override { return &driver; }
  std::optional<int32_t> DeviceOf(const void*) const override { return std::nullopt; }

  FakeNpuDriver driver;
  bool fail_allocate = false;
  bool fail_register = false;
  ErrorCode register_error = ErrorCode::INTERNAL_ERROR;
  std::atomic<int> registered = 0;

 private:
  static Result<void> NotUsed() { return Error(ErrorCode::INTERNAL_ERROR, "the bridge does not copy like this"); }
  std::mutex mutex_;
  std::map<DeviceAddress, std::unique_ptr<FakeDeviceMemory>> blocks_;
};

// Reaches everything; ends operations on a thread of its own, in another order than they came.
class ThreadedWire final : public Transport {
 public:
  explicit ThreadedWire(std::string name = "rdma") : name_(std::move(name)), thread_([this] { Run(); }) {}
  ~ThreadedWire() override {
    EXPECT_TRUE(registered_.empty()) << "memory stays registered";
    std::unique_lock lock(mutex_);
    stop_ = true;
    came_.notify_one();
    lock.unlock();
    thread_.join();
  }
  const char* name() const override { return name_.c_str(); }
  bool Reaches(const MemoryRange& local, const SegmentDescriptor&, const SegmentRegion&) const override {
    return IsHost(local) && reaches;
  }
  Result<void> RegisterRegion(Region& region) override {
    if (fail_register) return Error(ErrorCode::INTERNAL_ERROR, "no more memory can be registered");
    EXPECT_EQ(region.options.access, RegionAccess::kLocal);  // D14, C15
    EXPECT_FALSE(region.IsNpu());
    registered_[region.address] = region.length;
    return {};
  }
  void WithdrawRegion(const Region& region) override { EXPECT_EQ(registered_.erase(region.address), 1u); }
  void Submit(std::vector<TransferOperation> operations, Caller caller) override {
    EXPECT_EQ(caller, Caller::kGoesOn);
    std::lock_guard lock(mutex_);
    for (TransferOperation& operation : operations) {
      const auto at = reinterpret_cast<uint64_t>(std::get<HostRange>(operation.local).data());
      const auto region = std::prev(registered_.upper_bound(at));
      EXPECT_LE(at + operation.length(), region->first + region->second);
      waiting_.push_back(std::move(operation));
      ++operations_;
    }
    came_.notify_one();
  }
  void Cancel(BatchId) override {}

  size_t operations() {
    std::lock_guard lock(mutex_);
    return operations_;
  }
  std::map<uint64_t, uint64_t> registered() const { return registered_; }
  bool fail_register = false;
  bool reaches = true;

 private:
  void Run() {
    std::mt19937 random(3);
    std::unique_lock lock(mutex_);
    while (true) {
      came_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const size_t index = random() % waiting_.size();
      TransferOperation operation = std::move(waiting_[index]);
      waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(index));
      const bool fails = random() % 16 == 0;
      lock.unlock();
      const HostRange local = std::get<HostRange>(operation.local);
      auto* const remote = reinterpret_cast<std::byte*>(operation.target_address);
      if (fails) {
        // What a broken connection leaves behind.
        if (operation.opcode == TransferOpcode::kRead) std::memset(local.data(), 0x77, local.size());
        operation.done(Error(ErrorCode::TRANSFER_FAIL, "connection lost"));
      } else {
        if (operation.opcode == TransferOpcode::kWrite) std::memcpy(remote, local.data(), local.size());
        if (operation.opcode == TransferOpcode::kRead) std::memcpy(local.data(), remote, local.size());
        operation.done({});
      }
      lock.lock();
    }
  }

  const std::string name_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<TransferOperation> waiting_;
  std::map<uint64_t, uint64_t> registered_;
  size_t operations_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

AscendRdmaOptions SmallRing() {
  AscendRdmaOptions options;
  options.slot_bytes = 64 << 10;
  options.ring_bytes = 512 << 10;
  options.calibrate = false;
  options.lane.scheduler.chunk_bytes_min = 16 << 10;
  options.lane.scheduler.bulk_bytes = 1 << 20;
  options.lane.attempts = 12;  // the wire of these tests fails often
  options.lane.retry_delay = std::chrono::microseconds(1);
  return options;
}

class AscendRdmaTransportTest : public testing::Test {
 protected:
  std::shared_ptr<TestNpu> npu_ = std::make_shared<TestNpu>();
  ThreadedWire wire_;

  std::unique_ptr<AscendRdmaTransport> Open(AscendRdmaOptions options, const std::vector<int32_t>& devices) {
    auto opened = AscendRdmaTransport::Open(npu_, {&wire_}, options, devices);
    EXPECT_TRUE(opened) << opened.error().ToString();
    return std::move(*opened);
  }
  ErrorCode OpenFails(AscendRdmaOptions options, const std::vector<int32_t>& devices) {
    const auto opened = AscendRdmaTransport::Open(npu_, {&wire_}, options, devices);
    EXPECT_FALSE(opened);
    EXPECT_TRUE(wire_.registered().empty());
    EXPECT_EQ(npu_->registered, 0);
    return opened ? ErrorCode::OK : opened.error().code();
  }
};

struct Moves {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Result<void>> ends;
  void Await(size_t count) {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(200), [&] { return ends.size() >= count; }));
  }
};

TransferOperation Make(TransferOpcode opcode, const FakeDeviceMemory& memory, size_t offset, size_t length,
                       std::byte* remote, Moves& moves) {
  static const auto target = std::make_shared<const SegmentDescriptor>(
      SegmentDescriptor{.name = "store", .protocols = {"rdma"}, .generation = Uuid::Random()});
  TransferOperation operation;
  operation.opcode = opcode;
  operation.local = NpuRange{memory.at(offset), length, nullptr};
  operation.target = target;
  operation.target_address = reinterpret_cast<uint64_t>(remote);
  operation.tag = 1;
  operation.deadline = Deadline::After(std::chrono::seconds(300));
  operation.done = [&moves](Result<void> result) {
    std::lock_guard lock(moves.mutex);
    moves.ends.push_back(std::move(result));
    moves.changed.notify_all();
  };
  return operation;
}

// D2, D10, C9, C10: many threads without a device of their own, two devices, both directions, any alignment.
TEST_F(AscendRdmaTransportTest, D2D10C10ManyThreadsAndDevicesMoveTheRightBytes) {
  auto bridge = Open(SmallRing(), {0, 1});
  constexpr size_t kThreads = 4;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int round = 0; round < 4; ++round) {
        const size_t size = 700'000;
        FakeDeviceMemory source(static_cast<int32_t>(t % 2), size);
        FakeDeviceMemory target(static_cast<int32_t>((t + 1) % 2), size);
        std::vector<std::byte> remote(size);
        for (auto& byte : source.bytes()) byte = static_cast<std::byte>(random());
        for (const auto opcode : {TransferOpcode::kWrite, TransferOpcode::kRead}) {
          Moves moves;
          std::vector<TransferOperation> operations;
          for (size_t at = 0; at < size;) {
            const size_t length = std::min(size - at, 1 + random() % (random() % 4 == 0 ? 300'000 : 6'000));
            operations.push_back(Make(opcode, opcode == TransferOpcode::kWrite ? source : target, at, length,
                                      remote.data() + at, moves));
            at += length;
          }
          const size_t count = operations.size();
          bridge->Submit(std::move(operations), Caller::kGoesOn);
          moves.Await(count);
          for (const auto& end : moves.ends) EXPECT_TRUE(end) << end.error().ToString();
        }
        EXPECT_EQ(std::memcmp(target.bytes().data(), source.bytes().data(), size), 0);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_GT(bridge->counters(0)->wire_retries + bridge->counters(1)->wire_retries, 0u);
  bridge.reset();  // D16, C14: everything is given back (the fakes look)
  EXPECT_TRUE(wire_.registered().empty());
}

TEST_F(AscendRdmaTransportTest, D7C14ItEndsWhileOperationsAreUnderWay) {
  FakeDeviceMemory memory(0, 4 << 20);
  std::vector<std::byte> remote(4 << 20);
  Moves moves;
  auto bridge = Open(SmallRing(), {0});
  for (int i = 0; i < 20; ++i) {
    std::vector<TransferOperation> one;
    one.push_back(Make(i % 2 == 0 ? TransferOpcode::kWrite : TransferOpcode::kRead, memory,
                       static_cast<size_t>(i) * 4096, 100'000, remote.data() + i * 4096, moves));
    bridge->Submit(std::move(one), Caller::kGoesOn);
  }
  bridge.reset();
  EXPECT_EQ(moves.ends.size(), 20u);
}

// D11, D14, C15: page-locked ordinary memory, registered once per wire, for this process alone.
TEST_F(AscendRdmaTransportTest, C15D11D14TheRingIsPageLockedAndNotPublished) {
  auto bridge = Open(SmallRing(), {0});
  EXPECT_EQ(npu_->registered, 1);
  ASSERT_EQ(wire_.registered().size(), 1u);
  EXPECT_EQ(wire_.registered().begin()->second, size_t{512} << 10);
  EXPECT_EQ(npu_->driver.pinned_allocations, 0);
  SegmentDescriptor self;
  bridge->Describe(self);
  EXPECT_TRUE(self.protocols.empty());
  EXPECT_TRUE(self.regions.empty());
}

TEST_F(AscendRdmaTransportTest, ADeviceGetsItsLaneWithItsFirstRegion) {
  auto bridge = Open(SmallRing(), {});
  FakeDeviceMemory memory(1, 4096);
  std::byte remote[64];
  Moves moves;
  const auto submit = [&] {
    std::vector<TransferOperation> one;
    one.push_back(Make(TransferOpcode::kRead, memory, 0, 64, remote, moves));
    bridge->Submit(std::move(one), Caller::kGoesOn);
  };
  submit();
  ASSERT_EQ(moves.ends.size(), 1u);
  EXPECT_EQ(moves.ends[0].error().code(), ErrorCode::DEVICE_NOT_FOUND);
  const SegmentDescriptor target;
  const SegmentRegion region;
  EXPECT_FALSE(bridge->Reaches(NpuRange{memory.at(), 64, nullptr}, target, region));
  Region npu_region{.address = 1, .length = 1, .options = {.device_id = 1}};
  ASSERT_TRUE(bridge->RegisterRegion(npu_region));
  ASSERT_TRUE(bridge->RegisterRegion(npu_region));
  EXPECT_TRUE(npu_region.published.rkeys.empty());
  EXPECT_TRUE(bridge->Reaches(NpuRange{memory.at(), 64, nullptr}, target, region));
  EXPECT_FALSE(bridge->Reaches(HostRange(remote), target, region));
  submit();
  moves.Await(2);
  EXPECT_TRUE(moves.ends[1]);
  wire_.reaches = false;
  EXPECT_FALSE(bridge->Reaches(NpuRange{memory.at(), 64, nullptr}, target, region));
  Region host_region{.address = 1, .length = 1, .options = {}};
  EXPECT_TRUE(bridge->RegisterRegion(host_region));
}

// D11: never an asynchronous copy of memory that is not page-locked.
// With four, a large write would get two: one that is copied, or one on the wire.
TEST_F(AscendRdmaTransportTest, ASmallRingHasSmallerSlotsInsteadOfFew) {
  AscendRdmaOptions options;
  options.calibrate = false;
  options.ring_bytes = 8 << 20;
  const auto small = Open(options, {0});
  EXPECT_EQ(small->lane_options(0)->scheduler.slot_bytes, size_t{1} << 20);
  EXPECT_EQ(small->lane_options(0)->scheduler.chunk_bytes, size_t{1} << 20);
  options.ring_bytes = 2 << 20;
  EXPECT_EQ(Open(options, {0})->lane_options(0)->scheduler.slot_bytes, size_t{512} << 10);
  options.ring_bytes = 64 << 20;
  EXPECT_EQ(Open(options, {0})->lane_options(0)->scheduler.slot_bytes, size_t{2} << 20);
}

TEST_F(AscendRdmaTransportTest, D11WithoutPageLockingCopiesAreSynchronous) {
  npu_->fail_register = true;
  npu_->register_error = ErrorCode::NOT_IMPLEMENTED;
  auto bridge = Open(SmallRing(), {0});
  FakeDeviceMemory memory(0, 300'000);
  std::vector<std::byte> remote(300'000);
  std::memset(memory.bytes().data(), 0x21, memory.size());
  Moves moves;
  std::vector<TransferOperation> one;
  one.push_back(Make(TransferOpcode::kWrite, memory, 3, 299'000, remote.data(), moves));
  bridge->Submit(std::move(one), Caller::kGoesOn);
  moves.Await(1);
  EXPECT_TRUE(moves.ends[0]);
  EXPECT_EQ(std::memcmp(remote.data(), memory.bytes().data() + 3, 299'000), 0);
  EXPECT_EQ(npu_->driver.streams_created, 0);
  EXPECT_GT(npu_->driver.copies_now, 0);
}

TEST_F(AscendRdmaTransportTest, WhateverFailsAtOpenNothingStays) {
  EXPECT_EQ(OpenFails(SmallRing(), {0, 7}), ErrorCode::INVALID_PARAMS);
  npu_->fail_register = true;
  EXPECT_EQ(OpenFails(SmallRing(), {0}), ErrorCode::INTERNAL_ERROR);
  npu_->fail_register = false;
  wire_.fail_register = true;
  EXPECT_EQ(OpenFails(SmallRing(), {0}), ErrorCode::INTERNAL_ERROR);
  wire_.fail_register = false;
  npu_->driver.has_streams = false;
  EXPECT_EQ(OpenFails(SmallRing(), {0}), ErrorCode::INTERNAL_ERROR);
  npu_->driver.has_streams = true;
  AscendRdmaOptions calibrated = SmallRing();
  calibrated.calibrate = true;
  npu_->driver.on_run = [](const NpuCopy&) { return Status(ErrorCode::DATA_COPY_FAILED, "bad"); };
  EXPECT_EQ(OpenFails(calibrated, {0}), ErrorCode::DATA_COPY_FAILED);
  npu_->driver.on_run = nullptr;
  AscendRdmaOptions odd = SmallRing();
  odd.slot_bytes = 1000;
  EXPECT_EQ(OpenFails(odd, {0}), ErrorCode::INVALID_PARAMS);
  odd = SmallRing();
  odd.ring_bytes = 100;
  EXPECT_EQ(OpenFails(odd, {0}), ErrorCode::INVALID_PARAMS);
  EXPECT_FALSE(AscendRdmaTransport::Open(npu_, {}, SmallRing(), {0}));
  EXPECT_FALSE(AscendRdmaTransport::Open(nullptr, {&wire_}, SmallRing(), {0}));
  Open(calibrated, {0});
}

TEST_F(AscendRdmaTransportTest, ADeviceWithoutRoomForATrialGetsWholeSlots) {
  AscendRdmaOptions options = SmallRing();
  options.calibrate = true;
  npu_->fail_allocate = true;
  const auto bridge = Open(options, {0});
  EXPECT_EQ(bridge->lane_options(0)->scheduler.chunk_bytes, options.slot_bytes);
  EXPECT_EQ(npu_->driver.copies_now, 0);
}

// On the real runtime's interface: streams are asked, not waited for, and the ring is what a network device can map.
TEST(AscendRdmaNpuTest, BytesGoToThePeerAndBack) {
  auto opened = OpenNpuRuntime();
  ASSERT_TRUE(opened) << opened.error().ToString();
  const std::shared_ptr<NpuRuntime> npu = *opened;
  ThreadedWire wire;
  AscendRdmaOptions options;
  options.lane.attempts = 12;
  auto bridge = AscendRdmaTransport::Open(npu, {&wire}, options, {0});
  ASSERT_TRUE(bridge) << bridge.error().ToString();
  constexpr size_t kSize = (9 << 20) + 77;
  const auto source = npu->Allocate(0, kSize);
  const auto target = npu->Allocate(0, kSize);
  ASSERT_TRUE(source && target);
  std::vector<std::byte> bytes(kSize);
  for (size_t i = 0; i < kSize; ++i) bytes[i] = static_cast<std::byte>(i * 131 + i / 4096);
  ASSERT_TRUE(npu->CopyHostToDevice(*source, kSize, bytes.data(), kSize));
  std::vector<std::byte> remote(kSize);
  for (const auto opcode : {TransferOpcode::kWrite, TransferOpcode::kRead}) {
    Moves moves;
    std::vector<TransferOperation> operations;
    const FakeDeviceMemory unused(0, 64);
    for (const auto& [at, length] : {std::pair<size_t, size_t>{0, 5}, {5, 4000}, {4005, kSize - 4005}}) {
      auto operation = Make(opcode, unused, 0, 1, remote.data() + at, moves);
      operation.local = NpuRange{(opcode == TransferOpcode::kWrite ? *source : *target) + at, length, npu.get()};
      operations.push_back(std::move(operation));
    }
    (*bridge)->Submit(std::move(operations), Caller::kGoesOn);
    moves.Await(3);
    for (const auto& end : moves.ends) EXPECT_TRUE(end) << end.error().ToString();
  }
  std::vector<std::byte> back(kSize);
  ASSERT_TRUE(npu->CopyDeviceToHost(back.data(), kSize, *target, kSize));
  EXPECT_EQ(remote, bytes);
  EXPECT_EQ(back, bytes);
  bridge->reset();
  EXPECT_TRUE(npu->Free(*source));
  EXPECT_TRUE(npu->Free(*target));
}

TEST(CalibrationTest, TheBestChunkGrowsWithOverheadAndRate) {
  using std::chrono::microseconds;
  const size_t low = size_t{512} << 10;
  const size_t high = size_t{8} << 20;
  const size_t usual = bridge::BestChunk({microseconds(4), 23e9}, low, high);
  EXPECT_NEAR(static_cast<double>(usual), 2.48e6, 0.1e6);
  EXPECT_EQ(bridge::BestChunk({microseconds(0), 23e9}, low, high), low);
  EXPECT_EQ(bridge::BestChunk({microseconds(1000), 23e9}, low, high), high);
  EXPECT_EQ(bridge::BestChunk({microseconds(4), 23e9}, low, low / 2), low / 2);
}

// D12: asynchronous copies are aligned on both sides, and no byte beside the user's is written.
TEST(NpuCopyPortTest, D12CopiesAreAlignedAndNeighboursUntouched) {
  FakeNpuDriver driver;
  FakeDeviceMemory device(0, 8192);
  FakeDeviceMemory host(0, 8192);
  driver.pinned().Add(host.bytes());
  auto port = *bridge::NpuCopyPort::Open(driver, 0, 2, true);
  for (const size_t phase : {0, 1, 63}) {
    for (const size_t length : {1, 63, 64, 65, 1000}) {
      for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
        std::memset(device.bytes().data(), 1, 8192);
        std::memset(host.bytes().data(), 2, 8192);
        const bridge::SlotCopy copy{host.bytes().data() + 128 + phase, device.at(256 + phase), length};
        const auto ticket = port->Start(direction, {&copy, 1});
        const auto outcome = port->Poll(ticket);
        ASSERT_TRUE(outcome && *outcome);
        const std::byte value = direction == Direction::kWrite ? std::byte{1} : std::byte{2};
        const auto target = direction == Direction::kWrite ? host.bytes().subspan(128) : device.bytes().subspan(256);
        for (size_t i = 0; i < length; ++i) ASSERT_EQ(target[phase + i], value);
        ASSERT_NE(target[phase + length], value);
        if (direction == Direction::kRead) {
          ASSERT_NE(device.bytes()[256 + phase - 1], value);
        }
      }
    }
  }
  driver.pinned().Remove(host.bytes().data());
}

TEST(NpuCopyPortTest, ACopyThatFailsIsToldAndTheNextIsFine) {
  FakeNpuDriver driver;
  driver.looks_pinned = true;
  FakeDeviceMemory device(0, 8192);
  FakeDeviceMemory host(0, 8192);
  auto port = *bridge::NpuCopyPort::Open(driver, 0, 1, true);
  bool bad = true;
  driver.on_run = [&](const NpuCopy&) {
    return bad ? std::optional(Status(ErrorCode::DATA_COPY_FAILED, "bad", 507001)) : std::nullopt;
  };
  const bridge::SlotCopy copy{host.bytes().data(), device.at(), 64};
  const auto run = [&] {
    const auto ticket = port->Start(Direction::kWrite, {&copy, 1});
    std::optional<Result<void>> outcome;
    for (int i = 0; i < 4 && !outcome; ++i) outcome = port->Poll(ticket);
    return outcome.value();
  };
  EXPECT_EQ(run().error().vendor_code(), 507001);
  bad = false;
  EXPECT_TRUE(run());
  driver.on_submit = [](const NpuCopy&) -> Result<void> { return Error(ErrorCode::DATA_COPY_FAILED, "refused"); };
  EXPECT_EQ(run().error().message(), "refused");
  driver.on_submit = nullptr;
  EXPECT_TRUE(run());
}

}  // namespace
}  // namespace mooncake
