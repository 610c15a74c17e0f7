// Which of two contents of a key counts: a stamp for every content, and the clock that makes them.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>
#include <tuple>
#include <utility>

#include "common/uuid.h"

namespace mooncake {

// Identity and rank of one content of one key, the same at every owner and at the master. Whatever an upsert wrote
// ranks above whatever a put wrote; within each of the two the later one does, and of two made at once the greater
// writer.
struct ContentStamp {
  uint64_t hlc = 0;       // hybrid time: 48 bits of milliseconds since 1970, then a count of 16; 0: no stamp
  uint32_t writer = 0;    // who made it (WriterOf)
  bool upserted = false;  // by an upsert: it replaces what is there, a put does not

  bool none() const { return hlc == 0; }

  friend bool operator==(const ContentStamp&, const ContentStamp&) = default;
  friend std::strong_ordering operator<=>(const ContentStamp& a, const ContentStamp& b) {
    return std::tie(a.upserted, a.hlc, a.writer) <=> std::tie(b.upserted, b.hlc, b.writer);
  }
};

// The writer's number of a client in its stamps.
inline uint32_t WriterOf(Uuid client) {
  const uint64_t mixed = client.first ^ client.second;
  return static_cast<uint32_t>(mixed ^ (mixed >> 32));
}

// Hybrid logical clock: close to the time of day, never backwards, and ahead of every stamp it was shown, so that a
// content made after another one was seen ranks above it whatever the hosts' clocks say. Any thread, no lock.
class StampClock {
 public:
  // A clock that far ahead is a broken one: following it would drag all others along.
  static constexpr uint64_t kMaxAheadMs = 60'000;

  // `now_ms` is the time of day in milliseconds since 1970; any thread.
  explicit StampClock(uint32_t writer, std::function<uint64_t()> now_ms = SystemMs)
      : writer_(writer), now_ms_(std::move(now_ms)) {}

  // Greater than every one before it and all that was observed.
  ContentStamp Next(bool upserted) {
    const uint64_t now = now_ms_() << kCountBits;
    uint64_t last = last_.load(std::memory_order_relaxed);
    uint64_t next = 0;
    do {
      next = std::max(last + 1, now);
    } while (!last_.compare_exchange_weak(last, next, std::memory_order_relaxed));
    return {.hlc = next, .writer = writer_, .upserted = upserted};
  }

  // False, and without effect, when it is more than kMaxAheadMs ahead.
  bool Observe(uint64_t hlc) {
    if (hlc >> kCountBits > now_ms_() + kMaxAheadMs) return false;
    uint64_t last = last_.load(std::memory_order_relaxed);
    while (last < hlc && !last_.compare_exchange_weak(last, hlc, std::memory_order_relaxed)) {
    }
    return true;
  }

 private:
  static constexpr int kCountBits = 16;
  static uint64_t SystemMs() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
  }

  const uint32_t writer_;
  const std::function<uint64_t()> now_ms_;
  std::atomic<uint64_t> last_{0};
};

}  // namespace mooncake
