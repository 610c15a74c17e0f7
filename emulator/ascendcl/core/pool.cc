// The physical memory of one emulated device.
#include "core/pool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/report.h"

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

DevicePool::DevicePool(uint64_t capacity, uint64_t keep_bytes)
    : capacity_(capacity),
      keep_chunks_(keep_bytes / kChunk),
      warm_(capacity / kChunk),
      free_chunks_(capacity / kChunk) {
  fd_ = memfd_create("aclemu-hbm", MFD_CLOEXEC);
  if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(capacity)) != 0) Broken("no memory file for a device");
  void* map = mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0);
  if (map == MAP_FAILED) Broken("no mapping for the memory of a device");
  // A forked child must not see device memory. Huge pages make the first touch cheaper where the system allows them.
  madvise(map, capacity, MADV_DONTFORK);
  madvise(map, capacity, MADV_HUGEPAGE);
  base_ = static_cast<std::byte*>(map);
  runs_[0] = static_cast<uint32_t>(free_chunks_);
}

void DevicePool::Append(uint64_t offset, uint64_t bytes, std::vector<Extent>* out) {
  if (!out->empty() && out->back().offset + out->back().bytes == offset) {
    out->back().bytes += bytes;
  } else {
    uint64_t start = out->empty() ? 0 : out->back().start + out->back().bytes;
    out->push_back({start, offset, bytes});
  }
}

uint32_t DevicePool::TakeRun(uint32_t at_most) {
  // The first run that is long enough keeps a block in one piece; else the block is gathered from what there is.
  auto run = std::find_if(runs_.begin(), runs_.end(), [&](const auto& r) { return r.second >= at_most; });
  if (run == runs_.end()) run = runs_.begin();
  uint32_t first = run->first, have = run->second, taken = std::min(have, at_most);
  runs_.erase(run);
  if (taken < have) runs_[first + taken] = have - taken;
  for (uint32_t chunk = first; chunk < first + taken; ++chunk) {
    kept_ -= warm_[chunk];
    warm_[chunk] = false;
  }
  free_chunks_ -= taken;
  last_run_ = first;
  return taken;
}

void DevicePool::TakePages(uint32_t chunk, uint64_t* left, std::vector<Extent>* out) {
  PageMap& map = split_[chunk];
  for (uint32_t page = 0; page < kPagesPerChunk && *left > 0; ++page) {
    if (map[page]) continue;
    map.set(page);
    Append(chunk * kChunk + page * kPage, kPage, out);
    --*left;
    --free_pages_;
  }
  if (map.all()) open_.erase(chunk);
}

bool DevicePool::Take(uint64_t bytes, bool huge, std::vector<Extent>* out) {
  std::lock_guard lock(mu_);
  out->clear();
  if (huge) {
    uint64_t left = bytes / kChunk;
    if (left > free_chunks_) return false;
    while (left > 0) {
      uint32_t taken = TakeRun(static_cast<uint32_t>(left));
      Append(last_run_ * kChunk, taken * kChunk, out);
      left -= taken;
    }
    return true;
  }
  uint64_t left = bytes / kPage;
  if (left > free_pages_ + free_chunks_ * kPagesPerChunk) return false;
  while (left > 0) {
    if (open_.empty()) {
      TakeRun(1);
      split_[last_run_].reset();
      open_.insert(last_run_);
      free_pages_ += kPagesPerChunk;
    }
    TakePages(*open_.begin(), &left, out);
  }
  return true;
}

void DevicePool::FreeChunk(uint32_t chunk) {
  if (kept_ < keep_chunks_) {
    warm_[chunk] = true;
    ++kept_;
  } else {
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(chunk * kChunk), kChunk);
  }
  ++free_chunks_;
  auto next = runs_.upper_bound(chunk);
  uint32_t first = chunk, count = 1;
  if (next != runs_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == chunk) {
      first = before->first;
      count += before->second;
    }
  }
  if (next != runs_.end() && next->first == chunk + 1) {
    count += next->second;
    runs_.erase(next);
  }
  runs_[first] = count;
}

void DevicePool::Give(const std::vector<Extent>& extents, bool huge) {
  std::lock_guard lock(mu_);
  for (const Extent& extent : extents) {
    uint64_t step = huge ? kChunk : kPage;
    for (uint64_t at = extent.offset; at < extent.offset + extent.bytes; at += step) {
      uint32_t chunk = static_cast<uint32_t>(at / kChunk);
      if (huge) {
        FreeChunk(chunk);
        continue;
      }
      PageMap& map = split_.at(chunk);
      map.reset(at % kChunk / kPage);
      ++free_pages_;
      open_.insert(chunk);
      if (map.none()) {
        split_.erase(chunk);
        open_.erase(chunk);
        free_pages_ -= kPagesPerChunk;
        FreeChunk(chunk);
      }
    }
  }
}

DevicePool::Room DevicePool::GetRoom() {
  std::lock_guard lock(mu_);
  return {free_chunks_ * kChunk, free_pages_ * kPage, split_.size() * kChunk, capacity_};
}

}  // namespace aclemu
