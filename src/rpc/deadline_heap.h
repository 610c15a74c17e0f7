// Deadlines of the calls in flight, earliest first. Calls that ended are dropped lazily, so ending one costs nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/clock.h"

namespace mooncake::rpc::internal {

class DeadlineHeap {
 public:
  struct Entry {
    TimePoint time;
    uint64_t id;
  };

  bool empty() const { return entries_.empty(); }
  const Entry& top() const { return entries_.front(); }

  void Push(Entry entry) {
    entries_.push_back(entry);
    std::push_heap(entries_.begin(), entries_.end(), Later);
  }
  void Pop() {
    std::pop_heap(entries_.begin(), entries_.end(), Later);
    entries_.pop_back();
  }
  void Clear() { entries_.clear(); }

  // Bounds the memory by the number of live calls; each entry is looked at a constant number of times on average.
  template <typename IsLive>
  void CompactIfStale(size_t live, IsLive is_live) {
    if (entries_.size() < 64 + 2 * live) return;
    std::erase_if(entries_, [&](const Entry& entry) { return !is_live(entry.id); });
    std::make_heap(entries_.begin(), entries_.end(), Later);
  }

 private:
  static bool Later(const Entry& a, const Entry& b) { return a.time > b.time; }

  std::vector<Entry> entries_;
};

}  // namespace mooncake::rpc::internal
