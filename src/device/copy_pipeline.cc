// Chunk pipelines over streams.
#include "device/copy_pipeline.h"

#include <algorithm>
#include <cstring>
#include <deque>

namespace mooncake {
namespace {

using Mark = NpuStream::Mark;
using Piece = ChunkPlan::Piece;

// Batches of CopyDirect in flight: enough to keep the link busy, few enough that each wait is short.
constexpr size_t kDirectWindow = 4;

size_t AlignUp(size_t value) {
  return (value + kAsyncAlignment - 1) / kAsyncAlignment * kAsyncAlignment;
}

Result<void> Await(NpuStream& stream, Mark mark, Duration patience) {
  if (MC_TRY(stream.AwaitMark(mark, patience)) == Waited::kDone) return {};
  return std::unexpected(TimeOut(patience));
}

// Submits the half of a chunk that runs between the slot and a device.
Result<Mark> SubmitToSlot(NpuStream& stream, const std::vector<Piece>& chunk, std::span<std::byte> slot) {
  std::vector<NpuCopy> copies;
  copies.reserve(chunk.size());
  for (const Piece& piece : chunk) {
    copies.push_back({CopyEnd::Host(slot.data() + piece.at), piece.copy.source, piece.copy.size, piece.copy.size});
  }
  MC_TRY(stream.Submit(copies));
  return stream.MarkHere();
}

Result<Mark> SubmitFromSlot(NpuStream& stream, const std::vector<Piece>& chunk, std::span<std::byte> slot) {
  std::vector<NpuCopy> copies;
  copies.reserve(chunk.size());
  for (const Piece& piece : chunk) {
    copies.push_back({piece.copy.target, CopyEnd::Host(slot.data() + piece.at), piece.copy.size, piece.copy.capacity});
  }
  MC_TRY(stream.Submit(copies));
  return stream.MarkHere();
}

}  // namespace

bool ChunkPlan::Next(std::vector<Piece>& chunk) {
  chunk.clear();
  size_t used = 0;
  while (index_ < copies_.size() && used < chunk_bytes_) {
    const NpuCopy& copy = copies_[index_];
    const size_t left = copy.size - offset_;
    // What would fit whole into the next chunk is not cut.
    if (left > chunk_bytes_ - used && used > 0 && copy.size <= chunk_bytes_) break;
    const size_t bytes = std::min(left, chunk_bytes_ - used);
    chunk.push_back({copy.Part(offset_, bytes), used});
    used = AlignUp(used + bytes);
    offset_ += bytes;
    if (offset_ == copy.size) {
      ++index_;
      offset_ = 0;
    }
  }
  return !chunk.empty();
}

Result<void> CopyDirect(NpuStream& stream, std::span<const NpuCopy> copies, size_t batch_bytes, Duration patience) {
  std::deque<Mark> in_flight;
  for (size_t next = 0; next < copies.size();) {
    const size_t first = next;
    size_t bytes = 0;
    do {
      bytes += copies[next++].size;
    } while (next < copies.size() && bytes + copies[next].size <= batch_bytes);
    MC_TRY(stream.Submit(copies.subspan(first, next - first)));
    if (next == copies.size()) break;  // the caller's Finish waits for it
    in_flight.push_back(MC_TRY(stream.MarkHere()));
    if (in_flight.size() < kDirectWindow) continue;
    MC_TRY(Await(stream, in_flight.front(), patience));
    in_flight.pop_front();
  }
  return {};
}

Result<void> StageToDevice(NpuStream& stream, std::span<const SlotRing::Slot> slots, ChunkPlan plan,
                           Duration patience) {
  std::vector<Mark> marks(slots.size());
  std::vector<Piece> chunk;
  for (size_t i = 0; plan.Next(chunk); ++i) {
    const size_t k = i % slots.size();
    const auto slot = slots[k].bytes();
    if (i >= slots.size()) MC_TRY(Await(stream, marks[k], patience));
    for (const Piece& piece : chunk) std::memcpy(slot.data() + piece.at, piece.copy.source.host(), piece.copy.size);
    marks[k] = MC_TRY(SubmitFromSlot(stream, chunk, slot));
  }
  return {};
}

Result<void> StageToHost(NpuStream& stream, std::span<const SlotRing::Slot> slots, ChunkPlan plan, Duration patience) {
  struct InSlot {
    std::vector<Piece> chunk;
    Mark mark = 0;
  };
  std::vector<InSlot> in_slots(slots.size());
  const auto empty = [&](size_t k) -> Result<void> {
    MC_TRY(Await(stream, in_slots[k].mark, patience));
    for (const Piece& piece : in_slots[k].chunk) {
      std::memcpy(piece.copy.target.host(), slots[k].bytes().data() + piece.at, piece.copy.size);
    }
    return {};
  };
  std::vector<Piece> chunk;
  size_t submitted = 0;
  for (; plan.Next(chunk); ++submitted) {
    const size_t k = submitted % slots.size();
    if (submitted >= slots.size()) MC_TRY(empty(k));
    in_slots[k].mark = MC_TRY(SubmitToSlot(stream, chunk, slots[k].bytes()));
    in_slots[k].chunk.swap(chunk);
  }
  for (size_t i = submitted - std::min(submitted, slots.size()); i < submitted; ++i) MC_TRY(empty(i % slots.size()));
  return {};
}

Result<void> Relay(NpuStream& down, NpuStream& up, std::span<const SlotRing::Slot> slots, ChunkPlan plan,
                   Duration patience) {
  struct InSlot {
    std::vector<Piece> chunk;
    Mark down = 0;
    Mark up = 0;
  };
  std::vector<InSlot> in_slots(slots.size());
  size_t came = 0;  // chunks submitted on `down`
  size_t went = 0;  // of these, submitted on `up`
  const auto lift_until = [&](size_t end) -> Result<void> {
    for (; went < end; ++went) {
      const size_t k = went % slots.size();
      MC_TRY(Await(down, in_slots[k].down, patience));
      in_slots[k].up = MC_TRY(SubmitFromSlot(up, in_slots[k].chunk, slots[k].bytes()));
    }
    return {};
  };
  std::vector<Piece> chunk;
  for (; plan.Next(chunk); ++came) {
    const size_t k = came % slots.size();
    if (came >= slots.size()) {
      MC_TRY(lift_until(came - slots.size() + 1));
      MC_TRY(Await(up, in_slots[k].up, patience));
    }
    in_slots[k].down = MC_TRY(SubmitToSlot(down, chunk, slots[k].bytes()));
    in_slots[k].chunk.swap(chunk);
    // This one is on its way: now its forerunner can leave.
    MC_TRY(lift_until(came));
  }
  return lift_until(came);
}

}  // namespace mooncake
