// The physical memory of one emulated device: a sparse memory file, given out in 2 MiB chunks and 4 KiB pages.
#pragma once
#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <vector>

namespace aclemu {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kChunk = 2ULL << 20;

// A piece of a block: bytes [start, start + bytes) of the block lie at [offset, offset + bytes) of the pool.
struct Extent {
  uint64_t start;
  uint64_t offset;
  uint64_t bytes;
};

// A chunk is free, huge (given out whole) or split into pages. Thread safe. The mapping is only for the emulator
// itself; its addresses are never handed to a program.
class DevicePool {
 public:
  // Freed chunks stay resident up to keep_bytes, the rest goes back to the system. Ends the process if the system
  // refuses the file or the mapping.
  DevicePool(uint64_t capacity, uint64_t keep_bytes);

  struct Room {
    uint64_t free_huge;     // whole free chunks
    uint64_t free_normal;   // free pages of split chunks
    uint64_t total_normal;  // all pages of split chunks
    uint64_t total;
  };

  // bytes: a multiple of kPage, or of kChunk when huge. False when there is no room; nothing is taken then.
  bool Take(uint64_t bytes, bool huge, std::vector<Extent>* out);
  void Give(const std::vector<Extent>& extents, bool huge);

  std::byte* At(uint64_t offset) const { return base_ + offset; }
  Room GetRoom();

 private:
  static constexpr uint32_t kPagesPerChunk = kChunk / kPage;
  using PageMap = std::bitset<kPagesPerChunk>;  // set = taken

  uint32_t TakeRun(uint32_t at_most);  // takes a run of free chunks, sets last_run_
  void FreeChunk(uint32_t chunk);
  void TakePages(uint32_t chunk, uint64_t* left, std::vector<Extent>* out);
  static void Append(uint64_t offset, uint64_t bytes, std::vector<Extent>* out);

  int fd_;
  std::byte* base_;
  uint64_t capacity_;
  uint64_t keep_chunks_;

  std::mutex mu_;                      // guards everything below
  std::map<uint32_t, uint32_t> runs_;  // free chunks: first -> count
  std::vector<bool> warm_;             // free chunk whose pages stayed resident
  std::map<uint32_t, PageMap> split_;  // split chunks
  std::set<uint32_t> open_;            // split chunks with a free page
  uint64_t free_chunks_;
  uint64_t free_pages_ = 0;
  uint64_t kept_ = 0;  // number of warm chunks
  uint32_t last_run_ = 0;
};

// Writes a byte pattern over emulator memory; not seen by the thread sanitizer, which would need a shadow for all of
// it.
void Fill(std::byte* begin, uint64_t bytes, uint8_t pattern);

}  // namespace aclemu
