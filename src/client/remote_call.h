// One asynchronous call whose result somebody waits for.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>

#include "common/status.h"

namespace mooncake {

// Completed once, on any thread, and waited for by one. The wait has no deadline of its own: the call underneath has,
// and completes only after it has let go of the memory it was given.
class PendingReply {
 public:
  void Complete(Result<std::string> reply) {
    std::lock_guard lock(mutex_);
    reply_ = std::move(reply);
    done_.notify_one();
  }
  Result<std::string> Wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return reply_.has_value(); });
    return std::move(reply_).value();
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  std::optional<Result<std::string>> reply_;
};

}  // namespace mooncake
