// Map, touch, page-lock, register; and back.
#include "transfer_engine/transport/ascend_rdma/bounce_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "common/log.h"

namespace mooncake::bridge {

Result<std::unique_ptr<BounceMemory>> BounceMemory::Create(NpuRuntime& runtime, int32_t device_id, size_t bytes,
                                                           std::span<Transport* const> transports) {
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return std::unexpected(
        Status(ErrorCode::INTERNAL_ERROR,
               fmt::format("no {} B of host memory to stage for NPU device {}: {}", bytes, device_id, strerror(errno)),
               errno));
  }
  std::unique_ptr<BounceMemory> memory(new BounceMemory({static_cast<std::byte*>(mapped), bytes}));
  (void)madvise(mapped, bytes, MADV_HUGEPAGE);  // as far as the host has them
  if (madvise(mapped, bytes, MADV_DONTFORK) != 0) {
    return std::unexpected(
        Status(ErrorCode::INTERNAL_ERROR, fmt::format("madvise(MADV_DONTFORK): {}", strerror(errno)), errno));
  }
  std::memset(mapped, 0, bytes);
  auto page_locked = runtime.RegisterHost(device_id, memory->bytes_);
  if (page_locked) {
    memory->page_locked_ = std::move(*page_locked);
  } else if (page_locked.error().code() == ErrorCode::NOT_IMPLEMENTED) {
    log::Warn("NPU device {}: transfers copy synchronously: {}", device_id, page_locked.error().ToString());
  } else {
    return std::unexpected(std::move(page_locked.error()));
  }
  memory->region_.address = reinterpret_cast<uint64_t>(mapped);
  memory->region_.length = bytes;
  memory->region_.options = {.location = "cpu", .access = RegionAccess::kLocal};
  for (Transport* const transport : transports) {
    const auto registered = transport->RegisterRegion(memory->region_);
    if (!registered) {
      return Annotate(registered.error(), fmt::format("{} B of host memory that stage for NPU device {}, with {}",
                                                      bytes, device_id, transport->name()));
    }
    memory->registered_.push_back(transport);
  }
  return memory;
}

BounceMemory::~BounceMemory() {
  while (!registered_.empty()) {
    registered_.back()->WithdrawRegion(region_);
    registered_.pop_back();
  }
  page_locked_.reset();
  (void)munmap(bytes_.data(), bytes_.size());
}

}  // namespace mooncake::bridge
