// Moves bytes between places. No lock is held while bytes move.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>

#include "acl/acl.h"
#include "core/ranges.h"

namespace aclemu {

// Values of aclemu.h.
enum class Direction { kH2H = 0, kH2D = 1, kD2H = 2, kD2D = 3 };
const char* Name(Direction direction);
inline Direction DirectionOf(const Place& dst, const Place& src) {
  return static_cast<Direction>((src.OnHost() ? 0 : 2) + (dst.OnHost() ? 0 : 1));
}

// Marks a block as used by a queued task for as long as this lives.
class InFlight {
 public:
  InFlight() = default;
  explicit InFlight(std::shared_ptr<Range> range) : range_(std::move(range)) {
    if (range_ != nullptr) range_->in_flight.fetch_add(1, std::memory_order_relaxed);
  }
  InFlight(InFlight&& other) noexcept : range_(std::move(other.range_)) {}
  InFlight& operator=(InFlight&& other) noexcept {
    std::swap(range_, other.range_);
    return *this;
  }
  ~InFlight() {
    if (range_ != nullptr) range_->in_flight.fetch_sub(1, std::memory_order_release);
  }

 private:
  std::shared_ptr<Range> range_;
};

// Copies; unregistered host ends are reached through the kernel, so that a bad pointer gives ACL_ERROR_RT_COPY_DATA and
// no crash. Overlapping ranges of one block are copied as memmove does.
// Requires that device and pinned ends lie inside the storage of their blocks.
aclError CopyBytes(const Place& dst, const Place& src, uint64_t bytes);
// Requires a device, pinned or registered place.
void SetBytes(const Place& dst, uint8_t value, uint64_t bytes);

}  // namespace aclemu
