// One line per call in the file of ACLEMU_TRACE. Thread safe.
#pragma once
#include <cstdint>

#include "core/clock.h"
#include "core/report.h"

namespace aclemu {

// What a call is about, for fault filters, the trace and ACLEMU_POISON_OUT. device: when it is not that of the thread.
struct CallArgs {
  const void* a = nullptr;
  const void* b = nullptr;
  uint64_t bytes = 0;
  const void* stream = nullptr;
  bool has_stream = false;
  int device = -1;
  void* out = nullptr;  // what the call gives back through
  uint64_t out_bytes = 0;
};

bool Tracing();
Clock::time_point TraceBegin();
// Microseconds since the first call, duration, thread, function, arguments, code.
void Trace(Api api, const CallArgs& args, Clock::time_point begin, aclError code);

}  // namespace aclemu
