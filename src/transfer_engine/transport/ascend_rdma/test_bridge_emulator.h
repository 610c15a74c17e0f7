// The bridge on the emulated runtime, towards a wire whose operations end when the test says so.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "device/acl/test_emulator_fixture.h"
#include "transfer_engine/transport/ascend_rdma/ascend_rdma_transport.h"

namespace mooncake::bridge {

// For what must come, however slow the machine is.
inline constexpr Duration kPatience = std::chrono::seconds(100);

// A host wire to "peers" in this process. While it holds an operation, the slot must be that operation's alone: of a
// write the bytes may not change, and no two operations held may overlap.
class HeldWire final : public Transport {
 public:
  ~HeldWire() override {
    EXPECT_TRUE(held_.empty()) << "operations outlive their wire";
    EXPECT_TRUE(registered_.empty()) << "memory stays registered";
  }
  const char* name() const override { return "rdma"; }
  bool Reaches(const MemoryRange& local, const SegmentDescriptor&, const SegmentRegion&) const override {
    return IsHost(local);
  }
  Result<void> RegisterRegion(Region& region) override {
    EXPECT_EQ(region.options.access, RegionAccess::kLocal);
    EXPECT_FALSE(EmulatorProbe::IsDeviceMemory(reinterpret_cast<void*>(region.address)));
    if (fail_register) return Error(ErrorCode::INTERNAL_ERROR, "no more memory can be registered");
    registered_[region.address] = region.length;
    return {};
  }
  void WithdrawRegion(const Region& region) override {
    if (on_withdraw) on_withdraw();
    EXPECT_EQ(registered_.erase(region.address), 1u);
  }
  void Submit(std::vector<TransferOperation> operations, Caller caller) override {
    EXPECT_EQ(caller, Caller::kGoesOn);
    std::vector<std::pair<TransferOperation, Result<void>>> answered;
    {
      std::lock_guard lock(mutex_);
      for (TransferOperation& operation : operations) {
        ++submitted_;
        Add(std::move(operation), answered);
      }
    }
    changed_.notify_all();
    for (auto& [operation, result] : answered) operation.done(std::move(result));
  }
  // What a wire does by itself: canceled operations end soon.
  void Cancel(BatchId tag) override {
    std::vector<Held> canceled;
    {
      std::lock_guard lock(mutex_);
      canceled_.push_back(tag);
      if (!ends_canceled) return;
      for (size_t i = 0; i < held_.size();) {
        if (held_[i].operation.tag == tag) {
          canceled.push_back(Remove(i));
        } else {
          ++i;
        }
      }
    }
    for (Held& held : canceled) End(std::move(held), Error(ErrorCode::TRANSFER_CANCELED, "canceled"));
  }

  // Ends one of those held, the oldest if not told otherwise; false when there is none.
  bool EndOne(Result<void> outcome = {}, size_t index = 0) {
    std::unique_lock lock(mutex_);
    if (held_.empty()) return false;
    Held held = Remove(index % held_.size());
    lock.unlock();
    End(std::move(held), std::move(outcome));
    return true;
  }
  // Ends whatever comes, until `over` holds.
  template <typename Over>
  void Serve(Over over, const std::function<Result<void>(const TransferOperation&)>& outcome = {}) {
    const TimePoint until = SteadyClock::Instance().Now() + kPatience;
    while (!over() && SteadyClock::Instance().Now() < until) {
      std::unique_lock lock(mutex_);
      if (held_.empty()) {
        changed_.wait_for(lock, std::chrono::milliseconds(1));
        continue;
      }
      Held held = Remove(next_ = (next_ * 5 + 3) % held_.size());
      lock.unlock();
      Result<void> result = outcome ? outcome(held.operation) : Result<void>{};
      End(std::move(held), std::move(result));
    }
    EXPECT_TRUE(over());
  }
  bool AwaitHeld(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return held_.size() >= count; });
  }
  size_t held() const {
    std::lock_guard lock(mutex_);
    return held_.size();
  }
  size_t submitted() const { return Locked(submitted_); }
  std::vector<BatchId> canceled() const { return Locked(canceled_); }
  std::vector<BatchId> held_tags() const {
    std::lock_guard lock(mutex_);
    std::vector<BatchId> tags;
    for (const Held& held : held_) tags.push_back(held.operation.tag);
    return tags;
  }
  const std::map<uint64_t, uint64_t>& registered() const { return registered_; }

  // --- before other threads start ---
  bool fail_register = false;
  bool ends_canceled = true;
  std::function<void()> on_withdraw;
  std::function<std::optional<Result<void>>(const TransferOperation&)> answer;  // within Submit

 private:
  struct Held {
    TransferOperation operation;
    std::vector<std::byte> sent;  // what the slot held, of a write
  };
  template <typename T>
  T Locked(const T& value) const {
    std::lock_guard lock(mutex_);
    return value;
  }

  void Add(TransferOperation operation, std::vector<std::pair<TransferOperation, Result<void>>>& answered) {
    const HostRange local = std::get<HostRange>(operation.local);
    const auto at = reinterpret_cast<uint64_t>(local.data());
    const auto region = registered_.upper_bound(at);
    ASSERT_NE(region, registered_.begin());
    EXPECT_LE(at + local.size(), std::prev(region)->first + std::prev(region)->second);
    for (const Held& other : held_) {
      const HostRange used = std::get<HostRange>(other.operation.local);
      EXPECT_FALSE(local.data() < used.data() + used.size() && used.data() < local.data() + local.size())
          << "two operations in one place";
    }
    auto at_once = answer ? answer(operation) : std::nullopt;
    if (at_once) {
      answered.emplace_back(std::move(operation), std::move(*at_once));
      return;
    }
    std::vector<std::byte> sent;
    if (operation.opcode == TransferOpcode::kWrite) sent.assign(local.begin(), local.end());
    held_.push_back({std::move(operation), std::move(sent)});
  }
  Held Remove(size_t index) {
    Held held = std::move(held_[index]);
    held_.erase(held_.begin() + static_cast<ptrdiff_t>(index));
    return held;
  }
  static void End(Held held, Result<void> outcome) {
    TransferOperation& operation = held.operation;
    const HostRange local = std::get<HostRange>(operation.local);
    auto* const remote = reinterpret_cast<std::byte*>(operation.target_address);
    if (operation.opcode == TransferOpcode::kWrite) {
      EXPECT_EQ(std::memcmp(local.data(), held.sent.data(), local.size()), 0) << "a slot on the wire was changed";
      if (outcome) std::memcpy(remote, local.data(), local.size());
    } else {
      // What a broken connection leaves behind.
      if (!outcome) std::memset(local.data(), 0x77, local.size());
      if (outcome) std::memcpy(local.data(), remote, local.size());
    }
    operation.done(std::move(outcome));
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Held> held_;
  std::vector<BatchId> canceled_;
  std::map<uint64_t, uint64_t> registered_;
  size_t submitted_ = 0;
  size_t next_ = 0;
};

// The ends of operations, in the order they came.
class Ends {
 public:
  std::move_only_function<void(Result<void>)> Done(size_t number, std::function<void()> also = {}) {
    return [this, number, also = std::move(also)](Result<void> result) {
      if (also) also();
      std::lock_guard lock(mutex_);
      EXPECT_TRUE(ends_.emplace(number, std::move(result)).second) << "operation " << number << " ended twice";
      changed_.notify_all();
    };
  }
  [[nodiscard]] bool Await(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return ends_.size() >= count; });
  }
  size_t count() const {
    std::lock_guard lock(mutex_);
    return ends_.size();
  }
  bool ended(size_t number) const {
    std::lock_guard lock(mutex_);
    return ends_.contains(number);
  }
  Result<void> of(size_t number) const {
    std::lock_guard lock(mutex_);
    const auto end = ends_.find(number);
    if (end == ends_.end()) return Error(ErrorCode::INTERNAL_ERROR, "operation {} has not ended", number);
    return end->second;
  }
  ErrorCode code(size_t number) const {
    const auto result = of(number);
    return result ? ErrorCode::OK : result.error().code();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<size_t, Result<void>> ends_;
};

inline std::vector<std::byte> Pattern(size_t size, unsigned seed) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i * 131 + i / 4096 + seed * 7) & 0xFF);
  return bytes;
}

// What an ACL library of this release has.
inline bool HasFunction(const char* name) {
  return dlsym(RTLD_DEFAULT, name) != nullptr;
}

class BridgeEmulatorTest : public EmulatorTest {
 protected:
  void SetUp() override {
    EmulatorTest::SetUp();
    before_ = EmulatorProbe::Stats();
  }
  // Whatever happened: nothing of the bridge is left.
  void TearDown() override {
    EmulatorProbe::Inject("");
    bridge_.reset();
    for (const auto& block : blocks_) EXPECT_TRUE(runtime_->Free(block));
    CheckReturned();
    EmulatorTest::TearDown();
  }
  void CheckReturned() const {
    const aclemu_stats now = EmulatorProbe::Stats();
    EXPECT_EQ(now.streams_live, before_.streams_live);
    EXPECT_EQ(now.events_live, before_.events_live);
    EXPECT_EQ(now.host_live_blocks, before_.host_live_blocks) << "host memory stays page-locked";
    EXPECT_EQ(now.device_live_blocks, 0u);
    EXPECT_EQ(now.violations, before_.violations);
    EXPECT_TRUE(wire_.registered().empty());
  }
  static AscendRdmaOptions SmallRing() {
    AscendRdmaOptions options;
    options.slot_bytes = 64 << 10;
    options.ring_bytes = 512 << 10;
    options.calibrate = false;
    options.lane.scheduler.chunk_bytes_min = 16 << 10;
    options.lane.scheduler.bulk_bytes = 1 << 20;
    options.lane.retry_delay = std::chrono::microseconds(10);
    return options;
  }
  void Open(AscendRdmaOptions options = SmallRing(), const std::vector<int32_t>& devices = {0}) {
    auto opened = AscendRdmaTransport::Open(runtime_, {&wire_}, options, devices);
    ASSERT_TRUE(opened) << opened.error().ToString();
    bridge_ = std::move(*opened);
  }
  AscendUnifiedPointer Allocate(size_t size, int32_t device = 0) {
    blocks_.push_back(runtime_->Allocate(device, size).value());
    return blocks_.back();
  }
  static void Fill(AscendUnifiedPointer at, std::span<const std::byte> bytes) {
    EmulatorProbe::Poke(reinterpret_cast<void*>(at.device_ptr), bytes);
  }
  static std::vector<std::byte> Content(AscendUnifiedPointer at, size_t size) {
    std::vector<std::byte> bytes(size);
    EmulatorProbe::Peek(reinterpret_cast<const void*>(at.device_ptr), bytes);
    return bytes;
  }
  TransferOperation Make(TransferOpcode opcode, AscendUnifiedPointer at, size_t length, std::byte* remote,
                         std::move_only_function<void(Result<void>)> done, BatchId tag = 1,
                         Duration timeout = std::chrono::seconds(300)) const {
    TransferOperation operation;
    operation.opcode = opcode;
    operation.local = NpuRange{at, length, runtime_.get()};
    operation.target = peer_;
    operation.target_address = reinterpret_cast<uint64_t>(remote);
    operation.tag = tag;
    operation.deadline = Deadline::After(timeout);
    operation.done = std::move(done);
    return operation;
  }
  void Submit(TransferOperation operation) const {
    std::vector<TransferOperation> one;
    one.push_back(std::move(operation));
    bridge_->Submit(std::move(one), Caller::kGoesOn);
  }
  // Host memory cannot be page-locked on old releases; then nothing of it is asynchronous.
  static bool Asynchronous() { return HasFunction("aclrtHostRegister"); }

  HeldWire wire_;
  std::unique_ptr<AscendRdmaTransport> bridge_;
  std::vector<AscendUnifiedPointer> blocks_;
  aclemu_stats before_{};
  SegmentPtr peer_ = std::make_shared<const SegmentDescriptor>(
      SegmentDescriptor{.name = "store", .protocols = {"rdma"}, .generation = Uuid::Random()});
};

}  // namespace mooncake::bridge
