// XXH3 in the widest form the processor has.
#include "common/content_sum.h"

// Without the next line the header would rename the plain functions for whoever includes it.
#define XXH_DISPATCH_DISABLE_REPLACE
#ifdef MC_XXH_DISPATCH
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include <algorithm>
#include <bit>

#include "common/check.h"

namespace mooncake {
namespace {

static_assert(std::endian::native == std::endian::little, "the chunks' sums are hashed as they lie in memory");

uint64_t Hash(std::span<const std::byte> bytes) {
#ifdef MC_XXH_DISPATCH
  return XXH3_64bits_dispatch(bytes.data(), bytes.size());
#else
  return XXH3_64bits(bytes.data(), bytes.size());
#endif
}

}  // namespace

uint64_t SumOf(std::span<const std::byte> bytes) {
  if (bytes.size() <= kSumChunkBytes) return Hash(bytes);
  SumBuilder builder(bytes.size());
  for (size_t i = 0; i < builder.chunk_count(); ++i) {
    builder.Add(i, bytes.subspan(i * kSumChunkBytes, builder.ChunkSize(i)));
  }
  return builder.Sum();
}

SumBuilder::SumBuilder(uint64_t size)
    : size_(size), sums_(std::max<uint64_t>(1, (size + kSumChunkBytes - 1) / kSumChunkBytes)), added_(sums_.size()) {}

size_t SumBuilder::ChunkSize(size_t index) const {
  MC_CHECK(index < sums_.size(), "chunk {} of {}", index, sums_.size());
  return std::min<uint64_t>(kSumChunkBytes, size_ - index * kSumChunkBytes);
}

void SumBuilder::Add(size_t index, std::span<const std::byte> chunk) {
  MC_CHECK(chunk.size() == ChunkSize(index), "{} B as chunk {} of an object of {} B", chunk.size(), index, size_);
  sums_[index] = Hash(chunk);
  added_[index] = 1;
}

bool SumBuilder::complete() const {
  return std::find(added_.begin(), added_.end(), 0) == added_.end();
}

uint64_t SumBuilder::Sum() const {
  MC_CHECK(complete(), "sum of an object whose bytes are not all there");
  return sums_.size() == 1 ? sums_.front() : Hash(std::as_bytes(std::span(sums_)));
}

}  // namespace mooncake
