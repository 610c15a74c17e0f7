// Operations towards one target: cutting, handing to connections, ending.
#include "transfer_engine/transport/tcp/tcp_peer.h"

#include <algorithm>

#include "common/check.h"

namespace mooncake::tcp {
namespace {

constexpr size_t kBriefBytes = 64 << 10;     // up to here an operation does not wait behind long ones
constexpr uint64_t kCrowdedBytes = 1 << 20;  // in flight before it on every connection

}  // namespace

void Peer::Turn::Report() {
  lock_.unlock();
  for (const PendingPtr& operation : ended_) {
    operation->peer->environment_->loops[0]->CancelTimer(operation->timer);
    operation->request.local_use.Release();
    operation->request.done(std::move(*operation->result));
  }
  ended_.clear();
}

Peer::Peer(std::shared_ptr<const PeerEnvironment> environment, Endpoint address, Uuid generation, size_t home)
    : environment_(std::move(environment)),
      address_(std::move(address)),
      generation_(generation),
      instance_(Uuid::Random().first) {
  const auto& loops = environment_->loops;
  for (size_t slot = 0; slot <= environment_->options.lanes_per_peer; ++slot) {
    auto& lane = lanes_.emplace_back(std::make_shared<Lane>());
    lane->slot = static_cast<uint32_t>(slot);
    lane->loop = loops[(home + slot) % loops.size()];
  }
  long_lanes_ = std::span(lanes_).first(lanes_.size() - 1);
}

std::string Peer::Name() const {
  return fmt::format("tcp peer {}", address_.ToString());
}

PendingPtr Peer::Take(TransferOperation& operation) {
  auto pending = std::make_shared<Pending>();
  pending->request = std::move(operation);
  const auto& local = std::get<HostRange>(pending->request.local);
  pending->memory = local.data();
  pending->length = local.size();
  pending->peer = shared_from_this();
  pending->place = live_.insert(live_.end(), pending);
  pending->queued = true;
  QueueOf(*pending).push_back(pending);
  pending->timer = environment_->loops[0]->RunAt(pending->request.deadline.time(), [weak = std::weak_ptr(pending)] {
    if (const auto alive = weak.lock()) alive->peer->Expire(alive);
  });
  return pending;
}

bool Peer::Submit(std::vector<TransferOperation>& operations, size_t inline_bytes) {
  Turn turn(*this);
  if (closed_) return false;
  for (TransferOperation& operation : operations) {
    Take(operation);
  }
  Assign(turn);
  Kick(turn, nullptr, inline_bytes);
  return true;
}

void Peer::Unqueue(const PendingPtr& operation) {
  if (!operation->queued) return;
  operation->queued = false;
  auto& queue = QueueOf(*operation);
  queue.erase(std::ranges::find(queue, operation));
}

// The first end wins.
void Peer::End(Turn& turn, const PendingPtr& operation, Result<void> result) {
  if (operation->result) return;
  operation->result = std::move(result);
  Unqueue(operation);
  if (operation->chunks > 0) Abandon(turn, *operation);
  if (operation->busy == 0) LetGo(turn, operation);
}

void Peer::LetGo(Turn& turn, const PendingPtr& operation) {
  PendingPtr kept = operation;  // the argument may be the list's own
  live_.erase(kept->place);
  turn.Ended(std::move(kept));
}

// Nothing of it is sent or received from here on, but for system calls that are under way.
void Peer::Abandon(Turn& turn, const Pending& operation) {
  for (const auto& lane : lanes_) {
    std::erase_if(lane->orphans, [&](const Chunk& chunk) {
      const bool its = chunk.operation.get() == &operation;
      if (its && chunk.IsWrite()) AddStray(*lane);
      return its;
    });
    bool concerned = false;
    for (Chunk& chunk : lane->flight) {
      if (chunk.operation.get() != &operation) continue;
      // The target would still take it out of memory that is let go of.
      if (Lends(chunk) && chunk.header.id < lane->sent_id) {
        Fail(*lane, Status(ErrorCode::TRANSFER_CANCELED, "a write was given up before its end"), true);
      }
      if (chunk.IsWrite()) AddStray(*lane);
      chunk.operation.reset();
      concerned = true;
    }
    if (!concerned || lane->sending) continue;  // who sends prunes
    Prune(*lane);
    TakeDownIfFailed(turn, *lane);
  }
}

// A chunk of it has been answered.
void Peer::Complete(Turn& turn, const PendingPtr& operation) {
  --operation->chunks;
  if (operation->chunks == 0 && !operation->queued) End(turn, operation, {});
}

std::deque<PendingPtr>& Peer::QueueOf(const Pending& operation) {
  if (operation.length > environment_->options.chunk_bytes) return large_;
  return operation.length > kBriefBytes ? small_ : brief_;
}

// Small and large operations take turns, so that neither waits for more than one chunk of the other kind; among the
// large ones the first goes on until it is through, which ends each as early as it can be.
std::deque<PendingPtr>& Peer::NextLongQueue() {
  const bool from_large = small_.empty() || (large_is_next_ && !large_.empty());
  large_is_next_ = !from_large;
  return from_large ? large_ : small_;
}

Peer::Chunk Peer::CutFrom(std::deque<PendingPtr>& queue) {
  const PendingPtr operation = queue.front();
  const size_t size = std::min(operation->length - operation->cut, environment_->options.chunk_bytes);
  const TransferOperation& request = operation->request;
  Chunk chunk{.operation = operation, .offset = operation->cut};
  chunk.header.operation = request.opcode == TransferOpcode::kWrite ? Operation::kWrite : Operation::kRead;
  chunk.header.key = request.region.key;
  chunk.header.address = request.target_address + operation->cut;
  chunk.header.length = static_cast<uint32_t>(size);
  chunk.header.before = operation->cut;
  chunk.header.after = operation->length - operation->cut - size;
  operation->cut += size;
  ++operation->chunks;
  if (operation->cut == operation->length) {
    operation->queued = false;
    queue.pop_front();
  }
  return chunk;
}

// What is left of a write that was given up must not overtake what is submitted afterwards, so that goes over the same
// connection, or waits until the target has let go of it.
bool Peer::HasRoom(const Lane& lane) const {
  return lane.Up() && lane.strays == strays_ && lane.flight.size() < environment_->options.window_requests &&
         lane.flight_bytes < environment_->options.window_bytes;
}

void Peer::AddStray(Lane& lane) {
  ++lane.strays;
  ++strays_;
}

void Peer::DropStray(Lane& lane) {
  MC_CHECK(lane.strays > 0 && strays_ > 0, "lane {} has no strays", lane.slot);
  --lane.strays;
  --strays_;
  resume_ = true;
}

void Peer::DropAllStrays(Lane& lane) {
  strays_ -= std::exchange(lane.strays, 0);
}

// Lanes may have room again that had none because of strays.
void Peer::Resume(Turn& turn) {
  if (!std::exchange(resume_, false) || !HasWork()) return;
  Assign(turn);
  for (const auto& lane : lanes_) {
    if (lane->Up() && !lane->sending && lane->HasUnsent()) WantWritable(*lane, true);
  }
}

Peer::Lane* Peer::LeastLoaded() {
  Lane* best = nullptr;
  for (const auto& lane : long_lanes_) {
    if (!HasRoom(*lane)) continue;
    if (best == nullptr || lane->flight_bytes < best->flight_bytes) best = lane.get();
  }
  return best;
}

bool Peer::Crowded(const Lane* least_loaded) const {
  return least_loaded == nullptr || least_loaded->flight_bytes >= kCrowdedBytes;
}

Peer::Lane* Peer::LaneForBrief() {
  Lane* const least_loaded = LeastLoaded();
  if (!Crowded(least_loaded) || !Express().Up()) return least_loaded;
  return HasRoom(Express()) ? &Express() : nullptr;
}

// Brief and long operations that want the same connection take turns.
void Peer::Assign(Turn& turn) {
  const bool crowded = !brief_.empty() && Crowded(LeastLoaded());
  while (HasWork()) {
    Lane* const for_brief = brief_.empty() ? nullptr : LaneForBrief();
    Lane* const for_long = HasLongWork() ? LeastLoaded() : nullptr;
    if (for_brief == nullptr && for_long == nullptr) {
      DialMore(turn);
      break;
    }
    const bool brief = for_brief != nullptr && (for_brief != for_long || brief_is_next_);
    brief_is_next_ = !brief;
    Lane& lane = brief ? *for_brief : *for_long;
    Chunk& chunk = lane.flight.emplace_back(CutFrom(brief ? brief_ : NextLongQueue()));
    chunk.header.id = lane.next_id++;
    lane.flight_bytes += chunk.header.length;
  }
  if (crowded) DialExpress(turn);
}

// What was assigned goes out: a little on this thread, which saves waking another; else on the lane's own loop, so
// that lanes work side by side.
void Peer::Kick(Turn& turn, Lane* own, size_t inline_bytes) {
  for (const auto& lane : lanes_) {
    if (!lane->Up() || lane->sending || !lane->HasUnsent()) continue;
    if (lane.get() == own) {
      Send(turn, *lane, SIZE_MAX);
      continue;
    }
    size_t bytes = 0;
    for (size_t i = lane->UnsentIndex(); i < lane->flight.size(); ++i) bytes += lane->flight[i].WireBytes();
    if (bytes <= inline_bytes) {
      Send(turn, *lane, bytes);
    } else {
      WantWritable(*lane, true);
    }
  }
}

void Peer::Cancel(BatchId tag) {
  Turn turn(*this);
  std::vector<PendingPtr> chosen;
  std::ranges::copy_if(live_, std::back_inserter(chosen), [&](const auto& one) { return one->request.tag == tag; });
  for (const PendingPtr& operation : chosen) {
    End(turn, operation, Error(ErrorCode::TRANSFER_CANCELED, "{}: canceled", Name()));
  }
  HangUpIfUnwanted(turn);
}

void Peer::Expire(const PendingPtr& operation) {
  Turn turn(*this);
  End(turn, operation,
      Error(ErrorCode::TRANSFER_TIMEOUT, "{}: {} of {} bytes not finished in time", Name(),
            operation->request.opcode == TransferOpcode::kWrite ? "write" : "read", operation->length));
  HangUpIfUnwanted(turn);
}

// Nobody waits for a connection that is only being made.
void Peer::HangUpIfUnwanted(Turn&) {
  if (!live_.empty()) return;
  for (const auto& lane : lanes_) {
    if (lane->Dialing()) HangUp(*lane);
  }
}

void Peer::Close() {
  Turn turn(*this);
  closed_ = true;
  const std::vector<PendingPtr> all(live_.begin(), live_.end());
  for (const PendingPtr& operation : all) {
    End(turn, operation, Error(ErrorCode::SHUTTING_DOWN, "the tcp transport is closed"));
  }
  for (const auto& lane : lanes_) {
    if (lane->state == State::kReady) {
      Fail(*lane, Status(ErrorCode::SHUTTING_DOWN, "closed"), true);
      TakeDownIfFailed(turn, *lane);
    } else if (lane->Dialing()) {
      HangUp(*lane);
    }
  }
}

bool Peer::RetireIfIdle() {
  Turn turn(*this);
  const bool idle = live_.empty() && std::ranges::all_of(lanes_, [](const auto& lane) {
                      return lane->state == State::kDown && lane->orphans.empty() && lane->strays == 0;
                    });
  closed_ = closed_ || idle;
  return idle;
}

}  // namespace mooncake::tcp
