// How far a replay is: one line rewritten in place on a terminal, a plain line every few seconds elsewhere.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "common/clock.h"
#include "replay/replayer.h"

namespace mooncake::replay {

// "[####----]  125/500 requests  3120 blocks/s  812 MB/s  hits 13.4 %  ETA 0:07"
std::string ProgressLine(const ReplayCounts& counts, uint64_t total_requests, double seconds, bool with_bar);

// One thread. Lines of others must go through Interrupt, or they end up inside the bar.
class Progress {
 public:
  Progress(std::FILE* out, bool is_terminal, uint64_t total_requests);

  // Draws if the last time was long enough ago.
  void Update(const ReplayCounts& counts);
  void Interrupt(const std::string& line);
  // Wipes the bar.
  void Finish();

 private:
  std::FILE* const out_;
  const bool terminal_;
  const uint64_t total_requests_;
  const TimePoint start_;
  TimePoint next_;
};

}  // namespace mooncake::replay
