// The physical memory of one emulated device: a sparse memory file, given out in 2 MiB chunks and 4 KiB pages.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <vector>

#include "core/shared_device.h"

namespace aclemu {

// A chunk is free, huge (given out whole) or split into pages. Thread safe. The mapping is only for the emulator
// itself; its addresses are never handed to a program.
class DevicePool {
 public:
  // Ends the process if the system refuses the mapping.
  explicit DevicePool(SharedDevice& device);

  struct Room {
    uint64_t free_huge;     // whole free chunks
    uint64_t free_normal;   // free pages of split chunks
    uint64_t total_normal;  // all pages of split chunks
    uint64_t total;
  };

  // bytes: a multiple of kPage, or of kChunk when huge. False when there is no room, even without what dead processes
  // left; nothing is taken then.
  bool Take(uint64_t bytes, bool huge, std::vector<Extent>* out);
  // Gives back what of the extents still belongs to this process.
  void Give(const std::vector<Extent>& extents, bool huge);

  // The same for whole chunks that never become blocks: past the cache of ACLEMU_CACHE.
  bool TakeAside(uint64_t bytes, std::vector<Extent>* out);
  void GiveAside(const std::vector<Extent>& extents) { GiveBack(extents, true); }

  std::byte* At(uint64_t offset) const { return base_ + offset; }
  // Of all processes together, without what dead ones left.
  Room GetRoom();
  SharedDevice& shared() { return device_; }

  static void Append(uint64_t offset, uint64_t bytes, std::vector<Extent>* out);

 private:
  // With ACLEMU_CACHE: units (chunks or pages) that belong to the process but to no block.
  struct Cache {
    std::set<uint64_t> offsets;
  };

  bool TakeFresh(uint64_t bytes, bool huge, std::vector<Extent>* out);
  bool TakeCached(uint64_t bytes, bool huge, std::vector<Extent>* out);
  void GiveCached(const std::vector<Extent>& extents, bool huge);
  bool IsMine(uint64_t offset, bool huge);
  void GiveBack(const std::vector<Extent>& extents, bool huge);
  // These need the device's lock and enough room.
  void TakeChunk(uint32_t chunk, Tag tag);
  void TakeChunks(uint64_t count, std::vector<Extent>* out);
  void TakePages(uint64_t count, std::vector<Extent>* out);
  uint32_t OpenChunk();  // a split chunk with a free page

  SharedDevice& device_;
  std::byte* base_;
  std::mutex cache_mu_;  // guards cache_
  Cache cache_[2];       // [huge]
};

// Writes a byte pattern over emulator memory; not seen by the thread sanitizer, which would need a shadow for all of
// it.
void Fill(std::byte* begin, uint64_t bytes, uint8_t pattern);

}  // namespace aclemu
