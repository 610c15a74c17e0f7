// The threads that move RPC bytes. Every connection lives on one of them for its whole life.
#pragma once

#include <cstddef>
#include <memory>

namespace mooncake::rpc {

namespace internal {
class IoThread;
struct IoPoolState;
}  // namespace internal

// Any thread. Clients and servers made from a pool may outlive it: its destructor closes their connections, completes
// every call with an error and joins; calls made afterwards fail at once with SHUTTING_DOWN (then on the caller's
// thread). Never destroyed from one of its own threads.
class IoPool {
 public:
  explicit IoPool(size_t threads);  // 0 counts as 1
  ~IoPool();
  IoPool(const IoPool&) = delete;
  IoPool& operator=(const IoPool&) = delete;

  size_t threads() const;

  // For this module: the thread the next connection goes to, round robin.
  std::shared_ptr<internal::IoThread> NextThread();

 private:
  std::unique_ptr<internal::IoPoolState> state_;
};

}  // namespace mooncake::rpc
