// Work for several owners at once, so that one that does not answer delays only its own keys.
#pragma once

#include <deque>
#include <system_error>
#include <thread>
#include <vector>

namespace mooncake {

inline constexpr size_t kMaxOwnerThreads = 16;

// Every worker first starts what needs no waiting (Start). One that then has more to do than to wait for its replies
// (has_more) finishes on a thread of its own, the others on this one.
template <typename Worker>
void FinishSideBySide(std::deque<Worker>& workers) {
  for (Worker& worker : workers) worker.Start();
  std::vector<std::thread> threads;
  std::vector<Worker*> here;
  for (Worker& worker : workers) {
    if (workers.size() > 1 && worker.has_more() && threads.size() < kMaxOwnerThreads) {
      try {
        threads.emplace_back([&worker] { worker.Finish(); });
      } catch (const std::system_error&) {
        here.push_back(&worker);  // no thread to be had: one after the other then
      }
    } else {
      here.push_back(&worker);
    }
  }
  for (Worker* worker : here) worker->Finish();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace mooncake
