// A tier for tests: byte-exact capacity on the heap, freed bytes poisoned, refusals and hooks on demand.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "tiered_cache/cache_tier.h"
#include "tiered_cache/capacity_budget.h"

namespace mooncake {

// Set the hooks before other threads start. Any thread after that.
class HeapTier final : public CacheTier {
 public:
  static constexpr std::byte kPoison{0xDD};

  HeapTier(std::string name, size_t capacity, int32_t priority)
      : CacheTier({Uuid::Random(), std::move(name), MemoryType::DRAM, capacity, priority, {}}), budget_(capacity) {}

  Result<DataSource> Allocate(size_t size) override {
    if (before_allocate) before_allocate();
    {
      std::lock_guard lock(mutex_);
      ++allocate_calls_;
      if (refusal_) return std::unexpected(*refusal_);
    }
    auto room = budget_.Reserve(size);
    if (!room) {
      return Error(ErrorCode::NO_AVAILABLE_HANDLE, "tier {} cannot hold {} B (used {} of {} B)", info().name, size,
                   budget_.used(), info().capacity);
    }
    return DataSource{std::make_unique<Buffer>(*this, size, std::move(*room)), MemoryType::DRAM};
  }
  size_t usage() const override { return budget_.used(); }
  bool lost() const override { return gone; }

  // Every Allocate fails with this until it is taken back.
  void Refuse(std::optional<Status> status) {
    std::lock_guard lock(mutex_);
    refusal_ = std::move(status);
  }
  uint64_t allocate_calls() const {
    std::lock_guard lock(mutex_);
    return allocate_calls_;
  }

  std::atomic<bool> gone = false;  // its memory is lost for good; Refuse as well, as a device would
  std::function<void()> before_allocate;
  std::function<void()> on_access;                          // somebody asks where the bytes are
  std::atomic<bool> break_buffers = false;                  // its memory has no address: copies fail
  std::function<void(std::span<const std::byte>)> on_free;  // sees the bytes once more

 private:
  class Buffer final : public HostBuffer {
   public:
    Buffer(HeapTier& tier, size_t size, CapacityBudget::Reservation room)
        : room_(std::move(room)), tier_(tier), size_(size), bytes_(new std::byte[size]) {}
    ~Buffer() override {
      if (tier_.on_free) tier_.on_free({bytes_.get(), size_});
      std::memset(bytes_.get(), static_cast<int>(kPoison), size_);
    }
    size_t size() const override { return size_; }
    std::byte* data() const override {
      if (tier_.on_access) tier_.on_access();
      return tier_.break_buffers ? nullptr : bytes_.get();
    }

   private:
    CapacityBudget::Reservation room_;
    HeapTier& tier_;
    const size_t size_;
    std::unique_ptr<std::byte[]> bytes_;
  };

  CapacityBudget budget_;
  mutable std::mutex mutex_;
  std::optional<Status> refusal_;
  uint64_t allocate_calls_ = 0;
};

}  // namespace mooncake
