// Sums and differences of tier states.
#include "replay/cluster.h"

#include <algorithm>

namespace mooncake::replay {

uint64_t CapacityBlocks(const protocol::ListClientsReply& cluster, uint64_t block_bytes) {
  uint64_t blocks = 0;
  for (const auto& client : cluster.clients) {
    if (client.suspect) continue;
    for (const auto& tier : client.tiers) blocks += tier.capacity / block_bytes;
  }
  return blocks;
}

std::vector<TierChange> CompareTiers(const protocol::ListClientsReply& before,
                                     const protocol::ListClientsReply& after) {
  std::vector<TierChange> changes;
  for (const auto& client : before.clients) {
    for (const auto& tier : client.tiers) changes.push_back({client.endpoint, tier, tier, /*gone=*/true});
  }
  for (const auto& client : after.clients) {
    for (const auto& tier : client.tiers) {
      const auto known =
          std::find_if(changes.begin(), changes.end(), [&](const auto& change) { return change.before.id == tier.id; });
      if (known == changes.end()) {
        changes.push_back({client.endpoint, {}, tier, /*gone=*/false});
      } else {
        known->after = tier;
        known->gone = false;
      }
    }
  }
  return changes;
}

}  // namespace mooncake::replay
