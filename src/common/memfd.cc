// memfd_create, size, seals, mmap.
#include "common/memfd.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
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

void* MapMemfd(int memfd, size_t bytes, size_t huge_page_bytes) {
  const int flags = MAP_SHARED | (huge_page_bytes == 0 ? MAP_NORESERVE : 0);
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, memfd, 0);
}

// Kernels before 5.14 do not know the first call; the second takes the pages as well, only their mapping is left to the
// first access.
int PopulateMemfd(std::byte* base, int memfd, size_t at, size_t bytes) {
  if (madvise(base + at, bytes, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
  return fallocate(memfd, 0, static_cast<off_t>(at), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
}

}  // namespace mooncake
