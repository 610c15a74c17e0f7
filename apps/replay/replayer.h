// Does to a cluster what an inference engine would: look up the cached prefix of a prompt, get it, put the rest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "client/real_client.h"
#include "common/status.h"
#include "replay/ideal_lru.h"
#include "replay/trace.h"

namespace mooncake::replay {

struct ReplayOptions {
  uint64_t block_bytes = 0;
  std::string key_prefix;             // a key is this and the block's id
  bool verify = true;                 // compare every byte read
  size_t window_blocks = 64;          // read or written by one call, and so the memory held...
  uint64_t window_bytes = 256 << 20;  // ...but not more than this, unless one block is larger
};

struct ReplayCounts {
  uint64_t requests = 0;
  uint64_t blocks = 0;
  uint64_t hits = 0;  // blocks of cached prefixes, read and right
  uint64_t local_hits = 0;
  uint64_t remote_hits = 0;
  std::array<uint64_t, 4> hits_by_type{};  // by MemoryType of the owner's tier
  uint64_t vanished = 0;                   // there at the look-up, gone at the get: a miss
  uint64_t puts = 0;                       // blocks stored that were not there at the look-up
  uint64_t puts_present = 0;               // put again behind a hole in the prefix
  uint64_t lookup_failures = 0;            // requests
  uint64_t get_failures = 0;
  uint64_t put_failures = 0;
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;  // of `puts`
  uint64_t verified = 0;       // blocks compared
  uint64_t verification_errors = 0;

  double HitRatio() const { return blocks == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(blocks); }
};

// One thread. Failures of blocks are counted, and the first few described through `report`.
class Replayer {
 public:
  using Report = std::function<void(const std::string& line)>;

  // The client outlives this.
  Replayer(RealClient& client, ReplayOptions options, IdealLru ideal, Report report);

  // Plays one request. An error means that going on is pointless: several look-ups in a row got no answer.
  Result<void> Play(const TraceRequest& request);

  const ReplayCounts& counts() const { return counts_; }
  const IdealLru& ideal() const { return ideal_; }
  const ReplayOptions& options() const { return options_; }

 private:
  enum class BlockState { kHit, kMiss, kBad };

  // Which of the keys exist, as far as that can be told.
  Result<std::vector<bool>> LookUp();
  // Reads the blocks that were there, returns how many of them are a prefix read and right.
  size_t GetPrefix(std::span<const uint64_t> ids);
  BlockState Settle(uint64_t id, std::span<const std::byte> block, const Result<ObjectInfo>& result);
  void PutFrom(std::span<const uint64_t> ids, size_t first, const std::vector<bool>& existed);
  std::span<std::byte> Slot(size_t index);
  void Describe(const std::string& line);

  RealClient& client_;
  const ReplayOptions options_;
  const size_t window_;
  IdealLru ideal_;
  const Report report_;
  ReplayCounts counts_;
  std::vector<std::byte> memory_;  // one window
  std::vector<std::string> keys_;  // of the request being played
  int lookups_failed_in_a_row_ = 0;
  uint64_t described_ = 0;
};

}  // namespace mooncake::replay
