// The bridge's pipeline by hand, in the emulator's virtual time: what its decisions cost, whatever this host is doing.
#pragma once

#include <functional>
#include <string>

#include "common/status.h"

namespace mooncake::bench {

// The environment of a process that will do so; to be called before the runtime is loaded.
void PrepareVirtualTime();

// One line of output per value: name, value, unit, what a ratio is against (may be empty), with '|' between.
// NOT_IMPLEMENTED without an emulator in virtual time.
Result<void> MeasureInVirtualTime(int runs, bool quick, const std::function<void(const std::string& line)>& print);

}  // namespace mooncake::bench
