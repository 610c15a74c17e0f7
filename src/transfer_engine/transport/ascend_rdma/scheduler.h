// Decides which bytes go through the next free slot: cuts what is large, packs what is small, keeps everybody's share.
#pragma once

#include <array>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "common/uuid.h"
#include "transfer_engine/transport/ascend_rdma/slot_ring.h"
#include "transfer_engine/types.h"

namespace mooncake::bridge {

// Best first.
enum class WorkClass : uint8_t { kSmallRead, kForeground, kBulk };
inline constexpr size_t kWorkClasses = 3;

// One operation as the scheduler sees it. `phase`: the device address modulo kAsyncAlignment.
struct Work {
  uint64_t id = 0;
  Direction direction = Direction::kWrite;
  Uuid peer;
  BatchId batch = kInvalidBatch;
  size_t length = 0;  // not 0
  size_t phase = 0;
};

// Bytes [offset, offset + length) of an operation, at `slot_offset` of the slot. Device address and place in the slot
// are equal modulo kAsyncAlignment; no two pieces of a load share a unit of kAsyncAlignment.
struct Piece {
  uint64_t work = 0;
  size_t offset = 0;
  size_t length = 0;
  size_t slot_offset = 0;
};

// What goes through one slot at a time: pieces of one peer.
struct Load {
  Direction direction = Direction::kWrite;
  Uuid peer;
  WorkClass work_class = WorkClass::kForeground;
  std::vector<Piece> pieces;
  bool bulk() const { return work_class == WorkClass::kBulk; }
};

struct SchedulerOptions {
  size_t slot_bytes = size_t{2} << 20;
  size_t chunk_bytes = size_t{2} << 20;        // at most a slot
  size_t chunk_bytes_min = size_t{512} << 10;  // of operations that would be less than four chunks
  size_t small_bytes = size_t{2} << 20;        // less than this shares a slot with others
  size_t bulk_bytes = size_t{16} << 20;        // from here on an operation is bulk
  size_t pieces_per_slot = 256;
  Duration small_age = std::chrono::microseconds(50);  // a small operation waits that long for company
  Duration promote_age = std::chrono::milliseconds(10);
  size_t operations_max = size_t{1} << 20;
  size_t operations_per_peer_max = size_t{3} << 18;
  size_t loads_per_peer_max = SIZE_MAX;  // of a direction, that are out at once
};

// One thread; asks no clock. Operations of one (peer, batch, direction, class) are a flow: in order among themselves,
// and served in turn with the other flows of their class, by bytes.
class Scheduler {
 public:
  explicit Scheduler(SchedulerOptions options);

  // TOO_MANY_REQUESTS beyond the limits.
  Result<void> Add(const Work& work, TimePoint now);
  // Nothing of it will be picked any more. Idempotent.
  void Drop(uint64_t id);
  // It has ended: dropped, and counted out of the limits. Once for each that was added.
  void End(uint64_t id);

  // The next load of a direction. `idle`: nothing of this direction is under way, so that waiting for company would
  // only cost time. nullopt: nothing, nothing that may go now, or only bulk while that is not allowed.
  std::optional<Load> Next(Direction direction, bool idle, bool bulk_allowed, TimePoint now);
  // A load that Next gave out is over, its slot free.
  void Returned(Direction direction, const Uuid& peer);
  // When small operations that wait for company will have waited enough; nullopt: none does.
  std::optional<TimePoint> RipeAt(Direction direction) const;

  WorkClass ClassOf(const Work& work) const;
  size_t operations() const { return admitted_.size(); }
  bool empty(Direction direction) const { return unpicked_[Index(direction)] == 0; }

 private:
  struct Group {  // small work of one peer, direction and class
    size_t bytes = 0;
  };
  struct Flow {
    WorkClass work_class;
    Uuid peer;
    BatchId batch;
    Group* group;
    std::deque<uint64_t> queue;  // among them ids that were dropped
    int64_t credit = 0;
    TimePoint waiting_since{};
    bool active = false;
  };
  struct Item {
    Work work;
    size_t cursor = 0;
    size_t chunk = 0;
    TimePoint since{};
    Flow* flow = nullptr;
  };
  using FlowKey = std::tuple<Direction, WorkClass, Uuid, BatchId>;
  using GroupKey = std::tuple<Direction, WorkClass, Uuid>;
  using FlowRing = std::deque<Flow*>;

  bool Small(const Work& work) const { return work.length < small_bytes_; }
  size_t ChunkOf(const Work& work) const;
  FlowRing& ring(Direction direction, WorkClass work_class) {
    return rings_[Index(direction)][static_cast<size_t>(work_class)];
  }
  // The flow's first operation; null when it has none left.
  Item* Head(Flow& flow);
  bool Ripe(const Flow& flow, const Item& head, bool idle, TimePoint now) const;
  bool AtLimit(Direction direction, const Uuid& peer) const;
  // Moves the ring on to a flow that may go; null when there is none.
  Flow* Front(FlowRing& ring, Direction direction, bool idle, TimePoint now);
  Flow* Promoted(Direction direction, bool idle, bool bulk_allowed, TimePoint now);
  void Retire(FlowRing& ring, Direction direction, Flow* flow);
  Load Serve(Flow& flow, Direction direction, TimePoint now);
  void Pack(Flow& flow, Load& load, size_t& used, TimePoint now);
  void Forget(std::unordered_map<uint64_t, Item>::iterator item);

  const SchedulerOptions options_;
  const size_t small_bytes_;
  std::map<FlowKey, std::unique_ptr<Flow>> flows_;
  std::map<GroupKey, std::unique_ptr<Group>> groups_;
  FlowRing rings_[kDirections][kWorkClasses];
  std::unordered_map<uint64_t, Item> items_;  // not picked to the end
  std::unordered_map<uint64_t, Uuid> admitted_;
  std::map<Uuid, size_t> by_peer_;
  std::map<std::pair<Direction, Uuid>, size_t> out_;  // loads
  std::array<size_t, kDirections> unpicked_{};
  std::array<bool, kDirections> promoted_last_{};
};

}  // namespace mooncake::bridge
