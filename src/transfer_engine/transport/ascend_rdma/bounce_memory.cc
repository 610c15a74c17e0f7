// Map, touch, page-lock, register; and back.
#include "transfer_engine/transport/ascend_rdma/bounce_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "common/log.h"

namespace mooncake::bridge {

Result<std::unique_ptr<BounceMemory>> BounceMemory::Create(NpuRuntime& runtime, int32_t device_id, size_t bytes,
                                                           std::span<Transport* const> transports,
                                                           RegionRegistry* lent_in) {
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
  MC_TRY(memory->Register(transports, lent_in, device_id));
  return memory;
}

Result<void> BounceMemory::Register(std::span<Transport* const> transports, RegionRegistry* lent_in,
                                    int32_t device_id) {
  const auto address = reinterpret_cast<uint64_t>(bytes_.data());
  if (lent_in != nullptr) {
    auto reserved =
        MC_TRY(lent_in->Reserve(address, bytes_.size(), {.location = "cpu", .access = RegionAccess::kLent}));
    MC_CHECK(reserved.has_value(), "new memory at {:#x} is registered already", address);
    region_ = std::move(*reserved);
    reserved_in_ = lent_in;
  } else {
    region_->address = address;
    region_->length = bytes_.size();
    region_->options = {.location = "cpu", .access = RegionAccess::kLocal};
  }
  for (Transport* const transport : transports) {
    const auto registered = transport->RegisterRegion(*region_);
    if (!registered) {
      return Annotate(registered.error(), fmt::format("{} B of host memory that stage for NPU device {}, with {}",
                                                      bytes_.size(), device_id, transport->name()));
    }
    registered_.push_back(transport);
  }
  if (lent_in != nullptr) {
    lent_in->Publish(region_);
    published_ = true;
  }
  return {};
}

BounceMemory::~BounceMemory() {
  if (published_) MC_CHECK(reserved_in_->Unpublish(region_->address).has_value(), "{:#x}", region_->address);
  while (!registered_.empty()) {
    registered_.back()->WithdrawRegion(*region_);
    registered_.pop_back();
  }
  if (published_) {
    // Whoever was lent a slot has been waited for; at most a wire still puts down what it held.
    const auto unused = reserved_in_->WaitUnused(region_, Deadline::After(std::chrono::hours(24)));
    MC_CHECK(unused.has_value(), "{}", unused.error().message());
  } else if (reserved_in_ != nullptr) {
    reserved_in_->Abandon(region_);
  }
  page_locked_.reset();
  (void)munmap(bytes_.data(), bytes_.size());
}

}  // namespace mooncake::bridge
