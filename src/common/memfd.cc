// memfd_create, size, seals, mmap.
#include "common/memfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#define MFD_HUGE_1GB (30U << 26)
#endif

namespace mooncake {
namespace {

std::unexpected<Status> NoRoom(const char* step, size_t bytes) {
  return Error(ErrorCode::NO_AVAILABLE_HANDLE, "{} of {} B: {}", step, bytes, std::strerror(errno));
}

uintptr_t RoundUp(uintptr_t value, size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Whatever of it the host can back by huge pages, whether or not its settings offer them for shared memory: ten times
// as fast as taking the small pages, and what is left is taken as those. Each needs one small page to begin with.
void TakeHugePages(std::byte* begin, size_t bytes) {
  const auto first = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t low = RoundUp(first, kHugePage2M);
  const uintptr_t high = (first + bytes) / kHugePage2M * kHugePage2M;
  if (low >= high) return;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (uintptr_t at = low; at < high; at += kHugePage2M) {
    if (madvise(reinterpret_cast<void*>(at), page, MADV_POPULATE_WRITE) != 0) return;
  }
  (void)madvise(reinterpret_cast<void*>(low), high - low, MADV_COLLAPSE);
}

}  // namespace

Result<void> CheckHugePageSize(size_t bytes) {
  if (bytes == kHugePage2M || bytes == kHugePage1G) return {};
  return Error(ErrorCode::INVALID_PARAMS, "huge pages of {} B; allowed: 2 MiB, 1 GiB", bytes);
}

Result<Fd> CreateMemfd(const char* name, size_t bytes, size_t huge_page_bytes) {
  unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  if (huge_page_bytes != 0) flags |= MFD_HUGETLB | (huge_page_bytes == kHugePage1G ? MFD_HUGE_1GB : MFD_HUGE_2MB);
  Fd memfd(memfd_create(name, flags));
  // The process may run with closed standard streams.
  if (memfd && memfd.get() <= STDERR_FILENO) memfd = Fd(fcntl(memfd.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!memfd) return NoRoom("memfd_create", bytes);
  if (ftruncate(memfd.get(), static_cast<off_t>(bytes)) != 0) return NoRoom("sizing a memfd", bytes);
  if (fcntl(memfd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return NoRoom("sealing a memfd", bytes);
  }
  return memfd;
}

// At a multiple of 2 MiB if it is that long: elsewhere the kernel cannot map it by huge pages.
void* MapMemfd(int memfd, size_t bytes, size_t huge_page_bytes) {
  const int flags = MAP_SHARED | (huge_page_bytes == 0 ? MAP_NORESERVE : 0);
  const auto map = [&](void* at, int more) { return mmap(at, bytes, PROT_READ | PROT_WRITE, flags | more, memfd, 0); };
  size_t room = 0;
  if (huge_page_bytes != 0 || bytes < kHugePage2M || __builtin_add_overflow(bytes, kHugePage2M, &room)) {
    return map(nullptr, 0);
  }
  void* const reserved = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  const auto begin = reinterpret_cast<uintptr_t>(reserved);
  const uintptr_t aligned = RoundUp(begin, kHugePage2M);
  void* const mapped = map(reinterpret_cast<void*>(aligned), MAP_FIXED);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    munmap(reserved, room);
    errno = error;
    return MAP_FAILED;
  }
  const uintptr_t end = RoundUp(aligned + bytes, static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  if (aligned != begin) munmap(reserved, aligned - begin);
  if (end < begin + room) munmap(reinterpret_cast<void*>(end), begin + room - end);
  return mapped;
}

// Kernels before 5.14 do not know the first call; the second takes the pages as well, only their mapping is left to the
// first access.
int PopulateMemfd(std::byte* base, int memfd, size_t at, size_t bytes) {
  TakeHugePages(base + at, bytes);
  if (madvise(base + at, bytes, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
  return fallocate(memfd, 0, static_cast<off_t>(at), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
}

}  // namespace mooncake
