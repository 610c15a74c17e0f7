// Race detection: hashes of sources, patterns in destinations, and which queued copies may overlap.
#include "core/race.h"

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "core/config.h"
#include "core/report.h"
#include "core/stream.h"

namespace aclemu {
namespace {

constexpr uint8_t kUnreadPattern = 0xEB;  // in destinations before the data arrive

struct Access {
  uintptr_t begin, end;
  bool writes;
  Api api;
};

struct Entry {
  std::vector<Access> accesses;
  bool is_gate = false;
  bool summed = false;
  uint64_t sum = 0;
};

struct PendingLog {
  std::mutex mu;  // guards all
  std::map<uint64_t, Entry> entries;
  uint64_t next = 1;
  // Queued tasks that the program may hold back or that run its code: while there is one, it can know of an order that
  // the queues do not show.
  uint64_t gates = 0;
};

PendingLog& Pending() {
  static PendingLog* const log = new PendingLog;
  return *log;
}

bool IsHostBlock(const Place& place) {
  return place.cls == MemClass::kPinned || place.cls == MemClass::kRegistered;
}

bool IsGate(const Task& task) {
  switch (task.kind) {
    case Task::Kind::kCopy:
    case Task::Kind::kSet:
    case Task::Kind::kRecord:
    case Task::Kind::kReset:
      return false;
    case Task::Kind::kWait:
      return task.record == nullptr;
    default:
      return true;
  }
}

Access AccessOf(const Place& place, uint64_t bytes, bool writes, Api api) {
  return {place.addr, place.addr + bytes, writes, api};
}

// The first queued access that overlaps and conflicts; the lock is held.
const Access* Conflict(const PendingLog& log, const Access& mine, bool any_use) {
  for (const auto& [id, entry] : log.entries) {
    for (const Access& other : entry.accesses) {
      bool overlaps = other.begin < mine.end && mine.begin < other.end;
      if (overlaps && (any_use || other.writes)) return &other;
    }
  }
  return nullptr;
}

uint64_t Sum(uintptr_t at, uint64_t bytes) {
  const auto* p = reinterpret_cast<const std::byte*>(at);
  uint64_t sum = bytes, word = 0;
  for (; bytes >= 8; bytes -= 8, p += 8) {
    memcpy(&word, p, 8);
    sum = (sum ^ word) * 0x9FB21C651E98DF25ULL;
    sum ^= sum >> 32;
  }
  word = 0;
  memcpy(&word, p, bytes);
  return (sum ^ word) * 0x9FB21C651E98DF25ULL;
}

}  // namespace

RaceTicket::RaceTicket(const Task& task) {
  if (!Settings().race) return;
  bool sum = false, overwrite = false;
  PendingLog& log = Pending();
  {
    std::lock_guard lock(log.mu);
    Entry entry;
    entry.is_gate = IsGate(task);
    bool known_order = log.gates == 0;
    if (task.kind == Task::Kind::kCopy) {
      Access from = AccessOf(task.src, task.bytes, false, CurrentApi());
      Access to = AccessOf(task.dst, task.bytes, true, CurrentApi());
      sum = known_order && IsHostBlock(task.src) && Conflict(log, from, false) == nullptr;
      overwrite = known_order && IsHostBlock(task.dst) && Conflict(log, to, true) == nullptr;
      entry.accesses = {from, to};
    } else if (task.kind == Task::Kind::kSet) {
      entry.accesses = {AccessOf(task.dst, task.bytes, true, CurrentApi())};
    }
    if (entry.accesses.empty() && !entry.is_gate) return;
    log.gates += entry.is_gate;
    id_ = log.next++;
    log.entries.emplace(id_, std::move(entry));
  }
  // Without the lock; the task is not queued yet, so nobody else changes these bytes legally.
  if (overwrite) Fill(reinterpret_cast<std::byte*>(task.dst.addr), task.bytes, kUnreadPattern);
  if (!sum) return;
  uint64_t value = Sum(task.src.addr, task.bytes);
  std::lock_guard lock(log.mu);
  Entry& entry = log.entries.at(id_);
  entry.sum = value;
  entry.summed = true;
}

RaceTicket::~RaceTicket() {
  if (id_ == 0) return;
  PendingLog& log = Pending();
  std::lock_guard lock(log.mu);
  auto found = log.entries.find(id_);
  log.gates -= found->second.is_gate;
  log.entries.erase(found);
}

aclError RaceTicket::CheckSource(const Task& task) const {
  if (id_ == 0) return ACL_SUCCESS;
  uint64_t before;
  {
    PendingLog& log = Pending();
    std::lock_guard lock(log.mu);
    const Entry& entry = log.entries.at(id_);
    if (!entry.summed) return ACL_SUCCESS;
    before = entry.sum;
  }
  if (Sum(task.src.addr, task.bytes) == before) return ACL_SUCCESS;
  Api caller = CurrentApi();
  SetCurrentApi(task.api);
  aclError code = Strict(Rule::kR1, ACL_ERROR_RT_TS_ERROR, "the source %p + %llu changed before the copy was done",
                         reinterpret_cast<void*>(task.src.addr), static_cast<unsigned long long>(task.bytes));
  SetCurrentApi(caller);
  return code;
}

aclError CheckSynchronous(const Place& dst, const Place* src, uint64_t bytes) {
  if (!Settings().race) return ACL_SUCCESS;
  Access found;
  {
    PendingLog& log = Pending();
    std::lock_guard lock(log.mu);
    if (log.gates > 0) return ACL_SUCCESS;
    const Access* other = Conflict(log, AccessOf(dst, bytes, true, CurrentApi()), true);
    if (other == nullptr && src != nullptr) other = Conflict(log, AccessOf(*src, bytes, false, CurrentApi()), false);
    if (other == nullptr) return ACL_SUCCESS;
    found = *other;
  }
  return Strict(Rule::kC12, ACL_ERROR_RT_PARAM_INVALID, "missing synchronize: a queued %s still %s %p + %llu",
                Name(found.api), found.writes ? "writes" : "reads", reinterpret_cast<void*>(found.begin),
                static_cast<unsigned long long>(found.end - found.begin));
}

}  // namespace aclemu
