// The life of a peer's queue pairs after they are up: time-outs, ends, and what is said to people.
#include <algorithm>

#include "common/log.h"
#include "protocol/methods.h"
#include "transfer_engine/transport/rdma/peer.h"

namespace mooncake::rdma {
namespace {

constexpr Duration kTellAgain = std::chrono::milliseconds(100);  // after a peer that was too busy to drop queue pairs

}  // namespace

TimePoint Peer::Attend() {
  Lock lock(mutex_);
  if (gone_) return TimePoint::max();
  const TimePoint now = SteadyClock::Instance().Now();
  ExpireWorks(now);
  WatchProgress(now);
  EndLanes(lock);
  TellPeer(lock, now);
  AdvanceHandshake(lock, now);
  Pump();
  gone_ = Gone();
  const bool gone = gone_;
  const TimePoint due = gone ? TimePoint::max() : NextDue(now);
  scheduled_ = due;
  Report(lock);
  if (gone) on_gone_(shared_from_this());
  return due;
}

TimePoint Peer::NextDue(TimePoint now) const {
  TimePoint due = dues_.empty() ? TimePoint::max() : dues_.begin()->first;
  for (const Lane& lane : lanes_) {
    if (lane.state == LaneState::kUp && !lane.in_flight.empty()) {
      due = std::min(due, lane.progress + fabric_.options.no_progress);
    }
    if (lane.state == LaneState::kEnding) due = std::min(due, lane.ending_since + fabric_.options.drain_limit);
    if (lane.state == LaneState::kTelling && !lane.told) due = std::min(due, tell_again_);
  }
  if (handshake_.step == Step::kNone && !dead_ && HasWork()) {
    TimePoint next = TimePoint::max();
    due = std::min(due, watched_ ? (LanesToConnect(now, &next).empty() ? next : now) : watch_again_);
  }
  return due;
}

bool Peer::Gone() const {
  const bool down = std::ranges::all_of(lanes_, [](const Lane& lane) { return lane.state == LaneState::kDown; });
  return dead_ && down && !HasWork() && handshake_.step == Step::kNone;
}

void Peer::ExpireWorks(TimePoint now) {
  while (!dues_.empty() && dues_.begin()->first <= now) {
    Work& work = *dues_.begin()->second;
    SetDue(work, TimePoint::max());
    StopSlicesOf(work);
    if (work.failure) continue;  // cancelled, and its slices did not end by themselves
    fabric_.meters.timeouts.Add();
    Fail(work,
         Status(ErrorCode::TRANSFER_TIMEOUT,
                fmt::format("{} B at {:#x} of {}: the deadline passed{}{}", work.operation.length(),
                            work.operation.target_address, PeerName(),
                            trouble_.empty() ? "" : "; last trouble: ", trouble_)),
         TimePoint::max());
  }
}

// There is no way to take one request back: the queue pairs that have it end.
void Peer::StopSlicesOf(const Work& work) {
  for (Lane& lane : lanes_) {
    const auto mine = [&](const Slice& slice) { return slice.work == &work; };
    if (lane.state == LaneState::kUp && std::ranges::any_of(lane.in_flight, mine)) EndLane(lane);
  }
}

// Devices that swallow requests without a completion do exist.
void Peer::WatchProgress(TimePoint now) {
  for (Lane& lane : lanes_) {
    if (lane.state != LaneState::kUp || lane.in_flight.empty()) continue;
    if (now - lane.progress < fabric_.options.no_progress) continue;
    const Rail& rail = rails_[lane.rail].rail;
    EndRail(lane.rail, fmt::format("no completion of {} requests to {} on {} for {} ms", lane.in_flight.size(),
                                   PeerName(), fabric_.device_names[rail.local],
                                   std::chrono::duration_cast<std::chrono::milliseconds>(now - lane.progress).count()));
  }
}

// ---- ends

void Peer::EndLane(Lane& lane) {
  if (lane.state != LaneState::kUp) return;
  lane.state = LaneState::kEnding;
  lane.ending_since = SteadyClock::Instance().Now();
  lane.stopped = false;
  fabric_.meters.queues_lost.Add();
  agenda_->Now(shared_from_this());
}

void Peer::PauseRail(size_t index, std::string reason) {
  RailState& rail = rails_[index];
  const TimePoint now = SteadyClock::Instance().Now();
  if (rail.paused_until > now) return;  // of the same trouble
  const Duration pause = fabric_.options.pause_first * (int64_t{1} << std::min(rail.failures, 16));
  rail.paused_until = now + std::min(pause, fabric_.options.pause_last);
  rail.reason = std::move(reason);
  trouble_ = rail.reason;
  fabric_.meters.rails_paused.Add();
  ++rail.failures;
}

void Peer::EndRail(size_t rail, std::string reason) {
  if (rails_[rail].failures == 0) log::Warn("rdma: {}; what was under way goes on elsewhere or later", reason);
  PauseRail(rail, std::move(reason));
  for (Lane& lane : lanes_) {
    if (lane.rail == rail) EndLane(lane);
  }
}

void Peer::Die(Status why) {
  if (dead_) return;
  dead_ = std::move(why);
  fabric_.meters.peers_lost.Add();
  FailAll(*dead_);
  for (Lane& lane : lanes_) EndLane(lane);
  agenda_->Now(shared_from_this());
}

void Peer::Shutdown(const Status& why) {
  Lock lock(mutex_);
  if (!gone_) Die(why);
  Report(lock);
}

void Peer::OnPortChange(size_t device, const PortState& now) {
  Lock lock(mutex_);
  if (gone_) return;
  for (size_t i = 0; i < rails_.size(); ++i) {
    RailState& rail = rails_[i];
    if (rail.rail.local != device) continue;
    for (Lane& lane : lanes_) {
      if (lane.rail != i || lane.state != LaneState::kUp) continue;
      const QueueAddress address = lane.pair->Address();
      const bool same_address = std::ranges::equal(address.gid, now.gid.gid) && address.lid == now.lid;
      if (!now.active || now.failed || !same_address) EndLane(lane);
    }
    rail.failures = 0;
    rail.reason = fmt::format("port of {} {}", fabric_.device_names[device], now.active ? "came back" : "went down");
    trouble_ = rail.reason;
    rail.paused_until = SteadyClock::Instance().Now() + fabric_.options.link_settle;
  }
  agenda_->Now(shared_from_this());
}

void Peer::EndLanes(Lock& lock) {
  for (Lane& lane : lanes_) {
    if (lane.state != LaneState::kEnding) continue;
    if (!lane.stopped) StopPair(lane, lock);
    const bool over = SteadyClock::Instance().Now() >= lane.ending_since + fabric_.options.drain_limit;
    if (lane.in_flight.empty() || over) DestroyPair(lane, lock);
  }
}

void Peer::StopPair(Lane& lane, Lock& lock) {
  lane.stopped = true;
  QueuePair& pair = *lane.pair;  // only this thread ends it
  lock.unlock();
  const Result<void> stopped = pair.ToError();
  lock.lock();
  if (!stopped) lane.ending_since = TimePoint{};  // nothing will be flushed
}

void Peer::DestroyPair(Lane& lane, Lock& lock) {
  lane.serial = 0;  // completions that come now do not count
  std::unique_ptr<QueuePair> pair = std::move(lane.pair);
  lock.unlock();
  pair.reset();  // from here on its device reads and writes no memory for it
  lock.lock();
  while (!lane.in_flight.empty()) Park(lane, TakeOldest(lane));
  lane.state = dead_ ? LaneState::kDown : LaneState::kTelling;
  lane.told = false;
}

// What was not completed may still be on its way. The peer's end has to be gone before it is sent on another queue
// pair: else the late one could change memory after the operation has been reported complete.
void Peer::TellPeer(Lock& lock, TimePoint now) {
  QueueList list;
  for (Lane& lane : lanes_) {
    if (lane.state != LaneState::kTelling) continue;
    if (dead_) {
      lane.state = LaneState::kDown;  // with its connection, the peer drops it by itself
    } else if (!lane.told && now >= tell_again_) {
      lane.told = true;
      list.ids.push_back(lane.id);
    }
  }
  if (list.ids.empty()) return;
  Call(lock, protocol::kRdmaDisconnect, rpc::Encode(list),
       [ids = list.ids](Peer& self, Result<std::string> answer) { self.OnTold(ids, answer); });
}

void Peer::OnTold(const std::vector<uint64_t>& ids, const Result<std::string>& answer) {
  Result<QueueListReply> reply = answer ? rpc::Decode<QueueListReply>(*answer) : std::unexpected(answer.error());
  if (reply) LearnEpoch(reply->epoch);
  for (Lane& lane : lanes_) {
    if (lane.state != LaneState::kTelling || std::ranges::find(ids, lane.id) == ids.end()) continue;
    if (!reply) {
      lane.told = false;
      tell_again_ = SteadyClock::Instance().Now() + kTellAgain;
      continue;
    }
    fabric_.meters.retries.Add(lane.parked.size());
    again_.insert(again_.end(), lane.parked.begin(), lane.parked.end());
    lane.parked.clear();
    lane.state = LaneState::kDown;
  }
  Pump();
  agenda_->Now(shared_from_this());
}

// The peer has fenced this process: what was begun before must not be carried on. When that was cannot be known here,
// so everything under way now counts.
void Peer::LearnEpoch(uint64_t epoch) {
  if (epoch == epoch_) return;
  epoch_ = epoch;
  FailAll(Status(ErrorCode::TRANSFER_FAIL, fmt::format("{} has shut this process out meanwhile", PeerName())));
  for (Lane& lane : lanes_) EndLane(lane);
}

std::string Peer::Describe() const {
  constexpr const char* kStates[] = {"down", "opening", "up", "ending", "telling"};
  std::lock_guard lock(mutex_);
  std::string text = fmt::format("peer {} ({}){}: {} + {} waiting, {} in slices, {} slices to repeat\n", PeerName(),
                                 target_->control.ToString(), dead_ ? " gone" : "", waiting_[0].size(),
                                 waiting_[1].size(), cut_.size(), again_.size());
  for (size_t i = 0; i < rails_.size(); ++i) {
    const RailState& rail = rails_[i];
    text += fmt::format("  {} -> {}: {} failures {}\n", fabric_.device_names[rail.rail.local],
                        target_->devices[rail.rail.remote].name, rail.failures, rail.reason);
    for (const Lane& lane : lanes_) {
      if (lane.rail != i) continue;
      text +=
          fmt::format("    queue pair {}: {}, {} requests of {} bytes posted, {} kept back\n", lane.id,
                      kStates[static_cast<size_t>(lane.state)], lane.in_flight.size(), lane.bytes, lane.parked.size());
    }
  }
  return text;
}

}  // namespace mooncake::rdma
