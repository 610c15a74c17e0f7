// Memory of this process that other processes of the host can map: a sealed memfd and its mapping.
#pragma once

#include <cstddef>
#include <memory>

#include "common/status.h"

namespace mooncake {

// Any thread.
class SharedBuffer {
 public:
  struct Options {
    size_t bytes = 0;  // rounded up to whole pages
  };
  static Result<std::unique_ptr<SharedBuffer>> Create(const Options& options);
  ~SharedBuffer();
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;

  std::byte* data() const { return base_; }
  int memfd() const { return memfd_; }

 private:
  SharedBuffer(std::byte* base, size_t bytes, int memfd) : base_(base), bytes_(bytes), memfd_(memfd) {}

  std::byte* const base_;
  const size_t bytes_;
  const int memfd_;
};

}  // namespace mooncake
