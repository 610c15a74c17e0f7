// Moves bytes between places.
#include "core/copy.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/report.h"

namespace aclemu {
namespace {

// Gives the pieces of a place that are contiguous in the emulator's own address space, one after the other.
class Cursor {
 public:
  Cursor(const Place& place, uint64_t bytes) : place_(place), left_(bytes) {
    if (place.cls != MemClass::kDevice) return;
    at_ = place.offset();
    const auto& extents = place.range->extents;
    extent_ = std::upper_bound(extents.begin(), extents.end(), at_,
                               [](uint64_t offset, const Extent& e) { return offset < e.start; }) -
              1;
  }

  std::pair<std::byte*, uint64_t> Piece() const {
    if (place_.cls != MemClass::kDevice) return {reinterpret_cast<std::byte*>(place_.addr + at_), left_};
    uint64_t inside = at_ - extent_->start;
    return {place_.range->pool->At(extent_->offset + inside), std::min(left_, extent_->bytes - inside)};
  }

  void Advance(uint64_t bytes) {
    at_ += bytes;
    left_ -= bytes;
    if (place_.cls == MemClass::kDevice && left_ > 0 && at_ == extent_->start + extent_->bytes) ++extent_;
  }

 private:
  const Place& place_;
  uint64_t left_;
  uint64_t at_ = 0;
  std::vector<Extent>::const_iterator extent_;
};

// One request moves less than 2 GiB in the kernel.
constexpr uint64_t kKernelPiece = 1ULL << 30;

aclError CopyThroughKernel(std::byte* ours, std::byte* theirs, uint64_t bytes, bool to_theirs) {
  while (bytes > 0) {
    iovec local{ours, std::min(bytes, kKernelPiece)}, remote{theirs, local.iov_len};
    ssize_t moved = to_theirs ? process_vm_writev(getpid(), &local, 1, &remote, 1, 0)
                              : process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
    if (moved < 0 && (errno == ENOSYS || errno == EPERM)) {
      Broken("process_vm_readv is not allowed here, which copies of pageable memory need");
    }
    if (moved <= 0) return Fail(ACL_ERROR_RT_COPY_DATA, "bad host address near %p", static_cast<void*>(theirs));
    ours += moved;
    theirs += moved;
    bytes -= static_cast<uint64_t>(moved);
  }
  return ACL_SUCCESS;
}

}  // namespace

const char* Name(Direction direction) {
  constexpr const char* kNames[] = {"H2H", "H2D", "D2H", "D2D"};
  return kNames[static_cast<int>(direction)];
}

aclError CopyBytes(const Place& dst, const Place& src, uint64_t bytes) {
  if (dst.cls == MemClass::kDevice && dst.range == src.range && dst.addr - src.addr < bytes && bytes > 0 &&
      dst.range->extents.size() > 1) {
    // A forward overlap in a scattered block cannot be done piece by piece from the front.
    std::vector<std::byte> whole(bytes);
    Range staging(MemClass::kPinned, reinterpret_cast<uintptr_t>(whole.data()), bytes);
    Place middle{MemClass::kPinned, std::shared_ptr<Range>(std::shared_ptr<Range>(), &staging), staging.base, bytes};
    CopyBytes(middle, src, bytes);
    return CopyBytes(dst, middle, bytes);
  }
  Cursor to(dst, bytes), from(src, bytes);
  while (bytes > 0) {
    auto [target, target_bytes] = to.Piece();
    auto [source, source_bytes] = from.Piece();
    uint64_t n = std::min(target_bytes, source_bytes);
    aclError code = ACL_SUCCESS;
    if (src.cls == MemClass::kPageable) {
      code = CopyThroughKernel(target, source, n, false);
    } else if (dst.cls == MemClass::kPageable) {
      code = CopyThroughKernel(source, target, n, true);
    } else {
      memmove(target, source, n);
    }
    if (code != ACL_SUCCESS) return code;
    to.Advance(n);
    from.Advance(n);
    bytes -= n;
  }
  return ACL_SUCCESS;
}

void SetBytes(const Place& dst, uint8_t value, uint64_t bytes) {
  Cursor to(dst, bytes);
  while (bytes > 0) {
    auto [target, n] = to.Piece();
    memset(target, value, n);
    to.Advance(n);
    bytes -= n;
  }
}

}  // namespace aclemu
