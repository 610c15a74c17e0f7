// Which clients hold which key: digests to owners, soft state that owners announce and can rebuild at any time.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "common/digest.h"

namespace mooncake {

// Clients are numbered by the registry; a number is not used again. Any thread.
class KeyIndex {
 public:
  struct Owner {
    uint32_t client = 0;
    int32_t type = 3;  // MemoryType
    uint64_t size = 0;
  };

  explicit KeyIndex(size_t shard_count = 256) : shards_(shard_count) {}

  // Adds or updates this client's replica. False, and nothing changes, when `max_owners` others that `counts` accepts
  // hold the key (0 = no limit). `counts` runs under the shard's lock and must not call back here.
  bool Put(const KeyDigest& key, const Owner& owner, size_t max_owners, const std::function<bool(uint32_t)>& counts);
  void Remove(const KeyDigest& key, uint32_t client);
  // Owners in the order they came.
  std::vector<Owner> Find(const KeyDigest& key) const;
  // Forgets everything a client holds; number of replicas removed.
  size_t RemoveClient(uint32_t client);
  size_t KeyCount() const;

 private:
  struct Shard {
    mutable std::mutex mutex;
    std::unordered_map<KeyDigest, std::vector<Owner>> keys;
  };
  Shard& ShardOf(const KeyDigest& key) const { return shards_[key.high % shards_.size()]; }

  mutable std::vector<Shard> shards_;
};

}  // namespace mooncake
