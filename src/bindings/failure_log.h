// The reason behind a negative code on stderr: Python programs see only the number.
#pragma once

#include <string_view>

#include "common/status.h"

namespace mooncake::python {

// One line for a failed key of a data call, at most one line a second for the process, with the number of those left
// out. Misses and calls on a closing store are ordinary results and not reported; so are full tiers, unless the log
// level is debug: then the line says what is free, evictable and held on each tier. Any thread.
void ReportFailure(const char* call, std::string_view key, const Status& status);

}  // namespace mooncake::python
