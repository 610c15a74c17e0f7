// The yardstick for TCP: iperf3, one stream over loopback.
#pragma once

#include <memory>
#include <string>

#include "bench/child.h"

namespace mooncake::bench {

// A port of 127.0.0.1 that was free a moment ago, for programs that cannot take port 0; 0: none.
uint16_t FreePort();

// A running iperf3 server and the measurements against it. One thread.
class Iperf {
 public:
  // Null when iperf3 is not installed.
  static Result<std::unique_ptr<Iperf>> Start();

  // GB/s that one stream of 1 MiB writes receives, in a second, with the given congestion control.
  Result<double> Measure(const std::string& congestion);

 private:
  Iperf(Child server, uint16_t port) : server_(std::move(server)), port_(port) {}

  Child server_;
  uint16_t port_;
};

}  // namespace mooncake::bench
