// One request on its way through the engine: what it needs to be tried again, and whom its end concerns.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device/memory_range.h"
#include "transfer_engine/batch_table.h"
#include "transfer_engine/region_registry.h"
#include "transfer_engine/segment.h"
#include "transfer_engine/transfer_engine.h"

namespace mooncake {

// The requests of one Submit call.
struct Submission {
  // A process that gets the notification.
  struct Target {
    SegmentId id = kInvalidSegment;
    SegmentPtr segment;
    Uuid served_by{};  // of the data that is in place; nil: none yet
  };

  std::shared_ptr<Batch> batch;
  BatchId tag = kInvalidBatch;
  uint64_t cancels = 0;  // the batch's number when this began
  Deadline deadline = Deadline::After({});

  // The rest only with a notification.
  std::optional<TransferNotify> notify;
  size_t notify_item = 0;
  std::mutex mutex;
  size_t unfinished = 0;
  Result<void> failure;  // why it is not sent
  bool data_failed = false;
  std::vector<Target> targets;

  bool Canceled() const { return batch->cancels() != cancels; }
};

// Owned by whoever works on it: the transport (inside the operation's completion), or the queue for second attempts.
struct TransferJob {
  std::shared_ptr<Submission> of;
  size_t item = 0;
  TransferOpcode opcode = TransferOpcode::kRead;
  MemoryRange local;
  // Beside the operation's own: between two attempts the region must not go.
  RegionRegistry::Use local_use;
  SegmentId target = kInvalidSegment;
  uint64_t target_address = 0;
  std::optional<GrantedRange> grant;
  SegmentPtr segment;                      // as known at the last attempt
  const SegmentRegion* region = nullptr;   // of `segment`, or `granted`
  std::optional<SegmentRegion> granted{};  // the region with the grant's key
  size_t transport = 0;
  bool second_attempt = false;
};

using TransferJobPtr = std::unique_ptr<TransferJob>;

}  // namespace mooncake
