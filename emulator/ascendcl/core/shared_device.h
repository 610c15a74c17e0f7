// What all processes see of one device: who owns each page, streams and events in use, exported memory, and whether the
// device is lost. With ACLEMU_DIR the state lies in dev<N>.ctl there and the memory in dev<N>.hbm; without it both
// belong to this process alone, and the same code runs on them.
//
// A process may be killed at any instruction. So the tags of the pages are the one truth: every change is one store of
// 16 bits, in an order in which a stop leaves nothing worse than pages of a dead owner. Everything that can be counted
// from the tags is counted anew when the lock was left by a dead process and when an owner is swept away.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "acl/acl.h"

namespace aclemu {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kChunk = 2ULL << 20;
constexpr uint32_t kPagesPerChunk = kChunk / kPage;

constexpr uint64_t kMaxEvents = 65536;  // per device, all processes together

// The tag of a page or a chunk: free, an owner (process), a share that outlived its process, or one of the last four.
using Tag = uint16_t;
constexpr Tag kTagFree = 0;
constexpr Tag kFirstOwner = 1, kOwners = 512;
constexpr Tag kFirstShare = kOwners, kShares = 1024;
constexpr Tag kTags = kFirstShare + kShares;
constexpr Tag kTagReserved = 0xFFFC;  // what the system keeps for itself
constexpr Tag kTagSplit = 0xFFFD;     // chunk only: look at its pages
constexpr Tag kTagWarm = 0xFFFE;      // chunk only: free, its pages stayed resident

// A piece of a block: bytes [start, start + bytes) of the block lie at [offset, offset + bytes) of the pool.
struct Extent {
  uint64_t start;
  uint64_t offset;
  uint64_t bytes;
};

constexpr uint32_t kShareExtents = 1024;
constexpr uint32_t kSharePids = 64;

enum class ShareKind : uint32_t { kIpc = 1, kPhysical = 2 };

// Memory that a process offers to others. Guarded by the device's lock, except alive.
struct Share {
  enum State : uint32_t { kUnused = 0, kLive = 1, kOrphan = 2 };  // orphan: its process is gone or gave it up
  std::atomic<uint32_t> state;
  ShareKind kind;
  uint64_t nonce;  // tells a key of today from one of yesterday
  Tag exporter;
  bool open_to_all;
  bool huge;
  uint32_t pid_count;
  int32_t pids[kSharePids];
  std::atomic<uint64_t> holders[kOwners / 64];  // importers
  uint64_t bytes;
  uint32_t extent_count;

  bool Held() const;
};

struct Owner {
  std::atomic<uint32_t> used;
  int32_t pid;
  char uuid[36];
  std::atomic<uint32_t> streams, events;
};

// The control file. Fixed layout: raise kControlLayout with every change, and keep magic, layout and ready in place.
// The tags of chunks, the numbers of taken pages per chunk and the tags of pages follow it.
constexpr uint64_t kControlMagic = 0x6c74'6375'6d65'6c63ULL;
constexpr uint32_t kControlLayout = 1;
struct ControlHead {
  uint64_t magic;
  uint32_t layout;
  std::atomic<uint32_t> ready;
  uint64_t capacity, reserved;
  pthread_mutex_t mutex;
  std::atomic<int32_t> lost;  // the code that calls on the device return, or 0
  // Counted from the tags and owners:
  uint64_t free_chunks, warm_chunks, split_chunks, free_pages, streams, events;
  uint32_t first_free, first_open;  // no chunk below is free; is split with a free page
  Owner owners[kOwners];
};
struct Control : ControlHead {
  Share shares[kShares];
  Extent share_extents[kShares][kShareExtents];  // last: costs memory only where used
};

class SharedDevice {
 public:
  // By the number the program uses (ASCEND_RT_VISIBLE_DEVICES applies). Attaches at first use, never ends. Ends the
  // process with kBadConfigExit when other processes use the directory with another layout or capacity.
  static SharedDevice& Of(int device);
  static SharedDevice* OfPhysical(int physical, int* device);  // null when not visible
  static bool Sharing();                                       // ACLEMU_DIR is set

  // Device state, seen by all processes. Cheap. The first code stays; a lost device never comes back.
  void SetLost(aclError code);
  aclError Lost() const { return control_->lost.load(std::memory_order_relaxed); }
  bool IsLost() const { return Lost() != ACL_SUCCESS; }
  void AwaitLost();  // returns once any process lost it

  // False when the device has no more of them; dead processes count until then at most.
  bool TakeStream(uint64_t limit) { return TakeCounted(&Owner::streams, &ControlHead::streams, limit); }
  uint64_t StreamsInUse();
  void GiveStream() { GiveCounted(&Owner::streams, &ControlHead::streams); }
  bool TakeEvent() { return TakeCounted(&Owner::events, &ControlHead::events, kMaxEvents); }
  void GiveEvent() { GiveCounted(&Owner::events, &ControlHead::events); }

  // Frees what dead processes left. True when there was any. Takes the lock.
  bool Sweep();

  // The device's lock. Held for short stretches of bookkeeping only, never while bytes move.
  class Lock {
   public:
    explicit Lock(SharedDevice& device);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    SharedDevice& device_;
  };

  // For the pool and the shares; these need the lock.
  Control& control() { return *control_; }
  std::atomic<Tag>* chunk_tags() { return chunk_tags_; }
  std::atomic<uint16_t>* pages_taken() { return pages_taken_; }
  std::atomic<Tag>* page_tags(uint32_t chunk) { return page_tags_ + uint64_t{chunk} * kPagesPerChunk; }
  uint32_t chunks() const { return chunks_; }
  // Frees or hands on what of the extents has the tag.
  void FreeExtents(const Extent* extents, size_t count, bool huge, Tag tag);
  void Retag(const Extent* extents, size_t count, bool huge, Tag from, Tag to);
  // Whether one more free chunk may stay resident.
  bool MayStayWarm() const;
  void MarkFree(uint32_t chunk, bool warm);
  // Gives the memory of a chunk back to the system. Needs no lock if the caller owns the chunk.
  void Punch(uint32_t chunk);

  Tag self() const { return self_; }
  int device() const { return device_; }
  int physical() const { return physical_; }
  int pool_fd() const { return pool_fd_; }

 private:
  SharedDevice(int device, int physical);
  void OpenPrivate();
  void OpenShared(const std::string& dir);
  bool IsStale(int fd, const std::string& control) const;
  void Map(int fd);
  void Initialise();
  void ClaimOwner();  // needs the lock
  void FreeChunk(uint32_t chunk);
  // Makes a page free, and its chunk when that was the last one.
  void FreePage(uint32_t chunk, uint32_t page);
  bool SweepLocked();
  bool IsDead(const Owner& owner) const;
  void DropShares(const std::vector<bool>& dead);
  // Counts anew, and frees what belongs to owners and shares that are not in use.
  void Recount();
  void Count();
  bool TakeCounted(std::atomic<uint32_t> Owner::* mine, uint64_t ControlHead::* all, uint64_t limit);
  void GiveCounted(std::atomic<uint32_t> Owner::* mine, uint64_t ControlHead::* all);

  const int device_, physical_;
  const uint32_t chunks_;
  int pool_fd_ = -1;
  Control* control_ = nullptr;
  std::atomic<Tag>* chunk_tags_ = nullptr;
  std::atomic<uint16_t>* pages_taken_ = nullptr;
  std::atomic<Tag>* page_tags_ = nullptr;
  Tag self_ = 0;
};

// Devices the program may use, as physical numbers; their positions are the numbers it uses.
const std::vector<int>& VisibleDevices();

}  // namespace aclemu
