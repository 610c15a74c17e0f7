// Table of segments, and the bookkeeping of who waits for which fetch.
#include "transfer_engine/segment_cache.h"

#include <algorithm>
#include <optional>

#include "common/check.h"

namespace mooncake {
namespace {

std::unexpected<Status> UnknownSegment(SegmentId id) {
  return Error(ErrorCode::INVALID_PARAMS, "segment {} is not open", id);
}

std::unexpected<Status> Stopping() {
  return Error(ErrorCode::SHUTTING_DOWN, "the transfer engine is closed");
}

// Where a thread waits for a completion; outlives both.
struct Mailbox {
  std::mutex mutex;
  std::condition_variable arrived;
  std::optional<Result<SegmentPtr>> result;
};

}  // namespace

Result<SegmentId> SegmentCache::Open(std::string_view name, Deadline deadline) {
  name.remove_prefix(std::min(name.find_first_not_of('/'), name.size()));
  if (name.empty()) return Error(ErrorCode::INVALID_PARAMS, "a segment's name is empty");
  EntryPtr entry;
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return Stopping();
    EntryPtr& slot = by_name_[std::string(name)];
    if (slot == nullptr) {
      slot = std::make_shared<Entry>();
      slot->name = name;
      slot->id = next_id_++;
      by_id_.emplace(slot->id, slot);
    }
    entry = slot;
    ++entry->opens;
    if (entry->descriptor != nullptr) return entry->id;
  }
  const Result<SegmentPtr> found = Refresh(entry->id, deadline);
  if (found) return entry->id;
  static_cast<void>(Close(entry->id));
  return std::unexpected(found.error());
}

Result<void> SegmentCache::Close(SegmentId id) {
  EntryPtr entry;  // dies after the lock is gone
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return UnknownSegment(id);
  entry = found->second;
  if (--entry->opens > 0) return {};
  by_id_.erase(found);
  by_name_.erase(entry->name);
  return {};
}

Result<SegmentCache::EntryPtr> SegmentCache::Find(SegmentId id) const {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return UnknownSegment(id);
  return found->second;
}

Result<SegmentPtr> SegmentCache::Get(SegmentId id) const {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->descriptor == nullptr) return UnknownSegment(id);
  return found->second->descriptor;
}

void SegmentCache::RefreshAsync(SegmentId id, SegmentCompletion done) {
  Result<EntryPtr> entry = [&]() -> Result<EntryPtr> {
    std::lock_guard lock(mutex_);
    if (stopping_) return Stopping();
    EntryPtr found = MC_TRY(Find(id));
    if (found->fetching) {
      found->served_next.push_back(std::move(done));
      return EntryPtr();
    }
    found->fetching = true;
    found->served_now.push_back(std::move(done));
    ++fetches_;
    return found;
  }();
  if (!entry) return done(std::unexpected(entry.error()));
  if (*entry != nullptr) Fetch(*entry);
}

void SegmentCache::Fetch(const EntryPtr& entry) {
  SegmentPtr known;
  {
    std::lock_guard lock(mutex_);
    known = entry->descriptor;
  }
  source_.Fetch(entry->name, std::move(known), [this, entry](Result<SegmentPtr> result) {
    MC_CHECK(!result || *result != nullptr, "a source found segment '{}' without a descriptor", entry->name);
    Fetched(entry, std::move(result));
  });
}

void SegmentCache::Fetched(const EntryPtr& entry, Result<SegmentPtr> result) {
  std::vector<SegmentCompletion> waiting;
  {
    std::lock_guard lock(mutex_);
    if (result) entry->descriptor = *result;
    waiting.swap(entry->served_now);
  }
  for (SegmentCompletion& done : waiting) done(result);
  waiting.clear();  // what they hold goes before Stop can return
  bool again = false;
  {
    std::lock_guard lock(mutex_);
    entry->served_now.swap(entry->served_next);
    again = !entry->served_now.empty() && !stopping_;
    if (!again) {
      waiting.swap(entry->served_now);
      entry->fetching = false;
    }
  }
  if (again) return Fetch(entry);
  for (SegmentCompletion& done : waiting) done(Stopping());
  waiting.clear();
  std::lock_guard lock(mutex_);
  if (--fetches_ == 0) idle_.notify_all();
}

Result<SegmentPtr> SegmentCache::Refresh(SegmentId id, Deadline deadline) {
  const auto mailbox = std::make_shared<Mailbox>();
  RefreshAsync(id, [mailbox](Result<SegmentPtr> result) {
    std::lock_guard lock(mailbox->mutex);
    mailbox->result = std::move(result);
    mailbox->arrived.notify_all();
  });
  std::unique_lock lock(mailbox->mutex);
  if (!mailbox->arrived.wait_until(lock, deadline.time(), [&] { return mailbox->result.has_value(); })) {
    return Error(ErrorCode::TRANSFER_TIMEOUT, "the descriptor of segment {} did not arrive in time", id);
  }
  return std::move(*mailbox->result);
}

void SegmentCache::Stop() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  idle_.wait(lock, [this] { return fetches_ == 0; });
}

}  // namespace mooncake
