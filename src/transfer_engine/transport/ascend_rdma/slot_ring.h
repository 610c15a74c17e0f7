// The host slots through which one device's bytes pass: which are free, and what each of the others is doing.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "device/memory_range.h"

namespace mooncake::bridge {

enum class Direction : uint8_t {
  kWrite,  // NPU -> slot -> peer
  kRead,   // peer -> slot -> NPU
};
inline constexpr size_t kDirections = 2;
constexpr size_t Index(Direction direction) {
  return static_cast<size_t>(direction);
}

enum class SlotState : uint8_t {
  kFree,
  kReserved,     // taken, untouched
  kCopying,      // the NPU reads or fills it
  kReady,        // of a write: filled, waiting for the wire
  kOnWire,       // a network device may read or fill it
  kArrived,      // of a read: filled, waiting for the NPU
  kQuarantined,  // its user has been given up, but nothing has said yet that it is let go of
};
inline constexpr size_t kSlotStates = 7;
std::string_view Name(SlotState state);

// Bookkeeping only: one thread. The memory outlives it, begins at a multiple of 64 and holds whole slots.
class SlotRing {
 public:
  using Slot = uint32_t;

  SlotRing(HostRange memory, size_t slot_bytes);
  ~SlotRing();  // all slots must be free
  SlotRing(const SlotRing&) = delete;
  SlotRing& operator=(const SlotRing&) = delete;

  // A free slot, then reserved. A quarter of the slots is kept for either direction, and bulk traffic leaves one more
  // to whatever is not bulk. nullopt: not now.
  std::optional<Slot> Take(Direction direction, bool bulk);
  // The slot's next state; only the ways of a write and of a read, and the ways out of them, are allowed.
  void Move(Slot slot, SlotState to);

  std::byte* At(Slot slot) const { return memory_.data() + size_t{slot} * slot_bytes_; }
  SlotState state(Slot slot) const { return slots_[slot].state; }
  size_t count(SlotState state) const { return counts_[static_cast<size_t>(state)]; }
  size_t size() const { return slots_.size(); }
  size_t slot_bytes() const { return slot_bytes_; }
  // Slots in use by a direction, without those in quarantine.
  size_t used(Direction direction) const { return used_[Index(direction)]; }

 private:
  struct Entry {
    SlotState state = SlotState::kFree;
    Direction direction = Direction::kWrite;
  };

  const HostRange memory_;
  const size_t slot_bytes_;
  std::vector<Entry> slots_;
  std::vector<Slot> free_;
  std::array<size_t, kSlotStates> counts_{};
  std::array<size_t, kDirections> used_{};
};

}  // namespace mooncake::bridge
