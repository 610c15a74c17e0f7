// Two engines' worth of shared memory transports in one process, and operations between them.
#pragma once

#include <cstring>
#include <memory>

#include "device/test_pattern.h"
#include "transfer_engine/transport/local/test_context.h"
#include "transfer_engine/transport/shm/shared_buffer.h"
#include "transfer_engine/transport/shm/shm_transport.h"

namespace mooncake {

inline std::unique_ptr<SharedBuffer> MakeShared(size_t bytes, unsigned seed = 1) {
  auto buffer = SharedBuffer::Create({.bytes = bytes});
  EXPECT_TRUE(buffer) << buffer.error().ToString();
  const Bytes pattern = Pattern((*buffer)->size(), seed);
  std::memcpy((*buffer)->data(), pattern.data(), pattern.size());
  return std::move(*buffer);
}

inline RegionOptions SharedOptions(int memfd, uint64_t offset = 0) {
  RegionOptions options;
  options.shared = SharedMemory{memfd, offset};
  return options;
}

inline Bytes Copied(std::span<const std::byte> memory) {
  return {memory.begin(), memory.end()};
}

// A process as far as this transport can tell.
struct ShmNode {
  explicit ShmNode(ShmTransport::Limits limits = {}) {
    auto opened = ShmTransport::Open(context.Context(), limits);
    EXPECT_TRUE(opened) << opened.error().ToString();
    transport = std::move(*opened);
  }
  std::shared_ptr<Region> Register(const SharedBuffer& buffer, size_t offset, size_t length) {
    return context.Register(*transport, buffer.memory().subspan(offset, length), SharedOptions(buffer.memfd(), offset));
  }
  std::shared_ptr<Region> Register(const SharedBuffer& buffer) { return Register(buffer, 0, buffer.size()); }
  SegmentPtr Describe() const { return context.Describe(*transport); }

  TestContext context;
  std::unique_ptr<ShmTransport> transport;
};

inline uint64_t AddressOf(const SharedBuffer& buffer, size_t offset = 0) {
  return reinterpret_cast<uint64_t>(buffer.data()) + offset;
}

}  // namespace mooncake
