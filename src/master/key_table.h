// A flat hash table of keys and their owners: 56 bytes a slot, no allocation per key.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/content_stamp.h"
#include "common/digest.h"

namespace mooncake {

// One client's replica of a key.
struct KeyOwner {
  uint64_t size = 0;
  uint32_t client = 0;  // number in the registry, never 0
  uint16_t epoch = 0;   // of the registration that announced it
  uint8_t type = 3;     // MemoryType
};

// Owners of one content of a key.
struct KeySlot {
  KeyDigest key;
  uint64_t hlc = 0;  // the content's stamp, as ContentStamp
  uint32_t writer = 0;
  uint16_t wanted = 1;  // owners that the writer asked for
  bool upserted = false;
  KeyOwner first;                                 // client 0: the slot is empty
  std::unique_ptr<std::vector<KeyOwner>> others;  // in the order they came; mostly none

  bool used() const { return first.client != 0; }
  ContentStamp stamp() const { return {hlc, writer, upserted}; }
  void SetStamp(const ContentStamp& stamp) {
    hlc = stamp.hlc;
    writer = stamp.writer;
    upserted = stamp.upserted;
  }
  size_t owner_count() const { return used() ? 1 + (others ? others->size() : 0) : 0; }
  KeyOwner& owner(size_t i) { return i == 0 ? first : (*others)[i - 1]; }
  const KeyOwner& owner(size_t i) const { return i == 0 ? first : (*others)[i - 1]; }
  void AddOwner(const KeyOwner& owner);
  // Without owners the slot is empty: the table has to be told (Erase).
  void RemoveOwner(size_t i);
};
static_assert(sizeof(KeySlot) <= 56);

// Linear probing; grows by half when seven eighths are used. Not thread safe. Pointers to slots are good until the next
// Insert or Erase.
class KeyTable {
 public:
  KeySlot* Find(const KeyDigest& key);
  const KeySlot* Find(const KeyDigest& key) const { return const_cast<KeyTable*>(this)->Find(key); }
  // The key's slot; a new one has no owner yet, and has to be given one before anything else is done.
  KeySlot& Insert(const KeyDigest& key);
  // The slot has no owner. Others may move into its place.
  void Erase(KeySlot& slot);
  size_t size() const { return used_; }

  // `edit(slot)` may remove owners; slots that have none afterwards are erased. Each key is visited once.
  template <typename Edit>
  void EditAll(Edit edit) {
    // From the start of a run of used slots on, so that what an erasure moves is met later or was met already.
    for (size_t left = slots_.size(), at = RunStart(); left > 0; --left, at = Next(at)) {
      while (slots_[at].used()) {
        edit(slots_[at]);
        if (slots_[at].used()) break;
        Erase(slots_[at]);
      }
    }
  }

 private:
  size_t Home(const KeyDigest& key) const {
    return static_cast<size_t>((static_cast<unsigned __int128>(key.low) * slots_.size()) >> 64);
  }
  size_t Next(size_t at) const { return at + 1 == slots_.size() ? 0 : at + 1; }
  size_t RunStart() const;
  void Grow();

  std::vector<KeySlot> slots_;
  size_t used_ = 0;
};

}  // namespace mooncake
