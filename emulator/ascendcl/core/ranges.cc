// The address space as ACL sees it.
#include "core/ranges.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>

#include "core/config.h"
#include "core/report.h"

namespace aclemu {
namespace {

// Looks like the addresses of a real device, and is free in address sanitizer builds; elsewhere if it is taken.
constexpr uintptr_t kFirstWindow = 0x12c0'0000'0000ULL;
constexpr uint64_t kWindowBytes = 128ULL << 30;

// The wish is a hint: the system takes it if it can (the thread sanitizer never can).
uintptr_t MapWindow(uintptr_t wish, uint64_t bytes) {
  void* map = mmap(reinterpret_cast<void*>(wish), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return map == MAP_FAILED ? 0 : reinterpret_cast<uintptr_t>(map);
}

uintptr_t AlignUp(uintptr_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

}  // namespace

Range::~Range() {
  if (map != nullptr) munmap(map, map_bytes);
  if (pool == nullptr || backing != nullptr) return;
  // A block larger than what stays resident is punched out anyway; filling it first would be lost work.
  if (Settings().poison && !shared.load() && paged <= Settings().keep_bytes) {
    for (const Extent& extent : extents) Fill(pool->At(extent.offset), extent.bytes, 0xDD);
  }
  pool->Give(extents, huge);
  Stats().device_paged_bytes.fetch_sub(paged);
}

Place RangeMap::Find(const void* ptr) const {
  std::shared_lock lock(mu_);
  return FindLocked(ptr);
}

bool RangeMap::TryFind(const void* ptr, Place* place) const {
  std::shared_lock lock(mu_, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  *place = FindLocked(ptr);
  return true;
}

Place RangeMap::FindLocked(const void* ptr) const {
  Place place;
  place.addr = reinterpret_cast<uintptr_t>(ptr);
  auto after = ranges_.upper_bound(place.addr);
  if (after != ranges_.begin()) {
    const auto& range = std::prev(after)->second;
    if (place.addr - range->base < range->bytes) {
      place.cls = range->cls;
      place.range = range;
      place.room = range->base + range->bytes - place.addr;
      return place;
    }
  }
  for (const auto& [device, windows] : windows_) {
    for (const Window& window : windows) {
      if (place.addr < window.begin || place.addr >= window.end) continue;
      place.cls = MemClass::kDeadDevice;
      place.room = 0;
      return place;
    }
  }
  if (after != ranges_.end()) place.room = after->first - place.addr;
  return place;
}

bool RangeMap::Insert(std::shared_ptr<Range> range) {
  std::unique_lock lock(mu_);
  auto after = ranges_.lower_bound(range->base);
  if (after != ranges_.end() && after->first - range->base < range->bytes) return false;
  if (after != ranges_.begin()) {
    const Range& before = *std::prev(after)->second;
    if (range->base - before.base < before.bytes) return false;
  }
  ranges_.emplace_hint(after, range->base, std::move(range));
  return true;
}

std::shared_ptr<Range> RangeMap::Remove(uintptr_t base, const std::function<bool(const Range&)>& may_go) {
  std::unique_lock lock(mu_);
  auto found = ranges_.find(base);
  if (found == ranges_.end() || !may_go(*found->second)) return nullptr;
  std::shared_ptr<Range> range = std::move(found->second);
  ranges_.erase(found);
  return range;
}

void RangeMap::Replace(const std::vector<uintptr_t>& old, std::vector<std::shared_ptr<Range>> fresh) {
  std::vector<std::shared_ptr<Range>> removed;  // ends after the lock
  std::unique_lock lock(mu_);
  for (uintptr_t base : old) {
    auto found = ranges_.find(base);
    if (found == ranges_.end()) continue;
    removed.push_back(std::move(found->second));
    ranges_.erase(found);
  }
  for (auto& range : fresh) {
    uintptr_t base = range->base;
    ranges_.emplace(base, std::move(range));
  }
}

std::vector<std::shared_ptr<Range>> RangeMap::RemoveDevice(int device) {
  std::vector<std::shared_ptr<Range>> removed;
  std::unique_lock lock(mu_);
  for (auto it = ranges_.begin(); it != ranges_.end();) {
    if (it->second->cls == MemClass::kDevice && it->second->device == device) {
      removed.push_back(std::move(it->second));
      it = ranges_.erase(it);
    } else {
      ++it;
    }
  }
  return removed;
}

void RangeMap::ForEach(const std::function<void(const Range&)>& visit) const {
  std::shared_lock lock(mu_);
  for (const auto& [base, range] : ranges_) visit(*range);
}

uintptr_t RangeMap::ReserveAddresses(int device, uint64_t bytes, uint64_t alignment) {
  uint64_t need = AlignUp(bytes, kPage) + kPage;
  std::unique_lock lock(mu_);
  std::vector<Window>& windows = windows_[device];
  if (windows.empty() || AlignUp(windows.back().next, alignment) + need > windows.back().end) {
    uint64_t size = std::max(kWindowBytes, AlignUp(need + alignment, kWindowBytes));
    bool regular =
        size == kWindowBytes && std::none_of(windows.begin(), windows.end(), [](const Window& w) { return w.regular; });
    uintptr_t begin = MapWindow(regular ? kFirstWindow + static_cast<uintptr_t>(device) * kWindowBytes : 0, size);
    if (begin == 0) return 0;
    windows.push_back({begin, begin + size, begin, regular});
  }
  Window& window = windows.back();
  uintptr_t at = AlignUp(window.next, alignment);
  window.next = at + need;
  return at;
}

uintptr_t RangeMap::ReserveNear(int device, uint64_t bytes, uint64_t alignment, uintptr_t wish) {
  uint64_t need = AlignUp(bytes, kPage) + kPage + alignment;
  uintptr_t begin = MapWindow(wish, need);
  if (begin == 0) return 0;
  std::unique_lock lock(mu_);
  // In front: the last window is the one that small blocks come from.
  windows_[device].insert(windows_[device].begin(), {begin + need, begin + need, begin, false});
  return AlignUp(begin, alignment);
}

}  // namespace aclemu
