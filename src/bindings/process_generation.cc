// Counts the forks that led to this process.
#include "bindings/process_generation.h"

#include <pthread.h>

#include <atomic>

namespace mooncake::python {

uint64_t ProcessGeneration() {
  static std::atomic<uint64_t> generation{0};
  static const int registered = pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1); });
  (void)registered;
  return generation.load();
}

}  // namespace mooncake::python
