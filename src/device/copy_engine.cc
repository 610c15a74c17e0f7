// Which way each copy takes, and what the ways need.
#include "device/copy_engine.h"

#include <algorithm>
#include <map>
#include <optional>

#include "common/log.h"

namespace mooncake {
namespace {

// Of two hops the first chunk's time is lost on one link, the last one's on the other: smaller chunks than where the
// CPU keeps pace.
constexpr size_t kChunksStaged = 4;
constexpr size_t kChunksRelayed = 16;

bool Aligned(const CopyEnd& end) {
  return end.address() % kAsyncAlignment == 0;
}

// Lanes to the host come first, then those to devices, then those between devices: see LanePool.
int LaneOrder(CopyDirection direction) {
  switch (direction) {
    case CopyDirection::kDeviceToHost:
      return 0;
    case CopyDirection::kHostToDevice:
      return 1;
    case CopyDirection::kDeviceToDevice:
      return 2;
  }
  return 3;
}

}  // namespace

CopyEngine::Device::Device(NpuDriver& driver, int32_t id, const CopyEngineOptions& options)
    : ring(driver, id, options.slot_bytes, std::max<size_t>(1, options.ring_bytes / options.slot_bytes)) {
  for (auto& pool : pools) pool = std::make_unique<LanePool>(driver, id, options.lanes);
}

CopyEngine::CopyEngine(NpuDriver& driver, int32_t device_count, CopyEngineOptions options)
    : driver_(driver), options_(options) {
  for (int32_t id = 0; id < device_count; ++id) {
    devices_.push_back(std::make_unique<Device>(driver, id, options_));
  }
}

CopyEngine::~CopyEngine() = default;

bool CopyEngine::WhollyPinned(const std::byte* at, size_t size) const {
  while (size > 0) {
    const size_t run = driver_.PinnedRun(at, size);
    if (run == 0) return false;
    at += run;
    size -= run;
  }
  return true;
}

CopyEngine::Route CopyEngine::Choose(const NpuCopy& copy, bool alone) {
  // The runtime itself shall refuse what does not fit.
  if (copy.imported()) return {Way::kDirect};  // the import made its device reachable
  if (copy.size > copy.capacity) return {};
  if (alone && copy.size < options_.async_from_bytes) return {};
  if (copy.direction() == CopyDirection::kDeviceToDevice) {
    if (!Aligned(copy.source) || !Aligned(copy.target)) return {};
    const int32_t from = copy.source.device_id();
    const int32_t to = copy.target.device_id();
    if (from == to || driver_.EnsurePeerAccess(from, to)) return {Way::kDirect};
    return {options_.ring_bytes > 0 ? Way::kRelay : Way::kSynchronous};
  }
  const CopyEnd& device_end = copy.source.on_host() ? copy.target : copy.source;
  if (!Aligned(device_end)) return {};
  const CopyEnd& host_end = copy.host_end();
  if (Aligned(host_end)) {
    if (WhollyPinned(host_end.host(), copy.size)) return {Way::kDirect};
    if (copy.size >= options_.ask_pinned_from_bytes &&
        driver_.LooksPinned(copy.device_id(), host_end.host(), copy.size)) {
      return {Way::kDirect, true};
    }
  }
  return {options_.ring_bytes > 0 ? Way::kStaged : Way::kSynchronous};
}

size_t CopyEngine::DirectBatch(CopyDirection direction) const {
  return direction == CopyDirection::kDeviceToDevice ? options_.between_devices_batch_bytes
                                                     : options_.direct_batch_bytes;
}

// No part spans two registrations.
void CopyEngine::AppendDirect(const NpuCopy& copy, std::vector<NpuCopy>& parts) const {
  const bool between = copy.direction() == CopyDirection::kDeviceToDevice;
  for (size_t done = 0; done < copy.size;) {
    size_t bytes = std::min(copy.size - done, DirectBatch(copy.direction()));
    if (!between) {
      const size_t run = driver_.PinnedRun(copy.host_end().host() + done, bytes);
      if (run > 0) bytes = run;
    }
    parts.push_back(copy.Part(done, bytes));
    done += bytes;
  }
}

// As many chunks at least, where they do not become too small, so that a copy of medium size overlaps as well.
ChunkPlan CopyEngine::Plan(std::span<const NpuCopy> copies, size_t chunks, size_t bytes_min) const {
  size_t bytes = 0;
  for (const NpuCopy& copy : copies) bytes += copy.size;
  const size_t step = chunks * kAsyncAlignment;
  const size_t part = (bytes + step - 1) / step * kAsyncAlignment;
  return {copies, std::clamp(part, std::min(bytes_min, options_.slot_bytes), options_.slot_bytes)};
}

void CopyEngine::TellNoLane(const Status& why) {
  if (told_no_lane_.exchange(true)) return;
  log::Warn("no stream for copies, they are synchronous where that happens: {}", why.ToString());
}

Result<void> CopyEngine::Synchronous(const NpuCopy& copy) {
  if (copy.imported()) {
    return Error(ErrorCode::DATA_COPY_FAILED,
                 "{}: memory of another process is copied by streams only, and none can be had", Describe(copy));
  }
  const bool between = copy.direction() == CopyDirection::kDeviceToDevice;
  if (between && copy.source.device_id() != copy.target.device_id() &&
      !driver_.EnsurePeerAccess(copy.source.device_id(), copy.target.device_id())) {
    return ThroughHost(copy);
  }
  return driver_.CopyNow(copy);
}

Result<void> CopyEngine::SynchronousEach(std::span<const NpuCopy> copies) {
  for (const NpuCopy& copy : copies) MC_TRY(Synchronous(copy));
  return {};
}

Result<void> CopyEngine::ThroughHost(const NpuCopy& copy) {
  const size_t step = std::min(copy.size, options_.slot_bytes);
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(step);
  const CopyEnd middle = CopyEnd::Host(buffer.get());
  for (size_t done = 0; done < copy.size; done += step) {
    const NpuCopy part = copy.Part(done, std::min(step, copy.size - done));
    MC_TRY(driver_.CopyNow({middle, part.source, part.size, part.size}));
    MC_TRY(driver_.CopyNow({part.target, middle, part.size, part.capacity}));
  }
  return {};
}

Result<void> CopyEngine::RunStaged(Group& group, NpuStream& stream, std::span<const SlotRing::Slot> slots) {
  if (slots.empty()) return SynchronousEach(group.staged);
  if (group.direction == CopyDirection::kHostToDevice) {
    return StageToDevice(stream, slots, Plan(group.staged, kChunksStaged, options_.chunk_bytes_min), options_.patience);
  }
  return StageToHost(stream, slots, Plan(group.staged, kChunksStaged, options_.chunk_bytes_min), options_.patience);
}

void CopyEngine::RunGroups(std::span<Group> groups) {
  std::vector<std::optional<LanePool::Lane>> lanes(groups.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    auto lane = device(groups[i].device_id).lanes(groups[i].direction).Acquire();
    if (lane) {
      lanes[i].emplace(*std::move(lane));
    } else {
      TellNoLane(lane.error());
    }
  }
  // What needs no CPU runs on all links at once.
  for (size_t i = 0; i < groups.size(); ++i) {
    Group& group = groups[i];
    if (!lanes[i] || group.direct.empty()) continue;
    group.outcome = CopyDirect(lanes[i]->stream(), group.direct, DirectBatch(group.direction), options_.patience);
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    Group& group = groups[i];
    if (!lanes[i]) {
      group.outcome = SynchronousEach(group.direct);
      if (group.outcome) group.outcome = SynchronousEach(group.staged);
      continue;
    }
    std::vector<SlotRing::Slot> slots;  // of one ring at a time, and given back when its lane is finished
    if (group.outcome && !group.staged.empty()) {
      slots = device(group.device_id).ring.Acquire(options_.slots_per_copy);
      group.outcome = RunStaged(group, lanes[i]->stream(), slots);
    }
    const std::string what = Describe(group.staged.empty() ? group.direct : group.staged);
    group.outcome = lanes[i]->Finish(std::move(group.outcome), options_.patience, what);
    lanes[i].reset();
    if (!group.outcome) {
      group.outcome = Annotate(group.outcome.error(),
                               fmt::format("{} ({})", what, group.staged.empty() ? "asynchronous" : "staged"));
    }
  }
}

Result<void> CopyEngine::RunRelay(std::span<const NpuCopy> copies) {
  Device& source = device(copies.front().source.device_id());
  Device& target = device(copies.front().target.device_id());
  auto down = source.lanes(CopyDirection::kDeviceToHost).Acquire();
  auto up = target.lanes(CopyDirection::kHostToDevice).Acquire();
  if (!down || !up) {
    TellNoLane(down ? up.error() : down.error());
    return SynchronousEach(copies);
  }
  const auto slots = source.ring.Acquire(options_.slots_per_relay);
  if (slots.empty()) return SynchronousEach(copies);
  auto outcome = Relay(down->stream(), up->stream(), slots,
                       Plan(copies, kChunksRelayed, options_.relay_chunk_bytes_min), options_.patience);
  const std::string what = Describe(copies);
  outcome = down->Finish(std::move(outcome), options_.patience, what);
  outcome = up->Finish(std::move(outcome), options_.patience, what);
  if (!outcome) return Annotate(outcome.error(), what + " (through host memory)");
  return {};
}

Result<void> CopyEngine::Copy(const NpuCopy& copy) {
  const Route route = Choose(copy, true);
  if (route.way == Way::kSynchronous) return Synchronous(copy);
  if (route.way == Way::kRelay) return RunRelay({&copy, 1});
  Group group{.direction = copy.direction(), .device_id = copy.device_id()};
  if (route.way == Way::kDirect) {
    AppendDirect(copy, group.direct);
  } else {
    group.staged.push_back(copy);
  }
  RunGroups({&group, 1});
  // It may have been other memory than it looked like; a time-out is no such sign.
  const bool misjudged = !group.outcome && route.pinned_by_others && !IsTimeOut(group.outcome);
  if (misjudged && !driver_.DeviceLost(copy.device_id())) return driver_.CopyNow(copy);
  return std::move(group.outcome);
}

void CopyEngine::Settle(const Result<void>& outcome, std::span<const size_t> members, std::span<const NpuCopy> copies,
                        std::span<Result<void>> results) {
  // After a time-out the next copy would hang as well.
  const bool retry = !outcome && !IsTimeOut(outcome);
  for (const size_t i : members) {
    results[i] = !retry ? outcome : copies[i].imported() ? Copy(copies[i]) : Synchronous(copies[i]);
  }
}

void CopyEngine::CopyMany(std::span<const NpuCopy> copies, std::span<Result<void>> results) {
  MC_CHECK(copies.size() == results.size(), "{} copies, {} results", copies.size(), results.size());
  if (copies.size() == 1) {
    results[0] = Copy(copies[0]);
    return;
  }
  std::map<std::pair<int, int32_t>, Group> by_lane;
  std::map<std::pair<int32_t, int32_t>, std::vector<size_t>> relays;
  std::vector<size_t> alone;
  for (size_t i = 0; i < copies.size(); ++i) {
    const NpuCopy& copy = copies[i];
    const Way way = Choose(copy, false).way;
    if (way == Way::kSynchronous) {
      alone.push_back(i);
    } else if (way == Way::kRelay) {
      relays[{copy.source.device_id(), copy.target.device_id()}].push_back(i);
    } else {
      const std::pair key(LaneOrder(copy.direction()), copy.device_id());
      Group& group = by_lane.try_emplace(key, Group{copy.direction(), copy.device_id()}).first->second;
      group.members.push_back(i);
      if (way == Way::kDirect) AppendDirect(copy, group.direct);
      if (way == Way::kStaged) group.staged.push_back(copy);
    }
  }
  std::vector<Group> groups;
  groups.reserve(by_lane.size());
  for (auto& [key, group] : by_lane) groups.push_back(std::move(group));
  RunGroups(groups);
  for (const Group& group : groups) Settle(group.outcome, group.members, copies, results);
  for (const auto& [pair, members] : relays) {
    std::vector<NpuCopy> pair_copies;
    for (const size_t i : members) pair_copies.push_back(copies[i]);
    Settle(RunRelay(pair_copies), members, copies, results);
  }
  for (const size_t i : alone) results[i] = Synchronous(copies[i]);
}

}  // namespace mooncake
