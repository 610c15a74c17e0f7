// An NpuDriver for tests whose queues stand still until somebody waits: bytes move then and not before, so a slot that
// is reused too early, or read too early, shows as wrong bytes. Says what was done in which order; fails when told to.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <vector>

#include "device/npu_driver.h"
#include "device/pinned_ranges.h"

namespace mooncake {

class FakeNpuDriver final : public NpuDriver {
 public:
  static constexpr int32_t kCopyFailed = 507001;

  // One Submit as it was made.
  struct Submitted {
    CopyDirection direction;
    int32_t device_id;
    size_t copies;
    size_t bytes;
    size_t own_pending;    // copies queued in the same stream before it
    size_t other_pending;  // and in all other streams
  };

  ~FakeNpuDriver() override { EXPECT_EQ(live_streams_, 0) << "streams outlive their driver"; }

  // --- what the test arranges; before other threads start ---
  std::set<std::pair<int32_t, int32_t>> unreachable;  // lower id first
  bool has_abort = true;
  bool has_pinned = true;
  bool has_streams = true;
  bool looks_pinned = false;
  std::function<Result<void>(const NpuCopy&)> on_submit;        // an error refuses the whole Submit
  std::function<std::optional<Status>(const NpuCopy&)> on_run;  // an error shows at Synchronize
  std::function<Result<void>(const NpuCopy&)> on_now;           // of CopyNow
  int hang_at = -1;             // the copy with this number (of all that run) does not end ...
  int hang_timeouts = 1 << 30;  // ... before that many waits timed out, or an abort

  PinnedRanges& pinned() { return pinned_; }

  // --- what the test asks ---
  std::vector<Submitted> submitted() {
    std::lock_guard lock(mutex_);
    return submitted_;
  }
  int aborts = 0;
  int timeouts = 0;
  int synchronizes = 0;
  int streams_created = 0;
  int copies_now = 0;
  int pinned_allocations = 0;
  int64_t pinned_live_bytes = 0;
  size_t run = 0;

  // --- NpuDriver ---
  Result<std::unique_ptr<NpuStream>> CreateStream(int32_t device_id) override {
    std::lock_guard lock(mutex_);
    if (!has_streams) return Error(ErrorCode::INTERNAL_ERROR, "fake: no streams");
    ++streams_created;
    return std::make_unique<FakeStream>(*this, device_id);
  }
  Result<std::unique_ptr<PinnedMemory>> AllocatePinned(int32_t, size_t bytes) override {
    std::lock_guard lock(mutex_);
    ++pinned_allocations;
    if (!has_pinned) return Error(ErrorCode::INTERNAL_ERROR, "fake: no page-locked memory");
    pinned_live_bytes += static_cast<int64_t>(bytes);
    return std::make_unique<FakePinned>(*this, bytes);
  }
  size_t PinnedRun(const std::byte* at, size_t size) const override { return pinned_.Run(at, size); }
  bool LooksPinned(int32_t, const std::byte*, size_t) const override { return looks_pinned; }
  Result<void> CopyNow(const NpuCopy& copy) override {
    if (on_now) MC_TRY(on_now(copy));
    std::lock_guard lock(mutex_);
    ++copies_now;
    Move(copy);
    return {};
  }
  bool EnsurePeerAccess(int32_t from, int32_t to) override { return !unreachable.contains(std::minmax(from, to)); }
  bool DeviceLost(int32_t) const override { return false; }

 private:
  static void Move(const NpuCopy& copy) {
    std::memcpy(reinterpret_cast<void*>(copy.target.address()), reinterpret_cast<const void*>(copy.source.address()),
                copy.size);
  }

  class FakePinned final : public PinnedMemory {
   public:
    FakePinned(FakeNpuDriver& driver, size_t bytes)
        : PinnedMemory({static_cast<std::byte*>(::operator new(bytes, std::align_val_t(4096))), bytes}),
          driver_(driver) {
      std::memset(this->bytes().data(), 0xA5, bytes);
      driver_.pinned_.Add(this->bytes());
    }
    ~FakePinned() override {
      driver_.pinned_.Remove(bytes().data());
      std::lock_guard lock(driver_.mutex_);
      driver_.pinned_live_bytes -= static_cast<int64_t>(bytes().size());
      EXPECT_FALSE(driver_.UsesNow(bytes())) << "page-locked memory freed under a queued copy";
      ::operator delete(bytes().data(), std::align_val_t(4096));
    }

   private:
    FakeNpuDriver& driver_;
  };

  class FakeStream final : public NpuStream {
   public:
    FakeStream(FakeNpuDriver& driver, int32_t device_id) : driver_(driver), device_id_(device_id) {
      ++driver_.live_streams_;
      driver_.streams_.insert(this);
    }
    ~FakeStream() override {
      std::lock_guard lock(driver_.mutex_);
      RunUntil(submitted_);
      driver_.streams_.erase(this);
      --driver_.live_streams_;
    }
    Result<void> Submit(std::span<const NpuCopy> copies) override {
      for (const NpuCopy& copy : copies) {
        if (driver_.on_submit) MC_TRY(driver_.on_submit(copy));
      }
      std::lock_guard lock(driver_.mutex_);
      Submitted entry{copies.front().direction(), device_id_, copies.size(), 0, queue_.size(), 0};
      for (const FakeStream* stream : driver_.streams_) {
        if (stream != this) entry.other_pending += stream->queue_.size();
      }
      for (const NpuCopy& copy : copies) {
        Check(copy);
        entry.bytes += copy.size;
        queue_.push_back(copy);
        ++submitted_;
      }
      driver_.submitted_.push_back(entry);
      return {};
    }
    Result<Mark> MarkHere() override {
      std::lock_guard lock(driver_.mutex_);
      return submitted_;
    }
    Result<Waited> AwaitMark(Mark mark, Duration) override {
      std::lock_guard lock(driver_.mutex_);
      return RunUntil(mark) ? Waited::kDone : TimedOut();
    }
    Result<Waited> Synchronize(Duration) override {
      std::lock_guard lock(driver_.mutex_);
      ++driver_.synchronizes;
      if (!RunUntil(submitted_)) return TimedOut();
      if (error_) return std::unexpected(*std::exchange(error_, std::nullopt));
      return Waited::kDone;
    }
    Result<void> Abort() override {
      std::lock_guard lock(driver_.mutex_);
      if (!driver_.has_abort) return Error(ErrorCode::NOT_IMPLEMENTED, "fake: no abort");
      ++driver_.aborts;
      done_ += queue_.size();
      queue_.clear();
      return {};
    }

   private:
    friend class FakeNpuDriver;
    void Check(const NpuCopy& copy) const {
      EXPECT_EQ(copy.device_id(), device_id_);
      EXPECT_EQ(copy.target.address() % kAsyncAlignment, 0u);
      EXPECT_EQ(copy.source.address() % kAsyncAlignment, 0u);
      EXPECT_LE(copy.size, copy.capacity);
      if (copy.direction() != CopyDirection::kDeviceToDevice && !driver_.looks_pinned) {
        EXPECT_EQ(driver_.pinned_.Run(copy.host_end().host(), copy.size), copy.size) << "not in one registration";
      }
    }
    Waited TimedOut() {
      ++driver_.timeouts;
      return Waited::kTimedOut;
    }
    bool RunUntil(Mark mark) {
      for (; done_ < mark; ++done_) {
        const bool hangs = static_cast<int>(driver_.run) == driver_.hang_at;
        if (hangs && driver_.timeouts < driver_.hang_timeouts && driver_.hang_timeouts > 0) return false;
        const NpuCopy copy = queue_.front();
        queue_.pop_front();
        ++driver_.run;
        auto error = driver_.on_run ? driver_.on_run(copy) : std::nullopt;
        if (error) {
          error_ = std::move(error);
        } else {
          Move(copy);
        }
      }
      return true;
    }

    FakeNpuDriver& driver_;
    const int32_t device_id_;
    std::deque<NpuCopy> queue_;
    Mark submitted_ = 0;
    Mark done_ = 0;
    std::optional<Status> error_;
  };

  bool UsesNow(std::span<const std::byte> memory) const {
    const auto begin = reinterpret_cast<uintptr_t>(memory.data());
    const auto inside = [&](const CopyEnd& end) {
      return end.address() >= begin && end.address() < begin + memory.size();
    };
    return std::ranges::any_of(streams_, [&](const FakeStream* stream) {
      return std::ranges::any_of(stream->queue_,
                                 [&](const NpuCopy& copy) { return inside(copy.source) || inside(copy.target); });
    });
  }

  std::mutex mutex_;  // of all queues and counts: a test has little to run in parallel
  PinnedRanges pinned_;
  std::set<FakeStream*> streams_;
  std::vector<Submitted> submitted_;
  int live_streams_ = 0;
};

// Memory of a fake device: ordinary memory under another name.
class FakeDeviceMemory {
 public:
  FakeDeviceMemory(int32_t device_id, size_t size)
      : device_id_(device_id), size_(size), memory_(static_cast<std::byte*>(::operator new(size, kAlign))) {
    std::memset(memory_, 0xEE, size);
  }
  ~FakeDeviceMemory() { ::operator delete(memory_, kAlign); }
  FakeDeviceMemory(const FakeDeviceMemory&) = delete;
  FakeDeviceMemory& operator=(const FakeDeviceMemory&) = delete;
  AscendUnifiedPointer at(size_t offset = 0) const {
    return {device_id_, static_cast<DeviceAddress>(reinterpret_cast<uintptr_t>(memory_ + offset))};
  }
  std::span<std::byte> bytes() const { return {memory_, size_}; }
  size_t size() const { return size_; }

 private:
  static constexpr std::align_val_t kAlign{4096};
  const int32_t device_id_;
  const size_t size_;
  std::byte* const memory_;
};

}  // namespace mooncake
