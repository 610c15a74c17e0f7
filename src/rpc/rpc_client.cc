// The public face of a client.
#include "rpc/rpc_client.h"

#include <condition_variable>
#include <mutex>
#include <optional>

#include "common/check.h"
#include "rpc/client_core.h"

namespace mooncake::rpc {
namespace {

// Where a blocked caller waits for its completion. Shared with it, so that the notification may come after the lock is
// gone and the woken caller does not run into it.
class Waiter {
 public:
  void Complete(Result<std::string> outcome) {
    {
      std::lock_guard lock(mutex_);
      outcome_ = std::move(outcome);
    }
    done_.notify_one();
  }

  Result<std::string> Wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return outcome_.has_value(); });
    return std::move(*outcome_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  std::optional<Result<std::string>> outcome_;
};

RpcClient::Completion CompletionOf(const std::shared_ptr<Waiter>& waiter) {
  return [waiter](Result<std::string> outcome) { waiter->Complete(std::move(outcome)); };
}

std::unique_ptr<internal::PendingCall> MakeCall(uint16_t method, std::string body, CallArguments arguments,
                                                Deadline deadline, RpcClient::Completion completion) {
  return std::unique_ptr<internal::PendingCall>(new internal::PendingCall{.method = method,
                                                                          .body = std::move(body),
                                                                          .arguments = std::move(arguments),
                                                                          .deadline = deadline,
                                                                          .started = SteadyClock::Instance().Now(),
                                                                          .completion = std::move(completion),
                                                                          .outcome = {}});
}

void CheckMayBlock(const Endpoint& peer) {
  MC_CHECK(!internal::IoThread::CurrentIsAny(), "a blocking call to {} from an I/O thread would never return",
           peer.ToString());
}

}  // namespace

std::shared_ptr<RpcClient> RpcClient::Create(IoPool& pool, ClientOptions options) {
  const auto thread = pool.NextThread();
  auto core = std::make_shared<internal::ClientCore>(thread, std::move(options));
  if (!thread->Register(core)) core->Close();
  return std::shared_ptr<RpcClient>(new RpcClient(std::move(core)));
}

RpcClient::RpcClient(std::shared_ptr<internal::ClientCore> core) : core_(std::move(core)) {}
RpcClient::~RpcClient() {
  Close();
}

void RpcClient::CallAsync(uint16_t method, std::string body, CallArguments arguments, Deadline deadline,
                          Completion completion) {
  core_->Submit(MakeCall(method, std::move(body), std::move(arguments), deadline, std::move(completion)));
}

Result<std::string> RpcClient::Call(uint16_t method, std::string body, Deadline deadline, CallArguments arguments) {
  CheckMayBlock(core_->peer());
  const auto waiter = std::make_shared<Waiter>();
  core_->Submit(MakeCall(method, std::move(body), std::move(arguments), deadline, CompletionOf(waiter)));
  return waiter->Wait();
}

Result<void> RpcClient::Connect(Deadline deadline) {
  CheckMayBlock(core_->peer());
  const auto waiter = std::make_shared<Waiter>();
  auto call = MakeCall(0, {}, {}, deadline, CompletionOf(waiter));
  call->connect_only = true;
  core_->Submit(std::move(call));
  MC_TRY(waiter->Wait());
  return {};
}

Identity RpcClient::peer_identity() const {
  return core_->peer_identity();
}
bool RpcClient::connected() const {
  return core_->connected();
}
void RpcClient::Close() {
  core_->Close();
}

}  // namespace mooncake::rpc
