// The generator and its check; both run at memory speed, else they would hide the store's.
#include "replay/block_content.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace mooncake::replay {
namespace {

constexpr size_t kWord = sizeof(uint64_t);
constexpr uint64_t kStep = 0x9e3779b97f4a7c15;  // odd: no two positions of a block share a state
constexpr size_t kWordsPerCheck = 64;           // compared without a branch

// One to one, so two ids never share a seed (the finaliser of splitmix64).
uint64_t SeedOf(uint64_t id) {
  uint64_t x = id + kStep;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

struct Words {
  explicit Words(uint64_t block_id) : id(block_id), seed(SeedOf(block_id)) {}
  uint64_t At(size_t index) const {
    if (index == 0) return id;
    const uint64_t state = seed + index * kStep;
    return state ^ (state >> 29);
  }
  const uint64_t id;
  const uint64_t seed;
};

uint64_t Load(const std::byte* at) {
  uint64_t word;
  std::memcpy(&word, at, kWord);
  return word;
}

std::byte ByteAt(const Words& words, size_t position) {
  const uint64_t word = words.At(position / kWord);
  std::byte bytes[kWord];
  std::memcpy(bytes, &word, kWord);
  return bytes[position % kWord];
}

size_t FirstWrongByte(const Words& words, std::span<const std::byte> block, size_t from) {
  while (from < block.size() && block[from] == ByteAt(words, from)) ++from;
  return from;
}

}  // namespace

void FillBlock(uint64_t id, std::span<std::byte> block) {
  const Words words(id);
  const size_t count = block.size() / kWord;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t word = words.At(i);
    std::memcpy(block.data() + i * kWord, &word, kWord);
  }
  for (size_t i = count * kWord; i < block.size(); ++i) block[i] = ByteAt(words, i);
}

std::optional<size_t> FindMismatch(uint64_t id, std::span<const std::byte> block) {
  const Words words(id);
  const size_t count = block.size() / kWord;
  for (size_t first = 0; first < count; first += kWordsPerCheck) {
    const size_t last = std::min(first + kWordsPerCheck, count);
    uint64_t wrong = 0;
    for (size_t i = first; i < last; ++i) wrong |= Load(block.data() + i * kWord) ^ words.At(i);
    if (wrong != 0) return FirstWrongByte(words, block, first * kWord);
  }
  const size_t tail = FirstWrongByte(words, block, count * kWord);
  return tail < block.size() ? std::optional(tail) : std::nullopt;
}

std::string DescribeMismatch(uint64_t id, std::span<const std::byte> block, size_t position) {
  std::string text =
      fmt::format("block {}: byte {} of {} is 0x{:02x}, not 0x{:02x}", id, position, block.size(),
                  static_cast<unsigned>(block[position]), static_cast<unsigned>(ByteAt(Words(id), position)));
  if (block.size() < kWord) return text;
  const uint64_t begins_as = Load(block.data());
  return begins_as == id ? text : text + fmt::format("; it begins as block {} does", begins_as);
}

}  // namespace mooncake::replay
