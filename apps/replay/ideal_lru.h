// The yardstick: one cache of the cluster's whole size that always lets the least recently used block go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>

namespace mooncake::replay {

// Sees the same requests as the cluster. Not thread-safe.
class IdealLru {
 public:
  explicit IdealLru(uint64_t capacity_blocks) : capacity_(capacity_blocks) {}

  // Number of leading blocks that are there; afterwards every block of the request has been used, in order.
  size_t Request(std::span<const uint64_t> ids);

  uint64_t capacity_blocks() const { return capacity_; }
  uint64_t hits() const { return hits_; }
  uint64_t blocks() const { return blocks_; }
  double HitRatio() const { return blocks_ == 0 ? 0.0 : static_cast<double>(hits_) / static_cast<double>(blocks_); }

 private:
  void Use(uint64_t id);

  const uint64_t capacity_;
  uint64_t hits_ = 0;
  uint64_t blocks_ = 0;
  std::list<uint64_t> order_;  // most recent first
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> resident_;
};

}  // namespace mooncake::replay
