// Deficit round robin over flows within classes, with an occasional turn for whoever has waited long.
#include "transfer_engine/transport/ascend_rdma/scheduler.h"

#include <algorithm>

#include "device/npu_driver.h"

namespace mooncake::bridge {
namespace {

// Flows that are looked at for more small pieces of the same slot.
constexpr size_t kPackFlows = 64;

size_t AlignUp(size_t bytes, size_t to) {
  return (bytes + to - 1) / to * to;
}

}  // namespace

Scheduler::Scheduler(SchedulerOptions options)
    : options_(options),
      // With its phase a small operation still fits a slot.
      small_bytes_(std::min(options.small_bytes, options.slot_bytes - kAsyncAlignment)) {
  MC_CHECK(options.slot_bytes >= 2 * kAsyncAlignment && options.slot_bytes % kAsyncAlignment == 0, "{} B",
           options.slot_bytes);
  MC_CHECK(options.chunk_bytes >= 2 * kAsyncAlignment && options.chunk_bytes % kAsyncAlignment == 0 &&
               options.chunk_bytes <= options.slot_bytes,
           "chunks of {} B in slots of {} B", options.chunk_bytes, options.slot_bytes);
}

WorkClass Scheduler::ClassOf(const Work& work) const {
  if (work.length >= options_.bulk_bytes) return WorkClass::kBulk;
  return work.direction == Direction::kRead && Small(work) ? WorkClass::kSmallRead : WorkClass::kForeground;
}

size_t Scheduler::ChunkOf(const Work& work) const {
  if (work.length >= 4 * options_.chunk_bytes) return options_.chunk_bytes;
  // Few chunks overlap badly: make four of it, unless they would be too small to be worth their overhead.
  const size_t quarter = AlignUp((work.length + 3) / 4, size_t{4} << 10);
  return std::min(options_.chunk_bytes, std::max(quarter, AlignUp(options_.chunk_bytes_min, kAsyncAlignment)));
}

Result<void> Scheduler::Add(const Work& work, TimePoint now) {
  MC_CHECK(work.length > 0 && work.phase < kAsyncAlignment, "{} B, phase {}", work.length, work.phase);
  size_t& of_peer = by_peer_[work.peer];
  if (admitted_.size() >= options_.operations_max || of_peer >= options_.operations_per_peer_max) {
    const size_t peers_operations = of_peer;
    if (of_peer == 0) by_peer_.erase(work.peer);
    return Error(ErrorCode::TOO_MANY_REQUESTS,
                 "{} operations wait for this NPU device, {} of them for the same peer; the limits are {} and {}",
                 admitted_.size(), peers_operations, options_.operations_max, options_.operations_per_peer_max);
  }
  MC_CHECK(admitted_.emplace(work.id, work.peer).second, "operation {} added twice", work.id);
  ++of_peer;
  const WorkClass work_class = ClassOf(work);
  auto& group = groups_[{work.direction, work_class, work.peer}];
  if (group == nullptr) group = std::make_unique<Group>();
  auto& flow = flows_[{work.direction, work_class, work.peer, work.batch}];
  if (flow == nullptr) flow = std::make_unique<Flow>(Flow{work_class, work.peer, work.batch, group.get(), {}});
  if (!flow->active) {
    flow->active = true;
    flow->credit = static_cast<int64_t>(options_.chunk_bytes);
    flow->waiting_since = now;
    ring(work.direction, work_class).push_back(flow.get());
  }
  flow->queue.push_back(work.id);
  if (Small(work)) group->bytes += work.length;
  ++unpicked_[Index(work.direction)];
  items_.emplace(work.id, Item{work, 0, ChunkOf(work), now, flow.get()});
  return {};
}

void Scheduler::Forget(std::unordered_map<uint64_t, Item>::iterator item) {
  const Work& work = item->second.work;
  if (Small(work)) item->second.flow->group->bytes -= work.length;
  --unpicked_[Index(work.direction)];
  items_.erase(item);
}

void Scheduler::Drop(uint64_t id) {
  const auto item = items_.find(id);
  if (item != items_.end()) Forget(item);
}

void Scheduler::End(uint64_t id) {
  Drop(id);
  const auto admitted = admitted_.find(id);
  MC_CHECK(admitted != admitted_.end(), "operation {} ended twice", id);
  const auto of_peer = by_peer_.find(admitted->second);
  if (--of_peer->second == 0) by_peer_.erase(of_peer);
  admitted_.erase(admitted);
}

Scheduler::Item* Scheduler::Head(Flow& flow) {
  while (!flow.queue.empty()) {
    const auto item = items_.find(flow.queue.front());
    if (item != items_.end()) return &item->second;
    flow.queue.pop_front();
  }
  return nullptr;
}

bool Scheduler::Ripe(const Flow& flow, const Item& head, bool idle, TimePoint now) const {
  return !Small(head.work) || idle || now - head.since >= options_.small_age ||
         flow.group->bytes + kAsyncAlignment >= options_.slot_bytes;
}

void Scheduler::Retire(FlowRing& ring, Direction direction, Flow* flow) {
  std::erase(ring, flow);
  const auto work_class = flow->work_class;
  const Uuid peer = flow->peer;
  flows_.erase({direction, work_class, peer, flow->batch});
  const auto next = flows_.lower_bound(FlowKey{direction, work_class, peer, 0});
  const bool more = next != flows_.end() && std::get<0>(next->first) == direction &&
                    std::get<1>(next->first) == work_class && std::get<2>(next->first) == peer;
  if (!more) groups_.erase({direction, work_class, peer});
}

Scheduler::Flow* Scheduler::Front(FlowRing& ring, Direction direction, bool idle, TimePoint now) {
  // No flow owes more than a slot: after so many turns each has paid it back.
  const size_t turns = options_.slot_bytes / options_.chunk_bytes + 2;
  for (size_t tries = turns * ring.size() + 1; tries > 0 && !ring.empty(); --tries) {
    Flow* const flow = ring.front();
    const Item* const head = Head(*flow);
    if (head == nullptr) {
      Retire(ring, direction, flow);
      continue;
    }
    if (flow->credit > 0 && !AtLimit(direction, flow->peer) && Ripe(*flow, *head, idle, now)) return flow;
    if (flow->credit <= 0) flow->credit += static_cast<int64_t>(options_.chunk_bytes);
    ring.pop_front();
    ring.push_back(flow);
  }
  return nullptr;
}

// Of the lower classes, the first in turn that has waited long; not twice in a row, so that classes keep their meaning
// when everything is late.
Scheduler::Flow* Scheduler::Promoted(Direction direction, bool idle, bool bulk_allowed, TimePoint now) {
  bool& last = promoted_last_[Index(direction)];
  if (std::exchange(last, false)) return nullptr;
  Flow* oldest = nullptr;
  for (const WorkClass work_class : {WorkClass::kBulk, WorkClass::kForeground}) {
    if (work_class == WorkClass::kBulk && !bulk_allowed) continue;
    Flow* const flow = Front(ring(direction, work_class), direction, idle, now);
    if (flow == nullptr || now - flow->waiting_since < options_.promote_age) continue;
    if (oldest == nullptr || flow->waiting_since < oldest->waiting_since) oldest = flow;
  }
  last = oldest != nullptr;
  return oldest;
}

void Scheduler::Pack(Flow& flow, Load& load, size_t& used, TimePoint now) {
  while (load.pieces.size() < options_.pieces_per_slot) {
    Item* const head = Head(flow);
    if (head == nullptr || !Small(head->work)) return;
    const size_t at = AlignUp(used, kAsyncAlignment) + head->work.phase;
    if (at + head->work.length > options_.slot_bytes) return;
    load.pieces.push_back({head->work.id, 0, head->work.length, at});
    used = at + head->work.length;
    flow.credit -= static_cast<int64_t>(head->work.length);
    flow.waiting_since = now;
    flow.queue.pop_front();
    Forget(items_.find(load.pieces.back().work));
  }
}

Load Scheduler::Serve(Flow& flow, Direction direction, TimePoint now) {
  Load load{direction, flow.peer, flow.work_class, {}};
  ++out_[{direction, flow.peer}];
  Item* const head = Head(flow);
  size_t used = 0;
  if (Small(head->work)) {
    Pack(flow, load, used, now);
    const FlowRing& others = ring(direction, flow.work_class);
    for (size_t i = 0; i < std::min(others.size(), kPackFlows); ++i) {
      Flow* const other = others[i];
      if (other != &flow && other->peer == flow.peer && other->credit > 0) Pack(*other, load, used, now);
    }
    return load;
  }
  const size_t phase = (head->work.phase + head->cursor) % kAsyncAlignment;
  const size_t length = std::min(head->work.length - head->cursor, head->chunk - phase);
  load.pieces.push_back({head->work.id, head->cursor, length, phase});
  head->cursor += length;
  flow.credit -= static_cast<int64_t>(length);
  flow.waiting_since = now;
  if (head->cursor == head->work.length) {
    const uint64_t id = head->work.id;
    flow.queue.pop_front();
    Forget(items_.find(id));
  }
  return load;
}

std::optional<Load> Scheduler::Next(Direction direction, bool idle, bool bulk_allowed, TimePoint now) {
  if (empty(direction)) return std::nullopt;
  if (Flow* const flow = Promoted(direction, idle, bulk_allowed, now)) return Serve(*flow, direction, now);
  for (size_t i = 0; i < kWorkClasses; ++i) {
    const auto work_class = static_cast<WorkClass>(i);
    if (work_class == WorkClass::kBulk && !bulk_allowed) continue;
    Flow* const flow = Front(ring(direction, work_class), direction, idle, now);
    if (flow != nullptr) return Serve(*flow, direction, now);
  }
  return std::nullopt;
}

bool Scheduler::AtLimit(Direction direction, const Uuid& peer) const {
  const auto out = out_.find({direction, peer});
  return out != out_.end() && out->second >= options_.loads_per_peer_max;
}

void Scheduler::Returned(Direction direction, const Uuid& peer) {
  const auto out = out_.find({direction, peer});
  MC_CHECK(out != out_.end(), "a load came back twice");
  if (--out->second == 0) out_.erase(out);
}

std::optional<TimePoint> Scheduler::RipeAt(Direction direction) const {
  std::optional<TimePoint> earliest;
  if (empty(direction)) return earliest;
  for (const FlowRing& flows : rings_[Index(direction)]) {
    for (const Flow* flow : flows) {
      for (const uint64_t id : flow->queue) {
        const auto item = items_.find(id);
        if (item == items_.end()) continue;
        const TimePoint at = item->second.since + options_.small_age;
        if (Small(item->second.work) && (!earliest || at < *earliest)) earliest = at;
        break;
      }
    }
  }
  return earliest;
}

}  // namespace mooncake::bridge
