// Buffers that an engine lends to applications: cut out of large registered arenas, so that a small one costs no
// registration of its own.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

#include "common/status.h"

namespace mooncake {

struct ManagedBufferOptions {
  size_t arena_bytes = size_t{256} << 20;  // of one arena; a power of two, at least kLargestClass
  size_t max_bytes = size_t{64} << 30;     // of all arenas and large buffers together
};

// Every call from any thread. Growing and shrinking block as long as registering memory takes; nothing else blocks.
class ManagedBuffers {
 public:
  static constexpr size_t kSmallestClass = size_t{8} << 10;
  static constexpr size_t kLargestClass = size_t{256} << 20;  // 16 classes, each twice the one before

  // Where arenas come from: registered memory. Both may block and are called without a lock.
  struct Source {
    std::function<Result<void*>(size_t bytes)> allocate;
    std::function<Result<void>(void* address)> free;
  };

  explicit ManagedBuffers(Source source, ManagedBufferOptions options = {});
  // Gives everything back to the source; what is still lent is gone. What the source does not take stays with it.
  ~ManagedBuffers();
  ManagedBuffers(const ManagedBuffers&) = delete;
  ManagedBuffers& operator=(const ManagedBuffers&) = delete;

  // At least `bytes` bytes, aligned to their class (at most to a page beyond kLargestClass). INVALID_PARAMS for 0,
  // NO_AVAILABLE_HANDLE beyond max_bytes with the sizes, or what the source says.
  Result<void*> Allocate(size_t bytes);
  // INVALID_PARAMS, and nothing changes, unless `address` was lent, is not back yet, and `bytes` is a size that leads
  // to the same class.
  Result<void> Free(void* address, size_t bytes);

  size_t lent_bytes() const;  // in whole classes
  size_t held_bytes() const;  // taken from the source

 private:
  static constexpr size_t kClasses = 16;
  static constexpr size_t kLarge = kClasses;  // "class" of what has memory of its own

  struct Lent {
    size_t size_class = 0;
    size_t bytes = 0;  // of a large one: as asked for
  };

  static size_t ClassOf(size_t bytes);
  static constexpr size_t BytesOf(size_t size_class) { return kSmallestClass << size_class; }

  Result<void*> AllocateLarge(size_t bytes);
  // Reserves the bytes of the limit. Called with the lock.
  Result<void> Reserve(size_t bytes);
  // A block of the class, or 0. Called with the lock.
  uintptr_t Take(size_t size_class);
  // Puts a block back, joined with its free neighbours. The arena that is to be given up, or 0. Called with the lock.
  uintptr_t PutBack(uintptr_t address, size_t size_class);
  // One more arena. Called with the lock, which is let go of meanwhile.
  Result<void> Grow(std::unique_lock<std::mutex>& lock);
  void AddArena(uintptr_t base);
  uintptr_t ArenaOf(uintptr_t address) const;

  const Source source_;
  const ManagedBufferOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable grown_;
  bool growing_ = false;
  size_t held_bytes_ = 0;
  size_t lent_bytes_ = 0;
  std::map<uintptr_t, size_t> arenas_;              // base -> bytes lent of it
  std::array<std::set<uintptr_t>, kClasses> free_;  // blocks by class, of all arenas
  std::unordered_map<uintptr_t, Lent> lent_;
};

}  // namespace mooncake
