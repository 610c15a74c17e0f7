// Notifications as calls to the targets' engines.
#include "transfer_engine/notifier.h"

#include "protocol/methods.h"
#include "transfer_engine/engine_messages.h"

namespace mooncake {

void Notifier::Send(const std::shared_ptr<Submission>& submission) {
  const std::vector<Submission::Target> targets = submission->targets;  // nobody changes them any more
  submission->unfinished = targets.size();                              // from here on it counts answers
  {
    std::lock_guard lock(mutex_);
    calls_ += targets.size();
  }
  const std::string body =
      rpc::Encode(NotifyMessage{.name = submission->notify->name, .message = submission->notify->message});
  for (const Submission::Target& target : targets) {
    auto link = links_.To(target.segment->control, target.segment->generation);
    if (!link) {
      Answered(submission, std::unexpected(link.error()));
      continue;
    }
    (*link)->CallAsync(protocol::kEngineNotify, body, {}, submission->deadline,
                       [this, submission](Result<std::string> answer) { Answered(submission, answer); });
  }
}

void Notifier::Answered(const std::shared_ptr<Submission>& submission, const Result<std::string>& answer) {
  bool last = false;
  {
    std::lock_guard lock(submission->mutex);
    if (!answer && submission->failure) {
      submission->failure = Annotate(answer.error(), "the data is in place, but the notification was not taken");
    }
    last = --submission->unfinished == 0;
  }
  if (last) submission->batch->End(submission->notify_item, submission->failure);
  std::lock_guard lock(mutex_);
  if (--calls_ == 0) idle_.notify_all();
}

void Notifier::WaitIdle() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return calls_ == 0; });
}

}  // namespace mooncake
