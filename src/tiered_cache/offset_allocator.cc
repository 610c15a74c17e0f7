// Bins, tries and neighbour lists of the offset allocator.
#include "tiered_cache/offset_allocator.h"

#include <algorithm>
#include <bit>

#include "common/check.h"

namespace mooncake {
namespace {

uint32_t ShiftOf(uint64_t alignment) {
  MC_CHECK(std::has_single_bit(alignment), "alignment {} is not a power of two", alignment);
  return static_cast<uint32_t>(std::countr_zero(alignment));
}

}  // namespace

OffsetAllocator::OffsetAllocator(uint64_t capacity, uint64_t alignment, uint32_t expected_ranges)
    : unit_shift_(ShiftOf(alignment)), capacity_units_(capacity >> unit_shift_) {
  roots_.fill(kNil);
  nodes_.reserve(size_t{2} * expected_ranges + 1);  // a hole behind every range
  if (capacity_units_ != 0) InsertHole(TakeSpare(0, capacity_units_));
}

std::optional<OffsetAllocator::Range> OffsetAllocator::Allocate(uint64_t size) {
  if (size == 0) return std::nullopt;
  const uint64_t units = Units(size);
  const uint32_t in_trie = FindHole(units);
  if (in_trie == kNil) return std::nullopt;
  const uint32_t node = nodes_[in_trie].ring_next;  // the hole of this size freed last; leaves the trie alone
  RemoveHole(node);
  if (nodes_[node].units > units) SplitTail(node, units);
  nodes_[node].state = State::kAllocated;
  allocated_units_ += units;
  ++allocation_count_;
  return Range{nodes_[node].offset << unit_shift_, size, node};
}

void OffsetAllocator::Free(const Range& range) {
  MC_CHECK(range.node < nodes_.size(), "free of unknown node {} (offset {}, size {})", range.node, range.offset,
           range.size);
  const Node& node = nodes_[range.node];
  MC_CHECK(node.state == State::kAllocated, "free of node {} (offset {}, size {}) that is not allocated", range.node,
           range.offset, range.size);
  MC_CHECK(range.offset == node.offset << unit_shift_ && Units(range.size) == node.units,
           "free of node {} with offset {} size {}, allocated was offset {} size {}", range.node, range.offset,
           range.size, node.offset << unit_shift_, node.units << unit_shift_);
  allocated_units_ -= node.units;
  --allocation_count_;
  uint32_t hole = range.node;
  if (IsHole(node.next)) {
    RemoveHole(node.next);
    AbsorbNext(hole);
  }
  if (const uint32_t previous = nodes_[hole].previous; IsHole(previous)) {
    RemoveHole(previous);
    AbsorbNext(previous);
    hole = previous;
  }
  InsertHole(hole);
}

uint64_t OffsetAllocator::largest_free() const {
  if (row_bits_ == 0) return 0;
  const auto row = static_cast<uint32_t>(63 - std::countl_zero(row_bits_));
  const auto column = static_cast<uint32_t>(31 - std::countl_zero(column_bits_[row]));
  uint64_t largest = 0;
  // Sizes below child[1] all exceed those below child[0]; a node's own size may lie anywhere among them.
  for (uint32_t node = roots_[row * kSubBins + column]; node != kNil;) {
    largest = std::max(largest, nodes_[node].units);
    node = nodes_[node].child[1] != kNil ? nodes_[node].child[1] : nodes_[node].child[0];
  }
  return largest << unit_shift_;
}

uint64_t OffsetAllocator::RoundUp(uint64_t size) const {
  const uint64_t units = Units(size);
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  return units > kMax >> unit_shift_ ? kMax : units << unit_shift_;
}

// Row 0 holds the sizes below kSubBins, one size a bin. Above, a row is a power of two cut into kSubBins bins.
OffsetAllocator::Bin OffsetAllocator::BinOf(uint64_t units) {
  if (units < kSubBins) return {0, static_cast<uint32_t>(units), 0};
  const auto open_bits = static_cast<uint32_t>(std::bit_width(units)) - 1 - kSubBits;
  return {open_bits + 1, static_cast<uint32_t>(units >> open_bits) & (kSubBins - 1), open_bits};
}

bool OffsetAllocator::IsHole(uint32_t node) const {
  return node != kNil && (nodes_[node].state == State::kHoleInTrie || nodes_[node].state == State::kHoleInRing);
}

uint32_t OffsetAllocator::TakeSpare(uint64_t offset, uint64_t units) {
  uint32_t node = first_spare_;
  if (node != kNil) {
    first_spare_ = nodes_[node].next;
    nodes_[node] = Node{};
  } else {
    MC_CHECK(nodes_.size() < kNil, "{} nodes", nodes_.size());
    node = static_cast<uint32_t>(nodes_.size());
    nodes_.emplace_back();
  }
  nodes_[node].offset = offset;
  nodes_[node].units = units;
  return node;
}

void OffsetAllocator::GiveSpare(uint32_t node) {
  nodes_[node].state = State::kSpare;
  nodes_[node].next = first_spare_;
  first_spare_ = node;
}

// Keeps `units` in the node and makes the rest behind it a hole. The neighbour there is never a hole: holes are joined.
void OffsetAllocator::SplitTail(uint32_t node, uint64_t units) {
  const uint32_t tail = TakeSpare(nodes_[node].offset + units, nodes_[node].units - units);
  Node& head = nodes_[node];
  head.units = units;
  nodes_[tail].previous = node;
  nodes_[tail].next = head.next;
  if (head.next != kNil) nodes_[head.next].previous = tail;
  head.next = tail;
  InsertHole(tail);
}

void OffsetAllocator::AbsorbNext(uint32_t node) {
  const uint32_t gone = nodes_[node].next;
  MC_CHECK(nodes_[gone].offset == nodes_[node].offset + nodes_[node].units, "neighbours {}+{} and {}",
           nodes_[node].offset, nodes_[node].units, nodes_[gone].offset);
  nodes_[node].units += nodes_[gone].units;
  nodes_[node].next = nodes_[gone].next;
  if (nodes_[node].next != kNil) nodes_[nodes_[node].next].previous = node;
  GiveSpare(gone);
}

void OffsetAllocator::InsertHole(uint32_t node) {
  Node& hole = nodes_[node];
  const Bin bin = BinOf(hole.units);
  hole.child = {kNil, kNil};
  hole.parent = kNil;
  hole.ring_previous = hole.ring_next = node;
  hole.state = State::kHoleInTrie;
  row_bits_ |= uint64_t{1} << bin.row;
  column_bits_[bin.row] |= 1u << bin.column;
  uint32_t* link = &Root(bin);
  for (uint32_t level = bin.open_bits; *link != kNil; --level) {
    const uint32_t at = *link;
    if (nodes_[at].units == hole.units) {
      hole.state = State::kHoleInRing;
      hole.ring_previous = at;
      hole.ring_next = nodes_[at].ring_next;
      nodes_[hole.ring_next].ring_previous = node;
      nodes_[at].ring_next = node;
      return;
    }
    MC_CHECK(level > 0, "sizes {} and {} in one place", nodes_[at].units, hole.units);
    hole.parent = at;
    link = &nodes_[at].child[BitAt(hole.units, level - 1)];
  }
  *link = node;
}

void OffsetAllocator::RemoveHole(uint32_t node) {
  Node& hole = nodes_[node];
  const uint32_t same_size = hole.ring_next;
  nodes_[hole.ring_previous].ring_next = hole.ring_next;
  nodes_[hole.ring_next].ring_previous = hole.ring_previous;
  if (hole.state == State::kHoleInRing) return;
  const Bin bin = BinOf(hole.units);
  ReplaceInTrie(bin, node, same_size != node ? same_size : DetachLeafBelow(node));
  if (Root(bin) != kNil) return;
  column_bits_[bin.row] &= ~(1u << bin.column);
  if (column_bits_[bin.row] == 0) row_bits_ &= ~(uint64_t{1} << bin.row);
}

// Puts `with` (kNil: nothing) where `node` hangs. Any hole from below `node`, or of its size, has the right prefix.
void OffsetAllocator::ReplaceInTrie(const Bin& bin, uint32_t node, uint32_t with) {
  const Node& old = nodes_[node];
  if (old.parent == kNil) {
    Root(bin) = with;
  } else {
    Node& parent = nodes_[old.parent];
    parent.child[parent.child[1] == node ? 1 : 0] = with;
  }
  if (with == kNil) return;
  nodes_[with].parent = old.parent;
  nodes_[with].child = old.child;
  nodes_[with].state = State::kHoleInTrie;
  for (const uint32_t child : old.child) {
    if (child != kNil) nodes_[child].parent = with;
  }
}

// kNil when nothing hangs below the node.
uint32_t OffsetAllocator::DetachLeafBelow(uint32_t node) {
  uint32_t leaf = node;
  uint32_t side = 0;
  for (;;) {
    const auto& child = nodes_[leaf].child;
    if (child[0] == kNil && child[1] == kNil) break;
    side = child[1] != kNil ? 1 : 0;
    leaf = child[side];
  }
  if (leaf == node) return kNil;
  nodes_[nodes_[leaf].parent].child[side] = kNil;
  return leaf;
}

uint32_t OffsetAllocator::SmallestIn(uint32_t root) const {
  uint32_t best = root;
  for (uint32_t at = root; at != kNil;) {
    if (nodes_[at].units < nodes_[best].units) best = at;
    at = nodes_[at].child[0] != kNil ? nodes_[at].child[0] : nodes_[at].child[1];
  }
  return best;
}

// Follows the bits of `units`. What fits is on that path, or below the last right turn not taken: there everything is
// larger, and the deepest such turn leads to the smallest.
uint32_t OffsetAllocator::SmallestAtLeast(const Bin& bin, uint64_t units) const {
  uint32_t best = kNil;
  uint32_t larger = kNil;
  uint32_t level = bin.open_bits;
  for (uint32_t at = roots_[bin.row * kSubBins + bin.column]; at != kNil;) {
    const Node& node = nodes_[at];
    if (node.units == units) return at;
    if (node.units > units && (best == kNil || node.units < nodes_[best].units)) best = at;
    if (level == 0) break;
    const uint32_t bit = BitAt(units, --level);
    if (bit == 0 && node.child[1] != kNil) larger = node.child[1];
    at = node.child[bit];
  }
  const uint32_t below = SmallestIn(larger);
  if (below != kNil && (best == kNil || nodes_[below].units < nodes_[best].units)) best = below;
  return best;
}

// The smallest hole of at least `units`; kNil when there is none.
uint32_t OffsetAllocator::FindHole(uint64_t units) const {
  const Bin bin = BinOf(units);
  if (const uint32_t hole = SmallestAtLeast(bin, units); hole != kNil) return hole;
  uint32_t row = bin.row;
  // Shifts in two steps: a shift by the width of the type is undefined.
  uint32_t columns = column_bits_[row] & (~uint32_t{0} << bin.column << 1);
  if (columns == 0) {
    const uint64_t rows = row_bits_ & (~uint64_t{0} << row << 1);
    if (rows == 0) return kNil;
    row = static_cast<uint32_t>(std::countr_zero(rows));
    columns = column_bits_[row];
  }
  return SmallestIn(roots_[row * kSubBins + static_cast<uint32_t>(std::countr_zero(columns))]);
}

}  // namespace mooncake
