// Runs a few threads under every possible order of their atomic operations, one order after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <semaphore>
#include <thread>
#include <vector>

#include "common/check.h"

namespace mooncake {

// Depth first over all decisions "who goes next", each schedule run again from the start. Only the thread that holds
// the baton runs, so what the threads share needs no locks of its own, and sanitizers see ordinary hand-overs. Orders
// are sequentially consistent ones: what weaker memory orders add is not explored.
class Interleavings {
 public:
  explicit Interleavings(size_t threads) : baton_(threads + 1) {}

  // Per schedule: `begin`, then `body(t)` on every thread t, then `end`. Returns how many schedules there were.
  uint64_t Explore(const std::function<void()>& begin, const std::function<void(size_t)>& body,
                   const std::function<void()>& end) {
    MC_CHECK(current_ == nullptr, "one exploration at a time");
    current_ = this;
    bool closing = false;
    std::vector<std::thread> threads;
    for (size_t t = 0; t < thread_count(); ++t) {
      threads.emplace_back([&, t] {
        self_ = t;
        for (baton_[t].signal.acquire(); !closing; baton_[t].signal.acquire()) {
          body(t);
          std::erase(alive_, t);
          Give(alive_.empty() ? thread_count() : alive_[Choose(alive_.size())]);
        }
      });
    }
    uint64_t schedules = 0;
    do {
      ++schedules;
      position_ = 0;
      alive_.clear();
      for (size_t t = 0; t < thread_count(); ++t) {
        alive_.push_back(t);
        baton_[t].started = false;
      }
      begin();
      Give(alive_[Choose(alive_.size())]);
      baton_.back().signal.acquire();
      end();
    } while (NextPath());
    closing = true;
    for (size_t t = 0; t < thread_count(); ++t) {
      Give(t);
      threads[t].join();
    }
    current_ = nullptr;
    return schedules;
  }

  // Before an atomic operation: any thread may go first. Nothing happens on threads that are not being explored.
  static void Point() {
    if (current_ == nullptr || self_ == kNobody) return;
    Interleavings& all = *current_;
    if (!std::exchange(all.baton_[self_].started, true)) return;  // it was chosen for this very operation
    const size_t next = all.alive_[all.Choose(all.alive_.size())];
    if (next == self_) return;
    all.Give(next);
    all.baton_[self_].signal.acquire();
  }
  // A decision between `options` outcomes of the operation itself; every one gets its turn.
  static size_t Decide(size_t options) { return current_ == nullptr ? 0 : current_->Choose(options); }
  static bool Exploring() { return current_ != nullptr && self_ != kNobody; }
  static size_t self() { return self_; }

 private:
  static constexpr size_t kNobody = ~size_t{0};
  struct Baton {
    std::binary_semaphore signal{0};
    bool started = false;
  };
  struct Decision {
    size_t taken;
    size_t options;
  };

  size_t thread_count() const { return baton_.size() - 1; }
  void Give(size_t to) { baton_[to].signal.release(); }

  size_t Choose(size_t options) {
    if (options == 1) return 0;
    if (position_ == path_.size()) path_.push_back({0, options});
    const Decision& decision = path_[position_++];
    MC_CHECK(decision.options == options, "a schedule did not repeat: {} options, then {}", decision.options, options);
    return decision.taken;
  }
  bool NextPath() {
    MC_CHECK(position_ == path_.size(), "a schedule ended early");
    while (!path_.empty() && path_.back().taken + 1 == path_.back().options) path_.pop_back();
    if (path_.empty()) return false;
    ++path_.back().taken;
    return true;
  }

  static inline Interleavings* current_ = nullptr;
  static inline thread_local size_t self_ = kNobody;
  std::vector<Baton> baton_;  // one per thread, the last is the explorer's
  std::vector<size_t> alive_;
  std::vector<Decision> path_;
  size_t position_ = 0;
};

}  // namespace mooncake
