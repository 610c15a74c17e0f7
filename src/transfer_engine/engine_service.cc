// Handlers of the engine's own methods.
#include "transfer_engine/engine_service.h"

#include "protocol/methods.h"

namespace mooncake {
namespace {

// Notifications are words about data, not data.
constexpr size_t kMaxNotifyBytes = 1 << 20;
constexpr size_t kMaxWaitingNotifyBytes = 256 << 20;
constexpr size_t kMaxWatchesPerSession = 16;

}  // namespace

void EngineService::Serve(rpc::RpcServer& server) {
  using namespace protocol;
  server.Handle<DescribeRequest>(
      kEngineDescribe, [this](rpc::ServerCall call, DescribeRequest request) { Describe(std::move(call), request); });
  server.Handle<NotifyMessage>(kEngineNotify, [this](rpc::ServerCall call, NotifyMessage message) {
    Notify(std::move(call), std::move(message));
  });
  server.Handle(kEngineProbe, [](rpc::ServerCall call) { std::move(call).Reply({}); });
  server.Handle(kEngineWatch, [this](rpc::ServerCall call) { Watch(std::move(call)); });
  server.OnSessionClosed([this](rpc::SessionId session) {
    std::vector<rpc::ServerCall> ended;  // dropped after the lock is gone
    std::lock_guard lock(mutex_);
    const auto found = watches_.find(session);
    if (found == watches_.end()) return;
    ended = std::move(found->second);
    watches_.erase(found);
  });
}

void EngineService::Describe(rpc::ServerCall call, const DescribeRequest& request) {
  DescribeReply reply;
  if (const auto text = self_.Text(request.generation, request.revision)) reply.segment = *text;
  std::move(call).Reply(rpc::Encode(reply));
}

void EngineService::Notify(rpc::ServerCall call, NotifyMessage message) {
  const size_t bytes = message.name.size() + message.message.size();
  const Status refusal = [&] {
    if (bytes > kMaxNotifyBytes) {
      return Status(ErrorCode::INVALID_PARAMS,
                    fmt::format("a notification of {} B, {} are allowed", bytes, kMaxNotifyBytes));
    }
    std::lock_guard lock(mutex_);
    if (notifies_.size() >= max_notifies_ || notify_bytes_ + bytes > kMaxWaitingNotifyBytes) {
      return Status(ErrorCode::TOO_MANY_REQUESTS,
                    fmt::format("{} notifications of {} B wait to be taken already", notifies_.size(), notify_bytes_));
    }
    notifies_.push_back({.name = std::move(message.name), .message = std::move(message.message)});
    notify_bytes_ += bytes;
    return Status();
  }();
  if (!refusal.ok()) return std::move(call).Fail(refusal);
  std::move(call).Reply({});
}

void EngineService::Watch(rpc::ServerCall call) {
  {
    std::lock_guard lock(mutex_);
    std::vector<rpc::ServerCall>& held = watches_[call.session()];
    if (held.size() < kMaxWatchesPerSession) return held.push_back(std::move(call));
  }
  std::move(call).Fail(
      Status(ErrorCode::TOO_MANY_REQUESTS, fmt::format("{} watches on one connection", kMaxWatchesPerSession)));
}

std::vector<TransferNotify> EngineService::TakeNotifies() {
  std::deque<TransferNotify> taken;
  {
    std::lock_guard lock(mutex_);
    taken.swap(notifies_);
    notify_bytes_ = 0;
  }
  return {std::make_move_iterator(taken.begin()), std::make_move_iterator(taken.end())};
}

}  // namespace mooncake
