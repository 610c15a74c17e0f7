// Gathers the copies of one batch call, so that many small ones of a device share one synchronisation.
#pragma once

#include <functional>
#include <vector>

#include "device/memory_range.h"

namespace mooncake {

// One thread. Copies between host ranges happen at once. The others wait for the group to be full: it is bounded,
// because blocks that wait for their bytes cannot be evicted. Flush before the results are looked at.
class CopyGroup {
 public:
  using Done = std::move_only_function<void(Result<void>)>;

  // `done` gets the outcome, now or in a later Add or Flush; it keeps alive what the copy touches. Sizes must agree.
  void Add(const MemoryRange& target, const MemoryRange& source, Done done) {
    const size_t size = SizeOf(source);
    if (IsHost(target) && IsHost(source)) {
      done(CopyFromHost(target, std::get<HostRange>(source)));
      return;
    }
    copies_.push_back({.target = target, .source = source});
    done_.push_back(std::move(done));
    bytes_ += size;
    if (copies_.size() >= kMaxCopies || bytes_ >= kMaxBytes) Flush();
  }

  bool empty() const { return copies_.empty(); }

  void Flush() {
    CopyRanges(copies_);
    for (size_t i = 0; i < copies_.size(); ++i) std::exchange(done_[i], nullptr)(std::move(copies_[i].result));
    copies_.clear();
    done_.clear();
    bytes_ = 0;
  }

 private:
  static constexpr size_t kMaxCopies = 256;
  static constexpr size_t kMaxBytes = 8 << 20;

  std::vector<RangeCopy> copies_;
  std::vector<Done> done_;  // of copies_, in its order
  size_t bytes_ = 0;
};

}  // namespace mooncake
