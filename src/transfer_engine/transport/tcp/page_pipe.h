// Bytes that a socket sends from where they lie: the kernel keeps the pages instead of a copy of them.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

#include "common/fd.h"
#include "common/metrics.h"

namespace mooncake::tcp {

// The memory may be read until the peer has taken the bytes out of its socket: within a host its system call copies
// straight from these pages, and a network device reads them, perhaps again. So they must not change before the peer
// has said that it has them.
class PagePipe {
 public:
  static constexpr size_t kPieceBytes = 512 << 10;  // of one call

  // The calling thread's own. Sends nothing unless the thread allows it.
  static PagePipe& OfThread();
  // Blocks SIGPIPE on the calling thread, for good: no flag keeps these calls from raising it.
  static void AllowOnThisThread();
  // Kernels before 6.5 hand over one page at a time, which is slower than to copy.
  static bool WorthIt();

  // Like send with MSG_DONTWAIT, of at most kPieceBytes. `more`: other bytes will follow at once. nullopt: these bytes
  // can only be copied; nothing of them was sent.
  std::optional<ssize_t> Send(int socket, const std::byte* data, size_t size, bool more);

 private:
  bool Open();  // whether it is
  void Empty();

  bool allowed_ = false;
  Fd in_;
  Fd out_;
  Fd nowhere_;
};

// What one system call sends: records and payload to be copied, or one payload to be lent.
struct Parcel {
  static constexpr size_t kPieces = 64;
  std::array<iovec, kPieces> pieces;
  size_t count = 0;
  size_t bytes = 0;
  bool lend = false;  // one piece, to be lent
  bool more = false;  // other bytes follow at once

  // All but the first `skip` bytes, of which what is used up is taken off.
  void Add(const void* data, size_t size, size_t& skip) {
    const size_t gone = std::min(skip, size);
    skip -= gone;
    if (gone == size) return;
    pieces[count++] = {const_cast<std::byte*>(static_cast<const std::byte*>(data)) + gone, size - gone};
    bytes += size - gone;
  }
};

// Like sendmsg with MSG_DONTWAIT. A payload that can only be copied is; `lent` counts the others. Sets `parcel.bytes`
// to what was offered to the socket: if it took less, it is full.
ssize_t SendParcel(int socket, Parcel& parcel, Counter& lent);

}  // namespace mooncake::tcp
