// memfd_create, size, seals, mmap.
#include "transfer_engine/transport/shm/shared_buffer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "transfer_engine/transport/shm/shm_socket.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#define MFD_HUGE_1GB (30U << 26)
#endif

namespace mooncake {
namespace {

constexpr size_t kHuge2M = size_t{2} << 20;
constexpr size_t kHuge1G = size_t{1} << 30;

std::unexpected<Status> NoRoom(const char* what, size_t bytes) {
  return Error(ErrorCode::NO_AVAILABLE_HANDLE, "shared buffer of {} B: {}: {}", bytes, what, std::strerror(errno));
}

}  // namespace

Result<std::unique_ptr<SharedBuffer>> SharedBuffer::Create(const Options& options) {
  const size_t huge = options.huge_page_bytes;
  if (huge != 0 && huge != kHuge2M && huge != kHuge1G) {
    return Error(ErrorCode::INVALID_PARAMS, "huge pages of {} B; allowed: 2 MiB, 1 GiB", huge);
  }
  const size_t page = huge != 0 ? huge : static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t bytes = (options.bytes + page - 1) / page * page;
  if (options.bytes == 0 || bytes < options.bytes || bytes > PTRDIFF_MAX) {
    return Error(ErrorCode::INVALID_PARAMS, "shared buffer of {} B", options.bytes);
  }
  unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  if (huge != 0) flags |= MFD_HUGETLB | (huge == kHuge1G ? MFD_HUGE_1GB : MFD_HUGE_2MB);
  const shm::Fd created(memfd_create("mooncake_shared", flags));
  if (!created) return NoRoom("memfd_create", bytes);
  // Never one of the standard streams, into which others print.
  shm::Fd memfd(fcntl(created.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!memfd) return NoRoom("dup", bytes);
  if (ftruncate(memfd.get(), static_cast<off_t>(bytes)) != 0) return NoRoom("ftruncate", bytes);
  if (fcntl(memfd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return NoRoom("seals", bytes);
  // Huge pages are reserved by the mapping: without that, a page that is missing later would be a bus error.
  void* const base =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (huge == 0 ? MAP_NORESERVE : 0), memfd.get(), 0);
  if (base == MAP_FAILED) return NoRoom("mmap", bytes);
  std::unique_ptr<SharedBuffer> buffer(new SharedBuffer(static_cast<std::byte*>(base), bytes, memfd.Release()));
  if (options.populate && madvise(base, bytes, MADV_POPULATE_WRITE) != 0 &&
      (errno != EINVAL || fallocate(buffer->memfd(), 0, 0, static_cast<off_t>(bytes)) != 0)) {
    return NoRoom("populating", bytes);
  }
  return buffer;
}

SharedBuffer::~SharedBuffer() {
  munmap(base_, bytes_);
  close(memfd_);
}

}  // namespace mooncake
