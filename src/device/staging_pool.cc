// Hand-out of staging slots.
#include "device/staging_pool.h"

#include "common/check.h"

namespace mooncake {

StagingPool::~StagingPool() {
  MC_CHECK(in_use_ == 0, "{} staging slots still in use", in_use_);
}

Result<std::shared_ptr<StagingPool::Slot>> StagingPool::Acquire(Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!freed_.wait_until(lock, deadline.time(), [this] { return in_use_ < slot_count_; })) {
    return Error(ErrorCode::TRANSFER_FAIL, "timed out waiting for one of {} staging buffers of {} B", slot_count_,
                 slot_bytes_);
  }
  return Take(std::move(lock));
}

std::shared_ptr<StagingPool::Slot> StagingPool::TryAcquire() {
  std::unique_lock lock(mutex_);
  if (in_use_ >= slot_count_) return nullptr;
  return Take(std::move(lock));
}

std::shared_ptr<StagingPool::Slot> StagingPool::Take(std::unique_lock<std::mutex> lock) {
  ++in_use_;
  std::unique_ptr<std::byte[]> memory;
  if (!idle_.empty()) {
    memory = std::move(idle_.back());
    idle_.pop_back();
  }
  lock.unlock();
  if (memory == nullptr) memory = std::make_unique_for_overwrite<std::byte[]>(slot_bytes_);
  return std::make_shared<Slot>(*this, std::move(memory));
}

void StagingPool::Release(std::unique_ptr<std::byte[]> memory) {
  {
    std::lock_guard lock(mutex_);
    MC_CHECK(in_use_ > 0, "staging slot returned twice");
    --in_use_;
    idle_.push_back(std::move(memory));
  }
  freed_.notify_one();
}

}  // namespace mooncake
