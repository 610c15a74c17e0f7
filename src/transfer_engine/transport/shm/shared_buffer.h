// Memory of this process that other processes of the host can map: a sealed memfd and its mapping.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "common/fd.h"
#include "common/status.h"

namespace mooncake {

// The file cannot change its size, so that nobody who maps it gets a bus error. Any thread.
class SharedBuffer {
 public:
  struct Options {
    size_t bytes = 0;            // rounded up to whole pages
    size_t huge_page_bytes = 0;  // 2 MiB or 1 GiB; 0: ordinary pages
    bool populate = false;       // have all pages now instead of at first use
  };
  // INVALID_PARAMS for 0 B, what no process can have, or another page size; NO_AVAILABLE_HANDLE when the host has no
  // room.
  static Result<std::unique_ptr<SharedBuffer>> Create(const Options& options);
  ~SharedBuffer();
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;

  std::byte* data() const { return base_; }
  size_t size() const { return bytes_; }  // rounded
  std::span<std::byte> memory() const { return {base_, bytes_}; }
  int memfd() const { return memfd_.get(); }  // the buffer's: dup it to keep it

 private:
  SharedBuffer(std::byte* base, size_t bytes, Fd memfd) : base_(base), bytes_(bytes), memfd_(std::move(memfd)) {}

  std::byte* const base_;
  const size_t bytes_;
  const Fd memfd_;
};

}  // namespace mooncake
