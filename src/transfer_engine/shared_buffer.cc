// memfd_create and mmap.
#include "transfer_engine/shared_buffer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace mooncake {
namespace {

std::unexpected<Status> SystemError(const char* step, size_t bytes, int memfd) {
  const int error = errno;
  if (memfd >= 0) close(memfd);
  return std::unexpected(Status(ErrorCode::NO_AVAILABLE_HANDLE,
                                fmt::format("{} B of shared memory: {}: {}", bytes, step, std::strerror(error)),
                                error));
}

}  // namespace

Result<std::unique_ptr<SharedBuffer>> SharedBuffer::Create(const Options& options) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (options.bytes == 0 || options.bytes > SIZE_MAX / 2) {
    return Error(ErrorCode::INVALID_PARAMS, "{} B of shared memory cannot be had", options.bytes);
  }
  const size_t bytes = (options.bytes + page - 1) / page * page;
  const int memfd = memfd_create("mooncake_transfer", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (memfd < 0) return SystemError("memfd_create", bytes, memfd);
  if (ftruncate(memfd, static_cast<off_t>(bytes)) != 0) return SystemError("ftruncate", bytes, memfd);
  // A peer that holds the descriptor must not be able to make our accesses fault.
  if (fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return SystemError("sealing", bytes, memfd);
  }
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
  if (mapped == MAP_FAILED) return SystemError("mmap", bytes, memfd);
  return std::unique_ptr<SharedBuffer>(new SharedBuffer(static_cast<std::byte*>(mapped), bytes, memfd));
}

SharedBuffer::~SharedBuffer() {
  munmap(base_, bytes_);
  close(memfd_);
}

}  // namespace mooncake
