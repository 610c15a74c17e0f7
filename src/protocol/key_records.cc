// The record's layout.
#include "protocol/key_records.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace mooncake::protocol {
namespace {

// Little-endian, exactly these 40 bytes. Bits of `flags` that a reader does not know mean nothing to it.
struct KeyRecord {
  uint64_t digest_low;
  uint64_t digest_high;
  uint64_t hlc;
  uint64_t size;
  uint32_t writer;
  uint16_t wanted;
  uint8_t type;
  uint8_t flags;
};
static_assert(sizeof(KeyRecord) == kKeyRecordBytes && std::endian::native == std::endian::little);

constexpr uint8_t kPresent = 1;
constexpr uint8_t kUpserted = 2;

}  // namespace

std::string PackKeyStates(const std::vector<KeyState>& keys) {
  std::string packed(keys.size() * kKeyRecordBytes, '\0');
  for (size_t i = 0; i < keys.size(); ++i) {
    const KeyState& state = keys[i];
    const KeyRecord record{
        .digest_low = state.key.low,
        .digest_high = state.key.high,
        .hlc = state.stamp.hlc,
        .size = state.size,
        .writer = state.stamp.writer,
        .wanted = static_cast<uint16_t>(std::min<uint32_t>(state.wanted, UINT16_MAX)),
        .type = static_cast<uint8_t>(state.type),
        .flags = static_cast<uint8_t>((state.present ? kPresent : 0) | (state.stamp.upserted ? kUpserted : 0))};
    std::memcpy(packed.data() + i * kKeyRecordBytes, &record, kKeyRecordBytes);
  }
  return packed;
}

Result<std::vector<KeyState>> UnpackKeyStates(std::string_view packed) {
  if (packed.size() % kKeyRecordBytes != 0) {
    return Error(ErrorCode::INVALID_PARAMS, "{} B of key states are not whole records of {} B", packed.size(),
                 kKeyRecordBytes);
  }
  std::vector<KeyState> keys(packed.size() / kKeyRecordBytes);
  for (size_t i = 0; i < keys.size(); ++i) {
    KeyRecord record;
    std::memcpy(&record, packed.data() + i * kKeyRecordBytes, kKeyRecordBytes);
    keys[i] = {.key = {record.digest_low, record.digest_high},
               .present = (record.flags & kPresent) != 0,
               .size = record.size,
               .type = record.type,
               .stamp = {record.hlc, record.writer, (record.flags & kUpserted) != 0},
               .wanted = record.wanted};
  }
  return keys;
}

}  // namespace mooncake::protocol
