// A copy engine and a wire that move nothing until told to, so that a slot or a user's memory let go of too early shows
// as wrong bytes; and a lane between them.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "transfer_engine/transport/ascend_rdma/lane_core.h"

namespace mooncake::bridge {

class FakePort final : public CopyPort {
 public:
  struct Running {
    Direction direction;
    std::vector<SlotCopy> copies;
    std::optional<Result<void>> outcome;
    bool aborted = false;
  };
  explicit FakePort(size_t depth) : depth_(depth) {}
  ~FakePort() override { EXPECT_TRUE(running.empty()) << "copies outlive their port"; }

  size_t depth() const override { return depth_; }
  Ticket Start(Direction direction, std::span<const SlotCopy> copies) override {
    size_t same = 0;
    for (const auto& [ticket, copy] : running) same += copy.direction == direction ? 1 : 0;
    EXPECT_LT(same, depth_);
    for (const SlotCopy& copy : copies) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(copy.host) % 64, static_cast<uintptr_t>(copy.device.device_ptr) % 64);
      EXPECT_GT(copy.bytes, 0u);
    }
    running[++last_] = {direction, {copies.begin(), copies.end()}, std::nullopt};
    return last_;
  }
  std::optional<Result<void>> Poll(Ticket ticket) override {
    auto& copy = running.at(ticket);
    if (!copy.outcome) return std::nullopt;
    Result<void> outcome = *copy.outcome;
    running.erase(ticket);
    return outcome;
  }
  void Abort(Ticket ticket) override { running.at(ticket).aborted = true; }
  bool Lost() const override { return lost; }

  // Ends the oldest copy that has not ended; false when there is none.
  bool EndOne(Result<void> outcome = {}, std::optional<Direction> direction = {}) {
    for (auto& [ticket, copy] : running) {
      if (copy.outcome || (direction && copy.direction != *direction)) continue;
      if (outcome) Move(copy);
      copy.outcome = std::move(outcome);
      return true;
    }
    return false;
  }
  size_t count(Direction direction) const {
    size_t n = 0;
    for (const auto& [ticket, copy] : running) n += copy.direction == direction ? 1 : 0;
    return n;
  }

  std::map<Ticket, Running> running;
  bool lost = false;

 private:
  static void Move(const Running& running) {
    for (const SlotCopy& copy : running.copies) {
      auto* const device = reinterpret_cast<std::byte*>(copy.device.device_ptr);
      if (running.direction == Direction::kWrite) {
        std::memcpy(copy.host, device, copy.bytes);
      } else {
        std::memcpy(device, copy.host, copy.bytes);
      }
    }
  }
  const size_t depth_;
  Ticket last_ = 0;
};

class FakeWire final : public Transport {
 public:
  ~FakeWire() override { EXPECT_TRUE(held.empty()) << "operations outlive their wire"; }
  const char* name() const override { return "fake"; }
  bool Reaches(const MemoryRange&, const SegmentDescriptor&, const SegmentRegion&) const override { return true; }
  void Submit(std::vector<TransferOperation> operations, Caller) override {
    for (TransferOperation& operation : operations) {
      ++submitted;
      if (at_once) {
        End(std::move(operation), at_once(operation));
      } else {
        held.push_back(std::move(operation));
      }
    }
  }
  void Cancel(BatchId tag) override { canceled.push_back(tag); }

  bool EndOne(Result<void> outcome = {}, size_t index = 0) {
    if (index >= held.size()) return false;
    TransferOperation operation = std::move(held[index]);
    held.erase(held.begin() + static_cast<ptrdiff_t>(index));
    End(std::move(operation), std::move(outcome));
    return true;
  }

  std::deque<TransferOperation> held;
  std::vector<BatchId> canceled;
  size_t submitted = 0;
  std::function<Result<void>(const TransferOperation&)> at_once;  // ends operations within Submit

 private:
  static void End(TransferOperation operation, Result<void> outcome) {
    const HostRange local = std::get<HostRange>(operation.local);
    auto* const remote = reinterpret_cast<std::byte*>(operation.target_address);
    if (outcome && operation.opcode == TransferOpcode::kWrite) std::memcpy(remote, local.data(), local.size());
    if (outcome && operation.opcode == TransferOpcode::kRead) std::memcpy(local.data(), remote, local.size());
    operation.done(std::move(outcome));
  }
};

struct AlignedFree {
  void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t(4096)); }
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedFree>;
inline AlignedBytes MakeAligned(size_t bytes) {
  return AlignedBytes(static_cast<std::byte*>(::operator new(bytes, std::align_val_t(4096))));
}

// Device and remote memory of one operation, and how it ended.
struct Transfer {
  TransferOpcode opcode;
  size_t length;
  size_t phase;
  AlignedBytes device;  // 64 B of margin on both sides, and the phase
  AlignedBytes remote;
  std::vector<Result<void>> ends;
  std::vector<std::byte> at_end;  // what the destination held when it ended

  std::byte* device_bytes() const { return device.get() + 64 + phase; }
  std::byte* destination() const { return opcode == TransferOpcode::kRead ? device_bytes() : remote.get(); }
  std::byte* origin() const { return opcode == TransferOpcode::kRead ? remote.get() : device_bytes(); }
  bool ended() const { return !ends.empty(); }
  ErrorCode code() const { return ends.at(0) ? ErrorCode::OK : ends.at(0).error().code(); }
  // Source unharmed; on success the destination equals it; around the device memory nothing was written; and since the
  // operation ended, nothing has changed.
  void Check(unsigned seed) const {
    ASSERT_EQ(ends.size(), 1u);
    if (length == 0) return;
    for (size_t i = 0; i < 64 + phase; ++i) ASSERT_EQ(device[i], std::byte{0x5A});
    for (size_t i = 0; i < 64; ++i) ASSERT_EQ(device_bytes()[length + i], std::byte{0x5A});
    for (size_t i = 0; i < length; ++i) ASSERT_EQ(origin()[i], Byte(i, seed)) << i;
    if (code() == ErrorCode::OK) {
      ASSERT_EQ(std::memcmp(destination(), origin(), length), 0);
    }
    if (code() == ErrorCode::OK || opcode == TransferOpcode::kRead) {
      ASSERT_EQ(std::memcmp(destination(), at_end.data(), length), 0) << "touched after its end";
    }
  }
  static std::byte Byte(size_t i, unsigned seed) { return static_cast<std::byte>((i * 131 + i / 4096 + seed) & 0xFF); }
};

// A lane by hand: its Step is called by the test, with the test's time.
class LaneHarness {
 public:
  explicit LaneHarness(LaneOptions options, size_t slots = 8, size_t depth = 2)
      : memory_(MakeAligned(slots * options.scheduler.slot_bytes)),
        ring({memory_.get(), slots * options.scheduler.slot_bytes}, options.scheduler.slot_bytes),
        port(depth),
        core(std::make_unique<LaneCore>(0, options, ring, port)) {}
  ~LaneHarness() {
    if (core != nullptr) Close();
  }
  // Stops and lets everything that is under way end.
  void Close() {
    core->Stop();
    for (int i = 0; i < 1'000'000 && !core->Done(); ++i) {
      Step();
      while (port.EndOne()) continue;
      while (wire.EndOne(Error(ErrorCode::TRANSFER_CANCELED, "canceled"))) continue;
      now += std::chrono::milliseconds(100);
    }
    EXPECT_TRUE(core->Done());
    core.reset();
    EXPECT_EQ(ring.count(SlotState::kFree), ring.size());
  }

  Transfer& Start(TransferOpcode opcode, size_t length, BatchId tag = 1, size_t phase = 0,
                  Duration timeout = std::chrono::hours(1), const SegmentPtr& peer = nullptr) {
    auto transfer = std::make_unique<Transfer>(
        Transfer{opcode, length, phase, MakeAligned(length + phase + 128), MakeAligned(length + 64), {}, {}});
    Transfer& made = *transfer;
    std::memset(made.device.get(), 0x5A, length + phase + 128);
    const auto seed = static_cast<unsigned>(transfers.size());
    for (size_t i = 0; i < length; ++i) made.origin()[i] = Transfer::Byte(i, seed);
    std::memset(made.destination(), 0xEE, length);
    TransferOperation operation;
    operation.opcode = opcode;
    operation.local =
        NpuRange{{0, static_cast<DeviceAddress>(reinterpret_cast<uintptr_t>(made.device_bytes()))}, length, nullptr};
    operation.target = peer == nullptr ? peers[0] : peer;
    operation.target_address = reinterpret_cast<uint64_t>(made.remote.get());
    operation.tag = tag;
    operation.deadline = Deadline::After(timeout + (now - SteadyClock::Instance().Now()));
    operation.done = [&made](Result<void> result) {
      made.ends.push_back(std::move(result));
      made.at_end.assign(made.destination(), made.destination() + made.length);
    };
    std::vector<BridgedOperation> one;
    one.push_back({std::move(operation), &wire});
    core->Submit(std::move(one));
    transfers.push_back(std::move(transfer));
    return made;
  }
  void Step() {
    while (core->Step(now)) CheckInvariants();
    CheckInvariants();
  }
  // Everything that can end does, successfully.
  void Drain() {
    for (int i = 0; i < 1'000'000; ++i) {
      Step();
      bool any = false;
      while (port.EndOne()) any = true;
      while (wire.EndOne()) any = true;
      if (any) continue;
      const auto wake = core->WakeAt(now);
      if (!wake || *wake - now > std::chrono::minutes(30)) return;
      now = std::max(now, *wake);
    }
    ADD_FAILURE() << "does not come to an end";
  }
  void CheckInvariants() const {
    size_t sum = 0;
    for (size_t i = 0; i < kSlotStates; ++i) sum += ring.count(static_cast<SlotState>(i));
    ASSERT_EQ(sum, ring.size());
    // No slot is free while something may touch it.
    const auto busy = [&](const std::byte* at) {
      const auto slot = static_cast<SlotRing::Slot>(static_cast<size_t>(at - memory_.get()) / ring.slot_bytes());
      ASSERT_NE(ring.state(slot), SlotState::kFree);
    };
    for (const auto& [ticket, copy] : port.running) {
      for (const SlotCopy& part : copy.copies) busy(part.host);
    }
    for (const TransferOperation& part : wire.held) busy(std::get<HostRange>(part.local).data());
    for (const auto& [ticket, copy] : port.running) {
      for (const auto& transfer : transfers) {
        if (!transfer->ended() || transfer->length == 0) continue;
        for (const SlotCopy& part : copy.copies) {
          const auto* const device = reinterpret_cast<const std::byte*>(part.device.device_ptr);
          ASSERT_FALSE(device >= transfer->device.get() && device < transfer->device_bytes() + transfer->length)
              << "an ended operation's memory is still copied";
        }
      }
    }
  }
  void CheckAll() const {
    for (size_t i = 0; i < transfers.size(); ++i) transfers[i]->Check(static_cast<unsigned>(i));
  }
  size_t in_use() const { return ring.size() - ring.count(SlotState::kFree); }

  static SegmentPtr MakePeer(std::string name) {
    return std::make_shared<const SegmentDescriptor>(
        SegmentDescriptor{.name = std::move(name), .generation = Uuid::Random()});
  }

 private:
  AlignedBytes memory_;

 public:
  TimePoint now = SteadyClock::Instance().Now();
  std::vector<SegmentPtr> peers{MakePeer("peer-a"), MakePeer("peer-b"), MakePeer("peer-c")};
  SlotRing ring;
  FakePort port;
  FakeWire wire;
  std::vector<std::unique_ptr<Transfer>> transfers;
  std::unique_ptr<LaneCore> core;
};

}  // namespace mooncake::bridge
