// One copy or fill from its begin to its end: faults, modelled time, bytes, counters.
#pragma once
#include "core/clock.h"
#include "core/copy.h"
#include "core/report.h"

namespace aclemu {

struct Transfer {
  const Place& dst;
  const Place& src;  // of a fill: dst again
  uint64_t bytes;
  Api api;
  bool async;
  int64_t stream;           // number of the stream, -1 for none
  Clock::time_point ready;  // in model time; not used when the model is off
  const Stop* stop;         // null for a synchronous one
};

struct Outcome {
  aclError code = ACL_SUCCESS;
  Clock::time_point end{};  // in model time
};

// Returns at the modelled end; virtual time: at once, and the clock is not moved.
Outcome RunCopy(const Transfer& transfer);
Outcome RunFill(const Transfer& transfer, uint8_t value);

}  // namespace aclemu
