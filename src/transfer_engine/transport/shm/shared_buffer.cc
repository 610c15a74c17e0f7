// A sealed memfd and its mapping.
#include "transfer_engine/transport/shm/shared_buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "common/memfd.h"

namespace mooncake {
namespace {

std::unexpected<Status> NoRoom(const char* what, size_t bytes, int error) {
  return Error(ErrorCode::NO_AVAILABLE_HANDLE, "shared buffer of {} B: {}: {}", bytes, what, std::strerror(error));
}

}  // namespace

Result<std::unique_ptr<SharedBuffer>> SharedBuffer::Create(const Options& options) {
  const size_t huge = options.huge_page_bytes;
  if (huge != 0) MC_TRY(CheckHugePageSize(huge));
  const size_t page = huge != 0 ? huge : static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t bytes = (options.bytes + page - 1) / page * page;
  if (options.bytes == 0 || bytes < options.bytes || bytes > PTRDIFF_MAX) {
    return Error(ErrorCode::INVALID_PARAMS, "shared buffer of {} B", options.bytes);
  }
  auto memfd = CreateMemfd("mooncake_shared", bytes, huge);
  if (!memfd) return Annotate(memfd.error(), "shared buffer");
  void* const base = MapMemfd(memfd->get(), bytes, huge);
  if (base == MAP_FAILED) return NoRoom("mmap", bytes, errno);
  std::unique_ptr<SharedBuffer> buffer(new SharedBuffer(static_cast<std::byte*>(base), bytes, std::move(*memfd)));
  if (options.populate) {
    if (const int error = PopulateMemfd(buffer->data(), buffer->memfd(), 0, bytes); error != 0) {
      return NoRoom("populating", bytes, error);
    }
  }
  return buffer;
}

SharedBuffer::~SharedBuffer() {
  munmap(base_, bytes_);
}

}  // namespace mooncake
