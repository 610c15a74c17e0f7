// The physical memory of one emulated device.
#include "core/pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "core/config.h"
#include "core/report.h"
#include "core/segv.h"

namespace aclemu {

#if defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize("thread"), optimize("no-tree-loop-distribute-patterns"))) void Fill(std::byte* begin,
                                                                                               uint64_t bytes,
                                                                                               uint8_t pattern) {
  uint64_t word = 0x0101010101010101ULL * pattern;
  uint64_t i = 0;
  for (; i + 8 <= bytes; i += 8) __builtin_memcpy(begin + i, &word, 8);
  for (; i < bytes; ++i) begin[i] = static_cast<std::byte>(pattern);
}
#else
void Fill(std::byte* begin, uint64_t bytes, uint8_t pattern) {
  memset(begin, pattern, bytes);
}
#endif

namespace {

// The driver maps so much at once for small blocks; it keeps half of it when they are freed.
constexpr uint64_t kCacheBytes = 36ULL << 20;

bool IsFree(Tag tag) {
  return tag == kTagFree || tag == kTagWarm;
}

}  // namespace

DevicePool::DevicePool(SharedDevice& device) : device_(device) {
  uint64_t capacity = uint64_t{device.chunks()} * kChunk;
  void* map = mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, device.pool_fd(), 0);
  if (map == MAP_FAILED) Broken("no mapping for the memory of a device");
  // A forked child must not see device memory. Huge pages make the first touch cheaper where the system allows them.
  madvise(map, capacity, MADV_DONTFORK);
  madvise(map, capacity, MADV_HUGEPAGE);
  base_ = static_cast<std::byte*>(map);
  ExplainHostAccess();
  if (SharedDevice::Sharing()) ExplainFullFile(map, capacity);
}

void DevicePool::Append(uint64_t offset, uint64_t bytes, std::vector<Extent>* out) {
  if (!out->empty() && out->back().offset + out->back().bytes == offset) {
    out->back().bytes += bytes;
  } else {
    uint64_t start = out->empty() ? 0 : out->back().start + out->back().bytes;
    out->push_back({start, offset, bytes});
  }
}

void DevicePool::TakeChunk(uint32_t chunk, Tag tag) {
  Control& control = device_.control();
  control.warm_chunks -= device_.chunk_tags()[chunk].load() == kTagWarm;
  --control.free_chunks;
  device_.chunk_tags()[chunk] = tag;
}

void DevicePool::TakeChunks(uint64_t count, std::vector<Extent>* out) {
  Control& control = device_.control();
  const std::atomic<Tag>* tags = device_.chunk_tags();
  // The first run that is long enough keeps a block in one piece; else the block is gathered from what there is.
  uint32_t run = 0, end = control.first_free;
  for (; end < device_.chunks() && run < count; ++end) run = IsFree(tags[end].load()) ? run + 1 : 0;
  uint32_t chunk = run == count ? end - run : control.first_free;
  bool from_first = chunk == control.first_free;
  for (; count > 0; ++chunk) {
    if (!IsFree(tags[chunk].load())) continue;
    TakeChunk(chunk, device_.self());
    Append(chunk * kChunk, kChunk, out);
    --count;
  }
  if (from_first) control.first_free = chunk;
}

uint32_t DevicePool::OpenChunk() {
  Control& control = device_.control();
  if (control.free_pages > 0) {
    uint32_t& chunk = control.first_open;
    while (device_.chunk_tags()[chunk].load() != kTagSplit || device_.pages_taken()[chunk].load() == kPagesPerChunk)
      ++chunk;
    return chunk;
  }
  uint32_t chunk = control.first_free;
  while (!IsFree(device_.chunk_tags()[chunk].load())) ++chunk;
  control.first_free = chunk + 1;
  device_.pages_taken()[chunk] = 0;
  TakeChunk(chunk, kTagSplit);
  ++control.split_chunks;
  control.free_pages += kPagesPerChunk;
  control.first_open = std::min(control.first_open, chunk);
  return chunk;
}

void DevicePool::TakePages(uint64_t count, std::vector<Extent>* out) {
  while (count > 0) {
    uint32_t chunk = OpenChunk();
    std::atomic<Tag>* pages = device_.page_tags(chunk);
    for (uint32_t page = 0; page < kPagesPerChunk && count > 0; ++page) {
      if (pages[page].load() != kTagFree) continue;
      pages[page] = device_.self();
      ++device_.pages_taken()[chunk];
      --device_.control().free_pages;
      Append(chunk * kChunk + page * kPage, kPage, out);
      --count;
    }
  }
}

bool DevicePool::TakeFresh(uint64_t bytes, bool huge, std::vector<Extent>* out) {
  auto fits = [&] {
    uint64_t room = device_.control().free_chunks * kChunk;
    return bytes <= (huge ? room : room + device_.control().free_pages * kPage);
  };
  auto take = [&] {
    SharedDevice::Lock lock(device_);
    if (!fits()) return false;
    if (huge) {
      TakeChunks(bytes / kChunk, out);
    } else {
      TakePages(bytes / kPage, out);
    }
    return true;
  };
  return take() || (device_.Sweep() && take());
}

bool DevicePool::TakeCached(uint64_t bytes, bool huge, std::vector<Extent>* out) {
  std::lock_guard lock(cache_mu_);
  std::set<uint64_t>& offsets = cache_[huge].offsets;
  uint64_t unit = huge ? kChunk : kPage;
  uint64_t have = offsets.size() * unit;
  if (have < bytes) {
    std::vector<Extent> fresh;
    if (!TakeFresh(kCacheBytes, huge, &fresh) && !TakeFresh(bytes - have, huge, &fresh)) return false;
    for (const Extent& extent : fresh) {
      for (uint64_t at = extent.offset; at < extent.offset + extent.bytes; at += unit) offsets.insert(at);
    }
  }
  for (uint64_t taken = 0; taken < bytes; taken += unit) {
    Append(*offsets.begin(), unit, out);
    offsets.erase(offsets.begin());
  }
  return true;
}

bool DevicePool::Take(uint64_t bytes, bool huge, std::vector<Extent>* out) {
  out->clear();
  return Settings().cache && bytes <= kCacheBytes ? TakeCached(bytes, huge, out) : TakeFresh(bytes, huge, out);
}

bool DevicePool::TakeAside(uint64_t bytes, std::vector<Extent>* out) {
  out->clear();
  return TakeFresh(bytes, true, out);
}

void DevicePool::GiveBack(const std::vector<Extent>& extents, bool huge) {
  std::vector<uint32_t> cold;
  {
    SharedDevice::Lock lock(device_);
    if (!huge) {
      device_.FreeExtents(extents.data(), extents.size(), huge, device_.self());
      return;
    }
    for (const Extent& extent : extents) {
      for (uint64_t at = extent.offset; at < extent.offset + extent.bytes; at += kChunk) {
        auto chunk = static_cast<uint32_t>(at / kChunk);
        if (device_.chunk_tags()[chunk].load() != device_.self()) continue;  // others use it still
        if (device_.MayStayWarm()) {
          device_.MarkFree(chunk, true);
        } else {
          cold.push_back(chunk);
        }
      }
    }
  }
  if (cold.empty()) return;
  // The slow part, while the chunks are still ours.
  for (uint32_t chunk : cold) device_.Punch(chunk);
  SharedDevice::Lock lock(device_);
  for (uint32_t chunk : cold) device_.MarkFree(chunk, false);
}

bool DevicePool::IsMine(uint64_t offset, bool huge) {
  auto chunk = static_cast<uint32_t>(offset / kChunk);
  const auto& tag = huge ? device_.chunk_tags()[chunk] : device_.page_tags(chunk)[offset % kChunk / kPage];
  return tag.load() == device_.self();
}

void DevicePool::GiveCached(const std::vector<Extent>& extents, bool huge) {
  std::vector<Extent> surplus;
  {
    std::lock_guard lock(cache_mu_);
    std::set<uint64_t>& offsets = cache_[huge].offsets;
    uint64_t unit = huge ? kChunk : kPage;
    for (const Extent& extent : extents) {
      for (uint64_t at = extent.offset; at < extent.offset + extent.bytes; at += unit) {
        if (IsMine(at, huge)) offsets.insert(at);  // else others use it still
      }
    }
    if (offsets.size() * unit <= kCacheBytes) return;
    while (offsets.size() * unit > kCacheBytes / 2) {
      Append(*std::prev(offsets.end()), unit, &surplus);
      offsets.erase(std::prev(offsets.end()));
    }
  }
  GiveBack(surplus, huge);
}

void DevicePool::Give(const std::vector<Extent>& extents, bool huge) {
  uint64_t bytes = extents.empty() ? 0 : extents.back().start + extents.back().bytes;
  if (Settings().cache && bytes <= kCacheBytes) {
    GiveCached(extents, huge);
  } else {
    GiveBack(extents, huge);
  }
}

DevicePool::Room DevicePool::GetRoom() {
  device_.Sweep();
  SharedDevice::Lock lock(device_);
  const Control& control = device_.control();
  return {control.free_chunks * kChunk, control.free_pages * kPage, control.split_chunks * kChunk,
          uint64_t{device_.chunks()} * kChunk};
}

}  // namespace aclemu
