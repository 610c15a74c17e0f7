// Segments of other processes as this one knows them: names, ids, and descriptors that are fetched anew when needed.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "transfer_engine/segment.h"
#include "transfer_engine/types.h"

namespace mooncake {

using SegmentCompletion = std::move_only_function<void(Result<SegmentPtr>)>;

// How long one question for a descriptor may take.
inline constexpr Duration kSegmentLookupTimeout = std::chrono::seconds(5);

// Where descriptors come from.
class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  // `done` exactly once, on any thread, also within the call, after kSegmentLookupTimeout at the latest.
  // SEGMENT_NOT_FOUND when nobody goes by that name. `known`: what the asker has already, or null.
  virtual void Fetch(const std::string& name, SegmentPtr known, SegmentCompletion done) = 0;
};

// Any thread. The source outlives it.
class SegmentCache {
 public:
  explicit SegmentCache(SegmentSource& source) : source_(source) {}
  ~SegmentCache() { Stop(); }
  SegmentCache(const SegmentCache&) = delete;
  SegmentCache& operator=(const SegmentCache&) = delete;

  // The same name gives the same id while it is open; opening is counted. Leading '/' are dropped. INVALID_PARAMS for
  // an empty name. Blocks when the segment is not known yet.
  Result<SegmentId> Open(std::string_view name, Deadline deadline);
  // The last one forgets the segment. INVALID_PARAMS for an id that is not open.
  Result<void> Close(SegmentId id);
  // As last fetched. INVALID_PARAMS for an id that is not open.
  Result<SegmentPtr> Get(SegmentId id) const;
  // A fetch that begins after this call; callers that come while one is under way share the next. The descriptor in
  // use stays what it is when it fails.
  void RefreshAsync(SegmentId id, SegmentCompletion done);
  Result<SegmentPtr> Refresh(SegmentId id, Deadline deadline);
  // Begins no further fetch (SHUTTING_DOWN) and returns when none is under way; the source has to end them.
  void Stop();

 private:
  struct Entry {
    std::string name;
    SegmentId id = kInvalidSegment;
    size_t opens = 0;
    SegmentPtr descriptor;  // null until the first fetch
    bool fetching = false;
    std::vector<SegmentCompletion> served_now;   // by the fetch under way
    std::vector<SegmentCompletion> served_next;  // came after it had begun
  };
  using EntryPtr = std::shared_ptr<Entry>;

  Result<EntryPtr> Find(SegmentId id) const;
  void Fetch(const EntryPtr& entry);
  void Fetched(const EntryPtr& entry, Result<SegmentPtr> result);

  SegmentSource& source_;
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  bool stopping_ = false;
  size_t fetches_ = 0;
  SegmentId next_id_ = 1;
  std::unordered_map<SegmentId, EntryPtr> by_id_;
  std::unordered_map<std::string, EntryPtr> by_name_;
};

}  // namespace mooncake
