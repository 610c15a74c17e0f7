// What a replayed block is made of: bytes that follow from its id and from where they stand, so that any mix-up, tear
// or shift is found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace mooncake::replay {

// The first 8 bytes are the id itself (little-endian), the rest words that depend on id and position; a size that is no
// multiple of 8 ends with part of a word.
void FillBlock(uint64_t id, std::span<std::byte> block);

// Position of the first wrong byte; nullopt when every byte is right.
std::optional<size_t> FindMismatch(uint64_t id, std::span<const std::byte> block);

// "byte 4096 of 262144 is 0x00, not 0x5a; the block begins as block 17", for people.
std::string DescribeMismatch(uint64_t id, std::span<const std::byte> block, size_t position);

}  // namespace mooncake::replay
