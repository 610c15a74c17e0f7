// Memory that other processes of this host can be given: a mapped memfd.
#pragma once

#include <cstddef>
#include <string>

#include "common/status.h"
#include "transfer_engine/region_registry.h"

namespace mooncake {

// Owns the mapping and the descriptor. Move-only; not thread-safe.
class SharedBuffer {
 public:
  // Zeroed pages; `length` is rounded up to them. NO_AVAILABLE_HANDLE with the system's number when there is no memory.
  static Result<SharedBuffer> Create(size_t length, const std::string& name);
  SharedBuffer(SharedBuffer&& other) noexcept;
  SharedBuffer& operator=(SharedBuffer&& other) noexcept;
  ~SharedBuffer();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  SharedMemory shared() const { return {.memfd = memfd_, .offset = 0}; }

 private:
  SharedBuffer() = default;
  void Release();

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  int memfd_ = -1;
};

}  // namespace mooncake
