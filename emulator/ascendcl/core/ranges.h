// The address space as ACL sees it: device blocks, pinned and registered host ranges, and everything else (pageable).
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <shared_mutex>
#include <vector>

#include "core/pool.h"

namespace aclemu {

enum class MemClass { kPageable, kPinned, kRegistered, kDevice, kDeadDevice };
// How a device block came to be: aclrtMalloc, aclrtMapMem (all that is mapped in one piece), aclrtIpcMemImportByKey.
enum class Origin { kMalloc, kVirtual, kImport };

// One block. Whoever copies holds a reference, so the bytes stay until the last copy is done even if the block was
// freed meanwhile; the storage goes back when the last reference goes.
struct Range {
  MemClass cls;
  uintptr_t base;
  uint64_t bytes;      // as asked for; accesses beyond are refused
  int device = 0;      // of a device block
  uint64_t paged = 0;  // as taken from the pool
  bool huge = false;
  std::vector<Extent> extents;
  DevicePool* pool = nullptr;
  Origin origin = Origin::kMalloc;
  std::shared_ptr<void> backing;    // who gives the storage back; null: this block itself
  std::atomic<uint64_t> reach{0};   // bit d: device d may copy from and to it without peer access
  std::atomic<bool> shared{false};  // another process still uses some of the storage
  void* map = nullptr;              // of a pinned block, with its guard page
  uint64_t map_bytes = 0;
  int policy = -1;                     // as asked for, of a device block
  std::vector<void*> stack;            // of the call that made it, see CaptureStack
  std::atomic<uint32_t> in_flight{0};  // queued tasks that use the block

  Range(MemClass c, uintptr_t b, uint64_t n) : cls(c), base(b), bytes(n) {}
  ~Range();
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

// Where an access begins. range is null for pageable and dead device addresses.
struct Place {
  MemClass cls = MemClass::kPageable;
  std::shared_ptr<Range> range;
  uintptr_t addr = 0;
  uint64_t room = UINT64_MAX;  // bytes from addr to the end of the block, or to the next block for pageable memory
  uint64_t offset() const { return addr - range->base; }
  bool OnHost() const { return cls != MemClass::kDevice && cls != MemClass::kDeadDevice; }
};

// Lookup is O(log n) under a shared lock. Thread safe.
class RangeMap {
 public:
  Place Find(const void* ptr) const;
  // For signal handlers: gives up when the map is being changed.
  bool TryFind(const void* ptr, Place* place) const;
  // False when it overlaps another range.
  bool Insert(std::shared_ptr<Range> range);
  // Removes the range that begins at base if may_go agrees (called under the lock); null if there is none or it did
  // not.
  std::shared_ptr<Range> Remove(uintptr_t base, const std::function<bool(const Range&)>& may_go);
  // Removes blocks by their begin and inserts others in one step; nobody sees the state between.
  void Replace(const std::vector<uintptr_t>& old, std::vector<std::shared_ptr<Range>> fresh);
  // Removes all device blocks of one device.
  std::vector<std::shared_ptr<Range>> RemoveDevice(int device);
  void ForEach(const std::function<void(const Range&)>& visit) const;

  // Addresses for a block of one device: nothing is mapped there, a guard page follows, and they are never used again.
  // 0 when the process has no address space left.
  uintptr_t ReserveAddresses(int device, uint64_t bytes, uint64_t alignment);
  // The same, at the wish if the system lets it.
  uintptr_t ReserveNear(int device, uint64_t bytes, uint64_t alignment, uintptr_t wish);

 private:
  Place FindLocked(const void* ptr) const;
  struct Window {
    uintptr_t next, end, begin;
    bool regular;  // at the device's usual place
  };

  mutable std::shared_mutex mu_;  // guards both
  std::map<uintptr_t, std::shared_ptr<Range>> ranges_;
  std::map<int, std::vector<Window>> windows_;
};

}  // namespace aclemu
