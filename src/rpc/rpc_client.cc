// The public face of a client.
#include "rpc/rpc_client.h"

#include <condition_variable>
#include <mutex>
#include <optional>

#include "common/check.h"
#include "rpc/client_core.h"

namespace mooncake::rpc {
namespace {

// Where a blocked caller waits for its completion.
class Waiter {
 public:
  RpcClient::Completion MakeCompletion() {
    return [this](Result<std::string> outcome) {
      std::lock_guard lock(mutex_);
      outcome_ = std::move(outcome);
      done_.notify_one();  // under the lock: the waiter, and with it this object, goes as soon as it is released
    };
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
  Waiter waiter;
  core_->Submit(MakeCall(method, std::move(body), std::move(arguments), deadline, waiter.MakeCompletion()));
  return waiter.Wait();
}

Result<void> RpcClient::Connect(Deadline deadline) {
  CheckMayBlock(core_->peer());
  Waiter waiter;
  auto call = MakeCall(0, {}, {}, deadline, waiter.MakeCompletion());
  call->connect_only = true;
  core_->Submit(std::move(call));
  MC_TRY(waiter.Wait());
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
