// Throughput and latency of put and get: in one process, between two, and the master's look-ups.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "common/status.h"

namespace mooncake::bench {

struct StoreBenchOptions {
  int runs = 11;
  bool quick = false;                   // small sizes and few calls: shows that it works, measures nothing
  std::string self = "/proc/self/exe";  // started again as the second process
  std::function<void(const std::string& step)> on_step;
};

struct StoreBenchResult {
  Host host;
  std::vector<Figure> figures;
};

// Starts everything itself, on 127.0.0.1. To be called before this process has threads.
Result<StoreBenchResult> RunStoreBench(const StoreBenchOptions& options);

// The second process: lends `capacity_bytes` of DRAM. Reads the master's port from stdin, prints "ready", serves until
// stdin ends.
Result<void> ServeAsPeer(uint64_t capacity_bytes);

}  // namespace mooncake::bench
