// Hands out ranges of an abstract space [0, capacity): the space inside a DRAM region or an HBM slab.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace mooncake {

// Best fit in constant time. Holes lie in size bins (32 per power of two) behind two levels of bitmaps; inside a bin
// they hang in a binary trie over the size bits that the bin leaves open, holes of one size in a ring. So the smallest
// hole that fits is found in at most 64 steps however many holes there are, an exact hole is always reused, and
// Allocate fails only when no hole is large enough. Freed ranges join their free neighbours at once.
//
// The managed memory is never touched: all state is in one vector of nodes, one per range or hole, which grows to the
// largest number ever needed and is then reused (no heap use in steady state).
//
// Not thread-safe: the owner serialises every call, const ones too. Nothing here blocks. Freeing what is not allocated
// stops the process; only a double free whose node already serves an identical new range goes unseen.
class OffsetAllocator {
 public:
  struct Range {
    uint64_t offset = 0;  // multiple of the alignment
    uint64_t size = 0;    // as asked for; RoundUp(size) bytes are taken
    uint32_t node = 0;    // this allocator's handle; give it back unchanged
  };

  // Capacity is rounded down to the alignment, a power of two. `expected_ranges` sizes the node table.
  explicit OffsetAllocator(uint64_t capacity, uint64_t alignment = 64, uint32_t expected_ranges = 1024);

  // nullopt when size is 0 or no hole is large enough.
  std::optional<Range> Allocate(uint64_t size);
  void Free(const Range& range);

  uint64_t capacity() const { return capacity_units_ << unit_shift_; }
  uint64_t alignment() const { return uint64_t{1} << unit_shift_; }
  uint64_t allocated_bytes() const { return allocated_units_ << unit_shift_; }  // rounded up per range
  uint64_t free_bytes() const { return capacity() - allocated_bytes(); }
  uint64_t largest_free() const;
  uint64_t allocation_count() const { return allocation_count_; }
  // What a range of this size takes; sizes above 2^64 - alignment saturate.
  uint64_t RoundUp(uint64_t size) const;

 private:
  static constexpr uint32_t kNil = std::numeric_limits<uint32_t>::max();
  static constexpr uint32_t kSubBits = 5;
  static constexpr uint32_t kSubBins = 1u << kSubBits;
  static constexpr uint32_t kRows = 64 - kSubBits + 1;

  enum class State : uint8_t { kSpare, kAllocated, kHoleInTrie, kHoleInRing };

  // A range or hole, in address order by previous/next. Sizes and offsets are in units of the alignment.
  struct Node {
    uint64_t offset = 0;
    uint64_t units = 0;
    uint32_t previous = kNil;
    uint32_t next = kNil;  // spare nodes: the next spare one
    uint32_t parent = kNil;
    std::array<uint32_t, 2> child = {kNil, kNil};
    uint32_t ring_previous = kNil;  // holes of the same size, one of which is in the trie
    uint32_t ring_next = kNil;
    State state = State::kSpare;
  };

  struct Bin {
    uint32_t row;
    uint32_t column;
    uint32_t open_bits;  // low bits of a size that may differ within the bin
  };

  static Bin BinOf(uint64_t units);
  static uint32_t BitAt(uint64_t units, uint32_t level) { return static_cast<uint32_t>((units >> level) & 1); }
  uint32_t& Root(const Bin& bin) { return roots_[bin.row * kSubBins + bin.column]; }

  uint64_t Units(uint64_t size) const { return (size >> unit_shift_) + ((size & (alignment() - 1)) != 0 ? 1 : 0); }
  bool IsHole(uint32_t node) const;
  uint32_t TakeSpare(uint64_t offset, uint64_t units);
  void GiveSpare(uint32_t node);
  void SplitTail(uint32_t node, uint64_t units);
  void AbsorbNext(uint32_t node);

  void InsertHole(uint32_t node);
  void RemoveHole(uint32_t node);
  void ReplaceInTrie(const Bin& bin, uint32_t node, uint32_t with);
  uint32_t DetachLeafBelow(uint32_t node);
  uint32_t SmallestAtLeast(const Bin& bin, uint64_t units) const;
  uint32_t SmallestIn(uint32_t root) const;
  uint32_t FindHole(uint64_t units) const;

  uint32_t unit_shift_;
  uint64_t capacity_units_;
  uint64_t allocated_units_ = 0;
  uint64_t allocation_count_ = 0;
  uint32_t first_spare_ = kNil;
  std::vector<Node> nodes_;
  uint64_t row_bits_ = 0;                         // rows with a hole
  std::array<uint32_t, kRows> column_bits_ = {};  // bins of the row with a hole
  std::array<uint32_t, size_t{kRows} * kSubBins> roots_;
};

}  // namespace mooncake
