// Request traces: one JSON object a line, with the blocks each request's prompt is made of.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace mooncake::replay {

// Tokens of one block of a trace.
inline constexpr uint64_t kTokensPerBlock = 512;

struct TraceRequest {
  double timestamp_ms = 0;          // since the trace's start
  uint64_t input_length = 0;        // tokens
  uint64_t output_length = 0;       // tokens
  std::vector<uint64_t> block_ids;  // equal ids = equal content, position by position from the prompt's start
};

// One line: {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}; further members are
// ignored. INVALID_PARAMS says what is wrong with it.
Result<TraceRequest> ParseTraceLine(std::string_view line);

// The first `limit` requests of a file (0 = all); blank lines are passed over. Errors begin with "file:line: " and name
// the first bad line; a file without requests is an error. Blocks on reading.
Result<std::vector<TraceRequest>> LoadTrace(const std::string& path, uint64_t limit);

}  // namespace mooncake::replay
