// Whether a thread with nothing to do should look again for a moment before it sleeps.
#pragma once

#include <sched.h>

#include "common/clock.h"

namespace mooncake {

// To be woken takes 20 to 60 us in a virtual machine, several times what a small transfer takes itself. So a thread
// whose waits use to be short looks again and again first, letting every other thread of its core go before it; after
// a few waits that were longer it sleeps at once, until one of them is short again. One thread at a time.
class IdleSpin {
 public:
  // True as soon as `look` is; false when `limit` has passed, or at once when looking has not been worth it.
  template <typename Look>
  bool Until(Duration limit, Look look) {
    if (limit <= Duration::zero() || credit_ == 0) return false;
    const TimePoint end = std::chrono::steady_clock::now() + limit;
    do {
      if (look()) {
        credit_ = kCredit;
        return true;
      }
      (void)sched_yield();
    } while (std::chrono::steady_clock::now() < end);
    --credit_;
    return false;
  }
  // How long the sleep took after all. Without the wake-up, one of twice the limit would have been short.
  void Slept(Duration limit, Duration time) {
    if (time < 2 * limit) credit_ = kCredit;
  }

 private:
  static constexpr int kCredit = 8;  // long waits in a row
  int credit_ = kCredit;
};

}  // namespace mooncake
