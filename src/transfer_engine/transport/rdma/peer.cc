// Operations and their slices: cutting, spreading over queue pairs, posting, counting completions.
#include "transfer_engine/transport/rdma/peer.h"

#include <algorithm>

#include "common/check.h"

namespace mooncake::rdma {
namespace {

constexpr size_t kMaxDistances = 256;
constexpr size_t kSignalEvery = 4;  // request of a chain; the last one always asks for a completion

Topology TopologyOf(const SegmentDescriptor& peer) {
  // A description that cannot be read says nothing about nearness.
  return Topology::Parse(peer.topology).value_or(Topology());
}

uint32_t RemoteKey(const TransferOperation& operation, uint64_t offset, size_t device) {
  const SegmentRegion& region = operation.region;
  const uint64_t at = operation.target_address + offset;
  return region.rkeys[region.mr_piece_bytes == 0 ? 0 : (at - region.address) / region.mr_piece_bytes][device];
}

uint64_t LocalAddress(const TransferOperation& operation) {
  return reinterpret_cast<uint64_t>(std::get<HostRange>(operation.local).data());
}

std::string Named(const TransferOperation& operation) {
  return fmt::format("{} of [{:#x}, +{})", operation.opcode == TransferOpcode::kRead ? "read" : "write",
                     operation.target_address, operation.length());
}

}  // namespace

Meters::Meters(MetricRegistry& registry)
    : slices(registry.GetCounter("rdma_slices_total", "work requests completed")),
      slice_bytes(registry.GetCounter("rdma_bytes_total", "bytes of the work requests completed")),
      retries(registry.GetCounter("rdma_retries_total", "work requests sent once more")),
      handshakes(registry.GetCounter("rdma_handshakes_total", "handshakes begun")),
      queues_lost(registry.GetCounter("rdma_queue_pairs_lost_total", "queue pairs given up")),
      rails_paused(
          registry.GetCounter("rdma_rails_paused_total", "times a pair of devices was left alone for a while")),
      peers_lost(registry.GetCounter("rdma_peers_lost_total", "processes that went away while connected")),
      timeouts(registry.GetCounter("rdma_timeouts_total", "transfers whose deadline passed")) {}

std::shared_ptr<Peer> Peer::Create(Fabric& fabric, SegmentPtr target,
                                   std::function<void(const std::shared_ptr<Peer>&)> on_gone) {
  return std::shared_ptr<Peer>(new Peer(fabric, std::move(target), std::move(on_gone)));
}

Peer::Peer(Fabric& fabric, SegmentPtr target, std::function<void(const std::shared_ptr<Peer>&)> on_gone)
    : fabric_(fabric),
      target_(std::move(target)),
      target_topology_(TopologyOf(*target_)),
      agenda_(fabric.agenda),
      on_gone_(std::move(on_gone)) {
  std::vector<Gid> local;
  std::vector<Gid> remote;
  local.reserve(fabric_.devices.size());
  remote.reserve(target_->devices.size());
  for (const RdmaDevice* device : fabric_.devices) local.push_back(device->port().gid.gid);
  for (const SegmentDevice& device : target_->devices) remote.push_back(ParseGid(device.gid).value_or(Gid{}));
  for (const Rail& rail : PlanRails(local, remote, fabric_.options.max_rails)) rails_.push_back({.rail = rail});
  lanes_.resize(rails_.size() * fabric_.options.queues_per_rail);
  for (size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i].index = i;
    lanes_[i].rail = i % rails_.size();
  }
}

std::string Peer::PeerName() const {
  return target_->name.empty() ? target_->control.ToString() : target_->name;
}

bool Peer::HasWork() const {
  return !waiting_[0].empty() || !waiting_[1].empty() || !cut_.empty();
}

// ---- operations

bool Peer::Submit(std::vector<Prepared>& prepared) {
  Lock lock(mutex_);
  if (dead_) return false;
  const bool was_idle = !HasWork();
  for (Prepared& each : prepared) Add(std::move(each));
  prepared.clear();
  Pump();
  const bool complete = std::ranges::all_of(lanes_, [](const Lane& lane) { return lane.state == LaneState::kUp; });
  if (was_idle && !complete) Reschedule(SteadyClock::Instance().Now());
  if (!dues_.empty()) {
    Reschedule(std::min(dues_.begin()->first, SteadyClock::Instance().Now() + fabric_.options.no_progress));
  }
  Report(lock);
  return true;
}

void Peer::Add(Prepared prepared) {
  std::list<Work>& list = waiting_[prepared.operation.length() <= fabric_.options.slice_bytes ? 0 : 1];
  Work& work = list.emplace_back();
  work.operation = std::move(prepared.operation);
  work.memory = std::move(prepared.memory);
  work.distances = DistancesFor(work.operation);
  work.list = &list;
  work.self = std::prev(list.end());
  work.due = dues_.emplace_hint(dues_.end(), work.operation.deadline.time(), &work);
}

std::shared_ptr<const std::vector<uint8_t>> Peer::DistancesFor(const TransferOperation& operation) {
  const std::string local = operation.local_use ? operation.local_use.region().published.location : "*";
  if (distances_.size() >= kMaxDistances) distances_.clear();  // a peer names its locations as it likes
  auto& distances = distances_[{local, operation.region.location}];
  if (distances == nullptr) {
    std::vector<Rail> rails;
    rails.reserve(rails_.size());
    for (const RailState& rail : rails_) rails.push_back(rail.rail);
    distances = std::make_shared<const std::vector<uint8_t>>(
        RailDistances(rails, fabric_.device_names, target_->devices, fabric_.topology, local, target_topology_,
                      operation.region.location));
  }
  return distances;
}

void Peer::Cancel(BatchId tag) {
  Lock lock(mutex_);
  std::vector<Work*> meant;
  for (std::list<Work>* list : {&waiting_[0], &waiting_[1], &cut_}) {
    for (Work& work : *list) {
      if (work.operation.tag == tag && !work.failure) meant.push_back(&work);
    }
  }
  const TimePoint stop_at = SteadyClock::Instance().Now() + fabric_.options.cancel_grace;
  for (Work* work : meant) {
    Fail(*work, Status(ErrorCode::TRANSFER_CANCELED, fmt::format("{} was cancelled", Named(work->operation))), stop_at);
  }
  if (!meant.empty()) Reschedule(stop_at);
  Report(lock);
}

void Peer::StopUsersOf(const RegisteredMemory* memory) {
  Lock lock(mutex_);
  std::vector<Work*> meant;
  for (std::list<Work>* list : {&waiting_[0], &waiting_[1], &cut_}) {
    for (Work& work : *list) {
      if (&*work.memory == memory) meant.push_back(&work);
    }
  }
  const TimePoint now = SteadyClock::Instance().Now();
  for (Work* work : meant) {
    Fail(*work,
         Status(ErrorCode::ADDRESS_NOT_REGISTERED,
                fmt::format("the local memory of a {} is being unregistered", Named(work->operation))),
         now);
  }
  if (!meant.empty()) Reschedule(now);
  Report(lock);
}

void Peer::SetDue(Work& work, TimePoint time) {
  dues_.erase(work.due);
  work.due = dues_.emplace(time, &work);
}

void Peer::Fail(Work& work, Status status, TimePoint stop_at) {
  if (work.due->first > stop_at) SetDue(work, stop_at);
  if (!work.failure) {
    work.failure = std::move(status);
    DropSlicesOf(work);
    if (work.list != &cut_) {
      cut_.splice(cut_.end(), *work.list, work.self);
      work.list = &cut_;
    }
  }
  FinishIfDone(work);
}

void Peer::FailAll(const Status& status) {
  for (const Slice& slice : again_) --slice.work->slices;
  again_.clear();
  for (Lane& lane : lanes_) {
    for (const Slice& slice : lane.parked) --slice.work->slices;
    lane.parked.clear();
  }
  std::vector<Work*> all;
  for (std::list<Work>* list : {&waiting_[0], &waiting_[1], &cut_}) {
    for (Work& work : *list) all.push_back(&work);
  }
  const TimePoint now = SteadyClock::Instance().Now();
  for (Work* work : all) {
    Fail(*work, Status(status.code(), fmt::format("{}: {}", Named(work->operation), status.message())), now);
  }
}

// Those that are not posted.
void Peer::DropSlicesOf(Work& work) {
  size_t dropped = std::erase_if(again_, [&](const Slice& slice) { return slice.work == &work; });
  for (Lane& lane : lanes_) {
    dropped += std::erase_if(lane.parked, [&](const Slice& slice) { return slice.work == &work; });
  }
  work.slices -= dropped;
}

void Peer::DropSlice(const Slice& slice) {
  --slice.work->slices;
  FinishIfDone(*slice.work);
}

void Peer::FinishIfDone(Work& work) {
  if (work.slices > 0 || (!work.failure && !work.Cut())) return;
  Result<void> result;
  if (work.failure) result = std::unexpected(std::move(*work.failure));
  finished_.push_back(
      {.operation = std::move(work.operation), .memory = std::move(work.memory), .result = std::move(result)});
  dues_.erase(work.due);
  work.list->erase(work.self);
}

void Peer::Report(Lock& lock) {
  std::vector<Finished> finished = std::exchange(finished_, {});
  lock.unlock();
  for (Finished& each : finished) {
    auto done = std::move(each.operation.done);
    each.memory.Release();
    each.operation.local_use.Release();
    done(std::move(each.result));
  }
}

void Peer::Reschedule(TimePoint time) {
  if (time >= scheduled_) return;
  scheduled_ = time;
  agenda_->At(shared_from_this(), time);
}

// ---- slices

Slice Peer::CutSlice(Work& work, bool take) {
  const TransferOperation& operation = work.operation;
  const uint64_t local = LocalAddress(operation) + work.cut;
  const uint64_t remote = operation.target_address + work.cut;
  const uint64_t length = SliceLength(
      operation.length() - work.cut, LeftInPiece(work.memory->address, work.memory->piece_bytes, local),
      LeftInPiece(operation.region.address, operation.region.mr_piece_bytes, remote), fabric_.options.slice_bytes);
  const Slice slice{.work = &work, .offset = work.cut, .length = static_cast<uint32_t>(length)};
  if (!take) return slice;
  work.cut += length;
  ++work.slices;
  if (work.Cut()) {
    cut_.splice(cut_.end(), *work.list, work.self);
    work.list = &cut_;
  }
  return slice;
}

// Small and large operations take turns, so that neither waits for all of the other.
bool Peer::NextSlice(Slice& slice, bool take) {
  if (!again_.empty()) {
    slice = again_.front();
    if (take) again_.pop_front();
    return true;
  }
  if (waiting_[turn_].empty()) turn_ ^= 1;
  if (waiting_[turn_].empty()) return false;
  slice = CutSlice(waiting_[turn_].front(), take);
  if (take) turn_ ^= 1;
  return true;
}

// The rail that will have moved what it has been given first, if far ones are slower by their distance; on it the queue
// pair with the least.
Peer::Lane* Peer::LaneFor(const Slice& slice) {
  Lane* best = nullptr;
  std::pair<uint64_t, uint64_t> best_cost;
  for (Lane& lane : lanes_) {
    if (lane.state != LaneState::kUp || lane.in_flight.size() >= lane.pair->depth()) continue;
    if (lane.bytes > 0 && lane.bytes + slice.length > fabric_.options.window_bytes) continue;
    const uint64_t distance = (*slice.work->distances)[lane.rail];
    const std::pair cost{(rails_[lane.rail].bytes + slice.length) * (1 + distance), lane.bytes};
    if (best != nullptr && cost >= best_cost) continue;
    best = &lane;
    best_cost = cost;
  }
  return best;
}

void Peer::Pump() {
  Slice slice;
  while (NextSlice(slice, false)) {
    Lane* lane = LaneFor(slice);
    if (lane == nullptr) break;
    (void)NextSlice(slice, true);
    if (lane->in_flight.empty()) lane->progress = SteadyClock::Instance().Now();
    lane->in_flight.push_back(slice);
    ++lane->staged;
    lane->bytes += slice.length;
    rails_[lane->rail].bytes += slice.length;
  }
  for (Lane& lane : lanes_) {
    if (lane.staged > 0) PostStaged(lane);
  }
}

void Peer::PostStaged(Lane& lane) {
  const size_t count = std::exchange(lane.staged, 0);
  const size_t first = lane.in_flight.size() - count;
  const Rail& rail = rails_[lane.rail].rail;
  requests_.assign(count, {});
  elements_.assign(count, {});
  for (size_t i = 0; i < count; ++i) {
    const Slice& slice = lane.in_flight[first + i];
    const TransferOperation& operation = slice.work->operation;
    const uint64_t local = LocalAddress(operation) + slice.offset;
    elements_[i] = {.addr = local, .length = slice.length, .lkey = slice.work->memory->LocalKey(local, rail.local)};
    ibv_send_wr& request = requests_[i];
    request.wr_id = (static_cast<uint64_t>(lane.serial) << 32) | static_cast<uint32_t>(lane.first_number + first + i);
    request.next = i + 1 < count ? &requests_[i + 1] : nullptr;
    request.sg_list = &elements_[i];
    request.num_sge = 1;
    request.opcode = operation.opcode == TransferOpcode::kRead ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
    if (i + 1 == count || (i + 1) % kSignalEvery == 0) request.send_flags = IBV_SEND_SIGNALED;
    request.wr.rdma.remote_addr = operation.target_address + slice.offset;
    request.wr.rdma.rkey = RemoteKey(operation, slice.offset, rail.remote);
  }
  ibv_send_wr* refused = nullptr;
  if (lane.pair->Post(requests_.data(), &refused)) return;
  const size_t posted = refused == nullptr ? 0 : static_cast<size_t>(refused - requests_.data());
  while (lane.in_flight.size() > first + posted) {
    const Slice slice = lane.in_flight.back();
    lane.in_flight.pop_back();
    lane.bytes -= slice.length;
    rails_[lane.rail].bytes -= slice.length;
    again_.push_front(slice);
  }
  EndRail(lane.rail, fmt::format("RDMA device {} takes no requests", fabric_.device_names[rail.local]));
}

// ---- completions

void Peer::OnCompletions(size_t index, std::span<const ibv_wc> completions) {
  Lock lock(mutex_);
  Lane& lane = lanes_[index];
  for (const ibv_wc& completion : completions) {
    if (lane.serial != completion.wr_id >> 32) break;  // of a queue pair that is given up
    OnCompletion(lane, completion);
  }
  if (lane.state == LaneState::kEnding && lane.in_flight.empty()) agenda_->Now(shared_from_this());
  Pump();
  Report(lock);
}

void Peer::OnCompletion(Lane& lane, const ibv_wc& completion) {
  const uint32_t before = static_cast<uint32_t>(completion.wr_id) - lane.first_number;
  if (before >= lane.in_flight.size()) return;
  const bool succeeded = completion.status == IBV_WC_SUCCESS;
  // Requests end in order, and those that ask for no completion make none when they succeed. Before an error it is not
  // certain that they did: once more does no harm.
  for (uint32_t i = 0; i < before; ++i) {
    const Slice slice = TakeOldest(lane);
    if (succeeded) {
      Succeeded(lane, slice);
    } else {
      Park(lane, slice);
    }
  }
  Slice slice = TakeOldest(lane);
  if (succeeded) return Succeeded(lane, slice);
  if (lane.state == LaneState::kUp) FailedFirst(lane, slice, completion.status);
  Park(lane, slice);
}

Slice Peer::TakeOldest(Lane& lane) {
  const Slice slice = lane.in_flight.front();
  lane.in_flight.pop_front();
  ++lane.first_number;
  lane.bytes -= slice.length;
  rails_[lane.rail].bytes -= slice.length;
  return slice;
}

void Peer::Succeeded(Lane& lane, const Slice& slice) {
  lane.progress = SteadyClock::Instance().Now();
  rails_[lane.rail].failures = 0;
  trouble_.clear();
  fabric_.meters.slices.Add();
  fabric_.meters.slice_bytes.Add(slice.length);
  DropSlice(slice);
}

// A slice that has not been moved, or perhaps has: to be sent once more when the peer has dropped this queue pair.
void Peer::Park(Lane& lane, const Slice& slice) {
  if (slice.work->failure) return DropSlice(slice);
  lane.parked.push_back(slice);
}

// What the first error on a queue pair says about the slice, the queue pair and the rail. Those that follow only say
// that the queue pair is no more.
void Peer::FailedFirst(Lane& lane, Slice& slice, ibv_wc_status status) {
  Work& work = *slice.work;
  const TimePoint never = TimePoint::max();
  switch (status) {
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
      Fail(work,
           Status(ErrorCode::ADDRESS_NOT_REGISTERED,
                  fmt::format("{}: {} does not have it registered (any more)", Named(work.operation), PeerName())),
           never);
      return EndLane(lane);
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
      Fail(work,
           Status(ErrorCode::TRANSFER_FAIL,
                  fmt::format("{} with {}: {}", Named(work.operation), PeerName(), CompletionName(status)),
                  static_cast<int32_t>(status)),
           never);
      return EndLane(lane);
    default:
      break;
  }
  const std::string reason = fmt::format("{} between {} and {} of {}", CompletionName(status),
                                         fabric_.device_names[rails_[lane.rail].rail.local],
                                         target_->devices[rails_[lane.rail].rail.remote].name, PeerName());
  if (++slice.attempts > fabric_.options.max_attempts) {
    Fail(work,
         Status(ErrorCode::TRANSFER_FAIL,
                fmt::format("{}: {} after {} attempts", Named(work.operation), reason, slice.attempts),
                static_cast<int32_t>(status)),
         never);
  }
  EndRail(lane.rail, reason);
}

}  // namespace mooncake::rdma
