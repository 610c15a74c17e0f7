// The outcome of a replay, as a table for people and as JSON for programs.
#pragma once

#include <string>
#include <vector>

#include "replay/cluster.h"
#include "replay/replayer.h"

namespace mooncake::replay {

struct Summary {
  std::string trace;
  uint64_t requests_total = 0;  // in the trace, within the limit
  bool interrupted = false;     // ended early, by a signal or by failures
  ReplayOptions options;
  double speed = 0;
  ReplayCounts counts;
  double seconds = 0;
  uint64_t ideal_capacity_blocks = 0;
  double ideal_hit_ratio = 0;
  std::vector<TierChange> tiers;

  // Ours minus the ideal one's.
  double HitRatioDifference() const { return counts.HitRatio() - ideal_hit_ratio; }
};

std::string SummaryTable(const Summary& summary);
// Ends with a newline. Every number of the table, unrounded; "version": 1.
std::string SummaryJson(const Summary& summary);

}  // namespace mooncake::replay
