// Throughput and latency of the transfer engine between two processes, beside iperf3, memmove and perftest.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "common/status.h"

namespace mooncake::bench {

struct TransferBenchOptions {
  int runs = 11;
  bool quick = false;                   // small sizes and few calls: shows that it works, measures nothing
  std::vector<size_t> sizes;            // bytes of a request; empty: the fixed set
  std::vector<std::string> protocols;   // "tcp", "samehost", "rdma"; empty: those that this host has
  std::vector<std::string> operations;  // "read", "write"; empty: both
  int threads = 1;                      // that transfer at the same time, each from and to memory of its own
  int batch = 0;                        // requests of a call; 0: as many as make 16 MiB, one of up to 64 KiB
  std::vector<double> percentiles;      // of the time of a call, 0 to 100; empty: 50 and 99
  std::string self = "/proc/self/exe";  // started again as the second process
  std::function<void(const std::string& step)> on_step;
};

struct TransferBenchResult {
  Host host;
  std::vector<Figure> figures;
};

// INVALID_PARAMS naming the option.
Result<void> CheckTransferBench(const TransferBenchOptions& options);

// Starts everything itself, on 127.0.0.1. To be called before this process has threads.
Result<TransferBenchResult> RunTransferBench(const TransferBenchOptions& options);

// The second process: offers `capacity_bytes` of memory. Prints "ready NAME ADDRESS", serves until stdin ends.
Result<void> ServeAsTarget(uint64_t capacity_bytes, bool rdma);

}  // namespace mooncake::bench
