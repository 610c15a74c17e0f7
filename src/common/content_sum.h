// The checksum of an object's bytes, made in one go or piece by piece while they arrive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mooncake {

// Sums are taken of runs this long (the last may be shorter), and one over the runs' sums when there are several.
inline constexpr size_t kSumChunkBytes = size_t{1} << 20;

// XXH3_64 of the bytes up to kSumChunkBytes, beyond that XXH3_64 of the chunks' sums, 8 bytes each, little-endian.
// About as fast as memory is read.
uint64_t SumOf(std::span<const std::byte> bytes);

// SumOf of an object whose chunks come in any order. Different chunks may be added by different threads at once; all of
// that must have happened before complete() and Sum().
class SumBuilder {
 public:
  explicit SumBuilder(uint64_t size);

  size_t chunk_count() const { return sums_.size(); }
  // Bytes of that chunk; it begins at index * kSumChunkBytes.
  size_t ChunkSize(size_t index) const;
  // The bytes of one whole chunk. Added again, it counts as it was the last time.
  void Add(size_t index, std::span<const std::byte> chunk);
  bool complete() const;
  // Only when complete.
  uint64_t Sum() const;

 private:
  const uint64_t size_;
  std::vector<uint64_t> sums_;  // at least one: that of an empty object is the sum of no bytes
  std::vector<uint8_t> added_;  // one byte each, for threads side by side
};

}  // namespace mooncake
