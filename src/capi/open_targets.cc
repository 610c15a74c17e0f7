// The list of targets used last.
#include "capi/open_targets.h"

namespace mooncake {

Result<OpenTargets::Use> OpenTargets::Open(const std::string& name, Deadline deadline) {
  Use use(engine_, MC_TRY(engine_.OpenSegment(name, deadline)));
  if (!Touch(name)) Keep(name, Use(engine_, MC_TRY(engine_.OpenSegment(name, deadline))));
  return use;
}

bool OpenTargets::Touch(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return false;
  kept_.splice(kept_.begin(), kept_, found->second);
  return true;
}

void OpenTargets::Keep(const std::string& name, Use use) {
  std::list<Kept> dropped;  // closed after the lock is gone
  const std::lock_guard lock(mutex_);
  if (by_name_.contains(name)) return;  // another thread was first
  kept_.push_front({name, std::move(use)});
  by_name_.emplace(name, kept_.begin());
  if (kept_.size() <= most_) return;
  by_name_.erase(kept_.back().name);
  dropped.splice(dropped.begin(), kept_, std::prev(kept_.end()));
}

size_t OpenTargets::size() const {
  const std::lock_guard lock(mutex_);
  return kept_.size();
}

}  // namespace mooncake
