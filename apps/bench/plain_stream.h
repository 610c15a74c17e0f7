// The yardstick for TCP transfers larger than what iperf3 sends from: one stream between two ranges of memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "common/status.h"

namespace mooncake::bench {

// GB/s of one connection over 127.0.0.1 that carries `from` into `to`, of the same size, `rounds` times; one thread
// sends and one receives, pieces of 1 MiB. iperf3 uses one buffer of 1 MiB at each end, which stays in the caches.
Result<double> MeasurePlainStream(std::span<std::byte> from, std::span<std::byte> to, size_t rounds,
                                  const std::string& congestion);

}  // namespace mooncake::bench
