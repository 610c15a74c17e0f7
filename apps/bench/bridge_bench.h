// The bridge between NPU memory and a host transport, beside copy-then-send on the same copies and the same wire.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "common/status.h"

namespace mooncake::bench {

struct BridgeBenchOptions {
  int runs = 11;
  bool quick = false;                   // few sizes, short streams: shows that it works, measures nothing
  std::string self = "/proc/self/exe";  // started again, for what is measured in virtual time
  std::function<void(const std::string& step)> on_step;
};

struct BridgeBenchResult {
  Host host;
  std::vector<Figure> figures;
};

// Needs an NPU runtime with a device. Against the throughput model, and in virtual time, only on the emulator
// (PrepareEmulator). To be called before this process has threads.
Result<BridgeBenchResult> RunBridgeBench(const BridgeBenchOptions& options);

// The second process: prints what it measures, in virtual time.
Result<void> ServeVirtualTime(int runs, bool quick);

}  // namespace mooncake::bench
