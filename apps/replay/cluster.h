// What the master says about the cluster's tiers, and what a replay did to them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/master_messages.h"

namespace mooncake::replay {

struct TierChange {
  std::string endpoint;        // of its owner
  protocol::TierState before;  // zeros when the tier was not there yet
  protocol::TierState after;   // as before when the tier is gone
  bool gone = false;

  uint64_t demotions() const { return after.demoted_out - before.demoted_out; }
  uint64_t drops() const { return after.dropped - before.dropped; }
};

// Whole blocks that fit all tiers of clients that are alive.
uint64_t CapacityBlocks(const protocol::ListClientsReply& cluster, uint64_t block_bytes);

// Tier by tier, in the order the master lists them.
std::vector<TierChange> CompareTiers(const protocol::ListClientsReply& before, const protocol::ListClientsReply& after);

}  // namespace mooncake::replay
