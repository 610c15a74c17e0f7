// Mapping a peer's memfd, after looking at what it really is.
#include "transfer_engine/transport/shm/mapped_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <vector>

#include "common/memfd.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace mooncake::shm {
namespace {

constexpr size_t kPopulatePiece = 32 << 20;
constexpr size_t kPopulateAtOnce = 8 << 20;  // about 1 ms

}  // namespace

Result<std::pair<uint64_t, uint64_t>> FileIdOf(const Fd& fd) {
  struct stat file{};
  if (fstat(fd.get(), &file) != 0) return Error(ErrorCode::TRANSFER_FAIL, "fstat: {}", std::strerror(errno));
  return std::pair<uint64_t, uint64_t>(file.st_dev, file.st_ino);
}

Result<std::shared_ptr<MappedFile>> MappedFile::Map(const Fd& fd) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0) return Error(ErrorCode::TRANSFER_FAIL, "what was handed over is no memfd: {}", std::strerror(errno));
  if ((seals & F_SEAL_SHRINK) == 0) {
    return Error(ErrorCode::TRANSFER_FAIL, "the memfd is not sealed against shrinking");
  }
  struct stat file{};
  if (fstat(fd.get(), &file) != 0 || file.st_size <= 0) {
    return Error(ErrorCode::TRANSFER_FAIL, "memfd of {} B", file.st_size);
  }
  const auto bytes = static_cast<size_t>(file.st_size);
  void* const base = MapMemfd(fd.get(), bytes, 0);
  if (base == MAP_FAILED) {
    return Error(ErrorCode::TRANSFER_FAIL, "mapping a memfd of {} B: {}", bytes, std::strerror(errno));
  }
  madvise(base, bytes, MADV_DONTFORK);  // a child would keep the memory, and has no use for it
  return std::make_shared<MappedFile>(static_cast<std::byte*>(base), bytes);
}

MappedFile::~MappedFile() {
  munmap(base_, bytes_);
}

void MappedFile::Populate(const std::shared_ptr<MappedFile>& file, size_t offset, size_t length, Executor& workers) {
  const size_t end = offset + length;
  size_t begin = offset;
  if (length <= kPopulateAtOnce) {
    file->PopulatePiece(begin, end);
    return;
  }
  // One task per piece, each submitted by the one before, so that copies have their turn. It is only a head start:
  // without room in the queue the copies take the faults themselves.
  struct Task {
    void operator()() {
      const auto mapped = weak.lock();
      if (mapped == nullptr) return;
      const size_t stop = std::min(last, next + kPopulatePiece);
      mapped->PopulatePiece(next, stop);
      if (stop == last) return;
      std::move_only_function<void()> rest = Task{weak, stop, last, workers};
      (void)workers.TrySubmit(rest);
    }
    std::weak_ptr<MappedFile> weak;
    size_t next;
    size_t last;
    Executor& workers;
  };
  std::move_only_function<void()> task = Task{file, begin, end, workers};
  (void)workers.TrySubmit(task);
}

void MappedFile::PopulatePiece(size_t begin, size_t end) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  begin = begin / page * page;
  const size_t pages = (end - begin + page - 1) / page;
  std::vector<unsigned char> resident(pages);
  if (mincore(base_ + begin, pages * page, resident.data()) != 0) return;
  for (size_t i = 0; i < pages;) {
    size_t run = i;
    while (run < pages && (resident[run] & 1) != 0) ++run;
    // Fails on kernels before 5.14, and where memory is short.
    if (run > i && madvise(base_ + begin + i * page, (run - i) * page, MADV_POPULATE_WRITE) != 0) return;
    i = run + 1;
  }
}

Acknowledgement::~Acknowledgement() {
  Message answer;
  answer.kind = Kind::kRevoked;
  answer.revocation = revocation_;
  // An owner that does not take it stops waiting after a while, and closes the connection.
  (void)socket_->Send(answer);
}

Result<void> MappedRegion::Usable() const {
  if (revoked_.load(std::memory_order_acquire)) {
    return Error(ErrorCode::ADDRESS_NOT_REGISTERED, "memory [{:#x}, +{}) of process {} was withdrawn", address_,
                 SizeOf(memory_), socket_->peer().pid);
  }
  if (!socket_->alive()) return Error(ErrorCode::TRANSFER_FAIL, "process {} is gone", socket_->peer().pid);
  return {};
}

Result<MemoryRange> MappedRegion::At(uint64_t address, uint64_t length) const {
  const uint64_t whole = SizeOf(memory_);
  if (address < address_ || length > whole || address - address_ > whole - length) {
    return Error(ErrorCode::ADDRESS_NOT_REGISTERED, "[{:#x}, +{}) is not inside the region [{:#x}, +{}) of process {}",
                 address, length, address_, whole, socket_->peer().pid);
  }
  return SubRange(memory_, address - address_, length);
}

void MappedRegion::Revoke(std::shared_ptr<Acknowledgement> acknowledgement) {
  acknowledgement_ = std::move(acknowledgement);
  revoked_.store(true, std::memory_order_release);
}

}  // namespace mooncake::shm
