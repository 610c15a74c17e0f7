// A free list, and the table of allowed transitions.
#include "transfer_engine/transport/ascend_rdma/slot_ring.h"

#include <algorithm>

#include "device/npu_driver.h"

namespace mooncake::bridge {
namespace {

constexpr uint32_t Bit(SlotState state) {
  return 1u << static_cast<uint32_t>(state);
}

// Where a slot may go from each state, in the order of SlotState.
constexpr std::array<uint32_t, kSlotStates> kAllowed = {
    /* free */ Bit(SlotState::kReserved),
    /* reserved */ Bit(SlotState::kCopying) | Bit(SlotState::kOnWire) | Bit(SlotState::kFree),
    /* copying */ Bit(SlotState::kReady) | Bit(SlotState::kFree) | Bit(SlotState::kQuarantined),
    /* ready */ Bit(SlotState::kOnWire) | Bit(SlotState::kFree),
    /* on wire */ Bit(SlotState::kArrived) | Bit(SlotState::kFree) | Bit(SlotState::kQuarantined),
    /* arrived */ Bit(SlotState::kCopying) | Bit(SlotState::kFree) | Bit(SlotState::kQuarantined),
    /* quarantined */ Bit(SlotState::kFree),
};

bool DirectionAllows(Direction direction, SlotState from, SlotState to) {
  if (direction == Direction::kWrite)
    return to != SlotState::kArrived && !(from == SlotState::kReserved && to == SlotState::kOnWire);
  return to != SlotState::kReady && !(from == SlotState::kReserved && to == SlotState::kCopying);
}

}  // namespace

std::string_view Name(SlotState state) {
  static constexpr std::array<std::string_view, kSlotStates> kNames = {"free",    "reserved", "copying",    "ready",
                                                                       "on wire", "arrived",  "quarantined"};
  return kNames[static_cast<size_t>(state)];
}

SlotRing::SlotRing(HostRange memory, size_t slot_bytes) : memory_(memory), slot_bytes_(slot_bytes) {
  MC_CHECK(slot_bytes > 0 && slot_bytes % kAsyncAlignment == 0, "slots of {} B", slot_bytes);
  MC_CHECK(reinterpret_cast<uintptr_t>(memory.data()) % kAsyncAlignment == 0, "slots begin at {}",
           static_cast<void*>(memory.data()));
  MC_CHECK(memory.size() >= slot_bytes && memory.size() % slot_bytes == 0, "{} B in slots of {} B", memory.size(),
           slot_bytes);
  slots_.resize(memory.size() / slot_bytes);
  for (size_t i = slots_.size(); i-- > 0;) free_.push_back(static_cast<Slot>(i));
  counts_[static_cast<size_t>(SlotState::kFree)] = slots_.size();
}

SlotRing::~SlotRing() {
  MC_CHECK(count(SlotState::kFree) == size(), "{} of {} slots are free at the end", count(SlotState::kFree), size());
}

std::optional<SlotRing::Slot> SlotRing::Take(Direction direction, bool bulk) {
  if (free_.empty()) return std::nullopt;
  const size_t usable = size() - count(SlotState::kQuarantined);
  const size_t kept = usable / 4 + (bulk ? 1 : 0);
  const size_t limit = usable > kept ? usable - kept : 1;
  if (used_[Index(direction)] >= limit) return std::nullopt;
  const Slot slot = free_.back();
  slots_[slot].direction = direction;
  Move(slot, SlotState::kReserved);
  return slot;
}

void SlotRing::Move(Slot slot, SlotState to) {
  MC_CHECK(slot < slots_.size(), "slot {} of {}", slot, slots_.size());
  Entry& entry = slots_[slot];
  const SlotState from = entry.state;
  MC_CHECK((kAllowed[static_cast<size_t>(from)] & Bit(to)) != 0 && DirectionAllows(entry.direction, from, to),
           "slot {}: {} -> {}", slot, Name(from), Name(to));
  --counts_[static_cast<size_t>(from)];
  ++counts_[static_cast<size_t>(to)];
  entry.state = to;
  size_t& used = used_[Index(entry.direction)];
  if (from == SlotState::kFree) {
    MC_CHECK(free_.back() == slot, "slot {} is not the next free one", slot);
    free_.pop_back();
    ++used;
  } else if (to == SlotState::kQuarantined || (to == SlotState::kFree && from != SlotState::kQuarantined)) {
    --used;
  }
  if (to == SlotState::kFree) free_.push_back(slot);
}

}  // namespace mooncake::bridge
