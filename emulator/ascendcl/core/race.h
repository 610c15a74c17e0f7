// Race detection (ACLEMU_RACE=1): which bytes queued tasks read and write, and who touches them meanwhile. A violation
// is a proof: whatever might be ordered in a way not seen here is left alone. Thread safe.
#pragma once
#include <cstdint>
#include <utility>

#include "acl/acl.h"
#include "core/ranges.h"

namespace aclemu {

struct Task;

// The accesses of one queued task, for as long as this lives.
class RaceTicket {
 public:
  RaceTicket() = default;
  // Notes the task. Keeps a sum of its source if that is host memory nothing else writes, and overwrites its
  // destination if that is host memory nothing else uses.
  explicit RaceTicket(const Task& task);
  RaceTicket(RaceTicket&& other) noexcept : id_(std::exchange(other.id_, 0)) {}
  RaceTicket& operator=(RaceTicket&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~RaceTicket();

  // Rule R1: 0 unless the source changed since the submit. To be asked when the bytes were moved.
  aclError CheckSource(const Task& task) const;

 private:
  uint64_t id_ = 0;
};

// Rule C12: 0 unless a queued task uses bytes that a synchronous call is about to write, or writes bytes that it is
// about to read. src is null for a fill.
aclError CheckSynchronous(const Place& dst, const Place* src, uint64_t bytes);

}  // namespace aclemu
