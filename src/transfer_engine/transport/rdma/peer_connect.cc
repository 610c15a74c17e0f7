// A peer's control connection: the watch over the peer, and the handshake that brings queue pairs up.
#include <algorithm>
#include <cerrno>

#include "protocol/methods.h"
#include "transfer_engine/transport/rdma/peer.h"

namespace mooncake::rdma {
namespace {

constexpr Duration kWatchAgain = std::chrono::milliseconds(200);
constexpr Duration kForEver = std::chrono::hours(24 * 365 * 10);

// Why the control connection ended, or could not be made, as the operations report it.
Status Translate(const Status& why, const std::string& peer) {
  switch (why.code()) {
    case ErrorCode::STALE_SEGMENT:
    case ErrorCode::ILLEGAL_CLIENT:
      return Status(ErrorCode::STALE_SEGMENT, fmt::format("{} is another process now: {}", peer, why.message()));
    default:
      return Status(ErrorCode::TRANSFER_FAIL, fmt::format("{} is gone: {}", peer, why.ToString()));
  }
}

}  // namespace

// A call that is never answered: when it ends, so has the peer or the way to it.
void Peer::Watch(Lock& lock) {
  watched_ = true;
  lock.unlock();
  Result<std::shared_ptr<rpc::RpcClient>> link = fabric_.links.To(target_->control, target_->generation);
  const bool connected = link && (*link)->connected();
  lock.lock();
  if (!link) return Die(Translate(link.error(), PeerName()));
  answered_ = connected;
  link_ = *link;
  lock.unlock();
  link_->CallAsync(
      protocol::kEngineWatch, {}, {}, Deadline::After(kForEver),
      [self = shared_from_this()](Result<std::string> answer) {
        Lock inner(self->mutex_);
        if (!self->gone_) {
          self->OnWatchEnd(answer ? Status(ErrorCode::RPC_FAIL, "it does not want to be watched") : answer.error());
        }
        self->Report(inner);
      });
  lock.lock();
}

// A peer that was there is gone, and so is one where nobody listens. One that is only slow to come is waited for, as
// long as somebody does.
void Peer::OnWatchEnd(const Status& why) {
  const bool unreachable = why.code() == ErrorCode::RPC_FAIL && why.vendor_code() != ECONNREFUSED;
  if (answered_ || !unreachable || !HasWork()) return Die(Translate(why, PeerName()));
  trouble_ = why.message();
  watched_ = false;
  watch_again_ = SteadyClock::Instance().Now() + kWatchAgain;
  agenda_->Now(shared_from_this());
}

// `then` runs with the lock, and may take a second call as little as this may.
void Peer::Call(Lock& lock, uint16_t method, std::string body, std::function<void(Peer&, Result<std::string>)> then) {
  lock.unlock();
  link_->CallAsync(method, std::move(body), {}, Deadline::After(fabric_.options.handshake_timeout),
                   [self = shared_from_this(), then = std::move(then)](Result<std::string> answer) {
                     Lock inner(self->mutex_);
                     if (answer) self->answered_ = true;
                     if (!self->gone_) then(*self, std::move(answer));
                     self->Report(inner);
                   });
  lock.lock();
}

void Peer::AdvanceHandshake(Lock& lock, TimePoint now) {
  if (!dead_ && !watched_ && HasWork() && now >= watch_again_) Watch(lock);
  if (dead_) return EndHandshake(lock, false);
  if (handshake_.step == Step::kConnecting || handshake_.step == Step::kReadying) {
    if (!handshake_.answer) return;
    const Result<std::string> answer = std::move(*handshake_.answer);
    handshake_.answer.reset();
    return handshake_.step == Step::kConnecting ? OnConnectAnswer(lock, answer) : OnReadyAnswer(lock, answer);
  }
  handshake_.step = Step::kNone;
  TimePoint next = TimePoint::max();
  const std::vector<size_t> lanes = HasWork() && watched_ ? LanesToConnect(now, &next) : std::vector<size_t>();
  if (lanes.empty()) return;
  if (!fabric_.gate.Enter(shared_from_this())) {
    handshake_.step = Step::kWaiting;
    return;
  }
  BeginHandshake(lock, lanes);
}

std::vector<size_t> Peer::LanesToConnect(TimePoint now, TimePoint* next) const {
  std::vector<size_t> lanes;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (lanes_[i].state != LaneState::kDown) continue;
    const RailState& rail = rails_[lanes_[i].rail];
    const PortState port = fabric_.devices[rail.rail.local]->port();
    if (!port.active || port.failed) continue;  // an event will tell
    if (rail.paused_until <= now) {
      lanes.push_back(i);
    } else {
      *next = std::min(*next, rail.paused_until);
    }
  }
  return lanes;
}

void Peer::BeginHandshake(Lock& lock, const std::vector<size_t>& lanes) {
  fabric_.meters.handshakes.Add();
  handshake_.step = Step::kConnecting;
  handshake_.lanes = lanes;
  handshake_.epoch = epoch_;
  handshake_.receivers.clear();
  ConnectRequest request{.target = target_->generation, .epoch = epoch_};
  for (const size_t index : lanes) {
    Lane& lane = lanes_[index];
    const Rail rail = rails_[lane.rail].rail;
    lock.unlock();
    Result<std::unique_ptr<QueuePair>> pair =
        QueuePair::OpenSender(*fabric_.devices[rail.local], fabric_.options,
                              [weak = weak_from_this(), index](std::span<const ibv_wc> completions) {
                                if (const auto self = weak.lock()) self->OnCompletions(index, completions);
                              });
    lock.lock();
    if (!pair) {
      PauseRail(lane.rail, pair.error().message());
      continue;
    }
    lane.pair = std::move(*pair);
    lane.state = LaneState::kOpening;
    lane.id = next_id_++;
    lane.serial = lane.pair->serial();
    lane.first_number = 0;
    request.queues.push_back(
        {.id = lane.id, .device = target_->devices[rail.remote].name, .sender = lane.pair->Address()});
  }
  std::erase_if(handshake_.lanes, [this](size_t index) { return lanes_[index].state != LaneState::kOpening; });
  if (handshake_.lanes.empty()) return EndHandshake(lock, false);
  AwaitAnswer(lock, Step::kConnecting, protocol::kRdmaConnect, rpc::Encode(request));
}

void Peer::AwaitAnswer(Lock& lock, Step step, uint16_t method, std::string body) {
  handshake_.step = step;
  handshake_.answer.reset();
  const uint64_t round = ++handshake_.round;
  Call(lock, method, std::move(body), [round](Peer& self, Result<std::string> answer) {
    if (self.handshake_.round != round) return;
    self.handshake_.answer = std::move(answer);
    self.agenda_->Now(self.shared_from_this());
  });
}

// The peer's ends receive: make ours receive as well, then tell.
void Peer::OnConnectAnswer(Lock& lock, const Result<std::string>& answer) {
  Result<ConnectReply> reply = answer ? rpc::Decode<ConnectReply>(*answer) : std::unexpected(answer.error());
  if (reply && reply->epoch != handshake_.epoch) {
    LearnEpoch(reply->epoch);
    return EndHandshake(lock, false);
  }
  if (reply && reply->queues.size() != handshake_.lanes.size()) {
    reply = Error(ErrorCode::INVALID_PARAMS, "{} answers for {} queue pairs, {} were asked for", PeerName(),
                  reply->queues.size(), handshake_.lanes.size());
  }
  if (!reply) return HandshakeFailed(lock, reply.error());
  QueueList ready;
  for (size_t i = 0; i < reply->queues.size(); ++i) {
    ConnectReply::Queue& queue = reply->queues[i];
    const size_t index = handshake_.lanes[i];
    Lane& lane = lanes_[index];
    if (queue.code != 0) {
      PauseRail(lane.rail, fmt::format("{}: {}", PeerName(), queue.message));
      CloseOpening(lane, lock, false);
      continue;
    }
    lock.unlock();
    const Result<void> receives = lane.pair->Receive(queue.receiver);
    lock.lock();
    if (receives) {
      ready.ids.push_back(lane.id);
      handshake_.receivers[index] = std::move(queue.receiver);
    } else {
      PauseRail(lane.rail, receives.error().message());
      CloseOpening(lane, lock, true);
    }
  }
  if (ready.ids.empty()) return EndHandshake(lock, true);
  AwaitAnswer(lock, Step::kReadying, protocol::kRdmaReady, rpc::Encode(ready));
}

void Peer::OnReadyAnswer(Lock& lock, const Result<std::string>& answer) {
  Result<QueueListReply> reply = answer ? rpc::Decode<QueueListReply>(*answer) : std::unexpected(answer.error());
  if (!reply) return HandshakeFailed(lock, reply.error());
  if (reply->epoch != handshake_.epoch) {
    LearnEpoch(reply->epoch);
    return EndHandshake(lock, false);
  }
  for (const auto& [index, receiver] : handshake_.receivers) {
    Lane& lane = lanes_[index];
    if (std::ranges::find(reply->ids, lane.id) == reply->ids.end()) {
      PauseRail(lane.rail, fmt::format("{} has dropped a queue pair", PeerName()));
      continue;
    }
    lock.unlock();
    const Result<void> sends = lane.pair->Send(receiver);
    lock.lock();
    if (dead_) continue;
    if (sends) {
      lane.state = LaneState::kUp;
      if (!lane.pair->device().port().active) EndLane(lane);  // went down meanwhile
    } else {
      PauseRail(lane.rail, sends.error().message());
    }
  }
  EndHandshake(lock, true);
}

void Peer::HandshakeFailed(Lock& lock, const Status& status) {
  const bool up = std::ranges::any_of(lanes_, [](const Lane& lane) { return lane.state == LaneState::kUp; });
  switch (status.code()) {
    case ErrorCode::STALE_SEGMENT:
    case ErrorCode::ILLEGAL_CLIENT:
      Die(Translate(status, PeerName()));
      break;
    case ErrorCode::NOT_IMPLEMENTED:
    case ErrorCode::NOT_SUPPORTED_TRANSPORT:
    case ErrorCode::INVALID_VERSION:
    case ErrorCode::INVALID_PARAMS:
      // It will not do better next time.
      if (!up) FailAll(Status(ErrorCode::TRANSFER_FAIL, fmt::format("{}: {}", PeerName(), status.ToString())));
      break;
    default:
      break;
  }
  trouble_ = status.message();
  for (const size_t index : handshake_.lanes) PauseRail(lanes_[index].rail, status.message());
  EndHandshake(lock, true);
}

void Peer::CloseOpening(Lane& lane, Lock& lock, bool tell) {
  if (lane.state != LaneState::kOpening) return;
  lane.serial = 0;
  std::unique_ptr<QueuePair> pair = std::move(lane.pair);
  lock.unlock();
  pair.reset();
  lock.lock();
  lane.state = tell && !dead_ ? LaneState::kTelling : LaneState::kDown;
  lane.told = false;
}

void Peer::EndHandshake(Lock& lock, bool tell) {
  const bool entered = handshake_.step == Step::kConnecting || handshake_.step == Step::kReadying;
  for (const size_t index : handshake_.lanes) CloseOpening(lanes_[index], lock, tell);
  ++handshake_.round;
  handshake_.lanes.clear();
  handshake_.receivers.clear();
  handshake_.answer.reset();
  handshake_.step = Step::kNone;
  if (entered) fabric_.gate.Leave(*agenda_);
}

}  // namespace mooncake::rdma
