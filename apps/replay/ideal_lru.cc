// The textbook list and map.
#include "replay/ideal_lru.h"

namespace mooncake::replay {

size_t IdealLru::Request(std::span<const uint64_t> ids) {
  size_t prefix = 0;
  while (prefix < ids.size() && resident_.contains(ids[prefix])) ++prefix;
  for (const uint64_t id : ids) Use(id);
  hits_ += prefix;
  blocks_ += ids.size();
  return prefix;
}

void IdealLru::Use(uint64_t id) {
  if (capacity_ == 0) return;
  if (const auto found = resident_.find(id); found != resident_.end()) {
    order_.splice(order_.begin(), order_, found->second);
    return;
  }
  if (resident_.size() == capacity_) {
    resident_.erase(order_.back());
    order_.pop_back();
  }
  order_.push_front(id);
  resident_.emplace(id, order_.begin());
}

}  // namespace mooncake::replay
