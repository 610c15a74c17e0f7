// A buddy allocator over arenas that come and go.
#include "capi/managed_buffers.h"

#include <algorithm>
#include <bit>

#include "common/byte_size.h"
#include "common/check.h"
#include "common/log.h"

namespace mooncake {
namespace {

void* PointerTo(uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

ManagedBuffers::ManagedBuffers(Source source, ManagedBufferOptions options)
    : source_(std::move(source)), options_(options) {
  static_assert(BytesOf(kClasses - 1) == kLargestClass);
  MC_CHECK(std::has_single_bit(options_.arena_bytes) && options_.arena_bytes >= kLargestClass, "arena of {} B",
           options_.arena_bytes);
}

ManagedBuffers::~ManagedBuffers() {
  const auto give_back = [this](uintptr_t address) {
    if (const auto freed = source_.free(PointerTo(address)); !freed)
      log::Warn("managed buffers: memory stays with the engine: {}", freed.error().ToString());
  };
  for (const auto& [base, lent] : arenas_) give_back(base);
  for (const auto& [address, lent] : lent_) {
    if (lent.size_class == kLarge) give_back(address);
  }
}

size_t ManagedBuffers::ClassOf(size_t bytes) {
  if (bytes > kLargestClass) return kLarge;
  if (bytes <= kSmallestClass) return 0;
  return static_cast<size_t>(std::bit_width((bytes - 1) / kSmallestClass));
}

Result<void*> ManagedBuffers::Allocate(size_t bytes) {
  if (bytes == 0) return Error(ErrorCode::INVALID_PARAMS, "a buffer of 0 bytes");
  const size_t size_class = ClassOf(bytes);
  if (size_class == kLarge) return AllocateLarge(bytes);
  std::unique_lock lock(mutex_);
  for (;;) {
    if (const uintptr_t address = Take(size_class); address != 0) {
      lent_.emplace(address, Lent{size_class, BytesOf(size_class)});
      arenas_.at(ArenaOf(address)) += BytesOf(size_class);
      lent_bytes_ += BytesOf(size_class);
      return PointerTo(address);
    }
    if (growing_) {
      grown_.wait(lock, [this] { return !growing_; });
      continue;
    }
    MC_TRY(Grow(lock));
  }
}

Result<void> ManagedBuffers::Grow(std::unique_lock<std::mutex>& lock) {
  MC_TRY(Reserve(options_.arena_bytes));
  growing_ = true;
  lock.unlock();
  const auto memory = source_.allocate(options_.arena_bytes);
  lock.lock();
  growing_ = false;
  if (memory) {
    AddArena(reinterpret_cast<uintptr_t>(*memory));
  } else {
    held_bytes_ -= options_.arena_bytes;
  }
  grown_.notify_all();
  if (!memory) return std::unexpected(memory.error());
  return {};
}

Result<void*> ManagedBuffers::AllocateLarge(size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    MC_TRY(Reserve(bytes));
  }
  const auto memory = source_.allocate(bytes);
  const std::lock_guard lock(mutex_);
  if (!memory) {
    held_bytes_ -= bytes;
    return std::unexpected(memory.error());
  }
  lent_.emplace(reinterpret_cast<uintptr_t>(*memory), Lent{kLarge, bytes});
  lent_bytes_ += bytes;
  return *memory;
}

Result<void> ManagedBuffers::Reserve(size_t bytes) {
  if (bytes > options_.max_bytes - held_bytes_) {
    return Error(ErrorCode::NO_AVAILABLE_HANDLE, "managed buffers hold {} of at most {}, no room for {} more",
                 FormatBytes(held_bytes_), FormatBytes(options_.max_bytes), FormatBytes(bytes));
  }
  held_bytes_ += bytes;
  return {};
}

void ManagedBuffers::AddArena(uintptr_t base) {
  arenas_.emplace(base, 0);
  for (size_t offset = 0; offset < options_.arena_bytes; offset += kLargestClass)
    free_[kClasses - 1].insert(base + offset);
}

uintptr_t ManagedBuffers::ArenaOf(uintptr_t address) const {
  auto after = arenas_.upper_bound(address);
  MC_CHECK(after != arenas_.begin(), "{:#x} is in no arena", address);
  return std::prev(after)->first;
}

uintptr_t ManagedBuffers::Take(size_t size_class) {
  size_t found = size_class;
  while (found < kClasses && free_[found].empty()) ++found;
  if (found == kClasses) return 0;
  // The lowest address: the later arenas empty out, and can be given back.
  const uintptr_t address = *free_[found].begin();
  free_[found].erase(free_[found].begin());
  while (found > size_class) {
    --found;
    free_[found].insert(address + BytesOf(found));
  }
  return address;
}

Result<void> ManagedBuffers::Free(void* pointer, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  {
    const std::lock_guard lock(mutex_);
    const auto found = lent_.find(address);
    if (found == lent_.end())
      return Error(ErrorCode::INVALID_PARAMS, "no managed buffer begins at {:#x} (freed already?)", address);
    const Lent lent = found->second;
    if (bytes == 0 || ClassOf(bytes) != lent.size_class || (lent.size_class == kLarge && bytes != lent.bytes)) {
      return Error(ErrorCode::INVALID_PARAMS, "the managed buffer at {:#x} has {} B, it cannot be freed as {} B",
                   address, lent.bytes, bytes);
    }
    lent_.erase(found);
    lent_bytes_ -= lent.bytes;
    if (lent.size_class != kLarge) {
      const uintptr_t spare = PutBack(address, lent.size_class);
      if (spare == 0) return {};
      pointer = PointerTo(spare);
      bytes = options_.arena_bytes;
    }
  }
  // What the source does not take back stays counted: it is still there.
  MC_TRY(source_.free(pointer));
  const std::lock_guard lock(mutex_);
  held_bytes_ -= bytes;
  return {};
}

uintptr_t ManagedBuffers::PutBack(uintptr_t address, size_t size_class) {
  const uintptr_t base = ArenaOf(address);
  size_t& lent_of_arena = arenas_.at(base);
  MC_CHECK(lent_of_arena >= BytesOf(size_class), "{} B lent of the arena, {} B come back", lent_of_arena,
           BytesOf(size_class));
  lent_of_arena -= BytesOf(size_class);
  while (size_class + 1 < kClasses) {
    const uintptr_t neighbour = base + ((address - base) ^ BytesOf(size_class));
    if (free_[size_class].erase(neighbour) == 0) break;
    address = std::min(address, neighbour);
    ++size_class;
  }
  free_[size_class].insert(address);
  if (lent_of_arena != 0) return 0;
  // One empty arena is kept: the next buffer should not pay for a registration.
  const bool another = std::any_of(arenas_.begin(), arenas_.end(),
                                   [&](const auto& arena) { return arena.first != base && arena.second == 0; });
  if (!another) return 0;
  for (size_t offset = 0; offset < options_.arena_bytes; offset += kLargestClass)
    MC_CHECK(free_[kClasses - 1].erase(base + offset) == 1, "an empty arena is not whole");
  arenas_.erase(base);
  return base;
}

size_t ManagedBuffers::lent_bytes() const {
  const std::lock_guard lock(mutex_);
  return lent_bytes_;
}

size_t ManagedBuffers::held_bytes() const {
  const std::lock_guard lock(mutex_);
  return held_bytes_;
}

}  // namespace mooncake
