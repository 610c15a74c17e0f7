// memfd_create and mmap.
#include "transfer_engine/shared_buffer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace mooncake {
namespace {

std::unexpected<Status> SystemError(const char* step, size_t length) {
  const int error = errno;
  return std::unexpected(Status(ErrorCode::NO_AVAILABLE_HANDLE,
                                fmt::format("{} B of shared memory: {}: {}", length, step, std::strerror(error)),
                                error));
}

}  // namespace

Result<SharedBuffer> SharedBuffer::Create(size_t length, const std::string& name) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (length == 0 || length > SIZE_MAX - page) {
    return Error(ErrorCode::INVALID_PARAMS, "{} B of shared memory cannot be had", length);
  }
  SharedBuffer buffer;
  const size_t size = (length + page - 1) / page * page;
  buffer.memfd_ = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (buffer.memfd_ < 0) return SystemError("memfd_create", length);
  if (ftruncate(buffer.memfd_, static_cast<off_t>(size)) != 0) return SystemError("ftruncate", length);
  // A peer that holds the descriptor must not be able to make our accesses fault.
  if (fcntl(buffer.memfd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return SystemError("sealing", length);
  }
  void* const mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, buffer.memfd_, 0);
  if (mapped == MAP_FAILED) return SystemError("mmap", length);
  buffer.data_ = static_cast<std::byte*>(mapped);
  buffer.size_ = size;
  return buffer;
}

SharedBuffer::SharedBuffer(SharedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      memfd_(std::exchange(other.memfd_, -1)) {}

SharedBuffer& SharedBuffer::operator=(SharedBuffer&& other) noexcept {
  if (this == &other) return *this;
  Release();
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  memfd_ = std::exchange(other.memfd_, -1);
  return *this;
}

SharedBuffer::~SharedBuffer() {
  Release();
}

void SharedBuffer::Release() {
  if (data_ != nullptr) munmap(data_, size_);
  if (memfd_ >= 0) close(memfd_);
}

}  // namespace mooncake
