// Memory and copies of the tiers: what a block costs, how much of the HBM holds data, how fast bytes move on each path.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "common/status.h"

namespace mooncake::bench {

struct TierBenchOptions {
  int runs = 5;
  int threads = 2;     // of the figures that use several
  bool quick = false;  // small sizes: shows that it works, measures nothing
  std::function<void(const std::string& step)> on_step;
};

struct TierBenchResult {
  Host host;
  std::vector<Figure> figures;
};

// Needs an NPU runtime with two devices. Against a model only where the emulator tells one.
Result<TierBenchResult> RunTierBench(const TierBenchOptions& options);

}  // namespace mooncake::bench
