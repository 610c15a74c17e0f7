// Lending of streams and slots.
#include "device/copy_lanes.h"

#include "common/log.h"

namespace mooncake {

LanePool::~LanePool() {
  MC_CHECK(in_use_ == 0, "{} lanes of NPU device {} still in use", in_use_, device_id_);
}

Result<LanePool::Lane> LanePool::Acquire() {
  std::unique_ptr<NpuStream> stream;
  {
    std::unique_lock lock(mutex_);
    freed_.wait(lock, [this] { return in_use_ < limit_; });
    ++in_use_;
    if (!idle_.empty()) {
      stream = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (stream == nullptr) {
    auto created = driver_.CreateStream(device_id_);
    if (!created) {
      Release(nullptr);
      return std::unexpected(std::move(created).error());
    }
    stream = *std::move(created);
  }
  return Lane(*this, std::move(stream));
}

void LanePool::Release(std::unique_ptr<NpuStream> stream) {
  {
    std::lock_guard lock(mutex_);
    --in_use_;
    if (stream != nullptr) idle_.push_back(std::move(stream));
  }
  freed_.notify_one();
}

LanePool::Lane::~Lane() {
  if (pool_ == nullptr) return;
  MC_CHECK(!used_, "a lane of NPU device {} was given back unfinished", pool_->device_id_);
  pool_->Release(std::move(stream_));
}

Result<void> LanePool::Lane::Finish(Result<void> so_far, Duration patience, std::string_view what) {
  MC_CHECK(stream_ != nullptr, "a finished lane was used");
  used_ = false;
  bool reusable = so_far.has_value();
  auto drained = Drain(*stream_, patience, IsTimeOut(so_far), what, reusable);
  if (!reusable) stream_.reset();
  return so_far ? std::move(drained) : std::move(so_far);
}

SlotRing::SlotRing(NpuDriver& driver, int32_t device_id, size_t slot_bytes, size_t slot_count)
    : driver_(driver), device_id_(device_id), slot_bytes_(slot_bytes), slot_count_(slot_count) {
  MC_CHECK(slot_count > 0 && slot_bytes > 0 && slot_bytes % kAsyncAlignment == 0, "{} slots of {} B", slot_count,
           slot_bytes);
}

SlotRing::~SlotRing() {
  MC_CHECK(memory_ == nullptr || free_.size() == slot_count_, "{} staging slots of NPU device {} still in use",
           slot_count_ - free_.size(), device_id_);
}

// One caller allocates, others wait for it.
void SlotRing::Allocate(std::unique_lock<std::mutex>& lock) {
  state_ = State::kAllocating;
  lock.unlock();
  auto memory = driver_.AllocatePinned(device_id_, slot_bytes_ * slot_count_);
  if (!memory) {
    log::Warn("NPU device {}: copies of ordinary host memory are not staged: {}", device_id_,
              memory.error().ToString());
  }
  lock.lock();
  state_ = memory ? State::kReady : State::kFailed;
  if (memory) {
    memory_ = *std::move(memory);
    for (size_t i = slot_count_; i-- > 0;) free_.push_back(memory_->bytes().data() + i * slot_bytes_);
  }
  changed_.notify_all();
}

std::vector<SlotRing::Slot> SlotRing::Acquire(size_t wanted) {
  std::vector<Slot> slots;
  slots.reserve(wanted);
  std::unique_lock lock(mutex_);
  if (state_ == State::kEmpty) Allocate(lock);
  changed_.wait(lock, [this] { return state_ == State::kFailed || !free_.empty(); });
  while (slots.size() < wanted && !free_.empty()) {
    slots.emplace_back(*this, free_.back());
    free_.pop_back();
  }
  return slots;
}

void SlotRing::Release(std::byte* slot) {
  {
    std::lock_guard lock(mutex_);
    free_.push_back(slot);
  }
  changed_.notify_one();
}

}  // namespace mooncake
