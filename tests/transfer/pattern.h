// Bytes that follow from a seed and a position, so that two processes agree on them without sending any.
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "common/status.h"

namespace mooncake::transfer_test {

// Memory that other processes write is put in order by messages between processes, which the thread sanitizer does not
// see.
#define MC_SHARED_BETWEEN_PROCESSES __attribute__((no_sanitize("thread")))

MC_SHARED_BETWEEN_PROCESSES inline uint64_t PatternWord(uint64_t seed, uint64_t index) {
  const uint64_t word = (index + seed * 0x9e3779b97f4a7c15u) * 0xd6e8feb86659fd93u;
  return word ^ (word >> 32);
}

MC_SHARED_BETWEEN_PROCESSES inline uint8_t PatternByte(uint64_t seed, uint64_t position) {
  return static_cast<uint8_t>(PatternWord(seed, position / 8) >> (8 * (position % 8)));
}

// `position` is that of the first byte.
MC_SHARED_BETWEEN_PROCESSES inline void Fill(std::span<std::byte> bytes, uint64_t seed, uint64_t position = 0) {
  size_t i = 0;
  for (; i < bytes.size() && (position + i) % 8 != 0; ++i) bytes[i] = std::byte{PatternByte(seed, position + i)};
  for (; i + 8 <= bytes.size(); i += 8) {
    const uint64_t word = PatternWord(seed, (position + i) / 8);
    __builtin_memcpy(&bytes[i], &word, 8);
  }
  for (; i < bytes.size(); ++i) bytes[i] = std::byte{PatternByte(seed, position + i)};
}

// Where the bytes differ from the pattern first.
MC_SHARED_BETWEEN_PROCESSES inline std::optional<size_t> FirstDifference(std::span<const std::byte> bytes,
                                                                         uint64_t seed, uint64_t position = 0) {
  size_t i = 0;
  const auto differs = [&] { return bytes[i] != std::byte{PatternByte(seed, position + i)}; };
  for (; i < bytes.size() && (position + i) % 8 != 0; ++i) {
    if (differs()) return i;
  }
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    __builtin_memcpy(&word, &bytes[i], 8);
    if (word != PatternWord(seed, (position + i) / 8)) break;
  }
  for (; i < bytes.size(); ++i) {
    if (differs()) return i;
  }
  return std::nullopt;
}

inline Result<void> Check(std::span<const std::byte> bytes, uint64_t seed, uint64_t position = 0) {
  const auto at = FirstDifference(bytes, seed, position);
  if (!at) return {};
  return Error(ErrorCode::INTERNAL_ERROR, "byte {} of {} is {:#04x}, not {:#04x} as of seed {}", *at, bytes.size(),
               static_cast<int>(bytes[*at]), PatternByte(seed, position + *at), seed);
}

inline uint64_t HashOf(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace mooncake::transfer_test
