// The yardstick for RDMA: ib_write_bw and ib_read_bw between two processes of this host.
#pragma once

#include <string>

#include "common/status.h"

namespace mooncake::bench {

enum class PerftestDirection { kRead, kWrite };

// False when perftest is not installed.
Result<bool> HasPerftest();

// GB/s of messages of `bytes` over one queue pair of the device, `messages` of them.
Result<double> MeasurePerftest(PerftestDirection direction, const std::string& device, size_t bytes, size_t messages);

// The average of the row for `bytes` in the report of one of these programs, from Gb/s to GB/s.
Result<double> ParsePerftest(const std::string& report, size_t bytes);

}  // namespace mooncake::bench
