// Sends the notifications of submissions once their data is in place.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "transfer_engine/peer_links.h"
#include "transfer_engine/transfer_job.h"

namespace mooncake {

// Any thread. The connections end their calls before it goes.
class Notifier {
 public:
  explicit Notifier(PeerLinks& links) : links_(links) {}
  ~Notifier() { WaitIdle(); }
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  // To every target, over the connection to the very process that got the data; then ends the submission's item: with
  // success when all have taken it.
  void Send(const std::shared_ptr<Submission>& submission);
  // Until no call is under way.
  void WaitIdle();

 private:
  void Answered(const std::shared_ptr<Submission>& submission, const Result<std::string>& answer);

  PeerLinks& links_;
  std::mutex mutex_;
  std::condition_variable idle_;
  size_t calls_ = 0;
};

}  // namespace mooncake
